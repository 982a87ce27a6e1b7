"""Kernel: records a program line by line and keeps its graphs.

A line is built in a graph of the C library at once, so that its errors come where it is written.
Where that is not possible (a load of unknown rank, an IntArrayRef without contents), or when the
answer no longer holds, the program is replayed into a new graph. Graphs are kept by what they
depend on: ranks of loads, contents of IntArrayRefs, dtypes of ScalarRefs that have none.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import _dvm
from _dvm import ArgumentError, KindError, ShapeError, StateError

from . import ops, record, text
from .record import (
    Dim,
    IntArrayRef,
    Later,
    NDObject,
    ScalarRef,
    choice,
    integer,
    lower_dims,
    rank_of,
    shape_arg,
    value_of,
)
from .types import DataType, dtype_of

KINDS = {
    "": 0, "vector": 0, "cube": 1, "mix": 2, "parallel": 3, "seq": 4, "split": 5, "eager": 6,
}  # fmt: skip
FLAGS = {"dyn": 1, "unify_ws": 2, "spec": 4, "priv1": 1 << 30, "priv2": 1 << 31}
KIND_NAMES = ("vector", "cube", "mix", "parallel", "seq", "split", "eager")
_C_FLAGS = 1 | 2 | 4
_FLAG_NAMES = {"F_DYN": 1, "F_UWS": 2, "F_SPEC": 4, "F_OPT_FRAC": 1 << 29, "F_PRIV1": 1 << 30}
_ALL_FLAGS = sum(_FLAG_NAMES.values()) | FLAGS["priv2"]
_MOST_CORES = 65535  # that a limit can name: more than any pool has

# Graphs kept per kernel, the oldest is dropped first.
MAX_BUILDS = 64


def _known(name: str, names: Any, what: str) -> str:
    near = difflib.get_close_matches(name, [n for n in names if n], 1)
    return f"did you mean {near[0]}?" if near else f"{what} are {', '.join(n for n in names if n)}"


def parse_kind(ker_type: str) -> tuple[int, int]:
    """Numbers of kind and flags of "type[:flag[,flag...]]"."""
    if not isinstance(ker_type, str):
        raise ArgumentError(f"a kernel type is a string such as 'split:dyn', given {ker_type!r}")
    name, _, rest = ker_type.partition(":")
    if name not in KINDS:
        raise KindError(f"kernel type error: {name!r}; {_known(name, KINDS, 'types')}")
    flags = 0
    for flag in rest.split(",") if rest else ():
        if flag not in FLAGS:
            raise KindError(f"kernel flag error: {flag!r}; {_known(flag, FLAGS, 'flags')}")
        flags |= FLAGS[flag]
    return KINDS[name], flags


class LoadSpec:
    """How a tensor argument is declared."""

    __slots__ = ("any_rank", "bound", "dtype", "dynamic", "parameter", "rank", "shape", "strides")

    def __init__(
        self, dtype: DataType, shape: Any, strides: Any, dynamic: bool, any_rank: bool
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.dynamic = dynamic
        self.any_rank = any_rank
        self.rank: int | None = None  # of the replay under way, when any_rank
        self.bound: NDObject | None = None  # reads what this stored or accesses
        self.parameter = -1  # position of the call argument, in placeholder kernels

    def dims(self) -> Any:
        if self.any_rank:
            return None if self.rank is None else (-1,) * self.rank
        return (-1,) * len(self.shape) if self.dynamic else self.shape


class StoreSpec:
    """How an output is declared."""

    __slots__ = ("inplace", "pads", "strides", "temp")

    def __init__(self, strides: Any = None, pads: tuple[int, ...] = ()) -> None:
        self.strides = strides
        self.pads = pads
        self.inplace = False
        self.temp = False


def low_load(g: Any, spec: LoadSpec) -> Any:
    if spec.bound is not None:
        return _low_bound(g, spec, value_of(spec.bound))
    dims = spec.dims()
    if dims is None:
        return g.load(spec.dtype.code)
    return g.load(spec.dtype.code, lower_dims(g, dims))  # arguments bring their strides


def _low_bound(g: Any, spec: LoadSpec, v: Any) -> Any:
    """A load that reads a stored value, in a shape and with strides of its own."""
    shape = lower_dims(g, spec.shape)
    if spec.strides is None:
        return g.reshape(v, shape)
    op, code = ops._OP, ops._I64
    at = g.const(code, 0)
    for axis, stride in enumerate(lower_dims(g, spec.strides)):
        at = g.op(op["add"], g.op(op["mul"], g.iota(code, shape, axis), g.const(code, stride)), at)
    return g.gather(g.reshape(v, [-1]), g.broadcast(at, shape), 0, 1)


def low_gather_load(g: Any, spec: LoadSpec, index: NDObject, axis: int, mode: int) -> Any:
    return g.gather(low_load(g, spec), value_of(index), axis, mode)


def low_slice_load(g: Any, spec: LoadSpec, start: Any, size: Any) -> Any:
    return g.slice(low_load(g, spec), lower_dims(g, start), lower_dims(g, size))


def low_strided_load(g: Any, spec: LoadSpec, start: Any, end: Any) -> Any:
    v = low_load(g, spec)
    starts, ends = lower_dims(g, start), lower_dims(g, end)
    for axis in range(rank_of(v)):
        v = ops._cut(g, v, axis, starts[axis], ends[axis], 1)
    return v


def low_store(g: Any, spec: StoreSpec, x: NDObject) -> Any:
    v = value_of(x)
    if spec.temp:
        return v
    if spec.pads:
        v = ops.low_pad(g, v, spec.pads, x._dtype.code)
    if spec.strides is not None and v.rank >= 0:
        strides = lower_dims(g, spec.strides)
        if len(strides) != v.rank:
            raise ShapeError(f"view_store: {v.rank} axes with {len(strides)} strides")
    return g.store(v)  # outputs bring their strides


def low_section(g: Any, kind: int, flags: int, cores: int) -> None:
    g.section(kind, flags, cores)


class Build:
    """One graph of a program and what it depends on."""

    __slots__ = (
        "arrays",
        "codes",
        "graph",
        "inputs",
        "kernel",
        "outputs",
        "ranks",
        "stale",
        "where",
    )

    def __init__(self, graph: Any, ranks: tuple[int, ...] | None) -> None:
        self.graph = graph
        self.ranks = ranks
        self.arrays: dict[IntArrayRef, Any] = {}  # contents used
        self.codes: dict[ScalarRef, int] = {}  # dtypes used where none was declared
        self.inputs: list[NDObject | ScalarRef] = []
        self.outputs: list[NDObject] = []
        self.stale = False
        self.where: str | None = None
        self.kernel: Any = None


class Kernel(ops.Operations):
    """A kernel under construction.

    `ker_type` is `type[:flag[,flag...]]`: vector (also ""), cube, mix, parallel, seq, split or
    eager, with flags dyn (shapes and ranks of loads are those of the arguments), unify_ws, spec,
    priv1, priv2. Results do not depend on the type; it limits what may be built.
    """

    K_VEC, K_CUBE, K_MIX, K_PARAL, K_SEQ, K_SPLIT, K_EAGER = range(7)
    F_DYN, F_UWS, F_SPEC, F_OPT_FRAC, F_PRIV1 = 1, 2, 4, 1 << 29, 1 << 30

    def __init__(self, ker_type: str = "", *, strict: bool = False, context: Any = None) -> None:
        self.ker_type = ker_type
        self._kind, self._flags = parse_kind(ker_type)
        self._strict = strict
        self._context = context
        # Ranks of loads are those given while building (torch's kernels, symbolic shapes).
        self._rank_given = bool(self._flags & FLAGS["priv1"])
        self._name = ""
        self._label = "kernel"  # in the profiler of torch, while it has no name
        self._position: str | None = None
        self._clear()

    def _clear(self) -> None:
        self._nodes: list[NDObject | ScalarRef] = []
        self._arrays: list[IntArrayRef] = []
        self._untyped: list[ScalarRef] = []
        self._needs_ranks = False
        self._builds: dict[Any, Build] = {}
        self._recent: Build | None = None
        self._build: Build | None = self._new_build(None)

    @property
    def dynamic(self) -> bool:
        """Whether shapes are those of the arguments of each run."""
        return bool(self._flags & FLAGS["dyn"])

    # ---------------------------------------------------------------- recording

    def _emit(
        self, name: str, dtype: Any, low: Callable[..., Any], *args: Any, spec: Any = None
    ) -> NDObject:
        for a in args:
            if type(a) not in _PLAIN:
                self._scan(a)
        node = NDObject(self, name, dtype, low, args, self._position or _caller())
        node._with = spec
        self._nodes.append(node)
        if self._build is not None:
            try:
                self._lower(self._build, node)
            except Later:
                self._build = None
            except BaseException:
                self._nodes.pop()
                raise
        if self._builds:
            self._builds.clear()
        return node

    def _scan(self, a: Any) -> None:
        """Finds references in recorded arguments."""
        if type(a) is IntArrayRef:
            if a not in self._arrays:
                self._arrays.append(a)
            b = self._build
            if b is not None and b.arrays.setdefault(a, a._data) != a._data:
                b.stale = True
            for d in a._data or ():
                if type(d) is not int:
                    self._scan(d)
        elif isinstance(a, ScalarRef):
            self._use(a)
        elif isinstance(a, Dim):
            self._scan(a.a)
            self._scan(a.b)
        elif isinstance(a, (tuple, list)):
            for d in a:
                if type(d) not in _PLAIN:
                    self._scan(d)

    def _use(self, ref: ScalarRef) -> None:
        """Makes a ScalarRef an argument of this kernel."""
        if ref._k is self:
            return
        if ref._k is not None:
            raise _dvm.ForeignValueError("a ScalarRef belongs to one kernel")
        ref._k = self
        ref._where = self._position or _caller()
        self._nodes.append(ref)
        if ref._declared is None:
            self._untyped.append(ref)
        if self._build is not None:
            self._lower(self._build, ref)

    def _new_build(self, ranks: tuple[int, ...] | None) -> Build:
        # Results do not depend on the type. A vector program must be one kernel, or be marked spec (or
        # priv1, where the original finds the cuts itself); eager is cut freely.
        free = self._kind == self.K_VEC and self._flags & FLAGS["priv1"]
        kind = self.K_SPLIT if free or self._kind == self.K_EAGER else self._kind
        c_flags = self._flags & _C_FLAGS | (8 if self._strict else 0)
        context = self._context or _dvm.default_context()
        graph = _dvm.Graph(kind, c_flags, context)
        if self._name:
            graph.set_name(self._name)
        return Build(graph, ranks)

    def _lower(self, b: Build, node: NDObject | ScalarRef) -> None:
        """Adds one line to a graph. On an exception the line is not part of it."""
        if node._where != b.where:
            b.where = node._where
            b.graph.at(node._where)
        if isinstance(node, ScalarRef):
            code = node.dtype().code
            node._val = b.graph.scalar(code)
            b.inputs.append(node)
            if node._declared is None:
                b.codes[node] = code
            return
        try:
            node._val = node._low(b.graph, *node._args)
        except (_dvm.Error, OverflowError, TypeError, ValueError) as error:
            raise _placed(error, node) from error.__cause__
        spec = node._with
        if spec is not None:
            if type(spec) is LoadSpec:
                if spec.bound is None:
                    b.inputs.append(node)
            elif not spec.temp:
                b.outputs.append(node)

    # ---------------------------------------------------------------- graphs by their conditions

    def _any_rank_loads(self) -> list[NDObject]:
        return [
            n
            for n in self._nodes
            if type(n) is NDObject and type(n._with) is LoadSpec and n._with.any_rank
        ]

    def _key(self, ranks: tuple[int, ...] | None) -> Any:
        return (
            ranks,
            tuple(a._data for a in self._arrays),
            tuple(s.dtype().code for s in self._untyped),
        )

    def _live_key(self, b: Build) -> Any:
        return (
            b.ranks,
            tuple(b.arrays.get(a, a._data) for a in self._arrays),
            tuple(b.codes.get(s, s.dtype().code) for s in self._untyped),
        )

    def _specialize(self, ranks_of: Callable[[NDObject], int] | None = None) -> Build:
        """The compiled graph for the present contents of references and, when the program depends
        on them, the ranks that `ranks_of` tells of loads.
        """
        for a in self._arrays:
            for d in a._data or ():
                if type(d) is not int:
                    self._scan(d)
        ranks: tuple[int, ...] | None = None
        if self._needs_ranks and ranks_of is not None:
            ranks = tuple(ranks_of(n) for n in self._any_rank_loads())
        key = self._key(ranks)
        b = self._builds.get(key)
        if b is not None:
            self._recent = b
            return b
        b = self._build
        if b is None or b.stale or self._live_key(b) != key:
            try:
                b = self._replay(ranks)
            except Later:
                if ranks is not None or ranks_of is None or not self._any_rank_loads():
                    raise StateError(
                        "the kernel cannot be compiled before its IntArrayRefs and inputs are set"
                    ) from None
                self._needs_ranks = True
                return self._specialize(ranks_of)
        b.kernel = b.graph.compile()
        b.kernel.label = f"dvm::{self._name or self._label}"
        names = self._input_names(b)
        if names is not None:
            b.kernel.names = names
        while len(self._builds) >= MAX_BUILDS:
            self._builds.pop(next(iter(self._builds)))
        self._builds[key] = self._recent = b
        return b

    def _input_names(self, b: Build) -> tuple[str, ...] | None:
        """What errors call the inputs, beside their numbers."""
        return None

    def _replay(self, ranks: tuple[int, ...] | None) -> Build:
        self._build = None
        b = self._new_build(ranks)
        for n in self._nodes:
            n._val = None
        for i, n in enumerate(self._any_rank_loads()):
            n._with.rank = None if ranks is None else ranks[i]
        for a in self._arrays:
            b.arrays[a] = a._data
        pending: Sequence[Any] = self._nodes
        while pending:
            rest = []
            for n in pending:
                try:
                    self._lower(b, n)
                except Later:  # perhaps a load bound to a store that comes later
                    rest.append(n)
            if len(rest) == len(pending):
                raise Later
            pending = rest
        self._build = b
        return b

    # ---------------------------------------------------------------- inputs

    def _load_spec(self, shape: Any, dtype: Any, strides: Any = None) -> LoadSpec:
        shape = shape_arg(shape)
        for part in (shape, strides):
            if part is not None:
                self._scan(part)
        dynamic = self.dynamic
        return LoadSpec(dtype_of(dtype), shape, strides, dynamic, dynamic and not self._rank_given)

    def load(self, shape: Any, dtype: Any = "float32") -> NDObject:
        """A tensor argument of this shape. In a `dyn` kernel shape and rank are those of the
        argument; in a static one a size of -1 is that of the argument.
        """
        spec = self._load_spec(shape, dtype)
        return self._emit("load", spec.dtype, low_load, spec, spec=spec)

    def view_load(self, shape: Any, stride: Any, *rest: Any) -> NDObject:
        """`view_load(shape, stride, dtype)`: a tensor argument addressed by strides in elements.

        The numpy runner takes the memory and an offset in `input`; elsewhere the argument is an
        array or tensor of this shape, and its own strides count. (Gen-2 had an offset before the
        dtype; it is accepted when 0.)
        """
        if len(rest) == 2 and rest[0] == 0:
            rest = rest[1:]
        if len(rest) != 1:
            raise ArgumentError("view_load(shape, stride, dtype); the offset goes to input()")
        spec = self._load_spec(shape, rest[0], shape_arg(stride))
        if len(spec.strides) != len(spec.shape):
            raise ShapeError(f"view_load: {len(spec.shape)} sizes with {len(spec.strides)} strides")
        return self._emit("view_load", spec.dtype, low_load, spec, spec=spec)

    def global_access(self, shape: Any, dtype: Any = "float32") -> NDObject:
        """A tensor argument that is used as an index or partner of another load."""
        spec = self._load_spec(shape, dtype)
        return self._emit("global_access", spec.dtype, low_load, spec, spec=spec)

    def gather_load(
        self, shape: Any, index: NDObject, dtype: Any, axis: int = 0, gather_mode: int = 0
    ) -> NDObject:
        """Elements (mode 0: numpy.take_along_axis) or slices (mode 1: numpy.take) of a tensor
        argument by an index of int32 or int64; negative indices count from the end.
        """
        spec = self._load_spec(shape, dtype)
        index = self._tensor("gather_load", index)
        args = (spec, index, axis, choice("gather_load", "gather_mode", gather_mode, (0, 1)))
        return self._emit("gather_load", spec.dtype, low_gather_load, *args, spec=spec)

    def slice_load(self, shape: Any, start: Any, size: Any, dtype: Any) -> NDObject:
        """The box of `size` from `start` of a tensor argument; a negative start counts from the
        end.
        """
        spec = self._load_spec(shape, dtype)
        args = (spec, shape_arg(start), shape_arg(size))
        return self._emit("slice_load", spec.dtype, low_slice_load, *args, spec=spec)

    def stridedslice_load(
        self, shape: Any, start: Any, end: Any, step: Any, dtype: Any
    ) -> NDObject:
        """The box [start, end) of a tensor argument; every step must be 1."""
        if any(s != 1 for s in step):
            raise ArgumentError("stridedslice_load: every step must be 1; use view_load")
        spec = self._load_spec(shape, dtype)
        args = (spec, shape_arg(start), shape_arg(end))
        return self._emit("stridedslice_load", spec.dtype, low_strided_load, *args, spec=spec)

    def scalar(self, dtype: Any = None) -> ScalarRef:
        """A number that is read at every run; without a dtype, int64 or float32 by its value."""
        ref = ScalarRef(dtype)
        self._use(ref)
        return ref

    def int_array(self) -> IntArrayRef:
        """A list of integers that shapes, axes and bounds may refer to."""
        return IntArrayRef()

    def make_int(self) -> ScalarRef:
        """Older name of scalar(int64)."""
        return self.scalar("int64")

    def make_float(self) -> ScalarRef:
        """Older name of scalar(float32)."""
        return self.scalar("float32")

    def intref(self) -> IntArrayRef:
        """Older name of int_array."""
        return self.int_array()

    # ---------------------------------------------------------------- outputs

    def _store(self, name: str, x: NDObject, dtype: Any, spec: StoreSpec) -> NDObject:
        x = self._tensor(name, x)
        if dtype is not None:
            x = self.cast(x, dtype)
        return self._emit(name, x._dtype, low_store, spec, x, spec=spec)

    def store(self, x: NDObject, dtype: Any = None) -> NDObject:
        """The next output, cast to `dtype` first if given. The result names the output and may be
        used as a value.
        """
        return self._store("store", x, dtype, StoreSpec())

    def view_store(self, x: NDObject, stride: Any, dtype: Any = None) -> NDObject:
        """The next output, written with strides in elements; gaps keep their contents."""
        steps = shape_arg(stride)
        if not self.dynamic and any(type(s) is int and s < 0 for s in steps or ()):
            raise ShapeError(
                f"view_store: strides are not negative, given {list(steps)}: an output begins at its "
                "first element; store a reversed slice instead"
            )
        return self._store("view_store", x, dtype, StoreSpec(steps))

    def pad_store(self, x: NDObject, pad_size: Any, dtype: Any = None) -> NDObject:
        """The next output with the last axis enlarged by `pad_size` zeros. Older form: a tuple of
        pads of the last axes.
        """
        pads = shape_arg(pad_size)
        if not all(isinstance(p, int) and p >= 0 for p in pads):
            raise ArgumentError(f"pad_store: pads are integers from 0, given {pad_size!r}")
        return self._store("pad_store", x, dtype, StoreSpec(None, pads))

    def concat_store(self, xs: Sequence[NDObject], dim: int) -> NDObject:
        """The next output: values side by side along an axis."""
        return self.store(self.concat(xs, dim))

    def set_store_inplace(self, store: NDObject) -> None:
        """The output buffer is also an input. (Nothing to do: overlap is found at every run.)"""
        _spec_of(store, StoreSpec, "set_store_inplace").inplace = True

    def set_store_temp(self, store: NDObject) -> None:
        """The stored value is no output: it only serves loads bound to it."""
        _spec_of(store, StoreSpec, "set_store_temp").temp = True
        self._redo()

    def set_load_bind(self, load: NDObject, source: NDObject) -> None:
        """The load reads what `source` (a store or a tensor argument) holds, in its own shape."""
        if type(source) is not NDObject:
            raise ArgumentError(f"set_load_bind: expected a value of the kernel, given {source!r}")
        if source._k is not self:
            raise _dvm.ForeignValueError("set_load_bind: a value of another kernel")
        _spec_of(load, LoadSpec, "set_load_bind").bound = source
        self._redo()

    def _redo(self) -> None:
        self._builds.clear()
        self._build = None

    # ---------------------------------------------------------------- structure

    def _section(self, what: str, ktype: int | str, flags: int, cores: int = 0) -> None:
        own = 0
        if isinstance(ktype, str):
            kind, own = parse_kind(ktype)
        else:
            kind = integer(what, "ktype", ktype)
        if not 0 <= kind <= self.K_PARAL:
            raise KindError(f"a sub-kernel cannot be of type {ktype!r}")
        given = integer(what, "flags", flags)
        if given & ~_ALL_FLAGS:
            names = ", ".join(f"{n} ({v})" for n, v in _FLAG_NAMES.items())
            raise ArgumentError(f"{what}: flags are a sum of {names}, given {flags!r}")
        self._emit("section", None, low_section, kind, (given | own) & _C_FLAGS, cores)

    def _own_sections(self) -> str:
        own = {self.K_SEQ: "seq_add", self.K_PARAL: "parallel_add"}.get(self._kind)
        kind = KIND_NAMES[self._kind]
        return f"; this one, {kind}, " + (f"has {own}" if own else 'has no sections')

    def parallel_add(self, ktype: int | str, flags: int = 0, core_limit: int = 0) -> None:
        """Opens the next independent part of a `parallel` kernel. Parts run one after the other, each on
        all threads or, with a `core_limit` from 1 on, on at most that many; no bit of a result depends on it.
        """
        if self._kind != self.K_PARAL:
            raise StateError(f"parallel_add belongs to kernels of type parallel{self._own_sections()}")
        cores = integer("parallel_add", "core_limit", core_limit)
        if cores < 0:
            raise ArgumentError(f"parallel_add: core_limit is 0 or a number of cores, not {core_limit!r}")
        self._section("parallel_add", ktype, flags, min(cores, _MOST_CORES))

    def seq_add(self, ktype: int | str, flags: int = 0) -> None:
        """Opens the next stage of a `seq` kernel, the first included."""
        if self._kind != self.K_SEQ:
            raise StateError(f"seq_add belongs to kernels of type seq{self._own_sections()}")
        self._section("seq_add", ktype, flags)

    def p_next(self) -> None:
        """Older form of parallel_add, called between the parts."""
        self.parallel_add(self.K_VEC)

    def spec_next(self) -> None:
        """In vector:spec: what follows may become another kernel. The planner finds out itself."""

    def tile(self, start: int, end: int, num: int, factor: int = 0) -> None:
        """A scheduling hint of the original. It has no effect here."""

    def set_kernel_info(self, name: str, fullname: str = "", *_: Any) -> None:
        """Names for profiles and texts."""
        if not isinstance(name, str):
            raise ArgumentError(f"set_kernel_info: a name is a string, given {name!r}")
        self._name = re.sub(r"[^A-Za-z0-9_.]", "_", name)[:63]
        if self._build is not None and self._name:
            self._build.graph.set_name(self._name)

    def at(self, where: str | None) -> None:
        """Source position ("file:line") that errors name for the lines that follow; None: that of
        the caller.
        """
        if where is not None and not isinstance(where, str):
            raise ArgumentError(f"at: a position is a string such as 'model.py:17', given {where!r}")
        self._position = where

    def clone(self, base: Kernel, remap: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Replaces the program of this kernel by a copy of another's, its type included. Returns
        the new objects that stand for those of `remap`.
        """
        if not isinstance(base, Kernel):
            raise ArgumentError(f"clone: expected a Kernel, given {base!r}")
        self._kind, self._flags, self._strict = base._kind, base._flags, base._strict
        self._rank_given, self._name, self.ker_type = base._rank_given, base._name, base.ker_type
        self._clear()
        copies: dict[int, Any] = {}
        for node in base._nodes:
            _copy_node(node, self, copies)
        for node in base._nodes:  # a load may stand before the store it is bound to
            bound = getattr(getattr(node, "_with", None), "bound", None)
            if bound is not None:
                copies[id(node)]._with.bound = copies[id(bound)]
        self._arrays = [copies.setdefault(id(a), IntArrayRef(a._data or ())) for a in base._arrays]
        for old, new in zip(base._arrays, self._arrays, strict=True):
            new._data = old._data
        self._needs_ranks = base._needs_ranks
        self._build = None
        return tuple(copies[id(o)] for o in remap)

    # ---------------------------------------------------------------- compiling

    def compile(self) -> _dvm.Kernel:
        """Compiles the program as it stands: an object with run(), call(), infer(), text()."""
        return self._specialize().kernel

    def graph_text(self) -> str:
        """The graph in the language of the command dvm."""
        b = self._build
        if b is None:
            b = self._specialize()
        return b.graph.text()

    def dump(self) -> str:
        """The program as text, one line per operation."""
        return text.dump(self)

    def das(self) -> str:
        """The instructions of the newest run (of the compiled kernel when it is static)."""
        return text.das(self._newest().kernel)

    def stats(self) -> dict[str, int]:
        """Numbers of the newest plan: compile_ns, kernels, instructions, bytes_moved, ..."""
        return self._newest().kernel.stats()

    def explain(self) -> str:
        """Kernels, phases and bytes of the newest run, with the reasons."""
        return self._newest().kernel.text("explain")

    def _newest(self) -> Build:
        """The graph compiled or run last."""
        return self._recent if self._builds and self._recent is not None else self._specialize()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a Kernel cannot be copied or pickled: use clone(), or keep graph_text()")

    def __repr__(self) -> str:
        kind = KIND_NAMES[self._kind] + (":dyn" if self.dynamic else "")
        return f"<dvm.{type(self).__name__} {kind}, {len(self._nodes)} lines>"


def _placed(error: Exception, node: NDObject) -> _dvm.Error:
    """An error of a line with the line's place and operation in its text, where they lack."""
    if isinstance(error, OverflowError):
        error = ArgumentError("a number beyond 64 bits")
    elif not isinstance(error, _dvm.Error):  # an argument that is no integer, list or number
        error = ArgumentError(str(error))
    text, place = str(error), f"{node._where}: "
    text = text.removeprefix(place)
    if not re.match(r"in \w+(?: \(%\d+\))?: ", text):
        text = f"in {node._name}: {text}"
    error.args = (place + text,)
    return error


_PLAIN = {NDObject, int, float, str, bool, type(None), LoadSpec, StoreSpec, DataType}


def _spec_of(node: Any, kind: type, what: str) -> Any:
    if type(node) is not NDObject or type(node._with) is not kind:
        raise ArgumentError(f"{what}: expected a {kind.__name__[:-4].lower()}, given {node!r}")
    return node._with


def _copy_node(node: Any, to: Kernel, copies: dict[int, Any]) -> None:
    if type(node) is ScalarRef:
        ref = ScalarRef(node._declared)
        ref.value, ref._k, ref._where = node.value, to, node._where
        if ref._declared is None:
            to._untyped.append(ref)
        copies[id(node)] = ref
        to._nodes.append(ref)
        return
    spec = _copy_spec(node._with, copies)
    if spec is not None:
        copies[id(node._with)] = spec
    args = tuple(_copy_arg(a, copies) for a in node._args)
    new = NDObject(to, node._name, node._dtype, node._low, args, node._where)
    new._with = spec
    copies[id(node)] = new
    to._nodes.append(new)


def _copy_spec(spec: Any, copies: dict[int, Any]) -> Any:
    if type(spec) is LoadSpec:
        shape, strides = _copy_arg(spec.shape, copies), _copy_arg(spec.strides, copies)
        new = LoadSpec(spec.dtype, shape, strides, spec.dynamic, spec.any_rank)
        new.parameter = spec.parameter
        return new
    if type(spec) is StoreSpec:
        store = StoreSpec(_copy_arg(spec.strides, copies), spec.pads)
        store.inplace, store.temp = spec.inplace, spec.temp
        return store
    return None


def _copy_arg(a: Any, copies: dict[int, Any]) -> Any:
    if id(a) in copies:
        return copies[id(a)]
    if type(a) is IntArrayRef:
        new = IntArrayRef()
        new._data = a._data
        copies[id(a)] = new
        return new
    if type(a) is Dim:
        return Dim(a.op, _copy_arg(a.a, copies), _copy_arg(a.b, copies))
    if isinstance(a, (tuple, list)):
        return type(a)(_copy_arg(d, copies) for d in a)
    return a


# ------------------------------------------------------------------------------- source positions

_OWN = {f.__code__.co_filename for f in (Kernel._emit, ops.low_unary, record.value_of, text.dump)}
_last: tuple[str, int, str] = ("", 0, "")


def _caller() -> str:
    """Position of the nearest caller outside this package."""
    global _last
    f: FrameType | None = sys._getframe(2)
    while f is not None and f.f_code.co_filename in _OWN:
        f = f.f_back
    if f is None:
        return "?"
    name, line = f.f_code.co_filename, f.f_lineno
    if _last[1] == line and _last[0] == name:
        return _last[2]
    if not name.isascii():
        name = name.encode("utf-8", "replace")[-400:].decode("utf-8", "replace")
    where = f"{name[-400:]}:{line}"
    _last = (f.f_code.co_filename, line, where)
    return where


def own_file(function: Callable[..., Any]) -> None:
    """Counts the file of a function as part of the package in source positions."""
    _OWN.add(function.__code__.co_filename)
