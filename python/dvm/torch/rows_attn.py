"""scaled_dot_product_attention as torch.ops.dvm.attention, before autograd takes it apart.

AOTAutograd would see the kernel that torch picked, with its statistics and a backward of its own;
so the call is replaced in the graph that Dynamo gives, and traced from there. What the operator
does not take, or would do no faster, stays torch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from ..attn.call import ALL, AS_TORCH, FULL, MASK_TRAINS, PSE_ADDED
from .options import Options, is_disabled

_TARGETS = {F.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention}
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_LARGEST_HEAD = 1024
_FEW_ROWS = 32
# Where torch multiplies bf16 by instructions it takes 0.3 to 0.96 of the operator's time, causal or
# not; results of the operator are those of every processor (docs/attention.md).
_TORCH_HAS_BF16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()

# Fewer rows, forward, not causal: keys from which the operator takes the call, where all four hold
# (None: either way), by `bench/attn_bench.py few`. What is in no line of the table was 0.4 to 1.1
# times as fast as torch: a call of the operator costs 0.1 ms more, and behind a mask its operands
# are read once more (attn/as_torch.py).
#   16 bits  one row  shared key heads  boolean mask   keys     how much faster, from to
_FEW = (
    (True,  True,     None,             False,            0),  # 1.08 to 3.5
    (True,  True,     None,             True,           512),  # 1.10 to 10
    (None,  None,     True,             None,          1024),  # 1.08 to 7.5
    (True,  None,     None,             False,         4096),  # 1.02 to 1.5
)  # fmt: skip

# From _FEW_ROWS rows on: of 16-bit numbers with gradients all calls; others where a mask or
# is_causal leaves tiles out, from this many rows times keys, by `bench/attn_bench.py short` on AVX2
# and, of float32, AVX-512. How much faster from there on, and one size below.
#   16 bits  gradients causal    rows x keys
_MANY = {
    (False, False, True): 256 * 256,  # 1.18 to 1.8; 0.87 to 1.12
    (False, False, False): 512 * 512,  # 0.87 to 1.4, 1.1 in the mean; 0.85 to 1.2
    (False, True, True): 256 * 256,  # 1.26 to 1.7; 0.95 to 1.34
    (False, True, False): 512 * 512,  # 1.00 to 1.3; 0.91 to 1.25
    (True, False, True): 128 * 128,  # 1.16 to 1.9; 0.69 to 0.95
    (True, False, False): 256 * 256,  # 0.95 to 1.7; 0.63 to 0.99
}


def take_attention(gm: GraphModule, options: Options) -> GraphModule:
    """Replaces the calls in gm and its subgraphs, in place."""
    if is_disabled("aten.scaled_dot_product_attention.default", options.disable_ops):
        return gm
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        nodes = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _TARGETS]
        for node in nodes:
            node.target = attention
        if nodes:
            module.recompile()
    return gm


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Same arguments and result as scaled_dot_product_attention."""
    if not (
        _fits(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        and _pays(query, key, value, attn_mask, is_causal)
    ):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    from ..attn import library  # noqa: F401 registers torch.ops.dvm

    heads, factor = query.shape[1], query.shape[-1] ** -0.5 if scale is None else scale
    mode, pse, mask, rng = (2 if is_causal else 1), None, None, None
    if attn_mask is not None:
        whole = (query.shape[0], heads, query.shape[2], key.shape[2])
        if attn_mask.dtype == torch.bool:
            mask = attn_mask.logical_not().expand(whole)
        else:
            pse = attn_mask.expand(whole)
    if dropout_p > 0:
        rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64) * torch.tensor([1, 0])
    flags = PSE_ADDED | AS_TORCH
    if attn_mask is not None and attn_mask.requires_grad:
        flags |= MASK_TRAINS
    if attn_mask is None and not is_causal and not _trains(query, key, value):
        flags |= FULL
    spec = (flags, heads, "BNSD", "", float(factor), 1.0 - dropout_p, ALL, ALL, mode)
    lists = (None, None, None)
    return torch.ops.dvm.attention(query, key, value, pse, mask, None, rng, *spec, *lists)[0]


def _fits(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> bool:
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    if any(x.device.type != "cpu" for x in tensors) or any(x.dim() != 4 for x in tensors[:3]):
        return False
    if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
        return False
    if mask is not None and (causal or mask.dtype not in (torch.bool, query.dtype)):
        return False
    if not 0 <= dropout < 1 or (scale is not None and not math.isfinite(scale)):
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[2] != value.shape[2]:
        return False
    heads, groups = query.shape[1], key.shape[1]
    if value.shape[1] != groups or (heads % groups if gqa else heads != groups):
        return False
    return 0 < query.shape[3] == key.shape[3] <= _LARGEST_HEAD and (
        0 < value.shape[3] <= _LARGEST_HEAD
    )


def _trains(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _pays(query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool) -> bool:
    """Where it was measured faster (bench/attn_bench.py): _FEW and _MANY. A length not known yet
    counts as long."""
    rows, keys = query.shape[2], key.shape[2]
    trains = _trains(query, key, value)
    left = query.dtype == torch.bfloat16 and _TORCH_HAS_BF16
    short = query.dtype != torch.float32 and not left
    masked = mask is not None and mask.dtype == torch.bool and not left
    if isinstance(rows, int) and rows < _FEW_ROWS:
        # A comparison of symbols is made a bool at once: it cannot be compared with another.
        shared = bool(query.shape[1] != key.shape[1])
        is_so = (short, rows == 1, shared, masked)
        return not (trains or causal) and any(
            all(w is None or w == x for w, x in zip(want, is_so, strict=True))
            and not (isinstance(keys, int) and keys < least)
            for *want, least in _FEW
        )
    if short and trains:
        return True
    if left or not (causal or masked):
        return False
    if not (isinstance(rows, int) and isinstance(keys, int)):
        return True
    return rows * keys >= _MANY[short, trains, causal]
