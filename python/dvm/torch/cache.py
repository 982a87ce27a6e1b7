"""Programs on disk: the generated text of graphs met before, so that lowering is skipped.

Off unless asked for (option `cache`, DVM_CACHE=1): for most graphs lowering is quick. The folder is
DVM_CACHE_DIR, else dvm below XDG_CACHE_HOME or ~/.cache; without one, or when it cannot be written,
everything works and nothing is kept. `python -m dvm cache ls|verify|clear` looks after it.

An entry is data. The file has a line "DVMCACHE 2 crc length" and JSON; the name is a hash of the
graph, the options and the versions of torch and DVM. Text from a file is never trusted: `checked`
accepts the few forms that code generation writes, calls of operators of the very graph, and nothing
else; anything wrong is a miss. Files appear whole (written aside, then renamed) and may be removed
at any time; processes need no lock.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _dvm
import torch
from torch.fx import GraphModule

from . import stats
from .codegen import BINDINGS, HEADER, Program
from .inplace import called_for
from .kernel_text import AnyKernel, KnownKernel
from .options import Options
from .reference_text import OTHERS, NoText

MAGIC = b"DVMCACHE 2"
SUFFIX = ".dvmc"
LIMIT = 64 << 20  # bytes of all entries; DVM_CACHE_BYTES


class Restored(NamedTuple):
    """Stands for the partition of a graph that was not lowered again."""

    fused: int
    left: Counter
    products: int = 0
    attention: tuple[()] = ()  # graphs with operators of DVM are not kept

    def fallbacks(self) -> Counter:
        return self.left


def folder() -> Path | None:
    """The folder of entries, made when needed; None when there is none to write to."""
    own, xdg = os.environ.get("DVM_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if not (own or xdg or home):
        return None
    path = Path(own) if own else Path(xdg or os.path.join(home or "", ".cache")) / "dvm"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return path


# ------------------------------------------------------------------------------------- keys


@functools.cache
def versions() -> str:
    """What else decides the text: torch, the extension, and this very code."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        h.update(path.read_bytes())
    return f"{torch.__version__} {_dvm.__version__} {_dvm.ABI} {_dvm.FORMAT} {h.hexdigest()}"


def key(gm: GraphModule, options: Options) -> str | None:
    """Name of the entry of a graph; None when its program cannot be text alone."""
    if options.check or any(n.op in ("get_attr", "call_module") for n in gm.graph.nodes):
        return None
    h = hashlib.sha256(f"{versions()} {options} {torch.get_default_dtype()}".encode())
    for n in gm.graph.nodes:
        if n.op == "call_function" and not _is_known(n.target):
            return None
        text = (n.op, n.name, str(n.target), n.args, n.kwargs, _meta(n.meta.get("val")))
        h.update(repr(text).encode())
    return h.hexdigest()[:40]


def _is_known(target: Any) -> bool:
    """An operator of ATen, or Python's arithmetic on sizes."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    return getattr(target, "__module__", "") in ("_operator", "math")


def _meta(val: Any) -> Any:
    if isinstance(val, torch.Tensor):
        strided = val.layout is torch.strided
        place = (val.stride(), val.storage_offset()) if strided else ()
        lazy = val.is_conj() or val.is_neg()
        return (val.dtype, tuple(val.shape), place, val.layout, str(val.device), lazy)
    if isinstance(val, (tuple, list)):
        return [_meta(v) for v in val]
    return str(val)


# ---------------------------------------------------------------------------------- entries


def save(name: str, program: Program) -> None:
    """Keeps a program; says nothing when that is not possible."""
    path, entry = folder(), packed(program)
    if path is None or entry is None:
        return
    try:
        fd, aside = tempfile.mkstemp(prefix=".new-", dir=path)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(sealed(entry))
            os.replace(aside, path / (name + SUFFIX))
        except BaseException:
            os.unlink(aside)
            raise
        _trim(path)
    except OSError:
        pass


def packed(program: Program) -> dict | None:
    """A program as data; None when it is more than text."""
    recorded = len(program.calls) == 1 and "record(program)" in program.call
    if program.constants or not recorded:
        return None
    try:
        kernels = [_kernel_entry(k) for k in program.kernels]
    except NoText:
        return None
    return {
        "header": program.header,
        "kernels": kernels,
        "call": program.call,
        "fused": program.fused,
        "products": program.products,
        "left": [[op, why, n] for (op, why), n in program.fallbacks.items()],
    }


def _kernel_entry(k: AnyKernel) -> dict:
    return {
        "name": k.name,
        "source": k.source,
        "reference": k.reference(),
        "results": k.results,
        "dynamic": k.dynamic,
        "in_place": k.in_place,
    }


def sealed(entry: dict) -> bytes:
    """Data as the contents of a file, which `opened` checks."""
    payload = json.dumps(entry).encode()
    return b"%s %08x %d\n" % (MAGIC, zlib.crc32(payload), len(payload)) + payload


def opened(data: bytes) -> dict:
    """The data of an entry; ValueError when it is not what was written."""
    head, _, payload = data.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 4 or b" ".join(words[:2]) != MAGIC:
        raise ValueError("no cache entry of this version")
    if len(payload) != int(words[3]) or zlib.crc32(payload) != int(words[2], 16):
        raise ValueError("damaged")
    entry = json.loads(payload)
    if not isinstance(entry, dict):
        raise ValueError("damaged")
    return entry


def _trim(path: Path) -> None:
    """Removes what was not used for longest when there is more than the limit."""
    limit = _limit()
    with os.scandir(path) as found:
        files = [(e.stat(), e.path) for e in found if e.name.endswith(SUFFIX)]
    total = sum(s.st_size for s, _ in files)
    for s, name in sorted(files, key=lambda f: f[0].st_mtime):
        if total <= limit:
            return
        os.unlink(name)
        total -= s.st_size


def _limit() -> int:
    text = os.environ.get("DVM_CACHE_BYTES", "")
    if text and not text.isdecimal():
        stats.log.warning("DVM_CACHE_BYTES=%s is no number of bytes: %d holds", text, LIMIT)
    return int(text) if text.isdecimal() else LIMIT


# What reading data that someone else wrote may raise.
WRONG = (ValueError, KeyError, TypeError, SyntaxError, RecursionError)


def load(name: str, gm: GraphModule) -> Program | None:
    """The program of a graph met before; None when there is none that passes every check."""
    path = folder()
    if path is None:
        return None
    file = path / (name + SUFFIX)
    try:
        data = file.read_bytes()
    except OSError:
        return None
    try:
        program = restored(opened(data), gm)
    except WRONG as error:
        stats.count_damaged(str(file), error)
        return None
    with contextlib.suppress(OSError):
        os.utime(file)
    return program


def command(what: str) -> int:
    """`python -m dvm cache`: ls, verify or clear; an exit code."""
    path = folder()
    files = sorted(path.glob("*" + SUFFIX)) if path is not None else []
    bad = total = 0
    for file in files:
        data = file.read_bytes()
        total += len(data)
        state = "ok"
        try:
            names = " ".join(k["name"] for k in opened(data)["kernels"])
        except WRONG as error:
            bad += 1
            state, names = "damaged", str(error)
        if what == "clear":
            file.unlink(missing_ok=True)
        elif what == "ls" or state != "ok":
            print(f"{file.name} {len(data)} bytes, {state}: {names}")
    done = "removed" if what == "clear" else f"of {total} bytes, {bad} damaged"
    print(f"{path}: {len(files)} entries {done}")
    return int(what == "verify" and bad > 0)


def restored(entry: dict, gm: GraphModule | None) -> Program:
    """The program of an entry, one of WRONG when it is not what code generation writes for this
    graph; without a graph any operator of ATen may be in it.
    """
    kernels = [
        KnownKernel(
            k["name"],
            k["source"],
            k["reference"],
            int(k["results"]),
            bool(k["dynamic"]),
            bool(k["in_place"]),
        )
        for k in entry["kernels"]
    ]
    left = Counter({(str(op), str(why)): int(n) for op, why, n in entry["left"]})
    parts = [Restored(int(entry["fused"]), left, int(entry["products"]))]
    checked(entry["header"], kernels, entry["call"], gm)
    return Program(entry["header"], kernels, [entry["call"]], {}, parts)


# ---------------------------------------------------------------------------------- checking

_SYNTAX = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.Expr, ast.Return, ast.Call,
    ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.Lambda, ast.BinOp,
    ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context, ast.IfExp, ast.Compare, ast.cmpop,
)  # fmt: skip
_NAMES = frozenset(
    ("k", "p", "dvm", "torch", "math", "operator", "inf", "nan", "device", "record", "shown")
)
_CALLED = frozenset(("device", "record", "run", "min", "max", "abs", "int", "float", "bool"))


def checked(header: str, kernels: list[AnyKernel], call: str, gm: GraphModule | None) -> None:
    """ValueError unless the texts have the form that code generation gives them."""
    targets = _targets(gm)
    ops = _checked_header(header, targets)
    known = {*ops, *(k.name for k in kernels)}
    for k in kernels:
        (function,) = _tree(k.source, known, "k").body
        if not isinstance(function, ast.FunctionDef) or function.name != k.name:
            raise ValueError("no kernel")
        _checked_reference(k.reference(), targets)
    program, run, function = _tree(call, {*known, "program", "run"}, "p").body
    wanted = "run = record(program).run", "def call(args):\n    return run(args)"
    if program.name != "program" or (ast.unparse(run), ast.unparse(function)) != wanted:
        raise ValueError("no program")


def _targets(gm: GraphModule | None) -> Callable[[str], bool]:
    """Whether an operator, aten.mul.Tensor, may be called."""
    if gm is None:
        return lambda name: re.fullmatch(r"(aten|prims)\.\w+\.\w+", name) is not None
    named = (str(n.target) for n in gm.graph.nodes if n.op == "call_function")
    return {op for name in named for op in called_for(name)}.__contains__


_PATHS = {path: name for name, path in BINDINGS.items()}


def _checked_header(header: str, is_target: Callable[[str], bool]) -> set[str]:
    """The operators that the header names: those of the graph only."""
    if not isinstance(header, str) or not header.startswith(HEADER):
        raise ValueError("another header")
    names = set()
    for line in header[len(HEADER) :].split("\n"):
        if not line:
            continue
        m = re.fullmatch(r"([a-z]\w*) = ((?:torch|operator|math)[\w.]*)", line)
        if m is None:
            raise ValueError(f"unexpected {line!r}")
        target = _PATHS.get(m[2], m[2].removeprefix("torch.ops."))
        if not is_target(target) and not re.fullmatch(r"(operator|math)\.\w+", m[2]):
            raise ValueError(f"unexpected {line!r}")
        names.add(m[1])
    return names


def _checked_reference(text: str, is_target: Callable[[str], bool]) -> None:
    """A reference calls operators of the graph, sizes of its arguments, and arithmetic."""

    def is_operator(n: ast.expr) -> bool:
        text = ast.unparse(n)
        name = text.removeprefix("torch.ops.")  # nothing may stand in front, a call least of all
        return name != text and (name in OTHERS or is_target(name))

    (function,) = _tree(text, set(), "operator", is_operator).body
    if not isinstance(function, ast.FunctionDef) or function.name != "reference":
        raise ValueError("no reference")


def _tree(
    text: str, known: set[str], verb: str, is_operator: Callable[[ast.expr], bool] | None = None
) -> Any:
    """The parsed text. `verb` is the module or argument whose attributes are called; with
    `is_operator`, operators of torch are too, and sizes of tensors."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    if bound & (_NAMES - {verb} | _CALLED - {"run"}):
        raise ValueError("a name of the generator is bound anew")
    allowed = known | bound | _NAMES | _CALLED
    operators: set[ast.AST] = set()
    for n in nodes if is_operator is not None else ():
        if isinstance(n, ast.Call) and (is_operator(n.func) or _is_size(n, bound)):
            operators.update(ast.walk(n.func))
    for n in nodes:
        if not isinstance(n, _SYNTAX):
            raise ValueError(f"unexpected {type(n).__name__}")
        if isinstance(n, ast.Name) and (n.id not in allowed or n.id.startswith("__")):
            raise ValueError(f"unexpected name {n.id}")
        if isinstance(n, ast.Attribute) and n not in operators and not _is_attribute(n, verb):
            raise ValueError(f"unexpected attribute {ast.unparse(n)}")
        if isinstance(n, ast.Call) and n.func not in operators and not _is_call(n, verb):
            raise ValueError(f"unexpected call {ast.unparse(n.func)}")
    return tree


def _is_size(n: ast.Call, bound: set[str]) -> bool:
    """x.size(1)"""
    f = n.func
    return (
        isinstance(f, ast.Attribute)
        and f.attr == "size"
        and isinstance(f.value, ast.Name)
        and f.value.id in bound
    )


def _is_attribute(n: ast.Attribute, verb: str) -> bool:
    if n.attr.startswith("_"):
        return False
    if not isinstance(n.value, ast.Name):
        return ast.unparse(n) == "record(program).run"
    if n.value.id == "torch":
        kinds = (torch.dtype, torch.layout, torch.memory_format)
        return isinstance(getattr(torch, n.attr, None), kinds)
    if n.value.id == "dvm":
        return n.attr == "kernel" or n.attr in _DTYPE_NAMES
    return n.value.id in (verb, "math", "operator")


_DTYPE_NAMES = frozenset(
    ("bool_", "float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "int8")
)


def _is_call(n: ast.Call, verb: str) -> bool:
    if isinstance(n.func, ast.Name):
        return n.func.id in _CALLED
    return isinstance(n.func, ast.Attribute) and (
        n.func.value.id in (verb, "math") or ast.unparse(n.func) == "dvm.kernel"
        if isinstance(n.func.value, ast.Name)
        else False
    )
