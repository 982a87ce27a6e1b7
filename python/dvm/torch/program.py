"""The program object of a compiled graph: recorded once from generated text, run by the extension.

Generated text is a function that writes the program line by line:

    def program(p):
        x, w = p.inputs(2)
        s0 = p.size(x, 0)
        y = p.empty((s0, 4), (4, 1), torch.float32)
        p.run(dvm_mul_0, x, y)
        wt = p.lent(w, (4, 4), (1, 4), 0, (4, 1))
        z = p.call(torch.mm, y, wt)
        p.output((z,))

    run = record(program).run

What a line gives is a stand-in: Slot for tensors, Size for numbers that follow from the sizes of
the arguments. Tensors made by `empty` that no one keeps are placed in the arena; the others are new
tensors at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import _dvm
import torch

from .runtime import empty_cpu

RUN, CALL, EMPTY, VIEW = range(4)


class Slot(int):
    """A tensor of the program, by number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"slot {int(self)}"


class Size(int):
    """A number that is known when the sizes of the arguments are, by position."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"size {int(self)}"


class _Step(NamedTuple):
    op: int
    fn: Any
    args: tuple
    kwargs: dict | None = None
    result: int = -1
    view: bool = False
    opaque: bool = False


class _Empty(NamedTuple):
    step: int
    size: tuple
    stride: tuple
    dtype: torch.dtype


DTYPES = {
    torch.bool: _dvm.T_bool,
    torch.float16: _dvm.T_f16,
    torch.bfloat16: _dvm.T_bf16,
    torch.float32: _dvm.T_f32,
    torch.float64: _dvm.T_f64,
    torch.int32: _dvm.T_i32,
    torch.int64: _dvm.T_i64,
    torch.uint8: _dvm.T_u8,
    torch.int8: _dvm.T_i8,
}
_BY_NUMBER = {number: dtype for dtype, number in DTYPES.items()}


def record(function: Callable[[Recorder], None]) -> _dvm.Program:
    """The program that a function writes. Its `run` takes a list of arguments, which it empties."""
    recorder = Recorder()
    function(recorder)
    return recorder.build()


class Recorder:
    """What a function that writes a program is called with."""

    def __init__(self) -> None:
        self._count = 0
        self._inputs = 0
        self._steps: list[_Step] = []
        self._empties: dict[int, _Empty] = {}
        self._sources: list[tuple[int, int, int]] = []
        self._expressions: list[tuple[Callable, tuple]] = []
        self._owners: dict[int, frozenset[int]] = {}  # slot -> empties whose memory it may show
        self._kept: set[int] = set()  # slots that live on elsewhere
        self._result: Any = ()

    # ------------------------------------------------------------------------ recording

    def _slot(self) -> Slot:
        self._count += 1
        return Slot(self._count - 1)

    def inputs(self, n: int) -> list[Slot]:
        self._inputs = n
        return [self._slot() for _ in range(n)]

    def constant(self, value: Any) -> Slot:
        """A tensor that belongs to the program."""
        return self._called(_same, (value,), {}, view=True)

    def size(self, x: Slot, dim: int) -> Size:
        return self._source(x, 0, dim)

    def stride(self, x: Slot, dim: int) -> Size:
        return self._source(x, 1, dim)

    def number(self, x: Slot) -> Size:
        """An argument that is an integer and decides sizes."""
        return self._source(x, 2, 0)

    def _source(self, x: Slot, what: int, dim: int) -> Size:
        assert not self._expressions
        self._sources.append((int(x), what, dim))
        return Size(len(self._sources) - 1)

    def expression(self, function: Callable[..., int], *sizes: Size) -> Size:
        self._expressions.append((function, sizes))
        return Size(len(self._sources) + len(self._expressions) - 1)

    def empty(self, size: tuple, stride: tuple, dtype: torch.dtype) -> Slot:
        slot = self._slot()
        self._empties[slot] = _Empty(len(self._steps), size, stride, dtype)
        self._owners[slot] = frozenset((slot,))
        return slot

    def run(self, kernel: Any, *args: Any) -> None:
        self._steps.append(_Step(RUN, kernel.run.__self__, args))

    def call(self, fn: Callable, *args: Any, **kwargs: Any) -> Slot:
        """An operator that reads its operands and gives a result of its own (`out=`: that one)."""
        if "out" in kwargs:
            self._steps.append(_Step(CALL, fn, args, kwargs))
            return kwargs["out"]
        return self._called(fn, args, kwargs)

    def lent(self, x: Slot, size: tuple, stride: tuple, offset: Any, strides: tuple) -> Slot:
        """A view by its sizes, strides and offset in elements, of a tensor that has these strides;
        for `call` alone, whose operator reads it and is done."""
        slot = self._slot()
        self._steps.append(_Step(VIEW, None, (x, size, stride, offset, strides), None, slot, True))
        self._owners[slot] = self._owning(x) | {x}
        return slot

    def view(self, fn: Callable, *args: Any, **kwargs: Any) -> Slot:
        """A view of an operand, or a part of a result: the same for the same operands."""
        return self._called(fn, args, kwargs, shares=True, view=True)

    def share(self, fn: Callable, *args: Any, **kwargs: Any) -> Slot:
        """An operator that may return operands or change them, and does not keep them."""
        return self._called(fn, args, kwargs, shares=True)

    def opaque(self, fn: Callable, *args: Any, **kwargs: Any) -> Slot:
        """An operator that may keep its operands."""
        self._kept |= set(_slots((args, kwargs)))
        slot = self._called(fn, args, kwargs)
        self._steps[-1] = self._steps[-1]._replace(opaque=True)
        return slot

    def _called(
        self, fn: Callable, args: tuple, kwargs: dict, shares: bool = False, view: bool = False
    ) -> Slot:
        slot = self._slot()
        self._steps.append(_Step(CALL, fn, args, kwargs or None, slot, view))
        if shares:
            self._owners[slot] = self._owning((args, kwargs))
        return slot

    def _owning(self, values: Any) -> frozenset[int]:
        none: frozenset[int] = frozenset()
        return frozenset().union(*(self._owners.get(s, none) for s in _slots(values)))

    def output(self, result: Any) -> None:
        self._result = result
        self._kept |= set(_slots(result))

    # ------------------------------------------------------------------------- building

    def build(self) -> Any:
        escaped = set().union(*(self._owners.get(s, frozenset()) for s in self._kept))
        in_arena = {s for s, e in self._empties.items() if s not in escaped and e.dtype in DTYPES}
        steps = self._with_allocations(in_arena)
        first, last = _uses(steps, self._owners)
        returned = set(_slots(self._result))
        fixed = set(in_arena)
        buffers = [self._row(s, first[s], last[s]) for s in sorted(in_arena) if s in first]
        results = [
            self._row(s, first[s], len(steps) if s in escaped else last[s])
            for s in sorted(self._empties)
            if s in first and s not in in_arena
        ]
        unused = [s for s in range(self._inputs) if s not in last and s not in returned]
        drops: dict[int, list[int]] = {0: unused}
        for s, at in last.items():
            if s not in returned and s not in in_arena:
                drops.setdefault(at, []).append(s)
        rows = []
        for i, step in enumerate(steps):
            args, named = (fixed.issuperset(_slots(a)) for a in (step.args, step.kwargs))
            kept = step.view and args and named
            gone = tuple(drops.get(i, ()))
            if kept:
                fixed.add(step.result)
            bits = args + 2 * named + 4 * kept
            rows.append((step.op, step.fn, step.args, step.kwargs, step.result, bits, gone))
        return _dvm.Program(
            values=self._count,
            inputs=self._inputs,
            buffers=buffers,
            results=results,
            steps=rows,
            sources=self._sources,
            nsize=len(self._sources) + len(self._expressions),
            sizes=self._sizes(),
            result=self._result,
            slot_type=Slot,
            size_type=Size,
            runtime=(_new_arena, _typed, shown, empty_cpu, _laid_out),
        )

    def _row(self, s: int, first: int, last: int) -> tuple:
        e = self._empties[s]
        number = DTYPES.get(e.dtype, 0)  # of others only the bytes count
        return s, number, e.dtype.itemsize, e.size, e.stride, first, last, e.dtype

    def _with_allocations(self, in_arena: set[int]) -> list[_Step]:
        """The steps, new tensors made in front of their first use."""
        at: dict[int, list[_Step]] = {}
        for s, e in self._empties.items():
            if s not in in_arena:
                args = (e.size, e.stride, e.dtype)
                at.setdefault(e.step, []).append(_Step(EMPTY, None, args, None, s))
        steps: list[_Step] = []
        for i in range(len(self._steps) + 1):
            steps += at.get(i, ())
            steps += self._steps[i : i + 1]
        return steps

    def _sizes(self) -> Callable:
        count, expressions = len(self._sources), self._expressions

        def sizes(*key: int) -> tuple[int, ...]:
            known = list(key)
            for function, arguments in expressions:
                known.append(int(function(*[known[a] for a in arguments])))
            return tuple(known[count:])

        return sizes


def _same(x: Any) -> Any:
    return x


def _slots(values: Any) -> Iterator[Slot]:
    if type(values) is Slot:
        yield values
    elif isinstance(values, (tuple, list)):
        for v in values:
            yield from _slots(v)
    elif isinstance(values, dict):
        for v in values.values():
            yield from _slots(v)


def _uses(steps: Sequence[_Step], owners: dict[int, frozenset[int]]) -> tuple[dict, dict]:
    """First and last step that needs each slot; an owner is needed as long as what shows it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        touched = set(_slots((step.args, step.kwargs)))
        if step.result >= 0:
            touched.add(step.result)
        for s in touched:
            for n in (s, *owners.get(s, ())):
                first.setdefault(n, i)
                last[n] = i
    return first, last


def _new_arena(size: int) -> tuple[torch.Tensor, int]:
    with torch.inference_mode(False), torch.no_grad():
        block = torch.empty(-(-size // 64) * 64, dtype=torch.uint8)
    return block, block.data_ptr()


def _typed(block: torch.Tensor, number: int) -> torch.Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return block.view(_BY_NUMBER[number])


try:  # a tensor over the memory of another, as Inductor makes them
    from torch._C._dynamo.guards import _reinterpret_tensor as shown
except ImportError:

    def shown(base: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return base.as_strided(size, stride, offset)


def _laid_out(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int, wanted: Sequence[int]
) -> torch.Tensor:
    """A view of a tensor, or of a copy of it that has the wanted strides if it has others."""
    with torch.inference_mode(False), torch.no_grad():
        if any(n > 1 and a != b for n, a, b in zip(x.shape, x.stride(), wanted, strict=True)):
            x = torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=x.device).copy_(x)
        return shown(x, size, stride, offset)
