"""From ATen nodes to lines of kernel code.

Every supported ATen overload is one row: a function from the node's arguments to builder calls.
The rows stand in rows_*.py; this file holds what they are written with. A row does not build a
kernel, it writes the lines that will: `e("add", a, b)` appends `add = k.add(a, b)`. A node is
written once, before it is known which kernel it belongs to; codegen.py puts the lines of a region
together.

Dtypes. Rows follow torch's promotion exactly. 16-bit floats are computed in float32: a value has a
`dtype`, which torch gives it, and a `held` dtype, which the line has. They differ only for a
16-bit float that has not been rounded yet; it is rounded by an explicit cast in the graph, and when
it is stored. With option `strict` it is rounded after every node, as eager does.

A row that cannot express a node raises Unsupported with the reason, and torch runs the node.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from .options import Options, is_disabled
from .symbols import Symbols

# Names of dtypes in kernel code. Kernels compute with COMPUTE; the others are loaded and cast.
DTYPES = {
    torch.bool: "dvm.bool_",
    torch.float16: "dvm.float16",
    torch.bfloat16: "dvm.bfloat16",
    torch.float32: "dvm.float32",
    torch.int32: "dvm.int32",
    torch.int64: "dvm.int64",
    torch.float64: "dvm.float64",
    torch.uint8: "dvm.uint8",
    torch.int8: "dvm.int8",
}
COMPUTE = frozenset(
    (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64)
)
HALF = frozenset((torch.float16, torch.bfloat16))
MAX_RANK = 10


class Unsupported(Exception):
    """Why a node is left to torch."""


class Val:
    """A value of the kernel being written: variable, dtypes and, for a node's value, its shape."""

    __slots__ = ("dtype", "held", "name", "shape")

    def __init__(self, name: str, dtype: torch.dtype, held: torch.dtype, shape: Sequence | None):
        self.name = name
        self.dtype = dtype
        self.held = held
        self.shape = shape

    def __str__(self) -> str:
        return self.name


class Scalar(NamedTuple):
    """A scalar argument of the kernel: a size or a number known only when the graph runs."""

    name: str
    is_float: bool

    def __str__(self) -> str:
        return self.name


class Raw(str):
    """Text that goes into the code as it is."""

    __slots__ = ()


class Row(NamedTuple):
    fn: Callable
    view: bool  # no arithmetic and, for torch, no copy: may be written in several kernels


ROWS: dict[str, Row] = {}


def row(*targets: str, view: bool = False) -> Callable:
    """Registers a row under overload names without the "aten." in front; prims keep theirs.

    Names, not overload objects: an overload that the installed torch lacks costs nothing.
    """

    def register(fn: Callable) -> Callable:
        for t in targets:
            ROWS[t if t.startswith("prims.") else "aten." + t] = Row(fn, view)
        return fn

    return register


class Written(NamedTuple):
    """A node in kernel code."""

    lines: list[tuple[str, str]]  # variable, expression
    value: Any  # Val or tuple of Val and None
    operands: list[Node]  # tensor arguments
    scalars: dict[str, str]  # scalar arguments and their dtypes
    view: bool


class Emitter:
    """Writes nodes. One emitter serves a graph; `vals` maps nodes to their values."""

    def __init__(self, symbols: Symbols, options: Options, names: Iterable[str]):
        self.symbols = symbols
        self.options = options
        self.vals: dict[Node, Any] = {}
        self._names = set(names)
        self._wide: set[str] = set()
        self._lines: list[tuple[str, str]] = []
        self._operands: list[Node] = []
        self._scalars: dict[str, str] = {}
        self._serial = 0
        self._readable: set[Node] = set()
        self.node: Node = None  # type: ignore[assignment]
        self.out: Any = None  # fake value of the node: tensor or tuple

    # ---------------------------------------------------------------- writing a node

    def external(self, node: Node) -> None:
        """A tensor that comes from outside every kernel."""
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            self.vals[node] = Val(node.name, fake.dtype, fake.dtype, fake.shape)

    def write(self, node: Node) -> Written:
        """Lines of a node; raises Unsupported."""
        target = name_of(node)
        found = ROWS.get(target)
        if found is None:
            raise Unsupported(why_left(target))
        if is_disabled(target, self.options.disable_ops):
            raise Unsupported("switched off")
        self._begin(node)
        if isinstance(self.out, torch.Tensor):
            _on_device(self.out)
            if not found.view and _is_empty(self.out):
                return self._end(self._empty(), False)
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        value = found.fn(self, *args, **kwargs)
        return self._end(value, found.view)

    def _empty(self) -> Val:
        """Nothing to compute: a tensor of no elements, whatever the op is."""
        dtype = self.out.dtype
        if dtype not in COMPUTE:
            raise Unsupported(f"dtype {_short(dtype)}")
        return self("full", 0, self.sizes(self.out.shape), dtype, dtype=dtype)

    def write_item(self, node: Node) -> Written:
        """operator.getitem on a value of several parts."""
        self._begin(node)
        source, index = node.args
        self._operands.append(source)
        value = self.vals[source][index]
        if value is None:
            raise Unsupported("part not computed")
        if isinstance(value, Val):
            return self._end(value, False)
        return self._end(value(self), True)  # a view, written where it is taken

    def write_moved(self, node: Node, a: Node) -> Written:
        """Lines that give a node, written before, the value of its operand `a` instead."""
        self._begin(node)
        v = self.rounded(self._argument(a))
        self._lines.append((self.vals[node].name, f"k.copy({v.name})"))
        return Written(self._lines, self.vals[node], self._operands, self._scalars, False)

    def _begin(self, node: Node) -> None:
        self.node = node
        self.out = node.meta.get("val")
        self._lines, self._operands, self._scalars = [], [], {}

    def _end(self, value: Any, view: bool) -> Written:
        if isinstance(value, Val):
            if self.options.strict and value.held is not value.dtype and not view:
                value = self.rounded(value)
            value = self._named(value, self.node.name)
            value.shape = self.out.shape
            if value.dtype is not self.out.dtype:
                raise Unsupported(f"row gives {value.dtype}, torch {self.out.dtype}")
        elif not view:
            value = tuple(
                self._part(v, i, fake)
                for i, (v, fake) in enumerate(zip(value, self.out, strict=True))
            )
        self.vals[self.node] = value
        return Written(self._lines, value, self._operands, self._scalars, view)

    def _part(self, value: Val | None, i: int, fake: torch.Tensor) -> Val | None:
        if value is None:
            return None
        if self.options.strict and value.held is not value.dtype:
            value = self.rounded(value)
        # Lines of other parts refer to the old name, so it stays; the node's name leads it anyway.
        return Val(value.name, value.dtype, value.held, fake.shape)

    def _named(self, value: Val, name: str) -> Val:
        """The value under the node's own name, when the last line made it."""
        if self._lines and self._lines[-1][0] == value.name and value.name not in self._wide:
            self._lines[-1] = (name, self._lines[-1][1])
            return Val(name, value.dtype, value.held, value.shape)
        return Val(value.name, value.dtype, value.held, value.shape)

    def _argument(self, a: Any) -> Any:
        if isinstance(a, Node):
            v = self.vals.get(a)
            if v is not None:
                self._operands.append(a)
                if isinstance(v, Val) and a not in self._readable:
                    self._loadable(a, v)
                    self._readable.add(a)
                return v
            return self.scalar(a.meta.get("val"))
        if isinstance(a, (list, tuple)):
            return [self._argument(x) for x in a]
        return a

    def forget_operands(self) -> None:
        """The row reads sizes of its operands only."""
        self._operands.clear()

    def forget_operand(self, i: int) -> None:
        del self._operands[i]

    def _loadable(self, node: Node, v: Val) -> None:
        if v.dtype not in DTYPES:
            raise Unsupported(f"dtype {_short(v.dtype)}")
        if len(v.shape) > MAX_RANK:
            raise Unsupported(f"rank above {MAX_RANK}")
        fake = node.meta["val"]
        if isinstance(fake, torch.Tensor):
            if fake.layout is not torch.strided:
                raise Unsupported(f"layout {fake.layout}")
            _on_device(fake)
            if fake.is_neg() or fake.is_conj():
                raise Unsupported("lazily negated or conjugated input")

    def __call__(self, op: str, *args: Any, dtype: torch.dtype | None = None, **kw: Any) -> Val:
        """Appends `name = k.op(args)`. The dtypes are those of the first value unless given."""
        held = dtype
        if dtype is None:
            for first in args:
                if type(first) is list:
                    first = first[0]
                if type(first) is Val:
                    break
            dtype, held = first.dtype, first.held
        text = list(map(self.text, args))
        if kw:
            text += [f"{k}={self.text(v)}" for k, v in kw.items()]
        name = self.fresh(op)
        self._lines.append((name, f"k.{op}({', '.join(text)})"))
        return Val(name, dtype, held, None)

    def fresh(self, op: str) -> str:
        """A name that nothing has."""
        while True:
            self._serial += 1
            name = f"{op.rstrip('_')}_v{self._serial}"
            if name not in self._names:
                return name

    def text(self, a: Any) -> str:
        kind = type(a)
        if kind is Val or kind is Scalar:
            return a.name
        if kind is int or kind is Raw:
            return str(a)
        if isinstance(a, torch.dtype):
            return DTYPES[a]
        if isinstance(a, (list, tuple)):
            return "[" + ", ".join(map(self.text, a)) + "]"
        if isinstance(a, (torch.SymInt, torch.SymFloat)):
            return self.text(self.scalar(a))
        return repr(a)

    # ---------------------------------------------------------------- scalars and sizes

    def scalar(self, value: Any) -> Scalar | int | float:
        """A number of the graph: itself when constant, else an argument of the kernel."""
        if isinstance(value, (int, float)):
            return value
        if isinstance(value, torch.SymInt):
            name, is_float = self.symbols.name(value), False
        elif isinstance(value, torch.SymFloat):
            name, is_float = self.symbols.name(value), True
        else:
            raise Unsupported(f"argument of type {type(value).__name__}")
        if isinstance(name, (int, float)):
            return name
        self._scalars[name] = "dvm.float32" if is_float else "dvm.int64"
        return Scalar(name, is_float)

    def sizes(self, shape: Sequence) -> list:
        return [self.scalar(s) for s in shape]

    def numel(self, shape: Sequence) -> Any:
        n: Any = 1
        for s in shape:
            n = n * s
        return self.scalar(n)

    # ---------------------------------------------------------------- dtypes

    def rounded(self, v: Val) -> Val:
        """The value in the dtype that torch gives it."""
        if v.held is v.dtype:
            return v
        return self("cast", v, v.dtype, dtype=v.dtype)

    def to(self, v: Val, dtype: torch.dtype) -> Val:
        """Operand for an operation in this dtype: 16-bit floats become float32."""
        compute = torch.float32 if dtype in HALF else dtype
        if compute not in COMPUTE:
            raise Unsupported(f"dtype {_short(dtype)}")
        if v.dtype is not dtype:
            v = self.cast(v, dtype)
        if v.held is not compute:
            v = self._widened(v, compute)
        return v

    def _widened(self, v: Val, compute: torch.dtype) -> Val:
        """A 16-bit float as float32. The name says so, and equal lines are written once."""
        name = v.name + "_f32"
        while name in self._names:
            name += "_"
        self._wide.add(name)
        line = (name, f"k.cast({v.name}, {DTYPES[compute]})")
        if line not in self._lines:
            self._lines.append(line)
        return Val(name, v.dtype, compute, v.shape)

    def cast(self, v: Val, dtype: torch.dtype) -> Val:
        """What `x.to(dtype)` means: rounds to the value's own dtype first."""
        if v.dtype is dtype:
            return v
        if dtype not in DTYPES:
            raise Unsupported(f"dtype {_short(dtype)}")
        v = self.rounded(v)
        out = self("cast", v, dtype, dtype=dtype)
        out.shape = v.shape
        return out

    def compute(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in HALF:
            return torch.float32
        if dtype not in COMPUTE:
            raise Unsupported(f"dtype {_short(dtype)}")
        return dtype

    def pointwise(self, op: str, *args: Any, dtype: torch.dtype | None = None) -> Val:
        """One builder operation in the node's dtype, operands converted to it."""
        dtype = dtype or self.out.dtype
        held = self.compute(dtype)
        v = self(op, *[self.to(a, dtype) if isinstance(a, Val) else a for a in args], dtype=dtype)
        v.held = held
        return v

    def number(self, value: Any, dtype: torch.dtype = torch.float32) -> Val:
        """A 0-d constant, for operations that want at least one value."""
        return self("full", value, [], dtype, dtype=dtype)

    def as_float(self, v: Val) -> Val:
        """The value as float32, for rows that compute there whatever the 16-bit dtype is."""
        if v.dtype is torch.float64:
            raise Unsupported("dtype float64")
        return self.to(v, v.dtype if v.dtype in HALF else torch.float32)

    def result(self, v: Val, dtype: torch.dtype | None = None) -> Val:
        """A float32 value as the node's result in its (16-bit) dtype."""
        dtype = dtype or self.out.dtype
        if dtype in HALF and v.held is torch.float32:
            return Val(v.name, dtype, v.held, v.shape)
        return self.cast(Val(v.name, v.held, v.held, v.shape), dtype)


# Matrix products with a row, rows_matmul.py.
PRODUCTS = frozenset(("aten.mm.default", "aten.addmm.default", "aten.bmm.default"))

# What torch's libraries do better than a fused kernel would.
LEFT_TO_TORCH = {
    "matrix product": "mm bmm addmm baddbmm addbmm mv addmv dot _scaled_mm _grouped_mm linear",
    "convolution": "convolution convolution_backward",
    "attention": "_scaled_dot_product_flash_attention_for_cpu"
    " _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention"
    " _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
    "random numbers": "rand randn rand_like randn_like randint bernoulli native_dropout normal",
}
_LEFT = {op: why for why, ops in LEFT_TO_TORCH.items() for op in ops.split()}


def is_left_to_torch(target: str) -> bool:
    """A library op of ATen: fresh results, operands only read."""
    parts = target.split(".")
    return parts[0] == "aten" and parts[1] in _LEFT


# Others that give results of their own and keep no operand.
OWN_RESULT = "cumsum index_add index_put linalg_solve_triangular scatter scatter_add sort topk"
_OWN_RESULT = frozenset(OWN_RESULT.split())


def is_own_result(target: str) -> bool:
    parts = target.split(".")
    return parts[0] == "aten" and parts[1] in _OWN_RESULT


def why_left(target: str) -> str:
    """The reason for an op without a row."""
    parts = target.split(".")
    return _LEFT.get(parts[1] if len(parts) > 1 else target, "no row for this op")


def promote(*xs: Any) -> torch.dtype:
    """torch.result_type of tensors (Val) and numbers."""
    dims = zeros = wrapped = None
    for x in xs:
        if isinstance(x, Val):
            if len(x.shape):
                dims = _both(dims, x.dtype)
            else:
                zeros = _both(zeros, x.dtype)
        elif isinstance(x, bool):
            wrapped = _both(wrapped, torch.bool)
        elif isinstance(x, int) or (isinstance(x, Scalar) and not x.is_float):
            wrapped = _both(wrapped, torch.int64)
        else:
            wrapped = _both(wrapped, torch.get_default_dtype())
    return _stronger(dims, _stronger(zeros, wrapped))


def _both(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None else torch.promote_types(a, b)


def _stronger(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    """`high` keeps its dtype unless `low` is of a higher kind (bool, int, float, complex)."""
    if high is None or low is None:
        return high or low
    return high if _kind(high) >= _kind(low) else torch.promote_types(high, low)


def _kind(t: torch.dtype) -> int:
    return 3 if t.is_complex else 2 if t.is_floating_point else 0 if t is torch.bool else 1


def _is_empty(fake: torch.Tensor) -> bool:
    """Without elements, whatever the symbols are."""
    if fake._has_symbolic_sizes_strides:
        return any(isinstance(s, int) and s == 0 for s in fake.shape)
    return fake.numel() == 0


def _on_device(fake: torch.Tensor) -> None:
    if fake.device.type != "cpu":
        raise Unsupported(f"device {fake.device.type}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def literal(a: Any) -> str | None:
    """An argument of a node as Python text, where it has one that the generated files can read."""
    if a is None or isinstance(a, (bool, int, float, str, complex, torch.device)):
        return repr(a)
    if isinstance(a, (torch.dtype, torch.layout, torch.memory_format)):
        return str(a)
    return None


# By id, since hashing an overload runs Python; the overload in the entry keeps its id its own.
_names: dict[int, tuple[torch._ops.OpOverload, str]] = {}


def name_of(node: Node) -> str:
    """str(node.target), which torch makes anew at every call."""
    target = node.target
    known = _names.get(id(target))
    if known is not None:
        return known[1]
    name = str(target)
    if isinstance(target, torch._ops.OpOverload):
        _names[id(target)] = target, name
    return name


def is_getitem(node: Node) -> bool:
    return node.target is operator.getitem
