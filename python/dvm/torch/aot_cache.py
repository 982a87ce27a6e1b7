"""Compiled graphs in torch's cache of AOTAutograd's results: a later process that meets a graph
again neither traces it through autograd nor partitions and lowers it.

torch keeps the entries in its own folder (TORCHINDUCTOR_CACHE_DIR), finds them by a hash of
Dynamo's graph, and checks the guards of sizes. What a compiler made is pickled with its entry, so
the folder must be trusted as always with torch; DVM's part is data, the text of cache.py with its
checksum.

Used with option `cache`, unless torch's cache is switched off (TORCHINDUCTOR_AUTOGRAD_CACHE=0). The
modules of torch imported here are Inductor's: they take a moment, which is why nothing else imports
this file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import (
    BypassAOTAutogradCache,
    should_use_local_autograd_cache,
)
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch.fx import GraphModule

from . import cache, stats
from .backend import RefusedError, restore
from .codegen import Program
from .direct import one_by_one, vmap_level
from .options import Options


def is_on() -> bool:
    """Whether torch keeps results, in the form that holds what other compilers made."""
    patched = "bundled_autograd_cache", "force_non_lazy_backward_lowering"
    return should_use_local_autograd_cache() and all(hasattr(config, name) for name in patched)


@contextlib.contextmanager
def keyed(options: Options) -> Iterator[None]:
    """What AOTAutograd does inside goes by this version of DVM and these options."""
    known = torch.compiler.config.cache_key_tag
    tag = f"{known} dvm {cache.versions()} {options} {torch.get_default_dtype()}"
    # The backward graph is compiled at once: an entry holds both.
    with (
        config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
        torch.compiler.config.patch(cache_key_tag=tag),
    ):
        yield


def serializable(compiler: Callable) -> SerializableAOTDispatchCompiler:
    """A compiler as AOTAutograd must see it to keep its results."""
    return SerializableAOTDispatchCompiler(OutputCode, compiler)


def kept(compile_: Callable, kind: str) -> Callable[[GraphModule, Sequence[Any]], Artifact]:
    """compile_graph whose results AOTAutograd can keep."""

    def compiled(gm: GraphModule, inputs: Sequence[Any]) -> Artifact:
        entries: list[bytes | None] = []

        def keep(name: str, program: Program) -> None:
            entry = cache.packed(program)
            entries.append(entry and cache.sealed({"name": name, "kind": kind, "program": entry}))

        return Artifact(compile_(gm, inputs, keep=keep), entries[0], kind)

    return compiled


class Artifact(OutputCode):
    """A compiled graph as AOTAutograd keeps it; `entry` is None when it is more than text."""

    def __init__(self, call: Callable, entry: bytes | None, kind: str) -> None:
        self.call: Callable | None = call
        self._entry = entry
        self._in_batches = kind == "backward"  # may be asked for gradients in a batch
        self._boxed_call = True  # of the object: what wraps it copies only these

    def __call__(self, inputs: Sequence[Any]) -> Any:
        if self._in_batches and vmap_level():
            return one_by_one(self.call, inputs)
        return self.call(inputs)

    def prepare_for_serialization(self) -> None:
        """Called of a copy."""
        if self._entry is None:
            raise BypassAOTAutogradCache("the compiled graph holds values that have no text")
        self.call = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        if self.call is not None:
            return
        try:
            entry = cache.opened(self._entry or b"")
            program = cache.restored(entry["program"], None)
            self.call = restore(program, str(entry["name"]), str(entry["kind"]))
        except (*cache.WRONG, RefusedError) as error:
            stats.count_damaged("an entry of AOTAutograd's cache", error)
            raise BypassAOTAutogradCache(f"DVM's part of the entry: {error}") from error

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""
