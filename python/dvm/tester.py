"""Tester: a runner that remembers what it expects. Programs of the original's test directory run
on it as they are.

    t = Tester("vector")
    a = np.random.randn(4, 8).astype(np.float32)
    t.store_expect(t.exp(t.load(a)), np.exp(a))
    assert t.run_check()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from _dvm import UnsupportedError

from . import arrays, builder
from .record import IntArrayRef, NDObject
from .runner import PyKernel
from .types import DataType, bfloat16, dtype_of, float16, float32

ShapeRef = IntArrayRef

_EPS = {float32: 1e-5, float16: 1e-3, bfloat16: 1e-5}


class PerformanceResult(NamedTuple):
    """Microseconds of one run."""

    min: float
    max: float
    mean: float


class _Expectation(NamedTuple):
    store: NDObject
    value: Any  # array, number or function of the output
    eps: float | None
    strided: bool


class Tester(PyKernel):
    """`Tester(ker_type="", use_pass_opt=False, run_mode="dev", comm=None)`.

    `comm` is an object like mpi4py's (Get_rank, Get_size, Barrier), used by rank_id, rank_size and
    barrier.
    """

    __test__ = False  # not a test class of pytest

    def __init__(
        self,
        ker_type: str = "",
        use_pass_opt: bool = False,
        run_mode: str = "dev",
        comm: Any = None,
    ) -> None:
        super().__init__(ker_type, run_mode)
        self.use_pass_opt = use_pass_opt
        self.comm = comm
        self._passes: tuple[str, ...] = ()
        self._rng = np.random.default_rng(0)

    def _clear(self) -> None:
        super()._clear()
        self._expected: list[_Expectation] = []

    def get(self) -> Tester:
        """The kernel itself (gen-1)."""
        return self

    # ---------------------------------------------------------------- inputs

    def _array(self, value: Any, dtype: Any) -> tuple[np.ndarray, DataType]:
        """An array in the numpy dtype of its DataType; float32 data become bfloat16 on request."""
        value = arrays.as_array(value)
        t = arrays.dtype_of_array(value) if dtype is None else dtype_of(dtype)
        if t is bfloat16 and value.dtype != np.uint16:
            value = arrays.to_bf16(value)
        elif str(value.dtype) != t.numpy_name:
            value = value.astype(t.numpy_name)
        return value, t

    def _declared(self, node: NDObject, value: np.ndarray, offset: int = 0) -> NDObject:
        self.input(node, value, offset)
        return node

    def load(self, array_or_shape: Any, dtype: Any = None) -> NDObject:
        """A load with its data (an array), or a plain declaration (a shape)."""
        if isinstance(array_or_shape, (list, tuple, IntArrayRef)):
            return super().load(array_or_shape, dtype or float32)
        value, t = self._array(array_or_shape, dtype)
        return self._declared(super().load(value.shape, t), value)

    def view_load(
        self,
        shape: Any,
        stride: Any,
        array_or_dtype: Any,
        offset: int = 0,
        real_dtype: Any = None,
    ) -> NDObject:
        """A strided load with its memory (an array), or a plain declaration (a dtype)."""
        if isinstance(array_or_dtype, (str, DataType, type)):
            return super().view_load(shape, stride, array_or_dtype)
        value, t = self._array(array_or_dtype, real_dtype)
        return self._declared(super().view_load(shape, stride, t), value, offset)

    def slice_load(self, array: Any, start: Any, size: Any, *dtype: Any) -> NDObject:
        """A box of an array."""
        if dtype:
            return super().slice_load(array, start, size, dtype[0])
        value, t = self._array(array, None)
        return self._declared(super().slice_load(value.shape, start, size, t), value)

    def stridedslice_load(
        self, array: Any, start: Any, end: Any, step: Any, *dtype: Any
    ) -> NDObject:
        """A box of an array, every step 1."""
        if dtype:
            return super().stridedslice_load(array, start, end, step, dtype[0])
        value, t = self._array(array, None)
        return self._declared(super().stridedslice_load(value.shape, start, end, step, t), value)

    def global_access(self, array: Any, dtype: Any = None) -> NDObject:
        """An index with its data."""
        if isinstance(array, (list, tuple, IntArrayRef)):
            return super().global_access(array, dtype or float32)
        value, t = self._array(array, dtype)
        return self._declared(super().global_access(value.shape, t), value)

    def gather_load(
        self, array: Any, index: Any, *rest: Any, axis: int = 0, gather_mode: int = 0
    ) -> NDObject:
        """`gather_load(array, index, axis=0, gather_mode=0)`; the index is a node or an array."""
        if rest and isinstance(rest[0], (str, DataType)):
            return super().gather_load(array, index, *rest)
        if rest:
            axis = rest[0]
        if len(rest) > 1:
            gather_mode = rest[1]
        if not isinstance(index, NDObject):
            index = self.global_access(index)
        value, t = self._array(array, None)
        node = super().gather_load(value.shape, index, t, axis, gather_mode)
        return self._declared(node, value)

    # ---------------------------------------------------------------- outputs

    def store_expect(self, x: NDObject, expected: Any, eps: float | None = None) -> NDObject:
        """Stores x and remembers what it should be: an array, a number (broadcast), or a function
        that takes the output and returns a bool.
        """
        store = self.store(x)
        self._expected.append(_Expectation(store, expected, eps, False))
        return store

    def view_store_expect(
        self, x: NDObject, stride: Any, expected: Any, eps: float | None = None
    ) -> NDObject:
        """Stores x with strides into zeroed memory of the size of `expected`."""
        store = self.view_store(x, stride)
        expected = np.asarray(expected)
        memory = np.zeros(expected.size, store._dtype.numpy_name)
        self.set_output(store, memory)
        self._expected.append(_Expectation(store, expected, eps, True))
        return store

    def check(self, store: NDObject, expected: Any, eps: float | None = None) -> bool:
        """Whether the output of the last run is what is expected, within rtol = atol = eps and NaN
        equal to NaN. Default eps: float32 1e-5, float16 1e-3, others exact. Mismatches are printed.
        """
        return self._check(_Expectation(store, expected, eps, False))

    def _check(self, e: _Expectation) -> bool:
        t = e.store._dtype
        got = self._held.get(e.store)
        if got is None:
            got = self.output(e.store)
        if t is bfloat16:
            got = arrays.from_bf16(got)
        if callable(e.value):
            return bool(e.value(got))
        eps = _EPS.get(t, 0.0) if e.eps is None else e.eps
        want = np.asarray(e.value)
        if t is bfloat16 and want.dtype == np.uint16:
            want = arrays.from_bf16(want)
        if e.strided:
            want = want.reshape(-1)
        return _close(got, want, eps, e.store)

    # ---------------------------------------------------------------- running

    def set_passes(self, *names: str) -> None:
        """Passes of the original by name; accepted and not needed."""
        self._passes = names

    def codegen(self, passes: Sequence[str] | None = None) -> None:
        """Compiles for the present inputs."""
        super().codegen(passes)

    def run(self, verbose: bool = False) -> None:
        """Compiles if needed and computes."""
        if verbose:
            print(self.dump())
        super().run()
        if verbose:
            print(self.das())

    def bare_run(self) -> None:
        """Computes."""
        super().run()

    def run_check(self, verbose: bool = False) -> bool:
        """Runs and checks every expectation; prints what does not hold."""
        self.run(verbose)
        return all([self._check(e) for e in self._expected])

    def run_perf(self) -> PerformanceResult:
        """Times of one run in microseconds."""
        return PerformanceResult(*self.perf())

    def run_msprof(self, path: str, n: int = 10) -> None:
        """Runs n times and writes the times to a folder."""
        self.msprof(path, n)

    # ---------------------------------------------------------------- ranks and data

    def rank_id(self) -> int:  # type: ignore[override]
        """Rank of `comm`, 0 without one."""
        return int(self.comm.Get_rank()) if self.comm is not None else 0

    def rank_size(self) -> int:  # type: ignore[override]
        """Size of `comm`, 1 without one."""
        return int(self.comm.Get_size()) if self.comm is not None else 1

    def barrier(self) -> None:  # type: ignore[override]
        """Waits for the other ranks of `comm`."""
        if self.comm is not None:
            self.comm.Barrier()

    @staticmethod
    def fast_random_normal(mean: float, std: float, shape: Sequence[int]) -> np.ndarray:
        """float32 normals: a short sequence repeated when the array is large."""
        n = int(np.prod(shape, dtype=np.int64))
        base = np.random.normal(mean, std, min(n, 1 << 20)).astype(np.float32)
        return (base if n == base.size else np.resize(base, n)).reshape(tuple(shape))

    @staticmethod
    def bf16_random_normal(mean: float, std: float, shape: Sequence[int]) -> np.ndarray:
        """float32 normals that are bfloat16 values."""
        a = Tester.fast_random_normal(mean, std, shape)
        return arrays.from_bf16(arrays.to_bf16(a)).reshape(tuple(shape))


def _close(got: np.ndarray, want: np.ndarray, eps: float, store: NDObject) -> bool:
    try:
        want = np.broadcast_to(want, got.shape)
    except ValueError:
        if want.size != got.size:
            print(f"{store!r}: shape {list(got.shape)}, expected {list(want.shape)}")
            return False
        want = want.reshape(got.shape)
    if got.dtype == np.bool_ or eps == 0.0:
        bad = got != want
        if got.dtype.kind == "f":
            bad &= ~(np.isnan(got) & np.isnan(want))
    else:
        bad = ~np.isclose(got.astype(np.float64), want.astype(np.float64), eps, eps, True)
    if not bad.any():
        return True
    at = tuple(int(i) for i in np.argwhere(bad)[0]) if got.ndim else ()
    print(
        f"{store!r}: {int(bad.sum())} of {got.size} elements differ (eps {eps}); "
        f"first at {list(at)}: {got[at]!r}, expected {want[at]!r}"
    )
    return False


class CommScope:
    """Fork-based ranks of the original; not available."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise UnsupportedError(
            "forked ranks are not available in this version of DVM: start ranks with mpirun or "
            "torchrun, and exchange data with mpi4py or torch.distributed between two kernels"
        )


HcclScope = CommScope


builder.own_file(Tester.run)
