"""The suite: one row a case, with the same function written for DVM, torch, numpy and as one fused C loop.

`elements(bytes, itemsize)` of the main tensor are spread over rows of 1024 (or one axis where rows do not matter).
`moved` counts tensors read and written once, in units of the main tensor; it gives the case's memory floor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COLUMNS = 1024


@dataclass(frozen=True)
class Case:
    name: str
    inputs: tuple[str, ...]  # "full", "row" [n], "column" [m, 1]
    dvm: Callable[..., Any]  # (k, dtype, *values) -> stored values
    torch: Callable[..., Any]
    numpy: Callable[..., Any] | None
    c: str  # body; arguments a, b, c, o of type T, sizes M and N; LD and ST convert
    moved: float
    output: str = "full"


def chain(x: Any, y: Any, ops: int, relu: Callable[[Any], Any]) -> Any:
    """ops cheap operations on x and y; the same text serves DVM, torch and numpy values."""
    v = x
    for i in range(ops):
        if i % 3 == 0:
            v = v * y
        elif i % 3 == 1:
            v = v + x
        else:
            v = relu(v)
    return v


def chain_c(ops: int) -> str:
    step = ("v = v * y;", "v = v + x;", "v = v > 0 ? v : (v != v ? v : 0);")
    body = " ".join(step[i % 3] for i in range(ops))
    return f"for (long i = 0; i < M * N; i++) {{ float x = LD(a[i]), y = LD(b[i]), v = x; {body} o[i] = ST(v); }}"


def _np_relu(v: Any) -> Any:
    import numpy as np

    return np.maximum(v, 0)


def chain_case(ops: int) -> Case:
    import torch

    return Case(
        f"chain {ops}",
        ("full", "full"),
        lambda k, t, x, y: chain(x, y, ops, k.relu),
        lambda x, y: chain(x, y, ops, torch.relu),
        lambda x, y: chain(x, y, ops, _np_relu),
        chain_c(ops),
        3,
    )


def _gelu(k: Any, v: Any) -> Any:
    return v * 0.5 * (k.erf(v * 0.7071067811865476) + 1.0)


def _norm(k: Any, x: Any, w: Any, b: Any) -> Any:
    mean = k.mean(x, [1], True)
    d = x - mean
    return d * k.rsqrt(k.mean(d * d, [1], True) + 1e-5) * w + b


def _softmax(k: Any, x: Any) -> Any:
    e = k.exp(x - k.max(x, [1], True))
    return e / k.sum(e, [1], True)


def cases() -> list[Case]:
    import numpy as np
    import torch
    import torch.nn.functional as F

    rows = "for (long r = 0; r < M; r++) { const T *x = a + r * N; T *y = o + r * N; "
    return [
        chain_case(3),
        chain_case(12),
        chain_case(30),
        Case(
            "bias gelu",
            ("full", "row"),
            lambda k, t, x, b: _gelu(k, x + b),
            lambda x, b: F.gelu(x + b),
            None,
            "for (long r = 0; r < M; r++) for (long i = 0; i < N; i++) { float v = LD(a[r*N+i]) + LD(b[i]);"
            " o[r*N+i] = ST(v * 0.5f * (erff(v * 0.70710678f) + 1.0f)); }",
            2,
        ),
        Case(
            "swiglu",
            ("full", "full"),
            lambda k, t, x, y: x * k.sigmoid(x) * y,
            lambda x, y: F.silu(x) * y,
            None,
            "for (long i = 0; i < M * N; i++) { float v = LD(a[i]); o[i] = ST(v / (1.0f + expf(-v)) * LD(b[i])); }",
            3,
        ),
        Case(
            "softmax",
            ("full",),
            lambda k, t, x: _softmax(k, x),
            lambda x: torch.softmax(x, -1),
            lambda x: (e := np.exp(x - x.max(1, keepdims=True))) / e.sum(1, keepdims=True),
            rows
            + "float m = -INFINITY, s = 0; for (long i = 0; i < N; i++) m = LD(x[i]) > m ? LD(x[i]) : m;"
            " for (long i = 0; i < N; i++) { t[i] = expf(LD(x[i]) - m); s += t[i]; }"
            " for (long i = 0; i < N; i++) y[i] = ST(t[i] / s); }",
            2,
        ),
        Case(
            "layer norm",
            ("full", "row", "row"),
            lambda k, t, x, w, b: _norm(k, x, w, b),
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            None,
            rows + "float s = 0, q = 0; for (long i = 0; i < N; i++) s += LD(x[i]); s /= N;"
            " for (long i = 0; i < N; i++) { float d = LD(x[i]) - s; q += d * d; } q = 1 / sqrtf(q / N + 1e-5f);"
            " for (long i = 0; i < N; i++) y[i] = ST((LD(x[i]) - s) * q * LD(b[i]) + LD(c[i])); }",
            2,
        ),
        Case(
            "rms norm",
            ("full", "row"),
            lambda k, t, x, w: x * k.rsqrt(k.mean(x * x, [1], True) + 1e-6) * w,
            lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
            None,
            rows
            + "float q = 0; for (long i = 0; i < N; i++) q += LD(x[i]) * LD(x[i]); q = 1 / sqrtf(q / N + 1e-6f);"
            " for (long i = 0; i < N; i++) y[i] = ST(LD(x[i]) * q * LD(b[i])); }",
            2,
        ),
        Case(
            "sum first",
            ("full",),
            lambda k, t, x: k.sum(x, [0]),
            lambda x: x.sum(0),
            lambda x: x.sum(0),
            "for (long i = 0; i < N; i++) t[i] = 0; for (long r = 0; r < M; r++) for (long i = 0; i < N; i++)"
            " t[i] += LD(a[r*N+i]); for (long i = 0; i < N; i++) o[i] = ST(t[i]);",
            1,
            "row",
        ),
        Case(
            "sum middle",
            ("full",),
            lambda k, t, x: k.sum(k.reshape(x, [-1, 16, 64]), [1]),
            lambda x: x.reshape(-1, 16, 64).sum(1),
            lambda x: x.reshape(-1, 16, 64).sum(1),
            "for (long r = 0; r < M; r++) for (long i = 0; i < 64; i++) { float s = 0;"
            " for (long j = 0; j < 16; j++) s += LD(a[r*1024+j*64+i]); o[r*64+i] = ST(s); }",
            1,
            "middle",
        ),
        Case(
            "sum last",
            ("full",),
            lambda k, t, x: k.sum(x, [1]),
            lambda x: x.sum(1),
            lambda x: x.sum(1),
            "for (long r = 0; r < M; r++) { float s = 0; for (long i = 0; i < N; i++) s += LD(a[r*N+i]); o[r] = ST(s); }",
            1,
            "rows",
        ),
        Case(
            "sum all",
            ("full",),
            lambda k, t, x: k.sum(x, []),
            lambda x: x.sum(),
            lambda x: x.sum(),
            "float s = 0; for (long i = 0; i < M * N; i++) s += LD(a[i]); o[0] = ST(s);",
            1,
            "scalar",
        ),
        Case(
            "transpose add",
            ("square", "square"),
            lambda k, t, x, y: k.permute(x, [1, 0]) + y,
            lambda x, y: x.t() + y,
            lambda x, y: x.T + y,
            "for (long r = 0; r < M; r += 16) for (long q = 0; q < M; q += 16) for (long i = r; i < r + 16; i++)"
            " for (long j = q; j < q + 16; j++) o[i*M+j] = ST(LD(a[j*M+i]) + LD(b[i*M+j]));",
            3,
            "square",
        ),
        Case(
            "cast chain",
            ("full",),
            lambda k, t, x: k.cast(k.cast(k.cast(x, "float16"), "float32") * 2.0, t),
            lambda x: (x.half().float() * 2.0).to(x.dtype),
            None,
            "for (long i = 0; i < M * N; i++) { float v = LD(a[i]); _Float16 h = (_Float16)v;"
            " o[i] = ST((float)h * 2.0f); }",
            2,
        ),
    ]


@dataclass(frozen=True)
class Pair:
    """A function with its gradient: forward and backward kernels of DVM beside torch's autograd."""

    name: str
    inputs: tuple[str, ...]
    forward: Callable[
        ..., Any
    ]  # (k, *inputs) -> outputs; the first is the result, all go to backward
    backward: Callable[..., Any]  # (k, gradient, inputs, outputs) -> gradients of the inputs
    torch: Callable[..., Any]

    def make(self, m: int, n: int, dtype: Any, name: str) -> tuple[Any, Any, int]:
        """Runs of both, and the number of DVM's kernels."""
        import dvm
        import torch
        from peers import shape_of

        shapes = [shape_of(kind, m, n) for kind in self.inputs]
        g = torch.Generator().manual_seed(7)
        args = [torch.randn(s, generator=g).to(dtype).requires_grad_() for s in shapes]
        grad = torch.randn(m, n, generator=g).to(dtype)
        inputs = [a.detach() for a in args]

        def load(k: Any, t: Any) -> Any:
            v = k.load(list(t.shape), str(t.dtype).removeprefix("torch."))
            return v if t.dtype == torch.float32 else k.cast(v, "float32")

        @dvm.kernel(ktype="split", dyn_shape=False)
        def forward(k: Any) -> None:
            y, *kept = self.forward(k, *[load(k, a) for a in inputs])
            k.store(y, name)
            for v in kept:
                k.store(v, "float32")

        keeps = {"layer norm": 2, "rms norm": 1, "softmax": 0}[self.name]
        outputs = [torch.empty(m, n, dtype=dtype)] + [torch.empty(m, 1) for _ in range(keeps)]

        @dvm.kernel(ktype="split", dyn_shape=False)
        def backward(k: Any) -> None:
            v = load(k, grad)
            x = [load(k, a) for a in inputs]
            for d in self.backward(k, v, x, [load(k, o) for o in outputs]):
                k.store(d, name)

        grads = [torch.empty_like(a) for a in inputs]

        def run() -> None:
            forward.run(*inputs, *outputs)
            backward.run(grad, *inputs, *outputs, *grads)

        def eager() -> None:
            torch.autograd.grad(self.torch(*args), args, grad)

        run()
        wide = [a.detach().float().requires_grad_() for a in args]
        want = torch.autograd.grad(self.torch(*wide), wide, grad.float())
        for got, w in zip(grads, want, strict=True):
            # inputs and results are rounded to the type; sums have m terms of about 1
            torch.testing.assert_close(got.float(), w, rtol=0.02, atol=0.004 * m**0.5)
        return run, eager, forward.kobj.stats()["kernels"] + backward.kobj.stats()["kernels"]


def _layer_norm(k: Any, x: Any, w: Any, b: Any) -> Any:
    mean = k.mean(x, [1], True)
    d = x - mean
    r = k.rsqrt(k.mean(d * d, [1], True) + 1e-5)
    return d * r * w + b, mean, r


def _layer_norm_back(k: Any, g: Any, x: Any, y: Any) -> Any:
    h = (x[0] - y[1]) * y[2]
    v = g * x[1]
    d = y[2] * (v - k.mean(v, [1], True) - h * k.mean(v * h, [1], True))
    return d, k.sum(g * h, [0]), k.sum(g, [0])


def _rms_norm(k: Any, x: Any, w: Any) -> Any:
    r = k.rsqrt(k.mean(x * x, [1], True) + 1e-6)
    return x * r * w, r


def _rms_norm_back(k: Any, g: Any, x: Any, y: Any) -> Any:
    h, v = x[0] * y[1], g * x[1]
    return y[1] * (v - h * k.mean(v * h, [1], True)), k.sum(g * h, [0])


def pairs() -> list[Pair]:
    import torch
    import torch.nn.functional as F

    return [
        Pair(
            "layer norm",
            ("full", "row", "row"),
            _layer_norm,
            _layer_norm_back,
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
        ),
        Pair(
            "rms norm",
            ("full", "row"),
            _rms_norm,
            _rms_norm_back,
            lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
        ),
        Pair(
            "softmax",
            ("full",),
            lambda k, x: (_softmax(k, x),),
            lambda k, g, x, y: (y[0] * (g - k.sum(g * y[0], [1], True)),),
            lambda x: torch.softmax(x, -1),
        ),
    ]
