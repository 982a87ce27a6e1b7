"""Boxes and arrows as SVG: rows by depth, arrows from the bottom of a box to the top of another."""

from __future__ import annotations

import html
from dataclasses import dataclass

BOX_W, BOX_H, GAP_X, GAP_Y, PAD = 128, 26, 14, 30, 8
MOST = 1500  # boxes of a picture that a browser still shows at once
COLOURS = 8

STYLE = """
svg { display: block }
svg text { font: 11px ui-monospace, monospace; text-anchor: middle; fill: #1b2430 }
svg rect { stroke: #52606f }
svg path { fill: none; stroke: #8795a5; stroke-width: 1.2 }
svg .torch { fill: #f3cfc0; stroke-dasharray: 4 3 }
svg .view { fill: #eceff3 }
svg .k0 { fill: #cfe3f7 } svg .k1 { fill: #d5efd0 } svg .k2 { fill: #f6e7b4 }
svg .k3 { fill: #e3d6f5 } svg .k4 { fill: #c9eeee } svg .k5 { fill: #f5d3e4 }
svg .k6 { fill: #dfe6b8 } svg .k7 { fill: #d9dbe8 }
"""


@dataclass
class Box:
    """`reads` names boxes that stand before it; `look` is a class of STYLE."""

    name: str
    label: str
    title: str  # all that a box is too small for
    reads: list[str]
    look: str


def draw(boxes: list[Box], title: str) -> str:
    """An SVG picture that scrolls in its frame; `title` is for those who do not see it."""
    if not boxes:
        return "<p class='note'>Nothing.</p>"
    if len(boxes) > MOST:
        return f"<p class='note'>{len(boxes)} boxes are too many for a picture.</p>"
    place = _layout(boxes)
    width = max(x for x, _ in place.values()) + BOX_W + 2 * PAD
    height = max(y for _, y in place.values()) + BOX_H + 2 * PAD
    shapes = []
    for b in boxes:
        x, y = place[b.name]
        for source in b.reads:
            sx, sy = place[source]
            x0, y0, x1, y1 = sx + BOX_W / 2, sy + BOX_H, x + BOX_W / 2, y
            bend = (y1 - y0) / 2
            shapes.append(f'<path d="M{x0},{y0} C{x0},{y0 + bend} {x1},{y1 - bend} {x1},{y1}"/>')
    for b in boxes:
        x, y = place[b.name]
        label = b.label if len(b.label) < 19 else b.label[:17] + "…"
        shapes.append(
            f'<g><title>{html.escape(b.title)}</title><rect class="{b.look}" x="{x}" y="{y}"'
            f' width="{BOX_W}" height="{BOX_H}" rx="5"/><text x="{x + BOX_W / 2}"'
            f' y="{y + BOX_H / 2 + 4}">{html.escape(label)}</text></g>'
        )
    return (
        f'<div class="wide"><svg viewBox="{-PAD} {-PAD} {width} {height}" width="{width}"'
        f' height="{height}" role="img" aria-label="{html.escape(title, quote=True)}">'
        + "".join(shapes)
        + "</svg></div>"
    )


def _layout(boxes: list[Box]) -> dict[str, tuple[int, int]]:
    depth: dict[str, int] = {}
    filled: dict[int, int] = {}
    place = {}
    for b in boxes:
        d = depth[b.name] = max((depth[r] + 1 for r in b.reads), default=0)
        column = filled[d] = filled.get(d, -1) + 1
        place[b.name] = (column * (BOX_W + GAP_X), d * (BOX_H + GAP_Y))
    return place
