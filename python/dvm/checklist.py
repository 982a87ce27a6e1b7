"""The eight points that say whether torch.compile(backend="dvm") is really what runs.

Each point is one row: evidence, and a remedy when something is wrong. An environment variable
proves nothing; generated code that holds kernels does. `dvm doctor` prints them.
"""

from __future__ import annotations

import ast
import difflib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

OK, NOTE, BAD = "ok", "note", "bad"


class Finding(NamedTuple):
    """What a point saw. `remedy` is empty when nothing is to be done."""

    evidence: str
    state: str = OK
    remedy: str = ""


# The oldest torch that the backend supports, and the newest it was tested with.
OLDEST, NEWEST = (2, 9), (2, 14)

REINSTALL = "pip uninstall dvm libdvm, then pip install libdvm; in a source tree ./dev build"

# Variable -> what it does.
EFFECTS = {
    "DVM_ISA": "caps the CPU level",
    "DVM_JIT": "0 turns machine code off",
    "DVM_NUM_THREADS": "threads of a kernel",
    "DVM_OPENMP": "0 keeps kernels off torch's OpenMP runtime",
    "DVM_PERF": "1 names machine code for the profiler perf",
    "DVM_GDB": "1 names machine code for the debugger gdb",
    "DVM_ARCH": "CUDA architecture of emitted code",
    "DVM_CACHE": "1 keeps compiled programs on disk, for later processes",
    "DVM_CACHE_BYTES": "bytes of the cache folder, above which the oldest entries go",
    "DVM_CACHE_DIR": "folder of compiled programs",
    "DVM_DEBUG_DIR": "folder of generated code",
    "DVM_DISABLE_OPS": "ATen ops left to torch",
    "DVM_STRICT": "16-bit floats are rounded after every operation",
    "DVM_PRODUCTS": "matrix products of torch graphs that are kernels: auto, all or none",
    "DVM_CHECK": "every kernel is compared with torch: slow",
    "DVM_LOG": "what is compiled is printed",
    "DVM_PORT_RANGE": "ports where ranks of the training example meet",
    "DEVICE_ID": "device of the kernel language",
    "OMP_NUM_THREADS": "threads of torch, and of kernels that run on its OpenMP runtime",
    "XDG_CACHE_HOME": "parent of the cache folder",
    "TORCH_COMPILE_DEBUG": "1 writes generated code into torch_compile_debug",
    "TORCH_LOGS": "torch's own logging",
    "TORCHINDUCTOR_CACHE_DIR": "Inductor's cache; not used by dvm",
    "TORCHINDUCTOR_NPU_BACKEND": "chooses a code generator of torch_npu; not used by dvm",
    "HCCL_NPU_SOCKET_PORT_RANGE": "ports of ranks, behind DVM_PORT_RANGE",
    "HCCL_CONNECT_TIMEOUT": "seconds for ranks to meet in the training example",
    "HCCL_EXEC_TIMEOUT": "seconds for a collective in the training example",
}

# Of ./dev, the tests and the benchmarks.
EFFECTS |= dict.fromkeys(
    ("DVM_BUILD", "DVM_JOBS", "DVM_MESON_ARGS", "DVM_PYTHON", "DVM_VENV", "DVM_TORCH_VERSION",
     "DVM_FUZZ_SECONDS", "DVM_TEST_TIMEOUT", "DVM_UNIT_TIMEOUT", "DVM_TEST_LINES", "DVM_LINT_LINES",
     "DVM_EMU", "DVM_DEVICE", "DVM_SEED", "DVM_CASES", "DVM_JIT_SEED", "DVM_JIT_PROGRAMS",
     "DVM_OPINFO_SEED", "DVM_OPINFO_SAMPLES", "DVM_RECORD_OPS", "DVM_DEMO_LACKS"),
    "for ./dev only",
)  # fmt: skip


def version_match() -> Finding:
    import _dvm

    import dvm

    parts = [f"dvm {dvm.__version__}", f"_dvm {_dvm.__version__}"]
    try:
        installed = importlib.metadata.version("libdvm")
    except importlib.metadata.PackageNotFoundError:
        installed = None
    same = dvm.__version__ == _dvm.__version__ == (installed or dvm.__version__)
    parts.append(f"libdvm {installed or 'not installed as a distribution'}")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding(", ".join(parts), NOTE, "pip install torch, for torch.compile")
    parts.append(f"torch {torch}")
    if not same:
        return Finding(", ".join(parts), BAD, REINSTALL)
    number = tuple(int(n) for n in torch.split("+")[0].split(".")[:2])
    if number < OLDEST:
        return Finding(", ".join(parts), BAD, f"torch {'.'.join(map(str, OLDEST))} or newer")
    if number > NEWEST:
        said = f"newer than the last tested torch, {'.'.join(map(str, NEWEST))}"
        return Finding(", ".join(parts), NOTE, f"{said}: compare results with eager once")
    return Finding(", ".join(parts))


def source_has_backend() -> Finding:
    """The file beside this one defines the object that torch is to call."""
    path = Path(__file__).parent / "torch" / "backend.py"
    if not path.is_file():
        return Finding(f"{path} is missing", BAD, REINSTALL)
    names = {t.id for n in ast.parse(path.read_text()).body if isinstance(n, ast.Assign)
             for t in n.targets if isinstance(t, ast.Name)}  # fmt: skip
    if "dvm" not in names:
        return Finding(f"{path} defines no backend", BAD, REINSTALL)
    return Finding(f"{path} defines the backend")


def import_path() -> Finding:
    """Where dvm comes from, and whether another one lies on the path behind it."""
    import dvm

    used = Path(dvm.__file__ or "?").parent
    others = []
    for folder in sys.path:
        found = Path(folder or ".") / "dvm" / "__init__.py"
        if found.is_file() and found.parent.resolve() != used.resolve():
            others.append(str(found.parent))
    if others:
        said = f"{used}; also {', '.join(others)}"
        return Finding(said, NOTE, "remove the one that is not meant, or run in another folder")
    return Finding(f"{used}, the only one on the path")


def torch_knows_backend() -> Finding:
    entries = [
        e for e in importlib.metadata.entry_points(group="torch_dynamo_backends") if e.name == "dvm"
    ]
    if not entries:
        return Finding("no entry point named dvm", BAD, REINSTALL)
    from torch._dynamo.backends.registry import lookup_backend

    from .torch.backend import dvm

    if lookup_backend("dvm") is not dvm:
        said = f"torch finds {lookup_backend('dvm')!r} under the name dvm"
        return Finding(said, BAD, "uninstall the package that registers this name as well")
    return Finding(f"entry point {entries[0].value}, and torch resolves it to this package")


def variables() -> Finding:
    """What is set and does something here; a DVM_ name that does nothing is probably misspelt."""
    known = [f"{n}={os.environ[n]} ({EFFECTS[n]})" for n in EFFECTS if n in os.environ]
    odd = [n for n in sorted(os.environ) if n.startswith("DVM_") and n not in EFFECTS]
    if odd:
        hints = []
        for name in odd:
            near = difflib.get_close_matches(name, EFFECTS, 1)
            hints.append(f"unset {name}" + (f", or did you mean {near[0]}?" if near else ""))
        said = "; ".join([*known, f"{', '.join(odd)}: not known"])
        return Finding(said, NOTE, "; ".join(hints))
    return Finding("; ".join(known) or "nothing set, and nothing needs to be")


def _fresh() -> Any:
    import torch

    import dvm.torch  # noqa: F401

    torch._dynamo.reset()
    return torch


def static_example() -> Finding:
    torch = _fresh()

    def f(x: Any, y: Any) -> Any:
        return torch.relu(x * y + x)

    x, y = torch.randn(128, 128), torch.randn(128, 128)
    far = float((torch.compile(f, backend="dvm", fullgraph=True)(x, y) - f(x, y)).abs().max())
    n = len(_graphs())
    good = far <= 1e-6 and n == 1
    said = f"relu(x * y + x), 128 x 128: at most {far:.1e} from eager, {n} graph"
    return Finding(said, OK if good else BAD, "" if good else "please report this as a bug")


def dynamic_example() -> Finding:
    torch = _fresh()

    def f(x: Any, y: Any) -> Any:
        return torch.relu(x + y) / x.shape[0]

    compiled, far = torch.compile(f, backend="dvm", fullgraph=True), 0.0
    for rows in (32, 48):
        x, y = torch.randn(rows, 16), torch.randn(rows, 16)
        for t in (x, y):
            torch._dynamo.mark_dynamic(t, 0)
        far = max(far, float((compiled(x, y) - f(x, y)).abs().max()))
    n = len(_graphs())
    good = far <= 1e-4 and n == 1
    said = f"relu(x + y) / rows, 32 and 48 rows: at most {far:.1e} from eager, {n} compilation"
    return Finding(said, OK if good else BAD, "" if good else "please report this as a bug")


def generated_code() -> Finding:
    """The text that ran for the dynamic example: import, kernel, and its lines."""
    graphs = _graphs()
    text = graphs[-1].source if graphs else ""
    proof = ("import dvm", "@dvm.kernel", "k.load(", "k.relu(", "k.store(")
    lines = text.splitlines()
    seen = [next((i + 1 for i, s in enumerate(lines) if p in s), 0) for p in proof]
    said = ", ".join(f"{p} in line {i}" for p, i in zip(proof, seen, strict=True) if i)
    missing = [p for p, i in zip(proof, seen, strict=True) if not i]
    if missing:
        remedy = "look at DVM_DISABLE_OPS, and at the reasons in dvm.torch.summary()"
        return Finding(f"{said or 'no code'}; no {', no '.join(missing)}", BAD, remedy)
    return Finding(said)


def _graphs() -> list[Any]:
    import dvm.torch

    return dvm.torch.summary().graphs


POINTS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("1 versions match", version_match),
    ("2 source has the backend", source_has_backend),
    ("3 imported from", import_path),
    ("4 torch knows the backend", torch_knows_backend),
    ("5 environment", variables),
    ("6 static example", static_example),
    ("7 dynamic example", dynamic_example),
    ("8 generated code", generated_code),
)
NEED_TORCH = POINTS[3:4] + POINTS[5:]


def findings() -> Iterator[tuple[str, Finding]]:
    """Every point in order. One that raises is a finding too."""
    torch = importlib.util.find_spec("torch") is not None
    for point in POINTS:
        name, check = point
        if not torch and point in NEED_TORCH:
            yield name, Finding("torch is not installed", NOTE, "pip install torch")
            continue
        try:
            yield name, check()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            yield name, Finding(f"{type(error).__name__}: {reason}", BAD, REINSTALL)
