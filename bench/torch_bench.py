"""First calls of torch.compile: every backend in a fresh process of its own, in turn; then steady
calls (torch_calls.py).

Promise 3: the first call of backend dvm at most 1.05 times that of aot_eager, which compiles nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
CASES = ("static", "dynamic", "gdr", "blocks")


def one(case: str, backend: str) -> dict | None:
    r = subprocess.run(
        [sys.executable, str(HERE / "first_call.py"), case, backend],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    if r.returncode:
        print(f"  {case} {backend}: failed\n{r.stderr[-800:]}")
        return None
    return json.loads(r.stdout.strip().splitlines()[-1])


def main(
    backends: tuple[str, ...] = ("eager", "aot_eager", "dvm", "inductor"), rounds: int = 3
) -> int:
    print("\nPromise 3: first call of torch.compile, fresh processes, best of", rounds)
    print(
        f"  {'case':8s} {'backend':10s} {'first s':>9s} {'against aot_eager':>18s} {'steady us':>12s} {'against eager':>14s}"
    )
    for case in CASES:
        best: dict[str, dict] = {}
        for _ in range(rounds):
            for backend in backends:
                if backend == "inductor" and backend in best:
                    continue
                row = one(case, backend)
                if row and (backend not in best or row["first_s"][0] < best[backend]["first_s"][0]):
                    best[backend] = row
        for backend, row in best.items():
            aot = best.get("aot_eager", row)["first_s"][0]
            eager = best.get("eager", row)["steady_us"]
            print(
                f"  {case:8s} {backend:10s} {row['first_s'][0]:9.3f} {row['first_s'][0] / aot:17.2f}x "
                f"{row['steady_us']:12.1f} {eager / row['steady_us']:13.2f}x{parts(row)}",
                flush=True,
            )
    for what in ("overhead", "models"):  # fresh processes: nothing of the one is in the other
        done = subprocess.run([sys.executable, str(HERE / "torch_calls.py"), what], check=False)
        if done.returncode:
            print(f"  torch_calls.py {what}: ended with {done.returncode}")
    return 0


def parts(row: dict) -> str:
    """Where the seconds of the first call went; what is missing is the first run."""
    if "parts" not in row:
        return ""
    return "   " + ", ".join(f"{name} {s:.3f} s" for name, s in row["parts"].items())
