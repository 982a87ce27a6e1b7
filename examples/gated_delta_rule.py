"""The gated delta rule through torch.compile(backend="dvm"), forward and backward, against eager.

    python examples/gated_delta_rule.py            the acceptance case: B 1, L 8, 32 heads of 128
    python examples/gated_delta_rule.py --length 65 --form chunked

One memory S (K x V) for each head; token t decays it, asks what it holds for its key, and writes
the difference, weighted by beta:

    P = exp(g_t) S;   d = beta_t (v_t - P'k_t);   S = P + k_t d';   o_t = S'q_t / sqrt(K)

q and k are normalised to length one first. Everything between the inputs and the one rounding of o
is float32 (float64 for float64 inputs). Two forms of the same function:

    recurrent   the lines above for each token: elementwise work and sums, all of it in dvm kernels
    chunked     64 tokens at a time with matrix products; long sequences

Reference values of the acceptance case come from the definition in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

NAMES = ("q", "k", "v", "g", "beta")


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Rows of length one, in float32 or wider. The gradient at 0 is finite."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _heads_first(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> list[torch.Tensor]:
    """Arguments as [B, HV, L, ...] in float32 or wider; queries scaled, keys shared by groups."""
    group = v.shape[2] // q.shape[2]
    q, k = normalised(q) * q.shape[-1] ** -0.5, normalised(k)
    if group > 1:
        q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    return [x.to(q.dtype).transpose(1, 2) for x in (q, k, v, g, beta)]


def _first_state(k: torch.Tensor, v: torch.Tensor, state: torch.Tensor | None) -> torch.Tensor:
    if state is not None:
        return state.to(k.dtype)
    return k.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    state: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Token by token.

    q, k [B, L, H, K]; v [B, L, HV, V]; g (log decay, at most 0) and beta [B, L, HV];
    state [B, HV, K, V] or zero. HV is a multiple of H. Returns [B, L, HV, V] in q's dtype.
    """
    dtype = q.dtype
    q, k, v, g, beta = _heads_first(q, k, v, g, beta)
    s = _first_state(k, v, state)
    out = []
    for t in range(q.shape[2]):
        s = s * g[:, :, t, None, None].exp()
        held = (s * k[:, :, t, :, None]).sum(-2)
        delta = (v[:, :, t] - held) * beta[:, :, t, None]
        s = s + k[:, :, t, :, None] * delta[:, :, None, :]
        out.append((s * q[:, :, t, :, None]).sum(-2))
    return torch.stack(out, 1).to(dtype)


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    state: torch.Tensor | None = None, chunk: int = 64,
) -> torch.Tensor:  # fmt: skip
    """As `recurrent`, `chunk` tokens at a time.

    Inside a chunk the deltas solve (I + M) D = R with M strictly lower triangular. Tokens that fill
    the last chunk have k = v = q = beta = g = 0 and change nothing. The decay between two tokens is
    the exponential of a difference that was masked before: exp(G_i) exp(-G_j) would overflow.
    """
    dtype, length = q.dtype, q.shape[1]
    q, k, v, g, beta = _heads_first(q, k, v, g, beta)
    chunks = (length + chunk - 1) // chunk
    pad = chunks * chunk - length

    def cut(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.pad(x, (0, 0) * (x.dim() - 3) + (0, pad))
        return x.reshape(*x.shape[:2], chunks, chunk, *x.shape[3:])

    q, k, v, g, beta = (cut(x) for x in (q, k, v, g, beta))
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    total = g.cumsum(-1)
    since = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    m = (beta[..., None] * since * (k @ k.mT)).tril(-1)
    eye = torch.eye(chunk, dtype=q.dtype, device=q.device)
    inverse = torch.linalg.solve_triangular(m + eye, eye, upper=False, unitriangular=True)
    within = since * (q @ k.mT)
    decay, rest = total.exp()[..., None], (total[..., -1:] - total).exp()[..., None]
    asked, read, kept = k * decay, q * decay, k * rest
    s = _first_state(k, v, state)
    out = []
    for c in range(chunks):
        delta = inverse[:, :, c] @ (beta[:, :, c, :, None] * (v[:, :, c] - asked[:, :, c] @ s))
        out.append(read[:, :, c] @ s + within[:, :, c] @ delta)
        s = s * decay[:, :, c, -1:] + kept[:, :, c].mT @ delta
    o = torch.cat(out, 2)[:, :, :length]
    return o.transpose(1, 2).to(dtype)


FORMS = {"recurrent": recurrent, "chunked": chunked}


# ------------------------------------------------------------------------------- inputs


def uniform(shape: tuple[int, ...], stream: int) -> np.ndarray:
    """Numbers in [0, 1) that any language can make: 24 bits of splitmix64, seeded by the index."""
    with np.errstate(over="ignore"):
        z = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(stream << 32)
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return ((z >> np.uint64(40)).astype(np.float64) / 2**24).reshape(shape)


def inputs(
    batch: int, length: int, heads: int, value_heads: int, key: int, value: int, decay: float = 2.0
) -> list[torch.Tensor]:
    """q, k, v, beta in bfloat16, g in float32 between -decay and 0; all of them leaves."""
    q = torch.from_numpy(2 * uniform((batch, length, heads, key), 1) - 1).bfloat16()
    k = torch.from_numpy(2 * uniform((batch, length, heads, key), 2) - 1).bfloat16()
    v = torch.from_numpy(2 * uniform((batch, length, value_heads, value), 3) - 1).bfloat16()
    g = torch.from_numpy(-decay * uniform((batch, length, value_heads), 4)).float()
    beta = torch.from_numpy(uniform((batch, length, value_heads), 5)).bfloat16()
    return [x.requires_grad_() for x in (q, k, v, g, beta)]


def dot(o: torch.Tensor) -> torch.Tensor:
    """Product with a fixed cotangent that bfloat16 holds: o's gradient is exact and not tiny."""
    cotangent = torch.from_numpy(2 * uniform(tuple(o.shape), 7) - 1).bfloat16().to(o.device)
    return (o * cotangent).to(torch.promote_types(o.dtype, torch.float32)).sum()


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dot": dot,
    "msq": lambda o: (o.to(torch.promote_types(o.dtype, torch.float32)) ** 2).mean(),
    "sum": lambda o: o.to(torch.promote_types(o.dtype, torch.float32)).sum(),
}

# Acceptance case by the definition in float64: loss, then mean |gradient| of q, k, v, g, beta.
GOLDEN = {
    "msq": (7.915849619e-06, 6.150311621e-09, 5.898162765e-09, 7.760928546e-10,
            1.244334038e-08, 9.047181424e-08),
    "sum": (3.371801876e-01, 3.080857328e-03, 2.724443297e-03, 3.322577169e-03,
            7.223484641e-03, 3.457739745e-02),
}  # fmt: skip

# Rel-L2 against float64. Rounding o, dq, ... to bfloat16 alone costs 1.7e-3; g stays float32.
LIMITS = {"o": 2.5e-3, "q": 2.5e-3, "k": 2.5e-3, "v": 2.5e-3, "g": 5e-4, "beta": 2.5e-3}


# ---------------------------------------------------------------------------- comparison


def run(f: Callable, args: list[torch.Tensor], loss: str) -> dict[str, torch.Tensor]:
    """Output, loss and gradients of one forward and backward."""
    leaves = [a.detach().clone().requires_grad_() for a in args]
    o = f(*leaves)
    value = LOSSES[loss](o)
    grads = torch.autograd.grad(value, leaves)
    return {"o": o.detach(), "loss": value.detach(), **dict(zip(NAMES, grads, strict=False))}


def rel_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    """|a - b| / |b|; 0 when both are zero."""
    difference, size = (a.double() - b.double()).norm(), b.double().norm()
    return float(difference / size) if size else float(difference)


def compare(
    f: Callable, compiled: Callable, args: list[torch.Tensor], loss: str
) -> tuple[Any, ...]:
    """Results of the compiled function, of eager, and of float64 on the same numbers."""
    wide = [a.detach().double() for a in args]
    return run(compiled, args, loss), run(f, args, loss), run(f, wide, loss)


def report(got: dict, eager: dict, exact: dict, golden: tuple[float, ...] | None) -> bool:
    """Prints the table; whether every line keeps its limit."""
    runs = {"compiled": got, "eager": eager, "f64": exact}
    print(f"output   {tuple(got['o'].shape)} {got['o'].dtype}")
    losses = "   ".join(f"{n} {r['loss']:.7g}" for n, r in runs.items())
    print(f"loss     {losses}")
    print(f"{'':8} mean |.|: {'compiled':>8} {'eager':>12} {'f64':>12}", end="")
    print("   rel-L2: to eager    to f64  eager-f64    limit")
    good = True
    for name, limit in LIMITS.items():
        a, b, c = got[name], eager[name], exact[name]
        far, eager_far = rel_l2(a, c), rel_l2(b, c)
        means = " ".join(f"{x.double().abs().mean():12.5e}" for x in (a, b, c))
        ok = far <= limit and bool(a.isfinite().all()) and a.dtype is b.dtype
        good &= ok
        label = name if name == "o" else f"d{name}"
        print(
            f"{label:8}      {means}         {rel_l2(a, b):9.1e} {far:9.1e} {eager_far:9.1e}"
            f" {limit:9.1e} {'ok' if ok else 'FAILED'}"
        )
    if golden is not None:
        values = [exact["loss"], *(exact[n].abs().mean() for n in NAMES)]
        off = max(abs(float(v) / w - 1) for v, w in zip(values, golden, strict=True))
        print(f"f64 values against the reference values: at most {off:.1e} apart")
        good &= off < 1e-8
    return good


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="gated delta rule, compiled against eager")
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--form", choices=FORMS, default="recurrent")
    parser.add_argument("--loss", choices=LOSSES, default="msq")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--value-heads", type=int, default=0, help="0: as many as heads")
    parser.add_argument("--backend", default="dvm")
    chosen = parser.parse_args(arguments)
    import dvm.torch

    f = FORMS[chosen.form]
    compiled = torch.compile(f, backend=chosen.backend, fullgraph=True)
    heads = chosen.heads
    args = inputs(1, chosen.length, heads, chosen.value_heads or heads, 128, 128)
    accepted = (chosen.length, heads, chosen.value_heads or heads) == (8, 32, 32)
    print(f"gated delta rule, {chosen.form}: B 1, L {chosen.length}, {heads} heads, K = V = 128")
    good = report(
        *compare(f, compiled, args, chosen.loss), GOLDEN.get(chosen.loss) if accepted else None
    )
    print(dvm.torch.summary())
    print("accepted" if good else "NOT accepted")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
