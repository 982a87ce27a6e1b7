"""Runs of kernels as ranges in the profiler of torch, beside the operators it runs itself."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm  # noqa: E402
import dvm.torch  # noqa: E402
from torch.profiler import profile  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def layer(x, w):
    return torch.relu(torch.mm(x, w) * 2 + 1).sum()


def ranges(prof):
    return [e for e in prof.events() if e.name.startswith("dvm::")]


def kernels(kind):
    return [n for g in dvm.torch.summary().graphs if g.kind == kind for n in g.functions]


def test_every_run_of_a_kernel_is_a_range():
    f = torch.compile(layer, backend="dvm")
    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)
    f(x, w).backward()
    with profile() as prof:
        for _ in range(3):
            f(x, w).backward()
    names = [e.name for e in ranges(prof)]
    wanted = {f"dvm::{n}" for n in (*kernels("forward"), *kernels("backward"))}
    assert set(names) == wanted and len(wanted) >= 2
    assert len(names) == 3 * len(kernels("forward") + kernels("backward"))


def test_ranges_lie_on_the_timeline_of_torch(tmp_path):
    f = torch.compile(layer, backend="dvm")
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    f(x, w)
    with profile() as prof:
        f(x, w)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    at = {e["name"]: e for e in events if e.get("ph") == "X"}
    [mine] = [e for name, e in at.items() if name.startswith("dvm::")]
    mm = at["aten::mm"]
    assert mine["ts"] >= mm["ts"] + mm["dur"] and mine["tid"] == mm["tid"] and mine["dur"] >= 0


def test_graphs_that_run_as_python():
    def f(x):
        return torch.relu(x[: int(x.sum().item())] + 1) * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        c = torch.compile(f, backend="dvm")
        x = torch.ones(5)
        c(x)
        with profile() as prof:
            c(x)
    assert {e.name for e in ranges(prof)} == {f"dvm::{n}" for n in kernels("inference")}


@dvm.kernel
def doubled(k, x):
    return k.store(k.mul(k.load(x, dvm.float32), 2.0))


def test_kernels_of_ones_own():
    x = torch.ones(4)
    with profile() as prof:
        y = doubled(x)
        doubled(x.numpy())
    assert [e.name for e in ranges(prof)] == ["dvm::doubled"] * 2 and y.tolist() == [2.0] * 4


def test_an_error_closes_the_range():
    """An index out of range is found in the middle of a run."""

    @dvm.kernel
    def picked(k, x, i):
        return k.store(k.gather(k.load(x, dvm.float32), k.load(i, dvm.int64), 0, 1))

    with profile() as prof:
        with pytest.raises(dvm.OutOfRangeError):
            picked(torch.ones(3), torch.tensor([7]))
        torch.ones(2).exp_()
    [mine], [exp] = ranges(prof), [e for e in prof.events() if e.name == "aten::exp_"]
    assert exp.time_range.start >= mine.time_range.end


def test_nothing_is_recorded_without_a_profiler(monkeypatch):
    """A range costs more than a small kernel."""
    opened = []
    monkeypatch.setattr(dvm.arrays, "_open_range", opened.append)
    dvm.arrays.watch_profiler()
    try:
        doubled(torch.ones(4))
        assert not opened
        with profile():  # what opens a range fails: that is not the kernel's fault
            assert doubled(torch.ones(4)).tolist() == [2.0] * 4
        assert opened == ["dvm::doubled"]
    finally:
        monkeypatch.undo()
        dvm.arrays.watch_profiler()
