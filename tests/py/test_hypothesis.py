"""Random programs on random arrays against numpy: shapes with broadcasting, strides of every kind,
sizes 0 and 1, negative axes, NaN and infinities. The examples are the same at every run.
"""

import dvm
import numpy as np
import pytest
from dvm import arrays

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

F32, F16, I32, I64 = np.float32, np.float16, np.int32, np.int64
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 3.25, -7.5, 1e-30, 1e30], F32
)


@st.composite
def shapes(draw, min_rank=0, max_rank=4, sizes=(0, 1, 1, 2, 3, 5, 17)):
    rank = draw(st.integers(min_rank, max_rank))
    return tuple(draw(st.sampled_from(sizes)) for _ in range(rank))


@st.composite
def broadcast_part(draw, shape):
    """A shape that broadcasts to another."""
    cut = draw(st.integers(0, len(shape)))
    return tuple(d if draw(st.booleans()) else 1 for d in shape[cut:])


@st.composite
def layouts(draw, shape, dtype=F32):
    """An array of this shape with odd strides: transposed, stepped, reversed or broadcast."""
    seed = draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2])) for _ in range(rank)]
    repeat = [draw(st.sampled_from([False] * 5 + [True])) for _ in range(rank)]
    base = [1 if r else d * abs(s) + 1 for d, s, r in zip(shape, steps, repeat, strict=True)]
    stored = np.empty([base[i] for i in order], dtype)
    stored[...] = values(rng, stored.shape, dtype, draw(st.booleans()))
    a = stored.transpose(np.argsort(order)) if rank else stored
    index = []
    for d, s, r in zip(shape, steps, repeat, strict=True):
        cut = slice(0, 1) if r else slice(0, d * s, s) if s > 0 else slice(d * -s, 0, s)
        index.append(cut)
    a = np.broadcast_to(a[tuple(index)], shape)
    assert a.shape == tuple(shape)
    return a


def values(rng, shape, dtype, special):
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if np.issubdtype(dtype, np.integer):
        return rng.integers(-50, 50, shape).astype(dtype)
    if special:
        with np.errstate(all="ignore"):
            return rng.choice(SPECIAL, shape).astype(dtype)
    return (rng.standard_normal(shape) * 2).astype(dtype)


def compute(fn, *inputs, kind="split:dyn"):
    k = dvm.Kernel(kind)
    loads = [k.load(list(a.shape), arrays.dtype_of_array(a)) for a in inputs]
    k.store(fn(k, *loads))
    ranks = {id(n): a.ndim for n, a in zip(loads, inputs, strict=True)}
    return k._specialize(lambda n: ranks[id(n)]).kernel.call(*inputs)


def agree(got, want, eps=0.0):
    want = np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    if eps:
        np.testing.assert_allclose(got, want, rtol=eps, atol=eps, equal_nan=True)
    else:
        np.testing.assert_array_equal(got, want)


KINDS = st.sampled_from(["split", "split:dyn"])
EXACT = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
}


@given(st.data())
def test_binary_with_broadcasting(data):
    shape = data.draw(shapes())
    s, t = data.draw(broadcast_part(shape)), data.draw(broadcast_part(shape))
    dtype = data.draw(st.sampled_from([F32, F16, I32, I64]))
    x, y = data.draw(layouts(s, dtype)), data.draw(layouts(t, dtype))
    name = data.draw(st.sampled_from(sorted(EXACT)))
    kind = data.draw(KINDS)
    with np.errstate(all="ignore"):
        want = EXACT[name](x, y)
        agree(compute(lambda k, a, b: getattr(k, name)(a, b), x, y, kind=kind), want)


@given(st.data())
def test_outputs_with_strides(data):
    shape = data.draw(shapes())
    x = data.draw(layouts(shape))
    rank = len(shape)
    order = data.draw(st.permutations(range(rank)))
    steps = [data.draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)]
    memory = np.full([shape[i] * steps[i] for i in order], 99, F32)
    out = memory.transpose(np.argsort(order)) if rank else memory
    out = out[(..., *(slice(None, None, s) for s in steps))]
    k = dvm.Kernel("split")
    k.store(k.mul(k.load(shape, dvm.float32), 2))
    with np.errstate(all="ignore"):
        k.compile().run(x, out)
        agree(out, x * 2)
    assert (memory == 99).sum() >= memory.size - out.size


@given(st.data())
def test_reductions(data):
    shape = data.draw(shapes(1, 4, (1, 2, 3, 5, 17, 40)))
    x = data.draw(layouts(shape))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    signed = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    keep, kind = data.draw(st.booleans()), data.draw(KINDS)
    name = data.draw(st.sampled_from(["sum", "max", "min", "any", "all"]))
    axis = tuple(axes) or None
    if name in ("any", "all"):
        agree(
            compute(lambda k, a: getattr(k, name)(a, signed, keep), x, kind=kind),
            getattr(np, name)(x != 0, axis=axis, keepdims=keep),
        )
        return
    got = compute(lambda k, a: getattr(k, name)(a, signed, keep), x, kind=kind)
    with np.errstate(all="ignore"):
        if name != "sum":
            agree(got, getattr(np, name)(x, axis=axis, keepdims=keep))
            return
        want = np.sum(x.astype(np.float64), axis=axis, keepdims=keep)
        size = np.sum(np.abs(x.astype(np.float64)), axis=axis, keepdims=keep)
    finite = np.isfinite(size) & (size < 1e30)
    assert np.all(np.abs(got[finite] - want[finite]) <= 1e-6 * size[finite] + 1e-30)
    infinite = ~np.isfinite(want)
    np.testing.assert_array_equal(got[infinite], want[infinite].astype(F32))


@given(st.data())
def test_views(data):
    shape = data.draw(shapes(1, 4, (1, 2, 3, 4, 6)))
    x = data.draw(layouts(shape))
    kind = data.draw(KINDS)
    steps = []
    want = x
    for _ in range(data.draw(st.integers(1, 4))):
        rank = want.ndim
        what = data.draw(st.sampled_from(["permute", "reshape", "slice", "broadcast", "neg"]))
        if what == "permute":
            order = data.draw(st.permutations(range(rank)))
            steps.append(lambda k, a, o=order: k.permute(a, o))
            want = want.transpose(order)
        elif what == "reshape":
            n = want.size
            divisors = [d for d in range(1, n + 1) if n % d == 0] if n else [0]
            d = data.draw(st.sampled_from(divisors))
            new = (d, n // d) if d else (0, 3)
            steps.append(lambda k, a, s=new: k.reshape(a, s))
            want = want.reshape(new)
        elif what == "slice":
            axis = data.draw(st.integers(-rank, rank - 1)) if rank else 0
            lo, hi = data.draw(st.integers(-5, 5)), data.draw(st.integers(-5, 7))
            steps.append(lambda k, a, c=(axis, lo, hi): k.slice_dim(a, *c))
            index = [slice(None)] * rank
            index[axis] = slice(lo, hi)
            want = want[tuple(index)]
        elif what == "broadcast" and rank < 6:
            new = (data.draw(st.integers(1, 3)), *(3 if d == 1 else d for d in want.shape))
            steps.append(lambda k, a, s=new: k.broadcast(a, s))
            want = np.broadcast_to(want, new)
        else:
            steps.append(lambda k, a: k.neg(a))
            want = -want

    def program(k, a):
        for step in steps:
            a = step(k, a)
        return a

    agree(compute(program, x, kind=kind), want)


@given(st.data())
def test_graphs(data):
    """Elementwise programs with reductions in between, evaluated by numpy in float64."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.sampled_from([1, 2, 5, 16, 33])) for _ in range(rank))
    inputs = [data.draw(layouts(data.draw(broadcast_part(shape)))) for _ in range(2)]
    inputs = [np.where(np.isfinite(a), np.clip(a, -3, 3), F32(0.5)).astype(F32) for a in inputs]
    inputs.append(np.linspace(-1, 1, int(np.prod(shape)), dtype=F32).reshape(shape))
    plan = []
    for _ in range(data.draw(st.integers(1, 12))):
        op = data.draw(st.sampled_from(["add", "sub", "mul", "max", "tanh", "sigmoid", "abs",
                                        "select", "mean", "rowmax", "scale"]))  # fmt: skip
        plan.append((op, data.draw(st.integers(0, 99)), data.draw(st.integers(0, 99)),
                     data.draw(st.integers(-rank, rank - 1))))  # fmt: skip

    def evaluate(vals, ops):
        vals = list(vals)
        for op, i, j, axis in plan:
            vals.append(ops[op](vals[i % len(vals)], vals[j % len(vals)], axis))
        return ops["add"](vals[-1], ops["mul"](vals[len(vals) // 2], vals[2], 0), 0)

    def program(k, *loads):
        def reduced(fn):
            return lambda a, b, ax: fn(k.add(a, k.mul(loads[2], 0)), [ax], True)

        return evaluate(
            loads,
            {
                "add": lambda a, b, ax: a + b,
                "sub": lambda a, b, ax: a - b,
                "mul": lambda a, b, ax: a * b * 0.5,
                "max": lambda a, b, ax: k.maximum(a, b),
                "tanh": lambda a, b, ax: k.tanh(a),
                "sigmoid": lambda a, b, ax: k.sigmoid(a),
                "abs": lambda a, b, ax: k.abs(a),
                "select": lambda a, b, ax: k.select(k.isfinite(a), a, b),
                "mean": reduced(k.mean),
                "rowmax": reduced(k.max),
                "scale": lambda a, b, ax: 0.25 * a + 1,
            },
        )

    def reduced(fn):
        return lambda a, b, ax: fn(np.broadcast_to(a, shape), axis=ax, keepdims=True)

    want = evaluate(
        [a.astype(np.float64) for a in inputs],
        {
            "add": lambda a, b, ax: a + b,
            "sub": lambda a, b, ax: a - b,
            "mul": lambda a, b, ax: a * b * 0.5,
            "max": lambda a, b, ax: np.maximum(a, b),
            "tanh": lambda a, b, ax: np.tanh(a),
            "sigmoid": lambda a, b, ax: 1 / (1 + np.exp(-a)),
            "abs": lambda a, b, ax: np.abs(a),
            "select": lambda a, b, ax: a + 0 * b,
            "mean": reduced(np.mean),
            "rowmax": reduced(np.max),
            "scale": lambda a, b, ax: 0.25 * a + 1,
        },
    )
    kind = data.draw(st.sampled_from(["split", "split:dyn", "eager", "vector:spec,dyn"]))
    with np.errstate(all="ignore"):
        got = compute(program, *inputs, kind=kind)
        want = want.astype(F32)
    small = np.abs(want) < 1e6
    np.testing.assert_allclose(got[small], want[small], rtol=2e-4, atol=2e-4)
    assert got.shape == want.shape


@given(st.data())
def test_casts(data):
    shape = data.draw(shapes(max_rank=2))
    source = data.draw(st.sampled_from([np.bool_, F16, F32, I32, I64]))
    target = data.draw(st.sampled_from([np.bool_, F16, F32, I32, I64]))
    x = data.draw(layouts(shape, source))
    got = compute(lambda k, a: k.cast(a, target), x)
    with np.errstate(all="ignore"):
        want = x.astype(target)
    if np.issubdtype(target, np.integer) and np.issubdtype(source, np.floating):
        info = np.iinfo(target)
        wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e300, neginf=-1e300))
        want = np.empty(x.shape, target)
        for i, v in np.ndenumerate(wide):
            want[i] = info.max if v >= info.max else info.min if v <= info.min else int(v)
    agree(got, want)


@given(st.data())
def test_gather_and_concat(data):
    shape = data.draw(shapes(1, 3, (1, 2, 4, 7)))
    x = data.draw(layouts(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    kind = data.draw(KINDS)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    n = shape[axis]
    index = rng.integers(-n, n, data.draw(shapes(max_rank=2))).astype(I32)
    agree(compute(lambda k, a, i: k.take(a, i, axis), x, index, kind=kind), np.take(x, index, axis))
    along = list(shape)
    along[axis] = data.draw(st.integers(0, 5))
    index = rng.integers(-n, n, along)
    got = compute(lambda k, a, i: k.gather(a, i, axis), x, index, kind=kind)
    agree(got, np.take_along_axis(x, index, axis))
    got = compute(lambda k, a: k.concat([a, k.neg(a), a], axis), x, kind=kind)
    agree(got, np.concatenate([x, -x, x], axis))


@given(st.data())
def test_one_kernel_for_every_shape(data):
    got = []
    for _ in range(3):
        shape = data.draw(shapes())
        x, y = data.draw(layouts(shape)), data.draw(layouts(data.draw(broadcast_part(shape))))
        with np.errstate(all="ignore"):
            got.append((FUSED(x, y), np.maximum(x + y, y) * 0.5))
    for a, b in got:
        agree(a, b)


@dvm.kernel
def FUSED(k, x, y):
    a, b = k.load(x), k.load(y)
    return k.store(k.mul(k.maximum(k.add(a, b), b), 0.5))
