"""`python -m dvm doctor`: what is installed, where it comes from, and whether it works.

The eight points of checklist.py come first, then details. A row that is not as it should be carries
a remedy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from .checklist import BAD, EFFECTS, NOTE, OK, findings


class Row(dict[str, Any]):
    """One line of the report: section, name, value, state, remedy."""

    def __init__(
        self, section: str, name: str, value: Any, state: str = OK, remedy: str = ""
    ) -> None:
        super().__init__(section=section, name=name, value=value, state=state, remedy=remedy)


def _checklist() -> Iterable[Row]:
    for name, f in findings():
        yield Row("checklist", name, f.evidence, f.state, f.remedy)


def _guard(section: str, check: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows of a check; an exception becomes a row."""
    try:
        return list(check())
    except Exception as e:
        return [Row(section, type(e).__name__, str(e), BAD)]


def _versions() -> Iterable[Row]:
    import _dvm

    import dvm

    yield Row("versions", "dvm", dvm.__version__)
    yield Row("versions", "bytecode format", _dvm.FORMAT)
    yield Row("versions", "python", f"{platform.python_version()} ({sys.executable})")
    for name in ("numpy", "torch", "ml_dtypes"):
        try:
            yield Row("versions", name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Row("versions", name, "not installed", OK if name == "ml_dtypes" else NOTE)


def _origins() -> Iterable[Row]:
    import _dvm

    import dvm

    yield Row("origin", "dvm", os.path.dirname(dvm.__file__ or "?"))
    yield Row("origin", "_dvm", _dvm.__file__)
    spec = importlib.util.find_spec("torch")
    yield Row("origin", "torch", spec.origin if spec is not None else "not installed")
    try:
        other = importlib.metadata.distribution("dvm")
        text = f"another project called dvm {other.version} is installed: pip uninstall dvm"
        yield Row("origin", "distribution dvm", text, BAD)
    except importlib.metadata.PackageNotFoundError:
        yield Row("origin", "distribution dvm", "none (good: that name is another project)")
    try:
        yield Row("origin", "distribution libdvm", importlib.metadata.version("libdvm"))
    except importlib.metadata.PackageNotFoundError:
        yield Row("origin", "distribution libdvm", "not installed: a source tree", NOTE)


def _device() -> Iterable[Row]:
    import _dvm

    from . import get_num_threads

    yield Row("device", "device", _dvm.default_context().device)
    pool = "torch's OpenMP runtime" if _dvm.default_context().openmp else "own pool"
    yield Row("device", "threads", f"{get_num_threads()}, {pool}")
    if hasattr(os, "sched_getaffinity"):
        yield Row("device", "processors available", len(os.sched_getaffinity(0)))


def _self_test() -> Iterable[Row]:
    import numpy as np

    import dvm

    def softmax(k: Any, x: Any) -> Any:
        a = k.load(x, dvm.float32)
        e = k.exp(k.sub(a, k.max(a, [1], True)))
        return k.store(k.div(e, k.sum(e, [1], True)))

    x = np.random.default_rng(0).standard_normal((256, 1000)).astype(np.float32)
    start = time.perf_counter()
    f = dvm.kernel(softmax)
    got = f(x)
    first = (time.perf_counter() - start) * 1e6
    e = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
    error = float(np.abs(got - e / e.sum(1, keepdims=True)).max())
    yield Row("self-test", "softmax 256x1000", f"error {error:.1e}", OK if error < 1e-6 else BAD)
    yield Row("self-test", "build, compile, first run", f"{first:.0f} us")
    stats = f.kobj._build.kernel.stats()  # type: ignore[union-attr]
    yield Row("self-test", "compile", f"{stats['compile_ns'] / 1e3:.1f} us")
    yield Row("self-test", "one run", f"{_best(f, x):.1f} us")
    same = all(np.array_equal(f(x), got) for _ in range(3))
    yield Row("self-test", "same bits at every run", same, OK if same else BAD)
    small = np.ones(16, np.float32)
    add = dvm.kernel(lambda k, x, y: k.store(k.add(k.load(x), k.load(y))))
    add(small, small)
    yield Row("self-test", "call of 16 elements", f"{_best(add.run, small, small, small):.2f} us")


def _best(f: Callable[..., Any], *args: Any) -> float:
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(10):
            f(*args)
        best = min(best, (time.perf_counter_ns() - start) / 10e3)
    return best


def cache_dir() -> str:
    """Where compiled programs would be kept: DVM_CACHE_DIR, else the user's cache folder."""
    chosen = os.environ.get("DVM_CACHE_DIR")
    if chosen:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "dvm")


def _cache() -> Iterable[Row]:
    path = cache_dir()
    probe = path
    while not os.path.isdir(probe) and os.path.dirname(probe) != probe:
        probe = os.path.dirname(probe)
    writable = os.access(probe, os.W_OK)
    text = path if writable else f"{path} cannot be written; nothing is kept between processes"
    yield Row("cache", "folder", text, OK if writable else NOTE)


def _environment() -> Iterable[Row]:
    found = [(n, os.environ[n]) for n in EFFECTS if n in os.environ]
    found += [(n, v) for n, v in sorted(os.environ.items()) if n.startswith("DVM_")]
    for name, value in dict(found).items():
        effect = EFFECTS.get(name, "not known")
        yield Row("environment", name, f"{value} ({effect})", OK if name in EFFECTS else NOTE)
    if not found:
        yield Row("environment", "-", "nothing set")


def openmp_runtimes() -> list[str]:
    """OpenMP runtimes loaded in this process."""
    names = ("libgomp", "libiomp5", "libomp.", "libomp-", "libomp5")
    found: dict[str, None] = {}
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as f:
            for line in f:
                path = line.rsplit(maxsplit=1)[-1]
                if os.path.basename(path).startswith(names):
                    found[path] = None
    except OSError:
        pass
    return list(found)


def _openmp() -> Iterable[Row]:
    found = openmp_runtimes()
    state = NOTE if len(found) > 1 else OK
    for path in found:
        yield Row("openmp", "loaded", path, state)
    if not found:
        yield Row("openmp", "loaded", "none")
    if len(found) > 1:
        yield Row(
            "openmp", "", "several runtimes in one process: threads may be oversubscribed", NOTE
        )


def _torch() -> Iterable[Row]:
    if importlib.util.find_spec("torch") is None:
        yield Row("torch", "backend", "torch is not installed", NOTE)
        return
    entries = importlib.metadata.entry_points(group="torch_dynamo_backends")
    mine = [e for e in entries if e.name == "dvm"]
    if mine:
        yield Row("torch", "entry point", mine[0].value)
    else:
        text = "no entry point: import dvm.torch before torch.compile(backend='dvm')"
        yield Row("torch", "entry point", text, NOTE)
    import torch

    yield Row("torch", "threads", torch.get_num_threads())
    fast = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    text = "DLPack C exchange" if fast else "attributes (torch before 2.10: some slower calls)"
    yield Row("torch", "tensors come in by", text, OK if fast else NOTE)


def _ports() -> Iterable[Row]:
    """dvm opens none; ranges that training runs are told to use."""
    named = [n for n in ("DVM_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE") if os.environ.get(n)]
    if not named:
        yield Row("ports", "-", "none needed; the system chooses where ranks meet")
    for name in named:
        text = os.environ[name]
        first, _, last = text.partition("-")
        remedy = f"{name}=16700-16799, say"
        try:
            ports = range(int(first), int(last or first) + 1)
        except ValueError:
            ports = range(0)
        if not ports or ports[0] < 1 or ports[-1] > 65535:
            yield Row("ports", name, f"{text} is no range of ports", BAD, remedy)
            continue
        taken = [p for p in ports[:256] if not _is_free(p)]
        state = OK if not taken else NOTE if len(taken) < len(ports) else BAD
        said = f"{text}: taken {', '.join(map(str, taken[:8]))}" if taken else f"{text}: all free"
        yield Row("ports", name, said, state, "" if state == OK else "the next free one is used"
                  if state == NOTE else "name another range")  # fmt: skip


def _is_free(port: int) -> bool:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


CHECKS = (
    ("checklist", _checklist), ("versions", _versions), ("origin", _origins),
    ("device", _device), ("self-test", _self_test), ("cache", _cache),
    ("environment", _environment), ("torch", _torch), ("openmp", _openmp), ("ports", _ports),
)  # fmt: skip


def report() -> list[Row]:
    """Every row of the report."""
    return [row for section, check in CHECKS for row in _guard(section, check)]


def _plain(rows: list[Row]) -> None:
    section = ""
    for r in rows:
        if r["section"] != section:
            section = r["section"]
            print(section)
        mark = {OK: " ", NOTE: "?", BAD: "!"}[r["state"]]
        print(f" {mark} {r['name']:<26} {r['value']}")
        if r["remedy"]:
            print(f"   {'':<26} -> {r['remedy']}")


def _rich(rows: list[Row]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    color = {OK: "", NOTE: "yellow", BAD: "bold red"}
    section = ""
    for r in rows:
        head = "" if r["section"] == section else r["section"]
        section = r["section"]
        value = f"{r['value']}\n-> {r['remedy']}" if r["remedy"] else str(r["value"])
        table.add_row(head, r["name"], Text(value), style=color[r["state"]])
    Console().print(table)
    return True


def main(args: list[str]) -> int:
    """`doctor [--json]`; 1 when something is wrong."""
    unknown = [a for a in args if a != "--json"]
    if unknown:
        print(f"dvm doctor: unknown argument {unknown[0]!r}; usage: python -m dvm doctor [--json]")
        return 2
    rows = report()
    bad = sum(r["state"] == BAD for r in rows)
    if "--json" in args:
        print(json.dumps({"ok": bad == 0, "rows": rows}, indent=1, default=str))
    else:
        if not _rich(rows):
            _plain(rows)
        print(f"{bad} problems" if bad else "everything works")
    return int(bad > 0)
