"""The table of operators, torch_ops.txt, from which docs/op-coverage.md is made.

With DVM_RECORD_OPS=1 the tests that compare operators with eager add what was compiled into kernels
and what was left to torch, by the dtype of the operator's first tensor.
"""

import atexit
import os
from collections import defaultdict
from pathlib import Path

import torch

TABLE = Path(__file__).parent / "torch_ops.txt"
seen = defaultdict(lambda: defaultdict(set))  # op -> reason, "" when fused -> dtypes


def note(low):
    """The nodes of a compiled and compared function."""
    for part in low.program.parts:
        for node in part.written:
            if isinstance(node.target, torch._ops.OpOverload):
                seen[str(node.target)][""].add(_dtype(node))
        for node, why in part.reasons.items():
            seen[str(node.target)][why].add(_dtype(node))


def _dtype(node):
    for value in (*(a.meta.get("val") for a in node.all_input_nodes), node.meta.get("val")):
        if isinstance(value, (tuple, list)):
            value = next((v for v in value if isinstance(v, torch.Tensor)), None)
        if isinstance(value, torch.Tensor):
            return str(value.dtype).removeprefix("torch.")
    return "none"


def write():
    """What was seen, and what the table says already."""
    from dvm.torch.fx import ROWS

    for line in TABLE.read_text().splitlines() if TABLE.exists() else ():
        if not line.startswith("#"):
            op, fused, left = (c.strip() for c in line.split("|"))
            seen[op][""] |= set(fused.split())
            for cell in left.split("; ") if left else ():
                dtypes, why = cell.removesuffix(")").split(" (", 1)
                seen[op][why] |= set(dtypes.split())
    lines = ["# ATen op | fused dtypes | dtypes left to torch (why). See optable.py."]
    for op, row in ROWS.items():
        if row.fn.__name__ == "torch_view":
            seen[op]["view that only torch can express"].add("any")
    for op in sorted({*seen, *ROWS}):
        how = dict(seen[op])
        fused = " ".join(sorted(how.pop("", ())))
        left = "; ".join(f"{' '.join(sorted(t))} ({why})" for why, t in sorted(how.items()))
        lines.append(f"{op} | {fused} | {left}".rstrip())
    TABLE.write_text("\n".join(lines) + "\n")


if os.environ.get("DVM_RECORD_OPS") == "1":
    atexit.register(write)
