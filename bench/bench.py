"""Prints every promise beside its peer from the same run.

    ./dev bench                     promises 1, 2, 6, 7 and the speed table, within ten minutes
    ./dev bench --full              all sizes from 4 KiB to 256 MiB, chains of 1 to 40 operations, Inductor everywhere
    ./dev bench --filter softmax    cases whose name holds the text
    ./dev bench --suite-only --size 1M --dtype f32 --threads 2 --no-inductor --json out.json

Comparisons are ratios within this run, since the machine may be shared. Nothing here passes or fails; the summary at
the end has the geometric mean and the worst case of each promise beside its bar, and every row that misses it.
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
import speed
from cases import cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("DVM_BUILD", "build")


def processor() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()


def run_c_program(name: str, *args: str) -> Any:
    exe = pathlib.Path(tempfile.gettempdir()) / f"dvm-{name}"
    cc = os.environ.get("CC", "cc")
    subprocess.run(
        [cc, "-O2", "-std=c17", "-D_GNU_SOURCE", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}", str(ROOT / "bench" / f"{name}.c"),
         str(BUILD / "libdvm.a"), "-o", str(exe), "-lm", "-lpthread", "-ldl"],
        check=True,
    )  # fmt: skip
    return json.loads(
        subprocess.run([str(exe), *args], check=True, capture_output=True, text=True).stdout
    )


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
        for name in speed.NAMES.values():
            m, n = peers.shapes(case, 1 << 20, 4)
            for _ in range(5):
                k = peers.dvm_kernel(case, m, n, name)
                times.append(peers.stats(k)["compile_ns"] / 1e3)
    d = {q: float(np.percentile(times, q)) for q in (50, 90, 100)}
    print(
        f"  {'plan and bytecode over the suite':48s} median {d[50]:8.2f} us   p90 {d[90]:8.2f} us   max {d[100]:.2f} us"
    )
    return {str(k): v for k, v in d.items()}


def emission_program(functions: int) -> Any:
    """64 operations on two arrays of 4096 numbers, so many of them transcendental functions."""

    @dvm.kernel(ktype="split", dyn_shape=False)
    def built(k: Any) -> None:
        x, y = k.load([4096], "float32"), k.load([4096], "float32")
        rows = (k.exp, k.tanh, k.sigmoid, k.erf, k.rsqrt)
        v, done = x, 0
        for i in range(64):
            if done * 64 < functions * (i + 1):
                v, done = rows[done % len(rows)](v), done + 1
            else:
                v = (v * y, v + x, v - y, k.relu(v))[i % 4]
        k.store(v, "float32")

    return built


def emission() -> dict[str, Any]:
    """Time from bytecode to machine code: all strips of the suite, and programs of 64 operations."""
    kernels = {}
    for case in cases():
        for name in speed.NAMES.values():
            m, n = peers.shapes(case, 1 << 20, 4)
            kernels[f"{case.name}, {name}"] = peers.dvm_kernel(case, m, n, name)
    programs = {f"64 operations, {n} of them functions": emission_program(n) for n in (0, 5, 20)}
    with tempfile.TemporaryDirectory() as tmp:
        paths = []
        for i, k in enumerate([*kernels.values(), *programs.values()]):
            paths.append(pathlib.Path(tmp) / f"{i}.dvm")
            paths[-1].write_text(k.kobj.graph_text())
        found = run_c_program("emit_bench", *map(str, paths))
    if any(f["tier"] != "jit" for f in found):
        print("  no machine code here: nothing to emit")
        return {}
    suite = [
        (s["best"] / 1e3, name)
        for name, f in zip(kernels, found, strict=False)
        for s in f["strips"]
    ]
    suite.sort()
    times = [t for t, _ in suite]
    d = {q: float(np.percentile(times, q)) for q in (50, 90)}
    print(
        f"  {'machine code of a strip, over the suite':48s} median {d[50]:8.2f} us   p90 {d[90]:8.2f} us   max {times[-1]:.2f} us ({suite[-1][1]})   bar 20 us; {len(times)} strips"
    )
    out: dict[str, Any] = {"suite": {"median": d[50], "p90": d[90], "max": times[-1]}}
    for name, f in zip(programs, found[len(kernels) :], strict=True):
        best = sum(s["best"] for s in f["strips"]) / 1e3
        median = sum(s["median"] for s in f["strips"]) / 1e3
        print(
            f"  {'machine code of ' + name:48s} best   {best:8.2f} us   median {median:5.2f} us   bar 20 us"
        )
        out[name] = {"best": best, "median": median, "strips": len(f["strips"])}
    return out


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


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--filter", default="")
    p.add_argument("--size", action="append", choices=list(speed.SIZES))
    p.add_argument("--dtype", action="append", choices=list(speed.DTYPES))
    p.add_argument("--threads", type=int, action="append", help="1 and 2 where not given")
    p.add_argument("--full", action="store_true", help="every row; takes an hour")
    p.add_argument("--budget", type=float, default=0.1, help="seconds for each contestant of a row")
    p.add_argument("--no-inductor", dest="inductor", action="store_false")
    p.add_argument("--suite-only", action="store_true")
    p.add_argument(
        "--torch",
        action="store_true",
        help="torch.compile beside eager and Inductor (torch_bench.py)",
    )
    p.add_argument("--json", type=pathlib.Path)
    args = p.parse_args()
    if args.torch:
        import torch_bench

        print(f"machine: {processor()}, {os.cpu_count()} cores; torch {torch.__version__}")
        return torch_bench.main(args)
    speed.set_threads(1)
    print(
        f"machine: {processor()}, {os.cpu_count()} cores; torch {torch.__version__}, numpy {np.__version__}"
    )
    start = time.time()
    result: dict[str, Any] = {"machine": processor(), "argv": sys.argv[1:]}
    if not args.suite_only:
        result["promise_1_2"] = promise_1_and_2()
        result["compile_us"] = compile_distribution()
        result["emission_us"] = emission()
        result["promise_6"] = promise_6()
        result["promise_7"] = promise_7()
    result["speed"] = speed.main(args)
    print(f"\nbenchmark done in {time.time() - start:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
