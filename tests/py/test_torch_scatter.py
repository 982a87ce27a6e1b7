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
