"""The demo as one self-contained HTML page."""

from __future__ import annotations

import html

import demo_svg
from demo_cases import Result

STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --paper: #fff; --quiet: #52606f; --line: #d8dee6;
        --code: #f5f7fa; --link: #24518a; --good: #156d34; --bad: #a61b1b; --load: #eef2f7;
        --store: #e4f1e7; --op: #fff; --kernel: #f2f7fd; --edge: #6f8fb8; --memory: #a2572a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dde4ec; --paper: #14181d; --quiet: #9aa7b5; --line: #333c47; --code: #1c222a;
          --link: #8ab4ee; --good: #6fcf8e; --bad: #ff8f8f; --load: #232b35; --store: #1f3326;
          --op: #14181d; --kernel: #1a2433; --edge: #6f8fb8; --memory: #e0935f }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem;
       padding: 0 1rem; color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem }
h2 { font-size: 1.2rem; margin-top: 2.6rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin-bottom: .3rem }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: .8rem;
      overflow-x: auto; font-size: 12.5px; line-height: 1.4 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .25rem .9rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums }
th { font-weight: 600; color: var(--quiet) }
td:first-child, th:first-child { text-align: left }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem }
.pair > div { flex: 1 1 24rem; overflow-x: auto }
.good { color: var(--good); font-weight: 600 }
.bad { color: var(--bad); font-weight: 600 }
.verdict { font-size: 1.1rem }
.note { color: var(--quiet) }
summary { cursor: pointer; color: var(--link) }
svg { display: block }
svg text { font: 12px ui-monospace, monospace; text-anchor: middle; fill: var(--ink) }
svg rect.load { fill: var(--load); stroke: var(--quiet) }
svg rect.store { fill: var(--store); stroke: var(--good) }
svg rect.op { fill: var(--op); stroke: var(--edge) }
svg rect.kernel { fill: var(--kernel); stroke: var(--link); stroke-width: 1.6 }
svg path { fill: none }
svg path.memory { stroke: var(--memory); stroke-width: 1.8 }
svg path.register { stroke: var(--edge); stroke-width: 1.4; stroke-dasharray: 2 3 }
svg marker path { fill: var(--quiet) }
"""


def page(results: list[Result], machine: str, verdict: str, ok: bool) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>DVM demo</title><style>{STYLE}</style></head><body>",
        "<h1>DVM: torch.compile(f, backend=&quot;dvm&quot;)</h1>",
        f"<p class='note'>{html.escape(machine)}</p>",
        f"<p class='verdict {'good' if ok else 'bad'}'>{html.escape(verdict)}</p>",
        "<p>Times are the shortest of many calls; later calls include torch's guards and wrappers"
        " around a compiled function, which do not depend on the backend, and DVM alone is the"
        " generated call without them. Errors are the largest distance from the same function in"
        " fp64, divided by the largest value; |DVM - eager| is the largest distance from eager, in"
        " the values' own unit.</p>"
        "<p>In the pictures, brown arrows are trips through memory. Run one operation at a time,"
        " every arrow is such a trip; inside a kernel, dotted arrows, values stay in registers or,"
        " between two passes over a row, in a block that the cache holds.</p>",
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
        demo_svg.draw(r.source, False, f"{r.case.title}: one operation at a time"),
        "</div><div><h3>As DVM runs it</h3>",
        f"<p class='note'>{size(s['bytes_moved'])} moved, "
        f"{size(s['bytes_minimum'])} would be the least possible</p>",
        demo_svg.draw(r.source, True, f"{r.case.title}: the operations inside one kernel"),
        "</div></div>",
        f"<h3>The generated kernel, as it ran</h3><pre>{html.escape(r.source)}</pre>",
        f"<details><summary>Its instructions ({s['instructions']})</summary>",
        f"<pre>{html.escape(r.listing)}</pre></details>",
    ]


def _calls(r: Result) -> str:
    rows = [
        "<tr><th>rows</th><th>first call</th><th>later calls</th><th>DVM alone</th>"
        "<th>eager</th><th>|DVM - eager|, absolute</th><th>error of DVM, relative</th>"
        "<th>error of eager, relative</th><th>verdict</th>"
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
    return "<div class='wide'><table>" + "".join(rows) + "</table></div>"


def _compile(r: Result) -> str:
    return (
        f"<p>{counts(r)}. First call: {r.trace_s * 1e3:.0f} ms"
        f" tracing and {r.aot_s * 1e3:.0f} ms autograd in torch, <b>{r.dvm_s * 1e3:.2f} ms</b> in"
        f" DVM, of which the engine took <b>{r.stats['compile_ns'] / 1e3:.0f} µs</b> from graph to"
        " verified bytecode.</p>"
    )


def counts(r: Result) -> str:
    """What was compiled for how many sizes, and what was not."""

    def many(n: int, what: str) -> str:
        return f"{n} {what}" if n == 1 else f"{n} {what}s"

    return (
        f"{many(r.graphs, 'compiled graph')} with {many(r.kernels, 'kernel')} for"
        f" {many(len(r.calls), 'size')}, {many(len(r.fallbacks), 'operation')} left to torch"
    )


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024 or unit == "MiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError
