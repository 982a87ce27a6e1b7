"""Decompositions given to AOTAutograd: the installed torch's own formulas, for the ops listed here.

An op with a row of its own stays whole: fewer nodes to trace, and the kernel is the same. Ops that
torch should run as one piece (matrix products, convolution, attention, random numbers, gathers)
stay whole too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .options import is_disabled
from .symbols import is_dense

DECOMPOSED = """
aminmax binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits
celu channel_shuffle count_nonzero deg2rad diag_embed diagonal_backward diagonal_copy expand_copy
fill glu glu_backward hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward
heaviside huber_loss huber_loss_backward isneginf isposinf log_sigmoid_backward
log_sigmoid_forward logaddexp logaddexp2 logit logit_backward mish mish_backward mse_loss
nan_to_num nansum norm _prelu_kernel _prelu_kernel_backward rad2deg rot90 selu sinc smooth_l1_loss
smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softshrink special_entr
special_log_ndtr special_xlog1py split_with_sizes_copy squeeze_copy t_copy transpose_copy
unsqueeze_copy _weight_norm_interface xlogy zero
"""

# Lists of tensors (optimizers' steps): _foreach_NAME is torch.NAME of each tensor.
FOREACH = """
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1
floor frac lerp log log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign
sin sinh sqrt sub tan tanh trunc
"""
BOUNDS = {"maximum": torch.clamp_min, "minimum": torch.clamp_max}  # with a number


def each(op: Callable, values: bool) -> Callable:
    """op of the i-th elements of the lists among the arguments; `values`: the fourth argument, a
    number, goes by the name it has in addcmul and addcdiv.
    """

    def lists(*args: object, **kwargs: object) -> list[torch.Tensor]:
        if values and len(args) > 3:
            args, kwargs = args[:3], {"value": args[3]}
        n = next(len(a) for a in args if isinstance(a, (list, tuple)))

        def at(i: int, a: object) -> object:
            return a[i] if isinstance(a, (list, tuple)) else a

        return [
            op(*(at(i, a) for a in args), **{k: at(i, a) for k, a in kwargs.items()})
            for i in range(n)
        ]

    return lists


def foreach_table() -> dict[torch._ops.OpOverload, Callable]:
    """The functional overloads of _foreach_*. Those of addcmul and addcdiv with a tensor of numbers
    stay whole.
    """
    out: dict[torch._ops.OpOverload, Callable] = {}
    for name in FOREACH.split():
        packet = getattr(torch.ops.aten, f"_foreach_{name}", None)
        values = name in ("addcmul", "addcdiv")
        for overload in packet.overloads() if packet is not None else ():
            if overload.endswith("out") or (values and overload == "Tensor"):
                continue
            op = getattr(torch, name)
            if overload in ("Scalar", "ScalarList"):
                op = BOUNDS.get(name, op)
            out[getattr(packet, overload)] = each(op, values)
    return out


def sum_at(
    x: torch.Tensor, indices: Sequence, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """index_put(accumulate=True) of leading indices, as scatter_add into the rows of a matrix: the
    sum of repeated positions has one order there, for any number of threads, and takes a third of
    the time. Everything else stays whole.

    Reading positions from a range refuses those that index_put would, and moves negative ones.
    """
    if (
        not accumulate
        or not indices
        or not all(_is_position(i) for i in indices)
        or not x.dtype.is_floating_point
        or x.dtype is not values.dtype
        or not is_dense(x)
    ):
        return NotImplemented
    n = len(indices)
    at: Any = 0
    for size, i in zip(x.shape[:n], indices, strict=True):
        at = at * size + torch.arange(size, device=x.device)[i]
    rest = x.shape[n:]
    rows, width, count = math.prod(x.shape[:n]), math.prod(rest), at.numel()
    matrix = values.expand(*at.shape, *rest).reshape(count, width)
    at = at.reshape(count, 1).expand(count, width)
    return x.reshape(rows, width).scatter_add(0, at, matrix).reshape(x.shape)


def _is_position(i: torch.Tensor | None) -> bool:
    return i is not None and i.dtype in (torch.int32, torch.int64)


def gradient_of_embedding(
    gradient: torch.Tensor, index: torch.Tensor, n: Any, padding: Any, by_frequency: bool
) -> torch.Tensor:
    """The same for embedding, whose forward has refused positions out of range."""
    if by_frequency or not gradient.dtype.is_floating_point or not isinstance(padding, int):
        return NotImplemented
    count, width = index.numel(), gradient.shape[-1]
    at = index.reshape(count, 1).to(torch.int64)
    matrix = gradient.reshape(count, width)
    if padding >= 0:
        matrix = matrix.masked_fill(at == padding, 0)
    zeros = gradient.new_zeros((n, width))
    return zeros.scatter_add(0, at.expand(count, width), matrix)


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _along(x: torch.Tensor, a: int, b: int) -> bool:
    """Whether neighbours along axis a lie nearer than along b, as far as that is known."""
    near, far = x.stride(a), x.stride(b)
    return isinstance(near, int) and isinstance(far, int) and near < far


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """bmm with one column or a depth of one: products of elements, and sums of them along the axis
    that is next in memory. As matrices they are a library's worst case, and the copies of gathered
    weights of a mixture of experts need not be made. One row is a case that MKL does well."""
    if not a.dtype.is_floating_point or a.dtype is not b.dtype or a.device.type != "cpu":
        return NotImplemented
    if _is_one(a.shape[2]):
        return a * b
    if _is_one(b.shape[2]):
        if _along(a, 1, 2):
            return (a.transpose(1, 2) * b).sum(1).unsqueeze(2)
        return (a * b.transpose(1, 2)).sum(2, keepdim=True)
    return NotImplemented


TAPS = 8  # longest filter that is written out


def _filtered(x: torch.Tensor, taps: Sequence[torch.Tensor], step: int, axis: int, n: Any) -> Any:
    """Element t of n along the axis: the sum over j of taps[j] * x[t + j * step]."""
    parts = [x.narrow(axis, j * step, n) * tap for j, tap in enumerate(taps)]
    return functools.reduce(torch.add, parts)


class _Rows:
    """A convolution over one axis, every channel with a short filter of its own: a few products and
    sums of shifted rows, as of the gated delta rule. torch's takes ten times as long. Channels stay
    last where they lie so, that everything is read in the order of memory."""

    def __init__(self, x: torch.Tensor, w: torch.Tensor, padding: Any, step: int):
        self.padding, self.step = padding, step
        self.last = _along(x, 1, 2)
        self.axis = 1 if self.last else 2
        self.taps = [w[:, 0, j] if self.last else w[:, :, j] for j in range(w.shape[2])]

    def ordered(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2) if self.last else x

    def padded(self, x: torch.Tensor, p: Any) -> torch.Tensor:
        sides = [0, 0, p, p] if self.last else [p, p]
        return torch.constant_pad_nd(self.ordered(x), sides).contiguous()

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """As torch's convolution leaves it: dense, rows last."""
        return self.ordered(x).contiguous()


def _by_channel(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence,
    padding: Sequence,
    dilation: Sequence,
    transposed: bool,
    extra: Sequence,
    groups: int,
) -> _Rows | None:
    """None: another convolution. Arguments as of aten::convolution."""
    is_so = (
        x.dim() == w.dim() == 3
        and isinstance(groups, int)
        and groups > 1
        and tuple(w.shape[:2]) == (groups, 1)
        and isinstance(w.shape[2], int)
        and 1 <= w.shape[2] <= TAPS
        and tuple(stride) == (1,)
        and not transposed
        and not any(extra)
        and x.dtype is w.dtype
        and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and x.device.type == "cpu"
    )
    return _Rows(x, w, padding[0], dilation[0]) if is_so else None


def convolution(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *how: Any
) -> torch.Tensor:
    rows = _by_channel(x, w, *how)
    if rows is None:
        return NotImplemented
    length = x.shape[2] + 2 * rows.padding - (w.shape[2] - 1) * rows.step
    y = _filtered(rows.padded(x, rows.padding), rows.taps, rows.step, rows.axis, length)
    if bias is not None:
        y = y + (bias if rows.last else bias[:, None])
    return rows.result(y)


def gradients_of_convolution(
    gradient: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias_sizes: Any, *how_and_mask: Any
) -> tuple[torch.Tensor | None, ...]:
    *how, mask = how_and_mask
    rows, n = _by_channel(x, w, *how), w.shape[2]
    if rows is None:
        return NotImplemented
    of_x = of_w = None
    if mask[0]:
        padded = rows.padded(gradient, (n - 1) * rows.step - rows.padding)
        of_x = rows.result(_filtered(padded, rows.taps[::-1], rows.step, rows.axis, x.shape[2]))
    if mask[1]:
        padded, g = rows.padded(x, rows.padding), rows.ordered(gradient)
        others = (0, rows.axis)
        moved = [padded.narrow(rows.axis, j * rows.step, gradient.shape[2]) for j in range(n)]
        of_w = torch.stack([(g * m).sum(others) for m in moved], 1)[:, None]
    return of_x, of_w, gradient.sum((0, 2)) if mask[2] else None


@functools.cache
def table(disabled: frozenset[str] = frozenset()) -> dict[torch._ops.OpOverload, Callable]:
    """Overload -> formula. Names that the installed torch lacks are left out, and formulas of this
    file for ops that are switched off."""
    from torch._decomp import get_decompositions

    packets = (getattr(torch.ops.aten, name, None) for name in DECOMPOSED.split())
    known = get_decompositions([p for p in packets if p is not None])
    own = {
        torch.ops.aten.index_put.default: sum_at,
        torch.ops.aten.embedding_dense_backward.default: gradient_of_embedding,
        torch.ops.aten.bmm.default: product,
        torch.ops.aten.convolution.default: convolution,
        torch.ops.aten.convolution_backward.default: gradients_of_convolution,
    }
    # Graphs have no gradients to cut off: a saved output is the output, not a view made each call.
    return {
        **known,
        torch.ops.aten.detach.default: lambda x: x,
        **{op: formula for op, formula in own.items() if not is_disabled(op, disabled)},
        **foreach_table(),
    }
