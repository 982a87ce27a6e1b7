"""Where a function of scores reads a captured tensor out of range, in the words of who wrote it.

The kernel only knows that some gather failed, of an index already turned into a distance. So the
graphs of score_mod and mask_mod are run once more, in torch, over all places that were computed:
rows as a column, keys as a row, captured tensors as they are. The first index out of range is told
with its tensor, axis, size, place and line. Only after such an error; what cannot be run so (an
index that depends on a score, for one) leaves the error in general words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from dvm import OutOfRangeError

_CHUNK = 1 << 22  # places at a time


class _Found(Exception):
    pass


class _Watch(Interpreter):
    """Runs a function of scores; raises _Found with the words for the first index out of range at a
    place that counts."""

    def __init__(self, graph: GraphModule, name: str, first: int):
        super().__init__(graph)
        self.name = name
        self.captured = graph.graph.find_nodes(op="placeholder")[first:]
        self.seen: Tensor
        self.place: tuple[int, int, int]

    def run_node(self, n: Node) -> Any:
        if n.op == "call_function" and n.target is torch.ops.aten.index.Tensor:
            source, places = self.fetch_args_kwargs_from_env(n)[0]
            for axis, index in enumerate(places):
                if isinstance(index, Tensor) and index.dtype != torch.bool:
                    self._ask(n, source, axis, index)
            places = [
                i if i is None else i.clamp(-source.shape[a], source.shape[a] - 1)
                for a, i in enumerate(places)
            ]
            return source[tuple(slice(None) if i is None else i for i in places)]
        return super().run_node(n)

    def _ask(self, n: Node, source: Tensor, axis: int, index: Tensor) -> None:
        size = source.shape[axis]
        bad = ((index < -size) | (index >= size)) & self.seen
        if not bad.any():
            return
        q, kv = divmod(int(bad.reshape(-1).to(torch.uint8).argmax()), bad.shape[-1])
        value = int(index.expand(bad.shape)[q, kv])
        b, h, q0 = self.place
        base = n.args[0]
        at = self.captured.index(base) if base in self.captured else None
        which = "a captured tensor" if at is None else f"captured tensor {at}"
        shape = ", ".join(str(s) for s in source.shape)
        raise _Found(
            f"flex_attention: {self.name} reads {which}, {str(source.dtype).removeprefix('torch.')}"
            f" [{shape}], out of range: index {value} is out of bounds for dimension {axis} with"
            f" size {size}, at b={b}, h={h}, q_idx={q0 + q}, kv_idx={kv}{_line(n)}"
        )


def _line(node: Node) -> str:
    """File, line and text of the innermost frame that is not torch's."""
    frames = re.findall(
        r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', node.meta.get("stack_trace") or ""
    )
    ours = [f for f in frames if "/torch/" not in f[0].replace("\\", "/")]
    if not ours:
        return ""
    file, line, function, text = ours[-1]
    return f" ({file}:{line}, in {function}: {text.strip()})"


def _states(lists: Sequence[Any], sizes: Sequence[int], rows: int, keys: int) -> Any:
    """A function of (b, h): which places are computed through a mask, and which without."""

    def state(num: Tensor | None, index: Tensor | None, b: int, h: int) -> Tensor:
        blocks = torch.zeros(-(-rows // sizes[0]), -(-keys // sizes[1]), dtype=torch.bool)
        if num is not None and index is not None:
            num, index = (x[min(b, x.shape[0] - 1), min(h, x.shape[1] - 1)] for x in (num, index))
            for r in range(blocks.shape[0]):
                blocks[r, index[r, : int(num[r])].long()] = True
        return blocks

    return lambda b, h: (state(*lists[0:2], b, h), state(*lists[2:4], b, h))


def _chunks(
    shape: Sequence[int], keys: int, lists: Sequence[Any], sizes: Sequence[int]
) -> Iterator[tuple[int, int, int, int, Tensor, Tensor]]:
    """(b, h, first row, rows, computed through the mask, computed at all)."""
    batch, heads, rows = shape[:3]
    states = _states(lists, sizes, rows, keys)
    step = max(1, _CHUNK // max(keys, 1))
    for b in range(batch):
        for h in range(heads):
            part, full = states(b, h)
            for q0 in range(0, rows, step):
                n = min(step, rows - q0)
                at = torch.arange(q0, q0 + n) // sizes[0]
                kv = torch.arange(keys) // sizes[1]
                yield b, h, q0, n, part[at][:, kv], (part | full)[at][:, kv]


def located(
    error: OutOfRangeError,
    graphs: tuple[GraphModule, GraphModule],
    captured: tuple[Sequence[Any], Sequence[Any]],
    shape: Sequence[int],
    keys: int,
    lists: Sequence[Any],
    sizes: Sequence[int],
) -> OutOfRangeError:
    """The error in the user's words. graphs: score_mod and mask_mod, captured: what each takes;
    lists: numbers and indices of blocks in part, and of full ones; sizes: rows and keys of one."""
    general = OutOfRangeError(
        "flex_attention: score_mod or mask_mod reads a captured tensor out of range"
        f" ({str(error).rpartition(': ')[2]})"
    )
    score = _Watch(graphs[0], "score_mod", 5)
    mask = _Watch(graphs[1], "mask_mod", 4)
    number = lambda n: torch.tensor(n, dtype=torch.int32)
    try:
        for b, h, q0, n, part, seen in _chunks(shape, keys, lists, sizes):
            q = torch.arange(q0, q0 + n, dtype=torch.int32)[:, None]
            place = (number(b), number(h), q, torch.arange(keys, dtype=torch.int32)[None])
            score.place = mask.place = b, h, q0
            score.seen, mask.seen = seen, part
            score.run(torch.zeros(n, keys), *place, *captured[0])
            mask.run(*place, *captured[1])
    except _Found as found:
        return OutOfRangeError(str(found))
    except Exception:
        return general
    return general
