"""Programs and instructions as text, in the words of the original.

dump() prints recorded lines:

    rgraph.split() {
      %0[2, 3]<float32> = Load()
      %1[2, 3]<float32> = Mul(%0[2, 3]<float32>, %0[2, 3]<float32>)
      %2[2, 3]<float32> = Store(%1[2, 3]<float32>)
    }

das() prints what runs: one entry per instruction of the compiled strips.
"""

from __future__ import annotations

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
    "div": "Div", "permute": "Permute",
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
    "low_mean": 1, "low_var": 2, "low_cumsum": 1, "low_one_hot": 1,
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
        if type(node) is ScalarRef:
            lines.append(f"  // scalar {node.dtype().name}")
        elif node._dtype is None:
            lines.append(f"  // {node._name} {_KINDS[node._args[0]]}")
        else:
            number[id(node)] = len(number)
            lines.append(_line(node, number))
    name = f" // {kernel._name}" if kernel._name else ""
    return "\n".join([f"{head}.{kind}({flags}) {{{name}", *lines, "}"]) + "\n"


def das(kernel: _dvm.Kernel) -> str:
    """Instructions of the newest plan of a compiled kernel."""
    return kernel.text("code")
