"""Sizes that change under a slice, and operands that several rows share."""

import dvm.torch
import pytest
import torch
import torch.nn.functional as F


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


def test_padding_by_a_size_that_may_be_zero():
    """torch's own op, traced with padding, has other strides where there is nothing to pad."""

    def f(x):
        y = F.pad(x.transpose(1, 2), (0, 0, 0, (64 - x.shape[1] % 64) % 64), value=2.0)
        return torch.bmm(y.reshape(-1, y.shape[2], 3), torch.ones(y.shape[0] * 4, 3, 3)), y.sum(2)

    compiled = torch.compile(f, backend="dvm", dynamic=True, fullgraph=True)
    for n in (63, 7, 64, 65, 128):
        x, y = (torch.randn(2, n, 4, 3).requires_grad_() for _ in range(2))
        y.data.copy_(x)
        got, want = compiled(x), f(y)
        torch.testing.assert_close(got, want)
        (got[0].sum() + got[1].square().sum()).backward()
        (want[0].sum() + want[1].square().sum()).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert not any("pad" in name for name in dvm.torch.summary().fallbacks)


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
