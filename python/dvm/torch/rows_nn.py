"""Rows of normalization layers, forward and backward.

All are computed in float32 for 16-bit inputs. Statistics come from two passes over the row (mean,
then squared distance), not from E[x^2] - E[x]^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .fx import HALF, Emitter, Unsupported, Val, row
from .rows_reduce import count, fold
from .rows_shape import full, reshape


def _centred(e: Emitter, x: Val, axes: Sequence[int], shape: Sequence) -> tuple[Val, Val, Val]:
    """x - mean, mean and variance (dims kept) of a float32 value."""
    n = count(e, shape, axes)
    mu = e("div", fold(e, "sum", x, axes, True), n)
    d = e("sub", x, mu)
    v = e("div", fold(e, "sum", e("mul", d, d), axes, True), n)
    return d, mu, v


def _affine(e: Emitter, y: Val, w: Val | None, b: Val | None, shape: Sequence | None) -> Val:
    """y * w + b; w and b are seen as `shape`."""
    for op, p in (("mul", w), ("add", b)):
        if p is not None:
            p = e.as_float(p)
            y = e(op, y, p if shape is None else reshape(e, p, shape))
    return y


def _rstd(e: Emitter, v: Val, eps: float) -> Val:
    return e("rsqrt", e("add", v, eps))


@row("native_layer_norm.default")
def layer_norm(
    e: Emitter, x: Val, normalized: Sequence, w: Val | None, b: Val | None, eps: float
) -> tuple:
    rank = len(x.shape)
    axes = list(range(rank - len(normalized), rank))
    d, mu, v = _centred(e, e.as_float(x), axes, x.shape)
    r = _rstd(e, v, eps)
    y = _affine(e, e("mul", d, r), w, b, None)
    out, mean, rstd = e.out
    return e.result(y, out.dtype), e.result(mu, mean.dtype), e.result(r, rstd.dtype)


@row("native_layer_norm_backward.default")
def layer_norm_backward(
    e: Emitter,
    grad: Val,
    x: Val,
    normalized: Sequence,
    mean: Val,
    rstd: Val,
    w: Val | None,
    b: Val | None,
    mask: Sequence[bool],
) -> tuple:
    rank = len(x.shape)
    inner = list(range(rank - len(normalized), rank))
    outer = list(range(rank - len(normalized)))
    grad, r = e.as_float(grad), e.as_float(rstd)
    xhat = e("mul", e("sub", e.as_float(x), e.as_float(mean)), r)
    dx = dw = db = None
    if mask[0]:
        g = grad if w is None else e("mul", grad, e.as_float(w))
        dx = _input_gradient(e, g, xhat, r, inner, x.shape)
    if mask[1]:
        dw = fold(e, "sum", e("mul", grad, xhat), outer, False)
    if mask[2]:
        db = fold(e, "sum", grad, outer, False)
    return _typed(e, dx, dw, db)


def _input_gradient(
    e: Emitter, g: Val, xhat: Val, r: Val, axes: Sequence[int], shape: Sequence
) -> Val:
    """r * (g - mean(g) - xhat * mean(g * xhat)) over the normalized axes."""
    n = count(e, shape, axes)
    mean_g = e("div", fold(e, "sum", g, axes, True), n)
    mean_gx = e("div", fold(e, "sum", e("mul", g, xhat), axes, True), n)
    inner = e("sub", e("sub", g, mean_g), e("mul", xhat, mean_gx))
    return e("mul", inner, r)


def _typed(e: Emitter, *values: Val | None) -> tuple:
    return tuple(
        None if v is None else e.result(v, fake.dtype)
        for v, fake in zip(values, e.out, strict=True)
    )


@row("_fused_rms_norm.default")
def rms_norm(e: Emitter, x: Val, normalized: Sequence, w: Val | None, eps: float | None) -> tuple:
    rank = len(x.shape)
    axes = list(range(rank - len(normalized), rank))
    if eps is None:
        eps = torch.finfo(torch.float32 if x.dtype in HALF else x.dtype).eps
    f = e.as_float(x)
    ms = e("div", fold(e, "sum", e("mul", f, f), axes, True), count(e, x.shape, axes))
    r = _rstd(e, ms, eps)
    y = _affine(e, e("mul", f, r), w, None, None)
    return _typed(e, y, r)


@row("_fused_rms_norm_backward.default")
def rms_norm_backward(
    e: Emitter,
    grad: Val,
    x: Val,
    normalized: Sequence,
    rstd: Val,
    w: Val | None,
    mask: Sequence[bool],
) -> tuple:
    rank = len(x.shape)
    inner = list(range(rank - len(normalized), rank))
    outer = list(range(rank - len(normalized)))
    grad, r = e.as_float(grad), e.as_float(rstd)
    xhat = e("mul", e.as_float(x), r)
    dx = dw = None
    if mask[0]:
        g = grad if w is None else e("mul", grad, e.as_float(w))
        n = count(e, x.shape, inner)
        mean_gx = e("div", fold(e, "sum", e("mul", g, xhat), inner, True), n)
        dx = e("mul", e("sub", g, e("mul", xhat, mean_gx)), r)
    if mask[1] and w is not None:
        dw = fold(e, "sum", e("mul", grad, xhat), outer, False)
    return _typed(e, dx, dw)


# ----------------------------------------------------------------------------- group norm


@row("native_group_norm.default")
def group_norm(
    e: Emitter,
    x: Val,
    w: Val | None,
    b: Val | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple:
    if not isinstance(c, int):
        raise Unsupported("channels known at run time only")
    shape = x.shape
    rows = (shape[0], groups, c // groups * _numel(shape[2:]))
    d, mu, v = _centred(e, reshape(e, e.as_float(x), rows), [2], rows)
    r = _rstd(e, v, eps)
    y = reshape(e, e("mul", d, r), shape)
    y = _affine(e, y, w, b, (c, *[1] * (len(shape) - 2)))
    out, mean, rstd = e.out
    return (
        e.result(y, out.dtype),
        e.result(reshape(e, mu, mean.shape), mean.dtype),
        e.result(reshape(e, r, rstd.shape), rstd.dtype),
    )


def _numel(shape: Sequence) -> Any:
    n: Any = 1
    for s in shape:
        n = n * s
    return n


@row("native_group_norm_backward.default")
def group_norm_backward(
    e: Emitter,
    grad: Val,
    x: Val,
    mean: Val,
    rstd: Val,
    w: Val | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple:
    if not isinstance(c, int):
        raise Unsupported("channels known at run time only")
    shape, batch = x.shape, x.shape[0]
    spatial = _numel(shape[2:])
    rows = (batch, groups, c // groups * spatial)
    grad = e.as_float(grad)
    stat = (batch, groups, 1)
    r = reshape(e, e.as_float(rstd), stat)
    mu = reshape(e, e.as_float(mean), stat)
    xhat = e("mul", e("sub", reshape(e, e.as_float(x), rows), mu), r)
    channel = (c, *[1] * (len(shape) - 2))
    dx = dw = db = None
    if mask[0]:
        g = grad if w is None else e("mul", grad, reshape(e, e.as_float(w), channel))
        dx = _input_gradient(e, reshape(e, g, rows), xhat, r, [2], rows)
        dx = reshape(e, dx, shape)
    others = [0, *range(2, len(shape))]
    if mask[1]:
        dw = fold(e, "sum", e("mul", grad, reshape(e, xhat, shape)), others, False)
    if mask[2]:
        db = fold(e, "sum", grad, others, False)
    return _typed(e, dx, dw, db)


# ----------------------------------------------------------------------------- batch norm


def _channels(shape: Sequence) -> tuple[list[int], list]:
    """Axes that a channel's statistics run over, and the shape of a channel vector beside x."""
    return [0, *range(2, len(shape))], [shape[1], *[1] * (len(shape) - 2)]


def _updated(e: Emitter, old: Val, new: Val, momentum: float) -> Val:
    return e("add", e("mul", new, momentum), e("mul", e.as_float(old), 1.0 - momentum))


def _batch_norm(
    e: Emitter,
    x: Val,
    w: Val | None,
    b: Val | None,
    mean: Val | None,
    var: Val | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Val, Val | None, Val | None, Val | None, Val | None]:
    """Result, saved mean and rstd, new running mean and variance."""
    axes, channel = _channels(x.shape)
    f = e.as_float(x)
    if not training:
        if mean is None or var is None:
            raise Unsupported("batch norm without statistics")
        mu, v = (reshape(e, e.as_float(p), channel) for p in (mean, var))
        y = e("mul", e("sub", f, mu), _rstd(e, v, eps))
        return _affine(e, y, w, b, channel), None, None, mean, var
    n = count(e, x.shape, axes)
    if not isinstance(n, int):
        raise Unsupported("batch statistics over a size known at run time only")
    d, mu, v = _centred(e, f, axes, x.shape)
    r = _rstd(e, v, eps)
    y = _affine(e, e("mul", d, r), w, b, channel)
    flat = (x.shape[1],)
    mu, v, r = (reshape(e, p, flat) for p in (mu, v, r))
    if mean is None or var is None:
        return y, mu, r, None, None
    unbiased = e("mul", v, n / (n - 1)) if n > 1 else v
    return y, mu, r, _updated(e, mean, mu, momentum), _updated(e, var, unbiased, momentum)


@row("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    e: Emitter,
    x: Val,
    w: Val | None,
    b: Val | None,
    mean: Val,
    var: Val,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple:
    if not training:
        raise Unsupported("batch norm in inference, functional form")
    return _typed(e, *_batch_norm(e, x, w, b, mean, var, training, momentum, eps))


@row("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    e: Emitter,
    x: Val,
    w: Val | None,
    b: Val | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple:
    return _typed(e, *_batch_norm(e, x, w, b, None, None, True, momentum, eps)[:3])


@row("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    e: Emitter,
    x: Val,
    w: Val | None,
    b: Val | None,
    mean: Val,
    var: Val,
    momentum: float,
    eps: float,
) -> tuple:
    y = _batch_norm(e, x, w, b, mean, var, False, momentum, eps)[0]
    nothing = [full(e, 0.0, t.shape, t.dtype) for t in e.out[1:]]
    return e.result(y, e.out[0].dtype), *nothing


@row("native_batch_norm_backward.default")
def batch_norm_backward(
    e: Emitter,
    grad: Val,
    x: Val,
    w: Val | None,
    mean: Val | None,
    var: Val | None,
    save_mean: Val | None,
    save_rstd: Val | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple:
    axes, channel = _channels(x.shape)
    grad = e.as_float(grad)
    if training:
        if save_mean is None or save_rstd is None:
            raise Unsupported("batch norm without saved statistics")
        mu, r = e.as_float(save_mean), e.as_float(save_rstd)
    else:
        if mean is None or var is None:
            raise Unsupported("batch norm without statistics")
        mu, r = e.as_float(mean), _rstd(e, e.as_float(var), eps)
    r = reshape(e, r, channel)
    xhat = e("mul", e("sub", e.as_float(x), reshape(e, mu, channel)), r)
    dx = dw = db = None
    if mask[0]:
        g = grad if w is None else e("mul", grad, reshape(e, e.as_float(w), channel))
        dx = _input_gradient(e, g, xhat, r, axes, x.shape) if training else e("mul", g, r)
    if mask[1]:
        dw = fold(e, "sum", e("mul", grad, xhat), axes, False)
    if mask[2]:
        db = fold(e, "sum", grad, axes, False)
    return _typed(e, dx, dw, db)
