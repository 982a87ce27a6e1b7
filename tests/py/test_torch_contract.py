"""What torch expects of a compile backend: the contract, one test for each line of it."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
import dvm.torch.testing  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from compiled import compiled, graphs, same  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def gradients(f, *args):
    """Results and gradients of the arguments that want some."""
    args = [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in args
    ]
    out = f(*args)
    out.float().square().mean().backward()
    return [
        out.detach(),
        *(a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad),
    ]


# --------------------------------------------------------------------------- optimizers, losses


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop"])
def test_foreach_optimizer_step(name):
    more = {"momentum": 0.9} if name == "SGD" else {}

    def run(backend):
        torch._dynamo.reset()
        torch.manual_seed(1)
        params = [torch.randn(*s, requires_grad=True) for s in ((4, 5), (7,), (2, 3, 2))]
        optimizer = getattr(torch.optim, name)(
            params, lr=0.05, foreach=True, weight_decay=0.01, **more
        )
        step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
        for _ in range(4):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        state = [t for p in params for t in optimizer.state[p].values() if torch.is_tensor(t)]
        return [p.detach() for p in params], state

    want, got = run(None), run("dvm")
    same(got, want, rtol=2e-5, atol=2e-6)
    assert len(got[1]) == len(want[1]) > 0
    assert any(g.kernels for g in graphs()) and not dvm.torch.summary().fallbacks


def test_foreach_overloads():
    """What is taken apart: lists, numbers, lists of numbers, a tensor, values by name."""
    x = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]
    y = [torch.rand(3, 4) + 0.5, torch.rand(5) + 0.5]

    def f(x, y, t):
        f = torch
        return (
            f._foreach_add(x, y, alpha=2), f._foreach_sub(x, 0.5), f._foreach_mul(x, [2.0, 3.0]),
            f._foreach_div(x, t), f._foreach_add(x, t, alpha=3), f._foreach_pow(x, y),
            f._foreach_pow(2.0, x), f._foreach_pow(x, [2.0, 0.5]), f._foreach_maximum(x, 1.0),
            f._foreach_minimum(x, [0.6, 0.7]), f._foreach_maximum(x, y), f._foreach_clamp_min(x, y),
            f._foreach_addcmul(x, x, y, 0.3), f._foreach_addcdiv(x, x, y, value=0.3),
            f._foreach_addcdiv(x, x, y, [0.1, 0.2]), f._foreach_addcmul(x, y, x, [0.5, 2.0]),
            f._foreach_lerp(x, y, 0.25), f._foreach_lerp(x, y, x), f._foreach_round(x),
            f._foreach_sigmoid(x), f._foreach_reciprocal(y), f._foreach_rsqrt(y),
        )  # fmt: skip

    want, got = f(x, y, torch.tensor(1.5)), compiled(f)(x, y, torch.tensor(1.5))
    for a, b in zip(got, want, strict=True):
        same(list(a), list(b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss", ["cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "bce"]
)
def test_loss_functions(loss):
    x = torch.randn(6, 5, requires_grad=True)
    y = torch.rand(6, 5)
    f = {
        "cross_entropy": lambda x, y: F.cross_entropy(x, y.argmax(-1), label_smoothing=0.1),
        "kl_div": lambda x, y: F.kl_div(x.log_softmax(-1), y, reduction="batchmean"),
        "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, y),
    }.get(loss, getattr(F, loss, None))
    same(gradients(compiled(f), x, y), gradients(f, x, y), rtol=1e-5, atol=1e-6)


def test_clipping_gradients():
    def f(grads):
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        return [g * (1.0 / (total + 1e-6)).clamp(max=1.0) for g in grads], total

    grads = [torch.randn(4, 3), torch.randn(7)]
    same(compiled(f)(grads), f(grads))


# --------------------------------------------------------------------- autocast, checkpointing


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where):
    w = torch.randn(8, 8, requires_grad=True)

    def body(x, w):
        return F.silu(x @ w) + F.layer_norm(x, (8,)) * 2

    def inside(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return body(x, w)

    def outside(f):
        def g(x, w):
            with torch.autocast("cpu", torch.bfloat16):
                return f(x, w)

        return g

    x = torch.randn(5, 8, requires_grad=True)
    f = compiled(inside) if where == "inside" else outside(compiled(body))
    got, want = gradients(f, x, w), gradients(inside, x, w)
    assert got[0].dtype == want[0].dtype
    same(got, want, rtol=3e-2, atol=3e-2)


def test_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    w = torch.randn(8, 8, requires_grad=True)

    def block(x, w):
        return F.gelu(x @ w) * torch.sigmoid(x)

    def f(x, w):
        for _ in range(3):
            x = checkpoint(block, x, w, use_reentrant=False)
        return x

    x = torch.randn(5, 8, requires_grad=True)
    same(gradients(compiled(f), x, w), gradients(f, x, w), rtol=1e-4, atol=1e-5)


def test_checkpointed_dropout_draws_the_same_mask_again():
    from torch.utils.checkpoint import checkpoint

    def f(x):
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5) * x, x, use_reentrant=False)

    x = torch.rand(4000, requires_grad=True)
    y = compiled(f)(x)
    y.sum().backward()
    # where the mask let nothing through, nothing comes back either
    assert ((y == 0) == (x.grad == 0)).all()
    assert 0.4 < (y == 0).float().mean() < 0.6


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_uses_one_mask_for_forward_and_backward(p):
    x = torch.rand(3000) + 0.5
    x.requires_grad_()
    y = compiled(lambda x: F.dropout(x, p) * 3)(x)
    y.sum().backward()
    same(x.grad * x.detach(), y.detach(), rtol=1e-5, atol=1e-6)
    torch.manual_seed(7)
    got = compiled(lambda x: F.dropout(x * 2, p))(x.detach())
    torch.manual_seed(7)
    same(got, F.dropout(x.detach() * 2, p))


# ----------------------------------------------------------------------------------- numbers


def test_numbers_in_and_out():
    def f(x, n, a):
        return x * a + n, n * 2, a / 3, x.shape[0] + n, x.sum() * (n + a)

    c = compiled(f, dynamic=True)
    for n, a in ((5, 0.25), (9, -3.5), (2, 1e-3)):
        x = torch.randn(n, 3)
        got, want = c(x, n, a), f(x, n, a)
        for g, w in zip(got, want, strict=True):
            assert type(g) is type(w)
            same(g, w)


def test_sizes_zero_and_one_are_their_own_graphs():
    def f(x):
        return (x * 2 + x.shape[0]).sum(0), x.amax(-1)

    c = compiled(f, dynamic=True)
    for n in (7, 1, 0, 12, 1, 0):
        x = torch.randn(n, 4)
        same(c(x), f(x))
    assert len(graphs()) == 3  # many, one, none


def test_sizes_unknown_until_the_call():
    def f(x, keep):
        y = x[keep] * 2
        n = keep.sum().item()
        torch._check(n >= 0)
        torch._check(n <= 20)
        z = torch.arange(n) * 3
        return y.sum(0), z, torch.cat([y, y]).relu()

    options = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(**options):
        c = compiled(f)
        for keep in ([1, 0, 1], [0, 0, 0], [1, 1, 1]):
            x = torch.randn(3, 4)
            keep = torch.tensor(keep, dtype=torch.bool)
            same(c(x, keep), f(x, keep))
    assert len(graphs()) == 1


def test_marked_unbacked():
    f = compiled(lambda x: F.softmax(x * 2, -1).sum(0), dynamic=None)
    for n in (0, 1, 5):
        x = torch.randn(n, 6)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        same(f(x), F.softmax(x * 2, -1).sum(0))
    assert len(graphs()) == 1


def test_tuples_and_none_in_and_out():
    def f(pair, nothing, d):
        a, b = pair
        assert nothing is None
        return {"sum": a + b, "none": None, "pair": (a * 2, [b, None])}, d["k"] @ a

    args = ((torch.randn(3, 3), torch.randn(3, 3)), None, {"k": torch.randn(3, 3)})
    got, want = compiled(f)(*args), f(*args)
    assert got[0]["none"] is None and got[0]["pair"][1][1] is None
    same(got[0]["sum"], want[0]["sum"])
    same(got[0]["pair"][0], want[0]["pair"][0])
    same(got[1], want[1])


def test_gradient_of_some_arguments_is_none():
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    a, b = compiled(lambda x, y: (x * 2, y.detach() * x.detach()))(x, y)
    assert a.requires_grad and not b.requires_grad
    a.sum().backward()
    assert y.grad is None and (x.grad == 2).all()


# -------------------------------------------------------------------- operators beyond ATen


def test_custom_op_with_gradient():
    @torch.library.custom_op("dvm_test::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_fake(lambda x: torch.empty_like(x))
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    x = torch.randn(4, 5, requires_grad=True)
    f = lambda x: cube(x.t() * 2) + x.t()
    same(gradients(compiled(f), x), gradients(f, x))


def test_custom_op_that_changes_an_argument():
    @torch.library.custom_op("dvm_test::push", mutates_args=("x",))
    def push(x: torch.Tensor, by: torch.Tensor) -> None:
        x.add_(by)

    def f(x, y):
        push(x, y * 2)
        return x * 3

    a, b, y = torch.ones(4), torch.ones(4), torch.randn(4)
    same(compiled(f)(a, y), f(b, y))
    same(a, b)


def test_flex_attention_is_torchs():
    from torch.nn.attention.flex_attention import flex_attention

    def f(q, k, v):
        return flex_attention(q * 2, k, v, score_mod=lambda s, b, h, i, j: s + (i - j)) + 1

    q, k, v = (torch.randn(1, 2, 16, 16) for _ in range(3))
    same(compiled(f)(q, k, v), f(q, k, v), rtol=1e-4, atol=1e-5)


COLLECTIVES = """
    import os, torch, torch.distributed as dist
    import torch.distributed._functional_collectives as fc
    import dvm.torch

    store = "file://" + os.environ["STORE"]
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    group = dist.group.WORLD

    def f(x):
        a = fc.all_reduce(x * 2, "sum", group)
        b = fc.all_gather_tensor(a + 1, 0, group)
        c = fc.reduce_scatter_tensor(b * 3, "sum", 0, group)
        return a, b, c - x

    def g(x):
        y = x * 2
        dist.all_reduce(y)
        dist.all_reduce(y)
        return y + 1

    x = torch.randn(4, 3)
    for h in (f, g):
        for a, b in zip(torch.compile(h, backend="dvm", fullgraph=True)(x), h(x)):
            torch.testing.assert_close(a, b)
    for graph in dvm.torch.summary().graphs:
        calls = [l.split("(")[1] for l in graph.source.splitlines() if "_c10d" in l and "p." in l]
        names = [c.split(",")[0].removeprefix("_c10d_functional_") for c in calls]
        print(" ".join(names))
    dist.destroy_process_group()
"""


def test_collectives_keep_their_order(tmp_path):
    """In a process of its own: a group of one rank over gloo."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    env = dict(os.environ, STORE=str(tmp_path / "store"))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COLLECTIVES)],
        env=env, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = (line.split() for line in done.stdout.splitlines()[-2:])
    kinds = [n.split("_default")[0] for n in first]
    assert kinds.index("all_reduce") < kinds.index("all_gather_into_tensor")
    assert kinds.index("all_gather_into_tensor") < kinds.index("reduce_scatter_tensor")
    for i, kind in enumerate(kinds):
        if kind != "wait_tensor":
            assert "wait_tensor" in kinds[i + 1 :]
    assert sum("all_reduce" in n for n in second) == 2


# ------------------------------------------------------------------------------- torch's modes


def test_deterministic_algorithms():
    def f(x, i):
        return torch.zeros(5, 3).index_add(0, i, x * 2) + x.sum(0), x.cumsum(0)

    x, i = torch.randn(8, 3), torch.randint(0, 5, (8,))
    torch.use_deterministic_algorithms(True)
    try:
        c = compiled(f)
        first = c(x, i)
        same(first, f(x, i))
        for _ in range(3):
            assert all(map(torch.equal, c(x, i), first))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes(mode):
    x = torch.randn(4)
    same(torch.compile(lambda x: x * 2 + 1, backend="dvm", mode=mode)(x), x * 2 + 1)


def test_wrong_mode_says_which_was_meant():
    from dvm.torch.backend import dvm as backend

    with pytest.raises(dvm.torch.OptionError, match="did you mean 'max-autotune'"):
        backend(None, [], mode="max-autotun")
    with pytest.raises(dvm.torch.OptionError, match="options and mode, not color"):
        backend(None, [], color=1)


def test_stance():
    f = compiled(lambda x: x * 2, fullgraph=False)
    with torch.compiler.set_stance("force_eager"):
        same(f(torch.ones(3)), torch.full((3,), 2.0))
    assert graphs() == []
    same(f(torch.ones(3)), torch.full((3,), 2.0))
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError):
        f(torch.ones(3, 4))


def test_graph_breaks_with_side_effects():
    seen = []

    def f(x):
        y = torch.relu(x) * 2
        seen.append(float(y.sum()))
        print(end="")
        return y + len(seen)

    x = torch.randn(5)
    same(torch.compile(f, backend="dvm")(x), torch.relu(x) * 2 + 1)
    assert len(seen) == 1 and len(graphs()) >= 2
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f)(x)


# ------------------------------------------------------------------------ the same code again


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(6, 6) / 3)
        self.norm = torch.nn.RMSNorm(6)

    def forward(self, x):
        return x + F.silu(self.norm(x) @ self.w)


def test_layers_compiled_one_by_one_share_a_graph():
    layers = [Layer() for _ in range(4)]
    for layer in layers:
        layer.compile(backend="dvm")
    x = want = torch.randn(3, 6, requires_grad=True)
    for layer in layers:
        x, want = layer(x), layer.forward(want)
    same(x, want)
    assert len([g for g in graphs() if g.kind == "forward"]) == 1


def test_kernels_of_equal_text_are_built_once():
    """Two functions with the same graph, and the same function after a reset."""
    from dvm.torch import backend

    def f(x):
        return (torch.relu(x * 3) @ x).sum(0)

    def g(y):
        return (torch.relu(y * 3) @ y).sum(0)

    x = torch.randn(5, 5)
    same(compiled(f)(x), f(x))
    before = backend.kernels_built()
    same(compiled(g)(x), f(x))
    torch._dynamo.reset()
    same(compiled(f)(x), f(x))
    assert backend.kernels_built() == before


# ------------------------------------------------------------------- threads and interruptions


def test_threads_compile_at_once():
    def work(i):
        try:
            f = torch.compile(lambda x: torch.relu(x * (i + 2)) @ x + i, backend="dvm")
            x = torch.randn(4, 4)
            for _ in range(3):
                same(f(x), torch.relu(x * (i + 2)) @ x + i)
        except BaseException as error:
            bad.append(error)

    bad = []
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


INTERRUPTED = """
    import os, signal, torch
    import dvm.torch
    from dvm.torch import backend

    build = backend.build

    def interrupted(*args, **kw):
        backend.build = build
        os.kill(os.getpid(), signal.SIGINT)
        return build(*args, **kw)

    backend.build = interrupted
    f = torch.compile(lambda x: torch.relu(x * 2) @ x, backend="dvm")
    x = torch.randn(4, 4)
    try:
        f(x)
        print("not interrupted")
    except KeyboardInterrupt:
        torch.testing.assert_close(f(x), torch.relu(x * 2) @ x)
        print("as before")
"""


def test_ctrl_c_while_compiling():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        capture_output=True, text=True, timeout=240,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert done.stdout.strip() == "as before", done.stderr[-2000:]


# ------------------------------------------------------- without the wrapper of AOTAutograd


def test_wrong_number_of_arguments_is_said():
    low = dvm.torch.testing.lowered(lambda x: x * 2, torch.ones(3))
    program = low._call.__globals__["run"].__self__
    assert (program.call(torch.ones(3))[0] == 2).all()
    with pytest.raises(dvm.ArgumentError, match="list of 1 arguments"):
        program.call()


def test_a_value_and_itself_without_gradient():
    """detach is nothing in a graph, but the results are two tensors, one without a gradient."""

    def f(x):
        y = x * 2
        z = torch.relu(y)
        return y, y.detach(), z, z.detach(), x.detach()

    x = torch.randn(4, requires_grad=True)
    outs = compiled(f)(x)
    assert [o.requires_grad for o in outs] == [True, False, True, False, False]
    for got, want in zip(outs, f(x), strict=True):
        same(got, want)
    (outs[0].sum() + outs[2].sum()).backward()
    same(x.grad, 2.0 + 2.0 * (x > 0))
    with torch.no_grad():
        y, d, *_ = compiled(f)(x)
        d.add_(1)
    same(y, d)


def test_a_saved_result_that_is_changed_is_refused():
    """The result of relu is what its backward reads; eager code sees the change by its version."""
    x = torch.randn(4, requires_grad=True)
    y = compiled(lambda x: torch.relu(x) * 1)(x)
    assert y.grad_fn is not None
    y = compiled(torch.relu)(x)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
