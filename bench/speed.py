"""Promise 4 and the speed of machine code: the suite and chains of operations beside the same function as one fused C
loop, torch eager, Inductor and the copy rate; norms and softmax forward and backward beside eager.

All contestants of a row take turns within the same fraction of a second, and the best time of each counts: what another
process takes away hits one round, not one contestant. A row not clearly above its bars gets more rounds, of all contestants alike, before
it is called a miss. Ratios are peer time / DVM time: above 1 DVM is faster.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import dvm
import numpy as np
import peers
import rates
import torch
from bars import CLEAR
from cases import Case, Pair, cases, chain_case, pairs

SIZES = {
    "4K": 4 << 10,
    "16K": 16 << 10,
    "64K": 64 << 10,
    "1M": 1 << 20,
    "16M": 16 << 20,
    "64M": 64 << 20,
    "256M": 256 << 20,
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
NAMES = {"f32": "float32", "bf16": "bfloat16"}
LARGE = 64 << 20  # from here on a kernel streams through memory
CACHED = (
    16 << 10,
    64 << 10,
)  # fit the second-level cache: what more elements take, without the call

CHAINS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40)
QUICK_CHAINS = (1, 3, 8, 16, 40)


@dataclasses.dataclass
class Row:
    group: str  # "suite", "chain", "pair"
    case: str
    dtype: str
    size: str
    threads: int
    times: dict[str, float]
    copy: float  # share of the copy rate
    arithmetic: (
        float  # time of the same function in cache, as a share of the time of copying what it moves
    )
    kernels: int
    rounds: int
    read: float = float(
        "nan"
    )  # share of the rate of hand-written loops, of what only reads or turns

    def floor(self) -> float:
        """Share of the larger floor: copying what the kernel moves, or its arithmetic on data in cache."""
        return self.copy * max(1.0, self.arithmetic)

    def ratio(self, peer: str) -> float | None:
        return self.times[peer] / self.times["dvm"] if peer in self.times else None

    def label(self) -> str:
        return f"{self.case}, {self.dtype}, {self.size}, {self.threads} thread" + "s" * (
            self.threads > 1
        )


def geomean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


class Match:
    """Best seconds of one call of each, taking turns. The order changes, since who comes next finds in the cache what the
    one before has read."""

    def __init__(self, runs: dict[str, Callable[[], Any]]) -> None:
        self.runs, self.rounds = runs, 0
        self.best: dict[str, float] = {}
        self._order = random.Random(7)
        for name, run in runs.items():
            run()
            t = time.perf_counter()
            run()
            self.best[name] = max(time.perf_counter() - t, 1e-7)
        self._inner = {name: max(1, int(0.001 / t)) for name, t in self.best.items()}

    def play(self, budget: float) -> None:
        """`budget` seconds for each; eight rounds at least, slow ones three."""
        start, share = time.perf_counter(), budget * len(self.runs)
        first = self.rounds
        while self.rounds < first + 3 or time.perf_counter() < start + share * (
            1 if self.rounds >= first + 8 else 8
        ):
            self.rounds += 1
            for name, run in self._order.sample(list(self.runs.items()), len(self.runs)):
                t = time.perf_counter()
                for _ in range(self._inner[name]):
                    run()
                self.best[name] = min(
                    self.best[name], (time.perf_counter() - t) / self._inner[name]
                )


def set_threads(n: int) -> None:
    torch.set_num_threads(n)
    dvm.set_num_threads(n)


def copies(size: int) -> dict[str, Callable[[], Any]]:
    """Two ways to copy `size` bytes; the faster one is the rate of the machine."""
    a = torch.randn(max(size // 4, 1024))
    b = torch.empty_like(a)
    by_c = peers.run_copy(a, b)
    return {"copy torch": lambda: b.copy_(a), "copy libc": by_c}


MORE = 4  # times that a row not clearly above its bars is measured again, with twice the budget


def decide(match: Match, budget: float, row_of: Callable[[dict[str, float]], Row]) -> Row:
    """The row of a match, played on while it is not clearly above its bars."""
    match.play(budget)
    for _ in range(MORE):
        row = row_of(dict(match.best))
        if not misses(row, CLEAR):
            break
        match.play(2 * budget)
    row = row_of(dict(match.best))
    row.rounds = match.rounds
    return row


def measure_case(
    group: str, case: Case, dtype: str, size: str, threads: int, names: set[str], budget: float
) -> Row:
    t = DTYPES[dtype]
    m, n = peers.shapes(case, SIZES[size], t.itemsize)
    args = peers.tensors(case, m, n, t)
    out = torch.empty(peers.shape_of(case.output, m, n), dtype=t)
    run, k = peers.run_dvm(case, args, out, m, n, NAMES[dtype])
    runs: dict[str, Callable[[], Any]] = {"dvm": run}
    if "c" in names and threads == 1:
        runs["c"] = peers.run_c(case, args, torch.empty_like(out), m, n)
    if "eager" in names:
        runs["eager"] = peers.run_eager(case, args)
    if "inductor" in names:
        runs["inductor"] = peers.run_inductor(case, args)
    few = many = 0  # elements
    if SIZES[size] >= LARGE:
        runs |= copies(SIZES[size])
        small, large = (in_cache(case, dtype, bytes_) for bytes_ in CACHED)
        runs |= {"few": small[0], "many": large[0]}
        few, many = small[1], large[1]
        if case.moved == 1 and threads == 1:
            runs |= rates.reads(args[0])
        if "square" in case.inputs and threads == 1:
            runs |= rates.turned(*args)

    def row_of(times: dict[str, float]) -> Row:
        copied = [times.pop(c) for c in ("copy torch", "copy libc") if c in times]
        read = [times.pop(c) for c in list(times) if c.startswith(("read ", "loop "))]
        share = arithmetic = float("nan")
        if copied:
            floor = case.moved * m * n * t.itemsize / (2 * SIZES[size]) * min(copied)
            share = floor / times["dvm"]
            each = (times.pop("many") - times.pop("few")) / (many - few)
            arithmetic = each * m * n / threads / floor
        kernels = peers.stats(k)["kernels"]
        row = Row(group, case.name, dtype, size, threads, times, share, arithmetic, kernels, 0)
        if read:
            row.read = min(read) / times["dvm"]
        return row

    return decide(Match(runs), budget, row_of)


def in_cache(case: Case, dtype: str, size: int) -> tuple[Callable[[], Any], int]:
    """A run over so few elements that one thread takes them, from its cache; and their number."""
    t = DTYPES[dtype]
    m, n = peers.shapes(case, size, t.itemsize)
    args = peers.tensors(case, m, n, t)
    out = torch.empty(peers.shape_of(case.output, m, n), dtype=t)
    return peers.run_dvm(case, args, out, m, n, NAMES[dtype])[0], m * n


def measure_pair(pair: Pair, dtype: str, size: str, threads: int, budget: float) -> Row:
    t = DTYPES[dtype]
    m, n = SIZES[size] // t.itemsize // 1024, 1024
    run, eager, kernels = pair.make(m, n, t, NAMES[dtype])
    nan = float("nan")

    def row_of(times: dict[str, float]) -> Row:
        return Row("pair", pair.name, dtype, size, threads, times, nan, nan, kernels, 0)

    return decide(Match({"dvm": run, "eager": eager}), budget, row_of)


HEAD = f"  {'case':22s} {'type':5s} {'size':>5s} {'threads':>7s} {'dvm us':>10s} {'copy':>6s} {'floor':>6s} {'loops':>6s} {'fused C':>8s} {'eager':>7s} {'inductor':>8s} kernels rounds"


def show(row: Row) -> None:
    def ratio(peer: str) -> str:
        r = row.ratio(peer)
        return f"{r:.2f}" if r else "-"

    def share(v: float) -> str:
        return f"{v * 100:5.0f}%" if v == v else "-"

    print(
        f"  {row.case:22s} {row.dtype:5s} {row.size:>5s} {row.threads:7d} {row.times['dvm'] * 1e6:10.1f} {share(row.copy):>6s} {share(row.floor()):>6s} {share(row.read):>6s} "
        f"{ratio('c'):>8s} {ratio('eager'):>7s} {ratio('inductor'):>8s} {row.kernels:3d} {row.rounds:10d}",
        flush=True,
    )


def jobs(args: argparse.Namespace) -> list[tuple[str, Any, str, str, int, set[str]]]:
    """(group, case, dtype, size, threads, peers) of every row, by size, so that like stands beside like."""
    full = args.full
    threads = args.threads or [1, 2]
    sizes = args.size or (list(SIZES) if full else ["16K", "1M", "64M"])
    out = []
    for n in threads:
        for size in sizes:
            for dtype in args.dtype or list(DTYPES):
                two = n > 1 and not full
                if two and (size == "16K" or dtype != "f32"):
                    continue
                for case in cases():
                    names = {"c", "eager"}
                    if args.inductor and (full or (size == "1M" and n == 1)):
                        names.add("inductor")
                    out.append(("suite", case, dtype, size, n, names))
                chain_sizes = args.size or (list(SIZES) if full else ["1M", "64M"])
                for ops in CHAINS if full else QUICK_CHAINS:
                    if size in chain_sizes and not two and (full or dtype == "f32"):
                        out.append(("chain", chain_case(ops), dtype, size, n, {"c"}))
                if SIZES[size] >= 1 << 20 and SIZES[size] <= 64 << 20:
                    out += [("pair", p, dtype, size, n, set()) for p in pairs()]
    if not full and not args.size:
        small = [("chain", chain_case(k), "f32", s, 1, {"c"}) for s in ("4K", "64K", "16M") for k in QUICK_CHAINS]  # fmt: skip
        out = small + out
    return [j for j in out if args.filter in j[1].name]  # type: ignore[attr-defined]


@dataclasses.dataclass
class Bar:
    text: str
    peer: str
    mean: float | None
    worst: float
    of: Callable[[Row], bool]


BARS = (
    Bar("chains against the fused C loop", "c", 0.95, 0.85, lambda r: r.group == "chain"),
    Bar("suite against the fused C loop", "c", 0.95, 0.85, lambda r: r.group == "suite"),
    Bar("suite against Inductor", "inductor", 1.10, 1.00, lambda r: r.group == "suite"),
    Bar("suite against eager", "eager", 1.50, 1.00, lambda r: r.group == "suite"),
    Bar("norms and softmax, forward and backward, eager", "eager", None, 1.20, lambda r: r.group == "pair"),
    Bar("share of the copy rate, bound by memory", "copy", None, 0.90, lambda r: r.arithmetic <= 1),
    Bar("share of the larger floor, bound by arithmetic", "floor", None, 0.90, lambda r: r.arithmetic > 1),
)  # fmt: skip


def value(row: Row, of: str) -> float | None:
    """A share of a floor, or the time of a peer over DVM's."""
    return row.copy if of == "copy" else row.floor() if of == "floor" else row.ratio(of)


def misses(row: Row, by: float) -> bool:
    """Whether the row is below `by` times a bar that holds for each."""
    values = [(value(row, bar.peer), bar.worst) for bar in BARS if bar.of(row)]
    return any(v is not None and v == v and v < by * worst for v, worst in values)


def summary(rows: list[Row]) -> dict[str, Any]:
    """Each promise with its bar, and below it every row that misses the bar."""
    found: dict[str, Any] = {}
    print("\nSummary (ratios above 1: DVM is faster)")
    for bar in BARS:
        have = []
        for r in rows:
            v = value(r, bar.peer)
            if bar.of(r) and v is not None and v == v:
                have.append((v, r))
        if not have:
            continue
        have.sort(key=lambda x: x[0])
        mean, (worst, at) = geomean([v for v, _ in have]), have[0]
        want = f"(bar {bar.mean:.2f})" if bar.mean else ""
        print(
            f"  {bar.text:48s} geometric mean {mean:5.2f} {want:10s}  worst {worst:5.2f} (bar {bar.worst:.2f}): {at.label()}; {len(have)} rows"
        )
        below = [(v, r) for v, r in have if v < bar.worst]
        for v, r in below:
            print(f"      below the bar  {v:5.2f}  {r.label()}")
        found[bar.text] = {
            "mean": mean,
            "worst": worst,
            "rows": len(have),
            "below": [r.label() for _, r in below],
        }
    return found


def main(args: argparse.Namespace) -> dict[str, Any]:
    print(
        "\nPromise 4: CPU speed. Ratios are peer time / DVM time; copy: share of the rate of the faster copy;\n"
        "floor: share of the larger of two times, of copying what the kernel moves and of its arithmetic in cache;\n"
        "loops: of kernels that only read or add a turned matrix, share of the rate of the fastest of several hand-written loops that\n"
        "do the same; a row not clearly above its bars has more rounds, of all contestants alike"
    )
    if any(SIZES[job[3]] >= LARGE for job in jobs(args)):
        rates.show()
    print(HEAD)
    rows = []
    last = None
    for group, case, dtype, size, threads, names in jobs(args):
        if threads != last:
            set_threads(threads)
            last = threads
        if group == "pair":
            row = measure_pair(case, dtype, size, threads, args.budget)
        else:
            row = measure_case(group, case, dtype, size, threads, names, args.budget)
        rows.append(row)
        show(row)
    found = summary(rows)
    return {"rows": [dataclasses.asdict(r) for r in rows], "summary": found}
