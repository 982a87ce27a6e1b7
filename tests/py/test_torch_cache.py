"""Programs on disk: same results from another process's entry, and nothing trusted."""

import json
import os
import subprocess
import sys
import zlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
from cached import model, rescued, run_rescued  # noqa: E402
from dvm.torch import cache  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh(tmp_path, monkeypatch):
    """Without torch's cache, which is test_torch_aot_cache's."""
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path / "c"))
    monkeypatch.setenv("TORCHINDUCTOR_AUTOGRAD_CACHE", "0")  # of processes started here
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


def entries(tmp_path):
    return sorted((tmp_path / "c").glob("*.dvmc"))


def run(f=model, dynamic=False, n=6, **options):
    """Result, gradient and what the cache did."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(n, 8), torch.randn(8, 8, requires_grad=True)
    c = torch.compile(f, backend="dvm", dynamic=dynamic, options={"cache": True, **options})
    out = c(x, w)
    out[0].square().sum().backward()
    s = dvm.torch.summary()
    return [out[0].detach(), *out[1], w.grad], (s.cache_hits, s.cache_misses), s


def same(a, b):
    assert all(map(torch.equal, a, b))


@pytest.mark.parametrize("dynamic", [False, True])
def test_second_time_it_is_found(tmp_path, dynamic):
    first, hits, before = run(dynamic=dynamic)
    assert hits == (0, 2) and len(entries(tmp_path)) == 2  # forward and backward
    second, hits, after = run(dynamic=dynamic)
    assert hits == (2, 0)
    same(first, second)
    assert [g.source for g in before.graphs] == [g.source for g in after.graphs]
    assert (before.fused, before.fallbacks) == (after.fused, after.fallbacks)
    assert "cache: 2 found, 0 not found" in str(after)
    if dynamic:
        assert run(dynamic=True, n=9)[1] == (2, 0)


def in_place(x, w):
    """Rows of what torch computed are written where they lie."""
    h = (x @ w).clone()
    y = torch.special.i0(h) @ w
    y[1] = h[0].exp()
    y[:, 2:4] = h[:, 1:3].sin()
    i = x[:, 0].topk(2)[1]
    z = y.index_put((i,), h[:2]) @ w
    return z.scatter(0, i[:1, None].expand(1, 8), h[:1]).tanh(), ()


def test_what_is_written_in_place_is_found(tmp_path):
    first, hits, _ = run(in_place)
    assert hits == (0, 2) and len(entries(tmp_path)) == 2
    second, hits, after = run(in_place)
    assert hits == (2, 0) and not after.cache_damaged
    assert "p.share(aten_" in "".join(g.source for g in after.graphs)
    same(first, second)


def test_off_unless_asked(tmp_path):
    torch.compile(lambda x: x + 1, backend="dvm")(torch.ones(3))
    assert not (tmp_path / "c").exists()


def test_what_decides_the_text_is_in_the_key(tmp_path):
    run()
    assert run(n=7)[1] == (0, 2)
    assert run(strict=True)[1] == (0, 2)
    assert run(disable_ops=["relu"])[1] == (0, 2)
    assert run(lambda x, w: (model(x, w)[0] * 2, *model(x, w)[1:]))[1] == (0, 2)
    assert run()[1] == (2, 0)


def test_graphs_that_are_not_text_alone_are_left_out(tmp_path):
    table = torch.arange(3.0)
    f = torch.compile(lambda x: x * table, backend="dvm", options={"cache": True})
    assert torch.equal(f(torch.ones(3)), table)
    f = torch.compile(lambda x: x[x > 0] * 2, backend="dvm", options={"cache": True})
    assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    for path in entries(tmp_path):
        assert "record(program)" in path.read_text()


def test_views_and_sizes_after_a_hit():

    def f(x):
        y = x.reshape(-1, 4)
        return y[1:].sum(0) * y.shape[0]

    x = torch.randn(12)
    for hit in (0, 1):
        torch._dynamo.reset()
        c = torch.compile(f, backend="dvm", dynamic=True, options={"cache": True})
        c(x)
        assert dvm.torch.summary().cache_hits == hit
        same([c(x * 2)], [f(x * 2)])


def test_memory_that_is_not_initialized_after_a_hit():
    """What torch would run instead of the kernel has zeros there, an operator of no graph."""

    def f(x):
        return torch.empty_like(x) * 0, x + 1

    x = torch.randn(12)
    for hit in (0, 1):
        torch._dynamo.reset()
        c = torch.compile(f, backend="dvm", options={"cache": True})
        same([c(x)[1]], [f(x)[1]])
        s = dvm.torch.summary()
        assert not s.fallbacks and (s.cache_hits, s.cache_damaged) == (hit, 0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_takes_over_after_a_hit(dynamic):
    """A kernel from the cache has no graph: what torch runs instead is in the entry."""

    for hit in (0, 1):
        torch._dynamo.reset()
        c = torch.compile(rescued, backend="dvm", dynamic=dynamic, options={"cache": True})
        taken = run_rescued(c, dynamic)
        s = dvm.torch.summary()
        assert s.cache_hits == hit and s.rescued.total() == taken


def damage(path, how):
    data = path.read_bytes()
    payload = data.partition(b"\n")[2]
    if how == "short":
        path.write_bytes(data[:-9])
    elif how == "bit":
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "version":
        path.write_bytes(data.replace(cache.MAGIC, cache.MAGIC + b"0", 1))
    elif how == "no json":
        write(path, b"[1, 2")
    else:
        entry = json.loads(payload)
        how(entry)
        write(path, json.dumps(entry).encode())


def write(path, payload):
    path.write_bytes(b"%s %08x %d\n" % (cache.MAGIC, zlib.crc32(payload), len(payload)) + payload)


def in_reference(entry, old, new):
    kernel = entry["kernels"][0]
    kernel["reference"] = kernel["reference"].replace(old, new, 1)


HOSTILE = {
    "statement": lambda e: e.update(call="import os\n" + e["call"]),
    "builtin": lambda e: e.update(
        call=e["call"].replace("    p.output", "    open('x')\n    p.output")
    ),
    "builtin as argument": lambda e: e.update(
        call=e["call"].replace("    p.output", "    p.call(open, 'x')\n    p.output")
    ),
    "attribute": lambda e: e.update(
        call=e["call"].replace("    p.output", "    p.call(torch.load, 'x')\n    p.output")
    ),
    "dunder": lambda e: e.update(
        call=e["call"].replace("    p.output", "    p.__class__()\n    p.output")
    ),
    "operator of another graph": lambda e: e.update(
        header=e["header"] + "aten_f = torch.ops.aten.from_file.default\n"
    ),
    "header": lambda e: e.update(header="import os\n" + e["header"]),
    "kernel": lambda e: e["kernels"][0].update(
        source=e["kernels"][0]["source"] + "    dvm.jit.sys.exit(3)\n"
    ),
    "decorator": lambda e: e["kernels"][0].update(
        source="@exit\n" + e["kernels"][0]["source"]
    ),
    "reference": lambda e: in_reference(e, "    return", "    open('x')\n    return"),
    "reference to another operator": lambda e: in_reference(e, "aten.", "aten.from_file."),
    "reference that reaches further": lambda e: in_reference(
        e, "    return", "    x = torch.ops.aten.relu.default.__class__\n    return"
    ),
    "reference with a call in front": lambda e: in_reference(
        e, "torch.ops.", "torch.os.system('false').torch.ops."
    ),
    "results": lambda e: e["kernels"][0].update(results="two"),
    "type": lambda e: e.update(kernels=3),
    "missing": lambda e: e.pop("call"),
}  # fmt: skip


@pytest.mark.parametrize("how", ["short", "bit", "empty", "version", "no json", *HOSTILE])
def test_damaged_and_hostile_entries_are_misses(tmp_path, how):
    want, _, _ = run()
    for path in entries(tmp_path):
        damage(path, HOSTILE.get(how, how))
    got, hits, summary = run()
    assert hits == (0, 2) and 1 <= summary.cache_damaged <= 2
    assert "damaged" in str(summary)
    same(got, want)
    assert run()[1] == (2, 0)  # written anew


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path / "file" / "below"))
    run()
    for name in ("DVM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache.folder() is None
    run()


def test_folders(tmp_path, monkeypatch):
    monkeypatch.delenv("DVM_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.folder() == tmp_path / "h" / ".cache" / "dvm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.folder() == tmp_path / "x" / "dvm"


def test_size_is_bounded(tmp_path, monkeypatch):
    run()
    one = sum(p.stat().st_size for p in entries(tmp_path))
    monkeypatch.setenv("DVM_CACHE_BYTES", str(2 * one))
    for n in (7, 8, 9, 10):
        run(n=n)
    assert sum(p.stat().st_size for p in entries(tmp_path)) <= 2 * one
    assert run(n=10)[1] == (2, 0)


def test_a_bound_that_is_no_number_is_told(monkeypatch, caplog):
    for text in ("64 MB", "-1", "1e6"):
        monkeypatch.setenv("DVM_CACHE_BYTES", text)
        assert cache._limit() == cache.LIMIT
        assert f"DVM_CACHE_BYTES={text} is no number of bytes" in caplog.text
    monkeypatch.setenv("DVM_CACHE_BYTES", "0")
    assert cache._limit() == 0


def test_command(tmp_path, capsys):
    from dvm.__main__ import main

    assert main(["cache", "ls"]) == 0
    run()
    assert main(["cache", "verify"]) == 0
    assert "2 entries" in capsys.readouterr().out
    damage(entries(tmp_path)[0], "bit")
    assert main(["cache", "verify"]) == 1
    assert "damaged" in capsys.readouterr().out
    assert main(["cache", "ls"]) == 0
    assert main(["cache", "clear"]) == 0 and not entries(tmp_path)
    assert main(["cache", "wash"]) == 2


SCRIPT = """
import torch, dvm.torch
f = torch.compile(lambda x: torch.relu(x * 2 + 1).sum(0), backend="dvm", options={"cache": True})
x = torch.ones(3, 4)
assert torch.equal(f(x), torch.full((4,), 9.0))
print(dvm.torch.summary().cache_hits)
"""


def test_processes_at_once(tmp_path):
    start = [
        subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert all(p.wait(300) == 0 for p in start)
    assert len(entries(tmp_path)) == 1
    assert not [p for p in os.listdir(tmp_path / "c") if p.startswith(".new-")]
    last = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert last.stdout.strip() == "1"
