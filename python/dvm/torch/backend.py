"""The torch.compile backend: `torch.compile(f, backend="dvm")`.

    compile call -> options -> AOTAutograd -> compile_graph for each ATen graph
    compile_graph: partition (fx.py rows) -> codegen -> exec -> call(args)

`dvm` is the object that the entry point names. It is one stable object, so that torch compares it
and its options by value when it decides whether to compile again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import _dvm
import torch
from torch.fx import GraphModule, Node

from . import cache, debug, decomp, direct, recompute, stats
from .codegen import HEADER, Program, generate
from .flex import Call, allow_gradients
from .kernel_text import AnyKernel
from .options import OptionError, Options, parse_options
from .parts import put_together
from .reference_text import Reference
from .rows_attn import take_attention

# Rows register themselves.
from . import rows_index, rows_matmul, rows_nn, rows_point, rows_reduce, rows_scatter  # isort: skip  # noqa: F401

allow_gradients()

_serial = itertools.count()

# Called with the record and the program of every graph that is compiled.
watchers: list[Callable[[stats.GraphRecord, Program], None]] = []


class Backend:
    """Callable by torch.compile; see Options for what `options` may hold."""

    __name__ = "dvm"

    def __call__(
        self,
        gm: GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: dict | None = None,
        mode: str | None = None,
        **unknown: Any,
    ) -> Callable:
        if unknown:
            raise OptionError(f"backend dvm takes options and mode, not {', '.join(unknown)}")
        chosen = parse_options(options, mode)
        begun, inside = time.perf_counter(), stats.dvm_seconds()
        try:
            return _autograd(gm, example_inputs, chosen)
        finally:
            spent = time.perf_counter() - begun - (stats.dvm_seconds() - inside)
            stats.add_aot(spent, _compile_id())

    def reset(self) -> None:
        """Called by torch._dynamo.reset(): forgets the run summary, frees idle memory."""
        stats.reset()
        _dvm.release_arenas()

    def __repr__(self) -> str:
        return "<torch.compile backend dvm>"


dvm = Backend()


def _autograd(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Callable:
    """Through AOTAutograd to compile_graph, once or for forward and backward.

    This is what torch._dynamo.backends.common.aot_autograd does, without its import of Inductor
    (75 ms of a first call) and without its wrapper around the result (1.5 us of every call):
    Dynamo has one of its own.
    """
    from functorch.compile import aot_module_simplified
    from torch._dynamo import disable
    from torch._dynamo.utils import counters, flatten_graph_inputs

    if any(isinstance(x, (list, tuple, dict)) for x in example_inputs):
        return flatten_graph_inputs(
            gm, example_inputs, functools.partial(_autograd, options=options)
        )

    inference: list[direct.Half] = []
    training = direct.Training()
    torchs_cache = _torchs_cache(options)

    def compiler(kind: str) -> Callable:
        compile_ = functools.partial(compile_graph, kind=kind, options=options)
        return torchs_cache.kept(compile_, kind) if torchs_cache else compile_

    def infer(graph: GraphModule, inputs: Sequence[Any]) -> Callable:
        call = compiler("inference")(graph, inputs)
        inference.append(direct.Half.of(graph, call))
        return call

    def forward(graph: GraphModule, inputs: Sequence[Any]) -> Callable:
        call = compiler("forward")(graph, inputs)
        training.forward = direct.Half.of(graph, call)
        return call

    def backward(graph: GraphModule, inputs: Sequence[Any]) -> Callable:
        call = disable(compiler("backward"), reason="backend dvm")(graph, inputs)
        training.backward = direct.Half.of(graph, call)
        if not torchs_cache:  # which keeps what it is given
            call = direct.in_batches(call)
        return disable(call, reason="generated code")

    compilers = {
        "fw_compiler": forward,
        "bw_compiler": backward,
        "inference_compiler": infer,
    }
    counters["aot_autograd"]["total"] += 1
    with contextlib.ExitStack() as settings:
        if torchs_cache:
            settings.enter_context(torchs_cache.keyed(options))
            compilers = {name: torchs_cache.serializable(c) for name, c in compilers.items()}
        wrapped = aot_module_simplified(
            take_attention(gm, options),
            example_inputs,
            **compilers,
            partition_fn=functools.partial(recompute.partition, disabled=options.disable_ops),
            decompositions=decomp.table(options.disable_ops),
            keep_inference_input_mutations=True,
        )
    if next(iter((*gm.parameters(), *gm.buffers())), None) is not None:
        return wrapped  # they are arguments of the graph, and the wrapper's
    if len(inference) == 1:
        return direct.inference(inference[0], example_inputs) or wrapped
    return training.callable(wrapped, example_inputs)


def _torchs_cache(options: Options) -> Any:
    """The module that keeps results of AOTAutograd; None when that is not wanted, switched off, or
    not what the installed torch has."""
    if not options.cache:
        return None
    try:
        from . import aot_cache
    except (AttributeError, ImportError) as error:
        stats.log.info("results of AOTAutograd are not kept: %s", error)
        return None
    return aot_cache if aot_cache.is_on() else None


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    kind: str,
    options: Options,
    keep: Callable[[str, Program], None] | None = None,
) -> Callable:
    """Compiles one ATen graph into a function of a list of arguments, which it empties. `keep` is
    given the name and the program."""
    begun = time.perf_counter()
    name = _graph_name(kind)
    rescued: Counter = Counter()
    program, call = build(gm, name, options, rescued)
    call._boxed_call = True
    folder, path = debug.folder_for(options.debug_dir, name), ""
    if folder is not None:
        path = debug.write(folder, gm, program)
        stats.log.info("%s: %s", name, path)
    if keep is not None:
        keep(name, program)
    _record(name, kind, program, call, rescued, begun, path)
    return call


def restore(program: Program, name: str, kind: str) -> Callable:
    """A program from torch's cache as `compile_graph` returns it."""
    begun = time.perf_counter()
    rescued: Counter = Counter()
    call = _loaded(program, name, {}, rescued)
    call._boxed_call = True
    stats.count_cache(True, True)
    _record(name, kind, program, call, rescued, begun)
    return call


def _record(
    name: str,
    kind: str,
    program: Program,
    call: Callable,
    rescued: Counter,
    begun: float,
    path: str = "",
) -> None:
    _trace(name, program)
    record = stats.GraphRecord(
        name,
        kind,
        kernels=len(program.kernels),
        fused=program.fused,
        attention=program.attention,
        products=program.products,
        fallbacks=program.fallbacks,
        rescued=rescued,
        dynamic=any(k.dynamic for k in program.kernels),
        source=program.source(),
        path=path,
        programs=_programs(call),
        functions=WeakValueDictionary({k.name: call.__globals__[k.name] for k in program.kernels}),
    )
    record.dvm_seconds = time.perf_counter() - begun
    stats.record(record)
    for watch in watchers:
        watch(record, program)


def _programs(call: Callable) -> Callable[[], list[Any]]:
    ref = weakref.ref(call)

    def programs() -> list[Any]:
        names = getattr(ref(), "__globals__", {})
        return [r.__self__ for n, r in names.items() if n.endswith("run") and n != "unboxed"]

    return programs


def build(
    gm: GraphModule, name: str, options: Options, rescued: Counter | None = None
) -> tuple[Program, Callable]:
    """Lowers and loads; regions that the engine refuses are left to torch, node by node.

    `rescued` counts kernels that torch had to run later, for arguments the engine refused.
    """
    rescued = Counter() if rescued is None else rescued
    refused: dict[Node, str] = {}
    put_together(gm.graph, options.disable_ops)
    name_on_disk = cache.key(gm, options) if options.cache else None
    known = cache.load(name_on_disk, gm) if name_on_disk else None
    while True:
        program = known or generate(gm, options, refused)
        namespace = dict(program.constants)
        if options.check:
            for k in program.kernels:
                namespace[k.name + "_check"] = Reference.of(k.reference)
        try:
            call = _loaded(program, name, namespace, rescued)
        except RefusedError as refusal:
            if known is not None:
                known = None  # lower it after all
                continue
            kernel, error = refusal.args
            stats.log.warning("%s: the engine refuses %s: %s", name, kernel.name, error)
            refused.update(dict.fromkeys(kernel.fused, f"engine: {error}"))
            continue
        stats.count_cache(name_on_disk is not None, known is not None)
        if name_on_disk and known is None and not refused:
            cache.save(name_on_disk, program)
        return program, call


class RefusedError(Exception):
    """The engine does not build a kernel: the kernel and the engine's error."""


def _loaded(program: Program, name: str, namespace: dict, rescued: Counter) -> Callable:
    """The call function of a program, whose globals are the namespace."""
    import dvm

    from .runtime import Rescue

    line = _execute(program.header, 0, name, namespace)
    for k in program.kernels:
        try:
            line = _load(k, line, name, namespace)
        except dvm.Error as error:
            raise RefusedError(k, error) from error
    for text in program.calls:
        line = _execute(text, line, name, namespace)
    for k in program.kernels:
        rescue = Rescue(k.name, Reference.of(k.reference), k.results, k.in_place, rescued)
        namespace[k.name].run.__self__.set_rescue(rescue)
    for c in program.constants.values():
        if isinstance(c, Call):
            c.rescued = rescued
    return namespace["call"]


# Kernels by their text, the newest last: equal layers and graphs compiled again build nothing.
KEPT_KERNELS = 512
_kernels: OrderedDict[tuple[str, bool], Any] = OrderedDict()
_kernels_lock = threading.Lock()
_built = 0


def kernels_built() -> int:
    """Kernel objects built so far in this process."""
    return _built


def _load(kernel: AnyKernel, line: int, name: str, namespace: dict) -> int:
    """The kernel in the namespace: one of the same text, or a new one.

    Returns the line behind it.
    """
    global _built
    key = (kernel.source, kernel.in_place)
    with _kernels_lock:
        known = _kernels.get(key)
        if known is not None:
            _kernels.move_to_end(key)
    if known is not None:
        namespace[kernel.name] = known
        return line + kernel.source.count("\n") + 2
    # In globals of its own: the kernel outlives the program, whose constants are in the namespace.
    own: dict[str, Any] = {}
    _execute(HEADER, 0, name, own)
    line = _execute(kernel.source, line, name, own)
    known = namespace[kernel.name] = own.pop(kernel.name)
    with _kernels_lock:
        _built += 1
        _kernels[key] = known
        while len(_kernels) > KEPT_KERNELS:
            _kernels.popitem(last=False)
    return line


def _execute(text: str, line: int, name: str, namespace: dict) -> int:
    """Runs a part of the program's text that begins behind `line`; returns the line behind it."""
    exec(compile("\n" * line + text, f"<dvm {name}>", "exec"), namespace)
    return line + text.count("\n") + 2


def _graph_name(kind: str) -> str:
    """torch's own name of the graph: model__0_forward_1."""
    try:
        from torch._functorch.aot_autograd import get_aot_graph_name

        return get_aot_graph_name()
    except Exception:
        return f"model__{next(_serial)}_{kind}"


def _compile_id() -> str | None:
    current = torch._guards.CompileContext.current_compile_id()
    return None if current is None else str(current)


def _trace(name: str, program: Program) -> None:
    """The program in torch's structured trace (TORCH_TRACE, tlparse); free when that is off."""
    torch._logging.trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"dvm_{name}", "encoding": "string"},
        payload_fn=lambda: program.source(),
    )
