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


@pytest.fixture
def small(monkeypatch):
    """The operator takes small calls too, and 16 bits on every processor."""
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", False)
    monkeypatch.setattr(rows_attn, "_MANY", dict.fromkeys(rows_attn._MANY, 0))


def taken():
    return dvm.torch.summary().attention


SLOW = pytest.mark.slow
DYNAMIC = [pytest.param(n, True, marks=() if n in ("gqa", "padding") else SLOW) for n in CALLS]


@pytest.mark.parametrize(("name", "dynamic"), [(n, False) for n in CALLS] + DYNAMIC)
def test_sdpa(name, dynamic, small):
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


# (dtype, with gradients, causal): rows and keys from which the operator takes a masked call
MANY = {
    (F32, False, True): 256,
    (F32, False, False): 512,
    (F32, True, True): 256,
    (F32, True, False): 512,
    (BF16, False, True): 128,
    (BF16, False, False): 256,
    (BF16, True, True): 32,
    (BF16, True, False): 32,
}


@pytest.mark.parametrize(("dtype", "trains", "causal"), MANY)
def test_masked_calls_from_where_they_pay(dtype, trains, causal, monkeypatch):
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", False)
    least = MANY[dtype, trains, causal]
    for n, want in ((least, True), (least - 1, False)):
        args = [x.detach().requires_grad_(trains) for x in inputs(dtype, rows=n, keys=n)]
        mask = None if causal else torch.ones(n, n, dtype=torch.bool)
        assert rows_attn._pays(*args, mask, causal) == want


@pytest.mark.parametrize("name", ["causal_bf16", "full_bf16"])
def test_bf16_is_torchs_where_it_has_instructions(name, monkeypatch):
    monkeypatch.setattr(rows_attn, "_TORCH_HAS_BF16", True)
    args, kw, _ = CALLS[name]
    assert not rows_attn._pays(*args, None, kw.get("is_causal", False))
    assert rows_attn._pays(*inputs(rows=256, keys=256), None, True)


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


def planted(where, number, masking, dtype, groups=4):
    """Inputs, keywords and gradient of a call with a number in one operand, where a mask hides it
    from all rows, or from the first ones (is_causal; a query, and its gradient, hide nothing)."""
    args = [x.detach().clone() for x in inputs(dtype, groups=groups)]
    seen = torch.ones(70, 70, dtype=torch.bool).tril()
    seen[:, 60] = False
    seen[3] = False
    mask = torch.zeros(70, 70, dtype=dtype).masked_fill(~seen, -torch.inf)
    dy = normal(2, 4, 70, 24, dtype=dtype, seed=9).detach()
    operand = dict(zip(("query", "key", "value"), args, strict=True)) | {"dy": dy}
    if where == "mask":
        mask[40, 5] = number
    else:
        operand[where][1, 0, 60, 3] = number
    kw = {
        "bool": {"attn_mask": seen},
        "float": {"attn_mask": mask},
        "causal": {"is_causal": True},
        "full": {},
    }[masking]
    return [x.requires_grad_() for x in args], kw | {"enable_gqa": groups != 4}, dy


PLANTED = [
    (where, number, masking, dtype)
    for where in ("query", "key", "value", "dy", "mask")
    for number in (torch.nan, torch.inf, -torch.inf, 3e38)
    for masking in ("bool", "float", "causal", "full")
    for dtype in (F32, BF16)
    if (dtype == BF16 or masking in ("bool", "causal"))
    and (where != "mask" or (masking == "float" and number in (torch.nan, torch.inf)))
]


def same(a, b):
    """Bits, and a NaN is a NaN."""
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("where", "number", "masking", "dtype"), PLANTED)
@pytest.mark.parametrize("groups", [2, 4])
def test_numbers_that_are_not_finite_give_what_eager_gives(
    where, number, masking, dtype, groups, small
):
    """Result and gradients, bit by bit, because torch's own implementation makes them; counted with
    the reason. What is too large for a product of two rows to be finite is no different."""
    args, kw, dy = planted(where, number, masking, dtype, groups)
    f = lambda *x: F.scaled_dot_product_attention(*x, **kw)
    torch.compiler.reset()
    got, want = torch.compile(f, backend="dvm", fullgraph=True)(*args), f(*args)
    assert taken() > 0
    if where == "dy":
        torch.testing.assert_close(got, want, rtol=0, atol=2e-5 if dtype == F32 else 2e-2)
    elif number == 3e38 and where == "value":  # finite, and no product overflows
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    else:
        same(got, want)
    for a, b in zip(*(torch.autograd.grad(x, args, dy) for x in (got, want)), strict=True):
        same(a, b)
    by_torch = dvm.torch.summary().attention_by_torch
    assert by_torch and all(name == "scaled_dot_product_attention" for name, _ in by_torch)
    assert any(why in str(dvm.torch.summary()) for _, why in by_torch)
    torch.compiler.reset()


@pytest.mark.parametrize("masking", ["bool", "causal", "full"])
def test_finite_numbers_are_not_torchs(masking, small):
    args, kw, dy = planted("query", 1e4, masking, BF16)
    torch.compiler.reset()
    f = lambda *x: F.scaled_dot_product_attention(*x, **kw)
    out = torch.compile(f, backend="dvm", fullgraph=True)(*args)
    torch.autograd.grad(out, args, dy)
    assert taken() > 0 and not dvm.torch.summary().attention_by_torch
    torch.compiler.reset()


@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_one_row_without_a_mask_is_eagers_too(where, number, small):
    args = [x.detach().clone() for x in inputs(BF16, rows=1)]
    dict(zip(("query", "key", "value"), args, strict=True))[where][1, 0, 0, 3] = number
    torch.compiler.reset()
    with torch.no_grad():
        f = F.scaled_dot_product_attention
        got, want = torch.compile(f, backend="dvm", fullgraph=True)(*args), f(*args)
    assert taken() > 0
    assert (got.isnan() == want.isnan()).all()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-2, equal_nan=True)
    torch.compiler.reset()


def test_dropout_of_torchs_own_is_kept_for_the_backward(small):
    """A value that nobody sees sends the call to torch; the gradient drops what the result did."""
    q, k = inputs()[:2]
    v = torch.eye(70).expand(2, 4, 70, 70).clone()
    v[0, 0, 69, 69] = torch.inf
    v.requires_grad_()
    torch.compiler.reset()
    out = torch.compile(
        lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.5, is_causal=True), backend="dvm"
    )(q, k, v)
    dy = torch.eye(70).expand(2, 4, 70, 70).contiguous()
    (dv,) = torch.autograd.grad(out, v, dy)
    torch.testing.assert_close(dv[1], out.detach()[1].transpose(-1, -2))
    torch.compiler.reset()


@pytest.mark.parametrize("n", [0, 1, 7])
def test_largest(n):
    from dvm.attn.as_torch import largest

    x = torch.arange(3.0 * n * 5).reshape(3, n, 5) - 40
    for view in (
        lambda y: y,
        lambda y: y.transpose(0, 1),
        lambda y: y[:, ::2],
        lambda y: y[..., ::2],
        lambda y: y.mT,
        lambda y: y[:, :, -1:].expand(-1, -1, 4),
        lambda y: y[0, 0, 0] if n else y,
    ):
        y = view(x)
        assert largest(y) == (float(y.abs().max()) if y.numel() else 0)
        for number in (torch.nan, torch.inf, -torch.inf):
            z = x.clone()
            if n:
                z[0, 0, 0] = z[-1, -1, -1] = number
                assert str(largest(view(z))) == str(abs(number))


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


def test_dropout_is_drawn_and_kept_for_the_backward(small):
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
