"""torch.compile with backend dvm beside eager, aot_eager and Inductor, part by part.

    ./dev bench --torch                       all parts, then every bar beside what was measured
    ./dev bench --torch --filter first        parts and cases whose "PART CASE" holds the text
    ./dev bench --torch --no-inductor

    first    promise 3: first calls, fresh processes (first_call.py)
    calls    promise 2: what a call costs beside its work (torch_calls.py)
    steps    training steps of four transformer blocks and of the model zoo (torch_calls.py)
    memory   most memory of a training step (torch_memory.py)
    sizes    one compilation for all sizes (torch_growth.py)
    growth   compile time of unrolled steps of the recurrence (torch_growth.py)

Contestants of a row of `calls` and `steps` run in turn in one process, each case in a process of its own; first calls
and memory have a process for every number. Everything but first calls runs on one thread. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

HERE = pathlib.Path(__file__).parent
ZOO = ("flux", "qwen3_5", "vision", "glm")
LENGTHS = (8, 32, 128, 512)  # steps of the recurrence
STEPS = [f"{m} {d}" for m in ("blocks", *ZOO) for d in ("fp32", "bf16")]


@dataclass
class Row:
    """One measurement that has a bar; `value` is a ratio, or a number with its unit."""

    bar: str  # key of BARS
    case: str
    value: float


@dataclass
class Bar:
    text: str
    limit: float  # of each row
    mean: float | None = None  # of the geometric mean
    most: bool = True  # values shall be at most the limit


BARS = {
    "first": Bar("first call, parts of aot_eager's", 1.05),
    "share": Bar("DVM's own share, seed examples, ms", 5),
    "share of blocks": Bar("DVM's own share, four blocks, ms", 300),
    "launch": Bar("compiled program, us of 5 + 0.5 a kernel", 1.0),
    "call": Bar("whole call, parts of Inductor's", 0.6),
    "inductor": Bar("training step, Inductor's time / DVM's", 0.0, 1.0, False),
    "eager": Bar("training step, eager's time / DVM's", 0.9, 1.2, False),
    "memory": Bar("peak memory, parts of Inductor's", 1.0),
    "sizes": Bar("recompilations over all sizes", 0),
    "growth": Bar("DVM's compile time of a step, parts of 8 steps'", 1.25),
}


class Bench:
    def __init__(self, filter_: str, inductor: bool, rounds: int) -> None:
        self.filter, self.inductor, self.rounds = filter_, inductor, rounds
        self.rows: list[Row] = []
        self.failed: list[str] = []
        self.folder = tempfile.TemporaryDirectory()
        self.env = {"TORCHINDUCTOR_CACHE_DIR": self.folder.name, **os.environ}

    def wants(self, part: str, *cases: str) -> bool:
        return any(self.filter in f"{part} {c}" for c in cases or ("",))

    def worker(self, script: str, *arguments: str, **env: str) -> Iterator[dict[str, Any]]:
        """Lines of a fresh process; one that fails is told, and remembered."""
        command = [sys.executable, str(HERE / script), *arguments]
        r = subprocess.run(command, capture_output=True, text=True, env={**self.env, **env})
        for line in r.stdout.splitlines():
            if line.startswith("{"):
                yield json.loads(line)
        if r.returncode:
            what = " ".join([script, *arguments])
            self.failed.append(what)
            last = (r.stderr.strip().splitlines() or [""])[-1][:200]
            print(f"  {what}: ended with {r.returncode}: {last}", flush=True)

    def note(self, bar: str, case: str, value: float) -> None:
        self.rows.append(Row(bar, case, value))

    # ------------------------------------------------------------------------------ parts

    def first(self) -> None:
        cases = [c for c in ("static", "dynamic", "gdr", "blocks") if self.wants("first", c)]
        if not cases:
            return
        # As in an installed package: torch's bytecode is there too.
        compileall.compile_dir(HERE.parent / "python" / "dvm", quiet=2)
        print(
            f"\nPromise 3: first call, seconds, fresh processes in turn, least of {self.rounds}; 2 threads"
        )
        for case in cases:
            best: dict[str, dict[str, Any]] = {}
            for i in range(self.rounds):
                for backend in ("eager", "aot_eager", "dvm", "inductor"):
                    once = backend in ("eager", "inductor")
                    if (once and i) or (backend == "inductor" and not self.inductor):
                        continue
                    for row in self.worker("first_call.py", case, backend):
                        if backend not in best or row["first"] < best[backend]["first"]:
                            best[backend] = row
            words = [f"{b} {row['first']:.3f}" for b, row in best.items()]
            ratio = ""
            if "dvm" in best and "aot_eager" in best:
                value = best["dvm"]["first"] / best["aot_eager"]["first"]
                ratio = f"   {value:.2f} x aot_eager's;"
                self.note("first", case, value)
            if "dvm" in best:
                parts = best["dvm"]["parts"]
                ratio += " " + ", ".join(f"{n} {s * 1e3:.1f} ms" for n, s in parts.items())
                self.note(
                    "share of blocks" if case == "blocks" else "share", case, parts["dvm"] * 1e3
                )
            print(f"  {case:8s} {'  '.join(words)}{ratio}", flush=True)

    def calls(self) -> None:
        if not self.wants("calls"):
            return
        print("\nPromise 2: cost of a call, us, 8 elements, one thread")
        for row in self.worker("torch_calls.py", "calls", **self.contestants()):
            if "kernels" in row:
                n, bar = row["kernels"], 5 + 0.5 * row["kernels"]
                print(
                    f"  program of {n:3d} kernels      {row['us']:7.2f}   bar {bar:.1f}", flush=True
                )
                self.note("launch", f"{n} kernels", row["us"] / bar)
                continue
            times = {b: t * 1e6 for b, t in row["times"].items()}
            print(f"  {row['case']:26s} {compared(times, 1)}", flush=True)
            if "inductor" in times:
                self.note("call", row["case"], times["dvm"] / times["inductor"])
        print("  (`torch` is a graph that computes nothing: Dynamo's guards and wrapper)")

    def contestants(self) -> dict[str, str]:
        return {"BENCH_BACKENDS": "eager dvm" + " inductor" * self.inductor}

    def steps(self) -> None:
        cases = [c for c in STEPS if self.wants("steps", c) and self.is_here(c)]
        if not cases:
            return
        print("\nTraining steps, forward and backward, ms, one thread")
        for case in cases:
            for row in self.worker("torch_calls.py", "step", case, **self.contestants()):
                times = {b: t * 1e3 for b, t in row["times"].items()}
                print(f"  {case:26s} {compared(times, 2)}", flush=True)
                for peer in ("inductor", "eager"):
                    if peer in times:
                        self.note(peer, case, times[peer] / times["dvm"])

    def is_here(self, case: str) -> bool:
        module = {"blocks": "torch", "flux": "diffusers"}.get(case.split()[0], "transformers")
        if importlib.util.find_spec(module) is not None:
            return True
        print(f"  {case}: not run, {module} is not installed (./dev exec --models true)")
        self.failed.append(case)
        return False

    def memory(self) -> None:
        cases = [c for c in STEPS if self.wants("memory", c) and self.is_here(c)]
        if not cases:
            return
        counter = pathlib.Path(self.folder.name) / "malloc_peak.so"
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(counter)]
        subprocess.run([*command, str(HERE / "malloc_peak.c")], check=True)
        print(
            "\nPeak memory of a training step, KiB: most bytes that the process holds beyond what it held before"
        )
        for case in cases:
            peak = {}
            for backend in ("eager", "dvm", "inductor") if self.inductor else ("eager", "dvm"):
                for row in self.worker("torch_memory.py", case, backend, LD_PRELOAD=str(counter)):
                    peak[backend] = row["peak"] / 1024
            words = "  ".join(f"{b} {kib:.0f}" for b, kib in peak.items())
            ratios = [
                f"{peak['dvm'] / peak[b]:.2f} x {b}'s" for b in ("eager", "inductor") if b in peak
            ]
            print(f"  {case:26s} {words}   {', '.join(ratios)}", flush=True)
            if "inductor" in peak:
                self.note("memory", case, peak["dvm"] / peak["inductor"])

    def sizes(self) -> None:
        if not self.wants("sizes"):
            return
        print(
            "\nOne compilation for all sizes: the dynamic example, results compared with eager at each"
        )
        for row in self.worker("torch_growth.py", "sizes"):
            print(
                f"  {row['case']:26s} {row['sizes']} sizes: {plural(row['graphs'], 'graph')}, {plural(row['recompiles'], 'recompilation')}, {plural(row['kernels'], 'kernel')}",
                flush=True,
            )
            self.note("sizes", row["case"], row["recompiles"] + row["graphs"] - 1)

    def grown(self) -> list[dict[str, Any]]:
        """Of each length the run in which DVM's part took least: through torch, which takes minutes
        for 128, and DVM alone."""
        wanted = [("steps", n, ()) for n in (8, 32)]
        wanted += [("own", n, (kind,)) for kind in ("forward", "training") for n in LENGTHS]
        out = []
        for what, n, more in wanted:
            rows = [
                row
                for _ in range(1 if n > 128 else self.rounds)
                for row in self.worker("torch_growth.py", what, str(n), *more)
            ]
            out += sorted(rows, key=lambda row: row["dvm"])[:1]
        return out

    def growth(self, rows: list[dict[str, Any]]) -> None:
        print(
            "\nCompile time of unrolled steps of the recurrence, ms a step; through torch: forward"
        )
        first: dict[str, float] = {}
        for d in rows:
            n, kind = d["steps"], d.get("kind", "through torch")
            each = {k: d[k] / n * 1e3 for k in ("dvm", "trace", "aot") if k in d}
            grown = each["dvm"] / first.setdefault(kind, each["dvm"])
            words = ", ".join(f"{k} {v:.2f}" for k, v in each.items())
            nodes = f", {d['nodes']} nodes" if "nodes" in d else ""
            print(
                f"  {kind:13s} {n:4d} steps   {words}   dvm's {grown:.2f} x that of 8 steps; {plural(d['kernels'], 'kernel')}{nodes}",
                flush=True,
            )
            self.note("growth", f"{n} steps, {kind}", grown)

    # ---------------------------------------------------------------------------- summary

    def summary(self) -> None:
        print("\nSummary")
        for key, bar in BARS.items():
            rows = [r for r in self.rows if r.bar == key]
            if not rows:
                continue
            sign = 1 if bar.most else -1
            rows.sort(key=lambda r: -sign * r.value)
            mean = ""
            if bar.mean is not None:
                g = math.exp(sum(math.log(r.value) for r in rows) / len(rows))
                missed = "  MISSED" if sign * g > sign * bar.mean else ""
                mean = f"geometric mean {g:.2f} (bar {bar.mean:.2f}){missed}  "
            worst = rows[0]
            limit = f" (bar {bar.limit:g})" if bar.limit or bar.most else ""
            print(
                f"  {bar.text:46s} {mean}worst {worst.value:.2f}{limit}: {worst.case}; {len(rows)} rows"
            )
            for r in rows:
                if sign * r.value > sign * bar.limit:
                    print(f"      misses the bar  {r.value:8.2f}  {r.case}")
        for what in self.failed:
            print(f"  NOT RUN: {what}")


def plural(n: int, word: str) -> str:
    return f"{n} {word}" + "s" * (n != 1)


def compared(times: dict[str, float], digits: int) -> str:
    words = [f"{b} {t:.{digits}f}" for b, t in times.items()]
    ratios = [
        f"{times[b] / times['dvm']:.2f} x {b}'s speed" for b in ("eager", "inductor") if b in times
    ]
    return f"{'  '.join(words)}   {', '.join(ratios)}"


def main(args: argparse.Namespace) -> int:
    start = time.time()
    bench = Bench(args.filter, args.inductor, 3)
    for part in (bench.first, bench.calls, bench.steps):
        part()
    with ThreadPoolExecutor(1) as beside:  # minutes of one core; what runs meanwhile is not timed
        growth = beside.submit(bench.grown) if bench.wants("growth") else None
        bench.memory()
        bench.sizes()
        if growth:
            bench.growth(growth.result())
    bench.summary()
    print(f"\nbenchmark done in {time.time() - start:.0f} s")
    if args.json:
        args.json.write_text(json.dumps([vars(r) for r in bench.rows], indent=1))
    return 0
