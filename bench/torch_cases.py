"""What the benchmarks of torch.compile run: functions of the first calls, training steps of models.

A training step is forward and backward; it leaves no gradients. Contestants of one case have the
same weights and inputs.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples" / "train"))

Step = Callable[[], Any]

# --------------------------------------------------------------------------------- first calls


def recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    """Gated delta rule, recurrent form: [B, L, N, K] queries and keys, [B, L, N, V] values,
    [B, L, N] gates."""
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


def recurrence_inputs(length: int, heads: int = 32, width: int = 128) -> tuple[Any, ...]:
    def wide() -> Any:
        return torch.randn(1, length, heads, width, dtype=torch.bfloat16).requires_grad_()

    g = (-torch.rand(1, length, heads)).requires_grad_()
    beta = torch.rand(1, length, heads).to(torch.bfloat16).requires_grad_()
    return wide(), wide(), wide(), g, beta


class Block(torch.nn.Module):
    """A transformer block: attention of heads of 64, gated MLP."""

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


def blocks() -> torch.nn.Module:
    return torch.nn.Sequential(*[Block() for _ in range(4)])


def static(x: Any, y: Any) -> Any:
    return torch.relu(x * y + x)


def dynamic(x: Any, y: Any) -> Any:
    return torch.relu(x + y) / x.shape[0]


def first_case(name: str) -> tuple[Any, Callable[[], tuple[Any, ...]], bool, bool]:
    """Function, its inputs, whether sizes are dynamic, whether there is a backward."""
    torch.manual_seed(0)
    if name in ("static", "dynamic"):
        rows = 128 if name == "static" else 32
        f = static if name == "static" else dynamic
        return f, lambda: (torch.randn(rows, 128), torch.randn(rows, 128)), name == "dynamic", False
    if name == "gdr":
        return recurrence, lambda: recurrence_inputs(8), False, True
    return blocks(), lambda: (torch.randn(2, 128, 512, requires_grad=True),), False, True


# ------------------------------------------------------------------------------ training steps

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def of_blocks(dtype: torch.dtype, backend: str) -> Step:
    """Four transformer blocks of width 512, 2 x 128 tokens; equal ones share a compilation."""
    torch.manual_seed(0)
    model = blocks().to(dtype)
    x = torch.randn(2, 128, 512).to(dtype).requires_grad_()
    for block in model if backend != "eager" else ():
        block.compile(fullgraph=True, backend=backend)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad(set_to_none=True)
        x.grad = None

    return step


def of_recipe(module: str, dtype: torch.dtype, backend: str) -> Step:
    """A small model of examples/train with random weights, compiled block by block."""
    import models
    import report

    r = models.recipe(module, f"{module}_tiny")
    model = report.prepared(r, dtype, 0)
    if backend != "eager":
        report.compile_model(model, r, False, backend=backend)
    batch = r.batch(r.sizes, 2, torch.Generator().manual_seed(0))
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
    return lambda: report.gradients(model, r, batch)


def of_vision(dtype: torch.dtype, backend: str) -> Step:
    """Qwen3.5's picture encoder: patches of two pictures, split by lengths that are data, so that
    a graph ends in every block."""
    from transformers import logging
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    logging.set_verbosity_error()
    config = Qwen3_5VisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        in_channels=3,
        patch_size=4,
        temporal_patch_size=2,
        spatial_merge_size=2,
        out_hidden_size=64,
        num_position_embeddings=16,
        hidden_act="gelu_pytorch_tanh",
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = Qwen3_5VisionModel(config).to(dtype).train()
    pixels, grid = torch.randn(24, 96).to(dtype), torch.tensor([[1, 4, 4], [1, 2, 4]])
    if backend != "eager":
        model.compile(backend=backend)

    def step() -> None:
        model(pixels, grid_thw=grid).pooler_output.float().sum().backward()
        model.zero_grad(set_to_none=True)

    return step


def steps() -> dict[str, Callable[[str], Step]]:
    """Every case by name: backend -> its training step."""
    makers: dict[str, Callable[[torch.dtype, str], Step]] = {
        "blocks": of_blocks,
        "flux": lambda d, b: of_recipe("flux", d, b),
        "qwen3_5": lambda d, b: of_recipe("qwen3_5", d, b),
        "vision": of_vision,
        "glm": lambda d, b: of_recipe("glm", d, b),
    }
    return {
        f"{name} {word}": lambda backend, make=make, dtype=dtype: make(dtype, backend)
        for name, make in makers.items()
        for word, dtype in DTYPES.items()
    }
