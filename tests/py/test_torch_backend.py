"""Registration, options and what a user sees of the backend: summary, errors, reset."""

import gc
import logging
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
from dvm.torch import backend as engine  # noqa: E402
from dvm.torch.options import Options, is_disabled, parse_options  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def f(x, y):
    return torch.relu(x * y + x)


def inputs(n=8):
    return torch.randn(n, n), torch.randn(n, n)


def test_found_by_entry_point():
    assert "dvm" in torch.compiler.list_backends()
    x, y = inputs()
    torch.testing.assert_close(torch.compile(f, backend="dvm")(x, y), f(x, y))


def test_one_stable_object():
    from dvm.torch.backend import dvm as backend
    from torch._dynamo.backends.registry import lookup_backend

    assert lookup_backend("dvm") is backend


def test_as_a_callable():
    from dvm.torch.backend import dvm as backend

    x, y = inputs()
    torch.testing.assert_close(torch.compile(f, backend=backend)(x, y), f(x, y))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"disable_op": ["mul"]}, "did you mean 'disable_ops'?"),
        ({"strict": 1}, "must be True or False"),
        ({"disable_ops": 3}, "must be a list of op names"),
        ({"quite_unknown": 1}, "known are"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(f, backend="dvm", options=options)(*inputs())
    assert isinstance(caught.value.inner_exception, dvm.torch.OptionError)
    assert isinstance(caught.value.inner_exception, ValueError)
    assert words in str(caught.value)


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="this torch has no default backend"
)
def test_as_the_default_backend():
    torch._dynamo.reset()
    torch.compiler.set_default_backend("dvm")
    try:
        x = torch.randn(4)
        torch.testing.assert_close(torch.compile(lambda x: x.sin() * 2)(x), x.sin() * 2)
        assert len(dvm.torch.summary().graphs) == 1
    finally:
        torch.compiler.set_default_backend(None)


def test_bad_mode():
    with pytest.raises(ValueError, match="did you mean 'max-autotune'"):
        parse_options(None, "max-autotun")
    assert parse_options(None, "reduce-overhead") == Options()


def test_environment_is_read_and_options_add_to_it(monkeypatch):
    monkeypatch.setenv("DVM_DISABLE_OPS", "exp, aten.mul.Tensor")
    monkeypatch.setenv("DVM_STRICT", "1")
    options = parse_options({"disable_ops": "log"}, None)
    assert options.disable_ops == {"exp", "aten.mul.Tensor", "log"}
    assert options.strict
    assert not parse_options({"strict": False}, None).strict


@pytest.mark.parametrize("name", ["mul", "aten.mul", "aten.mul.Tensor", "mul.Tensor"])
def test_names_of_disabled_ops(name):
    assert is_disabled(torch.ops.aten.mul.Tensor, frozenset([name]))
    assert not is_disabled(torch.ops.aten.add.Tensor, frozenset([name]))


def test_options_recompile():
    x, y = inputs()
    torch.compile(f, backend="dvm")(x, y)
    torch.compile(f, backend="dvm")(x, y)
    assert len(dvm.torch.summary().graphs) == 1
    torch.compile(f, backend="dvm", options={"disable_ops": ["relu"]})(x, y)
    graphs = dvm.torch.summary().graphs
    assert len(graphs) == 2
    assert graphs[0].fallbacks == {}
    assert graphs[1].fallbacks == {("aten.relu.default", "switched off"): 1}


def test_summary_counts_and_resets():
    x, y = inputs()
    torch.compile(f, backend="dvm")(x, y)
    s = dvm.torch.summary()
    assert (len(s.graphs), s.kernels, s.fused) == (1, 1, 3)
    assert s.dvm_seconds > 0 and s.aot_seconds > 0 and s.trace_seconds > 0
    assert "1 graph, 1 kernel, 3 ops fused, 0 ops by torch" in str(s)
    torch._dynamo.reset()
    assert dvm.torch.summary().graphs == []


def test_log_names_fallbacks(caplog):
    with caplog.at_level(logging.INFO, "dvm.torch"):
        torch.compile(lambda x: torch.relu(x @ x), backend="dvm")(torch.randn(4, 4))
    assert any("aten.mm.default" in m for m in caplog.messages)


def test_kept_kernels_do_not_keep_graphs(fresh):
    """A kernel stays for the next graph that has it; the graph it was made of goes."""
    nodes = []

    def watch(record, program):
        nodes.extend(weakref.ref(n) for k in program.kernels for n in k.nodes)

    engine.watchers.append(watch)
    try:
        f = torch.compile(lambda x, i: (x.exp() + 123)[i], backend="dvm")
        f(torch.ones(3), torch.tensor([0]))
    finally:
        engine.watchers.remove(watch)
    built = engine.kernels_built()
    assert nodes
    del f
    torch._dynamo.reset()
    gc.collect()
    assert not [n for n in nodes if n() is not None]
    g = torch.compile(lambda x, i: (x.exp() + 123)[i], backend="dvm")
    g(torch.ones(3), torch.tensor([0]))
    assert engine.kernels_built() == built
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        g(torch.ones(3), torch.tensor([5]))
