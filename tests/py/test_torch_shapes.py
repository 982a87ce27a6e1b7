"""Sizes that change under a slice, and operands that several rows share."""

import dvm.torch
import pytest
import sympy
import torch
import torch.nn.functional as F
from dvm.torch import symbols
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def check(f, *args, **options):
    torch._dynamo.reset()
    got, want = torch.compile(f, backend="dvm", **options)(*args), f(*args)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_padding_leaves_its_operand_alone():
    x = torch.randn(6, 8)
    check(lambda x: (F.pad(x, (1, 2)), x.mean(1)), x)
    check(lambda x: (F.pad(x, (1, 2)), x.var(1), F.pad(x, (0, 0)), F.pad(x, (-1, 2))), x)
    check(lambda x: (F.pad(x.sin(), (1, 0))[..., :-1] + x.sin().mean(-1, keepdim=True),), x)


def _write_tail(x):
    x = x.clone()
    x[-5:] = 1
    return x.sum()


TAILS = [
    lambda x: x[-5:].sum(),
    lambda x: x[-5:] * 2,
    lambda x: x[-5:-1].sum(),
    lambda x: x[2:].sum(),
    _write_tail,
]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("f", TAILS)
def test_slices_longer_than_the_axis(f, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="dvm", dynamic=dynamic)
    for n in (10, 12, 3, 4):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), f(x))


def test_gradient_of_a_slice_longer_than_the_axis():
    torch._dynamo.reset()
    f = torch.compile(lambda x: (x[-5:] * 2).sum(), backend="dvm", dynamic=True)
    for n in (10, 12, 3, 4):
        x = torch.randn(n, requires_grad=True)
        f(x).backward()
        want = torch.zeros(n)
        want[-5:] = 2
        assert torch.equal(x.grad, want)


FILLED = {  # how much fills the last chunk of 64, as users write it
    "remainder": lambda n: (64 - n % 64) % 64,
    "of the negative": lambda n: -n % 64,
    "chunks": lambda n: (n + 63) // 64 * 64 - n,
}


@pytest.mark.parametrize("fill", FILLED)
def test_padding_by_a_size_that_may_be_zero(fill):
    """torch's own op, traced with padding, has other strides where there is nothing to pad."""

    def f(x):
        y = F.pad(x.transpose(1, 2), (0, 0, 0, FILLED[fill](x.shape[1])), value=2.0)
        return torch.bmm(y.reshape(-1, y.shape[2], 3), torch.ones(y.shape[0] * 4, 3, 3)), y.sum(2)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="dvm", dynamic=True, fullgraph=True)
    for n in (63, 7, 64, 65, 128):
        x = torch.randint(-3, 4, (2, n, 4, 3)).float().requires_grad_()  # sums of these are exact
        grads = []
        for run in (compiled, f):
            product, total = run(x)
            grads += torch.autograd.grad(product.sum() + total.square().sum(), x)
            grads += [product, total]
        for got, want in zip(grads[:3], grads[3:], strict=True):
            assert torch.equal(got, want)
    assert not any("pad" in name for name in dvm.torch.summary().fallbacks)


def test_padding_of_either_sign():
    """A size decides whether an edge grows or is cut off, or neither."""

    def f(x, n):
        return F.pad(x * 2, (n - 5, x.shape[0] - 4, 0, -1), value=3.0) * 2

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="dvm", dynamic=True, fullgraph=True)
    for n, rows, columns in ((3, 3, 20), (8, 9, 30), (5, 4, 11), (2, 20, 12)):
        x = torch.randn(rows, columns, requires_grad=True)
        got, want = compiled(x, n), f(x, n)
        assert torch.equal(got, want) and got.stride() == want.stride()
        dx, wanted = (torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want))
        assert torch.equal(dx, wanted)
    summary = dvm.torch.summary()
    assert not summary.fallbacks and not summary.recompiles


def test_signs_of_sizes():
    """What is said to be never negative is not, at any size; chunks are seen through."""
    env = ShapeEnv()
    n = env.create_symintnode(sympy.Symbol("n", integer=True, positive=True), hint=70)
    known = {
        "(n + 63) // 64 * 64 - n": True,
        "n - n // 3 * 3": True,
        "n - (n + 63) // 64 * 64": False,
        "(n + 62) // 64 * 64 - n": False,
        "n // 3 * 3 - n": False,
        "2 * n - (n // 5 * 5 + n)": True,
    }
    for text, want in known.items():
        assert symbols.never_negative(eval(text, {"n": n})) == want, text
        assert want == all(eval(text, {"n": i}) >= 0 for i in range(1, 500)), text


def test_shapes_are_not_compared_by_value():
    """Asking whether two symbolic shapes are equal makes a guard: 42 elements would recompile."""

    def f(x):
        y = x.relu().reshape(-1, 6)
        n = y.shape[0] - 1
        return y[:n].sum(0).expand(n, 6) / y.shape[0]

    torch._dynamo.reset()
    c = torch.compile(f, backend="dvm", dynamic=True)
    for n in (24, 42, 60):
        x = torch.randn(n)
        torch.testing.assert_close(c(x), f(x))
    assert not dvm.torch.summary().recompiles
