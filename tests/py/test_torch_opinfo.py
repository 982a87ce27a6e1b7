"""torch's own samples of every operator it describes, through the lowering, against eager.

Tier 2: some minutes. Operators without a row run in torch, so this also checks that the two sides
hand values over correctly. Gradients are those of torch's formulas, compiled with the function.

DVM_OPINFO_SAMPLES=1 takes one sample of each kind, DVM_OPINFO_SEED other values. See judge.py for
what is right, optable.py for DVM_RECORD_OPS.
"""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")
pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

import judge  # noqa: E402
import optable  # noqa: E402
from dvm.torch.testing import NoGraphError, lowered  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

pytestmark = pytest.mark.slow

SAMPLES = int(os.environ.get("DVM_OPINFO_SAMPLES", "8"))
SEED = int(os.environ.get("DVM_OPINFO_SEED", "0"))
# Random results, uninitialized memory, or a choice among equal answers.
LEFT_OUT = (
    "bernoulli", "cauchy", "empty", "exponential", "geometric", "log_normal", "multinomial",
    "new_empty", "normal", "rand", "uniform", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool", "nn.functional.rrelu", "nn.functional.multi_head",
    "nn.functional.scaled_dot_product_attention", "pca_lowrank", "svd_lowrank",
    "nn.functional.embedding_bag", "linalg", "fft", "sparse", "torch.ops", "stft", "istft",
    "jiterator", "tensor_split", "as_strided_scatter",
)  # fmt: skip
TOLERANCE = {torch.float32: (1e-5, 1e-5), torch.bfloat16: (3.2e-2, 6.4e-2)}
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)
CASES = [
    op
    for op in op_db
    if not op.name.startswith(LEFT_OUT) and op.variant_test_name != "partial_views"
]


@pytest.fixture(autouse=True)
def _seed():
    """Samples are drawn when asked for: they must not depend on the tests that ran before."""
    torch.manual_seed(SEED)


def some(compared):
    """A test whose samples all have no graph has not passed."""
    if not any([*compared]):
        pytest.skip("torch makes no graph of any sample")


def each(ops):
    """A test for each operator, named after it."""
    return pytest.mark.parametrize(
        "op", ops, ids=lambda op: f"{op.name}.{op.variant_test_name}".rstrip(".")
    )


@each(CASES)
def test_samples(op):
    some(
        compare(op, sample, dtype)
        for dtype in DTYPES
        if op.supports_dtype(dtype, "cpu")
        for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]
    )


# torch cannot trace a change of symbolic sizes in place.
FIXED_SIZES = ("resize_", "resize_as_")


@each(
    [op for op in CASES if op.supports_dtype(torch.float32, "cpu") and op.name not in FIXED_SIZES]
)
def test_samples_of_any_size(op):
    samples = list(op.sample_inputs("cpu", torch.float32))[: min(SAMPLES, 2)]
    some(compare(op, sample, torch.float32, dynamic=True) for sample in samples)


def compare(op, sample, dtype, dynamic=False):
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
    tensors = [leaves[i].detach() for i in at]

    def f(*ts):
        full = list(leaves)
        for i, t in zip(at, ts, strict=True):
            full[i] = t
        first, args, kwargs = pytree.tree_unflatten(full, spec)
        return op.op(first, *args, **kwargs)

    def exact():
        with torch.no_grad():
            return f(*(judge.widened(copied(t)) for t in tensors))

    with torch.no_grad():
        want = f(*map(copied, tensors))
        try:
            low = lowered(f, *tensors, dynamic=dynamic)
        except NoGraphError:
            return False
        got = low(*map(copied, tensors))
        optable.note(low)
    judge.check(got, want, exact, lambda t: TOLERANCE.get(t, (1e-7, 1e-7)))
    assert not any(reason.startswith("engine") for _, reason in low.fallbacks), low.fallbacks
    return True


# torch itself has no formula, or an answer that depends on rounding in the forward pass.
NO_GRADIENT = ("nn.functional.ctc_loss", "linalg", "svd", "nn.functional.gaussian_nll_loss")
GRADIENT_CASES = [
    op for op in CASES if op.supports_autograd and not op.name.startswith(NO_GRADIENT)
]


@each(GRADIENT_CASES)
def test_gradients(op):
    some(
        compare_gradients(op, sample, dtype)
        for dtype in (torch.float32, torch.bfloat16)
        if dtype in op.supported_backward_dtypes("cpu")
        for sample in list(op.sample_inputs("cpu", dtype, requires_grad=True))[: min(SAMPLES, 3)]
    )


@each([op for op in GRADIENT_CASES if torch.float32 in op.supported_backward_dtypes("cpu")])
def test_gradients_of_any_size(op):
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))[:1]
    some(compare_gradients(op, sample, torch.float32, dynamic=True) for sample in samples)


def compare_gradients(op, sample, dtype, dynamic=False):
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor) and a.requires_grad]
    tensors = [leaves[i].detach() for i in at]

    def f(*ts, constants=leaves):
        full = list(constants)
        with torch.enable_grad():
            ts = [t.detach().requires_grad_() for t in ts]
            for i, t in zip(at, ts, strict=True):
                full[i] = t
            first, args, kwargs = pytree.tree_unflatten(full, spec)
            out = op.op(first, *args, **kwargs)
            if sample.output_process_fn_grad is not None:
                out = sample.output_process_fn_grad(out)
            floats = [
                o for o in pytree.tree_leaves(out)
                if isinstance(o, torch.Tensor) and o.requires_grad and not o.is_complex()
            ]  # fmt: skip
            if not floats:
                return []
            wide = torch.promote_types(torch.float32, floats[0].dtype)
            loss = sum((o.to(wide) * (1 + o.detach().to(wide).sign() / 4)).sum() for o in floats)
            grads = torch.autograd.grad(loss, ts, allow_unused=True)
        return [g for g in grads if g is not None]

    def exact():
        wide = [judge.widened(a) for a in leaves]
        return f(*(judge.widened(copied(t)) for t in tensors), constants=wide)

    try:
        want = f(*map(copied, tensors))
        low = lowered(f, *tensors, dynamic=dynamic)
    except NoGraphError:
        return False
    except RuntimeError as error:
        if "can't be called" in str(error) or "Cannot call" in str(error):
            return False
        raise
    with torch.no_grad():
        got = low(*map(copied, tensors))
    optable.note(low)
    tolerance = (1e-4, 1e-4) if dtype is torch.float32 else (3.2e-2, 6.4e-2)
    judge.check(got, want, exact, lambda _: tolerance)
    assert not any(reason.startswith("engine") for _, reason in low.fallbacks), low.fallbacks
    return True


def copied(t):
    """A copy with the same strides, so that ops in place leave the sample alone."""
    return t.clone() if t.is_contiguous() else t


def spoiled(change):
    """`lowered`, one element of whose every floating-point result is changed."""
    true = lowered

    def compile_and_spoil(*args, **options):
        low = true(*args, **options)

        def call(*tensors):
            got = pytree.tree_map(lambda t: t.clone(), low(*tensors))
            for t in pytree.tree_leaves(got):
                if t.is_floating_point() and t.numel():
                    t.view(-1)[-1] = change(t.view(-1)[-1])
            return got

        call.program, call.fallbacks = low.program, low.fallbacks
        return call

    return compile_and_spoil


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("change", (lambda x: x + x.abs() / 8 + 0.125, lambda x: x * torch.nan))
@each([op for op in CASES if op.name in ("fmod", "remainder", "nn.functional.layer_norm")])
def test_a_wrong_value_is_found(monkeypatch, op, change, dtype):
    monkeypatch.setitem(globals(), "lowered", spoiled(change))
    for one in (compare, compare_gradients):
        sample = next(iter(op.sample_inputs("cpu", dtype, requires_grad=one is compare_gradients)))
        with pytest.raises(AssertionError, match="not close"):
            one(op, sample, dtype)
