"""Lowering without Dynamo: a function of tensors to kernels, for tests and experiments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from . import decomp
from .backend import build
from .options import Options


class NoGraphError(Exception):
    """torch cannot trace it: the function reads values, or the shape of a result depends on them.
    Dynamo would not put it into a graph.
    """


_UNTRACED = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedOperatorException,
)


class Lowered:
    """A traced and compiled function. Calling it returns what the function returns.

    program    the generated text in parts (codegen.Program)
    fallbacks  (op, reason) -> count of nodes left to torch
    """

    def __init__(self, f: Callable, args: tuple, options: Options, dynamic: bool):
        from torch.fx.experimental.proxy_tensor import make_fx

        def flat(*leaves: Any) -> list[Any]:
            out, self._spec = pytree.tree_flatten(f(*leaves))
            return out

        table = dict(decomp.table())
        del table[torch.ops.aten.detach.default]  # f may take gradients: they stop at a detach
        trace = make_fx(
            flat,
            decomposition_table=table,
            tracing_mode="symbolic" if dynamic else "fake",
            _allow_non_fake_inputs=True,
        )
        with torch.no_grad():
            try:
                self.module = trace(*args)
            except _UNTRACED as error:
                raise NoGraphError(str(error)) from error
        self.module.graph.eliminate_dead_code()
        self.program, self._call = build(self.module, "lowered", options)
        self.fallbacks: Counter = self.program.fallbacks

    def __call__(self, *args: Any) -> Any:
        return pytree.tree_unflatten(list(self._call(list(args))), self._spec)

    @property
    def source(self) -> str:
        return self.program.source()


def lowered(f: Callable, *args: Any, dynamic: bool = False, **options: Any) -> Lowered:
    """Compiles f for arguments like these; options as in `Options`. Raises NoGraphError."""
    return Lowered(f, args, Options(**options), dynamic)
