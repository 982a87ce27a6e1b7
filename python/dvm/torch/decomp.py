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


@functools.cache
def table() -> dict[torch._ops.OpOverload, Callable]:
    """Overload -> formula. Names that the installed torch lacks are left out."""
    from torch._decomp import get_decompositions

    packets = (getattr(torch.ops.aten, name, None) for name in DECOMPOSED.split())
    return get_decompositions([p for p in packets if p is not None])
