"""scaled_dot_product_attention under backend="dvm": the operator takes it where it pays, and gives
what eager gives, forward and backward."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from dvm.torch import rows_attn  # noqa: E402
from dvm.torch.rows_attn import attention  # noqa: E402

F32, BF16 = torch.float32, torch.bfloat16


def normal(*shape, dtype=F32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).to(dtype).requires_grad_()


def inputs(dtype=F32, heads=4, groups=4, rows=70, keys=70, d=24, d2=24):
    return (
        normal(2, heads, rows, d, dtype=dtype),
        normal(2, groups, keys, d, dtype=dtype, seed=1),
        normal(2, groups, keys, d2, dtype=dtype, seed=2),
    )


def padded(keep):
    mask = torch.ones(2, 1, 1, 70, dtype=torch.bool)
    mask[0, ..., keep:] = False
    return mask


# name: (tensors, keywords, whether the operator takes it)
CALLS = {
    "causal": (inputs(), {"is_causal": True}, True),
    "causal_bf16": (inputs(BF16), {"is_causal": True}, True),
    "causal_rectangle": (inputs(keys=90), {"is_causal": True}, True),
    "gqa": (inputs(groups=2), {"is_causal": True, "enable_gqa": True}, True),
    "scale": (inputs(), {"is_causal": True, "scale": 0.7}, True),
    "narrow_values": (inputs(d2=16), {"is_causal": True}, True),
    "padding": (inputs(), {"attn_mask": padded(40)}, True),
    "bool_mask": (inputs(), {"attn_mask": torch.ones(70, 70, dtype=torch.bool).tril(3)}, True),
    "no_keys": (inputs(), {"attn_mask": torch.ones(70, 70, dtype=torch.bool).tril(-3)}, True),
    "full_bf16": (inputs(BF16), {}, True),
    "float_mask_bf16": (
        inputs(BF16),
        {"attn_mask": torch.linspace(-3, 3, 70 * 70).reshape(1, 70, 70).to(BF16)},
        True,
    ),
    "full": (inputs(), {}, False),
    "few_rows": (inputs(rows=1), {}, False),
    "three_dims": (tuple(x[0] for x in inputs()), {"is_causal": True}, False),
}


def taken():
    return dvm.torch.summary().attention


SLOW = pytest.mark.slow
DYNAMIC = [pytest.param(n, True, marks=() if n in ("gqa", "padding") else SLOW) for n in CALLS]


@pytest.mark.parametrize(("name", "dynamic"), [(n, False) for n in CALLS] + DYNAMIC)
def test_sdpa(name, dynamic, monkeypatch):
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", False)
    args, kw, want_taken = CALLS[name]
    args = [x.detach().requires_grad_() for x in args]
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: F.scaled_dot_product_attention(*x, **kw), backend="dvm", dynamic=dynamic,
        fullgraph=True,
    )  # fmt: skip
    got, want = compiled(*args), F.scaled_dot_product_attention(*args, **kw)
    assert (taken() > 0) == want_taken
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if args[0].dtype == F32 else {"rtol": 0, "atol": 2e-2}
    torch.testing.assert_close(got, want, **tolerance)
    g = normal(*want.shape, dtype=want.dtype, seed=9).detach()
    grads = [torch.autograd.grad(x, args, g) for x in (got, want)]
    if args[0].dtype != F32:
        tolerance["atol"] = 6e-2
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    torch.compiler.reset()


# (heads, groups, rows, keys, dtype, masked): whether the operator takes the call without gradients
FEW = {
    "decode_bf16": ((4, 4, 1, 70, BF16, False), True),
    "decode": ((4, 4, 1, 1100, F32, False), False),
    "shared": ((4, 2, 3, 1100, F32, False), True),
    "shared_short": ((4, 2, 3, 1000, F32, False), False),
    "bf16_long": ((1, 1, 5, 4100, BF16, False), True),
    "bf16_short": ((1, 1, 5, 1100, BF16, False), False),
    "masked_long": ((1, 1, 5, 4100, F32, True), False),
    "masked_row": ((1, 1, 1, 4100, F32, True), False),
    "masked_row_bf16": ((1, 1, 1, 600, BF16, True), True),
    "masked_row_bf16_short": ((1, 1, 1, 100, BF16, True), False),
    "masked_shared": ((4, 2, 5, 1100, F32, True), True),
}


@pytest.mark.parametrize("name", ["causal_bf16", "full_bf16"])
def test_bf16_is_torchs_where_it_has_instructions(name, monkeypatch):
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", True)
    args, kw, _ = CALLS[name]
    assert not rows_attn._pays(*args, None, kw.get("is_causal", False))
    assert rows_attn._pays(*inputs(), None, True)


@pytest.mark.parametrize("name", FEW)
def test_few_rows(name, monkeypatch):
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", False)
    (heads, groups, rows, keys, dtype, masked), want_taken = FEW[name]
    args = [x.detach() for x in inputs(dtype, heads, groups, rows, keys)]
    mask = torch.arange(keys).expand(rows, keys) % 3 > 0 if masked else None
    torch.compiler.reset()
    f = lambda *x: F.scaled_dot_product_attention(*x, mask, enable_gqa=heads != groups)
    with torch.no_grad():
        got = torch.compile(f, backend="dvm", fullgraph=True)(*args)
    assert (taken() > 0) == want_taken
    want = f(*(x.double() for x in args)).to(dtype)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5 if dtype == F32 else 1e-2)
    torch.compiler.reset()


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("which", ["key", "value", "neither"])
def test_nan_behind_a_mask_is_what_eager_makes_of_it(which, mask, groups, monkeypatch):
    """The key is seen by nobody. In eager its NaN reaches all rows of the heads that share it; that
    of a value its feature, and all rows in the gradient of the queries."""
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", False)
    q, k, v = (x.detach() for x in inputs(BF16, groups=groups))
    seen = torch.ones(70, 70, dtype=torch.bool).tril()
    seen[-1, -1] = False
    m = seen if mask == "bool" else torch.zeros(70, 70, dtype=BF16).masked_fill(~seen, -torch.inf)
    if which != "neither":
        {"key": k, "value": v}[which][1, 0, -1, 3] = torch.nan
    args = [x.requires_grad_() for x in (q, k, v)]
    f = lambda *x: F.scaled_dot_product_attention(*x, m, enable_gqa=groups != 4)
    torch.compiler.reset()
    got, want = torch.compile(f, backend="dvm", fullgraph=True)(*args), f(*args)
    assert taken() > 0
    assert want.isnan().any() == (which != "neither")
    torch.testing.assert_close(got, want, rtol=0, atol=2e-2, equal_nan=True)
    assert (got.isnan() == want.isnan()).all()
    grads = [torch.autograd.grad(x.sum(), args[0])[0].isnan() for x in (got, want)]
    assert (grads[0] == grads[1]).all()
    torch.compiler.reset()


def test_gradient_of_a_float_mask():
    args = inputs(BF16)
    mask = normal(1, 4, 70, 70, dtype=BF16, seed=4)
    wide = [x.detach().double().requires_grad_() for x in (*args, mask)]
    got = torch.autograd.grad(attention(*args, mask).float().sum(), mask)[0]
    out = F.scaled_dot_product_attention(*wide[:3], wide[3])
    want = torch.autograd.grad(out.sum(), wide[3])[0]
    assert got.shape == mask.shape
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-2)


def test_switched_off():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), backend="dvm",
        options={"disable_ops": ["scaled_dot_product_attention"]},
    )  # fmt: skip
    compiled(*inputs())
    assert taken() == 0
    torch.compiler.reset()


def test_dropout_is_drawn_and_kept_for_the_backward():
    q, k = inputs()[:2]
    v = torch.eye(70).expand(2, 4, 70, 70).clone().requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.5, is_causal=True), backend="dvm"
    )
    out = compiled(q, k, v)
    (dv,) = torch.autograd.grad(out, v, torch.eye(70).expand(2, 4, 70, 70).contiguous())
    torch.testing.assert_close(dv, out.detach().transpose(-1, -2))
    dropped = (out == 0).float().mean().item()
    assert 0.70 < dropped < 0.80  # half of the lower triangle, and all of the upper
    torch.compiler.reset()


@pytest.mark.parametrize("heads", [2, 4])
def test_one_row_with_symbolic_heads(fresh, heads):
    def f(q, k, v, m):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=m, enable_gqa=True
        )

    g = torch.Generator().manual_seed(heads)
    q, k, v = (torch.randn(2, h, n, 8, generator=g) for h, n in ((4, 1), (heads, 33), (heads, 33)))
    mask = torch.rand(2, 4, 1, 33, generator=g) < 0.7
    with torch.no_grad():
        got = torch.compile(f, backend="dvm", dynamic=True)(q, k, v, mask)
    torch.testing.assert_close(got, f(q, k, v, mask))
