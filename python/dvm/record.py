"""What a kernel under construction is made of: values, references whose contents may change between
runs, and expressions over sizes.

A NDObject is a line of the recorded program: a function that adds nodes to a graph of the C library
(`low`), and its arguments. It is called when the line is written, so that errors come at once, and
again whenever the program must be built anew: for other ranks, other contents of an IntArrayRef,
another type of number in a ScalarRef.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import _dvm

from .types import DataType, dtype_of

if TYPE_CHECKING:
    from .builder import Kernel


class Later(Exception):
    """A line cannot be built before shapes or references are known."""


class NDObject:
    """A value of a kernel: what builder methods take and return.

    Operators mean the builder methods: `x + y`, `x * 2`, `-x`, `x < y`, `x ** 2`, `x @ y`.
    `==` and `!=` compare identity; write `k.equal(x, y)`.
    """

    __slots__ = ("_args", "_dtype", "_k", "_low", "_name", "_val", "_where", "_with")

    def __init__(
        self,
        kernel: Kernel,
        name: str,
        dtype: DataType,
        low: Callable[..., Any],
        args: tuple[Any, ...],
        where: str | None,
    ) -> None:
        self._k = kernel
        self._name = name
        self._dtype = dtype
        self._low = low
        self._args = args
        self._where = where
        self._val: Any = None  # its _dvm.Value in the graph being built
        self._with: Any = None  # load: what it is bound to; store: None, "inplace" or "temp"

    def dtype(self) -> DataType:
        """The dtype of the value."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Sizes as far as they are known, -1 for the others; None when the rank is not known."""
        return None if self._val is None else self._val.shape

    def dim(self, axis: int) -> Dim:
        """The size of an axis, for shapes of other operations."""
        return Dim("of", self, axis)

    def __repr__(self) -> str:
        shape = self.shape
        text = "?" if shape is None else ", ".join("?" if d < 0 else str(d) for d in shape)
        return f"<{self._name} {self._dtype.name}[{text}]>"

    # Operators with arrays and numbers of numpy on the left are ours.
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """The output of the last run of a runner, for stores (gen-1 returned it)."""
        array = getattr(self._k, "_held", {}).get(self)
        if array is None:
            raise TypeError(
                f"{self!r} has no array: only outputs of a runner have one, once it ran"
            )
        return array if dtype is None else array.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        known = not name.startswith("_") and hasattr(type(self._k), name)
        hint = f"; write k.{name}(x)" if known else ""
        raise AttributeError(f"a value of a kernel has no attribute {name!r}{hint}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a value of a kernel belongs to it and cannot be copied or pickled")

    def __bool__(self) -> bool:
        raise TypeError("a value of a kernel has no truth while the kernel is built; use select()")

    def __add__(self, o: Any) -> NDObject:
        return self._k.add(self, o)

    def __radd__(self, o: Any) -> NDObject:
        return self._k.add(o, self)

    def __sub__(self, o: Any) -> NDObject:
        return self._k.sub(self, o)

    def __rsub__(self, o: Any) -> NDObject:
        return self._k.sub(o, self)

    def __mul__(self, o: Any) -> NDObject:
        return self._k.mul(self, o)

    def __rmul__(self, o: Any) -> NDObject:
        return self._k.mul(o, self)

    def __truediv__(self, o: Any) -> NDObject:
        return self._k.div(self, o)

    def __rtruediv__(self, o: Any) -> NDObject:
        return self._k.div(o, self)

    def __floordiv__(self, o: Any) -> NDObject:
        return self._k.floor_divide(self, o)

    def __rfloordiv__(self, o: Any) -> NDObject:
        return self._k.floor_divide(o, self)

    def __mod__(self, o: Any) -> NDObject:
        return self._k.remainder(self, o)

    def __rmod__(self, o: Any) -> NDObject:
        return self._k.remainder(o, self)

    def __pow__(self, o: Any) -> NDObject:
        return self._k.pow(self, o)

    def __rpow__(self, o: Any) -> NDObject:
        return self._k.pow(o, self)

    def __matmul__(self, o: Any) -> NDObject:
        return self._k.matmul(self, o)

    def __neg__(self) -> NDObject:
        return self._k.neg(self)

    def __pos__(self) -> NDObject:
        return self

    def __abs__(self) -> NDObject:
        return self._k.abs(self)

    def __invert__(self) -> NDObject:
        return self._k.bitwise_not(self)

    def __and__(self, o: Any) -> NDObject:
        return self._k.bitwise_and(self, o)

    def __rand__(self, o: Any) -> NDObject:
        return self._k.bitwise_and(o, self)

    def __or__(self, o: Any) -> NDObject:
        return self._k.bitwise_or(self, o)

    def __ror__(self, o: Any) -> NDObject:
        return self._k.bitwise_or(o, self)

    def __xor__(self, o: Any) -> NDObject:
        return self._k.bitwise_xor(self, o)

    def __rxor__(self, o: Any) -> NDObject:
        return self._k.bitwise_xor(o, self)

    def __lshift__(self, o: Any) -> NDObject:
        return self._k.bitwise_left_shift(self, o)

    def __rshift__(self, o: Any) -> NDObject:
        return self._k.bitwise_right_shift(self, o)

    def __lt__(self, o: Any) -> NDObject:
        return self._k.less(self, o)

    def __le__(self, o: Any) -> NDObject:
        return self._k.less_equal(self, o)

    def __gt__(self, o: Any) -> NDObject:
        return self._k.greater(self, o)

    def __ge__(self, o: Any) -> NDObject:
        return self._k.greater_equal(self, o)


class IntArrayRef:
    """A list of integers that shapes, axes and bounds may refer to; `update` replaces it between
    runs, and its length may change. Gen-2 name: ShapeRef.
    """

    __slots__ = ("_data",)

    def __init__(self, data: Sequence[int] | None = None) -> None:
        self._data: tuple[Any, ...] | None = None
        if data is not None:
            self.update(data)

    def update(self, data: Sequence[int]) -> None:
        """New contents: a list or tuple of integers (ScalarRef entries are allowed)."""
        if not hasattr(data, "__iter__"):
            raise _dvm.ArgumentError(f"an IntArrayRef holds a list of integers, given {data!r}")
        self._data = tuple(d if isinstance(d, (ScalarRef, Dim)) else _index(d) for d in data)

    @property
    def data(self) -> list[Any]:
        return list(self._data or ())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data or ())

    def __len__(self) -> int:
        return len(self._data or ())

    def __getitem__(self, i: int) -> Any:
        return (self._data or ())[i]

    def __repr__(self) -> str:
        return f"IntArrayRef({'unset' if self._data is None else list(self._data)})"


class _Sized:
    """Arithmetic of sizes: + - * // % with integers and other sizes; min_ and max_."""

    __slots__ = ()

    def __add__(self, o: Any) -> Dim:
        return _sized("add", self, o)

    def __radd__(self, o: Any) -> Dim:
        return _sized("add", o, self)

    def __sub__(self, o: Any) -> Dim:
        return _sized("sub", self, o)

    def __rsub__(self, o: Any) -> Dim:
        return _sized("sub", o, self)

    def __mul__(self, o: Any) -> Dim:
        return _sized("mul", self, o)

    def __rmul__(self, o: Any) -> Dim:
        return _sized("mul", o, self)

    def __floordiv__(self, o: Any) -> Dim:
        return _sized("floordiv", self, o)

    def __rfloordiv__(self, o: Any) -> Dim:
        return _sized("floordiv", o, self)

    def __mod__(self, o: Any) -> Dim:
        return _sized("mod", self, o)

    def __rmod__(self, o: Any) -> Dim:
        return _sized("mod", o, self)

    def max_(self, o: Any) -> Dim:
        return Dim("max", self, o)

    def min_(self, o: Any) -> Dim:
        return Dim("min", self, o)


def _sized(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, NDObject) or isinstance(b, NDObject):
        return NotImplemented  # the operator of the value
    return Dim(op, a, b)


class Dim(_Sized):
    """A size that is known when the kernel runs: an axis of a value, a scalar argument, or an
    expression of those.
    """

    __slots__ = ("a", "b", "op")
    OPS: dict[str, int] = {  # noqa: RUF012
        "add": 0, "sub": 1, "mul": 2, "floordiv": 3, "mod": 4, "max": 5, "min": 6,
    }  # fmt: skip

    def __init__(self, op: str, a: Any, b: Any) -> None:
        self.op, self.a, self.b = op, a, b

    def lower(self, g: _dvm.Graph) -> int:
        if self.op == "of":
            x = value_of(self.a)
            shape = x.shape
            if shape is not None and -len(shape) <= self.b < len(shape) and shape[self.b] >= 0:
                return shape[self.b]
            return g.dim_of(x, self.b)
        a, b = lower_dim(g, self.a), lower_dim(g, self.b)
        if 0 <= a < 1 << 40 and 0 <= b < 1 << 20 and self.op in ("add", "mul", "max", "min"):
            return {"add": a + b, "mul": a * b, "max": max(a, b), "min": min(a, b)}[self.op]
        return g.dim_op(self.OPS[self.op], a, b)

    def __repr__(self) -> str:
        return f"Dim({self.op}, {self.a!r}, {self.b!r})"


class ScalarRef(_Sized):
    """A number that a kernel reads at every run. `update` sets it: an int is stored as int64, a
    float as float32, unless the dtype was given. As an operand it takes the dtype of the tensor.
    """

    __slots__ = ("_declared", "_k", "_val", "_where", "value")

    def __init__(self, dtype: Any = None) -> None:
        self._declared: DataType | None = None if dtype is None else dtype_of(dtype)
        self._k: Kernel | None = None
        self._val: Any = None
        self._where: str | None = None
        self.value: int | float | bool | None = None

    def update(self, value: int | float) -> None:
        """The number of the runs that follow."""
        if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise _dvm.ArgumentError(f"a ScalarRef holds a number, given {value!r}")
        self.value = value

    def dtype(self) -> DataType:
        """The declared dtype, else that of the present number."""
        if self._declared is not None:
            return self._declared
        return _INT64 if is_int(self.value) else _FLOAT32

    def __repr__(self) -> str:
        return f"ScalarRef({self.value!r}, {self.dtype()!r})"


_INT64, _FLOAT32 = dtype_of("int64"), dtype_of("float32")


def is_int(x: Any) -> bool:
    return hasattr(x, "__index__") and not isinstance(x, float)


def integer(what: str, name: str, x: Any) -> int:
    """An argument that counts or chooses: an integer, no truth value and no text."""
    if not isinstance(x, bool):
        with contextlib.suppress(TypeError):
            return operator.index(x)
    raise _dvm.ArgumentError(f"{what}: {name} is an integer, given {x!r}")


def choice(what: str, name: str, x: Any, among: tuple[int, ...]) -> int:
    """One of some numbers."""
    n = integer(what, name, x)
    if n not in among:
        raise _dvm.ArgumentError(
            f"{what}: {name} is one of {', '.join(map(str, among))}, given {x!r}"
        )
    return n


def truth(what: str, name: str, x: Any) -> bool:
    """A flag: True, False, 1 or 0; anything else is an argument in the wrong place."""
    if isinstance(x, bool) or type(x).__name__ in ("bool_", "bool"):
        return bool(x)
    return bool(choice(what, name, x, (0, 1)))


def is_number(x: Any) -> bool:
    """A Python or numpy number (0-d arrays count)."""
    if isinstance(x, (int, float)):
        return True
    if isinstance(x, (NDObject, ScalarRef, str)):
        return False
    return hasattr(x, "__float__") and getattr(x, "ndim", 0) == 0


def _index(d: Any) -> int:
    try:
        return d.__index__()
    except AttributeError:
        raise _dvm.ArgumentError(f"expected an integer, given {d!r}") from None


# ------------------------------------------------------------------ helpers of building functions


def value_of(x: NDObject | ScalarRef) -> Any:
    """The node of x in the graph being built."""
    v = x._val
    if v is None:
        raise Later
    return v


def rank_of(v: Any) -> int:
    r = v.rank
    if r < 0:
        raise Later
    return r


def lower_dim(g: _dvm.Graph, d: Any) -> int:
    if type(d) is int:
        return d
    if isinstance(d, Dim):
        return d.lower(g)
    if isinstance(d, ScalarRef):
        return g.dim_scalar(value_of(d))
    return _index(d)


def lower_dims(g: _dvm.Graph, shape: Any) -> tuple[int, ...]:
    """Sizes of a recorded shape: a tuple or an IntArrayRef."""
    if type(shape) is IntArrayRef:
        if shape._data is None:
            raise Later
        shape = shape._data
    for d in shape:
        if type(d) is not int:
            return tuple(lower_dim(g, d) for d in shape)
    return shape


def sizes_of(g: _dvm.Graph, v: Any) -> list[int]:
    """Sizes of a value: numbers where they are known, expressions elsewhere."""
    shape = v.shape
    if shape is None:
        raise Later
    return [d if d >= 0 else g.dim_of(v, i) for i, d in enumerate(shape)]


def shape_arg(shape: Any) -> Any:
    """A shape as given by the user, kept so that later changes of a list do not reach it."""
    if type(shape) is tuple or type(shape) is IntArrayRef:
        return shape
    if isinstance(shape, (list, tuple)):
        return tuple(shape)
    if isinstance(shape, IntArrayRef):
        return shape
    if is_int(shape) or isinstance(shape, (Dim, ScalarRef)):
        return (shape,)
    if hasattr(shape, "__iter__"):
        return tuple(shape)
    raise _dvm.ArgumentError(f"expected a list of sizes, given {shape!r}")
