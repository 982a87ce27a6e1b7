"""Programs and instructions as text, in the words of the original.

dump() prints recorded lines:

    rgraph.split() {
      %0[2, 3]<float32> = Load()
      %1[2, 3]<float32> = Mul(%0[2, 3]<float32>, %0[2, 3]<float32>)
      %2[2, 3]<float32> = Store(%1[2, 3]<float32>)
    }

das() prints what runs: one entry per instruction of the compiled strips, its operands, and the
pipe that the original would use. `k.explain()` and the command dvm show the library's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import _dvm

from .record import NDObject, ScalarRef

if TYPE_CHECKING:
    from .builder import Kernel

_KINDS = ("vector", "cube", "mix", "parallel", "seq", "split", "eager")
_COMPARE = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_NAMES = {
    "isfinite": "IsFinite", "isnan": "IsNan", "pow": "Power", "stridedslice_load": "SliceViewLoad",
    "slice_load": "SliceViewLoad", "slice": "SliceViewLoad", "slice_dim": "DimSliceViewLoad",
    "matmul": "MatMul", "grouped_matmul": "GroupedMatMul", "div": "Div", "permute": "Permute",
}  # fmt: skip
# Arguments in front that are numbers of operations and dtypes, by building function.
_INTERNAL = {
    "low_unary": 1, "low_tensors": 1, "low_mixed": 2, "low_as": 3, "low_not_number": 1,
    "low_power": 1, "low_select": 2, "low_clamp": 1, "low_reduce": 1, "low_truth": 1, "low_arg": 1,
    "low_load": 1, "low_gather_load": 1, "low_slice_load": 1, "low_strided_load": 1,
    "low_store": 1,
}  # fmt: skip
_TRAILING = {
    "low_full": 1, "low_iota": 2, "low_cast": 1, "low_isfinite": 1, "low_ones": 1, "low_reduce": 1,
    "low_matmul": 1, "low_grouped_matmul": 1, "low_mean": 1, "low_var": 2, "low_cumsum": 1,
    "low_one_hot": 1,
}  # fmt: skip


def _camel(name: str) -> str:
    return _NAMES.get(name) or "".join(part.capitalize() for part in name.split("_"))


def _typed(node: NDObject, number: dict[int, int]) -> str:
    shape = node.shape
    sizes = "?" if shape is None else ", ".join(str(d) for d in shape)
    return f"%{number[id(node)]}[{sizes}]<{node._dtype.name}>"


def _attribute(a: Any) -> str:
    if isinstance(a, ScalarRef):
        return "ref"
    if isinstance(a, (tuple, list)) or type(a).__name__ == "IntArrayRef":
        return "[" + ", ".join(_attribute(d) for d in a) + "]"
    if type(a).__name__ == "Dim":
        return "?"
    return repr(a)


def _line(node: NDObject, number: dict[int, int]) -> str:
    low = node._low.__name__
    args = node._args[_INTERNAL.get(low, 0) :]
    if low in _TRAILING:
        args = args[: len(args) - _TRAILING[low]]
    flat = [x for a in args for x in (a if type(a) is list else [a])]
    operands = [x for x in flat if type(x) is NDObject]
    attributes = [_attribute(x) for x in flat if type(x) is not NDObject]
    name = _camel(node._name)
    if node._name in _COMPARE:
        attributes.insert(0, node._name)
        name = "Compare" if len(operands) == 2 else "CompareS"
    elif node._name in ("sum", "max", "min", "prod", "any", "all"):
        attributes.insert(0, node._name)
        name = "Reduce"
    elif node._name == "full":
        name = "BroadcastS"
    elif node._name == "div" and len(operands) == 1:
        name = "ScalarDiv"
    if node._name == "view_store":
        attributes.append(_attribute(node._with.strides))
    if node._name == "view_load":
        attributes.append(_attribute(node._with.strides))
    inner = f"<{', '.join(attributes)}>" if attributes else ""
    text = f"{name}{inner}({', '.join(_typed(x, number) for x in operands)})"
    return f"  {_typed(node, number)} = {text}"


def dump(kernel: Kernel) -> str:
    """The recorded program; sizes that are not known are -1 or ?."""
    kind = _KINDS[kernel._kind]
    head = "vgraph" if kernel._kind < 3 else "rgraph"
    flags = ", ".join(kernel.ker_type.partition(":")[2].split(",")).strip()
    number: dict[int, int] = {}
    lines = []
    for node in kernel._nodes:
        if isinstance(node, ScalarRef):
            lines.append(f"  // scalar {node.dtype().name}")
        elif node._dtype is None:
            lines.append(f"  // {node._name} {_KINDS[node._args[0]]}")
        else:
            number[id(node)] = len(number)
            lines.append(_line(node, number))
    name = f" // {kernel._name}" if kernel._name else ""
    return "\n".join([f"{head}.{kind}({flags}) {{{name}", *lines, "}"]) + "\n"


# Value types of the bytecode and, for loads and stores, dtypes of memory.
_TYPES = {
    "f32": "fp32", "f16": "fp16", "i32": "int32", "i64": "int64", "b1": "bool", "f64": "fp64",
}  # fmt: skip
_SCALAR = {"add": "Adds", "mul": "Muls", "maximum": "Maxs", "minimum": "Mins"}
_INS = re.compile(
    r"  (?:%(?P<to>\d+) = )?(?P<op>\w+)\.(?P<type>\w+)(?: (?P<args>[^;]*))?(?:; (?P<note>.*))?$"
)
_OPND = re.compile(r"  (?P<name>o\d+): (?P<role>\w+) (?P<dtype>\w+) (?P<kind>\w+)")
_BIND = re.compile(r";   (?P<name>o\d+): (?P<what>.*)")


class _Strip:
    """One strip being translated: what is known of its operands and values."""

    def __init__(self, head: str, binds: dict[str, str], modes: Iterator[int]) -> None:
        self.head = head
        self.mode = ""
        self.binds = binds
        self.modes = modes
        self.dtypes: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.values: dict[str, str] = {}  # value type of each value
        self.literals: dict[str, str] = {}

    def line(self, m: re.Match[str]) -> tuple[str, str] | None:
        """Instruction and pipe, None for what the original has no instruction for."""
        op, vt = m["op"], m["type"]
        args = [a.strip() for a in (m["args"] or "").split(",") if a.strip()]
        to = f"%{m['to']}D" if m["to"] else ""
        if m["to"]:
            self.values["%" + m["to"]] = vt
        if op in ("lit", "param"):
            self.literals["%" + m["to"]] = m["note"] or args[0]
            return None
        if op == "load":
            return f"load.{self._dtype(args[0])} {to}, {args[0]}N //{self._bind(args[0])}", "load"
        if op == "store":
            text = f"type({self._dtype(args[0])}), {self._bind(args[0])}"
            return f"store.u8 {args[0]}D, {args[1]}N //{text}", "store"
        if op == "pick":
            bind = self._bind(args[0])
            size = re.search(r"pick (\d+)", bind)
            rounds = size[1] if size else "1"
            mode = next(self.modes, 0)
            fields = f"gather_mode({mode}), rounds({rounds}), {bind}"
            name = f"gather_load.{self._dtype(args[0])}"
            return f"{name} {to}, {args[0]}N, {args[1]}N //{fields}", "load"
        if op == "fold":
            axis = "Y" if self.mode == "col" else "X"
            name = f"{args[1].capitalize()}{axis}.{_TYPES.get(vt, vt)}"
            return f"{name} {args[2]}D, {args[0]}N", "simd"
        return self._compute(op, vt, to, args), "simd"

    def _compute(self, op: str, vt: str, to: str, args: list[str]) -> str:
        scalars = [self.literals[a] for a in args if a in self.literals]
        operands = [a for a in args if a not in self.literals]
        sources = [a for a in operands if a in self.values]
        source = self.values[sources[-1]] if sources else vt
        fields = [f"scalar({v})" for v in scalars]
        if op in _COMPARE:
            name = f"{'Cmps' if scalars else 'Cmp'}.{_TYPES.get(source, source)}"
            fields.insert(0, f"type({op})")
        elif op == "cast":
            name = f"Cast{_TYPES.get(source, source).upper()}.{_TYPES.get(vt, vt)}"
        elif op == "rnd":
            name = f"Round{_TYPES.get(vt, vt).upper()}.{_TYPES.get(args[1], args[1])}"
            operands = args[:1]
        else:
            word = _SCALAR.get(op) if scalars else None
            word = word or {"pow": "Power", "scan": "CumSumX"}.get(op) or _camel(op)
            name = f"{word}.{_TYPES.get(vt, vt)}"
        note = f" //{', '.join(fields)}" if fields else ""
        return f"{name} {', '.join([to, *(a + 'N' for a in operands)])}{note}"

    def _dtype(self, name: str) -> str:
        t = self.dtypes.get(name, "?")
        return _TYPES.get(t, t)

    def _bind(self, name: str) -> str:
        return f"{self.binds.get(name, '?')} {self.kinds.get(name, '')}".strip()


def das(kernel: _dvm.Kernel) -> str:
    """Instructions of the newest plan of a compiled kernel."""
    modes = iter([int("mode=slice" in m) for m in re.findall(r"= gather .*", kernel.text("opt"))])
    out: list[str] = []
    binds: dict[str, str] = {}
    head, strip, index = "", _Strip("", {}, modes), 0
    for line in kernel.text("code").splitlines():
        if line.startswith("; kernel"):
            head, binds = line[2:], {}
        elif m := _BIND.match(line):
            binds[m["name"]] = m["what"]
        elif line.startswith("strip "):
            strip, index = _Strip(head, binds, modes), 0
            strip.mode = line.split()[1]
            out.append(f"// {head}")
        elif m := _OPND.match(line):
            strip.dtypes[m["name"]], strip.kinds[m["name"]] = m["dtype"], m["kind"]
        elif m := _INS.match(line):
            made = strip.line(m)
            if made is not None:
                out += [f"{index}: {made[0]}", f"   {{{made[1]}}}"]
                index += 1
    return "\n".join(out) + "\n"
