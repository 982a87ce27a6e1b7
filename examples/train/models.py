"""Three model families with random weights, small enough for a processor.

Classes come from transformers and diffusers; nothing is downloaded. A recipe says how to build one,
what a batch looks like, what the loss is, and which of its modules are compiled.

    flux       FluxTransformer2DModel: image and text streams, then joint blocks; flow matching
    qwen3_5    Qwen3.5 text: gated delta rule in three of four layers, attention in the fourth
    glm        GLM-5: low-rank attention with an index of selected keys, mixture of experts
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """One row of CONFIGS.

    kind     "image" (pairs of picture and text) or "text": what the data must be
    build    sizes -> model; random weights from the current seed
    batch    (sizes, batch size, generator) -> random inputs of the model, for tests
    loss     (model, batch) -> scalar
    blocks   modules that are compiled one by one; equal ones share one compilation
    sizes    what build and batch take
    """

    kind: str
    build: Callable[[dict], nn.Module]
    batch: Callable[[dict, int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    blocks: Callable[[nn.Module], Iterable[nn.Module]]
    sizes: dict[str, Any]


# ----------------------------------------------------------------------------------- flux


def build_flux(sizes: dict) -> nn.Module:
    """Modulation begins at random here, so all weights have gradients from the first step."""
    from diffusers import FluxTransformer2DModel, logging

    logging.set_verbosity_error()
    head = sizes["head_dim"]
    rotary = (head // 4, head // 4, head // 2)  # index, row, column
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=4 * sizes["channels"],
        num_layers=sizes["double_blocks"],
        num_single_layers=sizes["single_blocks"],
        attention_head_dim=head,
        num_attention_heads=sizes["heads"],
        joint_attention_dim=sizes["text_dim"],
        pooled_projection_dim=sizes["pooled_dim"],
        guidance_embeds=False,
        axes_dims_rope=rotary,
    )


def image_ids(height: int, width: int) -> torch.Tensor:
    """Position of each packed latent: (0, row, column)."""
    ids = torch.zeros(height, width, 3)
    ids[..., 1] = torch.arange(height)[:, None]
    ids[..., 2] = torch.arange(width)
    return ids.reshape(-1, 3)


def flux_batch(sizes: dict, n: int, rng: torch.Generator) -> Batch:
    side, packed = sizes["image"] // 16, 4 * sizes["channels"]
    return {
        "latents": torch.randn(n, side * side, packed, generator=rng),
        "noise": torch.randn(n, side * side, packed, generator=rng),
        "time": torch.rand(n, generator=rng),
        "text": torch.randn(n, sizes["text"], sizes["text_dim"], generator=rng),
        "pooled": torch.randn(n, sizes["pooled_dim"], generator=rng),
        "image_ids": image_ids(side, side),
        "text_ids": torch.zeros(sizes["text"], 3),
    }


def flux_loss(model: nn.Module, b: Batch) -> torch.Tensor:
    """Flow matching: the model sees (1-t) x + t noise and answers with noise - x."""
    dtype = next(model.parameters()).dtype
    t = b["time"][:, None, None]
    seen = (1 - t) * b["latents"] + t * b["noise"]
    answer = model(
        hidden_states=seen.to(dtype),
        encoder_hidden_states=b["text"].to(dtype),
        pooled_projections=b["pooled"].to(dtype),
        timestep=b["time"].to(dtype),
        img_ids=b["image_ids"],
        txt_ids=b["text_ids"],
        return_dict=False,
    )[0]
    target = b["noise"] - b["latents"]
    wide = torch.promote_types(dtype, torch.float32)
    return (answer.to(wide) - target.to(wide)).square().mean()


def flux_blocks(model: nn.Module) -> Iterable[nn.Module]:
    return [*model.transformer_blocks, *model.single_transformer_blocks]


# ------------------------------------------------------------------------------ language


def _rope(theta: float = 10000.0, **more: Any) -> dict:
    return {"rope_type": "default", "rope_theta": theta, **more}


def build_qwen(sizes: dict) -> nn.Module:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, logging

    logging.set_verbosity_error()  # it advises packages that only GPUs have
    half = sizes["head_dim"] // 8  # rotary pairs: a quarter of the head, time, row, column
    rest = half // 4
    config = Qwen3_5TextConfig(
        vocab_size=sizes["vocab"],
        hidden_size=sizes["hidden"],
        intermediate_size=2 * sizes["hidden"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=sizes["head_dim"],
        hidden_act="silu",
        linear_conv_kernel_dim=4,
        linear_key_head_dim=sizes["delta_dim"],
        linear_value_head_dim=sizes["delta_dim"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        pad_token_id=0,
        rope_parameters=_rope(
            partial_rotary_factor=0.25,
            mrope_section=[half - 2 * rest, rest, rest],
            mrope_interleaved=True,
        ),
    )
    config._attn_implementation = "sdpa"
    return Qwen3_5ForCausalLM(config)


def build_glm(sizes: dict) -> nn.Module:
    """Attention "eager": with "sdpa" the class adds a boolean mask to scores. Experts by batched
    products, which is one graph; the others loop over the experts that were hit."""
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    hidden = sizes["hidden"]
    config = GlmMoeDsaConfig(
        vocab_size=sizes["vocab"],
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        moe_intermediate_size=hidden // 2,
        num_hidden_layers=sizes["layers"],
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=1,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=hidden // 4,
        kv_lora_rank=hidden // 2,
        qk_nope_head_dim=hidden // 4,
        qk_rope_head_dim=hidden // 4,
        v_head_dim=hidden // 4,
        index_n_heads=2,
        index_head_dim=hidden // 2,
        index_topk=sizes["topk"],
        max_position_embeddings=256,
        attention_dropout=0.0,
        pad_token_id=0,
        rope_parameters=_rope(),
    )
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    model = GlmMoeDsaForCausalLM(config)
    for name, p in model.named_parameters():
        if ".indexer." in name:  # selects keys; no gradient passes through a selection
            p.requires_grad_(False)
    return model


def text_batch(sizes: dict, n: int, rng: torch.Generator) -> Batch:
    tokens = torch.randint(1, sizes["vocab"], (n, sizes["length"]), generator=rng)
    return {"tokens": tokens}


def text_loss(model: nn.Module, b: Batch) -> torch.Tensor:
    """Mean cross-entropy of the next token, in float32 or wider."""
    logits = model(input_ids=b["tokens"], use_cache=False).logits
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[1] == 1:  # nothing follows: the token itself
        return nn.functional.cross_entropy(logits[:, 0], b["tokens"][:, 0])
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), b["tokens"][:, 1:].flatten())


def text_blocks(model: nn.Module) -> Iterable[nn.Module]:
    return model.model.layers


# --------------------------------------------------------------------------------- table


def _flux(**sizes: Any) -> Recipe:
    return Recipe("image", build_flux, flux_batch, flux_loss, flux_blocks, sizes)


def _qwen(**sizes: Any) -> Recipe:
    return Recipe("text", build_qwen, text_batch, text_loss, text_blocks, sizes)


def _glm(**sizes: Any) -> Recipe:
    return Recipe("text", build_glm, text_batch, text_loss, text_blocks, sizes)


# MODULE -> CONFIG -> recipe. `tiny` is what the tests use, `debug` runs in a minute or two.
CONFIGS: dict[str, dict[str, Recipe]] = {
    "flux": {
        "flux_tiny": _flux(channels=1, image=64, text=24, text_dim=32, pooled_dim=32,
                           head_dim=16, heads=2, double_blocks=1, single_blocks=1),
        "flux_debug": _flux(channels=4, image=128, text=48, text_dim=64, pooled_dim=64,
                            head_dim=32, heads=4, double_blocks=2, single_blocks=4),
    },
    "qwen3_5": {
        "qwen3_5_tiny": _qwen(vocab=260, hidden=64, layers=4, head_dim=32, delta_dim=16, length=64),
        "qwen3_5_debug": _qwen(vocab=260, hidden=128, layers=8, head_dim=32, delta_dim=32,
                               length=128),
    },
    "glm": {
        "glm_tiny": _glm(vocab=260, hidden=64, layers=3, topk=64, length=32),
        "glm_debug": _glm(vocab=260, hidden=128, layers=6, topk=64, length=64),
    },
}  # fmt: skip


def recipe(module: str, config: str | None = None) -> Recipe:
    """The recipe of a module; config defaults to MODULE_debug. ValueError names what there is."""
    if module not in CONFIGS:
        raise ValueError(f"MODULE {module!r} is not known; known are {', '.join(CONFIGS)}")
    known = CONFIGS[module]
    config = config or f"{module}_debug"
    if config not in known:
        raise ValueError(f"CONFIG {config!r} is not known; {module} has {', '.join(known)}")
    return known[config]
