"""The gated delta rule through the torch backend; its functions are those of the example.

Truth is the definition in float64. The acceptance case itself is run by test_examples.
"""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402

FILE = Path(__file__).parent.parent.parent / "examples" / "gated_delta_rule.py"
spec = importlib.util.spec_from_file_location("gated_delta_rule", FILE)
gdr = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gdr)

pytestmark = pytest.mark.usefixtures("fresh")


def check(f, args, loss="dot", limits=gdr.LIMITS, compiled=None):
    """Compiled results near float64, and no farther from it than eager by more than a tenth."""
    compiled = compiled or torch.compile(f, backend="dvm", fullgraph=True)
    got, eager, exact = gdr.compare(f, compiled, args, loss)
    for name, limit in limits.items():
        a, b, c = got[name], eager[name], exact[name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.isfinite().all(), name
        far = gdr.rel_l2(a, c)
        assert far <= limit, (name, far, limit)
        assert far <= 1.1 * gdr.rel_l2(b, c) + 1e-6, (name, far)
    return got


# Sums of o, and loss and mean |gradient| where the loss is the mean square, all in float64.
GOLDEN = {
    "seed": ((1, 8, 32, 32, 128, 128, 2.0), False, 0.33718018760112256,
             (7.915849619027907e-06, 6.150311621460771e-09, 5.898162765034788e-09,
              7.76092854617727e-10, 1.2443340377162113e-08, 9.047181423997789e-08)),
    "groups": ((1, 8, 16, 32, 128, 128, 2.0), False, -0.7058047589686088,
               (8.562955768983379e-06, 1.243702475154339e-08, 1.1874670172598328e-08,
                8.414248094070213e-10, 1.4631831683440882e-08, 1.000930857080857e-07)),
    "no decay": ((1, 64, 1, 1, 16, 16, 0.0), False, 0.7537723778710343, None),
    "one token": ((1, 1, 2, 2, 16, 16, 1.0), True, -0.2577837520629179, None),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("form", gdr.FORMS)
def test_functions_are_the_definition(form, name):
    sizes, with_state, total, values = GOLDEN[name]
    batch, _, _, heads, key, value, _ = sizes
    args = [a.detach().double().requires_grad_() for a in gdr.inputs(*sizes)]
    state = torch.from_numpy(2 * gdr.uniform((batch, heads, key, value), 6) - 1)
    o = gdr.FORMS[form](*args, state if with_state else None)
    assert float(o.detach().sum()) == pytest.approx(total, rel=1e-12)
    if values:
        loss = gdr.LOSSES["msq"](o)
        grads = torch.autograd.grad(loss, args)
        got = [float(loss.detach()), *(float(g.abs().mean()) for g in grads)]
        assert got == pytest.approx(values, rel=1e-9)


@pytest.mark.parametrize("length", (1, 3))
def test_recurrent(length):
    check(gdr.recurrent, gdr.inputs(2, length, 2, 4, 16, 24))
    graphs = dvm.torch.summary().graphs
    assert [g.kind for g in graphs] == ["forward", "backward"]
    assert not dvm.torch.summary().fallbacks  # all of it in kernels


def test_chunked():
    check(gdr.chunked, gdr.inputs(2, 7, 2, 4, 16, 24))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ("msq", "sum"))
@pytest.mark.parametrize("form", gdr.FORMS)
def test_acceptance_case(form, loss):
    got = check(gdr.FORMS[form], gdr.inputs(1, 8, 32, 32, 128, 128), loss)
    assert (tuple(got["o"].shape), got["o"].dtype) == ((1, 8, 32, 128), torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("length", (1, 7, 63, 64, 65))
@pytest.mark.parametrize("form", gdr.FORMS)
def test_lengths(form, length):
    check(gdr.FORMS[form], gdr.inputs(1, length, 2, 4, 32, 32))


@pytest.mark.slow
@pytest.mark.parametrize("decay", (0.0, 20.0))
def test_no_and_strong_decay(decay):
    """Decays of a whole chunk reach exp(-1300): nothing may overflow on the way."""
    args = gdr.inputs(1, 130, 2, 2, 32, 32, decay)
    check(gdr.chunked, args)


@pytest.mark.slow  # torch traces for half a minute, whatever the backend: docs/status.md
def test_one_compilation_for_many_lengths():
    """A chunk count has one program, whatever part of the last chunk is used. Where all of it
    is, torch makes a second one: its guard asks whether cutting to the length leaves it dense.
    """
    f = torch.compile(gdr.chunked, backend="dvm", fullgraph=True, dynamic=True)
    # Not one size twice in the first call: torch would take them for one (duck shaping).
    for batch, length, heads in ((2, 70, 3), (3, 65, 4), (5, 99, 2), (2, 128, 3)):
        check(gdr.chunked, gdr.inputs(batch, length, heads, heads, 16, 16), compiled=f)
        programs = 2 if length % 64 == 0 else 1
        assert [g.kind for g in dvm.torch.summary().graphs] == ["forward", "backward"] * programs


@pytest.mark.slow
def test_float32_is_near_float64():
    args = [a.detach().float().requires_grad_() for a in gdr.inputs(1, 33, 2, 2, 32, 32)]
    check(gdr.recurrent, args, limits=dict.fromkeys(gdr.LIMITS, 2e-6))


@pytest.mark.slow
def test_every_run_has_the_same_bits():
    args = gdr.inputs(1, 8, 4, 4, 64, 64)
    f = torch.compile(gdr.recurrent, backend="dvm", fullgraph=True)
    first = gdr.run(f, args, "sum")
    for _ in range(3):
        again = gdr.run(f, args, "sum")
        assert all(torch.equal(first[n], again[n]) for n in first)
