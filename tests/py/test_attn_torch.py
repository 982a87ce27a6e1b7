"""Attention as operators of torch: opcheck, gradients, torch.compile, torch_npu."""

import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.ops  # noqa: E402
from dvm.attn import library  # noqa: E402, F401 registers torch.ops.dvm
from dvm.attn.call import AS_TORCH, PSE_ADDED  # noqa: E402

ALL = 2147483647
SPEC = (0, 4, "BNSD", "", 0.25, 1.0, ALL, ALL, 3, None, None, None)
DROP = (0, 4, "BNSD", "", 0.25, 0.8, ALL, ALL, 3, None, None, None)
PACKED = (1, 4, "TND", "TND", 0.25, 1.0, 9, 0, 4, None, [3, 10, 20], [5, 12, 30])
attention, attention_grad = torch.ops.dvm.attention, torch.ops.dvm.attention_grad


def normal(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).to(dtype).requires_grad_()


def batch(dtype=torch.float32):
    return (
        normal(2, 4, 33, 16, dtype=dtype),
        normal(2, 2, 40, 16, dtype=dtype),
        normal(2, 2, 40, 24, dtype=dtype),
    )


def extras():
    return normal(2, 4, 33, 40), None, normal(4)


def torchs_own():
    """A causal call that torch must run: the largest numbers could overflow, though none does."""
    q, k, v = (x.detach() for x in batch())
    q[..., 1] = k[..., 0] = 0
    q[0, 0, 0, 0] = k[0, 0, 0, 1] = 1e20
    spec = (AS_TORCH | PSE_ADDED, 4, "BNSD", "", 0.25, 1.0, ALL, ALL, 2, None, None, None)
    return [x.requires_grad_() for x in (q, k, v)], spec


OPCHECK = {
    "plain": lambda: (attention, (*batch(), None, None, None, None, *SPEC), {}),
    "extras": lambda: (attention, (*batch(), *extras(), None, *SPEC), {}),
    "dropout": lambda: (attention, (*batch(), *extras(), torch.tensor([5, 0]), *DROP), {}),
    "packed": lambda: (
        attention,
        (
            normal(20, 4, 8), normal(30, 1, 8), normal(30, 1, 6), None, None, None, None, *PACKED,
        ),
        {},
    ),
    "half": lambda: (attention, (*batch(torch.bfloat16), None, None, None, None, *SPEC), {}),
    "as_torch": lambda: (attention, (*torchs_own()[0], *[None] * 4, *torchs_own()[1]), {}),
    "npu_fusion_attention": lambda: (
        torch.ops.dvm.npu_fusion_attention, (*batch(), 4, "BNSD"), {"sparse_mode": 2}
    ),
    "swa_forward": lambda: (
        torch.ops.dvm.swa_forward,
        (*batch(), 4, "BNSD"),
        {"sparse_mode": 4, "pre_tockens": 5, "next_tockens": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPCHECK)
def test_opcheck(name):
    op, args, kw = OPCHECK[name]()
    torch.library.opcheck(op, args, kw)


def test_opcheck_backward_of_torchs_own():
    args, spec = torchs_own()
    args = [x.detach() for x in args]
    out, top, total = attention(*args, *[None] * 4, *spec)
    assert (total == -1).all()  # the mark
    grad = (*args, None, None, None, torch.ones_like(out), top, total, out, None, *spec)
    torch.library.opcheck(attention_grad, grad)


@pytest.mark.parametrize("op", ["attention_grad", "npu_fusion_attention_grad", "swa_backward"])
def test_opcheck_backward(op):
    q, k, v = (x.detach() for x in batch())
    out, top, total = attention(q, k, v, None, None, None, None, *SPEC)
    dy = torch.ones_like(out)
    if op == "attention_grad":
        args = (q, k, v, None, None, None, dy, top, total, out, None, *SPEC)
        torch.library.opcheck(attention_grad, args)
        return
    saved = {"softmax_max": top, "softmax_sum": total, "attention_in": out, "scale_value": 0.25}
    torch.library.opcheck(getattr(torch.ops.dvm, op), (q, k, v, dy, 4, "BNSD"), saved)


def eager_sdpa(q, k, v, mask=None):
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.25)


def test_gradients_flow():
    q, k, v = batch()
    keep = torch.ones(33, 40, dtype=torch.bool).tril(7)
    got = dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.25, sparse_mode=3)[0]
    want = eager_sdpa(q, k, v, keep)
    g = normal(*want.shape, seed=5).detach()
    torch.testing.assert_close(got, want)
    grads = zip(
        torch.autograd.grad(got, (q, k, v), g),
        torch.autograd.grad(want, (q, k, v), g),
        strict=True,
    )
    for a, b in grads:
        torch.testing.assert_close(a, b)


def test_gradients_of_pse_and_sink_flow():
    q, k, v = batch()
    pse, _, sink = extras()
    f = lambda: dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD", pse=pse, scale=0.25, sink=sink)
    out, top, total = f()[:3]
    dpse, dsink = torch.autograd.grad(out.sum(), (pse, sink))
    low = dvm.ops.npu_fusion_attention_grad(
        *(x.detach() for x in (q, k, v)),
        torch.ones_like(out),
        4,
        "BNSD",
        pse=pse.detach(),
        sink=sink.detach(),
        softmax_max=top.detach(),
        softmax_sum=total.detach(),
        attention_in=out.detach(),
        scale_value=0.25,
    )
    assert torch.equal(dpse, low[3])
    assert torch.equal(dsink, low[4])
    assert dpse.abs().max() > 0
    assert dsink.abs().max() > 0


def test_views_equal_copies():
    """A BNSD view of BSND memory, heads cut from packed qkv, every second column."""
    qkv = normal(2, 33, 12, 32).detach()
    q, k, v = (x.transpose(1, 2)[..., ::2] for x in qkv.split((4, 4, 4), 2))
    a = dvm.ops.swa_forward(q, k, v, 4, "BNSD", sparse_mode=4, pre_tockens=8, next_tockens=0)
    b = dvm.ops.swa_forward(
        *(x.contiguous() for x in (q, k, v)),
        4,
        "BNSD",
        sparse_mode=4,
        pre_tockens=8,
        next_tockens=0,
    )
    assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dvm"])
def test_compiled(backend, dynamic):
    def f(q, k, v):
        return dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.25, sparse_mode=3)[0].sin()

    compiled = torch.compile(f, backend=backend, fullgraph=True, dynamic=dynamic)
    args = batch()
    got, want = compiled(*args), f(*args)
    torch.testing.assert_close(got, want)
    grads = zip(
        torch.autograd.grad(got.sum(), args), torch.autograd.grad(want.sum(), args), strict=True
    )
    for a, b in grads:
        torch.testing.assert_close(a, b)
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["aot_eager", "dvm"])
def test_compiled_dropout_agrees_with_its_own_gradient(backend):
    """The mask of the backward is that of the forward: V one-hot makes the output the weights."""
    q, k = normal(1, 1, 8, 4), normal(1, 1, 8, 4)
    v = torch.eye(8)[None, None].clone().requires_grad_()

    def f(q, k, v):
        return dvm.ops.npu_fusion_attention(q, k, v, 1, "BNSD", keep_prob=0.5)[0]

    out = torch.compile(f, backend=backend, fullgraph=True)(q, k, v)
    assert 0 < (out == 0).sum() < out.numel()
    # dV_j = sum over i of Z_ij dO_i; with dO = I that is the transpose of Z, here of the output.
    (dv,) = torch.autograd.grad(out, v, torch.eye(8)[None, None])
    torch.testing.assert_close(dv, out.detach().transpose(-1, -2))
    torch.compiler.reset()


def test_dropout_follows_the_generator():
    q, k, v = batch()
    f = lambda: dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.7)
    torch.manual_seed(3)
    a, b = f(), f()
    torch.manual_seed(3)
    c = f()
    assert torch.equal(a[0], c[0])
    assert a[4] == c[4]
    assert a[4] != b[4]
    assert not torch.equal(a[0], b[0])
    state = torch.get_rng_state()
    dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD")
    with pytest.raises(dvm.Error, match="keep_prob"):
        dvm.ops.npu_fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.0)
    with pytest.raises(dvm.Error, match="sparse_mode"):
        dvm.ops.swa_forward(q, k, v, 4, "BNSD", keep_prob=0.5, sparse_mode=1)
    assert torch.equal(state, torch.get_rng_state())


def test_stand_in_for_torch_npu():
    had = "torch_npu" in sys.modules
    import dvm.compat.torch_npu

    if had:
        pytest.skip("torch_npu was there before")
    import torch_npu

    q, k, v = batch()
    out = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.25)
    torch.testing.assert_close(out[0], eager_sdpa(q, k, v))
    with pytest.raises(AttributeError, match="stands in for torch_npu"):
        _ = torch_npu.npu_rms_norm
    assert torch_npu is dvm.compat.torch_npu


def test_second_derivatives_are_refused():
    """They would lack what runs through the attention, in a sum that has other parts."""
    x = torch.randn(1, 2, 9, 8, requires_grad=True)
    out = dvm.ops.npu_fusion_attention(x, x, x, 2, "BNSD")[0]
    (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no gradients of their own"):
        (g.pow(2).sum() + x.sum()).backward()


def test_statistics_have_no_gradients():
    """They say so, and do not let a backward through them end without gradients."""
    x = torch.randn(1, 2, 9, 8, requires_grad=True)
    out, top, total = dvm.ops.npu_fusion_attention(x, x, x, 2, "BNSD")[:3]
    assert out.requires_grad and not top.requires_grad and not total.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        top.sum().backward()
