"""Calls of scaled_dot_product_attention that torch must run itself, to give what eager gives.

torch's kernels compute what a mask hides and then weigh it by 0; the operator never reads it. Both
give the same for finite numbers, but 0 * NaN and 0 * inf are NaN. So a call with the flag AS_TORCH
first asks how large its operands are. Where all are finite and no product of two rows can overflow,
nothing that is hidden can become anything but 0, and the operator runs. Otherwise torch's own
implementation does, forward and backward, so that results are eager's whatever eager does.

The forward leaves a mark for the backward in softmax_sum, which is never negative otherwise.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .call import FULL, MASK_TRAINS, Spec

log = logging.getLogger("dvm.torch")

# Runs that torch did, by operation and reason, for the summary of dvm.torch.
by_torch: Counter = Counter()

# Products of rows below this stay finite in float32, and still do when a mask of up to the largest
# float is added: that has an ulp of 2^104.
_MOST = 2.0**100
_MARK = -1.0


def largest(x: Tensor) -> float:
    """The largest magnitude, NaN where there is a NaN, in one pass over the memory."""
    for axis, stride in enumerate(x.stride()):
        if stride == 0:
            x = x.narrow(axis, 0, min(x.shape[axis], 1))
    if not x.numel():
        return 0.0
    if not x.is_contiguous():  # a dense tensor in another order of axes is not copied
        x = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    low, high = torch.aminmax(x)
    low, high = float(low), float(high)
    return max(-low, high) if low == low else math.nan


def _reason(name: str, x: float) -> str:
    return "" if x < math.inf else f"{name} holds NaN or infinity"


def _products(a: str, x: float, b: str, y: float, factor: float) -> str:
    """Why products of rows of two operands, of these largest magnitudes, may not be finite."""
    why = _reason(a, x) or _reason(b, y)
    return why or ("" if x * y * factor < _MOST else f"{a} times {b} may overflow")


def _why(query: Tensor, key: Tensor, value: Tensor, pse: Tensor | None, s: Spec) -> str:
    factor = query.shape[-1] * max(1.0, abs(s.scale))
    why = _products("query", largest(query), "key", largest(key), factor)
    why = why or _reason("value", largest(value))
    if not why and pse is not None:  # -inf hides, as a boolean mask does
        top = float(pse.max()) if pse.numel() else 0.0
        why = "" if top < math.inf else "the mask holds NaN or infinity"
    return why


def _run(
    q: Tensor, k: Tensor, v: Tensor, pse: Tensor | None, off: Tensor | None, rng: Any, s: Spec
) -> Tensor:
    """torch's own, from the arguments of the operator."""
    mask = off.logical_not() if off is not None else pse
    scale = None if s.scale == q.shape[-1] ** -0.5 else s.scale
    shared = q.shape[1] != k.shape[1]
    with torch.random.fork_rng([], enabled=rng is not None):
        if rng is not None:  # the backward draws the same again
            torch.manual_seed(int(rng[0]))
        return F.scaled_dot_product_attention(
            q, k, v, mask, 1.0 - s.keep_prob, s.sparse_mode == 2, scale=scale, enable_gqa=shared
        )


def _count(why: str) -> None:
    at = ("scaled_dot_product_attention", why)
    if not by_torch[at]:
        log.warning("%s is run by torch: %s", *at)
    by_torch[at] += 1


def forward(tensors: tuple[Any, ...], rng: Any, s: Spec) -> tuple[Tensor, Tensor, Tensor] | None:
    """Results of torch's own where it must run, with the mark; None where the operator may."""
    q, k, v, pse = tensors[:4]
    why = "" if s.flags & FULL else _why(q, k, v, pse, s)
    return _torchs(tensors, rng, s, why) if why else None


def after(
    out: tuple[Tensor, Tensor, Tensor], tensors: tuple[Any, ...], rng: Any, s: Spec
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for a call without a mask and without gradients, where all is seen: what is not
    finite shows in the result, and the operands need not be searched."""
    why = _reason("the result", largest(out[0])) if s.flags & FULL else ""
    return _torchs(tensors, rng, s, why) if why else out


def _torchs(tensors: tuple[Any, ...], rng: Any, s: Spec, why: str) -> tuple[Tensor, Tensor, Tensor]:
    _count(why)
    q, k, v, pse, off, _ = tensors
    if s.flags & MASK_TRAINS:  # which of its kernels torch takes depends on it
        pse = pse.detach().requires_grad_()
    out = _run(q, k, v, pse, off, rng, s).detach()
    stat = q.new_full((*q.shape[:3], 8), _MARK, dtype=torch.float32)
    return out.contiguous(), stat, stat.clone()


def backward(
    tensors: tuple[Any, ...], dy: Tensor, total: Tensor, rng: Any, s: Spec, dpse: bool
) -> tuple[Any, ...] | None:
    """(dq, dk, dv, dpse, dsink) of torch's own, or None where the operator may run."""
    marked = total.numel() > 0 and float(total.reshape(-1)[0]) == _MARK
    if not marked:
        value = tensors[2]
        why = _products("dy", largest(dy), "value", largest(value), float(value.shape[-1]))
        if not why:
            return None
        _count(why)
    leaves = [_leaf(x) for x in tensors[:3]]
    pse = tensors[3]
    if dpse:
        pse = _leaf(pse)
        leaves.append(pse)
    with torch.inference_mode(False), _autograd(), torch.enable_grad():
        out = _run(*leaves[:3], pse, tensors[4], rng, s)
        grads = torch.autograd.grad(out, leaves, dy)
    return tuple(g.contiguous() for g in grads) + (None,) * (5 - len(grads))


def _leaf(x: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return (x.clone() if x.is_inference() else x.detach()).requires_grad_()


def _autograd() -> Any:
    """An operator may be called below autograd, where nothing is recorded."""
    keys = torch._C.DispatchKey
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in (keys.AutogradFunctionality, keys.AutogradOther, keys.AutogradNestedTensor):
        left_out = left_out.remove(key)
    included = torch._C._dispatch_tls_local_include_set()
    return torch._C._ForceDispatchKeyGuard(included, left_out)
