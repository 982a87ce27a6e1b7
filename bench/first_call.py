"""One fresh process, one compiled function: first call, steady call, and DVM's own share. Prints a JSON line.

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
import torch.nn.functional as F


def gated_delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    """Recurrent form; [B, L, N, K] queries and keys, [B, L, N, V] values, [B, L, N] gates."""
    q, k, v, beta, g = (t.transpose(1, 2).float() for t in (q, k, v, beta, g))
    q = q * q.shape[-1] ** -0.5
    state = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    outs = []
    for i in range(q.shape[2]):
        state = state * g[:, :, i].exp()[..., None, None]
        memory = (state * k[:, :, i, :, None]).sum(-2)
        delta = (v[:, :, i] - memory) * beta[:, :, i, None]
        state = state + k[:, :, i, :, None] * delta[:, :, None, :]
        outs.append((state * q[:, :, i, :, None]).sum(-2))
    return torch.stack(outs, 2).transpose(1, 2).to(torch.bfloat16)


class Block(torch.nn.Module):
    def __init__(self, d: int = 512) -> None:
        super().__init__()
        self.n1, self.n2 = torch.nn.RMSNorm(d), torch.nn.RMSNorm(d)
        self.qkv, self.o = torch.nn.Linear(d, 3 * d, bias=False), torch.nn.Linear(d, d, bias=False)
        self.gate, self.up = (torch.nn.Linear(d, 4 * d, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(4 * d, d, bias=False)

    def forward(self, x: Any) -> Any:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, 8, d // 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, d))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def case(name: str) -> tuple[Any, Any, bool, list[int], bool]:
    """Function, inputs by size, dynamic, sizes, with backward."""
    torch.manual_seed(0)
    if name == "static":
        return (
            (lambda x, y: torch.relu(x * y + x)),
            (lambda r: (torch.randn(128, 128), torch.randn(128, 128))),
            False,
            [0],
            False,
        )
    if name == "dynamic":
        return (
            (lambda x, y: torch.relu(x + y) / x.shape[0]),
            (lambda r: (torch.randn(r, 128), torch.randn(r, 128))),
            True,
            [32, 48, 7, 1024],
            False,
        )
    if name == "gdr":

        def inputs(length: int) -> tuple[Any, ...]:
            def r(*s: int) -> Any:
                return torch.randn(*s, dtype=torch.bfloat16).requires_grad_()

            g = (-torch.rand(1, length, 32)).requires_grad_()
            beta = torch.rand(1, length, 32).to(torch.bfloat16).requires_grad_()
            return r(1, length, 32, 128), r(1, length, 32, 128), r(1, length, 32, 128), g, beta

        return gated_delta_rule, inputs, False, [8], True
    model = torch.nn.Sequential(*[Block() for _ in range(4)])
    return model, (lambda r: (torch.randn(2, 128, 512, requires_grad=True),)), False, [0], True


def parts_so_far() -> dict[str, float]:
    import dvm.torch

    s = dvm.torch.summary()
    return {"trace": s.trace_seconds, "aot": s.aot_seconds, "dvm": s.dvm_seconds}


def main() -> None:
    name, backend = sys.argv[1], sys.argv[2]
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", "2")))
    f, inputs, dynamic, sizes, backward = case(name)
    c = (
        f
        if backend == "eager"
        else torch.compile(f, backend=backend, dynamic=dynamic, fullgraph=True)
    )

    def step(args: Any) -> None:
        out = c(*args)
        if backward:
            out.float().sum().backward()

    first, parts = [], {}
    for size in sizes:
        args = inputs(size)
        t = time.perf_counter()
        step(args)
        first.append(time.perf_counter() - t)
        if backend == "dvm" and not parts:
            parts = parts_so_far()
    args = inputs(sizes[0])
    for _ in range(3):
        step(args)
    times = []
    stop = time.perf_counter() + 2
    while len(times) < 5 or (time.perf_counter() < stop and len(times) < 2000):
        t = time.perf_counter()
        step(args)
        times.append(time.perf_counter() - t)
    row = {
        "case": name,
        "backend": backend,
        "first_s": first,
        "steady_us": sorted(times)[len(times) // 2] * 1e6,
    }
    if parts:
        row["parts"] = parts
    print(json.dumps(row, default=str))


if __name__ == "__main__":
    main()
