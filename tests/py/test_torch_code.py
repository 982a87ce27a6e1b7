"""The generated program: what it says, that it runs by itself, and how graphs are cut."""

import ast
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

from dvm.torch import summary as dvm_summary  # noqa: E402
from dvm.torch import symbols  # noqa: E402
from dvm.torch.partition import Kind, partition  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402

F = torch.nn.functional

pytestmark = pytest.mark.usefixtures("fresh")


def run(path):
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_static_kernel_text():
    low = lowered(lambda x, y: torch.relu(x * y + x), torch.ones(4, 5), torch.ones(4, 5))
    (kernel,) = low.program.kernels
    assert kernel.source == (
        '@dvm.kernel(ktype="split", dyn_shape=False)\n'
        "def dvm_mul_add_relu_0(k):\n"
        '    """\n'
        "    mul: float32[4, 5] = aten.mul.Tensor(x_1, y_1)\n"
        "    add: float32[4, 5] = aten.add.Tensor(mul, x_1)\n"
        "    relu: float32[4, 5] = aten.relu.default(add)\n"
        '    """\n'
        "    x_1 = k.load([4, 5], dvm.float32)\n"
        "    y_1 = k.load([4, 5], dvm.float32)\n"
        "    mul = k.mul(x_1, y_1)\n"
        "    add = k.add(mul, x_1)\n"
        "    relu = k.relu(add)\n"
        "    k.store(relu, dvm.float32)\n"
    ).replace("x_1", kernel.loads[0].name).replace("y_1", kernel.loads[1].name)


def test_dynamic_kernel_text():
    low = lowered(lambda x: torch.relu(x) / x.shape[0], torch.ones(4, 5), dynamic=True)
    (kernel,) = low.program.kernels
    assert "dyn_shape=True" in kernel.source
    assert "k.load([-1, -1], dvm.float32)" in kernel.source
    assert "k.scalar(dvm.int64)" in kernel.source


def test_strided_inputs_are_view_loads():
    low = lowered(lambda x: x * 2, torch.ones(4, 5).t())
    assert "k.view_load([5, 4], [1, 5], dvm.float32)" in low.source


def test_16_bit_values_are_computed_in_float32():
    low = lowered(lambda x: torch.relu(x * 0.1), torch.ones(4, dtype=torch.bfloat16))
    assert "k.cast(" in low.source
    assert "k.store(relu, dvm.bfloat16)" in low.source
    assert low.source.count("dvm.bfloat16") == 2  # load and store


def test_program_text():
    """One line a step; what the text says is what runs."""
    low = lowered(lambda x, w: torch.relu(x @ w + 1).sum(), torch.ones(3, 4), torch.ones(4, 5))
    assert low.program.call.split("\n\n")[0] == (
        "def program(p):\n"
        "    arg0_1, arg1_1 = p.inputs(2)\n"
        "    mm = p.empty((3, 5), (5, 1), torch.float32)\n"
        "    p.call(torch_mm, arg0_1, arg1_1, out=mm)\n"
        "    sum_1 = p.empty((), (), torch.float32)\n"
        "    p.run(dvm_add_relu_sum_0, mm, sum_1)\n"
        "    p.output((sum_1,))"
    )
    assert low(torch.ones(3, 4), torch.ones(4, 5)) == 75


def test_call_text_frees_what_is_dead(monkeypatch):
    """The Python form, for graphs that read numbers back from data."""
    monkeypatch.setattr("dvm.torch.codegen.is_recordable", lambda graph: False)
    low = lowered(lambda x: torch.special.i0(torch.special.i0(x * 2) + 1) * 3, torch.ones(4))
    body = low.program.call
    assert ast.parse(body)
    assert "args.clear()" in body
    assert "del mul\n" in body and "del add\n" in body


def chain(x, w):
    for _ in range(4):
        x = torch.relu(x @ w)
    return x.t() @ w, x


def shown(x, w):
    a = torch.relu(x @ w)
    v = a.t()
    b = torch.relu(a @ w)
    return torch.relu(b @ w) + 1, v


@pytest.mark.parametrize(("f", "count"), [(chain, 1), (shown, 2)])
def test_dead_buffers_are_used_again(f, count, monkeypatch):
    """In the Python form. What is returned, also as a view, is not."""
    monkeypatch.setattr("dvm.torch.codegen.is_recordable", lambda graph: False)
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    low = lowered(f, x, w)
    assert low.program.call.count("empty_cpu(") == count
    torch.testing.assert_close(low(x, w), f(x, w))


def test_output_code_runs_by_itself(tmp_path):
    table = torch.arange(6.0)

    def f(x, n):
        return F.softmax(x * table, -1) + n, torch.special.i0(x.t()).sum(0), x.view(-1)

    c = torch.compile(f, backend="dvm", dynamic=True, options={"debug_dir": str(tmp_path)})
    c(torch.randn(4, 6), 3)
    (path,) = tmp_path.glob("*/output_code.py")
    text = path.read_text()
    for line in ("import dvm", "@dvm.kernel(", "k.load(", "k.store(", "p.run("):
        assert line in text
    out = run(path)
    assert "output 0: torch.float32 (4, 6)" in out
    assert (path.parent / "fx_graph.txt").read_text().count("def forward") == 1


def test_main_program_computes_what_was_compiled(tmp_path):
    """The printed file and the compiled function give the same bits."""

    def f(x, w):
        return F.layer_norm(x, (8,), w)

    x, w = torch.randn(4, 8), torch.randn(8)
    options = {"debug_dir": str(tmp_path)}
    want = torch.compile(f, backend="dvm", options=options)(x, w)
    (path,) = tmp_path.glob("*/output_code.py")
    namespace = {"__name__": "output_code"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    (got,) = namespace["call"]([x, w])
    assert torch.equal(got, want)


def test_torchs_own_debug_folder(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: torch.relu(x) + 1, backend='dvm')\n"
        "f(torch.ones(3, 3, requires_grad=True)).sum().backward()\n"
    )
    env = dict(
        os.environ, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path), DVM_LOG="1"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
    )
    files = sorted(tmp_path.glob("torch_compile_debug/run_*/dvm/*/output_code.py"))
    told = done.stderr[done.stderr.index("dvm: generated code:\n") :].splitlines()[1:3]
    assert sorted(told) == [f"dvm:   {path}" for path in files]
    names = [p.parent.name for p in files]
    assert len(names) == 2
    assert "forward" in names[1] and "backward" in names[0]


def test_no_files_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.compile(lambda x: x + 1, backend="dvm")(torch.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_refused_regions_are_left_to_torch(monkeypatch):
    """An engine that cannot build a kernel costs speed, not the result, and is named."""
    import dvm

    real = dvm.kernel

    def kernel(**kw):
        def decorate(f):
            if "exp" in f.__name__:
                raise dvm.LimitError("too large")
            return real(**kw)(f)

        return decorate

    monkeypatch.setattr(dvm, "kernel", kernel)

    def f(x):
        return torch.exp(x) + 1, torch.special.i0(x) * 2

    x = torch.randn(5)
    low = lowered(f, x)
    assert low.fallbacks["aten.exp.default", "engine: too large"] == 1
    torch.testing.assert_close(low(x), f(x))


# --------------------------------------------------------------------------------- cutting


def cut(f, *args, dynamic=False):
    """Steps of a function: names of kernel nodes in brackets, names of torch nodes bare."""
    from dvm.torch.fx import Emitter
    from dvm.torch.options import Options

    graph = lowered(f, *args, dynamic=dynamic).module.graph
    emitter = Emitter(symbols.Symbols(), Options(), (n.name for n in graph.nodes))
    part = partition(graph, emitter, {})
    return [[n.name for n in s.nodes] if s.region else s.nodes[0].name for s in part.steps], part


def i0(x):
    return torch.special.i0(x)


def test_one_region_without_torch_nodes():
    steps, _ = cut(lambda x: torch.relu(x) + x.t().sum(0), torch.ones(3, 3))
    assert len(steps) == 1


def test_regions_meet_at_torch_nodes_only():
    def f(x, y):
        a = i0(x + 1)
        b = i0(y + 1)
        return a * b + x

    steps, _ = cut(f, torch.ones(3), torch.ones(3))
    assert [type(s) for s in steps] == [list, str, str, list]


def test_no_cycles():
    def f(x):
        a = x + 1
        b = i0(a)
        c = a * 2  # beside the extern node
        return b + c, c

    steps, _ = cut(f, torch.ones(3))
    assert steps[0] == ["add", "mul"] and steps[1] == "i0" and len(steps) == 3


def test_cheap_values_move_to_their_use():
    def f(x):
        early = x * 2  # as large as x, which lives on
        y = i0(i0(i0(x)))
        return y + early + x

    steps, _ = cut(f, torch.ones(3))
    assert [type(s) for s in steps] == [str, str, str, list]


def test_reductions_stay_early():
    def f(x):
        h = torch.exp(x)
        early = h.sum()  # frees h
        return i0(i0(i0(x))) + early

    steps, _ = cut(f, torch.ones(300))
    assert any(isinstance(s, list) and "sum_1" in s and "exp" in s for s in steps[:1])


def test_views_do_not_separate():
    def f(x):
        return i0((x + 1).t()).t() * 2

    steps, part = cut(f, torch.ones(3, 4))
    assert len(steps) == 3
    assert sum(1 for k in part.kinds.values() if k is Kind.VIEW) == 2


def test_mutation_is_a_barrier():
    def f(x):
        y = x * 2
        x.add_(1)
        return y, x * 3

    steps, _ = cut(f, torch.ones(3))
    assert [type(s) for s in steps] == [list, str, list]
    x = torch.ones(3)
    y, z = lowered(f, torch.ones(3))(x)
    assert (y == 2).all() and (z == 6).all() and (x == 2).all()


def test_kernels_write_changed_arguments_themselves():
    def f(x, y, z):
        x.mul_(2)
        y.add_(x.sum(0))
        z.copy_(z.t() + y)

    args = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    twins = [a.clone() for a in args]
    torch.compile(f, backend="dvm")(*args)
    f(*twins)
    for a, b in zip(args, twins, strict=True):
        torch.testing.assert_close(a, b)
    (graph,) = dvm_summary().graphs
    assert graph.kernels == 1 and not graph.fallbacks
    assert "copy__default(" not in graph.source


def test_old_contents_are_kept_while_torch_reads_them():
    def f(x):
        old = torch.special.i0(x)  # after the region that computes x + 1
        x.add_(1)
        return old, i0(x * 2) + i0(old)

    x, w = torch.randn(5), None
    w = x.clone()
    got, want = torch.compile(f, backend="dvm")(x), f(w)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(x, w)


def test_more_arguments_than_a_kernel_takes():
    def f(*xs):
        return [x + 1 for x in xs]

    xs = [torch.full((2,), float(i)) for i in range(700)]
    low = lowered(f, *xs)
    assert len(low.program.kernels) == 2
    for i, y in enumerate(low(*xs)):
        assert (y == i + 1).all()
