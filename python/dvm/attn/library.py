"""Attention as operators of torch: torch.ops.dvm.

    attention, attention_grad      functions of tensors alone: what autograd and torch.compile see.
                                   The state of dropout is a tensor [seed, offset], or None
    npu_fusion_attention, npu_fusion_attention_grad, swa_forward, swa_backward
                                   the operators of torch_npu by argument list, made of the two

Gradients exist for query, key, value, pse and sink; attention_grad has none of its own.
"""

from __future__ import annotations

from typing import Any

import _dvm
import torch
from torch import Tensor

from . import as_torch
from .call import ALL, AS_TORCH, NO_PSE_GRADIENT, STRICT, SWA, Spec, checked, low

_LISTS = "SymInt[]? prefix, SymInt[]? actual_seq_qlen, SymInt[]? actual_seq_kvlen"
_SPEC = (
    "int flags, SymInt head_num, str input_layout, str softmax_layout, float scale, "
    "float keep_prob, SymInt pre_tockens, SymInt next_tockens, int sparse_mode, " + _LISTS
)
_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor? pse, Tensor? atten_mask, Tensor? sink"

lib = torch.library.Library("dvm", "FRAGMENT")
lib.define(
    f"attention({_INPUTS}, Tensor? rng, {_SPEC}) -> (Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)
lib.define(
    f"attention_grad({_INPUTS}, Tensor dy, Tensor softmax_max, Tensor softmax_sum, "
    f"Tensor attention_in, Tensor? rng, {_SPEC}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _plain(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().resolve_neg().resolve_conj()


def _state(rng: Tensor | None) -> tuple[int, int]:
    return (0, 0) if rng is None else (int(rng[0]), int(rng[1]))


def _numels(spec: Spec, tensors: tuple[Any, ...]) -> int:
    return low(_dvm.attn_infer, spec, tensors)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse: Tensor | None,
    atten_mask: Tensor | None,
    sink: Tensor | None,
    rng: Tensor | None,
    *spec: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = tuple(_plain(x) for x in (query, key, value, pse, atten_mask, sink))
    seed, offset = _state(rng)
    s = Spec(*spec)._replace(seed=seed, offset=offset)
    if s.flags & AS_TORCH and (torchs := as_torch.forward(tensors, rng, s)):
        return torchs
    (out, top, total), _ = low(_dvm.attn_forward, s, tensors)
    return as_torch.after((out, top, total), tensors, rng, s)


def _attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse: Tensor | None,
    atten_mask: Tensor | None,
    sink: Tensor | None,
    dy: Tensor,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    attention_in: Tensor,
    rng: Tensor | None,
    *spec: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = tuple(_plain(x) for x in (query, key, value, pse, atten_mask, sink))
    saved = tuple(_plain(x) for x in (dy, softmax_max, softmax_sum, attention_in))
    seed, offset = _state(rng)
    s = Spec(*spec)._replace(seed=seed, offset=offset)
    if rng is not None:
        s = s._replace(numels=_numels(s, inputs))
    wants_pse = pse is not None and not s.flags & NO_PSE_GRADIENT
    grads = None
    if s.flags & AS_TORCH:
        grads = as_torch.backward(inputs, saved[0], saved[2], rng, s, wants_pse)
    if grads is None:
        grads = low(_dvm.attn_backward, s, inputs + saved)
    return tuple(query.new_empty(0) if g is None else g for g in grads)  # type: ignore[return-value]


lib.impl("attention", _attention, "CompositeExplicitAutograd")
lib.impl("attention_grad", _attention_grad, "CompositeExplicitAutograd")


# ------------------------------------------------------------------------------------- without data


def _shapes(query: Tensor, key: Tensor, value: Tensor, s: Spec) -> tuple[list[Any], list[Any]]:
    """Shapes of the output and of the statistics, for arguments that a real call would take."""
    if not query.device == key.device == value.device:
        raise _dvm.ArgumentError(
            "Expected all tensors to be on the same device, but got query, key and value on "
            f"{query.device}, {key.device}, {value.device}"
        )
    layout = s.input_layout.upper()
    out = list(query.shape)
    if layout in ("BSH", "SBH"):
        d = query.shape[2] // s.head_num
        out[2] = s.head_num * (value.shape[2] // (key.shape[2] // d))
        b, rows = (0, 1) if layout == "BSH" else (1, 0)
        return out, [query.shape[b], s.head_num, query.shape[rows], 8]
    out[-1] = value.shape[-1]
    if layout == "TND":
        return out, [query.shape[0], query.shape[1], 8]
    rows = 1 if layout == "BSND" else 2
    return out, [query.shape[0], s.head_num, query.shape[rows], 8]


@torch.library.register_fake("dvm::attention", lib=lib)
def _(query, key, value, pse, atten_mask, sink, rng, *spec):  # type: ignore[no-untyped-def]
    out, stat = _shapes(query, key, value, Spec(*spec))
    f32 = {"dtype": torch.float32}
    return query.new_empty(out), query.new_empty(stat, **f32), query.new_empty(stat, **f32)


@torch.library.register_fake("dvm::attention_grad", lib=lib)
def _(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    pse,
    atten_mask,
    sink,
    dy,
    softmax_max,
    softmax_sum,
    attention_in,
    rng,
    *spec,
):
    like = (query, key, value, None if spec[0] & NO_PSE_GRADIENT else pse, sink)
    return tuple(query.new_empty(0) if x is None else x.new_empty(x.shape) for x in like)


# ----------------------------------------------------------------------------------------- autograd


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, pse, atten_mask, sink, rng, *spec = inputs
    ctx.spec = spec
    ctx.has = (pse is not None, sink is not None)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, pse, atten_mask, sink, rng, *output)
    ctx.mark_non_differentiable(*output[1:])  # _backward has no formula for the statistics


def _backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Any, ...]:
    query, key, value, pse, atten_mask, sink, rng, out, top, total = ctx.saved_tensors
    rest = [None] * (1 + 1 + len(ctx.spec))
    if dy is None:
        return (None,) * 6 + tuple(rest[1:])
    has_pse, has_sink = ctx.has
    has_pse = has_pse and ctx.needs_input_grad[3]
    flags = ctx.spec[0] if has_pse else ctx.spec[0] | NO_PSE_GRADIENT
    dq, dk, dv, dpse, dsink = torch.ops.dvm.attention_grad(
        query, key, value, pse, atten_mask, sink, dy, top, total, out, rng, flags, *ctx.spec[1:]
    )
    return (
        dq,
        dk,
        dv,
        dpse if has_pse else None,
        None,
        dsink if has_sink else None,
        None,
        *[None] * len(ctx.spec),
    )


def _twice(ctx: Any, *_: Any) -> tuple[Any, ...]:
    """Without it torch leaves this part of a second derivative out, with a warning at most."""
    raise NotImplementedError(
        "the gradients of dvm's attention have no gradients of their own: for second derivatives "
        "compute it with torch (softmax and products), or detach() the gradients"
    )


torch.library.register_autograd("dvm::attention", _backward, setup_context=_setup, lib=lib)
torch.library.register_autograd("dvm::attention_grad", _twice, lib=lib)


# ------------------------------------------------------------------------- by torch_npu's arguments


def _dropout_elements(tensors: tuple[Any, ...], s: Spec) -> Any:
    """numels, also for sizes that are symbols."""
    query, key = tensors[:2]
    layout = s.input_layout.upper()
    if layout != "TND":
        b, rows = {"BSH": (0, 1), "SBH": (1, 0), "BSND": (0, 1), "BNSD": (0, 2)}[layout]
        return query.shape[b] * s.head_num * query.shape[rows] * key.shape[rows]
    total, q0, k0 = 0, 0, 0
    for q1, k1 in zip(s.actual_seq_qlen or (), s.actual_seq_kvlen or (), strict=True):
        total += max(q1 - q0, 0) * max(k1 - k0, 0)
        q0, k0 = q1, k1
    return s.head_num * total


def _check(tensors: tuple[Any, ...], s: Spec) -> None:
    if not torch.compiler.is_compiling() and all(
        x is None or type(x) in (Tensor, torch.nn.Parameter) for x in tensors
    ):
        low(_dvm.attn_infer, s, tuple(_plain(x) for x in tensors))


def forward(tensors: tuple[Any, ...], s: Spec) -> tuple[Any, ...]:
    """The seven results of npu_fusion_attention.

    seed comes from torch's CPU generator. Under torch.compile seed and offset of a call with
    dropout are tensors: their values are not known while tracing.
    """
    query = tensors[0]
    rng, seed, offset = None, 0, 0
    if not torch.compiler.is_compiling():
        s = checked(s)
    if s.keep_prob < 1:
        _check(tensors, s)  # a refused call does not advance the generator
        rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64) * torch.tensor([1, 0])
        seed, offset = (rng[0], rng[1]) if torch.compiler.is_compiling() else _state(rng)
    out, top, total = torch.ops.dvm.attention(*tensors, rng, *s[:12])
    return out, top, total, query.new_empty(0), seed, offset, _dropout_elements(tensors, s)


def backward(tensors: tuple[Any, ...], s: Spec) -> tuple[Any, ...]:
    if not torch.compiler.is_compiling():
        s = checked(s)
    inputs, saved = tensors[:6], tensors[6:]
    for x, name in zip(saved, ("dy", "softmax_max", "softmax_sum", "attention_in"), strict=True):
        if x is None:  # the operator wants them all; the library words the refusal
            low(_dvm.attn_backward, s, tuple(_plain(t) for t in tensors))
            raise AssertionError(name)
    rng = None
    if s.keep_prob < 1:
        if not torch.compiler.is_compiling():
            expected = _numels(s, tuple(_plain(x) for x in inputs))
            if s.numels != expected:
                low(_dvm.attn_backward, s, tuple(_plain(t) for t in tensors))
        rng = torch.stack([torch.as_tensor(s.seed), torch.as_tensor(s.offset)]).to(torch.int64)
    dq, dk, dv, dpse, dsink = torch.ops.dvm.attention_grad(*tensors, rng, *s[:12])
    empty = dq.new_empty(0, dtype=torch.float32)
    return dq, dk, dv, None if inputs[3] is None else dpse, empty if inputs[5] is None else dsink


# The argument lists of torch_npu; its ints may be symbols here.
_FORWARD = (
    "(Tensor query, Tensor key, Tensor value, SymInt head_num, str input_layout, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., "
    "float keep_prob=1., SymInt pre_tockens=2147483647, SymInt next_tockens=2147483647, "
    "int inner_precise=0, SymInt[]? prefix=None, SymInt[]? actual_seq_qlen=None, "
    "SymInt[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, "
    "bool sync=False, str softmax_layout='', Tensor? sink=None, *, bool strict=False) "
    "-> (Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, SymInt)"
)
_BACKWARD = (
    "(Tensor query, Tensor key, Tensor value, Tensor dy, SymInt head_num, str input_layout, *, "
    "Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, "
    "Tensor? attention_in=None, float scale_value=1., float keep_prob=1., "
    "SymInt pre_tockens=2147483647, SymInt next_tockens=2147483647, int inner_precise=0, "
    "SymInt seed=0, SymInt offset=0, SymInt numels=0, SymInt[]? prefix=None, "
    "SymInt[]? actual_seq_qlen=None, SymInt[]? actual_seq_kvlen=None, int sparse_mode=0, "
    "bool gen_mask_parallel=True, bool sync=False, str softmax_layout='', Tensor? sink=None, "
    "bool strict=False) -> (Tensor, Tensor, Tensor, Tensor?, Tensor)"
)


def _numbers(result: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*result[:4], *(int(x) if isinstance(x, Tensor) else x for x in result[4:]))


def _forward_op(flags: int) -> Any:
    def op(
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=None,
        padding_mask=None,
        atten_mask=None,
        scale=1.0,
        keep_prob=1.0,
        pre_tockens=ALL,
        next_tockens=ALL,
        inner_precise=0,
        prefix=None,
        actual_seq_qlen=None,
        actual_seq_kvlen=None,
        sparse_mode=0,
        gen_mask_parallel=True,
        sync=False,
        softmax_layout="",
        sink=None,
        *,
        strict=False,
    ):
        spec = Spec(
            flags | (STRICT if strict else 0),
            head_num,
            input_layout,
            softmax_layout,
            scale,
            keep_prob,
            pre_tockens,
            next_tockens,
            sparse_mode,
            None if flags & SWA else prefix,
            actual_seq_qlen,
            actual_seq_kvlen,
        )
        return _numbers(forward((query, key, value, pse, atten_mask, sink), spec))

    return op


def _backward_op(flags: int) -> Any:
    def op(
        query,
        key,
        value,
        dy,
        head_num,
        input_layout,
        *,
        pse=None,
        padding_mask=None,
        atten_mask=None,
        softmax_max=None,
        softmax_sum=None,
        softmax_in=None,
        attention_in=None,
        scale_value=1.0,
        keep_prob=1.0,
        pre_tockens=ALL,
        next_tockens=ALL,
        inner_precise=0,
        seed=0,
        offset=0,
        numels=0,
        prefix=None,
        actual_seq_qlen=None,
        actual_seq_kvlen=None,
        sparse_mode=0,
        gen_mask_parallel=True,
        sync=False,
        softmax_layout="",
        sink=None,
        strict=False,
    ):
        spec = Spec(
            flags | (STRICT if strict else 0),
            head_num,
            input_layout,
            softmax_layout,
            scale_value,
            keep_prob,
            pre_tockens,
            next_tockens,
            sparse_mode,
            None if flags & SWA else prefix,
            actual_seq_qlen,
            actual_seq_kvlen,
            seed,
            offset,
            numels,
        )
        saved = (dy, softmax_max, softmax_sum, attention_in)
        return backward((query, key, value, pse, atten_mask, sink, *saved), spec)

    return op


for _name, _schema, _op in (
    ("npu_fusion_attention", _FORWARD, _forward_op(0)),
    ("npu_fusion_attention_grad", _BACKWARD, _backward_op(0)),
    ("swa_forward", _FORWARD, _forward_op(SWA)),
    ("swa_backward", _BACKWARD, _backward_op(SWA)),
):
    lib.define(_name + _schema, tags=[torch.Tag.pt2_compliant_tag])
    lib.impl(_name, _op, "CompositeImplicitAutograd")
