"""Matrix products as kernels: mm, addmm and bmm, with what surrounds them in one tile loop.

torch's libraries do a product alone as fast as the engine or faster, so option `products` says
which are taken: `auto` those that `pays` finds, by what bench/product_bench.py measured; `all`; or
`none`. A result in 16 bits is rounded where eager rounds it. Products that have no row, or a bias
that is not one row, stay torch's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import Node

from .fx import HALF, PRODUCTS, ROWS, Emitter, Unsupported, Val, name_of, row

_FLOATS = HALF | {torch.float32}

# f32 with elementwise work on the result: rows from and to, least elements of the second factor,
# most depth; measured faster than torch's product on the machines of docs/kernels.md.
F32 = ((1, 12, 1 << 19, 4096), (13, 16, 0, 4096))
F32_WIDE = (  # with AVX-512
    (1, 1, 1 << 19, 4096),
    (4, 12, 1 << 19, 4096),
    (13, 16, 0, 4096),
    (17, 64, 0, 1024),
)
F16_ROWS = 4


@functools.cache
def has_fast(dtype: torch.dtype) -> bool:
    """Whether torch's library has products of this 16-bit dtype for the processor."""
    name = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return True  # unknown: left to torch


@functools.cache
def has_wide() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def pays(node: Node, dtype: torch.dtype, sizes: tuple[Any, Any, Any]) -> bool:
    """Whether a kernel was measured faster than torch's product of these rows, columns and depth;
    sizes by their hints.
    """
    m, n, k = map(_hint, sizes)
    if m is None or n is None or k is None:
        return False
    if dtype is torch.bfloat16:
        return m == 1 or not has_fast(dtype)
    if dtype is torch.float16:
        return m >= F16_ROWS and not has_fast(dtype)
    bands = F32_WIDE if has_wide() else F32
    fits = any(a <= m <= b and n * k >= least and k <= deep for a, b, least, deep in bands)
    return fits and any(_is_elementwise(u) for u in node.users)


def _hint(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return None if hint is None else int(hint)


def _is_elementwise(node: Node) -> bool:
    """Work on every element, at once or behind views; row by row counts too (norms, softmax)."""
    known = ROWS.get(name_of(node))
    if known is None or name_of(node) in PRODUCTS:
        return False
    if not known.view:
        return True
    return any(_is_elementwise(u) for u in node.users)


def _product(e: Emitter, a: Val, b: Val, bias: Val | None = None) -> Val:
    wanted = e.options.products
    sizes = (a.shape[-2], b.shape[-1], a.shape[-1])
    if wanted == "none" or (wanted == "auto" and not pays(e.node, a.dtype, sizes)):
        raise Unsupported("matrix product")
    if a.dtype not in _FLOATS or b.dtype is not a.dtype:
        raise Unsupported(f"matrix product of {a.dtype} and {b.dtype}")
    args = [e.rounded(a), e.rounded(b)]
    if bias is None:
        out = e("matmul", *args, dtype=a.dtype)
    else:
        out = e("matmul", *args, bias=e.rounded(bias), dtype=a.dtype)
    return out


@row("mm.default", "bmm.default")
def mm(e: Emitter, a: Val, b: Val) -> Val:
    return _product(e, a, b)


@row("addmm.default")
def addmm(e: Emitter, bias: Val, a: Val, b: Val, *, beta: Any = 1, alpha: Any = 1) -> Val:
    if beta != 1 or alpha != 1 or len(bias.shape) != 1 or bias.dtype is not a.dtype:
        raise Unsupported("matrix product")
    return _product(e, a, b, bias)
