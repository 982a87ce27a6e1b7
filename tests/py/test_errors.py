"""Errors: class, text and the user's line."""

import dvm
import numpy as np
import pytest

F32 = np.float32


def test_classes():
    for cls, base in [
        (dvm.ArgumentError, ValueError),
        (dvm.ArgumentError, TypeError),
        (dvm.DTypeError, TypeError),
        (dvm.ShapeError, ValueError),
        (dvm.OutOfRangeError, IndexError),
        (dvm.UnsupportedError, NotImplementedError),
        (dvm.OutOfMemoryError, MemoryError),
        (dvm.KindError, ValueError),
        (dvm.LimitError, ValueError),
        (dvm.ParseError, ValueError),
        (dvm.StateError, RuntimeError),
    ]:
        assert issubclass(cls, base) and issubclass(cls, dvm.Error)
        assert issubclass(cls, RuntimeError) and cls.status > 0


def line():
    import sys

    return f"{__file__}:{sys._getframe(1).f_lineno}"


def test_the_users_line_is_named():
    k = dvm.Kernel("split")
    x, y = k.load([2, 3], dvm.float32), k.load([4], dvm.float32)
    with pytest.raises(dvm.ShapeError, match=r"\[2, 3\].*\[4\]") as info:
        here = line(); k.add(x, y)  # fmt: skip # noqa: E702
    assert here in str(info.value)
    z = k.load([2, 3], dvm.int32)
    with pytest.raises(dvm.DTypeError, match="one dtype, got f32 and i32") as info:
        here = line(); _ = x * z  # fmt: skip # noqa: E702
    assert here in str(info.value)
    k.store(k.add(x, x))  # the kernel is still good
    k.compile()


def test_the_users_line_at_run_time():
    @dvm.kernel
    def f(k, x, y):
        return k.store(k.add(k.load(x), k.load(y)))

    with pytest.raises(dvm.ShapeError) as info:
        f(np.zeros(3, F32), np.zeros(4, F32))
    assert "test_errors.py:" in str(info.value) and "[3]" in str(info.value)


def test_explicit_positions():
    k = dvm.Kernel()
    x = k.load([2], dvm.float32)
    k.at("model.py:17")
    with pytest.raises(dvm.ShapeError, match=r"model\.py:17"):
        k.reshape(x, [3])
    k.at(None)
    with pytest.raises(dvm.ShapeError, match="test_errors"):
        k.reshape(x, [3])


@dvm.kernel(ktype="split", dyn_shape=False)
def add(k):
    k.store(k.add(k.load([4], dvm.float32), k.load([4], dvm.float32)))


X = np.zeros(4, F32)


def test_argument_counts():
    with pytest.raises(dvm.ArgumentError, match=r"expected 2 arguments, given 1"):
        add(X)
    with pytest.raises(dvm.ArgumentError, match=r"3 arguments \(2 inputs, 1 output\), given 2"):
        add.run(X, X)

    @dvm.kernel
    def f(k, x, y):
        return k.store(k.add(k.load(x), k.load(y)))

    with pytest.raises(dvm.ArgumentError, match=r"expected 2 arguments \(x, y\), given 3"):
        f(X, X, X)
    f(X, X)
    with pytest.raises(dvm.ArgumentError, match=r"expected 2 arguments \(x, y\), given 1"):
        f(X)


@pytest.mark.parametrize(
    "out", [np.zeros(4), np.zeros(4, ">f4"), np.zeros(4, np.complex64), [0.0] * 4]
)
def test_hints_about_outputs_make_no_copy(out):
    """Results in a converted copy would be lost."""
    with pytest.raises(dvm.Error, match="pass memory of dtype float32, not a copy") as e:
        add.run(X, X, out)
    assert "astype" not in str(e.value) and "asarray" not in str(e.value)


def test_sections_of_another_kind():
    with pytest.raises(dvm.StateError, match="this one, seq, has seq_add"):
        dvm.PyKernel("seq").parallel_add("vector")
    with pytest.raises(dvm.StateError, match="this one, parallel, has parallel_add"):
        dvm.PyKernel("parallel").seq_add("vector")
    with pytest.raises(dvm.StateError, match="this one, split, has no sections"):
        dvm.PyKernel("split").seq_add("vector")


def test_argument_dtypes():
    with pytest.raises(dvm.DTypeError, match="input 1: expected f32, given f64"):
        add(X, np.zeros(4))
    with pytest.raises(dvm.DTypeError, match="output 0: expected f32, given i32"):
        add.run(X, X, np.zeros(4, np.int32))
    with pytest.raises(dvm.DTypeError, match="expected f32, given complex64"):
        add(X, np.zeros(4, np.complex64))
    with pytest.raises(dvm.DTypeError, match="expected f32, given >f4"):
        add(X, np.zeros(4, ">f4"))
    with pytest.raises(dvm.ArgumentError, match="expected an array or tensor of f32, given list"):
        add(X, [1, 2, 3, 4])
    with pytest.raises(dvm.ArgumentError, match="declared by scalar"):
        add(X, 2.0)


def test_errors_name_the_argument():
    @dvm.kernel
    def f(k, data, weight, factor):
        return k.store(k.mul(k.add(k.load(data), k.load(weight)), k.scalar(factor, "float32")))

    for static in (False, True):
        if static:

            @dvm.kernel(dynamic=False)
            def f(k, data, weight, factor):
                y = k.add(k.load(data, shape=[4]), k.load(weight, shape=[4]))
                return k.store(k.mul(y, k.scalar(factor, "float32")))

            with pytest.raises(dvm.ShapeError, match=r"input 1 \(weight\) has shape \[5\]"):
                f(X, np.zeros(5, F32), 1)
        with pytest.raises(
            dvm.DTypeError,
            match=r"input 1 \(weight\): expected f32, given f64: .*x\.astype\('float32'\)",
        ):
            f(X, np.zeros(4), 1)
        with pytest.raises(
            dvm.ArgumentError, match=r"input 0 \(data\): .*given MaskedArray.*filled"
        ):
            f(np.ma.masked_array(X, X > 2), X, 1)
        with pytest.raises(dvm.ArgumentError, match=r"input 0 \(data\): .*given list.*asarray"):
            f([1, 2, 3, 4], X, 1)
        with pytest.raises(dvm.ArgumentError, match=r"input 2 \(factor\), a scalar"):
            f(X, X, "a")
        many = np.zeros(8, F32)
        with pytest.raises(dvm.OverlapError, match=r"output 0 overlaps input 1 \(weight\) in part"):
            f.run(X, many[:4], 1, many[2:6])
        with pytest.raises(
            dvm.ArgumentError, match=r"expected 3 arguments \(data, weight, factor\)"
        ):
            f(X)


def test_argument_shapes():
    with pytest.raises(dvm.ShapeError):
        add(X, np.zeros(5, F32))
    with pytest.raises(dvm.ShapeError):
        add.run(X, X, np.zeros((4, 1), F32))
    with pytest.raises(dvm.LimitError, match="11 dimensions"):
        add(X, np.zeros((1,) * 11, F32))


def test_read_only_outputs():
    frozen = np.zeros(4, F32)
    frozen.flags.writeable = False
    add(frozen, frozen)
    with pytest.raises(dvm.ArgumentError, match="output 0 is read-only"):
        add.run(X, X, frozen)


def test_scalars():
    @dvm.kernel(ktype="split", dyn_shape=True)
    def f(k):
        k.store(k.add(k.load([-1], dvm.float32), k.scalar(dvm.float32)))

    np.testing.assert_array_equal(f(X, np.float64(2)), X + 2)
    np.testing.assert_array_equal(f(X, np.array(3)), X + 3)
    with pytest.raises(dvm.ArgumentError, match="a scalar: expected a number"):
        f(X, "two")


def test_foreign_values():
    a, b = dvm.Kernel(), dvm.Kernel()
    x, y = a.load([2], dvm.float32), b.load([2], dvm.float32)
    for fn in (lambda: a.add(x, y), lambda: a.sqrt(y), lambda: a.store(y), lambda: a.add(1, y)):
        with pytest.raises(dvm.ForeignValueError):
            fn()
    s = a.scalar()
    with pytest.raises(dvm.ForeignValueError):
        b.add(y, s)


def test_operands_that_are_none():
    k = dvm.Kernel()
    x = k.load([2], dvm.float32)
    for fn in (
        lambda: k.add(1, 2),
        lambda: k.add(x, "a"),
        lambda: k.sqrt(2.0),
        lambda: k.add(x, np.zeros(2)),
        lambda: k.load("ab", dvm.float32) and k.load(2.5, dvm.float32),
        lambda: k.concat([]),
    ):
        with pytest.raises(dvm.ArgumentError):
            fn()


def test_unsupported_operations_say_what_to_use():
    k = dvm.Kernel("mix")
    x = k.load([2, 2], dvm.float16)
    for name in ("allreduce", "allgather", "allgatherv2", "reducescatter", "multi_load"):
        with pytest.raises(dvm.UnsupportedError, match=r"torch\.distributed"):
            getattr(k, name)(x)
    with pytest.raises(dvm.UnsupportedError):
        dvm.PyKernel.init_comm(0, 2)


def test_missing_inputs():
    k = dvm.PyKernel("split:dyn")
    k.store(k.add(k.load([-1]), k.scalar()))
    with pytest.raises(dvm.StateError, match="no value yet"):
        k.run()
    k = dvm.PyKernel("split:dyn")
    shape = k.int_array()
    out = k.store(k.reshape(k.load([-1]), shape))
    with pytest.raises(dvm.StateError):
        k.run()
    with pytest.raises(dvm.ArgumentError):
        k.input(out, X)
    with pytest.raises(dvm.DTypeError, match="expected float32, given int32"):
        k.input(k.load([-1]), np.zeros(2, np.int32))


def test_builder_returns_stores():
    with pytest.raises(dvm.ArgumentError, match="what store"):

        @dvm.kernel
        def f(k, x):
            return k.load(x)

    with pytest.raises(dvm.ArgumentError, match="placeholder"):

        @dvm.kernel
        def g(k, x):
            return k.store(k.load([2, 3]))


def test_values_after_close():
    import _dvm

    g = _dvm.Graph()
    x = g.load(_dvm.T_f32, (2,))
    assert x.shape == (2,) and x.dtype == _dvm.T_f32
    g.close()
    with pytest.raises(dvm.StateError, match="closed"):
        _ = x.shape
    with pytest.raises(dvm.StateError, match="closed"):
        g.op(_dvm.OP_neg, x)
    h = _dvm.Graph()
    with pytest.raises(dvm.ForeignValueError):
        h.op(_dvm.OP_neg, x)


def test_a_value_keeps_its_graph():
    import _dvm

    def value():
        g = _dvm.Graph()
        return g.load(_dvm.T_f32, (2,))

    assert value().shape == (2,)


def test_parse():
    import _dvm

    k = dvm.Kernel("split")
    k.store(k.exp(k.load([2, 3], dvm.float32)))
    g = _dvm.parse(k.graph_text(), "again")
    assert g.text() == k.graph_text()
    x = np.ones((2, 3), F32)
    np.testing.assert_allclose(g.compile().call(x), np.exp(x), rtol=1e-6)
    with pytest.raises(dvm.ParseError, match="bad:1:"):
        _dvm.parse("kernel @", "bad")


def test_no_truth_and_no_array():
    k = dvm.Kernel()
    x = k.load([2], dvm.float32)
    with pytest.raises(TypeError):
        bool(x)
    with pytest.raises(TypeError):
        np.asarray(x)


def test_positions_in_files_with_other_letters(tmp_path):
    path = tmp_path / ("é" * 60) / ("日本" * 20)
    path.mkdir(parents=True)
    code = compile("k.reshape(x, [3])", str(path / "modèle.py"), "exec")
    k = dvm.Kernel()
    with pytest.raises(dvm.ShapeError, match=r"modèle\.py:1"):
        exec(code, {"k": k, "x": k.load([2], dvm.float32)})


def test_a_vector_kernel_is_one_kernel():
    def build(kind):
        @dvm.kernel(ktype=kind, dyn_shape=False)
        def two_spaces(k):
            x = k.load([4, 6], dvm.float32)
            k.store(k.permute(k.sum(x, [1], True), [1, 0]) + k.sum(k.sum(x, [0]), [0]))

        return two_spaces

    with pytest.raises(dvm.KindError, match="one fused kernel"):
        build("vector")
    for kind in ("spec", "split"):
        x = np.arange(24, dtype=np.float32).reshape(4, 6)
        assert np.array_equal(build(kind)(x), x.sum(1)[None, :] + x.sum())


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64, 10**30])
def test_integers_beyond_64_bits_do_not_wrap(value):
    @dvm.kernel
    def scaled(k, x, a):
        return k.store(k.mul(k.load(x, dvm.float32), k.scalar(a)))

    with pytest.raises(dvm.ArgumentError, match=r"input 1 \(a\), a scalar: .*beyond 64"):
        scaled(np.ones(4, np.float32), value)
    assert np.array_equal(
        scaled(np.ones(4, np.float32), float(value)), np.full(4, value, np.float32)
    )


def test_axes_out_of_range():
    """Every operation with an axis names itself, the axis, the rank and the user's line."""
    k = dvm.Kernel("split")
    x, i = k.load([2, 3], dvm.float32), k.load([2], dvm.int64)
    for name, axis, call in [
        ("transpose", 5, lambda: k.transpose(x, 5, 0)),
        ("transpose", -3, lambda: k.transpose(x, 0, -3)),
        ("cumsum", 2, lambda: k.cumsum(x, 2)),
        ("stack", 3, lambda: k.stack([x, x], 3)),
        ("one_hot", 2, lambda: k.one_hot(i, 3, 2, 1.0, 0.0)),
        ("slice_dim", 2, lambda: k.slice_dim(x, 2, 0, 1)),
        ("concat", 2, lambda: k.concat([x, x], 2)),
        ("gather", 2, lambda: k.gather(x, i, 2, 1)),
        ("sum", 2, lambda: k.sum(x, [2])),
        ("argmax", 2, lambda: k.argmax(x, 2)),
    ]:
        with pytest.raises(dvm.ShapeError) as info:
            call()
        where = f"{__file__}:{call.__code__.co_firstlineno}: in {name}: axis {axis} "
        assert str(info.value).startswith(where) and "rank" in str(info.value), name


def test_axes_out_of_range_at_run_time():
    @dvm.kernel
    def f(k, x):
        a = k.load(x)
        return k.store(k.transpose(a, 0, 1))

    with pytest.raises(dvm.ShapeError, match=r"test_errors.py:\d+: in transpose: axis 1 .*rank 1"):
        f(X)


def test_numbers_beyond_64_bits():
    k = dvm.Kernel("split")
    x = k.load([2], dvm.int64)
    for call in (
        lambda: k.iota([1 << 63]),
        lambda: k.reshape(x, [1 << 64]),
        lambda: k.slice(x, [1 << 70], [1]),
        lambda: k.slice_dim(x, 0, 0, 1, 1 << 70),
        lambda: k.sum(x, [1 << 65]),
        lambda: k.add(x, 1 << 70),
        lambda: k.full(1 << 70, [2], dvm.int64),
    ):
        with pytest.raises(dvm.Error, match=r"test_errors.py:\d+: in \w+: "):
            call()

    @dvm.kernel
    def f(k, x, s):
        return k.store(k.mul(k.load(x), k.scalar(s)))

    with pytest.raises(dvm.ArgumentError, match=r"input 1 \(s\), a scalar: .*beyond 64 bits"):
        f(X, 1 << 70)


def test_a_forgotten_load_is_no_number():
    for build in (
        lambda k, x, y: k.store(k.add(k.load(x), y)),
        lambda k, x, y: k.store(k.add(x, k.load(y))),
        lambda k, x, y: k.store(k.load(x) * y),
        lambda k, x, y: k.store(y * k.load(x)),
        lambda k, x, y: k.store(x * 2),
        lambda k, x, y: k.store(-x),
        lambda k, x, y: k.store(k.exp(x)),
        lambda k, x, y: k.store(k.select(k.less(k.load(y), 0), x, 0)),
        lambda k, x, y: k.store(k.clamp(k.load(y), x, 1)),
        lambda k, x, y: k.store(x),
    ):
        with pytest.raises(dvm.ArgumentError, match=r"the parameter [xy] itself.*k\.load\("):
            dvm.kernel(build)
    with pytest.raises(dvm.ArgumentError, match="expected an integer, given the parameter y"):
        dvm.kernel(lambda k, x, y: k.store(k.reshape(k.load(x), [y])))
    by_position = dvm.kernel(lambda k, x, y: k.store(k.add(k.load(0), k.load(1))))
    np.testing.assert_array_equal(by_position(X + 1, X + 2), X + 3)


def test_runner_offsets():
    x = np.arange(10, dtype=F32)
    for bad in (-1, 11, 1 << 70):
        k = dvm.PyKernel("split")
        a = k.load([2], dvm.float32)
        with pytest.raises(dvm.ShapeError, match=rf"offset is 0 to 10, .*given {bad}"):
            k.input(a, x, bad)
    k.store(a)
    k.input(a, x, 9)
    with pytest.raises(dvm.ShapeError, match=r"shape \[2\] at offset 9 needs 11 .*has 10"):
        k.run()


@pytest.mark.parametrize(
    "line",
    [
        "k.sum(x, 'a')", "k.sum(x, 1.5)", "k.concat(x, 0)", "k.concat(None)", "k.concat([])",
        "k.stack(x)", "k.stack([x], 'a')", "k.reshape(x, None)", "k.iota([2], 'a')",
        "k.slice_dim(x, 0, 'a')", "k.slice_dim(x, 0, 0, 1, 0)", "k.slice_dim(x, '0', 0)",
        "k.transpose(x, 'a')", "k.transpose(x, 0.0, 1)", "k.var(x, [0], correction='a')",
        "k.cumsum(x, None)", "k.argmax(x, [0])", "k.argmax(x, 'a')", "k.unary(3, x)",
        "k.unary('nope', x)", "k.binary('__init__', x, x)", "k.reduce('load', x)",
        "k.reduce(None, x)", "k.pad_store(x, 'a')", "k.pad_store(x, -1)",
        "k.pad_store(x, [1, 2, 3])", "k.gather(x, i, 'a')", "k.one_hot(i, 'a', 0, 1, 0)",
        "k.one_hot(i, 3, 0, 'a', 0)", "k.set_load_bind(x, 3)", "k.set_load_bind(3, x)",
        "k.clone(3)", "k.at(5)", "k.set_kernel_info(None)", "k.cast(x, None)", "k.add(x, 1j)",
        "k.add(x, np.ones(3))", "k.full('a', [2])", "k.full(1, None)", "k.load([[2]])",
        "dvm.PyKernel('split').input(3, X)",
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind(line):
    """Every argument of every method is refused with an error of ours."""
    k = dvm.Kernel("split")
    x, i = k.load([2, 3], dvm.float32), k.load([2, 3], dvm.int64)
    with pytest.raises(dvm.Error):
        eval(line, globals(), {"k": k, "x": x, "i": i})
    k.store(k.add(x, x))  # the kernel is still good
    k.compile()


def test_wrong_inputs_of_the_runner():
    k = dvm.PyKernel("split")
    x = k.load([4], dvm.float32)
    for args in [("a",), (X, "a"), (X, 1.5), (np.ones(4),), (np.ones(4, complex),)]:
        with pytest.raises(dvm.Error):
            k.input(x, *args)


def test_a_misspelt_operation_gets_the_near_name():
    k = dvm.PyKernel()
    with pytest.raises(AttributeError, match=r"no operation .exq.; did you mean exp"):
        k.exq(1)
    with pytest.raises(AttributeError, match=r"no operation .zzzz.$"):
        _ = k.zzzz
    assert not hasattr(k, "_nothing")
