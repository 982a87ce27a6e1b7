"""The demo as one self-contained HTML page."""

from __future__ import annotations

import html

import demo_svg
from demo_cases import Result

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem;
       padding: 0 1rem; color: #1b2430; background: #fff }
h1 { font-size: 1.6rem }
h2 { font-size: 1.2rem; margin-top: 2.6rem; border-bottom: 1px solid #d8dee6 }
h3 { font-size: 1rem; margin-bottom: .3rem }
pre { background: #f5f7fa; border: 1px solid #e1e6ec; border-radius: 6px; padding: .8rem;
      overflow-x: auto; font-size: 12.5px; line-height: 1.4 }
table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .25rem .9rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums }
th { font-weight: 600; color: #52606f }
td:first-child, th:first-child { text-align: left }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem }
.pair > div { flex: 1 1 24rem; overflow-x: auto }
.good { color: #156d34; font-weight: 600 }
.bad { color: #a61b1b; font-weight: 600 }
.note { color: #52606f }
summary { cursor: pointer; color: #24518a }
svg { display: block }
svg text { font: 12px ui-monospace, monospace; text-anchor: middle; fill: #1b2430 }
svg rect.load { fill: #eef2f7; stroke: #9aa9ba }
svg rect.store { fill: #e4f1e7; stroke: #6fa37e }
svg rect.op { fill: #fff; stroke: #6f8fb8 }
svg rect.kernel { fill: #f2f7fd; stroke: #24518a; stroke-width: 1.6 }
svg path { fill: none }
svg path.memory { stroke: #a2572a; stroke-width: 1.8 }
svg path.register { stroke: #5f7fa8; stroke-width: 1.4; stroke-dasharray: 2 3 }
svg marker path { fill: #6f7f90 }
"""


def page(results: list[Result], machine: str, verdict: str, ok: bool) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>DVM demo</title><style>{STYLE}</style></head><body>",
        "<h1>DVM: torch.compile(f, backend=&quot;dvm&quot;)</h1>",
        f"<p class='note'>{html.escape(machine)}</p>",
        f"<p class='{'good' if ok else 'bad'}'>{html.escape(verdict)}</p>",
        "<p>Later calls include torch's guards and wrappers around a compiled function, which do"
        " not depend on the backend; DVM alone is the generated call without them.</p>"
        "<p>In the pictures, brown arrows are trips through memory. Run one operation at a time,"
        " every arrow is such a trip; inside a kernel values stay in registers.</p>",
    ]
    for r in results:
        parts += _section(r)
    return "".join(parts) + "</body></html>\n"


def _section(r: Result) -> list[str]:
    s = r.stats
    return [
        f"<h2>{html.escape(r.case.title)}</h2>",
        f"<pre>f = {html.escape(r.case.code)}\ntorch.compile(f, backend=&quot;dvm&quot;,"
        f" dynamic={r.case.dynamic})</pre>",
        _calls(r),
        _compile(r),
        "<div class='pair'><div><h3>One operation at a time</h3>",
        f"<p class='note'>{size(s['bytes_unfused'])} moved</p>",
        demo_svg.draw(r.source, False),
        "</div><div><h3>As DVM runs it</h3>",
        f"<p class='note'>{size(s['bytes_moved'])} moved, "
        f"{size(s['bytes_minimum'])} would be the least possible</p>",
        demo_svg.draw(r.source, True),
        "</div></div>",
        f"<h3>The generated kernel, as it ran</h3><pre>{html.escape(r.source)}</pre>",
        f"<details><summary>Its instructions ({s['instructions']})</summary>",
        f"<pre>{html.escape(r.listing)}</pre></details>",
    ]


def _calls(r: Result) -> str:
    rows = [
        "<tr><th>rows</th><th>first call</th><th>later calls</th><th>DVM alone</th>"
        "<th>eager</th><th>max |dvm - eager|</th><th>dvm against fp64</th>"
        "<th>eager against fp64</th><th></th>"
        "</tr>"
    ]
    for c in r.calls:
        mark = "<span class='good'>agrees</span>" if c.ok else "<span class='bad'>differs</span>"
        rows.append(
            f"<tr><td>{c.size}</td><td>{c.seconds * 1e3:.2f} ms</td><td>{c.compiled_us:.1f} µs</td>"
            f"<td>{c.dvm_us:.1f} µs</td>"
            f"<td>{c.eager_us:.1f} µs</td><td>{c.eager_difference:.2g}</td>"
            f"<td>{c.compiled_error:.2g}</td><td>{c.eager_error:.2g}</td><td>{mark}</td></tr>"
        )
    return "<table>" + "".join(rows) + "</table>"


def _compile(r: Result) -> str:
    plural = "sizes" if len(r.calls) > 1 else "size"
    return (
        f"<p>{r.graphs} compiled artefact and {r.kernels} kernel for {len(r.calls)} {plural};"
        f" {len(r.fallbacks)} operations left to torch. First call: {r.trace_s * 1e3:.0f} ms"
        f" tracing and {r.aot_s * 1e3:.0f} ms autograd in torch, <b>{r.dvm_s * 1e3:.2f} ms</b> in"
        f" DVM, of which the engine took <b>{r.stats['compile_ns'] / 1e3:.0f} µs</b> from graph to"
        " verified bytecode.</p>"
    )


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB"):
        if n < 1024 or unit == "MB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError
