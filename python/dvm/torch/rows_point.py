"""Rows of elementwise ops: result[i] depends on operand[i] only."""

from __future__ import annotations

import math
from typing import Any

import torch

from .fx import HALF, Emitter, Scalar, Unsupported, Val, name_of, promote, row
from .symbols import same_shape

_bool = torch.bool


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float, Scalar))


# ------------------------------------------------------------------------------- one operand

# ATen name -> builder name; integers and bools become the default float first, as in torch.
FLOAT_UNARY = {
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log1p": "log1p",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf",
}
# The dtype stays; on integers these are the identity.
ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round"}


def _float_unary(name: str) -> None:
    @row(name + ".default")
    def fn(e: Emitter, x: Val) -> Val:
        return e.pointwise(name, x)


def _rounding(name: str) -> None:
    @row(name + ".default")
    def fn(e: Emitter, x: Val) -> Val:
        return e.pointwise(name, x) if x.dtype.is_floating_point else e("copy", x)


for _name in FLOAT_UNARY:
    _float_unary(_name)
for _name in ROUNDING:
    _rounding(_name)


@row("neg.default", "negative.default")
def neg(e: Emitter, x: Val) -> Val:
    return e.pointwise("neg", x)


@row("abs.default")
def abs_(e: Emitter, x: Val) -> Val:
    return e("copy", x) if x.dtype is _bool else e.pointwise("abs", x)


@row("sign.default", "sgn.default")
def sign(e: Emitter, x: Val) -> Val:
    return e("copy", x) if x.dtype is _bool else e.pointwise("sign", x)


@row("relu.default")
def relu(e: Emitter, x: Val) -> Val:
    return e.pointwise("relu", x)


@row("square.default")
def square(e: Emitter, x: Val) -> Val:
    x = e.to(x, e.out.dtype)
    return e.pointwise("mul", x, x)


@row("frac.default")
def frac(e: Emitter, x: Val) -> Val:
    x = e.to(x, e.out.dtype)
    return e.pointwise("sub", x, e("trunc", x))


@row("isnan.default")
def isnan(e: Emitter, x: Val) -> Val:
    if not x.dtype.is_floating_point:
        return _constant(e, False)
    return e("isnan", e.to(x, x.dtype), dtype=_bool)


@row("isfinite.default")
def isfinite(e: Emitter, x: Val) -> Val:
    if not x.dtype.is_floating_point:
        return _constant(e, True)
    return e("less", e("abs", e.to(x, x.dtype)), math.inf, dtype=_bool)


@row("isinf.default")
def isinf(e: Emitter, x: Val) -> Val:
    if not x.dtype.is_floating_point:
        return _constant(e, False)
    return e("equal", e("abs", e.to(x, x.dtype)), math.inf, dtype=_bool)


def _constant(e: Emitter, value: Any) -> Val:
    return e("full", value, e.sizes(e.out.shape), e.out.dtype, dtype=e.out.dtype)


@row("logical_not.default")
def logical_not(e: Emitter, x: Val) -> Val:
    return e("logical_not", truth(e, x), dtype=_bool)


@row("bitwise_not.default")
def bitwise_not(e: Emitter, x: Val) -> Val:
    if x.dtype is _bool:
        return e("logical_not", x, dtype=_bool)
    return e.pointwise("bitwise_not", x)


def truth(e: Emitter, x: Val) -> Val:
    """x != 0 as bool."""
    return x if x.dtype is _bool else e("cast", e.rounded(x), _bool, dtype=_bool)


@row("clone.default", "lift_fresh_copy.default", "alias_copy.default")
def clone(e: Emitter, x: Val, memory_format: Any = None) -> Val:
    v = e("copy", x)
    v.dtype = x.dtype
    return v


@row("copy.default")
def copy(e: Emitter, into: Val, x: Val, non_blocking: bool = False) -> Val:
    """x in the shape and dtype of `into`, whose contents do not count."""
    e.forget_operand(0)
    v = e.rounded(e.cast(x, e.out.dtype)) if x.dtype is not e.out.dtype else e("copy", x)
    if same_shape(x.shape, e.out.shape):
        return v
    out = e("broadcast", v, e.sizes(e.out.shape))
    out.dtype, out.held = v.dtype, v.held
    return out


@row("_to_copy.default", "prims.convert_element_type.default")
def to_copy(
    e: Emitter,
    x: Val,
    dtype: torch.dtype | None = None,
    *,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Val:
    if layout not in (None, torch.strided) or pin_memory:
        raise Unsupported("copy to another layout or to pinned memory")
    if dtype is None or dtype is x.dtype:
        return e.rounded(x) if x.held is not x.dtype else e("copy", x)
    return e.cast(x, dtype)


# ------------------------------------------------------------------------------ two operands


def binary(e: Emitter, op: str, a: Any, b: Any) -> Val:
    """A binary op in the dtype of the node's result."""
    if e.out.dtype is _bool:
        raise Unsupported("arithmetic on bool")
    return e.pointwise(op, _like(e, a), _like(e, b))


def _like(e: Emitter, x: Any) -> Any:
    """A number as the node's dtype: an integer op truncates float numbers, as torch does."""
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, float) and not e.out.dtype.is_floating_point:
        return int(x)
    return x


def narrowed(x: Any, dtype: torch.dtype) -> Any:
    """A number as torch's CPU compares with it: in the tensor's own 16-bit dtype."""
    if isinstance(x, float) and dtype in HALF:
        return float(torch.tensor(x, dtype=dtype))
    return x


def scaled(e: Emitter, b: Any, alpha: Any) -> Any:
    if not isinstance(alpha, Scalar) and alpha == 1:
        return b
    if isinstance(b, Val):
        return binary(e, "mul", b, alpha)
    if isinstance(b, (int, float)) and isinstance(alpha, (int, float)):
        return b * alpha
    raise Unsupported("alpha and operand are both known at run time only")


def plus_scaled(e: Emitter, a: Any, b: Any, alpha: Any) -> Val:
    """a + alpha * b, rounded once, as torch's vectorized CPU kernel has it."""
    plain = isinstance(alpha, Scalar) or alpha == 1 or not isinstance(b, Val)
    if plain or not e.out.dtype.is_floating_point:
        return binary(e, "add", a, scaled(e, b, alpha))
    return e.pointwise("fma", b, float(alpha), a)


@row("prims.fma.default")
def fma(e: Emitter, a: Val, b: Any, c: Any) -> Val:
    return e.pointwise("fma", a, b, c)


@row("add.Tensor", "add.Scalar")
def add(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    if e.out.dtype is _bool:
        if alpha != 1:
            raise Unsupported("alpha on bool")
        return e("logical_or", a, b if isinstance(b, Val) else bool(b))
    return plus_scaled(e, a, b, alpha)


@row("sub.Tensor", "sub.Scalar")
def sub(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    if isinstance(alpha, Scalar) or alpha == 1:
        return binary(e, "sub", a, scaled(e, b, alpha))
    return plus_scaled(e, a, b, -alpha)


@row("rsub.Tensor", "rsub.Scalar")
def rsub(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    return binary(e, "sub", b, scaled(e, a, alpha))


@row("mul.Tensor", "mul.Scalar")
def mul(e: Emitter, a: Any, b: Any) -> Val:
    if e.out.dtype is _bool:
        return e("logical_and", a, b if isinstance(b, Val) else bool(b))
    return binary(e, "mul", a, b)


@row("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(e: Emitter, a: Any, b: Any) -> Val:
    return binary(e, "div", a, b)


@row("div.Tensor_mode", "div.Scalar_mode")
def div_mode(e: Emitter, a: Any, b: Any, rounding_mode: str | None = None) -> Val:
    if rounding_mode is None:
        return div(e, a, b)
    _no_zero_division(e, b)
    if rounding_mode == "floor":
        return binary(e, "floor_divide", a, b)
    if e.out.dtype.is_floating_point:
        return e.pointwise("trunc", binary(e, "div", a, b))
    return binary(e, "trunc_divide", a, b)


@row("floor_divide.default")
def floor_divide(e: Emitter, a: Any, b: Any) -> Val:
    _no_zero_division(e, b)
    return binary(e, "floor_divide", a, b)


@row("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(e: Emitter, a: Any, b: Any) -> Val:
    _no_zero_division(e, b)
    return binary(e, "remainder", narrowed(a, e.out.dtype), narrowed(b, e.out.dtype))


@row("fmod.Tensor", "fmod.Scalar")
def fmod(e: Emitter, a: Any, b: Any) -> Val:
    _no_zero_division(e, b)
    return binary(e, "fmod", a, narrowed(b, e.out.dtype))


def _no_zero_division(e: Emitter, b: Any) -> None:
    """torch raises ZeroDivisionError for integers; a kernel cannot, so only safe divisors pass."""
    if not e.out.dtype.is_floating_point and not (isinstance(b, (int, float)) and int(b) != 0):
        raise Unsupported("integer division by a tensor")


@row("maximum.default")
def maximum(e: Emitter, a: Val, b: Val) -> Val:
    if e.out.dtype is _bool:
        return e("logical_or", a, b)
    return binary(e, "maximum", a, b)


@row("minimum.default")
def minimum(e: Emitter, a: Val, b: Val) -> Val:
    if e.out.dtype is _bool:
        return e("logical_and", a, b)
    return binary(e, "minimum", a, b)


@row("pow.Tensor_Scalar")
def pow_scalar(e: Emitter, x: Val, c: Any) -> Val:
    """The special exponents of torch's CPU kernel first: they are exact where pow is not."""
    if isinstance(c, Scalar):
        raise Unsupported("exponent known at run time only")
    dtype = e.out.dtype
    x = e.to(x, dtype)
    if not dtype.is_floating_point:
        if dtype is _bool or c < 0:
            raise Unsupported("integer power")
        return e.pointwise("copy", x) if c == 1 else _int_power(e, x, int(c))
    if c == 0.5:
        return e.pointwise("sqrt", x)
    if c == 2:
        return e.pointwise("mul", x, x)
    if c == 3:
        return e.pointwise("mul", e("mul", x, x), x)
    if c == -2:
        return e.pointwise("reciprocal", e("mul", x, x))
    if c == -0.5:
        return e.pointwise("rsqrt", x)
    if c == -1:
        return e.pointwise("reciprocal", x)
    if c == 1:
        return e.pointwise("copy", x)
    return e.pointwise("pow", x, float(c))


def _int_power(e: Emitter, x: Val, c: int) -> Val:
    if c == 0:
        return _constant(e, 1)
    out: Val | None = None
    while True:
        if c & 1:
            out = x if out is None else e.pointwise("mul", out, x)
        c >>= 1
        if not c:
            return e("copy", out) if out is x else out
        x = e.pointwise("mul", x, x)


@row("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(e: Emitter, a: Any, b: Val) -> Val:
    if not e.out.dtype.is_floating_point:
        raise Unsupported("integer power")
    return binary(e, "pow", a, b)


COMPARE = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def _compare(aten: str, op: str) -> None:
    @row(aten + ".Tensor", aten + ".Scalar")
    def fn(e: Emitter, a: Any, b: Any) -> Val:
        t = promote(a, b)
        if t is _bool and op not in ("equal", "not_equal"):
            t = torch.int32
        a = e.to(a, t) if isinstance(a, Val) else a
        b = e.to(b, t) if isinstance(b, Val) else b
        if isinstance(b, float) and not t.is_floating_point:
            b = int(b)
        return e(op, a, narrowed(b, t), dtype=_bool)


for _name, _op in COMPARE.items():
    _compare(_name, _op)


def _logical(name: str, op: str) -> None:
    @row(name + ".default")
    def fn(e: Emitter, a: Val, b: Val) -> Val:
        return e(op, truth(e, a), truth(e, b), dtype=_bool)


_logical("logical_and", "logical_and")
_logical("logical_or", "logical_or")
_logical("logical_xor", "logical_xor")


def _bitwise(name: str, op: str, bool_op: str) -> None:
    @row(name + ".Tensor", name + ".Scalar")
    def fn(e: Emitter, a: Any, b: Any) -> Val:
        if e.out.dtype is _bool:
            return e(bool_op, a, b if isinstance(b, Val) else bool(b), dtype=_bool)
        return binary(e, op, a, b)


_bitwise("bitwise_and", "bitwise_and", "logical_and")
_bitwise("bitwise_or", "bitwise_or", "logical_or")
_bitwise("bitwise_xor", "bitwise_xor", "logical_xor")


# ---------------------------------------------------------------------------- three operands


@row("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(e: Emitter, cond: Val, a: Any, b: Any) -> Val:
    if cond.dtype is not _bool:
        raise Unsupported("condition that is not bool")
    return choose(e, cond, a, b)


def choose(e: Emitter, cond: Val, a: Any, b: Any) -> Val:
    """cond ? a : b in the node's dtype. Values are moved, not computed, so bf16 stays bf16."""
    dtype = e.out.dtype
    if dtype is _bool:
        a, b = (_bool_value(e, x) for x in (a, b))
        v = e("select", cond, a, b, dtype=_bool)
        return v
    a, b = (e.to(x, dtype) if isinstance(x, Val) else _like(e, x) for x in (a, b))
    if is_number(a) and is_number(b):
        a = e.number(a, e.compute(dtype))
    v = e("select", cond, a, b, dtype=e.compute(dtype))
    v.dtype = dtype
    return v


def _bool_value(e: Emitter, x: Any) -> Val:
    if isinstance(x, Val):
        return truth(e, x)
    return e.number(bool(x), _bool)


@row("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(e: Emitter, x: Val, mask: Val, value: Any) -> Val:
    if mask.dtype is not _bool:
        raise Unsupported("mask that is not bool")
    return choose(e, mask, value, x)


@row("clamp.default", "clamp.Tensor", "clip.default", "hardtanh.default")
def clamp(e: Emitter, x: Val, low: Any = None, high: Any = None) -> Val:
    if name_of(e.node).startswith("aten.hardtanh"):
        low, high = -1 if low is None else low, 1 if high is None else high
    if e.out.dtype is _bool:
        raise Unsupported("clamp of bool")
    if low is not None:
        x = e.pointwise("maximum", x, narrowed(_like(e, low), e.out.dtype))
    if high is not None:
        x = e.pointwise("minimum", x, narrowed(_like(e, high), e.out.dtype))
    return x


@row("clamp_min.default", "clamp_min.Tensor")
def clamp_min(e: Emitter, x: Val, low: Any) -> Val:
    return binary(e, "maximum", x, narrowed(low, e.out.dtype))


@row("clamp_max.default", "clamp_max.Tensor")
def clamp_max(e: Emitter, x: Val, high: Any) -> Val:
    return binary(e, "minimum", x, narrowed(high, e.out.dtype))


@row("addcmul.default")
def addcmul(e: Emitter, x: Val, a: Val, b: Val, value: Any = 1) -> Val:
    if not e.out.dtype.is_floating_point:
        return binary(e, "add", x, binary(e, "mul", scaled(e, a, value), b))
    return e.pointwise("fma", scaled(e, a, value), b, x)


@row("addcdiv.default")
def addcdiv(e: Emitter, x: Val, a: Val, b: Val, value: Any = 1) -> Val:
    return binary(e, "add", x, binary(e, "div", scaled(e, a, value), b))


@row("lerp.Scalar", "lerp.Tensor")
def lerp(e: Emitter, a: Val, b: Val, w: Any) -> Val:
    """torch's form: from the nearer end, so that both ends are exact, and rounded once."""
    if isinstance(w, Scalar):
        raise Unsupported("weight known at run time only")
    d = binary(e, "sub", b, a)
    if isinstance(w, (int, float)):
        return (
            e.pointwise("fma", d, float(w), a)
            if abs(w) < 0.5
            else e.pointwise("fma", d, w - 1.0, b)
        )
    near = e("less", e("abs", e.to(w, e.out.dtype)), 0.5, dtype=_bool)
    step = choose(e, near, w, binary(e, "sub", w, 1))
    return e.pointwise("fma", step, d, choose(e, near, a, b))


# ------------------------------------------------------------------------------- activations


@row("silu.default")
def silu(e: Emitter, x: Val) -> Val:
    x = e.to(x, e.out.dtype)
    return e.pointwise("mul", x, e("sigmoid", x))


@row("silu_backward.default")
def silu_backward(e: Emitter, grad: Val, x: Val) -> Val:
    grad, x = e.to(grad, e.out.dtype), e.to(x, e.out.dtype)
    s = e("sigmoid", x)
    inner = e("add", e("mul", x, e("sub", 1.0, s)), 1.0)
    return e.pointwise("mul", e("mul", grad, s), inner)


@row("sigmoid_backward.default")
def sigmoid_backward(e: Emitter, grad: Val, y: Val) -> Val:
    grad, y = e.to(grad, e.out.dtype), e.to(y, e.out.dtype)
    return e.pointwise("mul", grad, e("mul", e("sub", 1.0, y), y))


@row("tanh_backward.default")
def tanh_backward(e: Emitter, grad: Val, y: Val) -> Val:
    grad, y = e.to(grad, e.out.dtype), e.to(y, e.out.dtype)
    return e.pointwise("mul", grad, e("sub", 1.0, e("mul", y, y)))


@row("threshold_backward.default")
def threshold_backward(e: Emitter, grad: Val, x: Val, threshold: Any) -> Val:
    t = promote(x, threshold)
    return choose(e, e("less_equal", e.to(x, t), threshold, dtype=_bool), 0, grad)


@row("threshold.default")
def threshold_(e: Emitter, x: Val, threshold: Any, value: Any) -> Val:
    return choose(e, e("less_equal", e.to(x, x.dtype), threshold, dtype=_bool), value, x)


_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_PI = math.sqrt(2 / math.pi)


@row("gelu.default")
def gelu(e: Emitter, x: Val, approximate: str = "none") -> Val:
    x = e.to(x, e.out.dtype)
    half = e("mul", x, 0.5)
    exact = approximate == "none"
    t = e("erf", e("mul", x, _SQRT_HALF)) if exact else e("tanh", _gelu_inner(e, x))
    return e.pointwise("mul", half, e("add", t, 1.0))


def _gelu_inner(e: Emitter, x: Val) -> Val:
    cube = e("mul", e("mul", x, x), x)
    return e("mul", e("add", x, e("mul", cube, 0.044715)), _SQRT_2_PI)


@row("gelu_backward.default")
def gelu_backward(e: Emitter, grad: Val, x: Val, approximate: str = "none") -> Val:
    grad, x = e.to(grad, e.out.dtype), e.to(x, e.out.dtype)
    if approximate == "none":
        cdf = e("mul", e("add", e("erf", e("mul", x, _SQRT_HALF)), 1.0), 0.5)
        density = e("mul", e("exp", e("mul", e("mul", x, x), -0.5)), _SQRT_2_PI / 2)
        return e.pointwise("mul", grad, e("add", cdf, e("mul", x, density)))
    t = e("tanh", _gelu_inner(e, x))
    left = e("mul", e("add", t, 1.0), 0.5)
    slope = e("mul", e("add", e("mul", e("mul", x, x), 3 * 0.044715), 1.0), _SQRT_2_PI)
    right = e("mul", e("mul", e("sub", 1.0, e("mul", t, t)), e("mul", x, 0.5)), slope)
    return e.pointwise("mul", grad, e("add", left, right))


@row("leaky_relu.default")
def leaky_relu(e: Emitter, x: Val, slope: Any = 0.01) -> Val:
    x = e.to(x, e.out.dtype)
    return choose(e, e("greater", x, 0.0, dtype=_bool), x, e("mul", x, slope))


@row("leaky_relu_backward.default")
def leaky_relu_backward(e: Emitter, grad: Val, x: Val, slope: Any, is_result: bool) -> Val:
    grad, x = e.to(grad, e.out.dtype), e.to(x, e.out.dtype)
    positive = e("greater", x, 0.0, dtype=_bool)
    return choose(e, positive, grad, e("mul", grad, slope))


@row("hardshrink_backward.default", "softshrink_backward.default")
def shrink_backward(e: Emitter, grad: Val, x: Val, width: Any) -> Val:
    inside = e("less_equal", e("abs", e.to(x, x.dtype)), float(width), dtype=_bool)
    return choose(e, inside, 0, grad)


@row("hardtanh_backward.default")
def hardtanh_backward(e: Emitter, grad: Val, x: Val, low: Any, high: Any) -> Val:
    x = e.to(x, x.dtype)
    outside = e(
        "logical_or",
        e("less_equal", x, low, dtype=_bool),
        e("greater_equal", x, high, dtype=_bool),
        dtype=_bool,
    )
    return choose(e, outside, 0, grad)


@row("elu.default")
def elu(e: Emitter, x: Val, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Val:
    x = e.to(x, e.out.dtype)
    low = e("mul", e("expm1", _times(e, x, input_scale)), float(alpha) * float(scale))
    negative = e("less_equal", x, 0.0, dtype=_bool)
    return choose(e, negative, low, _times(e, x, scale))


@row("elu_backward.default")
def elu_backward(
    e: Emitter, grad: Val, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Val
) -> Val:
    grad, x = e.to(grad, e.out.dtype), e.to(x, e.out.dtype)
    negative = e("less_equal", x, 0.0, dtype=_bool)
    a = float(alpha) * float(scale)
    if is_result:
        low = e("mul", e("mul", grad, float(input_scale)), e("add", x, a))
    else:
        low = e("mul", grad, e("mul", e("exp", _times(e, x, input_scale)), float(input_scale) * a))
    return choose(e, negative, low, _times(e, grad, scale))


@row("softplus.default")
def softplus(e: Emitter, x: Val, beta: Any = 1, threshold: Any = 20) -> Val:
    x = e.to(x, e.out.dtype)
    bx = _times(e, x, beta)
    low = e("log1p", e("exp", bx))
    if beta != 1:
        low = e("div", low, float(beta))
    return choose(e, e("greater", bx, float(threshold), dtype=_bool), x, low)


@row("softplus_backward.default")
def softplus_backward(e: Emitter, grad: Val, x: Val, beta: Any, threshold: Any) -> Val:
    grad, x = e.to(grad, e.out.dtype), e.to(x, e.out.dtype)
    bx = _times(e, x, beta)
    low = e("mul", grad, e("sigmoid", bx))
    return choose(e, e("greater", bx, float(threshold), dtype=_bool), grad, low)


def _times(e: Emitter, x: Val, c: Any) -> Val:
    return x if c == 1 else e("mul", x, float(c))


@row("native_dropout_backward.default")
def native_dropout_backward(e: Emitter, grad: Val, mask: Val, scale: Any) -> Val:
    return binary(e, "mul", binary(e, "mul", grad, mask), scale)


@row("mse_loss_backward.default")
def mse_loss_backward(e: Emitter, grad: Val, x: Val, target: Val, reduction: int) -> Val:
    d = binary(e, "mul", binary(e, "mul", binary(e, "sub", x, target), 2), grad)
    return binary(e, "div", d, e.numel(x.shape)) if reduction == 1 else d
