"""What a forward keeps for its backward: as little as the kernels allow."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")
import dvm.torch  # noqa: E402


def run(f, *args, **options):
    """Result and gradients of args, with backend dvm."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="dvm", fullgraph=True, options=options)
    return gradients(compiled, *args)


def gradients(f, *args):
    args = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    y = f(*args)
    y.sum().backward()
    return [y.detach(), *(a.grad for a in args if a.requires_grad)]


def kept(f, *args):
    """Bytes that autograd holds beyond the arguments."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="dvm", fullgraph=True)
    args = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    compiled(*args).sum().backward()
    seen = {}

    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        compiled(*args)
    return sum(n for p, n in seen.items() if p not in {a.data_ptr() for a in args})


def modulated(x, scale, w):
    return (torch.nn.functional.layer_norm(x, (64,)) * (1 + scale)) @ w


def test_layer_norm_keeps_its_statistics():
    x, scale, w = torch.randn(32, 64), torch.randn(64), torch.randn(64, 8)
    # what the product reads, mean and deviation of each row, and 1 + scale
    assert kept(modulated, x, scale, w) <= 4 * (32 * 64 + 2 * 32 + 64) + 256
    for got, want in zip(
        run(modulated, x, scale, w), gradients(modulated, x, scale, w), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_gathered_weights_are_gathered_again():
    def experts(x, weights, index):
        return torch.bmm(weights[index].transpose(1, 2), x[:, :, None]).squeeze(2)

    x, weights = torch.randn(96, 16), torch.randn(4, 16, 24)
    index = torch.randint(0, 4, (96,))
    assert kept(experts, x, weights, index) < 96 * 16 * 24 * 4 / 8
    for got, want in zip(
        run(experts, x, weights, index), gradients(experts, x, weights, index), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("affine", ["", "w", "wb"])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 1), (0, 3), (4, 2, 3)])
def test_layer_norm_in_pieces(shape, affine, dtype):
    torch.manual_seed(0)
    normalized = shape[1:] if shape == (4, 2, 3) else shape[-1:]
    x = torch.randn(shape).to(dtype)
    more = [torch.randn(normalized).to(dtype) for _ in affine]

    def f(x, *wb):
        return torch.nn.functional.layer_norm(x, normalized, *wb).sin()

    wide = gradients(f, x.double(), *(m.double() for m in more))
    eager = gradients(f, x, *more)
    for got, near, exact in zip(run(f, x, *more), eager, wide, strict=True):
        assert got.dtype is near.dtype and got.stride() == near.stride()
        bound = 2 * (near.double() - exact).abs().max() if near.numel() else 0
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=float(bound) + 1e-5)


def test_layer_norm_that_is_not_laid_out_in_rows():
    def f(x):
        return torch.nn.functional.layer_norm(x.transpose(0, 1), (6,)).exp()

    x = torch.randn(6, 4).t().contiguous().t()[None].expand(3, 6, 4).transpose(1, 2)
    for got, want in zip(run(f, x), gradients(f, x), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize(
    "op", ["native_layer_norm", "native_layer_norm_backward", "transpose", "var_mean"]
)
def test_operators_that_are_switched_off(op):
    x, scale, w = torch.randn(5, 64), torch.randn(64), torch.randn(64, 8)
    got = run(modulated, x, scale, w, disable_ops=[op])
    for a, b in zip(got, gradients(modulated, x, scale, w), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    if op.startswith("native"):
        assert any(op in name for name, _ in dvm.torch.summary().fallbacks)


def test_torchs_lists_are_as_they_were():
    from torch._functorch import partitioners

    before = partitioners.get_default_op_list
    run(modulated, torch.randn(5, 64), torch.randn(64), torch.randn(64, 8))
    assert partitioners.get_default_op_list is before
    assert torch.ops.aten.transpose not in before().view_ops
