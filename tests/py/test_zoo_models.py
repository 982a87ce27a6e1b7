"""Whole models with random weights: FLUX, Qwen3.5 text and vision, GLM-5, forward and backward.

Every parameter's gradient is held against eager's own distance from float64 (report.py has the
limits). Needs the model classes: ./dev exec --models, or ./dev test --all.
"""

import dataclasses
import importlib.util
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")
for package in ("transformers", "diffusers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

TRAIN = Path(__file__).parent.parent.parent / "examples" / "train"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.syspath_prepend(str(TRAIN))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def tiny(module, **sizes):
    from models import recipe

    r = recipe(module, f"{module}_tiny")
    return dataclasses.replace(r, sizes=r.sizes | sizes)


def compare(r, **options):
    import report

    found = report.compare(r, **options)
    bad = [vars(row) for row in found.rows if not row.good]
    assert not bad, bad
    return found


def sizes_in_turn(r, many, compiled_graphs, **options):
    """One model over batches of other sizes; graphs counted behind each."""
    import report

    model = report.prepared(r, torch.float32, 0)
    report.compile_model(model, r, False, **options)
    plain = report.prepared(r, torch.float32, 0)
    graphs = []
    for i, sizes in enumerate(many):
        batch = r.batch(r.sizes | sizes, 2, torch.Generator().manual_seed(i))
        losses, rows = report.beside(plain, model, r, batch, {})
        assert losses["compiled"] == pytest.approx(losses["f64"], rel=1e-5)
        bad = [vars(row) for row in rows if not row.good]
        assert not bad, (sizes, bad)
        graphs.append(report.counts()["graphs"])
    assert graphs == compiled_graphs


class Sum(torch.nn.Module):
    """Terms that cancel but for their rounding, and a gradient that is wrong by a factor."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, 64))
        self.factor = factor

    def forward(self, x):
        y = (self.w * x).tanh().sum()
        return y + (self.factor - 1) * (y - y.detach())


@pytest.mark.parametrize("factor, good", ((1.0, True), (1 + 2e-5, False)))
def test_a_wrong_gradient_is_no_noise(factor, good):
    """More draws do not make an error of every draw any smaller."""
    import report
    from models import Recipe

    r = Recipe("", None, None, lambda m, b: m(b["x"]), None, {})
    batch = {"x": torch.linspace(1, 3, 64)}
    plain, other = Sum(), Sum(factor)
    _, (row,) = report.beside(plain, other, r, batch, {})
    assert row.good is good and row.draws == (1 if good else report.DRAWS[-1])
    assert torch.equal(plain.w, Sum().w) and torch.equal(other.w, Sum().w)


def test_noise_is_judged_by_many_draws():
    """One draw may be three times eager's, when eager's others are as far."""
    import report

    draws = [report.Row("w", 0, 3e-4, 1e-4, False), *[report.Row("w", 0, 2e-4, 3e-4, True)] * 7]
    assert report.together(draws, torch.float32).good
    assert not report.together([draws[0]] * 8, torch.float32).good


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_every_draw_has_weights_of_its_own(dtype):
    """Moved by less than half their spacing, bf16 weights stay what they are, and draws are one."""
    import report

    model = Sum().to(dtype)
    before = model.state_dict()["w"].clone()
    report.move(model, {"w": before}, torch.Generator().manual_seed(0))
    moved = (model.w != before).float().mean()
    distance = ((model.w - before) / before).abs().max()
    assert moved > 0.8 and distance < 2.0**-5


def test_one_block_of_flux():
    """Quick: image and text stream of one block, one graph each way."""
    found = compare(tiny("flux", single_blocks=0))
    assert found.counts["graphs"] == 2
    assert not found.counts["breaks"] and not found.counts["recompiles"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
@pytest.mark.parametrize("module", ("flux", "qwen3_5", "glm"))
def test_training_steps(module, dtype):
    """Two kinds of blocks in each family: two graphs forward, two backward, no break."""
    found = compare(tiny(module), dtype=dtype, steps=20)
    assert found.counts["graphs"] == 4 and not found.counts["breaks"]
    eager, compiled = found.curves["eager"], found.curves["compiled"]
    assert compiled[-1] < 0.8 * compiled[0]
    # Steps of Adam divide by the gradient's own size, so that noise grows from step to step.
    assert compiled == pytest.approx(eager, rel=1e-3 if dtype == "fp32" else 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("module", ("flux", "qwen3_5", "glm"))
def test_whole_model_is_one_graph(module):
    found = compare(tiny(module), whole=True)
    assert found.counts["graphs"] == 2 and not found.counts["breaks"]


@pytest.mark.slow
@pytest.mark.parametrize("module, deeper, graphs", (
    ("flux", {"double_blocks": 3, "single_blocks": 4}, 6), ("qwen3_5", {"layers": 8}, 4),
    ("glm", {"layers": 6}, 4),
))  # fmt: skip
def test_equal_layers_compile_once(module, deeper, graphs):
    """FLUX's first joint block reads whole tensors, the others slices of one: Dynamo's guard on
    strides asks for a second compilation, with any backend."""
    assert compare(tiny(module, **deeper)).counts["graphs"] == graphs


@pytest.mark.slow
def test_flux_of_any_size():
    """Image of 36, 64, 16 tokens, text of 48 and 24: one compilation. The first has no size in
    common with the heads, whose fixed size Dynamo would take it for."""
    many = [{"image": i, "text": t} for i, t in ((96, 48), (128, 24), (64, 48), (96, 24))]
    sizes_in_turn(tiny("flux"), many, [4, 4, 4, 4], dynamic=True)


@pytest.mark.slow
def test_glm_of_any_length():
    """index_topk is above every length, so that the selection keeps all keys."""
    many = [{"length": n} for n in (63, 7, 64, 65)]
    sizes_in_turn(tiny("glm", topk=128), many, [4, 4, 4, 4], dynamic=True)


@pytest.mark.slow
def test_qwen_of_any_length():
    """The class walks chunks of 64 in Python and fills the last: lengths below 64 share a graph, 64
    has nothing to fill, 65 has two chunks."""
    many = [{"length": n} for n in (63, 7, 64, 65)]
    sizes_in_turn(tiny("qwen3_5"), many, [4, 4, 6, 8], dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("module, length", (("qwen3_5", 1), ("glm", 1), ("qwen3_5", 65)))
def test_lengths_of_their_own(module, length):
    """One token, which Dynamo never takes for any length; two chunks."""
    compare(tiny(module, length=length))


@pytest.mark.slow
def test_glm_selects_keys():
    """Eight keys of 32; float32 scores of random weights have no ties."""
    compare(tiny("glm", topk=8))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_vision(dtype):
    """Patches of two pictures, split by lengths that are data: graphs with breaks between them."""
    import report
    from transformers import logging
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

    logging.set_verbosity_error()
    config = Qwen3_5VisionConfig(
        depth=2, hidden_size=32, intermediate_size=64, num_heads=4, in_channels=3, patch_size=4,
        temporal_patch_size=2, spatial_merge_size=2, out_hidden_size=64,
        num_position_embeddings=16, hidden_act="gelu_pytorch_tanh",
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = Qwen3_5VisionModel(config).to(dtype).train()
    batch = {"pixels": torch.randn(24, 96), "grid": torch.tensor([[1, 4, 4], [1, 2, 4]])}
    weight = torch.randn(6, 64)

    def loss(m, b):
        wanted = next(m.parameters()).dtype
        out = m(b["pixels"].to(wanted), grid_thw=b["grid"]).pooler_output
        return (out * weight.to(wanted)).to(torch.promote_types(wanted, torch.float32)).sum()

    from models import Recipe

    r = Recipe("image", None, None, loss, None, {})
    compiled = torch.compile(loss, backend="dvm")
    eager, exact = report.gradients(model, r, batch), report.truth(model, r, batch)
    value = compiled(model, batch)
    value.backward()
    got = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert float(value.detach()) == pytest.approx(
        exact[0], rel=1e-4 if dtype is torch.float32 else 0.1
    )
    bad = [vars(row) for row in report.judged(got, eager[1], exact[1]) if not row.good]
    assert not bad, bad
    print(report.counts())
