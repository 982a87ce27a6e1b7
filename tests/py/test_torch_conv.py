"""Convolutions of one axis with a filter for each channel: products and sums of shifted rows."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402

CASES = {  # channels, length, filter, padding, dilation, bias
    "causal": (6, 11, 4, 3, 1, False),
    "bias": (6, 11, 4, 3, 1, True),
    "no padding": (3, 9, 3, 0, 1, True),
    "dilation": (5, 13, 3, 4, 2, True),
    "more padding than filter": (4, 5, 2, 6, 1, False),
    "one tap": (4, 7, 1, 0, 1, True),
    "one tap, padded": (4, 7, 1, 2, 1, False),
    "filter as long as the row": (2, 8, 8, 0, 1, False),
    "one element of a row": (3, 1, 4, 3, 1, True),
}


def layer(case, dtype, seed=0):
    channels, length, n, padding, dilation, bias = case
    torch.manual_seed(seed)
    conv = torch.nn.Conv1d(
        channels, channels, n, padding=padding, dilation=dilation, groups=channels, bias=bias
    )
    return conv.to(dtype), torch.randn(3, length, channels).to(dtype)


def results(f, conv, x):
    """Result and gradients; x has its channels last, as models of language have them."""
    x = x.clone().requires_grad_()
    conv.zero_grad()
    y = f(conv, x)
    y.float().sin().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in conv.parameters())]


def convolved(conv, x):
    return torch.nn.functional.silu(conv(x.transpose(1, 2)) * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_as_close_to_float64_as_eager(name, dtype):
    torch._dynamo.reset()
    conv, x = layer(CASES[name], dtype)
    eager = results(convolved, conv, x)
    got = results(torch.compile(convolved, backend="dvm", fullgraph=True), conv, x)
    exact = results(convolved, layer(CASES[name], dtype)[0].double(), x.double())
    for g, w, e in zip(got, eager, exact, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        # Eager takes rows of one element for channels that come last.
        assert g.stride() == w.stride() or x.shape[1] == 1
        error, eagers = ((t.double() - e).norm() / e.norm() for t in (g, w))
        assert error <= 1.5 * eagers + 4 * torch.finfo(dtype).eps
    assert not any("conv" in op for g in dvm.torch.summary().graphs for op, _ in g.fallbacks)


def test_any_length_and_values_beyond_the_ends():
    """NaN and infinity stay in the rows that read them."""
    torch._dynamo.reset()
    conv, _ = layer(CASES["causal"], torch.float32)
    compiled = torch.compile(convolved, backend="dvm", fullgraph=True, dynamic=True)
    for n in (3, 5, 64, 7, 2):
        x = torch.randn(11, n, 6)
        x[0, n // 2], x[1, -1] = float("inf"), float("nan")
        torch.testing.assert_close(compiled(conv, x), convolved(conv, x), equal_nan=True)
    assert not dvm.torch.summary().recompiles


OTHERS = {
    "stride": {"groups": 4, "stride": 2},
    "two channels together": {"groups": 2},
    "a long filter": {"groups": 4, "kernel_size": 9},
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_torchs(name):
    torch._dynamo.reset()
    conv = torch.nn.Conv1d(4, 4, **{"kernel_size": 3, "padding": 4, **OTHERS[name]})
    x = torch.randn(2, 20, 4)
    eager = results(convolved, conv, x)
    got = results(torch.compile(convolved, backend="dvm", fullgraph=True), conv, x)
    torch.testing.assert_close(got, eager, rtol=1e-5, atol=1e-5)
    ops = {op for g in dvm.torch.summary().graphs for op, _ in g.fallbacks}
    assert ops == {"aten.convolution.default", "aten.convolution_backward.default"}


def test_switched_off():
    torch._dynamo.reset()
    conv, x = layer(CASES["bias"], torch.float32)
    options = {"disable_ops": ["convolution", "convolution_backward"]}
    compiled = torch.compile(convolved, backend="dvm", fullgraph=True, options=options)
    torch.testing.assert_close(results(compiled, conv, x), results(convolved, conv, x))
    ops = {op for g in dvm.torch.summary().graphs for op, _ in g.fallbacks}
    assert ops == {"aten.convolution.default", "aten.convolution_backward.default"}
