"""Rows that read at positions given by an index tensor.

The engine counts negative positions from the end and raises dvm.OutOfRangeError for others out of
range. Indexing with a tensor means the same; embedding, index_select, gather and classes of a loss
refuse negative positions, so these are moved out of range first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .fx import COMPUTE, Emitter, Unsupported, Val, row
from .rows_reduce import fold
from .rows_shape import axis, like, reshape
from .symbols import same_size

ELEMENTS, SLICES = 0, 1  # gather modes of the builder


def _index(i: Val) -> Val:
    if i.dtype not in (torch.int32, torch.int64):
        raise Unsupported(f"index of dtype {i.dtype}")
    return i


def _source(x: Val) -> Val:
    if x.dtype not in COMPUTE:
        raise Unsupported(f"dtype {x.dtype}")
    return x


def _from_front(e: Emitter, index: Val) -> Val:
    """The index with its negative values out of every range."""
    _index(index)
    beyond = torch.iinfo(index.dtype).max
    return e("select", e("less", index, 0, dtype=torch.bool), beyond, index, dtype=index.dtype)


def take(e: Emitter, x: Val, index: Val, dim: int) -> Val:
    """Slices of x along dim, numpy.take."""
    return like(e("gather", _source(x), _index(index), dim, SLICES), x)


def take_along(e: Emitter, x: Val, index: Val, dim: int) -> Val:
    """Elements of x along dim; the index has x's rank and, but for dim, its sizes."""
    return like(e("gather", _source(x), _index(index), dim, ELEMENTS), x)


@row("embedding.default")
def embedding(e: Emitter, weight: Val, index: Val, *args: Any, **kw: Any) -> Val:
    return take(e, weight, _from_front(e, index), 0)


@row("index_select.default")
def index_select(e: Emitter, x: Val, dim: int, index: Val) -> Val:
    if len(x.shape) == 0 or len(index.shape) != 1:
        raise Unsupported("0-d index_select")
    return take(e, x, _from_front(e, index), axis(dim, len(x.shape)))


@row("gather.default")
def gather(e: Emitter, x: Val, dim: int, index: Val, *, sparse_grad: bool = False) -> Val:
    rank = len(x.shape)
    if rank == 0 or len(index.shape) == 0:
        raise Unsupported("0-d gather")
    dim = axis(dim, rank)
    for d in range(rank):
        # torch lets the index be smaller than x; the kernel reads whole rows
        if d != dim and not same_size(x.shape[d], index.shape[d]):
            raise Unsupported("gather with an index smaller than its source")
    return take_along(e, x, _from_front(e, index), dim)


@row("index.Tensor", "_unsafe_index.Tensor")
def index(e: Emitter, x: Val, indices: Sequence[Val | None]) -> Val:
    """x[:, i] and x[:, i, j]: index tensors side by side. Masks are torch's."""
    given = [d for d, i in enumerate(indices) if i is not None]
    first, n = given[0], len(given)
    if given != list(range(first, first + n)):
        raise Unsupported("index tensors that are not side by side")
    if n == 1:
        return take(e, x, indices[first], first)
    sizes = x.shape[first : first + n]
    # One index into the axes as one, out of every range where one of its parts is.
    flat = inside = None
    for i, size in zip(indices[first : first + n], sizes, strict=True):
        i = e.cast(_index(i), torch.int64)
        below = e("less", i, 0, dtype=torch.bool)
        front = e("select", below, e("add", i, size), i, dtype=torch.int64)
        fits = e(
            "logical_and",
            e("greater_equal", front, 0, dtype=torch.bool),
            e("less", front, size, dtype=torch.bool),
        )
        flat = front if flat is None else e("add", e("mul", flat, size), front)
        inside = fits if inside is None else e("logical_and", inside, fits)
    beyond = torch.iinfo(torch.int64).max
    flat = e("select", inside, flat, beyond, dtype=torch.int64)
    merged = [*x.shape[:first], math.prod(sizes), *x.shape[first + n :]]
    return take(e, reshape(e, x, merged), flat, first)


@row("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(
    e: Emitter, x: Val, target: Val, weight: Val | None, reduction: int, ignore: int
) -> tuple:
    if len(x.shape) not in (2, 4):
        raise Unsupported("target without a batch")
    _index(target)
    rows = list(range(len(target.shape)))
    loss_dtype, total_dtype = (t.dtype for t in e.out)
    kept = e("not_equal", target, ignore, dtype=torch.bool)
    safe = _from_front(e, e("select", kept, target, 0, dtype=target.dtype))
    column = [x.shape[0], 1, *x.shape[2:]]
    picked = reshape(e, take_along(e, x, reshape(e, safe, column), 1), target.shape)
    loss = e("neg", e.as_float(picked))
    ones = e.number(1.0)
    if weight is not None:
        ones = e.as_float(take(e, weight, safe, 0))
        loss = e("mul", loss, ones)
    loss = e("select", kept, loss, 0.0, dtype=torch.float32)
    if reduction == 0:
        return e.result(loss, loss_dtype), e.result(e.number(0.0), total_dtype)
    share = e("select", kept, ones, 0.0, dtype=torch.float32)
    total = fold(e, "sum", share, rows, False)
    loss = fold(e, "sum", loss, rows, False)
    if reduction == 1:
        loss = e("div", loss, total)
    return e.result(loss, loss_dtype), e.result(total, total_dtype)
