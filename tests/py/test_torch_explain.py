"""The page of a model: every kernel with its time, what torch runs and why, both pictures."""

import re
from html.parser import HTMLParser

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
from dvm.torch import backend, picture  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _unwatched():
    yield
    assert not backend.watchers


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, *, scale=1.0):
        return torch.softmax(self.norm(self.drop(torch.relu(self.up(x)))) * scale, -1)


class Balance(HTMLParser):
    """Fails at a tag that closes another; keeps the cells of tables and the classes of boxes."""

    VOID = ("meta", "path", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.looks, self.text = [], [], [[]], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "svg":
            self.looks.append([])
        if tag == "rect":
            self.looks[-1].append(dict(attrs)["class"])

    def handle_startendtag(self, tag, attrs):
        if tag == "rect":
            self.looks[-1].append(dict(attrs)["class"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def explained(f, *args, path, **more):
    """The page, and the graphs that are on it."""
    before = len(dvm.torch.summary().graphs)
    assert dvm.torch.explain(f, *args, path=path, **more) == str(path)
    text = path.read_text()
    assert not re.search(r"https?:|<link|<script|\bsrc=|@import", text)
    return Balance(text), dvm.torch.summary().graphs[before:]


def test_a_model_forward_and_backward(tmp_path):
    m, x = Model(), torch.randn(4, 16, requires_grad=True)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    page, graphs = explained(m, x, path=tmp_path / "m.html", scale=2.0, runs=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert x.grad is None and all(p.grad is None for p in m.parameters())
    assert [g.kind for g in graphs] == ["forward", "backward"]
    cells = {row[0]: row[1:] for row in page.rows}
    for g in graphs:
        for name in g.functions:
            where, runs, us, total = cells[name]
            assert where == g.name and runs == "1" and 0 < float(us) == float(total)
        for op, reason in g.fallbacks:
            assert cells[op][0] == reason and float(cells[op][3]) > 0
    for i, g in enumerate(graphs):
        before, after = page.looks[1 + 2 * i : 3 + 2 * i]
        assert before.count("torch") == after.count("torch") == g.fallbacks.total() > 0
        assert len([k for k in after if k.startswith("k")]) == g.kernels
        assert len([k for k in before if k.startswith("k")]) > g.kernels
    assert "reads x0" in "".join(page.text) and "def program(p)" in "".join(page.text)


def test_what_is_compiled_already_is_compiled_apart(tmp_path):
    m, x = Model().eval(), torch.randn(4, 16)
    mine = torch.compile(m, backend="dvm")
    with torch.no_grad():
        want = mine(x)
        page, graphs = explained(mine, x, path=tmp_path / "m.html", runs=1)
        assert [g.kind for g in graphs] == ["inference"] and "Model through" in page.text[0]
        assert torch.equal(mine(x), want)
    assert len(dvm.torch.summary().graphs) == 2


def compiles_behind_breaks():
    """Whether torch does, with any backend. Torch 2.11 does not once threads of this process have
    called a compiled function."""
    from torch._dynamo.testing import CompileCounterWithBackend

    def f(x):
        y = torch.exp(x)
        torch._dynamo.graph_break()
        return y + 1

    counter = CompileCounterWithBackend("eager")
    torch.compile(f, backend=counter)(torch.ones(3))
    torch._dynamo.reset()
    return counter.frame_count == 2


def test_functions_options_breaks_and_sizes(tmp_path):
    if not compiles_behind_breaks():
        pytest.skip("this torch compiles nothing behind a break after threads have run")

    def f(x):
        y = torch.exp(x) * 2
        torch._dynamo.graph_break()
        return torch.tanh(y) + 1

    more = {"options": {"disable_ops": ["tanh"]}, "dynamic": True, "runs": 1}
    page, graphs = explained(f, torch.ones(5, 3), path=tmp_path / "f.html", **more)
    assert len(graphs) == 2 and all(g.dynamic for g in graphs)
    text = "".join(page.text)
    assert "Graph break: f (" in text and "switched off" in text
    [row] = [r for r in page.rows if r[0] == "aten.tanh.default"]
    assert float(row[-1]) > 0


def test_nothing_to_compile(tmp_path):
    page, graphs = explained(lambda x: x, torch.ones(2), path=tmp_path / "f.html", runs=1)
    assert not graphs and "None." in page.text and "Nothing." in page.text


def test_a_kernel_that_stores_into_its_argument(tmp_path):
    """The copy into the argument is no operator of torch."""

    def f(x):
        x.mul_(2).add_(1)

    page, (g,) = explained(f, torch.ones(8), path=tmp_path / "f.html", runs=1)
    assert not g.fallbacks and page.looks[2] == ["k0"] and "torch" not in page.looks[1]


def test_errors(tmp_path):
    def fails(x):
        raise RuntimeError("mine")

    with pytest.raises(ValueError, match="runs=0"):
        dvm.torch.explain(fails, torch.ones(2), path=tmp_path / "x.html", runs=0)
    with pytest.raises(RuntimeError, match="mine"):
        dvm.torch.explain(fails, torch.ones(2), path=tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_path_is_refused_before_anything_is_compiled(tmp_path):
    calls = []

    def f(x):
        calls.append(1)
        return x + 1

    for path, error, said in (
        (tmp_path, IsADirectoryError, "folder"),
        (tmp_path / "none" / "x.html", FileNotFoundError, "no folder"),
        ("", ValueError, "not the name"),
        ("a\0b", ValueError, "not the name"),
        (b"x.html", ValueError, "not the name"),
        (7, TypeError, ""),
    ):
        with pytest.raises(error, match=said):
            dvm.torch.explain(f, torch.ones(2), path=path)
    with pytest.raises(ValueError, match="runs"):
        dvm.torch.explain(f, torch.ones(2), path=tmp_path / "x.html", runs=1.5)
    with (
        torch.profiler.profile() as outer,
        pytest.raises(RuntimeError, match="stop it first"),
    ):
        dvm.torch.explain(f, torch.ones(2), path=tmp_path / "x.html")
    assert outer.events() is not None and not calls


def test_pages_do_not_use_up_what_torch_allows(tmp_path):
    """torch compiles the same code eight times, and runs it as it is from then on."""

    def f(x):
        return torch.relu(x) * 2

    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    for g in (f, model):
        for _ in range(torch._dynamo.config.recompile_limit + 2):
            _, graphs = explained(g, torch.ones(2, 3), path=tmp_path / "f.html", runs=1)
            assert graphs
        before = len(dvm.torch.summary().graphs)
        torch.compile(g, backend="dvm", fullgraph=True)(torch.ones(2, 3))
        assert len(dvm.torch.summary().graphs) > before


def test_boxes_do_not_lie_on_each_other():
    boxes = [
        picture.Box(f"b{i}", "<x>" * 9, "a\n&", [f"b{i // 2}"] * (i > 0), "k0") for i in range(40)
    ]
    text = picture.draw(boxes, '"quoted"')
    places = re.findall(r'<rect class="k0" x="(\d+)" y="(\d+)"', text)
    assert len(set(places)) == 40 and text.count("<path") == 39
    assert "<x>" not in text and "&quot;quoted&quot;" in text
    assert "too many" in picture.draw(boxes * 40, "")


def test_hooks_of_parameters_do_not_run_and_stay(tmp_path):
    """A hook may send gradients to other processes, or count steps."""
    model, seen = torch.nn.Linear(4, 3), []
    handle = model.weight.register_hook(lambda g: seen.append(g.shape))
    _, graphs = explained(model, torch.ones(2, 4), path=tmp_path / "f.html", runs=1)
    assert len(graphs) == 2 and not seen
    model(torch.ones(2, 4)).sum().backward()
    assert len(seen) == 1
    handle.remove()
    model(torch.ones(2, 4)).sum().backward()
    assert len(seen) == 1


def test_a_function_that_is_kept_out_of_torch_compile(tmp_path):
    f = torch.compiler.disable(lambda x: x.exp() + 1)
    page, graphs = explained(f, torch.ones(3), path=tmp_path / "f.html", runs=1)
    assert not graphs and "Nothing." in page.text
