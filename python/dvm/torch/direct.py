"""Compiled graphs that are called without AOTAutograd's wrapper.

What AOTAutograd returns is a compiled graph in layers of Python that repair outputs which alias,
arguments that were changed and tensor subclasses, and switch gradients and autocast for the
operators of torch. They cost 3 us of a call, 100 us of a call with its backward. A graph that needs
none of it is called without:

    inference    the program itself
    training     one torch.autograd.Function of the two graphs, as soon as both are compiled

The names of torch's metadata differ between versions: whatever is unknown keeps the wrapper.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor, int, torch.SymInt)

# Results that are views of one tensor: autograd sees that tensor, and views of it are made behind.
PARTS = "alias_of_intermediate", "alias_of_intermediate_save_as_output"


class Half(NamedTuple):
    """One of the graphs that AOTAutograd made of Dynamo's, as compile_graph returned it."""

    call: Callable
    arguments: int
    results: int

    @staticmethod
    def of(graph: GraphModule, call: Callable) -> Half:
        arguments = len(graph.graph.find_nodes(op="placeholder"))
        return Half(call, arguments, len(graph.graph.output_node().args[0]))

    @property
    def program(self) -> Any:
        """The program behind the call function, None when it is of the Python form."""
        call = getattr(self.call, "call", self.call)  # of an Artifact
        run = getattr(call, "__globals__", {}).get("run")
        return None if run is None else run.__self__

    def of_arguments(self) -> Callable:
        """The graph as a function of arguments."""
        if self.program is not None:
            return self.program.call
        return lambda *args: self.call(list(args))

    def of_list(self) -> Callable:
        """The graph as a function of a list, which it empties."""
        return self.call if self.program is None else self.program.run


def metadata() -> Any:
    """What AOTAutograd found out about the graph that is being compiled."""
    return torch._guards.TracingContext.get().fw_metadata


def inference(half: Half, inputs: Sequence[Any]) -> Callable | None:
    """The graph of kernels alone, if its wrapper would do nothing.

    With inputs that require grad, while torch records, the results of operators would too.
    """
    program = half.program
    if program is None or program.stats()["calls"]:
        return None
    try:
        meta = metadata()
        recorded = torch.is_grad_enabled() and any(i.requires_grad for i in meta.input_info)
        if recorded or meta.dynamic_outputs or not _is_plain(half, inputs, meta, ("non_alias",)):
            return None
    except AttributeError:
        return None
    return program.call


def _is_plain(half: Half, inputs: Sequence[Any], meta: Any, kinds: Sequence[str]) -> bool:
    """Whether arguments are those of Dynamo's graph and results are new tensors or numbers."""
    return (
        all(type(x) in PLAIN for x in inputs)
        and half.arguments == len(inputs)
        and all(o.output_type.name in kinds for o in meta.output_info)
        and not any(i.mutates_data or i.mutates_metadata for i in meta.input_info)
        and meta.grad_enabled_mutation is None
        and not meta.tokens
        and all(type(o).__name__ == "PlainTensorMeta" for o in meta.subclass_fw_graph_out_meta)
    )


# --------------------------------------------------------------------------------------- training


class Training:
    """Forward and backward graph of one of Dynamo's, as AOTAutograd has them compiled."""

    def __init__(self) -> None:
        self.forward: Half | None = None
        self._backward: Half | None = None
        self._make: Callable[[Half, Half], Callable] | None = None
        self._call: Callable | None = None

    @property
    def backward(self) -> Half | None:
        return self._backward

    @backward.setter
    def backward(self, half: Half) -> None:
        self._backward = half
        self._switch()

    def callable(self, wrapped: Callable, inputs: Sequence[Any]) -> Callable:
        """What stands for `wrapped`: itself until there is a backward graph, which torch has
        compiled at its first use."""
        if self.forward is None:
            return wrapped
        try:
            self._make = _maker(self.forward, inputs, metadata())
        except (AttributeError, ImportError):
            return wrapped
        if self._make is None:
            return wrapped
        self._call = wrapped
        self._switch()
        return lambda *args: self._call(*args)

    def _switch(self) -> None:
        if self._make is None or self._backward is None:
            return
        make, self._make = self._make, None
        with contextlib.suppress(AttributeError, ImportError):  # of another torch
            self._call = make(self.forward, self._backward) or self._call


class Parts(NamedTuple):
    """Where things are among the results of a forward graph, and how the backward graph wants the
    gradients of results: behind sizes and tensors that were saved."""

    results: int  # with the tensors that some of them are views of, behind them
    outputs: int
    tensors: slice
    sizes: slice
    constant: list[int]  # results without gradient
    views: list[int]  # results that are views of tensors which nobody else has
    parts: list[
        tuple[int, Callable]
    ]  # results that are views of the same tensor, and what makes them
    dynamic: list[tuple[int, set[int]]]  # results, and their sizes that torch shall not fix
    gradients: list[tuple[int, Any]]  # results with a gradient, and its layout
    arguments: int
    autocast: bool
    deterministic: bool | None


def _maker(
    forward: Half, inputs: Sequence[Any], meta: Any
) -> Callable[[Half, Half], Callable | None] | None:
    """Builds the function of both graphs; None when the wrapper has something to do."""
    from torch._functorch._aot_autograd.runtime_wrappers import (
        _should_disable_saved_tensors_hooks,
        make_output_handler,
    )

    kinds = "non_alias", "unsafe_view_alias", *PARTS
    others = (
        meta.num_graphsafe_rng_states,
        meta.is_rng_op_functionalized,
        getattr(meta, "num_tensors_saved_with_no_vc_check", 0),
        getattr(meta, "num_opaque_objects_saved_for_bw", 0),
        getattr(meta, "num_backward_tokens", 0),
        meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw,
        torch._dynamo.config.compiled_autograd,
        _should_disable_saved_tensors_hooks(),
    )
    if not _is_plain(forward, inputs, meta, kinds) or any(others):
        return None
    tensor = [
        issubclass(o.raw_type, torch.Tensor) and o.output_type.name not in PARTS
        for o in meta.output_info
    ]
    differentiable = [
        is_tensor and getattr(o, "requires_grad_for_backward", o.requires_grad)
        for o, is_tensor in zip(meta.output_info, tensor, strict=True)
    ]
    layouts = [t.memory_format for t in meta.subclass_tangent_meta]
    outputs, results = meta.num_outputs, meta.num_outputs + meta.num_intermediate_bases
    with_gradient = [i for i, d in enumerate(differentiable) if d] + list(range(outputs, results))
    parts = Parts(
        results=results,
        outputs=outputs,
        tensors=meta.tensors_saved_for_backwards_slice,
        sizes=meta.symints_saved_for_backwards_slice,
        constant=[i for i, o in enumerate(meta.output_info) if tensor[i] and not o.requires_grad],
        views=[
            i for i, o in enumerate(meta.output_info) if o.output_type.name == "unsafe_view_alias"
        ],
        parts=[
            (i, make_output_handler(o, meta, True))
            for i, o in enumerate(meta.output_info)
            if o.output_type.name in PARTS
        ],
        dynamic=[(i, o.dynamic_dims) for i, o in enumerate(meta.output_info) if o.dynamic_dims],
        gradients=list(zip(with_gradient, layouts, strict=True)),
        arguments=len(inputs),
        autocast=torch._C._is_any_autocast_enabled(),
        deterministic=meta.deterministic,
    )
    saved = forward.results - meta.num_forward
    return lambda fw, bw: _function(fw, bw, parts) if _fits(bw, parts, saved) else None


def _fits(backward: Half, parts: Parts, saved: int) -> bool:
    wanted = saved + len(parts.gradients), parts.arguments
    return (backward.arguments, backward.results) == wanted


def _function(forward: Half, backward: Half, parts: Parts) -> Callable:
    from torch._dynamo import disable
    from torch._functorch._aot_autograd import runtime_wrappers as torchs

    laid_out = torchs.coerce_to_expected_memory_format
    fw, bw = forward.of_arguments(), backward.of_list()
    if parts.autocast:  # the graph has the casts; its operators shall not cast again
        fw, bw = _without_autocast(fw), _without_autocast(bw)

    def arguments_of_backward(ctx: Any, gradients: Sequence[Any]) -> list[Any]:
        known = [*ctx.sizes, *ctx.saved_tensors]
        for i, layout in parts.gradients:
            g = gradients[i]
            if type(g) is not torch.Tensor and isinstance(g, torch.Tensor):
                raise TypeError(
                    f"the gradient of result {i} is a {type(g).__name__}, and the graph was"
                    " compiled for a torch.Tensor: use result * 1 outside torch.compile"
                )
            known.append(laid_out(g, layout))
        return known

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            values = fw(*args)
            ctx.save_for_backward(
                *[t.detach() if t._is_view() else t for t in values[parts.tensors]]
            )
            ctx.sizes = values[parts.sizes]
            results = values[: parts.results]
            if parts.views:
                results = _as_tensors(results, parts.views)
            if parts.parts:  # hidden from autograd: made again from what they are views of
                hidden = list(results)
                for i, _ in parts.parts:
                    hidden[i] = torchs.TensorAlias(hidden[i])
                results = tuple(hidden)
            if parts.constant:
                ctx.mark_non_differentiable(*[results[i] for i in parts.constant])
            ctx._materialize_non_diff_grads = False
            return results

        @staticmethod
        @disable(reason="backend dvm")
        def backward(ctx: Any, *gradients: Any) -> Any:
            _check_mode(parts)
            run = _recorded if torch.is_grad_enabled() else bw
            if vmap_level():
                return one_by_one(lambda one: run(arguments_of_backward(ctx, one)), gradients)
            args = arguments_of_backward(ctx, gradients)
            ctx.maybe_clear_saved_tensors()
            return tuple(run(args))

    def _recorded(args: list[Any]) -> Any:
        return _Once.apply(bw, torch.empty(0, requires_grad=True), *args)

    if not parts.dynamic and not parts.parts:
        return Compiled.apply
    # The second is its name in torch 2.11.
    mark = getattr(torchs, "mark_dynamo_propagated_dynamic_indices", None)
    mark = mark or torchs.maybe_mark_dynamic_helper

    def call(*args: Any) -> tuple[Any, ...]:
        given = Compiled.apply(*args)
        results = list(given[: parts.outputs])
        for i, made in parts.parts:
            results[i] = made(args, given, given[i])
        for i, dims in parts.dynamic:
            mark(results[i], dims)
        return tuple(results)

    return call


def _as_tensors(results: Sequence[Any], views: Sequence[int]) -> tuple[Any, ...]:
    """Autograd shall not take these results for views: their bases are gone."""
    changed = list(results)
    for i in views:
        changed[i] = torch.ops.aten._unsafe_view(changed[i], changed[i].shape)
    return tuple(changed)


def _without_autocast(f: Callable) -> Callable:
    def call(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return f(*args)

    return call


def _check_mode(parts: Parts) -> None:
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(
            "the backward of a compiled function runs inside vmap, grad or vjp: put those inside"
            " torch.compile, or leave this function out of it"
        )
    if parts.deterministic is False and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(
            "torch.use_deterministic_algorithms(True) was set between forward and backward of a"
            " compiled function: set it before the forward"
        )


def vmap_level() -> int:
    """At least 1 where autograd computes gradients in a batch (is_grads_batched, vectorized
    jacobians). It has a vmap of its own for that, which is not the one of torch.func."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def in_batches(call: Callable) -> Callable:
    """A graph as a function of a list, of which some may be batches."""

    def run(args: list[Any]) -> Any:
        return one_by_one(call, args) if vmap_level() else call(args)

    run._boxed_call = True
    return run


def one_by_one(call: Callable, args: Sequence[Any]) -> Any:
    """The results for batches among the arguments, as batches: the graph has no dimension for
    them."""
    level, is_batch = vmap_level(), list(map(_is_batch, args))
    if not any(is_batch):
        return call(list(args))
    # The size is of tensors that are no batch.
    parts = [
        torch._remove_batch_dim(a, level, 1, 0).unbind() if b else a
        for a, b in zip(args, is_batch, strict=True)
    ]
    n = len(parts[is_batch.index(True)])
    each = [
        call([p[i] if b else p for p, b in zip(parts, is_batch, strict=True)]) for i in range(n)
    ]
    return tuple(
        None if r[0] is None else torch._add_batch_dim(torch.stack(r), 0, level)
        for r in zip(*each, strict=True)
    )


def _is_batch(a: Any) -> bool:
    """The key of such tensors has no name in Python but this."""
    return isinstance(a, torch.Tensor) and "Batched" in re.findall(
        r"\w+", torch._C._dispatch_key_set(a)
    )


class _Once(torch.autograd.Function):
    """The backward graph while torch records gradients of gradients, which there are not."""

    @staticmethod
    def forward(ctx: Any, bw: Callable, recorded: torch.Tensor, *args: Any) -> Any:
        return tuple(bw(list(args)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "torch.compile does not support double backward: a compiled function can be"
            " differentiated once; take gradients of gradients without torch.compile"
        )
