"""One fresh process, one compiled function: its first call and where the time went. Prints a JSON line.

python bench/first_call.py static|dynamic|gdr|blocks eager|aot_eager|dvm|inductor
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
import torch
from torch_cases import first_case


def parts_so_far() -> dict[str, float]:
    import dvm.torch

    s = dvm.torch.summary()
    return {"trace": s.trace_seconds, "aot": s.aot_seconds, "dvm": s.dvm_seconds}


def main() -> None:
    """The backend is loaded before the call begins, as what it imports of torch is."""
    name, backend = sys.argv[1], sys.argv[2]
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    f, inputs, dynamic, backward = first_case(name)
    c = f
    t = time.perf_counter()
    if backend != "eager":
        c = torch.compile(f, backend=backend, dynamic=dynamic, fullgraph=True)

    loaded = time.perf_counter() - t

    def step(args: Any) -> None:
        out = c(*args)
        if backward:
            out.float().sum().backward()

    args = inputs()
    t = time.perf_counter()
    step(args)
    row: dict[str, Any] = {"first": time.perf_counter() - t}
    if backend == "dvm":
        row["parts"] = parts_so_far() | {"import of torch and dvm before it": loaded}
    print(json.dumps(row))


main()
