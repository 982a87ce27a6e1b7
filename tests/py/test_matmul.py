"""Matrix products in the kernel language: against float64, in every layout, dtype and kind."""

import itertools

import dvm
import numpy as np
import pytest

F32, F16, I64 = np.float32, np.float16, np.int64
DTYPES = ("float32", "float16", "bfloat16")
FLAGS = list(itertools.product((False, True), repeat=2))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(F32)


def stored(x, t):
    """x as an array of dtype t, and the numbers that this array holds."""
    if t == "bfloat16":
        raw = dvm.PyKernel.convert_to_bf16(x)
        return raw, dvm.PyKernel.convert_from_bf16(raw).astype(np.float64)
    a = x.astype(t)
    return a, a.astype(np.float64)


def numbers(x, t):
    return dvm.PyKernel.convert_from_bf16(x) if t == "bfloat16" else x


def close(got, want, t, magnitude):
    """One rounding to t, and what adding in float32 may lose of the sum of magnitudes."""
    half = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[t]
    bound = np.abs(want) * half * 1.01 + magnitude * 300 * 2.0**-24 + 2.0**-25
    bad = np.abs(got.astype(np.float64) - want) > bound
    assert not bad.any(), (got[bad][:3], want[bad][:3], bound[bad][:3])


def run(kind, build, arrays, dtypes):
    """One kernel of declared loads; strides are those of the arrays."""
    k = dvm.PyKernel(kind)
    loads = []
    for a, t in zip(arrays, dtypes, strict=True):
        steps = [s // a.itemsize for s in a.strides]
        node = k.view_load(list(a.shape), steps, t)
        base = a
        while base.base is not None and isinstance(base.base, np.ndarray):
            base = base.base
        offset = (a.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // (
            a.itemsize
        )
        k.input(node, base.reshape(-1), offset)
        loads.append(node)
    out = k.store(build(k, *loads))
    k.run()
    return k.output(out)


# ------------------------------------------------------------------------------ layouts

BATCHES = [((), ()), ((3,), (3,)), ((3,), ()), ((), (2,)), ((2, 1), (1, 3)), ((1, 4), (2, 4))]


@pytest.mark.parametrize("t", DTYPES)
@pytest.mark.parametrize("ta,tb", FLAGS)
def test_batches_and_transposes(rng, t, ta, tb):
    for ba, bb in BATCHES:
        for m, n, k in [(5, 7, 3), (1, 9, 33), (17, 1, 64), (4, 4, 1), (30, 40, 300)]:
            a, va = stored(normal(rng, *ba, *((k, m) if ta else (m, k))), t)
            b, vb = stored(normal(rng, *bb, *((n, k) if tb else (k, n))), t)
            got = run("cube", lambda kk, x, y: kk.matmul(x, y, ta, tb), (a, b), (t, t))
            x = va.swapaxes(-1, -2) if ta else va
            y = vb.swapaxes(-1, -2) if tb else vb
            assert got.shape == np.matmul(x, y).shape
            close(numbers(got, t), np.matmul(x, y), t, np.matmul(np.abs(x), np.abs(y)))


@pytest.mark.parametrize("t", DTYPES)
def test_strided_operands(rng, t):
    big, vbig = stored(normal(rng, 4, 60, 70), t)
    for rows, cols in [
        (slice(3, 40, 2), slice(5, 69, 3)),
        (slice(None), slice(0, 1)),
        (slice(10, 11), slice(None)),
        (slice(0, 60, 59), slice(2, 60)),
    ]:
        a, x = big[:, rows, cols], vbig[:, rows, cols]
        b, y = big[1].T[cols, 7:20], vbig[1].T[cols, 7:20]
        got = run("split", lambda k, p, q: k.matmul(p, q), (a, b), (t, t))
        close(numbers(got, t), np.matmul(x, y), t, np.matmul(np.abs(x), np.abs(y)))


@pytest.mark.parametrize("t", DTYPES)
def test_strided_output_keeps_what_is_between(rng, t):
    a, x = stored(normal(rng, 9, 20), t)
    b, y = stored(normal(rng, 20, 6), t)
    k = dvm.PyKernel("split")
    p, q = k.load([9, 20], t), k.load([20, 6], t)
    out = k.view_store(k.matmul(p, q), [1, 12])
    k.input(p, a)
    k.input(q, b)
    poison = np.full(12 * 6, 77, a.dtype)
    k.set_output(out, poison)
    k.run()
    got = np.lib.stride_tricks.as_strided(poison, (9, 6), (poison.itemsize, 12 * poison.itemsize))
    close(numbers(got.copy(), t), x @ y, t, np.abs(x) @ np.abs(y))
    assert (poison.reshape(6, 12)[:, 9:] == 77).all()


@pytest.mark.parametrize("t", DTYPES)
def test_sizes_zero_and_one(rng, t):
    for m, n, k in itertools.product((0, 1, 3), repeat=3):
        for batch in ((), (0,), (2,)):
            a, x = stored(normal(rng, *batch, m, k), t)
            b, y = stored(normal(rng, k, n), t)
            kk = dvm.PyKernel("split")
            p, q = kk.load([*batch, m, k], t), kk.load([k, n], t)
            out = kk.store(kk.add(kk.matmul(p, q), 1.0))
            kk.input(p, a)
            kk.input(q, b)
            kk.run()
            got = numbers(kk.output(out), t)
            assert got.shape == (*batch, m, n)
            close(got, x @ y + 1, t, np.abs(x) @ np.abs(y) + 1)
            if k == 0:
                assert (got == 1).all()


def test_special_numbers():
    nan, inf, tiny = np.nan, np.inf, np.float32(1e-45)
    a = np.array([[nan, 1, 0], [inf, 1, 2], [inf, -inf, 0], [0, 0, 0], [tiny, 0, 0]], F32)
    b = np.array([[1, 0], [1, 2], [3, 4]], F32)
    got = run("cube", lambda k, x, y: k.matmul(x, y), (a, b), ("float32", "float32"))
    with np.errstate(invalid="ignore"):
        want = a @ b
    np.testing.assert_array_equal(got, want)  # inf * 0 and inf - inf are NaN, 1e-45 stays
    assert got[4, 0] == tiny
    big = np.array([[3e38, 3e38]], F32)
    one = np.ones((2, 1), F32)
    assert run("cube", lambda k, x, y: k.matmul(x, y), (big, one), ("float32",) * 2)[0, 0] == inf
    half = np.array([[60000.0, 60000.0]], F16)
    wide = run(
        "split",
        lambda k, x, y: k.cast(k.matmul(x, y), "float32"),
        (half, one.astype(F16)),
        ("float16",) * 2,
    )
    assert wide.dtype == F32 and wide[0, 0] == 120000


@pytest.mark.parametrize("t", DTYPES)
def test_bias(rng, t):
    a, x = stored(normal(rng, 2, 5, 40), t)
    b, y = stored(normal(rng, 9, 40), t)
    for bt in (t, "float32"):
        c, z = stored(normal(rng, 9), bt)
        got = run("cube", lambda k, p, q, r: k.matmul(p, q, False, True, r), (a, b, c), (t, t, bt))
        want = x @ y.T + z
        close(numbers(got, t), want, t, np.abs(x) @ np.abs(y.T) + np.abs(z))


def test_same_bits_for_every_layout_and_thread_count(rng):
    a, b = normal(rng, 150, 700), normal(rng, 700, 90)
    want = run("cube", lambda k, x, y: k.matmul(x, y), (a, b), ("float32",) * 2)
    flipped = run(
        "cube",
        lambda k, x, y: k.matmul(x, y, True, True),
        (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)),
        ("float32",) * 2,
    )
    rows = run("cube", lambda k, x, y: k.matmul(x, y), (a[7:9], b), ("float32",) * 2)
    assert want.tobytes() == flipped.tobytes()
    assert want[7:9].tobytes() == rows.tobytes()
    for x, y in ((a[7:8], b), (a, b[:, 3:4])):  # one row, one column: added in lanes
        want = run("cube", lambda k, x, y: k.matmul(x, y), (x, y), ("float32",) * 2)
        for tx, ty in itertools.product((False, True), repeat=2):
            p = np.ascontiguousarray(x.T) if tx else x
            q = np.ascontiguousarray(y.T) if ty else np.ascontiguousarray(y)
            got = run(
                "cube",
                lambda k, x, y, tx=tx, ty=ty: k.matmul(x, y, tx, ty),
                (p, q),
                ("float32",) * 2,
            )
            assert want.tobytes() == got.tobytes()


def test_symbolic_sizes(rng):
    @dvm.kernel
    def product(k, x, y, c):
        p = k.matmul(k.load(x), k.load(y), False, True, k.load(c))
        return k.store(k.maximum(p, 0))

    for shape, n, k in [((4,), 6, 5), ((2, 3, 8), 1, 0), ((1,), 300, 257), ((0, 4), 2, 3)]:
        x, y, c = normal(rng, *shape, k), normal(rng, n, k), normal(rng, n)
        want = np.maximum(x.astype(np.float64) @ y.T + c, 0)
        np.testing.assert_allclose(product(x, y, c), want, rtol=1e-5, atol=1e-4)


# ------------------------------------------------------------------------------ what surrounds them


def test_linear_gelu_is_one_kernel(rng):
    x, w, b, r = (
        normal(rng, 6, 50, 64),
        normal(rng, 96, 64),
        normal(rng, 96),
        normal(rng, 6, 50, 96),
    )

    def build(k, p, q, c, res):
        y = k.matmul(p, q, False, True, c)
        cube = k.mul(k.mul(y, y), k.mul(y, 0.044715))
        t = k.tanh(k.mul(k.add(y, cube), 0.7978845608))
        return k.add(k.mul(k.mul(y, 0.5), k.add(t, 1.0)), res)

    k = dvm.PyKernel("mix")
    nodes = [k.load(list(v.shape), "float32") for v in (x, w, b, r)]
    out = k.store(build(k, *nodes))
    for node, v in zip(nodes, (x, w, b, r), strict=True):
        k.input(node, v)
    k.run()
    y = x.astype(np.float64) @ w.T + b
    want = 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y**3))) + r
    np.testing.assert_allclose(k.output(out), want, rtol=2e-5, atol=2e-5)
    assert k.stats()["kernels"] == 1


def test_attention(rng):
    """The public example: two products, row maximum and sum, in float16."""

    @dvm.kernel
    def attention(k, q, kk, v, scale):
        s = k.matmul(k.load(q, "float16"), k.load(kk, "float16"), False, True)
        s = k.mul(s, k.scalar(scale))
        e = k.exp(k.sub(s, k.max(s, [-1], True)))
        p = k.div(e, k.sum(e, [-1], True))
        return k.store(k.matmul(p, k.load(v, "float16")))

    for heads, rows, keys, d in [((), 128, 128, 64), ((2, 4), 33, 70, 16)]:
        q, kk, v = (normal(rng, *heads, n, d).astype(F16) for n in (rows, keys, keys))
        s = q.astype(F32) @ kk.astype(F32).swapaxes(-1, -2) / np.sqrt(d)
        e = np.exp(s - s.max(-1, keepdims=True))
        want = (e / e.sum(-1, keepdims=True)) @ v.astype(F32)
        got = attention(q, kk, v, float(1 / np.sqrt(d)))
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)


def test_product_bias_scale_silu(rng):
    """The other public example."""

    @dvm.kernel
    def epilogue(k, a, b, bias, scale, shift):
        x = k.cast(k.matmul(k.load(a, "float16"), k.load(b, "float16")), "float32")
        x = k.add(x, k.load(bias, "float32"))
        x = k.add(k.mul(x, k.scalar(scale)), k.scalar(shift))
        return k.store(k.mul(x, k.div(1.0, k.add(k.exp(k.mul(x, -1.0)), 1.0))))

    a, b, c = normal(rng, 16, 64).astype(F16), normal(rng, 64, 32).astype(F16), normal(rng, 32)
    x = (a.astype(F32) @ b.astype(F32) + c) * 0.5 + 0.25
    np.testing.assert_allclose(
        epilogue(a, b, c, 0.5, 0.25), x / (1 + np.exp(-x)), rtol=1e-4, atol=1e-4
    )


# ------------------------------------------------------------------------------ groups


def group_bounds(values, kind):
    ends = np.cumsum(values) if kind else values
    return list(zip([0, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("t", DTYPES)
@pytest.mark.parametrize("ta,tb", FLAGS)
def test_groups_of_rows(rng, t, ta, tb):
    m, n, k, g = 50, 21, 40, 4
    a, x = stored(normal(rng, *((k, m) if ta else (m, k))), t)
    b, y = stored(normal(rng, g, *((n, k) if tb else (k, n))), t)
    c, z = stored(normal(rng, g, n), t)
    x = x.T if ta else x
    y = y.swapaxes(-1, -2) if tb else y
    for kind, values in [(0, [7, 7, 20, 50]), (1, [0, 13, 1, 36]), (0, [0, 0, 3, 10])]:
        lists = np.array(values, I64)
        for bias in (None, c):
            arrays = (a, b, lists) if bias is None else (a, b, lists, bias)
            types = (t, t, "int64") if bias is None else (t, t, "int64", t)
            got = numbers(
                run(
                    "mix",
                    lambda kk, p, q, groups, r=None, kind=kind: kk.grouped_matmul(
                        p, q, ta, tb, r, groups, 0, kind
                    ),
                    arrays,
                    types,
                ),
                t,
            )
            want, mag = np.zeros((m, n)), np.zeros((m, n))
            for i, (lo, hi) in enumerate(group_bounds(values, kind)):
                own = 0 if bias is None else z[i]
                want[lo:hi] = x[lo:hi] @ y[i] + own
                mag[lo:hi] = np.abs(x[lo:hi]) @ np.abs(y[i]) + np.abs(own)
            close(got, want, t, mag)


@pytest.mark.parametrize("t", DTYPES)
@pytest.mark.parametrize("ta,tb", FLAGS)
def test_groups_of_k(rng, t, ta, tb):
    m, n, k = 9, 11, 300
    a, x = stored(normal(rng, *((k, m) if ta else (m, k))), t)
    b, y = stored(normal(rng, *((n, k) if tb else (k, n))), t)
    x = x.T if ta else x
    y = y.T if tb else y
    for kind, values in [(0, [100, 100, 290]), (1, [0, 300]), (1, [257]), (0, [0, 0])]:
        lists = np.array(values, I64)
        got = run(
            "mix",
            lambda kk, p, q, groups, kind=kind: kk.grouped_matmul(
                p, q, ta, tb, None, groups, 2, kind
            ),
            (a, b, lists),
            (t, t, "int64"),
        )
        bounds = group_bounds(values, kind)
        want = np.stack([x[:, lo:hi] @ y[lo:hi] for lo, hi in bounds])
        mag = np.stack([np.abs(x[:, lo:hi]) @ np.abs(y[lo:hi]) for lo, hi in bounds])
        close(numbers(got, t), want, t, mag)


def test_bad_group_lists(rng):
    k = dvm.PyKernel("split")
    a, b, g = k.load([8, 5], "float32"), k.load([2, 5, 3], "float32"), k.load([2], "int64")
    out = k.store(k.grouped_matmul(a, b, False, False, None, g, 0, 0))
    k.input(a, normal(rng, 8, 5))
    k.input(b, normal(rng, 2, 5, 3))
    for ends in ([5, 4], [3, 9], [-1, 4]):
        k.input(g, np.array(ends, I64))
        with pytest.raises(dvm.OutOfRangeError, match=r"8 x 5 and 5 x 3"):
            k.run()
    k.input(g, np.array([2, 8], I64))
    k.run()
    assert k.output(out).shape == (8, 3)


# ------------------------------------------------------------------------------ errors, kinds


def test_errors_name_both_shapes():
    k = dvm.Kernel("split")

    def load(*shape, dtype="float32"):
        return k.load(list(shape), dtype)

    a = load(2, 3, 4)
    i64 = {"group_list": load(3, dtype="int64")}
    for error, text, f in (
        (
            dvm.ShapeError,
            r"\[2, 3, 4\] and \[3, 5, 6\].*4 and 5",
            lambda: k.matmul(a, load(3, 5, 6)),
        ),
        (dvm.ShapeError, r"\[2, 3, 4\] and \[3, 4, 6\]", lambda: k.matmul(a, load(3, 4, 6))),
        (dvm.ShapeError, r"\[2, 3, 4\] and \[4\].*2 axes", lambda: k.matmul(a, load(4))),
        (
            dvm.DTypeError,
            r"\[2, 3, 4\] and \[4, 6\].*f32 and f16",
            lambda: k.matmul(a, load(4, 6, dtype="float16")),
        ),
        (
            dvm.DTypeError,
            r"\[4, 5\] and \[5, 4\].*i32",
            lambda: k.matmul(load(4, 5, dtype="int32"), load(5, 4, dtype="int32")),
        ),
        (
            dvm.ShapeError,
            r"\[2, 3, 4\] and \[4, 6\].*\[7\].*\[6\]",
            lambda: k.matmul(a, load(4, 6), bias=load(7)),
        ),
        (
            dvm.ShapeError,
            r"\[2, 3, 4\] and \[4, 6\].*\[1, 6\]",
            lambda: k.matmul(a, load(4, 6), bias=load(1, 6)),
        ),
        (
            dvm.ShapeError,
            r"\[4, 4\] and \[3, 4, 6\].*2 groups",
            lambda: k.grouped_matmul(load(4, 4), load(3, 4, 6), group_list=load(2, dtype="int64")),
        ),
        (
            dvm.ShapeError,
            r"\[4, 4\] and \[3, 5, 6\].*4 and 5",
            lambda: k.grouped_matmul(load(4, 4), load(3, 5, 6), **i64),
        ),
        (
            dvm.ShapeError,
            r"\[4, 4\] and \[5, 6\].*ranks",
            lambda: k.grouped_matmul(load(4, 4), load(5, 6), **i64),
        ),
        (
            dvm.DTypeError,
            r"\[4, 4\] and \[3, 4, 6\].*f32 and f16",
            lambda: k.grouped_matmul(load(4, 4), load(3, 4, 6, dtype="float16"), **i64),
        ),
        (
            dvm.DTypeError,
            r"\[4, 4\] and \[3, 4, 6\].*i64 or i32, not f32",
            lambda: k.grouped_matmul(load(4, 4), load(3, 4, 6), group_list=load(3)),
        ),
        (
            dvm.ShapeError,
            r"\[4, 4\] and \[3, 4, 6\].*\[2, 6\].*\[3, 6\]",
            lambda: k.grouped_matmul(load(4, 4), load(3, 4, 6), bias=load(2, 6), **i64),
        ),
    ):
        with pytest.raises(error, match=text):
            f()
    with pytest.raises(dvm.ArgumentError, match="group_list"):
        k.grouped_matmul(a, load(3, 5, 6))


@pytest.mark.parametrize("kind", ["split:dyn", "mix:dyn", "split:dyn,priv1"])
def test_errors_at_run_time_name_the_shapes(rng, kind):
    """Sizes, ranks and dtypes that only the arguments tell."""
    F, G = "float32", "int64"
    mm = lambda k, a, b, c=None: k.matmul(a, b, False, False, c)

    def gm(group, form):
        return lambda k, a, b, g, c=None: k.grouped_matmul(a, b, False, False, c, g, group, form)

    def says(build, shapes, error, text, dtypes=None, lists=None):
        k = dvm.PyKernel(kind)
        types = dtypes or [F, F] + ([G] if lists is not None else []) + [F]
        loads = []
        for shape, t in zip(shapes, types, strict=False):
            v = k.load([-1] * len(shape), t)
            loads.append(v)
            a = np.array(lists, I64) if t == G else normal(rng, *shape).astype(t)
            k.input(v, a)
        with pytest.raises(error, match=text):
            out = k.store(build(k, *loads))
            k.run()
            k.output(out)

    S, D, R = dvm.ShapeError, dvm.DTypeError, dvm.OutOfRangeError
    says(mm, [(2, 3), (4, 5)], S, r"\[2, 3\] and \[4, 5\].*3 and 4")
    says(mm, [(2, 3, 4), (3, 4, 6)], S, r"\[2, 3, 4\] and \[3, 4, 6\]")
    says(mm, [(2, 3), (3,)], S, r"2 axes")
    says(mm, [(2, 3), (3, 7), (5,)], S, r"\[2, 3\] and \[3, 7\].*\[5\].*\[7\]")
    says(mm, [(2, 2, 3), (3, 7), (8,)], S, r"\[2, 2, 3\] and \[3, 7\].*\[8\].*\[7\]")
    says(mm, [(2, 3), (3, 7), (2, 7)], S, r"\[2, 7\] to \[7\]|bias of shape \[\?, \?\]")
    says(mm, [(2, 3), (3, 7)], D, r"f32 and f16", [F, "float16"])
    one = [(8, 5), (2, 5, 3), (2,)]
    for list_, form in (
        ([5, 4], 0),
        ([3, 9], 0),
        ([-1, 4], 0),
        ([3, 6], 1),
        ([-1, 4], 1),
        ([2**62, 2**62], 1),
    ):
        says(gm(0, form), one, R, r"8 x 5 and 5 x 3", lists=list_)
        says(gm(2, form), [(5, 8), (8, 3), (2,)], R, r"5 x 8 and 8 x 3", lists=list_)
    says(gm(0, 0), [(8, 5), (2, 4, 3), (2,)], S, r"\[8, 5\] and \[2, 4, 3\].*5 and 4", lists=[1, 2])
    says(
        gm(0, 0), [(8, 5), (3, 5, 3), (2,)], S, r"\[8, 5\] and \[3, 5, 3\].*2 groups", lists=[1, 2]
    )
    says(gm(0, 0), [*one, (2, 4)], S, r"\[8, 5\] and \[2, 5, 3\].*\[2, 4\].*\[2, 3\]", lists=[1, 2])
    says(gm(0, 1), [*one, (3, 3)], S, r"\[8, 5\] and \[2, 5, 3\].*\[3, 3\].*\[2, 3\]", lists=[1, 2])
    says(gm(0, 0), [(8, 5), (5, 3), (2,)], S, r"ranks", lists=[1, 2])
    says(gm(2, 0), [(5, 8), (7, 3), (2,)], S, r"\[5, 8\] and \[7, 3\].*8 and 7", lists=[1, 2])


def declare(kind):
    k = dvm.Kernel(kind)
    return k, k.load([4, 5], "float32"), k.load([5, 6], "float32"), k.load([6, 5], "float32")


def test_kinds_say_what_breaks_them():
    k, a, b, c = declare("vector")
    k.store(k.matmul(a, b))
    with pytest.raises(dvm.KindError, match="vector kernel has no matrix product"):
        k.compile()
    k, a, b, c = declare("cube")
    k.store(k.exp(a))
    with pytest.raises(dvm.KindError, match="stores its product and nothing else"):
        k.compile()
    k, a, b, c = declare("cube")
    k.store(k.matmul(k.exp(a), b))
    with pytest.raises(dvm.KindError, match="before the product"):
        k.compile()
    k, a, b, c = declare("cube")
    k.store(k.matmul(k.matmul(a, b), c))
    with pytest.raises(dvm.KindError, match=r"arguments|second"):
        k.compile()
    k, a, b, c = declare("mix")
    k.store(k.exp(k.matmul(k.exp(k.matmul(a, b)), c)))
    with pytest.raises(dvm.KindError, match="this is a second"):
        k.compile()


def test_sections(rng):
    a, b, c = normal(rng, 40, 50), normal(rng, 50, 60), normal(rng, 60, 20)
    k = dvm.PyKernel("seq")
    k.seq_add(k.K_CUBE)
    p, q = k.load([40, 50], "float32"), k.load([50, 60], "float32")
    first = k.matmul(p, q)
    s = k.store(first)
    k.seq_add(k.K_VEC)
    e = k.exp(k.mul(s, 0.01))
    k.seq_add(k.K_MIX)
    r = k.load([60, 20], "float32")
    out = k.store(k.maximum(k.matmul(e, r), 0.5))
    for node, v in ((p, a), (q, b), (r, c)):
        k.input(node, v)
    k.run()
    x = a.astype(np.float64) @ b
    np.testing.assert_allclose(k.output(s), x, rtol=1e-5, atol=1e-5)
    want = np.maximum(np.exp(x * 0.01) @ c, 0.5)
    np.testing.assert_allclose(k.output(out), want, rtol=1e-4, atol=1e-4)

    k = dvm.PyKernel("parallel")
    outs, wants = [], []
    for limit, kind in ((1, k.K_CUBE), (0, k.K_MIX), (2, k.K_VEC)):
        k.parallel_add(kind, 0, limit)
        p = k.load([40, 50], "float32")
        k.input(p, a)
        if kind == k.K_VEC:
            outs.append(k.store(k.exp(p)))
            wants.append(np.exp(a))
            continue
        q = k.load([50, 60], "float32")
        k.input(q, b)
        v = k.matmul(p, q)
        outs.append(k.store(v if kind == k.K_CUBE else k.tanh(v)))
        wants.append(x if kind == k.K_CUBE else np.tanh(x))
    k.run()
    for o, want in zip(outs, wants, strict=True):
        np.testing.assert_allclose(k.output(o), want, rtol=1e-5, atol=1e-5)
    k.parallel_add(k.K_CUBE)
    k.store(k.exp(k.load([2, 2], "float32")))
    with pytest.raises(dvm.KindError, match="product"):
        k.run()
