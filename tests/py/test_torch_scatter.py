"""Writes at positions given by an index, where a row has few of them, against eager."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
import optable  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402

F32, BF16, I32, I64, BOOL = torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.bool


def values(dtype, *shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 10, shape, generator=g).to(dtype)
    if dtype.is_floating_point and x.numel() > 4:
        x.view(-1)[:4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    return x


def distinct(rows, n, of):
    """n different positions of each row."""
    g = torch.Generator().manual_seed(7)
    return torch.stack([torch.randperm(of, generator=g)[:n] for _ in range(rows)])


def agree(f, *args, left=(), dynamic=False):
    low = lowered(f, *args, dynamic=dynamic)
    assert {op for op, _ in low.fallbacks} == set(left), low.fallbacks
    got, want = low(*args), f(*args)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit() & (got == got), want.signbit() & (want == want))
    assert got.stride() == want.stride()
    optable.note(low)
    return low


@pytest.mark.parametrize("dtype", [F32, BF16, I32, I64, BOOL])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_scatter(dtype, n):
    x, src, i = values(dtype, 5, 259), values(dtype, 5, n, seed=1), distinct(5, n, 259)
    agree(lambda x, i, s: x.scatter(1, i, s), x, i, src)
    agree(lambda x, i, s: x.scatter(-1, i, 1), x, i, src)
    agree(lambda x, i, s: x.t().scatter(0, i.t(), s.t()), x, i, src)


@pytest.mark.parametrize("dtype", [F32, BF16, I32, I64])
@pytest.mark.parametrize("n", [1, 4])
def test_scatter_add(dtype, n):
    """Repeated positions are added in order; small integers, so that no rounding hides it."""
    g = torch.Generator().manual_seed(3)
    i = torch.randint(0, 3, (5, n), generator=g) * 100
    x, src = values(dtype, 5, 301, seed=2), values(dtype, 5, n, seed=1)
    agree(lambda x, i, s: x.scatter_add(1, i, s), x, i, src)
    agree(lambda x, i, s: torch.zeros_like(x).scatter_add(1, i, s), x, i, src)


def test_the_last_of_repeated_positions_stays():
    x, i = torch.zeros(2, 200), torch.tensor([[1, 1, 3], [0, 2, 0]])
    src = torch.arange(1.0, 7.0).view(2, 3)
    agree(lambda x, i, s: x.scatter(1, i, s), x, i, src)


@pytest.mark.parametrize(
    "shape, dim", [((64,), 0), ((3, 70, 2), 1), ((2, 1, 64, 5), 2), ((1, 64), 1)]
)
def test_ranks_and_rows_of_one(shape, dim):
    one = [*shape[:dim], 1, *shape[dim + 1 :]]
    i = torch.zeros(one, dtype=I64)
    agree(lambda x, i, s: x.scatter_add(dim, i, s), values(F32, *shape), i, values(F32, *one))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_no_elements(shape):
    i = torch.zeros(shape[0], 0 if shape[1] == 0 else 1, dtype=I64)
    f = lambda x, i: x.scatter(1, i, 2.0)
    low = lowered(f, torch.ones(shape), i)
    assert torch.equal(low(torch.ones(shape), i), f(torch.ones(shape), i))


def test_what_torch_keeps():
    x, many = values(F32, 3, 400), distinct(3, 5, 400)
    agree(lambda x, i: x.scatter(1, i, 1.0), x, many, left=["aten.scatter.value"])
    fewer = torch.tensor([[1], [2]])
    agree(lambda x, i: x.scatter(1, i, 1.0), x, fewer, left=["aten.scatter.value"])
    short = torch.tensor([[1], [0], [2]])
    agree(lambda x, i: x.scatter(1, i, 1.0), x[:, :9], short, left=["aten.scatter.value"])
    double = x.double()
    agree(lambda x, i: x.scatter(1, i, 1.0), double, many[:, :1], left=["aten.scatter.value"])


@pytest.mark.parametrize("bad", [64, -1, 2**40])
def test_positions_out_of_range_are_refused(bad):
    x, i = torch.zeros(2, 64), torch.tensor([[1], [bad]])
    for f in (lambda x, i: x.scatter(1, i, 1.0), lambda x, i: x.scatter_add(1, i, x[:, :1])):
        with pytest.raises(RuntimeError):
            f(x, i)
        low = lowered(f, x, torch.tensor([[1], [2]]))
        assert not low.fallbacks
        with pytest.raises((IndexError, RuntimeError)):
            low(x, i)


def test_dynamic_sizes():
    f = lambda x, i, s: (x * 2).scatter_add(1, i, s).sum(0)
    args = values(I32, 6, 70).float(), distinct(6, 1, 70), values(I32, 6, 1).float()
    low = lowered(f, *args, dynamic=True)
    assert not low.fallbacks
    for rows, cols in ((6, 70), (1, 2), (9, 333)):
        x, s = values(I32, rows, cols).float(), values(I32, rows, 1, seed=4).float()
        i = distinct(rows, 1, cols)
        torch.testing.assert_close(low(x, i, s), f(x, i, s))


def test_gradients_of_gather_and_max_are_kernels():
    def f(x, i):
        return x.gather(1, i).square().sum() + x.max(1)[0].sum()

    x, i = torch.randn(6, 130, requires_grad=True), torch.randint(0, 130, (6, 2))
    torch._dynamo.reset()
    torch.compile(f, backend="dvm")(x, i).backward()
    got, x.grad = x.grad, None
    f(x, i).backward()
    torch.testing.assert_close(got, x.grad)
    assert not dvm.torch.summary().fallbacks


def test_cross_entropy_by_hand():
    """log_softmax and gather: the gradient is a scatter into zeros."""

    def f(x, t):
        return -F.log_softmax(x, -1).gather(1, t[:, None]).mean()

    x, t = torch.randn(6, 99, requires_grad=True), torch.randint(0, 99, (6,))
    torch._dynamo.reset()
    torch.compile(f, backend="dvm")(x, t).backward()
    got, x.grad = x.grad, None
    f(x, t).backward()
    torch.testing.assert_close(got, x.grad)
    assert not dvm.torch.summary().fallbacks


# --------------------------------------------------------------------- sums at repeated positions


def random(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def places(n, *shape, seed=5):
    """Also negative ones; many twice."""
    return torch.randint(-n, n, shape, generator=torch.Generator().manual_seed(seed))


PUTS = {
    "rows": ((7, 5), lambda: (places(7, 40),), (40, 5)),
    "elements": ((300,), lambda: (places(300, 900),), (900,)),
    "two indices": ((4, 3, 6), lambda: (places(4, 50), places(3, 50, seed=6)), (50, 6)),
    "indices of two dimensions": ((9, 2), lambda: (places(9, 6, 5),), (6, 5, 2)),
    "indices that spread": ((4, 3, 2), lambda: (places(4, 5, 1), places(3, 6)), (5, 6, 2)),
    "values that spread": ((7, 5), lambda: (places(7, 40),), (1, 5)),
    "one value": ((7, 5), lambda: (places(7, 40).int(),), ()),
    "no positions": ((7, 5), lambda: (places(7, 0),), (0, 5)),
    "rows of nothing": ((7, 0), lambda: (places(7, 4),), (4, 0)),
}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("case", PUTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_sums_at_positions(case, dtype, dynamic):
    shape, indices, given = PUTS[case]
    x, v, at = random(*shape, dtype=dtype), random(*given, dtype=dtype, seed=1), indices()
    f = lambda x, v, *at: x.index_put(at, v, accumulate=True)
    low = lowered(f, x, v, *at, dynamic=dynamic)
    left = "scatter_add" if x.numel() else "index_put"
    assert {op for op, _ in low.fallbacks} <= {f"aten.{left}.default"}
    got, want, true = low(x, v, *at), f(x, v, *at), f(x.double(), v.double(), *at)
    assert got.dtype is dtype and got.stride() == want.stride()
    limit = (want.double() - true).abs().max() if true.numel() else 0.0
    error = (got.double() - true).abs()
    assert bool((error <= 1e-6 * (1 + true.abs()) + limit).all())
    optable.note(low)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("padding", [None, 2])
def test_gradients_of_embeddings(dtype, padding, fresh):
    def f(w, i, g):
        return (F.embedding(i, w, padding_idx=padding) * g).sum()

    w, i = random(9, 4, dtype=dtype), places(9, 6, 30).abs() % 9
    g = random(6, 30, 4, dtype=dtype, seed=2)

    def gradient(h, w, g):
        w = w.clone().requires_grad_()
        h(w, i, g).backward()
        return w.grad

    got = gradient(torch.compile(f, backend="dvm"), w, g)
    want, true = gradient(f, w, g), gradient(f, w.double(), g.double())
    limit = (want.double() - true).abs().max()
    assert bool(((got.double() - true).abs() <= 1e-6 * (1 + true.abs()) + limit).all())
    if padding is not None:
        assert not got[padding].any()
    assert {op for op, _ in dvm.torch.summary().fallbacks} == {"aten.scatter_add.default"}


@pytest.mark.parametrize("bad", [7, -8, 2**40])
def test_sums_out_of_range_are_refused_as_in_eager(bad):
    x, at, v = torch.zeros(7, 5), torch.tensor([1, bad]), torch.ones(2, 5)
    f = lambda x, at, v: x.index_put((at,), v, accumulate=True)
    low = lowered(f, x, torch.tensor([1, 2]), v)
    for g in (f, low):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            g(x, at, v)
    two = lambda x, at, v: x.index_put((at, at), v[:, 0], accumulate=True)
    low = lowered(two, x, torch.tensor([1, 2]), v)
    for g in (two, low):
        with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
            g(x, at, v)


def test_sums_have_the_same_bits_for_any_number_of_threads():
    """torch's own index_put adds floats in whatever order its threads come."""
    x, at, v = torch.zeros(8, 512), places(8, 900), random(900, 512)
    low = lowered(lambda x, at, v: x.index_put((at,), v, accumulate=True), x, at, v)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 4, 4, 4):
            torch.set_num_threads(threads)
            results.append(low(x, at, v))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], r) for r in results)
    one_by_one = x.clone()
    for i, row in zip(at.tolist(), v, strict=True):
        one_by_one[i] += row
    torch.testing.assert_close(results[0], one_by_one)


def test_what_stays_an_index_put():
    x, at, v = random(6, 4), places(6, 3), random(3, 4)
    left = ["aten.index_put.default"]
    agree(lambda x, at, v: x.index_put((at,), v), x, torch.tensor([1, -2, 0]), v, left=left)
    mask = torch.tensor([True, False, True, True, False, False])
    agree(lambda x, m, v: x.index_put((m,), v, accumulate=True), x, mask, v, left=left)
    agree(lambda x, a: x.index_put((a,), x[:3], accumulate=True), x.int(), at, left=left)
    put = torch.ops.aten.index_put.default
    agree(lambda x, a, v: put(x, [None, a], v, True), x, at % 4, random(6, 3), left=left)
    turned = random(4, 6).t()
    agree(lambda x, a, v: x.index_put((a,), v, accumulate=True), turned, at, v, left=left)
