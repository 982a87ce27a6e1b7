"""Random programs against eager, static and dynamic."""

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("_dvm")

from dvm.torch.testing import lowered  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

UNARY = {
    "neg": torch.neg,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": lambda x: torch.exp(x.clamp(-5, 5)),
    "half": lambda x: x.bfloat16().float(),
    "sum": lambda x: x.sum(-1, keepdim=True) if x.dim() else x,
    "sum first": lambda x: x.sum(0) if x.dim() else x,
    "mean": lambda x: x.mean(),
    "amax": lambda x: x.amax(-1) if x.dim() and x.numel() else x,
    "softmax": lambda x: torch.softmax(x, -1) if x.dim() else x,
    "cumsum": lambda x: x.cumsum(0) / 8 if x.dim() else x,
    "transpose": lambda x: x.transpose(0, -1) if x.dim() else x,
    "flatten": lambda x: x.reshape(-1),
    "unsqueeze": lambda x: x.unsqueeze(0) if x.dim() < 4 else x,
    "slice": lambda x: x[1:] if x.dim() and x.shape[0] > 2 else x,
    "every other": lambda x: x[..., ::2] if x.dim() else x,
    "flip": lambda x: x.flip(-1) if x.dim() else x,
    "select": lambda x: x[0] if x.dim() and x.shape[0] else x,
    "positive": lambda x: torch.where(x > 0, x, 0.25),
    "integer": lambda x: (x * 4).to(torch.int32).abs().float() / 4,
    "torch": lambda x: torch.special.i0(x.clamp(-2, 2)),
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "select": lambda a, b: torch.where(a < b, a, b * 0.5),
    "ratio": lambda a, b: a / (b.abs() + 1),
}


def broadcastable(a, b):
    return all(
        m == n or 1 in (m, n) for m, n in zip(reversed(a.shape), reversed(b.shape), strict=False)
    )


def strides(x):
    """Those that matter."""
    return [s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1] if x.numel() else []


@st.composite
def programs(draw):
    """Operations by name with the positions of their operands; later ones see earlier results."""
    steps = []
    for i in range(draw(st.integers(1, 14))):
        newest = 2 + i
        pick = st.integers(max(0, newest - 4), newest - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(pick), None))
        else:
            steps.append((draw(st.sampled_from(sorted(BINARY))), draw(pick), draw(pick)))
    return steps


def run(steps, x, y):
    values = [x, y]
    for name, a, b in steps:
        u, v = values[a], values[b] if b is not None else None
        if v is None:
            out = UNARY[name](u)
        elif broadcastable(u, v):
            out = BINARY[name](u, v)
        else:
            out = u + 1
        values.append(out.clamp(-100, 100))
    return values[2:]


@hypothesis.given(
    steps=programs(),
    shape=st.sampled_from([(3, 4), (1, 5), (4, 1), (2, 3, 4), (7,), (17, 33), (4, 4)]),
    dynamic=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_random_programs(steps, shape, dynamic, seed):
    torch.manual_seed(seed)
    x, y = torch.randn(shape), torch.randn(shape[-1:])
    f = lambda x, y: run(steps, x, y)
    low = lowered(f, x, y, dynamic=dynamic)
    assert {op for op, _ in low.fallbacks} <= {"aten.i0.default"}
    for got, want in zip(low(x, y), f(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert strides(got) == strides(want)
