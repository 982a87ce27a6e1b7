"""PyKernel: the numpy runner. Arrays are copied in; outputs are arrays that every run fills."""

from __future__ import annotations

import json
import math
import operator
import os
import time
from collections.abc import Sequence
from typing import Any

import _dvm
import numpy as np
from _dvm import ArgumentError, DTypeError, ShapeError, StateError

from . import arrays, builder
from .builder import Build, Kernel, LoadSpec, StoreSpec
from .record import IntArrayRef, NDObject, ScalarRef

_OPTIONS = {"deterministic": True, "online_tuning": False, "lazy_tuning": False}


def _option(name: str, value: Any = True) -> None:
    _OPTIONS[name] = value


class PyKernel(Kernel):
    """A kernel with its arguments.

        k = dvm.PyKernel("vector")
        x = k.load([4], dvm.float32)
        y = k.store(k.sqrt(x))
        k.input(x, np.arange(4, dtype=np.float32))
        k.codegen()
        out = k.output(y)
        k.run()

    run_type "dev" and "dry" compute, "das" only generates code.
    """

    def __init__(
        self, ker_type: str = "", run_type: str = "dev", dev_id: int = 0, **options: Any
    ) -> None:
        super().__init__(ker_type, **options)
        if run_type not in ("dev", "dry", "das"):
            raise ArgumentError(f"run_type is dev, dry or das, given {run_type!r}")
        self.run_type = run_type
        self.dev_id = dev_id

    def _clear(self) -> None:
        super()._clear()
        self._given: dict[NDObject, tuple[Any, int]] = {}
        self._held: dict[NDObject, Any] = {}  # array of each output
        self._users: set[NDObject] = set()  # outputs whose array is the caller's
        self._zeroed: set[NDObject] = set()

    # ---------------------------------------------------------------- arguments

    def input(self, ref: Any, value: Any, offset: int = 0) -> None:
        """The value of a load, ScalarRef or IntArrayRef for the runs that follow.

        Arrays are copied. For a view_load `value` is the memory and `offset` the first element;
        for other loads `offset` moves the start of the array, counted in elements.
        """
        if isinstance(ref, (IntArrayRef, ScalarRef)):
            ref.update(value)
            return
        if type(ref) is not NDObject or type(ref._with) is not LoadSpec or ref._k is not self:
            raise ArgumentError(f"input: expected a load of this kernel, given {ref!r}")
        want = ref._with.dtype
        try:
            array, first = arrays.as_array(value, want), operator.index(offset)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"input: expected an array and an integer offset: {error}"
            ) from None
        given = arrays.dtype_of_array(array)
        if given is not want:
            hint = "; convert with convert_to_bf16" if want.name == "bfloat16" else ""
            raise DTypeError(f"input: expected {want}, given {given}{hint}")
        if not 0 <= first <= array.size:
            raise ShapeError(
                f"input: the offset is 0 to {array.size}, the elements of the array, given {first}"
            )
        self._given[ref] = (np.array(array, copy=True, order="C"), first)

    def set_output(self, store: NDObject, array: Any) -> None:
        """The array that a store writes to; for view_store it is the memory from its first
        element on.
        """
        self._output_spec(store)
        view = arrays.as_array(array)
        if not isinstance(view, np.ndarray) or not view.flags.writeable:
            raise ArgumentError("set_output: expected an array that can be written")
        given = arrays.dtype_of_array(view)
        if given is not store._dtype:
            raise DTypeError(f"set_output: expected {store._dtype}, given {given}")
        self._held[store] = view
        self._users.add(store)

    def output(self, store: NDObject) -> np.ndarray:
        """The array that every run fills (bfloat16: uint16). Its shape is that of the present
        inputs; when they change, ask again.
        """
        self._output_spec(store)
        b, args = self._ready()
        return self._buffers(b, args)[b.outputs.index(store)][0]

    def clear_store_memory(self, store: NDObject) -> None:
        """The output is zeroed before each run."""
        self._output_spec(store)
        self._zeroed.add(store)

    def _output_spec(self, store: Any) -> StoreSpec:
        if (
            type(store) is not NDObject
            or type(store._with) is not StoreSpec
            or store._k is not self
        ):
            raise ArgumentError(f"expected a store of this kernel, given {store!r}")
        return store._with

    # ---------------------------------------------------------------- running

    def codegen(self, passes: Sequence[str] | None = None) -> None:
        """Compiles for what is known. `passes` of the original are accepted and not needed."""
        loads = [n for n in self._nodes if type(n) is NDObject and type(n._with) is LoadSpec]
        waiting = any(n not in self._given and n._with.bound is None for n in loads)
        if self.dynamic and waiting and not self._rank_given:
            return  # shapes come with the inputs
        self._specialize(self._rank_of)

    def setup(self) -> None:
        """Older name of codegen."""
        self.codegen()

    def run(self) -> None:
        """Computes. Raises an Error of DVM when arguments do not fit."""
        b, args = self._ready()
        if self.run_type == "das":
            return
        outs = self._buffers(b, args)
        for store, (array, _) in zip(b.outputs, outs, strict=True):
            if store in self._zeroed:
                array[...] = 0
        b.kernel.run(*args, *[view for _, view in outs])

    def perf(self) -> tuple[float, float, float]:
        """(least, greatest, mean) microseconds of 10 runs after a warm-up."""
        b, args = self._ready()
        call = [*args, *[view for _, view in self._buffers(b, args)]]
        times = []
        for i in range(13):
            start = time.perf_counter_ns()
            b.kernel.run(*call)
            if i >= 3:
                times.append((time.perf_counter_ns() - start) / 1000)
        return min(times), max(times), sum(times) / len(times)

    def msprof(self, path: str | os.PathLike[str], n: int) -> None:
        """Runs n times and writes the times in microseconds to dvm_profile.json in a folder."""
        times = []
        for _ in range(n):
            start = time.perf_counter_ns()
            self.run()
            times.append((time.perf_counter_ns() - start) / 1000)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "dvm_profile.json"), "w", encoding="utf-8") as f:
            json.dump({"kernel": self._name or "kernel", "us": times}, f)

    def dry_run(self, core_idx: int = 0, cube_core: bool = False) -> None:
        """Computes; there are no separate cores to interpret."""
        self.run()

    def reset(self) -> None:
        """Forgets arguments and outputs; an eager kernel forgets its program as well."""
        if self._kind == self.K_EAGER:
            self._clear()
            return
        self._given.clear()
        self._held.clear()
        self._users.clear()
        self._zeroed.clear()

    def _rank_of(self, load: NDObject) -> int:
        if load not in self._given:
            raise StateError(f"an input has no value yet: {load!r}")
        return self._given[load][0].ndim

    def _ready(self) -> tuple[Build, list[Any]]:
        b = self._specialize(self._rank_of)
        return b, [self._argument(n) for n in b.inputs]

    def _argument(self, ref: NDObject | ScalarRef) -> Any:
        if type(ref) is ScalarRef:
            if ref.value is None:
                raise StateError("a ScalarRef has no value yet")
            return ref.value
        if ref not in self._given:
            raise StateError(f"an input has no value yet: {ref!r}")
        array, offset = self._given[ref]
        spec = ref._with
        shape = _numbers(spec.shape)
        if spec.strides is not None:
            strides = _numbers(spec.strides, signed=not spec.dynamic)
            if shape is not None and strides is not None:
                return _strided(array, offset, shape, strides)
        if not offset:
            return array
        flat = array.reshape(-1)[offset:]
        if shape is None:
            return flat
        need = math.prod(shape)
        if need > flat.size:
            raise ShapeError(
                f"a load of shape {list(shape)} at offset {offset} needs {offset + need} elements, "
                f"the array has {array.size}"
            )
        return flat[:need].reshape(shape)

    def _steps(self, store: NDObject) -> tuple[int, ...] | None:
        return _numbers(store._with.strides, signed=not self.dynamic)

    def _buffers(self, b: Build, args: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Array and strided view of each output for these arguments."""
        out = []
        for store, (shape, _) in zip(b.outputs, b.kernel.infer(*args), strict=True):
            strides = None if store._with.strides is None else self._steps(store)
            array = self._held.get(store)
            if array is not None and store in self._users:
                view = _fit(array, shape, strides)
            else:
                count = None if strides is None else _extent(shape, strides)
                wanted = tuple(shape) if count is None else (count,)
                if array is None or array.shape != wanted:
                    array = np.zeros(wanted, store._dtype.numpy_name)
                    self._held[store] = array
                view = array if strides is None else _strided(array, 0, shape, strides)
            out.append((array, view))
        return out

    # ---------------------------------------------------------------- conversions and options

    @staticmethod
    def convert_to_bf16(a: Any) -> np.ndarray:
        """Raw bits (uint16) of an array rounded to bfloat16."""
        return arrays.to_bf16(a)

    @staticmethod
    def convert_from_bf16(bits: Any) -> np.ndarray:
        """float32 values of raw bfloat16 bits."""
        return arrays.from_bf16(bits)

    @staticmethod
    def set_deterministic(enable: bool) -> None:
        """Accepted: results are the same at every run anyway."""
        _option("deterministic", enable)

    set_determ = set_deterministic

    @staticmethod
    def set_online_tuning(enable: bool) -> None:
        """Accepted: nothing is tuned by measuring."""
        _option("online_tuning", enable)

    @staticmethod
    def set_lazy_tuning(enable: bool) -> None:
        """Accepted: nothing is tuned by measuring."""
        _option("lazy_tuning", enable)

    @staticmethod
    def set_cube_store_type(*_: Any) -> None:
        """Accepted without effect."""

    @staticmethod
    def rank_id() -> int:
        """0: a process computes for itself."""
        return 0

    @staticmethod
    def rank_size() -> int:
        """1: a process computes for itself."""
        return 1

    @staticmethod
    def barrier() -> None:
        """Nothing to wait for."""

    @staticmethod
    def join() -> None:
        """Nothing to wait for."""

    @staticmethod
    def init_comm(rank: int, size: int, kind: Any = None) -> None:
        """Only a group of one process."""
        if size != 1:
            raise _no_groups()

    @staticmethod
    def fork(size: int, kind: str = "") -> None:
        """Only a group of one process."""
        if size != 1:
            raise _no_groups()


def _no_groups() -> Exception:
    return _dvm.UnsupportedError(
        "groups of processes are not available in this version of DVM: "
        "use torch.distributed or mpi4py between two kernels"
    )


def _numbers(shape: Any, signed: bool = False) -> tuple[int, ...] | None:
    """A recorded shape as numbers, None when some are known at run time only. `signed`: strides,
    none of which is a placeholder.
    """
    out = []
    for d in shape:
        if isinstance(d, ScalarRef) and d.value is not None:
            d = int(d.value)
        if not isinstance(d, int) or (d < 0 and not signed):
            return None
        out.append(d)
    if isinstance(shape, IntArrayRef) and shape._data is None:
        return None
    return tuple(out)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True) if s > 0)


def _strided(array: np.ndarray, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Any:
    """A view of memory, checked against its bounds."""
    if len(shape) != len(strides):
        raise ShapeError(f"{len(shape)} sizes with {len(strides)} strides")
    flat = array.reshape(-1)
    need = _extent(shape, strides)
    first = offset - _extent(shape, [-s for s in strides]) + 1 if need else offset
    if first < 0 or offset + need > flat.size:
        begin = f" and begins at element {first}" if first < 0 else ""
        raise ShapeError(
            f"a view of shape {list(shape)} and strides {list(strides)} at {offset} needs "
            f"{offset + need} elements{begin}, the array has {flat.size}"
        )
    step = array.itemsize
    return np.ndarray(tuple(shape), array.dtype, flat, offset * step, [s * step for s in strides])


def _fit(array: np.ndarray, shape: Sequence[int], strides: Sequence[int] | None) -> Any:
    """The caller's array as the output of a store."""
    if strides is not None:
        if not array.flags.c_contiguous:
            raise ShapeError("set_output: the memory of a view_store must be contiguous")
        return _strided(array, 0, shape, strides)
    if array.shape == tuple(shape):
        return array
    if array.flags.c_contiguous and array.size == int(np.prod(shape, dtype=np.int64)):
        return array.reshape(shape)
    raise ShapeError(
        f"set_output: the array has shape {list(array.shape)}, the store {list(shape)}"
    )


builder.own_file(PyKernel.run)
