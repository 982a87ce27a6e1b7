"""Decompositions given to AOTAutograd: the installed torch's own formulas, for the ops listed here.

An op with a row of its own stays whole: fewer nodes to trace, and the kernel is the same. Ops that
torch should run as one piece (matrix products, convolution, attention, random numbers, gathers)
stay whole too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

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


@functools.cache
def table() -> dict[torch._ops.OpOverload, Callable]:
    """Overload -> formula. Names that the installed torch lacks are left out."""
    from torch._decomp import get_decompositions

    packets = (getattr(torch.ops.aten, name, None) for name in DECOMPOSED.split())
    known = get_decompositions([p for p in packets if p is not None])
    # Graphs have no gradients to cut off: a saved output is the output, not a view made each call.
    return {**known, torch.ops.aten.detach.default: lambda x: x, **foreach_table()}
