"""The operations of the kernel language: methods that record one line each, and the functions that
build a line in the C graph.

Rules that hold everywhere. Tensor operands of one operation have one dtype; the result has the
dtype of the left one; comparisons give bool. Numbers and ScalarRefs take the dtype of the tensor:
an int32 tensor plus 2.7 adds 2. Operands broadcast as in numpy. What the original language refuses
(integer division, integer reductions, mixed ranks) means what it means in PyTorch.

Errors: DTypeError and ShapeError name the operands and the line of the user's file.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import _dvm
from _dvm import ArgumentError, DTypeError, ShapeError, UnsupportedError

from .attn import (  # noqa: F401 functions on data, reached as dvm.ops.swa_forward
    npu_fusion_attention,
    npu_fusion_attention_grad,
    swa_backward,
    swa_forward,
)
from .record import (
    Dim,
    NDObject,
    ScalarRef,
    choice,
    is_number,
    lower_dim,
    lower_dims,
    rank_of,
    shape_arg,
    sizes_of,
    truth,
    value_of,
)
from .types import DataType, bool_, dtype_of, float16, float32, int32, int64

# x ** c with an integer |c| up to this becomes multiplications.
LARGEST_EXPANDED_POWER = 128

_OP = {name[3:]: n for name, n in vars(_dvm).items() if name.startswith("OP_")}
_F16, _F32, _I32, _I64, _BOOL = (t.code for t in (float16, float32, int32, int64, bool_))


# ------------------------------------------------------------------------------- building functions
# Each takes the graph and recorded arguments and returns a _dvm.Value.


def _operand(g: Any, x: Any, code: int) -> Any:
    """A recorded operand; numbers become constants of the dtype."""
    if type(x) is NDObject or type(x) is ScalarRef:
        return value_of(x)
    return g.const(code, x)


def low_unary(g: Any, op: int, x: NDObject) -> Any:
    return g.op(op, value_of(x))


def low_tensors(g: Any, op: int, a: NDObject, b: NDObject) -> Any:
    return g.op(op, value_of(a), value_of(b))


def low_mixed(g: Any, op: int, code: int, *xs: Any) -> Any:
    return g.op(op, *[_operand(g, x, code) for x in xs])


def low_as(g: Any, op: int, code: int, back: int, *xs: Any) -> Any:
    """Operands cast to a dtype, the result cast to another."""
    vs = [g.cast(value_of(x), code) if type(x) is NDObject else _operand(g, x, code) for x in xs]
    return g.cast(g.op(op, *vs), back)


def low_not_number(g: Any, code: int, x: NDObject) -> Any:
    return g.op(_OP["sub"], g.const(code, 1), value_of(x))


def low_power(g: Any, code: int, x: NDObject, n: int) -> Any:
    """Repeated squaring: floor(log2 n) + popcount(n) - 1 multiplications."""
    v = value_of(x)
    if n == 0:
        return g.broadcast(g.const(code, 1), sizes_of(g, v))
    left, square, result = abs(n), v, None
    while True:
        if left & 1:
            result = square if result is None else g.op(_OP["mul"], result, square)
        left >>= 1
        if not left:
            break
        square = g.op(_OP["mul"], square, square)
    if abs(n) == 1:
        result = g.op(_OP["copy"], result)
    return g.op(_OP["reciprocal"], result) if n < 0 else result


def low_select(g: Any, test: int, code: int, cond: NDObject, a: Any, b: Any) -> Any:
    c = value_of(cond)
    if test != _BOOL:
        c = g.op(_OP["not_equal"], g.cast(c, test), g.const(test, 0))
    return g.op(_OP["select"], c, _operand(g, a, code), _operand(g, b, code))


def low_clamp(g: Any, code: int, x: NDObject, low: Any, high: Any) -> Any:
    v = value_of(x)
    if low is not None:
        v = g.op(_OP["maximum"], v, _operand(g, low, code))
    if high is not None:
        v = g.op(_OP["minimum"], v, _operand(g, high, code))
    return v


def low_cast(g: Any, x: NDObject | ScalarRef, code: int) -> Any:
    return g.cast(value_of(x), code)


def low_isfinite(g: Any, x: NDObject, code: int) -> Any:
    return g.cast(g.op(_OP["isfinite"], value_of(x)), code)


def low_ones(g: Any, x: NDObject, code: int) -> Any:
    """1 everywhere, in the shape of x: integers are finite."""
    v = value_of(x)
    return g.cast(g.op(_OP["equal"], v, v), code)


def value_of_in(g: Any, ref: ScalarRef) -> Any:
    return value_of(ref)


def low_full(g: Any, value: Any, shape: Any, code: int) -> Any:
    v = g.cast(value_of(value), code) if isinstance(value, ScalarRef) else g.const(code, value)
    return g.broadcast(v, lower_dims(g, shape))


def low_iota(g: Any, shape: Any, axis: int, code: int, back: int) -> Any:
    v = g.iota(code, lower_dims(g, shape), axis)
    return v if code == back else g.cast(v, back)


def low_random(g: Any, shape: Any, seed: Any, offset: Any, uniform: bool) -> Any:
    dims = lower_dims(g, shape) or (1,)
    index = g.iota(_I64, dims, 0)
    for axis in range(1, len(dims)):
        step = g.iota(_I64, dims, axis)
        index = g.op(_OP["add"], g.op(_OP["mul"], index, g.size(step, [axis])), step)
    key, first = _operand(g, seed, _I64), _operand(g, offset, _I64)
    v = g.op(_OP["philox"], key, first, index)
    if uniform:  # the upper 24 bits: every multiple of 2^-24 below 1
        high = g.op(_OP["shr"], v, g.const(_I64, 8))
        v = g.op(_OP["mul"], g.cast(high, _F32), g.const(_F32, 2.0**-24))
    return g.reshape(v, lower_dims(g, shape))


def low_broadcast(g: Any, x: NDObject, shape: Any) -> Any:
    return g.broadcast(value_of(x), lower_dims(g, shape))


def low_reshape(g: Any, x: NDObject, shape: Any) -> Any:
    return g.reshape(value_of(x), lower_dims(g, shape))


def low_permute(g: Any, x: NDObject, axes: Any) -> Any:
    return g.permute(value_of(x), lower_dims(g, axes))


def low_transpose(g: Any, x: NDObject, a: int, b: int) -> Any:
    v = value_of(x)
    axes = list(range(rank_of(v)))
    a, b = _axis("transpose", a, len(axes)), _axis("transpose", b, len(axes))
    axes[a], axes[b] = axes[b], axes[a]
    return g.permute(v, axes)


def low_slice(g: Any, x: NDObject, start: Any, size: Any, step: Any) -> Any:
    return g.slice(value_of(x), lower_dims(g, start), lower_dims(g, size), step)


def low_slice_dim(g: Any, x: NDObject, axis: int, begin: Any, end: Any, step: int) -> Any:
    v = value_of(x)
    return _cut(g, v, _axis("slice_dim", axis, rank_of(v)), begin, end, step)


def _cut(g: Any, v: Any, axis: int, begin: Any, end: Any, step: int) -> Any:
    """v[begin:end:step] along an axis, bounds as in Python."""
    rank, size = rank_of(v), v.shape[axis]
    start, count, steps = [0] * rank, [-1] * rank, [1] * rank
    if size >= 0 and _plain(begin) and _plain(end):
        part = range(size)[begin:end:step]
        start[axis], count[axis] = (part.start if len(part) else 0), len(part)
    else:
        if step != 1:
            raise UnsupportedError("a step with bounds or sizes known at run time only")
        whole = size if size >= 0 else g.dim_of(v, axis)
        low = _bound(g, begin, whole, 0)
        high = _bound(g, end, whole, whole)
        start[axis] = low
        count[axis] = g.dim_op(Dim.OPS["max"], g.dim_op(Dim.OPS["sub"], high, low), 0)
    steps[axis] = step
    return g.slice(v, start, count, steps)


def _plain(bound: Any) -> bool:
    return bound is None or type(bound) is int


def _bound(g: Any, bound: Any, size: int, default: int) -> int:
    """A slice bound as a dimension in [0, size]; negative ones count from the end."""
    if bound is None:
        return default
    if type(bound) is int:
        d = bound if bound >= 0 else g.dim_op(Dim.OPS["add"], size, bound)
    else:
        d = lower_dim(g, bound)
        sign = g.dim_op(Dim.OPS["floordiv"], d, 1 << 40)  # -1 below 0, else 0
        d = g.dim_op(Dim.OPS["sub"], d, g.dim_op(Dim.OPS["mul"], size, sign))
    return g.dim_op(Dim.OPS["max"], g.dim_op(Dim.OPS["min"], d, size), 0)


def low_strided_slice(g: Any, x: NDObject, start: Any, end: Any, step: Any) -> Any:
    v = value_of(x)
    starts, ends, steps = lower_dims(g, start), lower_dims(g, end), lower_dims(g, step)
    for axis, (a, b, s) in enumerate(zip(starts, ends, steps, strict=True)):
        v = _cut(g, v, axis, a, b, s)
    return v


def low_reduce(g: Any, op: int, x: NDObject, dims: Any, keep: bool, code: int) -> Any:
    return g.reduce(op, value_of(x), lower_dims(g, dims), keep, code)


def low_truth(g: Any, op: int, x: NDObject, dims: Any, keep: bool) -> Any:
    v = value_of(x)
    if x._dtype is not bool_:
        v = g.op(_OP["not_equal"], v, g.const(x._dtype.code, 0))
    return g.reduce(op, v, lower_dims(g, dims), keep, _BOOL)


def low_bool_reduce(g: Any, op: int, x: NDObject, dims: Any, keep: bool) -> Any:
    return g.reduce(op, value_of(x), lower_dims(g, dims), keep, _BOOL)


def low_arg(g: Any, op: int, x: NDObject, dim: int | None, keep: bool) -> Any:
    return g.reduce(op, value_of(x), () if dim is None else (dim,), keep, _I64)


def _count(g: Any, v: Any, axes: Sequence[int]) -> Any:
    """The number of reduced elements as a float32 constant or scalar."""
    shape = v.shape
    if shape is not None and all(d >= 0 for d in shape):
        n = 1
        for d in [shape[a] for a in axes] if axes else shape:
            n *= d
        return g.const(_F32, n)
    return g.cast(g.size(v, axes), _F32)


def _mean(g: Any, v: Any, axes: Sequence[int], keep: bool) -> Any:
    total = g.reduce(_OP["sum"], v, axes, keep, _F32)
    return g.op(_OP["div"], total, _count(g, v, axes))


def low_mean(g: Any, x: NDObject, dims: Any, keep: bool, code: int) -> Any:
    return g.cast(_mean(g, g.cast(value_of(x), _F32), lower_dims(g, dims), keep), code)


def low_var(
    g: Any, x: NDObject, dims: Any, keep: bool, correction: float, code: int, kind: str
) -> Any:
    """Two passes: the mean, then the mean of centred squares. kind: var, std or mean."""
    v, axes = g.cast(value_of(x), _F32), lower_dims(g, dims)
    if kind == "mean":
        return g.cast(_mean(g, v, axes, keep), code)
    d = g.op(_OP["sub"], v, _mean(g, v, axes, True))
    total = g.reduce(_OP["sum"], g.op(_OP["mul"], d, d), axes, keep, _F32)
    n = _count(g, v, axes)
    if correction:
        n = g.op(_OP["maximum"], g.op(_OP["sub"], n, g.const(_F32, correction)), g.const(_F32, 0))
    v = g.op(_OP["div"], total, n)
    return g.cast(g.op(_OP["sqrt"], v) if kind == "std" else v, code)


def low_cumsum(g: Any, x: NDObject, axis: int, code: int) -> Any:
    v = value_of(x)
    if x._dtype.code != code:
        v = g.cast(v, code)
    rank = rank_of(v)
    axis = _axis("cumsum", axis, rank)
    if axis == rank - 1:
        return g.cumsum(v)
    axes = list(range(rank))
    axes[axis], axes[-1] = axes[-1], axes[axis]
    return g.permute(g.cumsum(g.permute(v, axes)), axes)


def low_one_hot(
    g: Any, index: NDObject, depth: int, axis: int, on: Any, off: Any, code: int
) -> Any:
    v = value_of(index)
    rank = rank_of(v)
    axis = _axis("one_hot", axis, rank + 1)
    sizes = sizes_of(g, v)
    classes = g.iota(index._dtype.code, [depth], 0)
    hit = g.op(
        _OP["equal"],
        g.reshape(v, [*sizes[:axis], 1, *sizes[axis:]]),
        g.reshape(classes, [depth] + [1] * (rank - axis)),
    )
    return g.op(_OP["select"], hit, g.const(code, on), g.const(code, off))


def low_element_any(g: Any, x: NDObject) -> Any:
    v = value_of(x)
    if x._dtype is not bool_:
        v = g.op(_OP["not_equal"], v, g.const(x._dtype.code, 0))
    return g.reshape(g.cast(g.reduce(_OP["any"], v, (), False, _BOOL), _F32), [1])


def low_gather(g: Any, x: NDObject, index: NDObject, axis: int, mode: int) -> Any:
    return g.gather(value_of(x), value_of(index), axis, mode)


def low_matmul(
    g: Any, a: NDObject, b: NDObject, ta: bool, tb: bool, bias: NDObject | None, code: int
) -> Any:
    return g.matmul(
        value_of(a), value_of(b), ta, tb, None if bias is None else value_of(bias), code
    )


def low_grouped_matmul(
    g: Any,
    a: NDObject,
    b: NDObject,
    ta: bool,
    tb: bool,
    bias: NDObject | None,
    groups: NDObject,
    group: int,
    kind: int,
    code: int,
) -> Any:
    bias = None if bias is None else value_of(bias)
    return g.grouped_matmul(
        value_of(a), value_of(b), ta, tb, bias, value_of(groups), group, kind, code
    )


def low_concat(g: Any, xs: Sequence[NDObject], axis: int) -> Any:
    return g.concat([value_of(x) for x in xs], axis)


def low_stack(g: Any, xs: Sequence[NDObject], axis: int) -> Any:
    vs = [value_of(x) for x in xs]
    axis = _axis("stack", axis, rank_of(vs[0]) + 1)
    wide = []
    for v in vs:
        sizes = sizes_of(g, v)
        wide.append(g.reshape(v, [*sizes[:axis], 1, *sizes[axis:]]))
    return g.concat(wide, axis)


def low_pad(g: Any, v: Any, pads: Sequence[int], code: int) -> Any:
    """Zeros behind the last axes, pads aligned at the right."""
    rank = rank_of(v)
    if len(pads) > rank:
        raise ShapeError(f"{len(pads)} pads for a value of rank {rank}")
    for axis, pad in zip(range(rank - len(pads), rank), pads, strict=True):
        if pad:
            sizes = sizes_of(g, v)
            sizes[axis] = pad
            v = g.concat([v, g.broadcast(g.const(code, 0), sizes)], axis)
    return v


def _axis(what: str, axis: Any, rank: int) -> int:
    try:
        axis = operator.index(axis)
    except TypeError:
        raise ArgumentError(f"in {what}: an axis is an integer, given {axis!r}") from None
    if not -rank <= axis < rank:
        raise ShapeError(f"in {what}: axis {axis} is out of range for rank {rank}")
    return axis % rank


# ------------------------------------------------------------------------------------------ methods

_REDUCTIONS = ("sum", "prod", "max", "min", "amax", "amin", "any", "all", "mean", "var", "std")
_UNARY_NAMES = {
    "Sqrt": "sqrt", "Abs": "abs", "Log": "log", "Exp": "exp", "Reciprocal": "reciprocal",
    "IsFinite": "isfinite", "LogicalNot": "logical_not", "Round": "round", "Floor": "floor",
    "Ceil": "ceil", "Trunc": "trunc", "Neg": "neg", "Rsqrt": "rsqrt", "Tanh": "tanh",
}  # fmt: skip
_BINARY_NAMES = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Maximum": "maximum",
    "Minimum": "minimum", "Equal": "equal", "NotEqual": "not_equal", "Less": "less",
    "LessEqual": "less_equal", "Greater": "greater", "GreaterEqual": "greater_equal",
    "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
}  # fmt: skip


class Operations:
    """Operations of a kernel under construction; Kernel derives from this."""

    _emit: Callable[..., NDObject]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name, name=name)
        near = difflib.get_close_matches(name, [n for n in dir(type(self)) if n[0] != "_"], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise AttributeError(f"a kernel has no operation {name!r}{hint}", name=name)

    # ---------------------------------------------------------------- operands

    def _tensor(self, what: str, x: Any) -> NDObject:
        if type(x) is NDObject:
            if x._k is not self:
                raise _dvm.ForeignValueError(f"{what}: the operand is a value of another kernel")
            return x
        if isinstance(x, ScalarRef):
            self._use(x)
            return self._emit("scalar", x.dtype(), value_of_in, x)
        raise ArgumentError(f"{what}: expected a value of the kernel, given {x!r}")

    def _scalar(self, what: str, x: Any) -> Any:
        """A number or a reference that stands beside a tensor."""
        if isinstance(x, ScalarRef):
            self._use(x)
            return x
        if is_number(x):
            return x if isinstance(x, (int, float)) else x.item() if hasattr(x, "item") else x
        raise ArgumentError(f"{what}: expected a value of the kernel or a number, given {x!r}")

    def _use(self, ref: ScalarRef) -> None:
        raise NotImplementedError

    def _pair(self, what: str, a: Any, b: Any) -> tuple[Any, Any, DataType]:
        """Two operands, one of them a tensor, and the dtype of the operation."""
        ta, tb = type(a) is NDObject, type(b) is NDObject
        if ta and tb:
            if a._k is not self or b._k is not self:
                raise _dvm.ForeignValueError(f"{what}: an operand is a value of another kernel")
            return a, b, a._dtype
        if ta:
            self._tensor(what, a)
            return a, self._scalar(what, b), a._dtype
        if tb:
            self._tensor(what, b)
            return self._scalar(what, a), b, b._dtype
        if isinstance(a, ScalarRef):
            return self._pair(what, self._tensor(what, a), b)
        if isinstance(b, ScalarRef):
            return self._pair(what, a, self._tensor(what, b))
        raise ArgumentError(f"{what}: one operand must be a value, given {a!r} and {b!r}")

    # ---------------------------------------------------------------- one operand

    def unary(self, name: str, x: NDObject) -> NDObject:
        """The operation of an older name: "Sqrt", "Abs", "IsFinite", ... or a method's name."""
        return _named(self, _UNARY_NAMES, name)(x)

    def _float_unary(self, name: str, x: Any) -> NDObject:
        x = self._tensor(name, x)
        t, op = x._dtype, _OP[name]
        if t is bool_:  # computed as fp16, as in the original
            return self._emit(name, t, low_as, op, _F16, _BOOL, x)
        if t is int32 or t is int64:
            return self._emit(name, float32, low_as, op, _F32, _F32, x)
        return self._emit(name, t, low_unary, op, x)

    def _number_unary(self, name: str, x: Any, identity_on_bool: bool = True) -> NDObject:
        x = self._tensor(name, x)
        if x._dtype is bool_ and identity_on_bool:
            return self.copy(x)
        return self._emit(name, x._dtype, low_unary, _OP[name], x)

    def _rounding(self, name: str, x: Any) -> NDObject:
        x = self._tensor(name, x)
        if not x._dtype.is_float:
            return self.copy(x)
        return self._emit(name, x._dtype, low_unary, _OP[name], x)

    def sqrt(self, x: NDObject) -> NDObject:
        """Square root. Integers give float32."""
        return self._float_unary("sqrt", x)

    def rsqrt(self, x: NDObject) -> NDObject:
        """1 / sqrt(x)."""
        return self._float_unary("rsqrt", x)

    def reciprocal(self, x: NDObject) -> NDObject:
        """1 / x."""
        return self._float_unary("reciprocal", x)

    def exp(self, x: NDObject) -> NDObject:
        """e to the power x."""
        return self._float_unary("exp", x)

    def exp2(self, x: NDObject) -> NDObject:
        """2 to the power x."""
        return self._float_unary("exp2", x)

    def expm1(self, x: NDObject) -> NDObject:
        """exp(x) - 1, accurate near 0."""
        return self._float_unary("expm1", x)

    def log(self, x: NDObject) -> NDObject:
        """Natural logarithm."""
        return self._float_unary("log", x)

    def log2(self, x: NDObject) -> NDObject:
        """Logarithm to base 2."""
        return self._float_unary("log2", x)

    def log1p(self, x: NDObject) -> NDObject:
        """log(1 + x), accurate near 0."""
        return self._float_unary("log1p", x)

    def sin(self, x: NDObject) -> NDObject:
        """Sine of radians."""
        return self._float_unary("sin", x)

    def cos(self, x: NDObject) -> NDObject:
        """Cosine of radians."""
        return self._float_unary("cos", x)

    def tanh(self, x: NDObject) -> NDObject:
        """Hyperbolic tangent."""
        return self._float_unary("tanh", x)

    def sigmoid(self, x: NDObject) -> NDObject:
        """1 / (1 + exp(-x))."""
        return self._float_unary("sigmoid", x)

    def erf(self, x: NDObject) -> NDObject:
        """Error function."""
        return self._float_unary("erf", x)

    def abs(self, x: NDObject) -> NDObject:
        """|x|; the smallest integer stays itself."""
        return self._number_unary("abs", x)

    def neg(self, x: NDObject) -> NDObject:
        """-x."""
        return self._number_unary("neg", x)

    def sign(self, x: NDObject) -> NDObject:
        """-1, 0 or 1; 0 for NaN, as torch has it (numpy keeps NaN)."""
        return self._number_unary("sign", x)

    def relu(self, x: NDObject) -> NDObject:
        """max(x, 0); NaN stays NaN."""
        return self._number_unary("relu", x)

    def round(self, x: NDObject) -> NDObject:
        """Nearest integer, ties to even."""
        return self._rounding("round", x)

    def floor(self, x: NDObject) -> NDObject:
        """Largest integer not above x."""
        return self._rounding("floor", x)

    def ceil(self, x: NDObject) -> NDObject:
        """Smallest integer not below x."""
        return self._rounding("ceil", x)

    def trunc(self, x: NDObject) -> NDObject:
        """Integer part."""
        return self._rounding("trunc", x)

    def isfinite(self, x: NDObject) -> NDObject:
        """1 where x is neither infinite nor NaN, else 0, **in the dtype of x**."""
        x = self._tensor("isfinite", x)
        if not x._dtype.is_float:
            return self._emit("isfinite", x._dtype, low_ones, x, x._dtype.code)
        return self._emit("isfinite", x._dtype, low_isfinite, x, x._dtype.code)

    is_finite = isfinite

    def isnan(self, x: NDObject) -> NDObject:
        """bool: x is NaN."""
        x = self._tensor("isnan", x)
        return self._emit("isnan", bool_, low_unary, _OP["isnan"], x)

    def logical_not(self, x: NDObject) -> NDObject:
        """1 - x: meant for 0 and 1; the dtype stays."""
        x = self._tensor("logical_not", x)
        if x._dtype is bool_:
            return self._emit("logical_not", bool_, low_unary, _OP["not"], x)
        return self._emit("logical_not", x._dtype, low_not_number, x._dtype.code, x)

    def bitwise_not(self, x: NDObject) -> NDObject:
        """Complement of integers; logical for bool."""
        x = self._tensor("bitwise_not", x)
        return self._emit("bitwise_not", x._dtype, low_unary, _OP["not"], x)

    def copy(self, x: NDObject) -> NDObject:
        """x as a value of its own."""
        x = self._tensor("copy", x)
        return self._emit("copy", x._dtype, low_unary, _OP["copy"], x)

    # ---------------------------------------------------------------- two operands

    def binary(self, name: str, x: Any, y: Any) -> NDObject:
        """The operation of an older name: "Add", "LessEqual", ... or a method's name."""
        return _named(self, _BINARY_NAMES, name)(x, y)

    def _arithmetic(self, name: str, a: Any, b: Any, bool_direct: bool = False) -> NDObject:
        a, b, t = self._pair(name, a, b)
        op = _OP[name]
        if type(a) is NDObject and type(b) is NDObject:
            return self._emit(name, t, low_tensors, op, a, b)
        if t is bool_ and not bool_direct:  # computed as fp16, as in the original
            return self._emit(name, t, low_as, op, _F16, _BOOL, a, b)
        return self._emit(name, t, low_mixed, op, t.code, a, b)

    def add(self, x: Any, y: Any) -> NDObject:
        """x + y; integers wrap."""
        return self._arithmetic("add", x, y)

    def sub(self, x: Any, y: Any) -> NDObject:
        """x - y; integers wrap."""
        return self._arithmetic("sub", x, y)

    def mul(self, x: Any, y: Any) -> NDObject:
        """x * y; integers wrap."""
        return self._arithmetic("mul", x, y)

    def div(self, x: Any, y: Any) -> NDObject:
        """x / y. Integers give float32."""
        x, y, t = self._pair("div", x, y)
        if t is int32 or t is int64:
            return self._emit("div", float32, low_as, _OP["div"], _F32, _F32, x, y)
        if t is bool_:
            return self._emit("div", t, low_as, _OP["div"], _F16, _BOOL, x, y)
        return self._arithmetic("div", x, y)

    def _integral(self, name: str, x: Any, y: Any) -> NDObject:
        x, y, t = self._pair(name, x, y)
        if t is bool_:
            return self._emit(name, t, low_as, _OP[name], _I32, _BOOL, x, y)
        return self._arithmetic(name, x, y)

    def floor_divide(self, x: Any, y: Any) -> NDObject:
        """floor(x / y). Integers: division by zero gives 0."""
        return self._integral("floordiv", x, y)

    def trunc_divide(self, x: Any, y: Any) -> NDObject:
        """trunc(x / y). Integers: division by zero gives 0."""
        return self._integral("truncdiv", x, y)

    def remainder(self, x: Any, y: Any) -> NDObject:
        """x modulo y with the sign of y, as % in Python."""
        return self._integral("remainder", x, y)

    def fmod(self, x: Any, y: Any) -> NDObject:
        """x modulo y with the sign of x, as in C."""
        return self._integral("fmod", x, y)

    def pow(self, x: Any, y: Any, expand: bool = True) -> NDObject:
        """x to the power y.

        An integral number y, |y| <= 128, becomes multiplications (and a reciprocal when negative)
        unless `expand` is False; everything else is the power function of C99. Integers wrap.
        """
        x, y, t = self._pair("pow", x, y)
        if expand and type(x) is NDObject and type(y) in (int, float, bool):
            n = _exponent(y, t)
            if n is not None:
                return self._emit("pow", t, low_power, t.code, x, n)
        if t is bool_:
            return self._emit("pow", t, low_as, _OP["pow"], _F16, _BOOL, x, y)
        return self._arithmetic("pow", x, y)

    def maximum(self, x: Any, y: Any) -> NDObject:
        """Larger operand; NaN when one is NaN."""
        return self._arithmetic("maximum", x, y, bool_direct=True)

    def minimum(self, x: Any, y: Any) -> NDObject:
        """Smaller operand; NaN when one is NaN."""
        return self._arithmetic("minimum", x, y, bool_direct=True)

    def _compare(self, name: str, a: Any, b: Any) -> NDObject:
        a, b, t = self._pair(name, a, b)
        op = _OP[name]
        if type(a) is NDObject and type(b) is NDObject:
            return self._emit(name, bool_, low_tensors, op, a, b)
        if t is bool_:
            other = b if type(a) is NDObject else a
            wide = _I32 if isinstance(other, (bool, int)) else _F32
            return self._emit(name, bool_, low_as, op, wide, _BOOL, a, b)
        return self._emit(name, bool_, low_mixed, op, t.code, a, b)

    def equal(self, x: Any, y: Any) -> NDObject:
        """bool: x == y."""
        return self._compare("equal", x, y)

    def not_equal(self, x: Any, y: Any) -> NDObject:
        """bool: x != y; true for NaN."""
        return self._compare("not_equal", x, y)

    def less(self, x: Any, y: Any) -> NDObject:
        """bool: x < y."""
        return self._compare("less", x, y)

    def less_equal(self, x: Any, y: Any) -> NDObject:
        """bool: x <= y."""
        return self._compare("less_equal", x, y)

    def greater(self, x: Any, y: Any) -> NDObject:
        """bool: x > y."""
        return self._compare("greater", x, y)

    def greater_equal(self, x: Any, y: Any) -> NDObject:
        """bool: x >= y."""
        return self._compare("greater_equal", x, y)

    def logical_and(self, x: Any, y: Any) -> NDObject:
        """The smaller number: meant for 0 and 1; the dtype stays."""
        return self._arithmetic("minimum", x, y, bool_direct=True)

    def logical_or(self, x: Any, y: Any) -> NDObject:
        """The larger number: meant for 0 and 1; the dtype stays."""
        return self._arithmetic("maximum", x, y, bool_direct=True)

    def logical_xor(self, x: Any, y: Any) -> NDObject:
        """bool: exactly one operand is not 0."""
        x, y, t = self._pair("logical_xor", x, y)
        if t is bool_:
            return self._arithmetic("xor", x, y, bool_direct=True)
        a, b = (self.not_equal(o, 0) if type(o) is NDObject else bool(o) for o in (x, y))
        return self._arithmetic("xor", a, b, bool_direct=True)

    def bitwise_and(self, x: Any, y: Any) -> NDObject:
        """Bits of integers; logical for bool."""
        return self._arithmetic("and", x, y, bool_direct=True)

    def bitwise_or(self, x: Any, y: Any) -> NDObject:
        """Bits of integers; logical for bool."""
        return self._arithmetic("or", x, y, bool_direct=True)

    def bitwise_xor(self, x: Any, y: Any) -> NDObject:
        """Bits of integers; logical for bool."""
        return self._arithmetic("xor", x, y, bool_direct=True)

    def bitwise_left_shift(self, x: Any, y: Any) -> NDObject:
        """x << y for integers; the count is taken modulo the width."""
        return self._arithmetic("shl", x, y, bool_direct=True)

    def bitwise_right_shift(self, x: Any, y: Any) -> NDObject:
        """x >> y for integers, arithmetic; the count is taken modulo the width."""
        return self._arithmetic("shr", x, y, bool_direct=True)

    # ---------------------------------------------------------------- three operands

    def select(self, cond: NDObject, a: Any, b: Any) -> NDObject:
        """a where cond is not 0, else b; all three broadcast. The result has the dtype of a.

        A condition that is not bool is converted to the dtype of the values first (int32 for
        int64 values), so that 0.5 selects b among int32 values.
        """
        cond = self._tensor("select", cond)
        a, b, t = self._pair("select", a, b)
        test = cond._dtype
        if test is not bool_:
            test = int32 if t is int64 else float16 if t is bool_ else t
        return self._emit("select", t, low_select, test.code, t.code, cond, a, b)

    where = select

    def fma(self, a: Any, b: Any, c: Any) -> NDObject:
        """a * b + c, rounded once."""
        xs = [a, b, c]
        t = next((x._dtype for x in xs if type(x) is NDObject), None)
        if t is None:
            raise ArgumentError("fma: one operand must be a value of the kernel")
        xs = [x if type(x) is NDObject else self._scalar("fma", x) for x in xs]
        return self._emit("fma", t, low_mixed, _OP["fma"], t.code, *xs)

    def clamp(self, x: NDObject, low: Any = None, high: Any = None) -> NDObject:
        """min(max(x, low), high); NaN stays NaN. Bounds are numbers, references or values."""
        x = self._tensor("clamp", x)
        bounds = [
            o if o is None or type(o) is NDObject else self._scalar("clamp", o) for o in (low, high)
        ]
        return self._emit("clamp", x._dtype, low_clamp, x._dtype.code, x, *bounds)

    # ---------------------------------------------------------------- dtype and shape

    def cast(self, x: NDObject, dtype: Any) -> NDObject:
        """x as another dtype; x itself when it has that dtype.

        Floats become integers toward zero and saturate, NaN is 0; narrowing integers wraps; to
        bool is x != 0; to 16-bit floats rounds to nearest even.
        """
        t = dtype_of(dtype)
        if isinstance(x, ScalarRef):
            self._use(x)
            return self._emit("cast", t, low_cast, x, t.code)
        x = self._tensor("cast", x)
        return x if x._dtype is t else self._emit("cast", t, low_cast, x, t.code)

    def broadcast(self, x: Any, shape: Any, dtype: Any = float32, _load: Any = None) -> NDObject:
        """x expanded to a shape; -1 keeps a size. Older spelling: a number first means `full`."""
        if not isinstance(x, NDObject) and (is_number(x) or isinstance(x, ScalarRef)):
            return self.full(x, shape, dtype)
        x = self._tensor("broadcast", x)
        return self._emit("broadcast", x._dtype, low_broadcast, x, shape_arg(shape))

    def full(self, value: Any, shape: Any, dtype: Any = float32) -> NDObject:
        """A tensor of one number or ScalarRef; the shape may be empty."""
        t = dtype_of(dtype)
        value = self._scalar("full", value)
        return self._emit("full", t, low_full, value, shape_arg(shape), t.code)

    def iota(self, shape: Any, axis: int = 0, dtype: Any = int64) -> NDObject:
        """The index along one axis."""
        t = dtype_of(dtype)
        code = t.code if t.is_int and t.itemsize >= 4 else _I64
        return self._emit("iota", t, low_iota, shape_arg(shape), axis, code, t.code)

    def random_bits(self, shape: Any, seed: Any, offset: Any = 0) -> NDObject:
        """Random words as int64 in [0, 2^32): element i in row-major order is word i % 4 of the
        Philox4x32-10 block with key `seed` and counter (offset, i / 4), numbers or int64
        ScalarRefs. The same on every device, tier and number of threads; the dropout of attention
        takes its words from this stream.
        """
        return self._random("random_bits", int64, shape, seed, offset)

    def random_uniform(self, shape: Any, seed: Any, offset: Any = 0) -> NDObject:
        """float32 in [0, 1), multiples of 2^-24: the upper 24 bits of `random_bits`."""
        return self._random("random_uniform", float32, shape, seed, offset)

    def _random(self, name: str, t: DataType, shape: Any, seed: Any, offset: Any) -> NDObject:
        keys = [self._random_key(name, what, x) for what, x in (("seed", seed), ("offset", offset))]
        return self._emit(name, t, low_random, shape_arg(shape), *keys, t is float32)

    def _random_key(self, name: str, what: str, x: Any) -> Any:
        """A number of 64 bits with a sign, or a reference."""
        if isinstance(x, ScalarRef):
            return self._scalar(name, x)
        try:
            n = operator.index(x) if is_number(x) else 2**64
        except TypeError:  # a fraction would lose what makes two seeds different
            n = 2**64
        if not -(2**63) <= n < 2**64:
            raise ArgumentError(
                f"{name}: {what} is an integer from -2^63 to 2^64 - 1 or an int64 ScalarRef, "
                f"given {x!r}"
            )
        return n - 2**64 if n >= 2**63 else n

    def reshape(self, x: NDObject, shape: Any) -> NDObject:
        """The same elements in row-major order; one -1 is inferred."""
        x = self._tensor("reshape", x)
        return self._emit("reshape", x._dtype, low_reshape, x, shape_arg(shape))

    def permute(self, x: NDObject, dims: Any) -> NDObject:
        """Axis i of the result is axis dims[i] of x."""
        x = self._tensor("permute", x)
        return self._emit("permute", x._dtype, low_permute, x, shape_arg(dims))

    def transpose(self, x: NDObject, dim0: int = -2, dim1: int = -1) -> NDObject:
        """Two axes exchanged."""
        x = self._tensor("transpose", x)
        return self._emit("transpose", x._dtype, low_transpose, x, dim0, dim1)

    def slice(self, x: NDObject, start: Any, size: Any, step: Any = None) -> NDObject:
        """size[i] elements from start[i] on every axis. A negative start counts from the end;
        size -1 goes up to the end; both are clamped. A negative step walks down.
        """
        x = self._tensor("slice", x)
        steps = None if step is None else tuple(step)
        return self._emit("slice", x._dtype, low_slice, x, shape_arg(start), shape_arg(size), steps)

    def slice_dim(
        self, x: NDObject, dim: int, begin: Any, end: Any = None, step: int = 1
    ) -> NDObject:
        """x[begin:end:step] along one axis, bounds as in Python; they may be int64 ScalarRefs."""
        x = self._tensor("slice_dim", x)
        begin, end = (self._bound(b) for b in (begin, end))
        return self._emit("slice_dim", x._dtype, low_slice_dim, x, dim, begin, end, step)

    def _bound(self, b: Any) -> Any:
        if isinstance(b, ScalarRef):
            self._use(b)
            return b
        if b is None or isinstance(b, Dim):
            return b
        try:
            return operator.index(b)
        except TypeError:
            raise ArgumentError(
                f"slice_dim: a bound is an integer, a size or a ScalarRef, given {b!r}"
            ) from None

    def _several(self, what: str, xs: Any) -> list[NDObject]:
        """Operands of concat and stack."""
        if not isinstance(xs, (list, tuple)) or not xs:
            raise ArgumentError(f"{what}: expected a list of at least one value, given {xs!r}")
        return [self._tensor(what, x) for x in xs]

    def concat(self, xs: Sequence[NDObject], axis: int = 0) -> NDObject:
        """Values of one dtype side by side along an axis."""
        xs = self._several("concat", xs)
        return self._emit("concat", xs[0]._dtype, low_concat, xs, axis)

    def stack(self, xs: Sequence[NDObject], axis: int = 0) -> NDObject:
        """Values of one dtype and shape side by side along a new axis."""
        xs = self._several("stack", xs)
        return self._emit("stack", xs[0]._dtype, low_stack, xs, axis)

    def gather(self, x: NDObject, index: NDObject, axis: int = 0, gather_mode: int = 0) -> NDObject:
        """Elements (mode 0: numpy.take_along_axis) or slices (mode 1: numpy.take) of x by an int32
        or int64 index; negative indices count from the end, others out of range are an error
        (OutOfRangeError) when the kernel runs.
        """
        x, index = self._tensor("gather", x), self._tensor("gather", index)
        mode = choice("gather", "gather_mode", gather_mode, (0, 1))
        return self._emit("gather", x._dtype, low_gather, x, index, axis, mode)

    def take(self, x: NDObject, index: NDObject, axis: int = 0) -> NDObject:
        """Slices of x (numpy.take)."""
        return self.gather(x, index, axis, 1)

    def one_hot(
        self, indices: NDObject, depth: int, axis: int, on: Any, off: Any, dtype: Any = float32
    ) -> NDObject:
        """A new axis of size `depth` (negative axes count in the result) that holds `on` at the
        index and `off` elsewhere; an index outside gives `off` only.
        """
        indices = self._tensor("one_hot", indices)
        if not indices._dtype.is_int:
            raise DTypeError(f"one_hot: indices are int32 or int64, not {indices._dtype}")
        t = dtype_of(dtype)
        return self._emit("one_hot", t, low_one_hot, indices, depth, axis, on, off, t.code)

    def element_any(self, x: NDObject) -> NDObject:
        """float32 of shape [1]: 1 when any element is not 0, else 0."""
        x = self._tensor("element_any", x)
        return self._emit("element_any", float32, low_element_any, x)

    # ---------------------------------------------------------------- reductions

    def reduce(self, name: str, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """A reduction by name: "sum", "max", "min", ..."""
        method = name.lower() if isinstance(name, str) else name
        if method not in _REDUCTIONS:
            raise ArgumentError(f"reduce: {', '.join(_REDUCTIONS)}, given {name!r}")
        return getattr(self, method)(x, dims, keepdims)

    def sum(
        self, x: NDObject, dims: Any = (), keepdims: bool = False, dtype: Any = None
    ) -> NDObject:
        """Sum over axes (none: all), accumulated in float32 or int64 over a fixed tree.

        The result has the dtype of x (rounded once), int64 for integers and bool, or `dtype`.
        """
        return self._accumulate("sum", x, dims, keepdims, dtype)

    def prod(
        self, x: NDObject, dims: Any = (), keepdims: bool = False, dtype: Any = None
    ) -> NDObject:
        """Product over axes (none: all); dtypes as in sum."""
        return self._accumulate("prod", x, dims, keepdims, dtype)

    def _accumulate(self, name: str, x: Any, dims: Any, keep: bool, dtype: Any) -> NDObject:
        x = self._tensor(name, x)
        t = x._dtype if dtype is None else dtype_of(dtype)
        if dtype is None and not t.is_float:
            t = int64
        return self._emit(name, t, low_reduce, _OP[name], x, shape_arg(dims), bool(keep), t.code)

    def max(self, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """Largest element over axes (none: all); NaN when there is one."""
        return self._extreme("max", x, dims, keepdims)

    def min(self, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """Smallest element over axes (none: all); NaN when there is one."""
        return self._extreme("min", x, dims, keepdims)

    amax, amin = max, min

    def _extreme(self, name: str, x: Any, dims: Any, keep: bool) -> NDObject:
        x = self._tensor(name, x)
        t, axes = x._dtype, shape_arg(dims)
        return self._emit(name, t, low_reduce, _OP[name], x, axes, bool(keep), t.code)

    def any(self, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """bool: some element is not 0."""
        x = self._tensor("any", x)
        return self._emit("any", bool_, low_truth, _OP["any"], x, shape_arg(dims), bool(keepdims))

    def all(self, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """bool: no element is 0."""
        x = self._tensor("all", x)
        return self._emit("all", bool_, low_truth, _OP["all"], x, shape_arg(dims), bool(keepdims))

    def argmax(self, x: NDObject, dim: int | None = None, keepdims: bool = False) -> NDObject:
        """int64 index of the first largest element along one axis or of all elements."""
        x = self._tensor("argmax", x)
        return self._emit("argmax", int64, low_arg, _OP["argmax"], x, dim, bool(keepdims))

    def argmin(self, x: NDObject, dim: int | None = None, keepdims: bool = False) -> NDObject:
        """int64 index of the first smallest element along one axis or of all elements."""
        x = self._tensor("argmin", x)
        return self._emit("argmin", int64, low_arg, _OP["argmin"], x, dim, bool(keepdims))

    def mean(self, x: NDObject, dims: Any = (), keepdims: bool = False) -> NDObject:
        """Mean over axes (none: all), computed in float32; integers give float32."""
        x = self._tensor("mean", x)
        t = x._dtype if x._dtype.is_float else float32
        return self._emit("mean", t, low_mean, x, shape_arg(dims), bool(keepdims), t.code)

    def _moments(self, kind: str, x: Any, dims: Any, keep: bool, correction: float) -> NDObject:
        x = self._tensor(kind, x)
        t = x._dtype if x._dtype.is_float else float32
        args = (x, shape_arg(dims), bool(keep), correction, t.code, kind)
        return self._emit(kind, t, low_var, *args)

    def var(
        self, x: NDObject, dims: Any = (), keepdims: bool = False, correction: float = 1
    ) -> NDObject:
        """Variance over axes by two passes; the divisor is the count minus `correction`."""
        return self._moments("var", x, dims, keepdims, correction)

    def std(
        self, x: NDObject, dims: Any = (), keepdims: bool = False, correction: float = 1
    ) -> NDObject:
        """Square root of the variance."""
        return self._moments("std", x, dims, keepdims, correction)

    def var_mean(
        self, x: NDObject, dims: Any = (), keepdims: bool = False, correction: float = 1
    ) -> tuple[NDObject, NDObject]:
        """Variance and mean."""
        v = self._moments("var", x, dims, keepdims, correction)
        return v, self._moments("mean", x, dims, keepdims, correction)

    def cumsum(self, x: NDObject, dim: int = -1, dtype: Any = None) -> NDObject:
        """Running sum along one axis; dtypes as in sum."""
        x = self._tensor("cumsum", x)
        t = x._dtype if dtype is None else dtype_of(dtype)
        if dtype is None and not t.is_float:
            t = int64
        return self._emit("cumsum", t, low_cumsum, x, dim, t.code)

    # ---------------------------------------------------------------- matrix products

    def matmul(
        self,
        a: NDObject,
        b: NDObject,
        trans_a: bool = False,
        trans_b: bool = False,
        bias: NDObject | None = None,
    ) -> NDObject:
        """Products of the last two axes, [..., M, K] times [..., K, N], or with `trans_a` and
        `trans_b` of [..., K, M] and [..., N, K]; the axes before them broadcast. Float16, bfloat16
        or float32, added in float32 in an order that K alone fixes; the result has the dtype of the
        operands, rounded once. `bias` of shape [N] is added before that rounding.
        """
        a, b, bias = self._factors("matmul", a, b, bias)
        t = a._dtype
        ta, tb = truth("matmul", "trans_a", trans_a), truth("matmul", "trans_b", trans_b)
        args = (a, b, ta, tb, bias, t.code)
        return self._emit("matmul", t, low_matmul, *args)

    def grouped_matmul(
        self,
        a: NDObject,
        b: NDObject,
        trans_a: bool = False,
        trans_b: bool = False,
        bias: NDObject | None = None,
        group_list: NDObject | None = None,
        group_type: int = 0,
        group_list_type: int = 0,
    ) -> NDObject:
        """Products of groups. `group_list` holds the ends of the groups (group_list_type 0) or
        their sizes (1), as int64 or int32.

        group_type 0: `a` is [M, K], `b` [G, K, N], `bias` [G, N] or None; the rows of group i are
        multiplied by b[i], and rows beyond the last group are 0. 2: `a` is [M, K], `b` [K, N], the
        result [G, M, N]; group i multiplies its part of K. 1: the same as matmul.
        """
        a, b, bias = self._factors("grouped_matmul", a, b, bias)
        if group_list is None:
            raise ArgumentError("grouped_matmul: group_list is missing")
        groups = self._tensor("grouped_matmul", group_list)
        t = a._dtype
        name = "grouped_matmul"
        group = choice(name, "group_type", group_type, (0, 1, 2))
        kind = choice(name, "group_list_type", group_list_type, (0, 1))
        ta, tb = truth(name, "trans_a", trans_a), truth(name, "trans_b", trans_b)
        if group == 1:
            return self._emit("matmul", t, low_matmul, a, b, ta, tb, bias, t.code)
        args = (a, b, ta, tb, bias, groups, group, kind, t.code)
        return self._emit(name, t, low_grouped_matmul, *args)

    def _factors(self, name: str, a: Any, b: Any, bias: Any) -> tuple[NDObject, NDObject, Any]:
        a, b = self._tensor(name, a), self._tensor(name, b)
        return a, b, None if bias is None else self._tensor(name, bias)

    # ---------------------------------------------------------------- not here

    def _collective(self, name: str) -> UnsupportedError:
        return _unsupported(name, "call torch.distributed or mpi4py between two kernels")

    def allreduce(self, *_: Any, **__: Any) -> NDObject:
        """Raises UnsupportedError."""
        raise self._collective("allreduce")

    def allgather(self, *_: Any, **__: Any) -> NDObject:
        """Raises UnsupportedError."""
        raise self._collective("allgather")

    def allgatherv2(self, *_: Any, **__: Any) -> NDObject:
        """Raises UnsupportedError."""
        raise self._collective("allgatherv2")

    def reducescatter(self, *_: Any, **__: Any) -> NDObject:
        """Raises UnsupportedError."""
        raise self._collective("reducescatter")

    def multi_load(self, *_: Any, **__: Any) -> NDObject:
        """Raises UnsupportedError."""
        raise self._collective("multi_load")


def _exponent(y: float, t: DataType) -> int | None:
    """The exponent of an expanded power of dtype t."""
    if t is bool_ or not (t.is_int or float(y).is_integer()) or abs(y) > LARGEST_EXPANDED_POWER:
        return None
    return int(y) if y >= 0 or t.is_float else None


def _unsupported(name: str, instead: str) -> UnsupportedError:
    return UnsupportedError(f"{name} is not available in this version of DVM: {instead}")


def _named(kernel: Any, names: dict[str, str], name: str) -> Callable[..., NDObject]:
    found = names.get(name, name) if isinstance(name, str) else "_"
    method = None if found.startswith("_") else getattr(kernel, found, None)
    if method is None:
        raise ArgumentError(f"there is no operation named {name!r}")
    return method
