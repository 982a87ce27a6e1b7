"""Rows of reductions and of ops that depend on whole rows: softmax, variance, running sums.

16-bit floats are reduced in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .fx import HALF, Emitter, Scalar, Unsupported, Val, name_of, row
from .rows_point import choose, truth
from .rows_shape import axis, filled, permute, reshape

_bool = torch.bool


def axes_of(dims: Any, rank: int) -> list[int]:
    """Reduced axes, in order. None and [] mean all."""
    if dims is None:
        return list(range(rank))
    dims = [dims] if isinstance(dims, int) else list(dims)
    if rank == 0:
        return []
    return sorted(axis(d, rank) for d in dims) or list(range(rank))


def fold(e: Emitter, op: str, x: Val, axes: Sequence[int], keep: bool) -> Val:
    """A builder reduction, which keeps the held dtype. Over no axes it is the value itself."""
    if not axes:
        v = e("copy", x)
        v.dtype = x.dtype
        return v
    v = e(op, x, list(axes), keep)
    wide = op in ("sum", "prod") and not x.dtype.is_floating_point  # of integers: int64
    v.dtype = torch.int64 if wide else x.dtype
    return e.to(v, x.dtype) if wide else v


def count(e: Emitter, shape: Sequence, axes: Sequence[int]) -> Any:
    return e.numel([shape[a] for a in axes])


# ------------------------------------------------------------------------------ sums and means


@row("sum.default", "sum.dim_IntList")
def sum_(
    e: Emitter, x: Val, dims: Any = None, keep: bool = False, *, dtype: torch.dtype | None = None
) -> Val:
    return fold(e, "sum", e.to(x, e.out.dtype), axes_of(dims, len(x.shape)), keep)


@row("mean.default", "mean.dim")
def mean(
    e: Emitter, x: Val, dims: Any = None, keep: bool = False, *, dtype: torch.dtype | None = None
) -> Val:
    axes = axes_of(dims, len(x.shape))
    total = fold(e, "sum", e.to(x, e.out.dtype), axes, keep)
    v = e("div", total, count(e, x.shape, axes))
    return e.result(v)


@row("prod.default", "prod.dim_int")
def prod(
    e: Emitter, x: Val, dim: Any = None, keep: bool = False, *, dtype: torch.dtype | None = None
) -> Val:
    return fold(e, "prod", e.to(x, e.out.dtype), axes_of(dim, len(x.shape)), keep)


def _mean_var(
    e: Emitter, x: Val, axes: Sequence[int], correction: Any, shape: Sequence, keep: bool = False
) -> tuple[Val, Val]:
    """Mean (kept dims) and variance of a float32 value, in two passes over the row."""
    if isinstance(correction, Scalar):
        raise Unsupported("correction known at run time only")
    n = count(e, shape, axes)
    mu = e("div", fold(e, "sum", x, axes, True), n)
    d = e("sub", x, mu)
    total = fold(e, "sum", e("mul", d, d), axes, keep)
    correction = 1 if correction is None else correction
    if isinstance(n, Scalar):
        if correction:
            wide = e.number(n)
            n = e("maximum", e("sub", wide, float(correction)), 0.0)
    else:
        n = max(n - correction, 0)
    if n == 0:  # torch: 0 / 0, or x / 0 = inf
        return mu, e("div", total, 0.0)
    return mu, e("div", total, n)


@row("var.correction", "var.default", "var.dim")
def var(e: Emitter, x: Val, dims: Any = None, *args: Any, **kw: Any) -> Val:
    correction, keep = _correction(dims, args, kw)
    dims = None if isinstance(dims, bool) else dims
    axes = axes_of(dims, len(x.shape))
    return e.result(_mean_var(e, e.as_float(x), axes, correction, x.shape, keep)[1])


@row("std.correction", "std.default", "std.dim")
def std(e: Emitter, x: Val, dims: Any = None, *args: Any, **kw: Any) -> Val:
    correction, keep = _correction(dims, args, kw)
    dims = None if isinstance(dims, bool) else dims
    axes = axes_of(dims, len(x.shape))
    v = _mean_var(e, e.as_float(x), axes, correction, x.shape, keep)[1]
    return e.result(e("sqrt", v))


@row("var_mean.correction")
def var_mean(
    e: Emitter, x: Val, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple:
    return _var_mean(e, x, dims, correction, keepdim, False)


@row("std_mean.correction")
def std_mean(
    e: Emitter, x: Val, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple:
    return _var_mean(e, x, dims, correction, keepdim, True)


def _var_mean(e: Emitter, x: Val, dims: Any, correction: Any, keep: bool, root: bool) -> tuple:
    axes = axes_of(dims, len(x.shape))
    dtype = e.out[0].dtype
    mu, v = _mean_var(e, e.as_float(x), axes, correction, x.shape, keep)
    if root:
        v = e("sqrt", v)
    if not keep:
        mu = reshape(e, mu, e.out[1].shape)
    return e.result(v, dtype), e.result(mu, dtype)


def _correction(dims: Any, args: Sequence, kw: dict) -> tuple[Any, bool]:
    """The overloads say unbiased (bool) or correction (number)."""
    flags = [dims] if isinstance(dims, bool) else []
    flags += args
    unbiased = flags[0] if flags else kw.get("unbiased", True)
    keep = kw.get("keepdim", flags[1] if len(flags) > 1 else False)
    correction = kw.get("correction")
    if correction is None:
        correction = 1 if unbiased else 0
    return correction, keep


# --------------------------------------------------------------------------------- extremes


def _extreme(e: Emitter, op: str, x: Val, dims: Any, keep: bool) -> Val:
    axes = axes_of(dims, len(x.shape))
    if x.dtype is _bool:
        return fold(e, "any" if op == "max" else "all", x, axes, keep)
    return fold(e, op, e.to(x, x.dtype), axes, keep)


@row("amax.default")
def amax(e: Emitter, x: Val, dims: Any = (), keep: bool = False) -> Val:
    return _extreme(e, "max", x, dims, keep)


@row("amin.default")
def amin(e: Emitter, x: Val, dims: Any = (), keep: bool = False) -> Val:
    return _extreme(e, "min", x, dims, keep)


@row("max.default")
def max_(e: Emitter, x: Val) -> Val:
    return _extreme(e, "max", x, None, False)


@row("min.default")
def min_(e: Emitter, x: Val) -> Val:
    return _extreme(e, "min", x, None, False)


def _with_index(e: Emitter, op: str, x: Val, dim: int, keep: bool) -> tuple:
    if x.dtype is _bool:
        raise Unsupported("position in a bool tensor")
    if len(x.shape) == 0:
        raise Unsupported("position in a 0-d tensor")
    x = e.to(x, x.dtype)
    a = axis(dim, len(x.shape))
    value = fold(e, op, x, [a], keep)
    index = e("arg" + op, x, a, keep, dtype=torch.int64)
    return value, index


@row("max.dim")
def max_dim(e: Emitter, x: Val, dim: int, keep: bool = False) -> tuple:
    return _with_index(e, "max", x, dim, keep)


@row("min.dim")
def min_dim(e: Emitter, x: Val, dim: int, keep: bool = False) -> tuple:
    return _with_index(e, "min", x, dim, keep)


def _arg(e: Emitter, op: str, x: Val, dim: Any, keep: bool) -> Val:
    if x.dtype is _bool:
        raise Unsupported("position in a bool tensor")
    if len(x.shape) == 0:
        return filled(e, 0)
    x = e.to(x, x.dtype)
    if dim is not None:
        return e(op, x, axis(dim, len(x.shape)), keep, dtype=torch.int64)
    flat = e("reshape", x, [-1])
    index = e(op, flat, 0, False, dtype=torch.int64)
    return e("reshape", index, e.sizes(e.out.shape)) if keep else index


@row("argmax.default")
def argmax(e: Emitter, x: Val, dim: Any = None, keep: bool = False) -> Val:
    return _arg(e, "argmax", x, dim, keep)


@row("argmin.default")
def argmin(e: Emitter, x: Val, dim: Any = None, keep: bool = False) -> Val:
    return _arg(e, "argmin", x, dim, keep)


@row("any.default", "any.dim", "any.dims")
def any_(e: Emitter, x: Val, dims: Any = None, keep: bool = False) -> Val:
    return _truth(e, "any", x, dims, keep)


@row("all.default", "all.dim", "all.dims")
def all_(e: Emitter, x: Val, dims: Any = None, keep: bool = False) -> Val:
    return _truth(e, "all", x, dims, keep)


def _truth(e: Emitter, op: str, x: Val, dims: Any, keep: bool) -> Val:
    if e.out.dtype is not _bool:
        raise Unsupported("truth of a byte tensor")
    return fold(e, op, truth(e, x), axes_of(dims, len(x.shape)), keep)


# ------------------------------------------------------------------------------------ norms


@row("linalg_vector_norm.default")
def vector_norm(
    e: Emitter,
    x: Val,
    order: Any = 2,
    dims: Any = None,
    keep: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Val:
    axes = axes_of(dims, len(x.shape))
    x = e.as_float(x)
    if isinstance(order, Scalar):
        raise Unsupported("order known at run time only")
    if order == 2:
        return e.result(e("sqrt", fold(e, "sum", e("mul", x, x), axes, keep)))
    if order == 1:
        return e.result(fold(e, "sum", e("abs", x), axes, keep))
    if order == math.inf:
        return e.result(fold(e, "max", e("abs", x), axes, keep))
    if order == -math.inf:
        return e.result(fold(e, "min", e("abs", x), axes, keep))
    if order == 0:
        nonzero = e("cast", e("not_equal", x, 0.0), torch.float32, dtype=torch.float32)
        return e.result(fold(e, "sum", nonzero, axes, keep))
    total = fold(e, "sum", e("pow", e("abs", x), float(order)), axes, keep)
    return e.result(e("pow", total, 1.0 / float(order)))


@row("logsumexp.default")
def logsumexp(e: Emitter, x: Val, dims: Any, keep: bool = False) -> Val:
    axes = axes_of(dims, len(x.shape))
    x = e.as_float(x)
    top = fold(e, "max", x, axes, True)
    # an infinite maximum would give inf - inf
    infinite = e("equal", e("abs", top), math.inf, dtype=_bool)
    top = e("select", infinite, 0.0, top, dtype=torch.float32)
    s = e("add", e("log", fold(e, "sum", e("exp", e("sub", x, top)), axes, True)), top)
    return e.result(s if keep else reshape(e, s, e.out.shape))


# ---------------------------------------------------------------------------------- softmax


def _exp_row(e: Emitter, x: Val, dim: int) -> tuple[Val, Val]:
    """x - max and exp of it."""
    d = e("sub", x, fold(e, "max", x, [dim], True))
    return d, e("exp", d)


@row("_softmax.default", "_safe_softmax.default", "softmax.int")
def softmax(e: Emitter, x: Val, dim: int, *args: Any, **kw: Any) -> Val:
    if name_of(e.node).startswith("aten._safe"):
        raise Unsupported("no row for this op")
    x = e.as_float(x)
    if len(e.out.shape) == 0:
        return e.result(e("exp", e("sub", x, x)))
    dim = axis(dim, len(e.out.shape))
    p = _exp_row(e, x, dim)[1]
    return e.result(e("div", p, fold(e, "sum", p, [dim], True)))


@row("_log_softmax.default", "log_softmax.int")
def log_softmax(e: Emitter, x: Val, dim: int, *args: Any, **kw: Any) -> Val:
    x = e.as_float(x)
    if len(e.out.shape) == 0:
        return e.result(e("sub", x, x))
    dim = axis(dim, len(e.out.shape))
    d, p = _exp_row(e, x, dim)
    return e.result(e("sub", d, e("log", fold(e, "sum", p, [dim], True))))


@row("_softmax_backward_data.default")
def softmax_backward(e: Emitter, grad: Val, y: Val, dim: int, dtype: torch.dtype) -> Val:
    grad, y = e.as_float(grad), e.as_float(y)
    gy = e("mul", grad, y)
    axes = axes_of(dim, len(e.out.shape))
    return e.result(e("sub", gy, e("mul", y, fold(e, "sum", gy, axes, True))))


@row("_log_softmax_backward_data.default")
def log_softmax_backward(e: Emitter, grad: Val, y: Val, dim: int, dtype: torch.dtype) -> Val:
    grad, y = e.as_float(grad), e.as_float(y)
    total = fold(e, "sum", grad, axes_of(dim, len(e.out.shape)), True)
    return e.result(e("sub", grad, e("mul", e("exp", y), total)))


# ----------------------------------------------------------------------------- running sums


@row("cumsum.default")
def cumsum(e: Emitter, x: Val, dim: int, *, dtype: torch.dtype | None = None) -> Val:
    out = e.out.dtype
    held = torch.float32 if out in HALF else out
    rank = len(x.shape)
    v = e.to(x, out)
    if rank == 0:
        return e.result(e("copy", v)) if held is not out else e("copy", v)
    dim = axis(dim, rank)
    order = list(range(rank))
    order[dim], order[-1] = order[-1], order[dim]
    if dim != rank - 1:
        v = permute(e, v, order)
    v = e("cumsum", v, -1, held, dtype=held)
    v.dtype = out
    return permute(e, v, order) if dim != rank - 1 else v


# ------------------------------------------------------------------------- losses over classes


@row("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(
    e: Emitter,
    grad: Val,
    x: Val,
    target: Val,
    weight: Val | None,
    reduction: int,
    ignore: int,
    total: Val,
) -> Val:
    if len(x.shape) not in (2, 4):
        raise Unsupported("target without a batch")
    column = [x.shape[0], 1, *x.shape[2:]]
    ones = [1] * (len(x.shape) - 2)
    t = reshape(e, target, column)
    g = e.as_float(grad)
    if reduction == 0:
        g = reshape(e, g, column)
    elif reduction == 1:
        g = e("div", g, e.as_float(total))
    g = e("neg", g)
    if weight is not None:
        g = e("mul", reshape(e, e.as_float(weight), (1, x.shape[1], *ones)), g)
    classes = e("iota", e.sizes((1, x.shape[1], *ones)), 1, torch.int64, dtype=torch.int64)
    hit = e(
        "logical_and",
        e("equal", classes, t, dtype=_bool),
        e("not_equal", t, ignore, dtype=_bool),
        dtype=_bool,
    )
    return choose(e, hit, Val(g.name, e.out.dtype, g.held, None), 0)
