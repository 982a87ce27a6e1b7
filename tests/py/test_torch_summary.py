"""What the run summary tells: recompilations with their guard, breaks, functions given up, code."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def twice(x):
    return torch.relu(x) * 2


def test_recompilations_name_the_guard():
    f = torch.compile(twice, backend="dvm")
    f(torch.ones(3))
    f(torch.ones(3, 4))
    f(torch.ones(3, 4, dtype=torch.bfloat16))
    s = dvm.torch.summary()
    assert [where.split(" ")[0] for where, _ in s.recompiles] == ["twice", "twice"]
    assert "rank mismatch. expected 1, actual 2" in s.recompiles[0][1]
    assert "dtype mismatch" in s.recompiles[1][1]
    assert not s.breaks and not s.given_up
    assert "dvm: 2 recompiles" in str(s)
    torch._dynamo.reset()
    assert not dvm.torch.summary().recompiles


def test_other_backends_are_not_told():
    for n in (1, 2):
        torch.compile(twice, backend="eager")(torch.ones([2] * n))
    s = dvm.torch.summary()
    assert not s.recompiles and "recompiles" not in str(s)


def test_breaks_have_reasons():
    def f(x):
        x = torch.sin(x)
        torch._dynamo.graph_break()
        return torch.cos(x)

    torch.compile(f, backend="dvm")(torch.ones(3))
    [(where, reason)] = dvm.torch.summary().breaks
    assert where.startswith("f (test_torch_summary.py:") and "graph_break" in reason


def test_tracing_again_is_no_break():
    """torch does so when a number became a tensor."""
    norm = torch.nn.LayerNorm(8)
    f = torch.compile(lambda x: norm(x) * 2, backend="dvm", dynamic=True)
    f(torch.randn(3, 8)).sum().backward()
    s = dvm.torch.summary()
    assert s.graphs and not s.breaks


@torch._dynamo.config.patch(recompile_limit=2)
def test_running_eagerly_in_the_end_is_told():
    """torch stops compiling a function that it compiled too often, and says so once in its log."""
    f = torch.compile(twice, backend="dvm")
    for n in (1, 2, 3):
        f(torch.ones([2] * n))
    s = dvm.torch.summary()
    assert len(s.recompiles) == 1
    [(where, reason)] = s.given_up
    assert where.startswith("twice (") and "limit" in reason and "rank mismatch" in reason
    assert "dvm: 1 given up" in str(s)


def test_summary_before_anything_was_compiled():
    code = "import dvm; print(dvm.torch.summary())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "0 graphs" in done.stdout, done


def output(**env):
    code = (
        "import torch\n"
        "print(torch.compile(lambda x: torch.relu(x) * 2, backend='dvm')(torch.ones(3)).sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_code_is_an_artefact_of_torch():
    text = output(TORCH_LOGS="output_code")
    assert "[__output_code]" in text and "@dvm.kernel" in text and "k.relu(" in text


def test_summary_at_the_end():
    text = output(DVM_LOG="1")
    assert "dvm: 1 graph, 1 kernel, 2 ops fused, 0 ops by torch" in text
