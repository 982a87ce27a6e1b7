"""Sizes that change under a slice, and operands that several rows share."""

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
