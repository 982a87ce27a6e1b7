"""flex_attention under backend="dvm": functions of scores compiled into the tiles of attention,
forward and backward, against the formula in float64."""

import math
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import dvm  # noqa: E402
import dvm.torch  # noqa: E402
from torch.nn.attention.flex_attention import (  # noqa: E402
    BlockMask,
    create_block_mask,
    flex_attention,
)

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HEADS = 4


def normal(*shape, dtype=F32, seed=0):
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=g).to(dtype)


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i >= j) & (i - j < 37)


def prefix(b, h, i, j):
    return (j < 20 + 9 * b) | (i >= j)


def every_other_head(b, h, i, j):
    return (i >= j) | (h % 2 == 1)


def some_rows(b, h, i, j):
    return (i % 3 > 0) & (i >= j) & (i < 90)


def softcap(s, b, h, i, j):
    return 5 * torch.tanh(s / 5)


def relative(s, b, h, i, j):
    return s + (i - j) * 0.01


def squared(s, b, h, i, j):
    return s * s * 0.2 - s


def forgets_score(s, b, h, i, j):
    return (i * 0 + j) * 0.01


# name: (score_mod, mask_mod, sizes and keywords)
CASES = {
    "noop": (None, None, {}),
    "causal": (None, causal, {}),
    "window": (None, window, {"rows": 300}),
    "prefix": (None, prefix, {}),
    "heads": (None, every_other_head, {}),
    "empty_rows": (relative, some_rows, {}),
    "softcap": (softcap, None, {}),
    "softcap_causal": (softcap, causal, {}),
    "relative": (relative, causal, {"rows": 131, "keys": 257}),
    "squared": (squared, window, {"d": 17, "d2": 33}),
    "position_only": (forgets_score, causal, {}),
    "gqa": (relative, causal, {"groups": 2}),
    "mqa_few_rows": (softcap, causal, {"groups": 1, "rows": 11, "keys": 40}),
    "one_row": (relative, None, {"rows": 1, "keys": 200}),
    "scale": (softcap, causal, {"scale": 0.7}),
    "small_blocks": (relative, window, {"rows": 200, "BLOCK_SIZE": (32, 16)}),
    "odd_blocks": (softcap, some_rows, {"rows": 200, "BLOCK_SIZE": (100, 50)}),
    "large_blocks": (None, window, {"rows": 600, "BLOCK_SIZE": (256, 256)}),
    "one_key_batch": (relative, causal, {"kv_batch": 1}),
}


def problem(rows=150, keys=None, groups=HEADS, d=16, d2=None, kv_batch=2, dtype=F32, **_):
    keys = rows if keys is None else keys
    q = normal(2, HEADS, rows, d, dtype=dtype)
    k = normal(kv_batch, groups, keys, d, dtype=dtype, seed=1)
    v = normal(kv_batch, groups, keys, d2 or d, dtype=dtype, seed=2)
    return [x.requires_grad_() for x in (q, k, v)]


def seen_and_scores(q, k, score_mod, mask_mod, scale):
    """Scores in float64 with -inf where nothing is seen."""
    b, h, i, j = (
        torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)])
        for axis, n in enumerate((*q.shape[:3], k.shape[2]))
    )
    s = q @ k.transpose(-1, -2) * scale
    s = s if score_mod is None else score_mod(s, b, h, i, j) + 0 * s
    if mask_mod is not None:
        s = s.masked_fill(~mask_mod(b, h, i, j), -math.inf)
    return s


def reference(q, k, v, score_mod, mask_mod, scale=None):
    """The output and the logarithm of the sum, in the dtype of q."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = seen_and_scores(q, k, score_mod, mask_mod, scale)
    lse = s.logsumexp(-1)
    none = (s == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(none, 0), -1).masked_fill(none, 0)
    return p @ v, lse


def block_mask(mask_mod, q, k, heads=None, batch=None, **kw):
    if mask_mod is None:
        return None
    size = kw.get("BLOCK_SIZE", 128)
    return create_block_mask(
        mask_mod, batch, heads, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=size
    )


def compiled(f, **kw):
    torch.compiler.reset()
    return torch.compile(f, backend="dvm", fullgraph=True, **kw)


def left():
    """Ops left to torch, but for those of the lists of blocks that torch makes without a mask."""
    return {op: why for op, why in dvm.torch.summary().fallbacks if op.startswith("flex_attention")}


def counted(n):
    s = dvm.torch.summary()
    assert (s.attention, left(), dict(s.rescued)) == (n, {}, {})


def wide(x):
    return x.detach().double().requires_grad_()


def agree(got, want, dtype=F32, at=""):
    tolerance = {F32: 2e-5, BF16: 2e-2, F16: 3e-3}[dtype]
    scale = max(1.0, want.abs().max().item())
    assert got.shape == want.shape, at
    worst = (got.double() - want).abs().max().item()
    assert worst <= tolerance * scale, (at, worst, scale)


def run(name, dtype=F32):
    score_mod, mask_mod, sizes = CASES[name]
    tensors = problem(dtype=dtype, **sizes)
    q, k, v = tensors
    mask = block_mask(
        mask_mod, q, k, HEADS if name == "heads" else None,
        2 if name in ("prefix", "one_key_batch") else None, **sizes,
    )  # fmt: skip
    kw = {"score_mod": score_mod, "block_mask": mask, "scale": sizes.get("scale")}
    kw["enable_gqa"] = "groups" in sizes
    out = compiled(flex_attention)(q, k, v, **kw)
    g = normal(*out.shape, dtype=dtype, seed=5)
    grads = torch.autograd.grad(out, tensors, g)
    counted(2)
    exact = [wide(x) for x in tensors]
    want, _ = reference(*exact, score_mod, mask_mod, sizes.get("scale"))
    agree(out, want, dtype, "output")
    wanted = torch.autograd.grad(want, exact, g.double())
    for label, a, b in zip(("query", "key", "value"), grads, wanted, strict=True):
        agree(a, b, dtype, label)
    return out


SLOW = (
    "causal",
    "heads",
    "softcap",
    "relative",
    "scale",
    "small_blocks",
    "large_blocks",
    "one_row",
)


def some_slow(names, slow):
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else ()) for n in names]


@pytest.mark.parametrize("name", some_slow(CASES, SLOW))
def test_case(name):
    try:
        out = run(name)
    except torch._dynamo.exc.TorchRuntimeError as error:
        if name != "position_only" or "score_mod to depend on score" not in str(error):
            raise
        pytest.skip("this torch refuses gradients of a function without the score, in any backend")
    if name == "empty_rows":
        assert torch.equal(out[:, :, ::3], torch.zeros_like(out[:, :, ::3]))
        assert torch.equal(out[:, :, 90:], torch.zeros_like(out[:, :, 90:]))


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_dtypes(dtype):
    run("softcap_causal", dtype)


# ------------------------------------------------------------------------------- captured tensors


def captured_case(name, rows):
    """score_mod, mask_mod, captured tensors with gradients."""
    documents = (torch.arange(rows) * 7 // rows).long()
    slopes = (2.0 ** -torch.arange(1, HEADS + 1)).requires_grad_()
    table = normal(HEADS, 2 * rows + 1, seed=3).requires_grad_()
    by_head = {
        "document": (None, lambda b, h, i, j: documents[i] == documents[j], []),
        "alibi": (lambda s, b, h, i, j: s + slopes[h] * (j - i), causal, [slopes]),
        "bias_table": (lambda s, b, h, i, j: s + table[h, i - j + rows], causal, [table]),
        "temperature": (lambda s, b, h, i, j: s * slopes[h] * 3, None, [slopes]),
        "capped_bias": (
            lambda s, b, h, i, j: 4 * torch.tanh((s + table[h, i - j + rows]) / 4),
            lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]),
            [table],
        ),
        "two_reads": (
            lambda s, b, h, i, j: s + slopes[h] * table[h, j] + table[0, -1 - i],
            causal,
            [slopes, table],
        ),
    }
    return by_head[name]


CAPTURED = ("document", "alibi", "bias_table", "temperature", "capped_bias", "two_reads")


@pytest.mark.parametrize("name", some_slow(CAPTURED, ("alibi", "bias_table")))
def test_captured(name):
    rows = 170
    score_mod, mask_mod, captured = captured_case(name, rows)
    tensors = problem(rows=rows)
    q, k, v = tensors
    mask = block_mask(mask_mod, q, k)
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=mask))
    out = f(q, k, v)
    g = normal(*out.shape, seed=5)
    grads = torch.autograd.grad(out, [*tensors, *captured], g)
    counted(2)
    want, _ = reference(*(x.double() for x in tensors), score_mod, mask_mod)
    agree(out, want, at="output")
    wanted = torch.autograd.grad(want, [*tensors, *captured], g.double())
    for i, (a, b) in enumerate(zip(grads, wanted, strict=True)):
        agree(a, b.double(), at=i)


def usual(name):
    """score_mod, mask_mod, tensors, captured tensors with gradients: what models pass."""
    lengths, offset = torch.tensor([100, 37]), torch.tensor(50)
    valid = normal(2, 140, seed=7) < 0.5
    half = normal(HEADS, 300, dtype=BF16, seed=4).requires_grad_()
    turned = normal(300, HEADS, seed=4).requires_grad_()
    whole = normal(2, HEADS, 140, 140, seed=4).requires_grad_()
    numbers = normal(140, seed=8)
    by_rows = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in problem(rows=140)]
    by_name = {
        "lengths": (None, lambda b, h, i, j: j < lengths[b]),
        "padding": (None, lambda b, h, i, j: valid[b, j]),
        "decoding": (None, lambda b, h, i, j: i + offset >= j, problem(rows=1, keys=60)),
        "rows_first": (relative, causal, [x.requires_grad_() for x in by_rows]),
        "half_bias": (lambda s, b, h, i, j: s + half[h, i - j + 140], causal, None, [half]),
        "turned_bias": (
            lambda s, b, h, i, j: s + turned.t()[h, i - j + 140],
            causal,
            None,
            [turned],
        ),
        "whole_bias": (lambda s, b, h, i, j: s + whole[b, h, i, j], None, None, [whole]),
        "read_of_read": (lambda s, b, h, i, j: s + numbers[lengths[b] - 1], None),
        "minus_infinity": (lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf), None),
        "modulo": (None, lambda b, h, i, j: (i % 7 == j % 7) | (i // 16 == j // 16)),
    }
    score_mod, mask_mod, *rest = by_name[name]
    tensors, captured = (*rest, *(None, [])[len(rest) :])
    return score_mod, mask_mod, tensors or problem(rows=140), captured


USUAL = ("lengths", "padding", "decoding", "rows_first", "half_bias", "turned_bias", "whole_bias",
         "read_of_read", "minus_infinity", "modulo")  # fmt: skip


@pytest.mark.parametrize("name", some_slow(USUAL, set(USUAL) - {"padding", "turned_bias"}))
def test_usual(name):
    score_mod, mask_mod, tensors, captured = usual(name)
    q, k, v = tensors
    mask = block_mask(mask_mod, q, k, batch=2 if name in ("lengths", "padding") else None)
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=mask))
    out = f(q, k, v)
    g = normal(*out.shape, seed=5)
    grads = torch.autograd.grad(out, [*tensors, *captured], g)
    counted(2)
    assert q.shape != out.shape or out.stride() == q.stride()
    want, _ = reference(*(x.double() for x in tensors), score_mod, mask_mod)
    agree(out, want, at="output")
    wanted = torch.autograd.grad(want, [*tensors, *captured], g.double())
    for i, (a, b) in enumerate(zip(grads, wanted, strict=True)):
        agree(a, b.double(), a.dtype, at=i)


@pytest.mark.parametrize("shape", [(0, HEADS, 20, 16), (2, HEADS, 0, 16)])
def test_nothing_to_do(shape):
    q, k, v = (torch.zeros(shape, requires_grad=True) for _ in range(3))
    out = compiled(lambda *x: flex_attention(*x, score_mod=softcap))(q, k, v)
    assert out.shape == shape
    for x in torch.autograd.grad(out, (q, k, v), torch.ones_like(out)):
        assert x.shape == shape
    counted(2)


def test_number_with_a_gradient():
    """torch's own implementation cannot do this one at all."""
    t = torch.tensor(1.3, requires_grad=True)

    def score_mod(s, b, h, i, j):
        return s * t

    q, k, v = problem(rows=100)
    out = compiled(lambda *x: flex_attention(*x, score_mod=score_mod))(q, k, v)
    g = normal(*out.shape, seed=5)
    (got,) = torch.autograd.grad(out, t, g)
    counted(2)
    want, _ = reference(q.double(), k.double(), v.double(), score_mod, None)
    agree(got, torch.autograd.grad(want, t, g.double())[0].double())


# -------------------------------------------------------------------------------------- statistics


def test_logarithm_of_the_sum_and_its_gradient():
    tensors = problem(rows=140)

    def f(q, k, v, mask):
        return flex_attention(q, k, v, score_mod=softcap, block_mask=mask, return_lse=True)

    q, k, _ = tensors
    out, lse = compiled(f)(*tensors, block_mask(causal, q, k))
    g, gl = normal(*out.shape, seed=5), normal(*lse.shape, seed=6)
    grads = torch.autograd.grad([out, lse], tensors, [g, gl])
    counted(2)
    exact = [wide(x) for x in tensors]
    want = reference(*exact, softcap, causal)
    agree(lse, want[1])
    wanted = torch.autograd.grad(want, exact, [g.double(), gl.double()])
    for a, b in zip(grads, wanted, strict=True):
        agree(a, b)


def test_logarithm_of_rows_that_see_nothing():
    q, k, v = (x.detach() for x in problem(rows=140))
    mask = block_mask(some_rows, q, k)
    _, got = compiled(lambda *x: flex_attention(*x, block_mask=mask, return_lse=True))(q, k, v)
    s = seen_and_scores(q.double(), k.double(), None, some_rows, 0.25)
    counted(1)
    empty = (s == -math.inf).all(-1)
    assert empty.any()
    assert (got[empty] == -math.inf).all()
    agree(got[~empty], s.logsumexp(-1)[~empty])


# ------------------------------------------------------------------------------------------ blocks


def test_blocks_that_no_one_sees_are_not_read():
    """NaN in keys that are seen by no block, and in places that a partial block leaves out."""
    tensors = problem(rows=512)
    q, k, v = (x.detach().clone() for x in tensors)

    def mask_mod(b, h, i, j):
        return (j >= 200) & (j < 300) & (i < 400)

    hidden = torch.ones(512, dtype=torch.bool)
    hidden[200:300] = False
    k[:, :, hidden] = math.nan
    v[:, :, hidden] = math.inf
    q[:, :, 400:] = math.nan
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    mask = block_mask(mask_mod, q, k)
    f = compiled(lambda q, k, v, m: flex_attention(q, k, v, score_mod=relative, block_mask=m))
    out = f(q, k, v, mask)
    grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    counted(2)
    exact = [x.detach().nan_to_num(0, 0, 0).double().requires_grad_() for x in (q, k, v)]
    want, _ = reference(*exact, relative, mask_mod)
    agree(out, want)
    for a, b in zip(grads, torch.autograd.grad(want, exact, torch.ones_like(want)), strict=True):
        agree(a, b)


def test_full_blocks_do_not_ask_the_mask():
    """Lists made by hand: all blocks full, with a mask that sees nothing."""
    q, k, v = (x.detach() for x in problem(rows=256))
    num, index = torch.full((1, 1, 2), 2), torch.arange(2).expand(1, 1, 2, 2).contiguous()
    mask = BlockMask.from_kv_blocks(
        torch.zeros_like(num).int(), index.int(), num.int(), index.int(),
        mask_mod=lambda b, h, i, j: i < 0,
    )  # fmt: skip
    got = compiled(lambda *x: flex_attention(*x, block_mask=mask))(q, k, v)
    want, _ = reference(q.double(), k.double(), v.double(), None, None)
    counted(1)
    agree(got, want)


# ------------------------------------------------------------------------------------------ lengths


def test_one_compilation_for_many_lengths():
    table = normal(HEADS, 1000, seed=3).requires_grad_()
    documents = torch.arange(1000) // 61

    def score_mod(s, b, h, i, j):
        return s + table[h, i - j + 500]

    def mask_mod(b, h, i, j):
        return (i >= j) & (documents[i] == documents[j])

    f = compiled(
        lambda q, k, v, m: flex_attention(q, k, v, score_mod=score_mod, block_mask=m), dynamic=True
    )
    for rows in (300, 390, 480):
        tensors = problem(rows=rows)
        q, k, _ = tensors
        out = f(*tensors, block_mask(mask_mod, q, k))
        g = normal(*out.shape, seed=5)
        grads = torch.autograd.grad(out, [*tensors, table], g)
        want, _ = reference(*(x.double() for x in tensors), score_mod, mask_mod)
        agree(out, want)
        wanted = torch.autograd.grad(want, [*tensors, table], g.double())
        for i, (a, b) in enumerate(zip(grads, wanted, strict=True)):
            agree(a, b.double(), at=(rows, i))
    counted(2)


# ------------------------------------------------------------------------------------------ threads


def test_threads_change_no_bit():
    score_mod, mask_mod, captured = captured_case("capped_bias", 300)
    tensors = problem(rows=300)
    q, k, _ = tensors
    mask = block_mask(mask_mod, q, k)
    f = compiled(lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=mask))
    g = normal(2, HEADS, 300, 16, seed=5)
    before = dvm.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3, 16):
            dvm.set_num_threads(n)
            out = f(*tensors)
            results.append([out, *torch.autograd.grad(out, [*tensors, *captured], g)])
    finally:
        dvm.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


# ---------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_compiled_is_torchs():
    def score_mod(s, b, h, i, j):
        return torch.special.bessel_j0(s)

    q, k, v = (x.detach() for x in problem(rows=40))
    got = compiled(lambda *x: flex_attention(*x, score_mod=score_mod))(q, k, v)
    assert dvm.torch.summary().attention == 0
    assert "bessel_j0" in left()["flex_attention"]
    want, _ = reference(q.double(), k.double(), v.double(), score_mod, None)
    agree(got, want)


def test_float64_is_torchs():
    q, k, v = (x.detach().double() for x in problem(rows=40))
    got = compiled(lambda *x: flex_attention(*x, score_mod=softcap))(q, k, v)
    assert left() == {"flex_attention": "dtype float64"}
    torch.testing.assert_close(got, reference(q, k, v, softcap, None)[0])


def told(f, *args):
    with pytest.raises(dvm.OutOfRangeError) as error:
        f(*args)
    return str(error.value)


def test_place_out_of_range():
    """What is told is the captured tensor as the user sees it, the index, the place, the line."""
    table = torch.zeros(4, 100)
    q, k, v = (x.detach() for x in problem(rows=150))

    def call(*x):
        return flex_attention(*x, score_mod=lambda s, b, h, i, j: s + table[h, i])

    text = told(compiled(call), q, k, v)
    want = "flex_attention: score_mod reads captured tensor 0, float32 [4, 100], out of range: "
    want += "index 100 is out of bounds for dimension 1 with size 100, at b=0, h=0, q_idx=100, "
    assert text.startswith(want + "kv_idx=0 (")
    line = call.__code__.co_firstlineno + 1
    assert f"{os.path.basename(__file__)}:{line}, in call: return flex_attention(" in text


def test_place_out_of_range_of_a_mask():
    """Only in blocks that ask the mask; the second captured tensor of it; a negative index."""
    first, second = torch.zeros(400, dtype=torch.int32), torch.zeros(3, 20, dtype=torch.int32)
    q, k, v = (x.detach() for x in problem(rows=256))
    seen = lambda b, h, i, j: (first[i] == 0) & (second[2, j - 148] == 0)
    blocks = create_block_mask(lambda b, h, i, j: j >= 128, None, None, 256, 256, device="cpu")
    mask = BlockMask.from_kv_blocks(
        blocks.full_kv_num_blocks, blocks.full_kv_indices, mask_mod=seen
    )
    text = told(compiled(lambda *x: flex_attention(*x, block_mask=mask)), q, k, v)
    want = "flex_attention: mask_mod reads captured tensor 1, int32 [3, 20], out of range: index 20"
    assert text.startswith(want)
    assert "dimension 1 with size 20, at b=0, h=0, q_idx=0, kv_idx=168" in text


def test_place_before_the_first():
    table = torch.zeros(60)
    q, k, v = problem(rows=70)
    f = compiled(lambda *x: flex_attention(*x, score_mod=lambda s, b, h, i, j: s * table[i - j]))
    text = told(f, q, k, v)
    assert "score_mod reads captured tensor 0, float32 [60]" in text
    assert "index -61 is out of bounds for dimension 0 with size 60, at b=0, h=0, q_idx=0," in text


def test_place_out_of_range_that_depends_on_a_score():
    """Cannot be found again: told in general words."""
    table = torch.zeros(1000)
    q, k, v = (x.detach() for x in problem(rows=40))
    f = compiled(
        lambda *x: flex_attention(
            *x, score_mod=lambda s, b, h, i, j: s + table[(s * 0 + 2000).to(torch.int32)]
        )
    )
    text = told(f, q, k, v)
    assert text.startswith("flex_attention: score_mod")
    assert "<dvm" not in text


def test_switched_off():
    q, k, v = (x.detach() for x in problem(rows=40))
    torch.compiler.reset()
    f = torch.compile(flex_attention, backend="dvm", options={"disable_ops": ["flex_attention"]})
    f(q, k, v)
    assert left() == {"flex_attention": "switched off"}


def test_eager_still_refuses_gradients():
    q, k, v = problem(rows=40)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(q, k, v)
