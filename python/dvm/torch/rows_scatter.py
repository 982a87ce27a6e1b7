"""Rows that write at positions given by an index tensor, where a row of the result has few of them.

    scatter(x, 1, index, src)[i, c] = src[i, j] where c == index[i, j], else x[i, c]

With one position (classes of a loss, gradients of max and gather) to four in a long row, each
element asks all positions in order: no memory is written twice, the sum of repeated positions has
one order, and the result fuses with what is around it. Elsewhere, as in gradients of embeddings,
a write for each position costs less than asking for all of them, and torch does it; short rows
cost the engine a start each.

torch refuses positions out of range, negative ones too, so the positions are read through a gather
of 0, 1, 2, ..., which refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .fx import COMPUTE, Emitter, Unsupported, Val, row
from .rows_index import _from_front, take
from .rows_point import choose
from .rows_shape import axis, cut, iota
from .symbols import hint, same_size

FEW = 4  # positions along the dimension
LONG = 64  # elements of a row for each of them; measured against torch, which wins below


def _positions(e: Emitter, x: Val, dim: int, index: Val, src: Val | None) -> int:
    """Positions of a row; Unsupported where they are not few, or the shapes are not x's."""
    if e.out.dtype not in COMPUTE:
        raise Unsupported(f"dtype {str(e.out.dtype).removeprefix('torch.')}")
    rank = len(x.shape)
    if rank == 0 or len(index.shape) != rank:
        raise Unsupported("0-d scatter")
    n = index.shape[dim]
    if not isinstance(n, int) or not 1 <= n <= FEW:
        raise Unsupported(f"scatter of more than {FEW} positions, or a number known at run time")
    if hint(x.shape[dim]) < LONG * n:
        raise Unsupported("scatter into short rows")
    for d in range(rank):
        if d != dim and not same_size(x.shape[d], index.shape[d]):
            raise Unsupported("scatter with an index smaller than its result")
        if src is not None and d != dim and not same_size(src.shape[d], index.shape[d]):
            raise Unsupported("scatter with an index smaller than its source")
    return n


def _hits(e: Emitter, x: Val, dim: int, index: Val) -> Iterator[Val]:
    """For each position of a row: where in the row it is."""
    size = [1] * len(x.shape)
    size[dim] = x.shape[dim]
    places = iota(e, size, dim)
    checked = take(e, iota(e, [x.shape[dim]], 0), _from_front(e, index), 0)
    checked.shape = index.shape
    for j in range(index.shape[dim]):
        yield e("equal", places, cut(e, checked, dim, j, 1), dtype=torch.bool)


def _scatter(
    e: Emitter,
    x: Val,
    dim: int,
    index: Val,
    src: Val | None,
    written: Callable[[Val, Any, Val], Val],
    value: Any = None,
) -> Val:
    """`written(hit, new, old)` is the row after one position."""
    dim = axis(dim, len(x.shape))
    n = _positions(e, x, dim, index, src)
    hits = _hits(e, x, dim, index)
    for j, hit in zip(range(n), hits, strict=True):
        x = written(hit, value if src is None else cut(e, src, dim, j, 1), x)
    return x


@row("scatter.src")
def scatter(e: Emitter, x: Val, dim: int, index: Val, src: Val) -> Val:
    return _scatter(e, x, dim, index, src, lambda hit, new, old: choose(e, hit, new, old))


@row("scatter.value")
def scatter_value(e: Emitter, x: Val, dim: int, index: Val, value: Any) -> Val:
    return _scatter(e, x, dim, index, None, lambda hit, new, old: choose(e, hit, new, old), value)


@row("scatter_add.default")
def scatter_add(e: Emitter, x: Val, dim: int, index: Val, src: Val) -> Val:
    dtype = e.out.dtype
    if dtype is torch.bool:
        raise Unsupported("dtype bool")

    def added(hit: Val, new: Val, old: Val) -> Val:
        old, new = e.to(old, dtype), e.to(new, dtype)
        total = e("add", old, new, dtype=e.compute(dtype))
        v = e("select", hit, total, old, dtype=e.compute(dtype))
        v.dtype = dtype
        return v

    return _scatter(e, x, dim, index, src, added)
