"""Attention with the argument lists of torch_npu, forward and backward, on the CPU.

    npu_fusion_attention, npu_fusion_attention_grad    sparse modes 0-8, five layouts
    swa_forward, swa_backward                          sliding windows: sparse modes 0 and 4

Arguments may be numpy arrays or tensors of torch; torch tensors go through the operators of
torch.ops.dvm, so gradients flow and torch.compile traces them. docs/attention.md says what every
argument means and where this differs from the Ascend kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .call import ALL, STRICT, SWA, Spec, backward, checked, forward, is_torch

__all__ = [
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "swa_backward",
    "swa_forward",
]

Ints = Sequence[int] | None


def _forward(tensors: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    if is_torch(tensors):
        from .library import forward as run

        return run(tensors, spec)
    return forward(tensors, checked(spec))


def _backward(tensors: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    if is_torch(tensors):
        from .library import backward as run

        return run(tensors, spec)
    return backward(tensors, checked(spec))


def npu_fusion_attention(
    query: Any,
    key: Any,
    value: Any,
    head_num: int,
    input_layout: str,
    pse: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Any = None,
    *,
    strict: bool = False,
) -> tuple[Any, ...]:
    """softmax(scale (query key^T + pse)) value over the positions that the mode and the mask leave.

    Returns attention_out, softmax_max, softmax_sum (fp32, [B, N, Sq, 8] or [T, N, 8]), an empty
    tensor, and seed, offset, numels of dropout. atten_mask is True where a position is left out.
    strict: an absent mask means full attention whatever the mode, as on Ascend.
    """
    spec = Spec(
        STRICT if strict else 0,
        head_num,
        input_layout,
        softmax_layout,
        scale,
        keep_prob,
        pre_tockens,
        next_tockens,
        sparse_mode,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
    )
    return _forward((query, key, value, pse, atten_mask, sink), spec)


def npu_fusion_attention_grad(
    query: Any,
    key: Any,
    value: Any,
    dy: Any,
    head_num: int,
    input_layout: str,
    *,
    pse: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    softmax_max: Any = None,
    softmax_sum: Any = None,
    softmax_in: Any = None,
    attention_in: Any = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Any = None,
    strict: bool = False,
) -> tuple[Any, ...]:
    """Gradients (dq, dk, dv, dpse, dsink) from what npu_fusion_attention returned.

    attention_in, softmax_max and softmax_sum are its outputs 0 to 2. dpse is None without pse,
    dsink is empty without sink.
    """
    spec = Spec(
        STRICT if strict else 0,
        head_num,
        input_layout,
        softmax_layout,
        scale_value,
        keep_prob,
        pre_tockens,
        next_tockens,
        sparse_mode,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        seed,
        offset,
        numels,
    )
    tensors = (query, key, value, pse, atten_mask, sink, dy, softmax_max, softmax_sum, attention_in)
    return _backward(tensors, spec)


def swa_forward(
    query: Any,
    key: Any,
    value: Any,
    head_num: int,
    input_layout: str,
    pse: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Any = None,
    *,
    strict: bool = False,
) -> tuple[Any, ...]:
    """npu_fusion_attention for sliding windows: sparse_mode is 0 or 4.

    With input_layout TND and more than 16384 packed rows (padding counted) mode 0 becomes mode 4,
    here and in swa_backward: finite tokens then are a window aligned at the end of each sequence.
    prefix is ignored.
    """
    spec = Spec(
        SWA | (STRICT if strict else 0),
        head_num,
        input_layout,
        softmax_layout,
        scale,
        keep_prob,
        pre_tockens,
        next_tockens,
        sparse_mode,
        None,
        actual_seq_qlen,
        actual_seq_kvlen,
    )
    return _forward((query, key, value, pse, atten_mask, sink), spec)


def swa_backward(
    query: Any,
    key: Any,
    value: Any,
    dy: Any,
    head_num: int,
    input_layout: str,
    *,
    pse: Any = None,
    padding_mask: Any = None,
    atten_mask: Any = None,
    softmax_max: Any = None,
    softmax_sum: Any = None,
    softmax_in: Any = None,
    attention_in: Any = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = ALL,
    next_tockens: int = ALL,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Ints = None,
    actual_seq_qlen: Ints = None,
    actual_seq_kvlen: Ints = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Any = None,
    strict: bool = False,
) -> tuple[Any, ...]:
    """Gradients (dq, dk, dv, dpse, dsink) of swa_forward, given its own sparse_mode."""
    spec = Spec(
        SWA | (STRICT if strict else 0),
        head_num,
        input_layout,
        softmax_layout,
        scale_value,
        keep_prob,
        pre_tockens,
        next_tockens,
        sparse_mode,
        None,
        actual_seq_qlen,
        actual_seq_kvlen,
        seed,
        offset,
        numels,
    )
    tensors = (query, key, value, pse, atten_mask, sink, dy, softmax_max, softmax_sum, attention_in)
    return _backward(tensors, spec)
