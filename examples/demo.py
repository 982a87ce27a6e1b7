"""The tour of the torch backend: ./dev demo

Runs small programs through torch.compile(f, backend="dvm"), shows the kernels they became, checks
them against eager and against fp64, times them, and writes build/demo.html with the same. The exit
code is 0 when everything agreed.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import demo_cases
import demo_html
import dvm
import dvm.torch
import torch

try:
    from rich.console import Console
    from rich.syntax import Syntax
    from rich.table import Table
except ImportError:
    Console = None


HEAD = [
    "rows", "first call", "later", "DVM alone", "eager", "|DVM - eager|, absolute",
    "DVM error, relative", "eager error, relative", "verdict",
]  # fmt: skip


class Plain:
    """Terminal output without rich."""

    def title(self, text: str) -> None:
        print(f"\n== {text}\n")

    def code(self, text: str, language: str) -> None:
        print("\n".join("    " + line for line in text.splitlines()))

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        columns = list(zip(head, *rows, strict=True))
        widths = [max(map(len, c)) for c in columns]
        for row in [head, *rows]:
            print("  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)))

    def text(self, text: str, good: bool | None = None) -> None:
        print(text)


class Coloured(Plain):
    """Terminal output with rich."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)

    def title(self, text: str) -> None:
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    def code(self, text: str, language: str) -> None:
        if language:
            theme = "ansi_dark"
            self.console.print(Syntax(text, language, theme=theme, background_color="default"))
        else:
            self.console.print(text, style="dim", markup=False)

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        table = Table(*head, box=None, padding=(0, 2, 0, 0))
        for column in table.columns:
            column.justify = "right"
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def text(self, text: str, good: bool | None = None) -> None:
        style = {None: "", True: "bold green", False: "bold red"}[good]
        self.console.print(text, style=style, markup=False)


def settle() -> str:
    """On a busy machine one thread is used: waiting for a second one would be all that is timed."""
    busy = os.getloadavg()[0] > 0.6 * (os.cpu_count() or 1)
    if busy:
        torch.set_num_threads(1)
    return " (the machine is busy: one thread, and times are upper bounds)" if busy else ""


def machine(note: str) -> str:
    return (
        f"torch {torch.__version__}, dvm {dvm.__version__} on {dvm.Device.soc_name()},"
        f" {platform.machine()}, {os.cpu_count()} processors,"
        f" {torch.get_num_threads()} threads{note}"
    )


def show(out: Plain, r: demo_cases.Result) -> None:
    s = r.stats
    out.title(r.case.title)
    out.code(f"f = {r.case.code}", "python")
    out.text("\nThe generated kernel:\n")
    out.code(r.source, "python")
    out.text("Its instructions:\n")
    out.code(shortened(r.listing), "")
    out.text(
        f"\n{demo_html.counts(r)}\n"
        f"compile   trace {r.trace_s * 1e3:.1f} ms + autograd {r.aot_s * 1e3:.1f} ms (torch), "
        f"DVM {r.dvm_s * 1e6:.0f} us, of which the engine {s['compile_ns'] / 1e3:.1f} us\n"
        f"memory    {demo_html.size(s['bytes_unfused'])} one operation at a time, "
        f"{demo_html.size(s['bytes_moved'])} fused, {demo_html.size(s['bytes_minimum'])} at least\n"
    )
    out.table(
        HEAD,
        [
            [
                str(c.size),
                f"{c.seconds * 1e3:.2f} ms",
                f"{c.compiled_us:.1f} us",
                f"{c.dvm_us:.1f} us",
                f"{c.eager_us:.1f} us",
                f"{c.eager_difference:.2g}",
                f"{c.compiled_error:.2g}",
                f"{c.eager_error:.2g}",
                "agrees" if c.ok else "DIFFERS",
            ]
            for c in r.calls
        ],
    )


def shortened(text: str, most: int = 40) -> str:
    lines = text.rstrip().splitlines()
    if len(lines) > most:
        lines[most:] = [f"... {len(lines) - most} more lines in the page"]
    return "\n".join(lines)


def verdict_of(results: list[demo_cases.Result]) -> tuple[str, bool]:
    bad = [r.case.title for r in results if not r.ok]
    calls = sum(len(r.calls) for r in results)
    if bad:
        return f"FAILED: {', '.join(bad)}", False
    return (
        f"PASSED: {calls} calls of {len(results)} programs agree with eager and with fp64,"
        " each program compiled once, nothing left to torch",
        True,
    )


def main() -> int:
    out = Plain() if Console is None else Coloured()
    out.title("DVM behind torch.compile")
    about = machine(settle())
    out.text(about)
    out.text(
        "Errors are the largest distance from fp64, divided by the largest value; |DVM - eager| is"
        " the largest distance from eager, in the values' own unit. Times are the shortest of many"
        " calls."
    )
    results = []
    for case in demo_cases.CASES:
        results.append(demo_cases.run(case))
        show(out, results[-1])
    verdict, ok = verdict_of(results)
    page = Path(os.environ.get("DVM_BUILD", "build")) / "demo.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(demo_html.page(results, about, verdict, ok), encoding="utf-8")
    out.title("Verdict")
    out.text(verdict, ok)
    out.text(f"The same with pictures: {page}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
