"""Compiled graphs in torch's cache of AOTAutograd's results: found by later processes, checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")
pytest.importorskip("dvm.torch.aot_cache", exc_type=(ImportError, AttributeError))

import dvm.torch  # noqa: E402
from cached import model, rescued, run_rescued  # noqa: E402
from dvm.torch import cache  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path / "dvm"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    torch._dynamo.reset()
    yield tmp_path / "torch" / "aotautograd"
    torch._dynamo.reset()


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def compiled(f, dynamic=False, **options):
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(f, backend="dvm", dynamic=dynamic, options={"cache": True, **options})


def run(f=model, n=6, **options):
    """Result and gradient, what torch's cache did, and the summary."""
    c = compiled(f, **options)
    torch.manual_seed(0)
    x, w = torch.randn(n, 8), torch.randn(8, 8, requires_grad=True)
    out = c(x, w)
    out[0].square().sum().backward()
    done = counters["aot_autograd"]
    did = done["autograd_cache_hit"], done["autograd_cache_miss"], done["autograd_cache_bypass"]
    return [out[0].detach(), *out[1], w.grad], did, dvm.torch.summary()


def same(a, b):
    assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("dynamic", [False, True])
def test_second_time_it_is_found(folder, dynamic):
    first, did, before = run(dynamic=dynamic)
    assert did == (0, 1, 0) and before.cache_hits == 0 and len(files(folder)) == 1
    second, did, after = run(dynamic=dynamic)
    assert did == (1, 0, 0) and (after.cache_hits, after.cache_misses) == (2, 0)
    same(first, second)
    kinds = {g.kind: g for g in after.graphs}
    assert set(kinds) == {"forward", "backward"}
    for g in before.graphs:
        assert kinds[g.kind].source == g.source and kinds[g.kind].fallbacks == g.fallbacks
    if dynamic:
        assert run(dynamic=True, n=9)[1] == (1, 0, 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_batched_gradients(dynamic):
    """Both from a graph that was just compiled and from one that was kept."""

    def f(x, w):
        return (x * w).sin() * x

    x, w = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    many = torch.randn(3, 4, 5)
    want = torch.autograd.grad(f(x, w), (x, w), many, is_grads_batched=True)
    for hits in (0, 1):
        c = compiled(f, dynamic)
        for _ in range(2):
            got = torch.autograd.grad(c(x, w), (x, w), many, is_grads_batched=True)
            torch.testing.assert_close(got, want)
        plain = torch.autograd.grad(c(x, w), x, many[0])
        torch.testing.assert_close(plain[0], want[0][0])
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits


def test_inference():
    def f(x):
        return torch.relu(x * 2 + 1).sum(0), x.shape[0]

    x = torch.randn(3, 4)
    for hits in (0, 1):
        c = compiled(f)
        for _ in range(2):
            torch.testing.assert_close(c(x), f(x))
        assert counters["aot_autograd"]["autograd_cache_hit"] == hits


def test_what_decides_the_text_is_in_the_key():
    assert run()[1] == (0, 1, 0)
    assert run(strict=True)[1] == (0, 1, 0)
    assert run(disable_ops=["relu"])[1] == (0, 1, 0)
    torch._dynamo.reset()
    counters.clear()
    torch.compile(lambda x: x * 3, backend="inductor")  # not run: the settings are ours alone
    assert not torch._functorch.config.bundled_autograd_cache
    assert run()[1] == (1, 0, 0)


def test_off_unless_asked(folder):
    f = torch.compile(model, backend="dvm")
    f(torch.randn(6, 8), torch.randn(8, 8, requires_grad=True))
    assert not files(folder)


def test_graphs_that_are_not_text_alone_are_left_out(folder):
    """A table inside the graph; a number read back from data."""
    table = torch.arange(3.0)
    for f, x in ((lambda x: x * table, torch.ones(3)), (lambda x: x[x > 0] * 2, torch.ones(3))):
        for _ in range(2):
            assert torch.equal(compiled(f)(x), f(x))
            assert not dvm.torch.summary().cache_damaged


def damage_text(data):
    at = data.index(cache.MAGIC) + 200
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE = {"text": damage_text, "short": lambda data: data[:-9], "empty": lambda data: b""}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_entries_are_compiled_again(folder, how):
    want, _, _ = run()
    [file] = files(folder)
    file.write_bytes(DAMAGE[how](file.read_bytes()))
    got, did, summary = run()
    same(got, want)
    assert did[0] == 0 and len([g for g in summary.graphs if g.kind == "forward"]) == 1
    if how == "text":  # the others are torch's to find
        assert summary.cache_damaged >= 1 and "damaged" in str(summary)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_takes_over_after_a_hit(dynamic):
    """Its kernels come without a graph."""

    for hit in (0, 1):
        c = compiled(rescued, dynamic)
        taken = run_rescued(c, dynamic)
        s = dvm.torch.summary()
        assert counters["aot_autograd"]["autograd_cache_hit"] == hit
        assert s.cache_hits == hit and s.rescued.total() == taken


SCRIPT = """
import torch, dvm.torch
from torch._dynamo.utils import counters
torch.manual_seed(0)
m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
m(torch.ones(1, 8))
c = torch.compile(m, backend="dvm", options={"cache": True}, dynamic=True)
for n in (3, 5):
    c(torch.randn(n, 8)).square().sum().backward()
bits = [p.grad.view(torch.int32).sum().item() for p in m.parameters()]
done = counters["aot_autograd"]
print(done["autograd_cache_hit"], done["autograd_cache_miss"], dvm.torch.summary().cache_hits, bits)
"""


def process():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=os.environ, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(maxsplit=3)


def test_another_process_finds_it(folder):
    first, second = process(), process()
    # torch traces this twice, and looks the first attempt up too
    assert first[0] == "0" and (second[0], second[2]) == ("1", "2")
    assert first[3] == second[3]
    assert all(Path(p).stat().st_size for p in files(folder))
