"""@dvm.kernel in both spellings, on arrays of numpy and tensors of torch."""

import copy
import functools
import inspect
import pickle

import dvm
import numpy as np
import pytest
from dvm import arrays

F32, F16, I32 = np.float32, np.float16, np.int32


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(F32)


# ------------------------------------------------------------------------------ placeholders


def test_add_with_changing_shapes(rng):
    @dvm.kernel
    def add(k, x, y):
        return k.store(k.add(k.load(x, dvm.float32), k.load(y, dvm.float32)))

    for s, t in [((32, 32), (32, 32)), ((32, 1), (32, 512)), ((7,), (3, 7)), ((), (2, 2))]:
        a, b = normal(rng, *s), normal(rng, *t)
        c = add(a, b)
        assert isinstance(c, np.ndarray) and c.dtype == F32
        np.testing.assert_array_equal(c, a + b)
    assert "Add" in add.dump() and add.__name__ == "add"


def test_batch_norm_statistics(rng):
    @dvm.kernel
    def stats(k, x, n):
        a = k.load(x, dvm.float32)
        n = k.scalar(n)
        mean = k.div(k.sum(a, [0]), n)
        d = k.sub(a, mean)
        var = k.div(k.sum(k.mul(d, d), [0]), n)
        return k.store(mean), k.store(var)

    for rows, cols in [(64, 32), (1000, 7)]:
        x = normal(rng, rows, cols) * 3 + 1
        for n in (rows, float(rows)):
            out = stats(x, n)
            assert isinstance(out, list)
            np.testing.assert_allclose(out[0], x.mean(0), rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(out[1], x.var(0), rtol=1e-3, atol=1e-3)


def test_softmax_in_half(rng):
    """The attention example without its products: float16, dtype as text, a scalar scale."""

    @dvm.kernel
    def weights(k, scores, scale):
        s = k.mul(k.load(scores, "float16"), k.scalar(scale))
        s = k.sub(s, k.max(s, [1], True))
        e = k.exp(s)
        return k.store(k.div(e, k.sum(e, [1], True)))

    s = normal(rng, 24, 77).astype(F16)
    e = np.exp((s.astype(F32) * 0.125) - (s.astype(F32) * 0.125).max(1, keepdims=True))
    got = weights(s, 0.125)
    assert got.dtype == F16
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-2, atol=1e-2)


def test_epilogue(rng):
    """The bias, scale, shift and silu of the matmul example."""

    @dvm.kernel
    def epilogue(k, product, bias, scale, shift):
        x = k.cast(k.load(product, "float16"), "float32")
        x = k.add(x, k.load(bias, "float32"))
        x = k.add(k.mul(x, k.scalar(scale)), k.scalar(shift))
        sigmoid = k.div(1.0, k.add(k.exp(k.mul(x, -1.0)), 1.0))
        return k.store(k.mul(x, sigmoid))

    p, b = normal(rng, 16, 32).astype(F16), normal(rng, 32)
    x = (p.astype(F32) + b) * 0.5 + 0.25
    np.testing.assert_allclose(epilogue(p, b, 0.5, 0.25), x / (1 + np.exp(-x)), rtol=1e-5)


def test_static_placeholders(rng):
    @dvm.kernel(ktype="vector", dynamic=False)
    def twice(k, x):
        return k.store(k.mul(k.load(x, dvm.float32, [2, 3]), 2))

    x = normal(rng, 2, 3)
    np.testing.assert_array_equal(twice(x), 2 * x)
    with pytest.raises(dvm.ShapeError):
        twice(normal(rng, 3, 3))


def test_int_arrays_as_arguments(rng):
    @dvm.kernel
    def sums(k, x, shape, axes):
        return k.store(k.sum(k.reshape(k.load(x), k.int_array(shape)), k.int_array(axes)))

    x = normal(rng, 24)
    for shape, axes in [([4, 6], [1]), ((2, 3, 4), (0, 2)), ([24], []), ([4, 6], [0])]:
        want = x.reshape(shape).sum(tuple(axes) or None)
        np.testing.assert_allclose(sums(x, shape, axes), want, rtol=1e-5, atol=1e-5)


def test_arguments_in_another_order_and_unused(rng):
    @dvm.kernel
    def f(k, unused, a, b):
        y, x = k.load(b), k.load(a)
        first, second = k.store(k.sub(x, y)), k.store(k.add(x, y))
        return second, first

    x, y = normal(rng, 4), normal(rng, 4)
    out = f(None, x, y)
    np.testing.assert_array_equal(out[0], x + y)
    np.testing.assert_array_equal(out[1], x - y)
    p, q = np.empty(4, F32), np.empty(4, F32)
    f.run(None, x, y, p, q)
    np.testing.assert_array_equal(p, x + y)
    np.testing.assert_array_equal(q, x - y)


def test_rank_dependent_programs(rng):
    @dvm.kernel
    def centred(k, x):
        a = k.load(x)
        return k.store(k.slice_dim(k.sub(a, k.mean(a, [-1], True)), 0, 0, 2))

    for shape in [(5, 6), (3, 4, 5), (2, 2), (9, 3, 2, 2)]:
        x = normal(rng, *shape)
        want = (x - x.mean(-1, keepdims=True))[:2]
        np.testing.assert_allclose(centred(x), want, rtol=1e-5, atol=1e-5)


def test_older_scalar_names(rng):
    @dvm.kernel
    def f(k, x, n, s):
        return k.store(k.reshape(k.mul(k.load(x, "float32"), k.scalar(n, "float32")), k.dims(s)))

    x = normal(rng, 6)
    np.testing.assert_array_equal(f(x, 3, [2, 3]), (x * 3).reshape(2, 3))


def test_strided_arguments(rng):
    @dvm.kernel
    def f(k, x, y):
        return k.store(k.add(k.load(x), k.load(y)))

    big = normal(rng, 20, 30)
    for x in (big.T, big[::2, 3:17:3], big[5:6], np.broadcast_to(big[0], (4, 30)), big[::-1, ::-2]):
        np.testing.assert_array_equal(f(x, x), x + x)
        out = np.zeros((*x.shape, 3), F32)[..., 1]
        f.run(x, x, out)
        np.testing.assert_array_equal(out, x + x)
    fields = np.zeros(5, [("a", "u1"), ("b", "f4")])
    fields["b"] = 3
    np.testing.assert_array_equal(f(fields["b"], fields["b"]), np.full(5, 6, F32))


def test_in_place(rng):
    @dvm.kernel
    def f(k, x):
        return k.store(k.mul(k.load(x), 2))

    x = normal(rng, 50)
    want = x * 2
    f.run(x, x)
    np.testing.assert_array_equal(x, want)
    with pytest.raises(dvm.OverlapError):
        f.run(x[:-1], x[1:])


# ------------------------------------------------------------------------------ declared loads


def test_declared_loads(rng):
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        x, y = k.load([2, 3], dvm.float32), k.load([3], dvm.float32)
        k.store(k.add(x, y))
        k.store(k.sum(x, [1]), dvm.float16)
        k.set_kernel_info("fused_add_sum", "f")

    x, y = normal(rng, 2, 3), normal(rng, 3)
    out = f(x, y)
    assert isinstance(out, tuple) and len(out) == 2
    np.testing.assert_array_equal(out[0], x + y)
    assert out[1].dtype == F16
    a, b = np.empty((2, 3), F32), np.empty(2, F16)
    assert f.run(x, y, a, b) is None
    np.testing.assert_array_equal(a, x + y)
    assert isinstance(f.kobj, dvm.Kernel)
    with pytest.raises(TypeError):
        f(x, y=y)


def test_declared_dynamic(rng):
    @dvm.kernel(ktype="spec", dyn_shape=True)
    def f(k):
        x, y = k.load([-1, -1, -1], dvm.float32), k.load([4, 4, 4], dvm.float32)
        s = k.scalar(dvm.float32)
        total = k.sum(k.mul(k.add(x, y), s), [2], True)
        k.spec_next()
        k.store(k.div(x, total))

    for s, t in [((512, 1, 256), (512, 3, 256)), ((2, 2, 5), (1, 1, 1))]:
        x, y = np.abs(normal(rng, *s)) + 1, np.abs(normal(rng, *t))
        want = x / ((x + y) * F32(0.5)).sum(2, keepdims=True)
        np.testing.assert_allclose(f(x, y, 0.5), want, rtol=1e-5)


def test_sizes_as_scalars(rng):
    @dvm.kernel(ktype="split", dyn_shape=True)
    def f(k):
        n, m = k.scalar(dvm.int64), k.scalar(dvm.int64)
        x = k.load([-1], dvm.float32)
        k.store(k.broadcast(k.reshape(x, [n, 1, m]), [n, 2, m]))
        k.store(k.full(n, [m, n * m - 1], dvm.float32))
        k.store(k.reshape(x, [x.dim(0) // 2, 2]))

    x = normal(rng, 12)
    for n, m in [(3, 4), (6, 2)]:
        a, b, c = f(n, m, x)
        np.testing.assert_array_equal(a, np.broadcast_to(x.reshape(n, 1, m), (n, 2, m)))
        np.testing.assert_array_equal(b, np.full((m, n * m - 1), n, F32))
        np.testing.assert_array_equal(c, x.reshape(6, 2))


def test_views_take_the_strides_of_the_argument(rng):
    @dvm.kernel(ktype="vector", dyn_shape=False)
    def f(k):
        k.store(k.add(k.view_load((4, 3), (1, 4), dvm.float32), 1))

    x = normal(rng, 3, 4)
    np.testing.assert_array_equal(f(x.T), x.T + 1)
    np.testing.assert_array_equal(f(np.ascontiguousarray(x.T)), x.T + 1)


def test_view_store(rng):
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        x = k.load((3, 4), dvm.float32)
        k.view_store(k.neg(x), (1, 3))
        k.store(x)

    x = normal(rng, 3, 4)
    a, b = f(x)
    np.testing.assert_array_equal(a, -x)
    assert a.strides == (4, 12)
    np.testing.assert_array_equal(b, x)
    memory = np.zeros((3, 8), F32)
    f.run(x, memory[:, ::2], b)
    np.testing.assert_array_equal(memory[:, ::2], -x)
    assert not memory[:, 1::2].any()


def test_one_parameter_is_enough_to_tell(rng):
    @dvm.kernel()
    def f(k):
        k.store(k.exp(k.load([3], dvm.float32)))

    @dvm.kernel
    def g(k):
        k.store(k.exp(k.load([3], dvm.float32)))

    x = normal(rng, 3)
    np.testing.assert_array_equal(f(x), g(x))
    with pytest.raises(dvm.ArgumentError, match="only parameter"):
        dvm.kernel(ktype="split", dyn_shape=False)(lambda k, x: None)
    with pytest.raises(dvm.KindError, match="kernel type error"):
        dvm.kernel(ktype="splut", dyn_shape=False)(lambda k: None)


def test_strict_rounds_after_every_operation():
    x = arrays.to_bf16(np.array([1.0, 1.00390625, 3.0], F32) * F32(1.7))

    def build(k):
        a = k.load([3], dvm.bfloat16)
        k.store(k.mul(k.mul(a, 1.1), 1.1))

    loose = dvm.kernel(ktype="split", dyn_shape=False)(build)
    strict = dvm.kernel(ktype="split", dyn_shape=False, strict=True)(build)
    c = arrays.from_bf16(arrays.to_bf16(np.float32(1.1)))
    step = arrays.from_bf16(arrays.to_bf16(arrays.from_bf16(x) * c))
    want = arrays.to_bf16(step * c)
    np.testing.assert_array_equal(strict(x), want)
    once = arrays.to_bf16(arrays.from_bf16(x) * c * c)
    np.testing.assert_array_equal(loose(x), once)


def test_what_a_function_says_of_itself(rng):
    @dvm.kernel
    def f(k, x, scale):
        """Scales."""
        return k.store(k.mul(k.load(x), k.scalar(scale)))

    assert str(inspect.signature(f)) == "(x, scale)" and f.__doc__ == "Scales."
    x = normal(rng, 3)
    f(x, 2)
    f(x, 2.0)
    assert "Muls.fp32" in f.das() and "kernel 0" in f.kobj.explain()

    @dvm.kernel(ktype="split", dyn_shape=False)
    def g(k):
        k.store(k.load([3], dvm.float32))

    assert str(inspect.signature(g)) == "(*inputs)" and "Load" in g.dump()


def test_arguments_by_name(rng):
    @dvm.kernel
    def scaled(k, x, w, factor):
        return k.store(k.mul(k.mul(k.load(x), k.load(w)), k.scalar(factor)))

    x, w, out = normal(rng, 2, 3), normal(rng, 3), np.empty((2, 3), F32)
    want = x * w * F32(2)
    for _ in range(2):  # before and after the first call is settled
        np.testing.assert_array_equal(scaled(x, w, factor=2.0), want)
        np.testing.assert_array_equal(scaled(factor=2.0, w=w, x=x), want)
        for args, named in [((x, w), {"factor": 2.0}), ((), {"factor": 2.0, "x": x, "w": w})]:
            out[:] = 0
            scaled.run(*args, out=out, **named)
            np.testing.assert_array_equal(out, want)
        with pytest.raises(dvm.ArgumentError, match=r"no argument 'q': the kernel takes x, w, f"):
            scaled(x, w, q=2.0)
        with pytest.raises(dvm.ArgumentError, match="'w' is given by position and by name"):
            scaled(x, w, w=w)
        with pytest.raises(dvm.ArgumentError, match="are missing: w; the kernel takes x, w, fac"):
            scaled(x, factor=2.0)
        with pytest.raises(dvm.ArgumentError, match="no argument 'out': the kernel takes x"):
            scaled(x, w, 2.0, out=out)
        with pytest.raises(dvm.ArgumentError, match="out= takes 1 output, given 2"):
            scaled.run(x, w, 2.0, out=[out, out])
        with pytest.raises(dvm.ArgumentError, match=r"given 3$"):
            scaled.run(x, w, factor=2.0)


def test_several_outputs_by_name(rng):
    @dvm.kernel
    def f(k, out, y):  # a parameter of that name is an input
        a, b = k.load(out), k.load(y)
        return k.store(k.add(a, b)), k.store(k.sub(a, b))

    @dvm.kernel(dyn_shape=False)
    def g(k):
        a = k.load([3], dvm.float32)
        k.store(k.mul(a, 2))
        k.store(k.neg(a))

    x, y, p, q = (normal(rng, 3) for _ in range(4))
    np.testing.assert_array_equal(f(y=y, out=x)[1], x - y)
    with pytest.raises(dvm.ArgumentError, match="given 2"):
        f.run(y=y, out=x)
    g.run(x, out=(p, q))
    np.testing.assert_array_equal(p, x * 2)
    np.testing.assert_array_equal(q, -x)
    for call in (g, g.run):
        with pytest.raises(dvm.ArgumentError, match=r"no argument 'x'.*by position"):
            call(x=x)


@dvm.kernel
def module_kernel(k, x):
    return k.store(k.mul(k.load(x), 3))


def test_copies_and_pickles(rng):
    """As functions: a copy is the kernel itself, and a pickle holds its name."""
    assert copy.copy(module_kernel) is module_kernel
    assert copy.deepcopy([module_kernel])[0] is module_kernel
    assert pickle.loads(pickle.dumps(module_kernel)) is module_kernel
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(dvm.kernel(lambda k, x: k.store(k.load(x))))
    k = dvm.Kernel()
    x = k.load([2])
    for made in (k, module_kernel.kobj):
        with pytest.raises(TypeError, match=r"use clone\(\)"):
            copy.deepcopy(made)
        with pytest.raises(TypeError, match=r"use clone\(\)"):
            pickle.dumps(made)
    with pytest.raises(TypeError, match="a value of a kernel"):
        copy.copy(x)


def test_callables_without_a_name(rng):
    class Scale:
        def __init__(self, n):
            self.n = n

        def __call__(self, k, x):
            return k.store(k.mul(k.load(x), self.n))

    x = normal(rng, 3)
    by_object, by_partial = (
        dvm.kernel(Scale(2)),
        dvm.kernel(functools.partial(Scale.__call__, Scale(3))),
    )
    np.testing.assert_array_equal(by_object(x), x * 2)
    np.testing.assert_array_equal(by_partial(x), x * 3)
    assert repr(by_object) == "<dvm kernel Scale>" and repr(by_partial) == "<dvm kernel __call__>"
    source = "import dvm\n@dvm.kernel\ndef f(k, x):\n    return k.store(k.exp(k.load(x)))\n"
    names = {}
    exec(source, names)  # no file to read the source from
    np.testing.assert_allclose(names["f"](x), np.exp(x), rtol=1e-6)


def test_what_is_no_kernel_function():
    def generator(k, x):
        yield k.store(k.load(x))

    async def coroutine(k, x):
        return k.store(k.load(x))

    for bad, text in [
        (generator, "not a generator"),
        (coroutine, "not a coroutine"),
        (dict, "not a class"),
        (lambda: 1, r"first parameter .* is the kernel"),
        (lambda k, *xs: 1, r"a name and positional, given \*xs"),
        (lambda k, x, *, s: 1, "a name and positional, given s"),
        (module_kernel, "a kernel already"),
        (lambda k, x: 3, "returns what store.. gave it, .*not 3"),
        (lambda k, x: {"a": k.store(k.load(x))}, "returns what store.. gave it"),
        (lambda k, x: k.load(x), "returns what store.. gave it"),
        (lambda k, x: k.store(module_kernel(k.load(x))), "a value inside another kernel"),
    ]:
        with pytest.raises(dvm.ArgumentError, match=text):
            dvm.kernel(bad)
    with pytest.raises(AttributeError, match="in a class, write @staticmethod above"):

        class Bad:
            @dvm.kernel
            def method(self, k, x):
                return k.store(k.load(x))

    with pytest.raises(dvm.ArgumentError, match=r"takes the shape of every tensor"):
        dvm.kernel(dynamic=False)(lambda k, x: k.store(k.load(x)))
    with pytest.raises(AttributeError, match=r"no attribute 'sum'; write k\.sum\(x\)"):
        dvm.kernel(lambda k, x: k.store(k.load(x).sum()))
    with pytest.raises(AttributeError, match=r"no attribute 'T'$"):
        dvm.kernel(lambda k, x: k.store(k.load(x).T))
    axes = dvm.kernel(lambda k, x, axes: k.store(k.sum(k.load(x), k.int_array(axes))))
    for bad in (1, None, 2.5):
        with pytest.raises(dvm.ArgumentError, match="holds a list of integers, given"):
            axes(np.ones((2, 3), F32), bad)


class Holder:
    @staticmethod
    @dvm.kernel
    def twice(k, x):
        return k.store(k.mul(k.load(x), 2))


def test_kernels_in_classes_and_loops(rng):
    x = normal(rng, 4)
    for f in (Holder.twice, Holder().twice):
        np.testing.assert_array_equal(f(x), x * 2)
    kernels = []
    for n in range(3):

        @dvm.kernel
        def times(k, x):
            return k.store(k.mul(k.load(x), n))  # noqa: B023 read while it is decorated

        kernels.append(times)
    for n, f in enumerate(kernels):
        np.testing.assert_array_equal(f(x), x * n)


def test_bits_of_bfloat16_for_floats():
    with pytest.raises(dvm.DTypeError, match=r"uint16, .*raw bits.*convert_from_bf16"):
        module_kernel(np.ones(2, np.uint16))
