#!/usr/bin/env python3
"""Writes the pages of docs/ that are derived from tables.

usage: gen_docs.py [--check]

docs/bytecode.md comes from include/dvm/ops.def, src/code/bc.def and src/code/strip.h,
docs/op-coverage.md from tests/py/torch_ops.txt. With --check nothing is written; the exit code is 1
when a page is not what the tables say.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

INTRO = """\
# Bytecode

<!-- Written by tools/gen_docs.py from include/dvm/ops.def, src/code/bc.def and src/code/strip.h.
     `./dev docs` writes it anew; `./dev lint` complains when it is out of date. -->

A **strip** is straight-line typed code without jumps: every value is the result of one
instruction and is never changed. It runs over a box of m rows and n columns; each instruction
means what it says *for every element of the box*. `src/code/strip.h` is the contract,
`src/vm/ref` the meaning in scalar C, `src/code/strip_text.h` the text form (`dvm dis FILE`).

```
byte 0        1        2                4                6                8
     +--------+--------+----------------+----------------+----------------+
     |   op   |  type  |       a        |       b        |       c        |
     +--------+--------+----------------+----------------+----------------+
```

`type` is the type of the result (of the value, where there is none). Value i is the result of
instruction i. At most {max_ins} instructions and {max_opnd} operands; longer programs are cut by
the planner.

**Value types**: `b1` (0 or 1), `i32`, `i64`, `f32`, `f64`. Memory of other dtypes is widened by
`load` and narrowed by `store`: f16 and bf16 are computed as f32, u8 and i8 as i32. f64 is loaded,
stored, copied and cast, not computed with.

**Modes** of a strip: `map` works on every element; in `row` each `fold` reduces the n elements of
a row; in `col` each `fold` reduces the m rows of a column (m at most {tree_rows}). `whole_rows`:
the strip has a `scan` and is never given a part of a row. Reductions follow the fixed trees that
`src/code/strip.h` describes, so that every tier and every number of threads gives the same bits.

**Operands** have a role (`load`, `store`, `fold`, `pick`, `iota`), a dtype and a kind, which says
how they move with the column: `unif` not at all and not with the row either, `row` not at all,
`contig` by one element, `strided` by any step. Addresses and steps are arguments of a call; role,
dtype and kind are part of the strip, so that a new shape finds the strip it needs compiled
already.
"""

TYPES = {
    "F": "f16 bf16 f32",
    "N": "f16 bf16 f32 i32 i64",
    "I": "i32 i64",
    "B": "bool",
    "L": "bool i32 i64",
    "A": "any",
    "W": "bool f16 bf16 f32 i32 i64",
}
RESULTS = {"SAME": "as operand", "BOOL": "bool", "ARG": "given", "I64": "i64"}
TOLERANCE = {"E": "exact", "R": "rounded once", "U1": "1 ULP", "U2": "2 ULP"}
FIELDS = {
    "v": "value",
    "o": "operand",
    "k": "constant",
    "p": "parameter",
    "r": "reduction",
    "t": "dtype",
}


def rows(path: Path, columns: int) -> list[list[str]]:
    """The X(...) rows of a table, strings without their quotes."""
    found = []
    for line in path.read_text().splitlines():
        m = re.fullmatch(r'X\((.*), *"((?:[^"\\]|\\.)*)"\)', line.strip())
        if not m:
            continue
        cells = [c.strip().strip('"') for c in m[1].split(",")] + [m[2]]
        if len(cells) != columns:
            raise SystemExit(f"{path.name}: {len(cells)} columns instead of {columns}: {line}")
        found.append(cells)
    return found


def notes(path: Path) -> list[str]:
    """The numbered notes in the first comment of a table."""
    head = path.read_text().split("*/")[0]
    text = re.sub(r"\n \*", "\n", head[head.index("Odd cases:") :])
    found = re.findall(r"\n +(\d+) (.*?)(?=\n +\d+ |\Z)", text, re.S)
    return [f"{n}. {' '.join(body.split())}" for n, body in found]


def number(name: str) -> str:
    """A limit of strip.h."""
    text = (ROOT / "src/code/strip.h").read_text()
    m = re.search(rf"\b{name} = (\d+)", text)
    if not m:
        raise SystemExit(f"strip.h has no {name}")
    return m[1]


def table(head: list[str], body: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in r) + " |" for r in body]
    return "\n".join(lines) + "\n"


def bytecode() -> str:
    """The page docs/bytecode.md."""
    ops = rows(ROOT / "include/dvm/ops.def", 8)
    own = rows(ROOT / "src/code/bc.def", 4)
    out = [
        INTRO.format(
            max_ins=number("DVM_STRIP_MAX_INS"),
            max_opnd=number("DVM_STRIP_MAX_OPND"),
            tree_rows=number("DVM_TREE_ROWS"),
        )
    ]

    def lines(cls: str) -> list[list[str]]:
        return [
            [str(i), f"`{r[1]}`", r[2], TYPES[r[4]], RESULTS[r[5]], TOLERANCE[r[6]], r[7]]
            for i, r in enumerate(ops)
            if r[3] == cls
        ]

    head = ["op", "name", "operands", "dtypes", "result", "error", "meaning"]
    out.append("## Elementwise\n\nThe rows EW of `ops.def` are opcodes; a, b, c hold values.\n")
    out.append(table(head, lines("EW")))
    out.append("## Other instructions\n\nThe rows of `bc.def`.\n")
    out.append(
        table(
            ["op", "name", "a, b, c", "meaning"],
            [
                [
                    str(len(ops) + i),
                    f"`{r[1]}`",
                    ", ".join(FIELDS[f] for f in r[2] if f != "-"),
                    r[3],
                ]
                for i, r in enumerate(own)
            ],
        )
    )
    out.append(
        "## Reductions\n\nWhat the second field of `fold` names; the error is that of one step.\n"
    )
    out.append(table(head, lines("RED")))
    out.append(
        "## Graph operations without an opcode\n\n"
        "Leaves become operands, constants and parameters; views become steps and offsets of\n"
        "operands; the rest has a rule of its own in the planner.\n"
    )
    out.append(table(head, lines("LEAF") + lines("VIEW") + lines("SPEC")))
    out.append("## Notes\n")
    out.append("\n".join(notes(ROOT / "include/dvm/ops.def")) + "\n")
    return "\n".join(out)


COVERAGE = """\
# Operators of torch.compile(backend="dvm")

<!-- Written by tools/gen_docs.py from tests/py/torch_ops.txt, which the tests that compare
     operators with eager write (DVM_RECORD_OPS=1 ./dev test py:torch_ops). `./dev docs` writes it
     anew. -->

Which ATen overloads were compiled into kernels, and which ran as the operator of torch, in order,
counted by `dvm.torch.summary()`. The dtypes (of the first tensor) are those that the tests ran and
compared with eager. An overload that is not listed was in no test; it runs as the operator of
torch. 16-bit floats are computed in float32.

A row can be switched off, and torch runs the operator then:
`options={{"disable_ops": ["softmax"]}}` or `DVM_DISABLE_OPS=softmax,aten.mul.Tensor`.

{fused} overloads have kernels, {left} are left to torch.
"""


def coverage() -> str:
    """The page docs/op-coverage.md."""
    fused, left = [], []
    for line in (ROOT / "tests/py/torch_ops.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        op, dtypes, rest = (cell.strip() for cell in line.split("|"))
        (fused if dtypes or not rest else left).append([f"`{op}`", dtypes or "no test", rest])
    out = [COVERAGE.format(fused=len(fused), left=len(left)), "## In kernels\n"]
    out.append(table(["overload", "tested dtypes", "dtypes left to torch (why)"], fused))
    out += ["## Left to torch\n", table(["overload", "dtypes (why)"], [[r[0], r[2]] for r in left])]
    return "\n".join(out)


PAGES = {"docs/bytecode.md": bytecode, "docs/op-coverage.md": coverage}


def main() -> int:
    """Writes or checks every page."""
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    old = 0
    for name, page in PAGES.items():
        path, want = ROOT / name, page()
        if path.exists() and path.read_text() == want:
            continue
        if check:
            print(f"{name}: not what the tables say; run ./dev docs")
            old = 1
        else:
            path.write_text(want)
            print(f"wrote {name}")
    return old


if __name__ == "__main__":
    sys.exit(main())
