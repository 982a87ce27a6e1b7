"""Draws a kernel builder as a graph: every operation alone, or inside the kernel it became."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

BOX_W, BOX_H, GAP_X, GAP_Y, PAD = 116, 30, 18, 34, 16


class Node(NamedTuple):
    name: str
    label: str
    inputs: list[str]
    kind: str  # load, op, store


def read(source: str) -> list[Node]:
    """Nodes of a builder function's text, one for each line."""
    nodes: list[Node] = []
    known: set[str] = set()
    for line in source.splitlines():
        m = re.match(r"    (?:(\w+) = )?k\.(\w+)\((.*)\)$", line)
        if not m:
            continue
        name, op, args = m.groups()
        words = re.findall(r"\b[a-zA-Z_]\w*", args)
        inputs = [w for w in dict.fromkeys(words) if w in known]
        kind = "load" if op in ("load", "view_load", "scalar") else "op"
        if op == "store":
            kind, name = "store", f"out_{len(nodes)}"
        label = {"load": f"load {name}", "scalar": f"scalar {name}"}.get(op, op)
        nodes.append(Node(name, label, inputs, kind))
        known.add(name)
    return nodes


def draw(source: str, fused: bool, title: str) -> str:
    """An SVG picture; `title` is for those who do not see it. Solid arrows go through memory,
    dotted ones stay in registers.
    """
    nodes = read(source)
    place = _layout(nodes)
    kinds = {n.name: n.kind for n in nodes}
    width = max(x for x, _ in place.values()) + BOX_W + 2 * PAD + 30
    height = max(y for _, y in place.values()) + BOX_H + 2 * PAD
    parts = []
    inner = [place[n.name] for n in nodes if n.kind == "op"]
    if fused and inner:
        left, top = min(x for x, _ in inner), min(y for _, y in inner)
        right, bottom = max(x for x, _ in inner) + BOX_W, max(y for _, y in inner) + BOX_H
        parts.append(
            f'<rect class="kernel" x="{left}" y="{top}" width="{right - left + 2 * PAD + 30}"'
            f' height="{bottom - top + 2 * PAD}" rx="10"/>'
        )
    lanes = 0
    read_before: set[str] = set()
    for n in nodes:
        x, y = place[n.name]
        for source_name in n.inputs:
            sx, sy = place[source_name]
            inside = kinds[source_name] == "op" or source_name in read_before
            registers = fused and inside and n.kind == "op"
            read_before.add(source_name)
            far = y - sy > BOX_H + GAP_Y
            lanes += far
            path = _edge(sx, sy, x, y, (lanes - 1) % 4 if far else -1)
            parts.append(
                f'<path class="{"register" if registers else "memory"}" d="{path}"'
                ' marker-end="url(#arrow)"/>'
            )
    for n in nodes:
        x, y = place[n.name]
        parts.append(
            f'<rect class="{n.kind}" x="{x + PAD}" y="{y + PAD}" width="{BOX_W}" height="{BOX_H}"'
            f' rx="5"/><text x="{x + PAD + BOX_W / 2}" y="{y + PAD + BOX_H / 2 + 4}">'
            f"{html.escape(n.label[:16])}</text>"
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{html.escape(title, quote=True)}">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
        + "".join(parts)
        + "</svg>"
    )


def _edge(sx: float, sy: float, x: float, y: float, lane: int) -> str:
    """From the bottom of a box to the top of another; over several rows, around the boxes."""
    x0, y0 = sx + BOX_W / 2 + PAD, sy + BOX_H + PAD
    x1, y1 = x + BOX_W / 2 + PAD, y + PAD - 2
    if lane < 0:
        return f"M{x0},{y0} L{x1},{y1}"
    side = max(sx, x) + BOX_W + PAD + 8 + 7 * lane
    x0, x1 = x0 + BOX_W / 4, x1 + BOX_W / 4
    return (
        f"M{x0},{y0} C{x0},{y0 + 22} {side},{y0 + 8} {side},{y0 + 36}"
        f" L{side},{y1 - 30} C{side},{y1 - 8} {x1},{y1 - 22} {x1},{y1}"
    )


def _layout(nodes: list[Node]) -> dict[str, tuple[float, float]]:
    """Rows by depth; what comes from outside stands in the first row."""
    depth: dict[str, int] = {}
    for n in nodes:
        depth[n.name] = max((depth[i] + 1 for i in n.inputs), default=int(n.kind != "load"))
    rows: dict[int, list[str]] = {}
    for n in nodes:
        rows.setdefault(depth[n.name], []).append(n.name)
    place = {}
    for d, names in rows.items():
        for i, name in enumerate(names):
            place[name] = (i * (BOX_W + GAP_X), d * (BOX_H + GAP_Y))
    return place
