"""Prints every promise beside its peer from the same run.

    ./dev bench                     promises 1, 2, 6, 7 and the suite at 16 KiB, 1 MiB, 64 MiB, one thread
    ./dev bench --filter softmax    cases whose name holds the text
    ./dev bench --size 1M --dtype f32 --threads 2 --no-inductor --json out.json

Times are medians; comparisons are ratios within this run, since the machine may be shared. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import dvm
import peers
from cases import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("DVM_BUILD", "build")
SIZES = {"16K": 16 << 10, "1M": 1 << 20, "64M": 64 << 20}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def geomean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def run_c_program(name: str) -> dict[str, Any]:
    exe = pathlib.Path(tempfile.gettempdir()) / f"dvm-{name}"
    cc = os.environ.get("CC", "cc")
    subprocess.run(
        [cc, "-O2", "-std=c17", "-D_GNU_SOURCE", f"-I{ROOT / 'include'}", str(ROOT / "bench" / f"{name}.c"),
         str(BUILD / "libdvm.a"), "-o", str(exe), "-lm", "-lpthread", "-ldl"],
        check=True,
    )  # fmt: skip
    return json.loads(subprocess.run([str(exe)], check=True, capture_output=True, text=True).stdout)


def promise_1_and_2() -> dict[str, Any]:
    r = run_c_program("compile_bench")
    print(f"\nPromise 1: compile in microseconds (64 operations, one core, {r['device']})")
    for key, text, bar in (
        ("build", "building the graph", None),
        ("compile", "graph to verified bytecode", 50),
        ("new_shape_plan", "a new shape: plan and bytecode", 10),
        ("new_shape_run", "a new shape: the whole call", None),
        ("strip_code", "code of a strip never seen, and its first run", None),
    ):
        v = r[key]
        limit = f"bar {bar} us" if bar else ""
        print(
            f"  {text:48s} median {v['median'] / 1e3:8.2f} us   p90 {v['p90'] / 1e3:8.2f} us   {limit}"
        )
    print("\nPromise 2: calls cost nothing")
    print(
        f"  {'cached 8-element kernel from C':48s} median {r['call']['median'] / 1e3:8.2f} us   bar 0.5 us"
    )
    case = cases()[0]
    x, y = (torch.randn(1, 8) for _ in range(2))
    out = torch.empty(1, 8)
    run, _ = peers.run_dvm(case, [x, y], out, 1, 8, "float32")
    r["python_torch"] = peers.measure(run) * 1e9
    print(
        f"  {'kernel.run(x, y, out) from Python, torch':48s} median {r['python_torch'] / 1e3:8.2f} us   bar 1.5 us"
    )
    _, k = peers.run_dvm(case, [x, y], out, 1, 8, "float32")
    a, b, o = x.numpy(), y.numpy(), out.numpy()
    r["python_numpy"] = peers.measure(lambda: k.run(a, b, o)) * 1e9
    print(
        f"  {'kernel.run(x, y, out) from Python, numpy':48s} median {r['python_numpy'] / 1e3:8.2f} us   bar 1.5 us"
    )
    return r


def compile_distribution() -> dict[str, float]:
    times = []
    for case in cases():
        for name in DTYPES:
            m, n = peers.shapes(case, 1 << 20, 4)
            for _ in range(5):
                k = peers.dvm_kernel(case, m, n, {"f32": "float32", "bf16": "bfloat16"}[name])
                times.append(peers.stats(k)["compile_ns"] / 1e3)
    d = {q: float(np.percentile(times, q)) for q in (50, 90, 100)}
    print(
        f"  {'plan and bytecode over the suite':48s} median {d[50]:8.2f} us   p90 {d[90]:8.2f} us   max {d[100]:.2f} us"
    )
    return {str(k): v for k, v in d.items()}


def promise_6() -> dict[str, Any]:
    lib = BUILD / "libdvm.so"
    with tempfile.TemporaryDirectory() as tmp:
        stripped = pathlib.Path(tmp) / "libdvm.so"
        subprocess.run(["strip", "-o", str(stripped), str(lib)], check=True)
        size = stripped.stat().st_size
    needed = subprocess.run(
        ["readelf", "-d", str(lib)], check=True, capture_output=True, text=True
    ).stdout
    names = [line.split("[")[1].split("]")[0] for line in needed.splitlines() if "NEEDED" in line]
    env = {k: v for k, v in os.environ.items() if k != "PATH"} | {"PATH": ""}
    alone = (
        subprocess.run(
            [str(BUILD / "cli" / "dvm"), "--version"], env=env, capture_output=True
        ).returncode
        == 0
    )
    print("\nPromise 6: no toolchain, no baggage")
    print(
        f"  stripped libdvm.so {size / 2**20:.2f} MiB (bar 2 MB), needs {', '.join(names)}, works with PATH empty: {'yes' if alone else 'NO'}"
    )
    return {"stripped_bytes": size, "needed": names, "empty_path": alone}


def promise_7() -> bool:
    same = True
    before = dvm.get_num_threads()
    for case in cases():
        m, n = peers.shapes(case, 1 << 20, 4)
        args = peers.tensors(case, m, n, torch.float32)
        results = []
        for threads in (1, 2, 3, 16):
            dvm.set_num_threads(threads)
            out = torch.empty(peers.shape_of(case.output, m, n))
            run, _ = peers.run_dvm(case, args, out, m, n, "float32")
            run()
            results.append(out.numpy().tobytes())
        if len(set(results)) != 1:
            same = False
            print(f"  DIFFERENT BITS: {case.name}")
    dvm.set_num_threads(before)
    print(
        f"\nPromise 7: same bits for 1, 2, 3 and 16 threads over {len(cases())} cases: {'yes' if same else 'NO'}"
    )
    return same


def suite_row(case: Any, size: int, name: str, inductor: bool) -> dict[str, Any]:
    dtype = DTYPES[name]
    m, n = peers.shapes(case, size, dtype.itemsize)
    args = peers.tensors(case, m, n, dtype)
    out = torch.empty(peers.shape_of(case.output, m, n), dtype=dtype)
    run, k = peers.run_dvm(case, args, out, m, n, {"f32": "float32", "bf16": "bfloat16"}[name])
    row: dict[str, Any] = {
        "case": case.name,
        "dtype": name,
        "size": size,
        "dvm": peers.measure(run),
    }
    row["eager"] = peers.measure(peers.run_eager(case, args))
    row["c"] = peers.measure(peers.run_c(case, args, torch.empty_like(out), m, n))
    by_numpy = peers.run_numpy(case, args)
    row["numpy"] = peers.measure(by_numpy) if by_numpy else None
    row["inductor"] = peers.measure(peers.run_inductor(case, args)) if inductor else None
    main = m * n * dtype.itemsize
    row["copy_share"] = case.moved * main / row["dvm"]
    row["kernels"] = peers.stats(k)["kernels"]
    return row


def suite(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    print(
        "\nPromise 4: CPU speed. Ratios are peer time / DVM time: above 1 DVM is faster; copy: share of this run's copy rate"
    )
    print(
        f"  {'case':14s} {'type':5s} {'size':>5s} {'dvm us':>10s} {'copy':>6s} {'fused C':>8s} {'eager':>7s} {'inductor':>8s} {'numpy':>7s} kernels"
    )
    for label in args.size:
        rate = peers.copy_rate(SIZES[label])
        for case in cases():
            if args.filter and args.filter not in case.name:
                continue
            for name in args.dtype:
                row = suite_row(case, SIZES[label], name, args.inductor)
                row["copy_share"] /= rate
                rows.append(row)

                def ratio(peer: str, row: dict[str, Any] = row) -> str:
                    return f"{row[peer] / row['dvm']:.2f}" if row[peer] else "-"

                print(
                    f"  {case.name:14s} {name:5s} {label:>5s} {row['dvm'] * 1e6:10.1f} {row['copy_share'] * 100:5.0f}% "
                    f"{ratio('c'):>8s} {ratio('eager'):>7s} {ratio('inductor'):>8s} {ratio('numpy'):>7s} {row['kernels']:3d}",
                    flush=True,
                )
    for peer in ("c", "eager", "inductor", "numpy"):
        have = [r[peer] / r["dvm"] for r in rows if r[peer]]
        if have:
            print(
                f"  geometric mean against {peer:9s} {geomean(have):6.2f}   worst {min(have):.2f}   over {len(have)}"
            )
    return rows


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--filter", default="")
    p.add_argument("--size", action="append", choices=list(SIZES))
    p.add_argument("--dtype", action="append", choices=list(DTYPES))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--no-inductor", dest="inductor", action="store_false")
    p.add_argument("--suite-only", action="store_true")
    p.add_argument(
        "--torch", action="store_true", help="first calls and training against eager and Inductor"
    )
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    args.size = args.size or list(SIZES)
    args.dtype = args.dtype or list(DTYPES)
    if args.torch:
        import torch_bench

        return torch_bench.main()
    torch.set_num_threads(args.threads)
    dvm.set_num_threads(args.threads)
    print(
        f"machine: {processor()}, {os.cpu_count()} cores; {args.threads} thread(s); torch {torch.__version__}, numpy {np.__version__}"
    )
    start = time.time()
    result: dict[str, Any] = {"machine": processor(), "threads": args.threads}
    if not args.suite_only:
        result["promise_1_2"] = promise_1_and_2()
        result["compile_us"] = compile_distribution()
        result["promise_6"] = promise_6()
        result["promise_7"] = promise_7()
        dvm.set_num_threads(args.threads)
    result["suite"] = suite(args)
    print(f"\nbenchmark done in {time.time() - start:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
