"""Debug files: the generated program as a runnable file, and the graph beside it.

Written only when asked for: option or variable `debug_dir`, or TORCH_COMPILE_DEBUG=1, which puts
them into torch's own debug folder, torch_compile_debug/run_.../dvm/model__N_kind/.
"""

from __future__ import annotations

import itertools
import os
import textwrap
from typing import Any

import torch
from torch.fx import Graph, GraphModule

from .codegen import Program
from .symbols import hint

_folders = itertools.count()


def folder_for(debug_dir: str, name: str) -> str | None:
    """The folder for one graph, made now; None when no files are wanted."""
    if not debug_dir:
        if os.environ.get("TORCH_COMPILE_DEBUG", "0") != "1":
            return None
        from torch._dynamo.utils import get_debug_dir

        debug_dir = os.path.join(get_debug_dir(), "dvm")
    while True:
        path = os.path.join(debug_dir, name)
        try:
            os.makedirs(path)
            return path
        except FileExistsError:
            name = f"{name.split('.')[0]}.{next(_folders)}"


def write(folder: str, module: GraphModule, program: Program) -> str:
    """Writes output_code.py, fx_graph.txt and constants.pt; returns the path of the first."""
    path = os.path.join(folder, "output_code.py")
    with open(path, "w") as f:
        f.write(program.source() + main_program(module.graph, program))
    with open(os.path.join(folder, "fx_graph.txt"), "w") as f:
        f.write(module.print_readable(print_output=False))
    tensors = {k: v for k, v in program.constants.items() if isinstance(v, torch.Tensor)}
    if tensors:
        torch.save(
            {k: v.detach() for k, v in tensors.items()}, os.path.join(folder, "constants.pt")
        )
    return path


def main_program(graph: Graph, program: Program) -> str:
    """A main program that runs `call` once on inputs of the recorded sizes."""
    lines = []
    for n in graph.nodes:
        if n.op == "placeholder":
            lines.append(f"        {_example(n.meta.get('val'))},  # {n.name}\n")
    loads = ""
    if any(isinstance(v, torch.Tensor) for v in program.constants.values()):
        loads = (
            "    from pathlib import Path\n\n"
            '    globals().update(torch.load(Path(__file__).parent / "constants.pt"))\n'
        )
    missing = [k for k, v in program.constants.items() if not isinstance(v, torch.Tensor)]
    if missing:
        loads += f'    raise SystemExit("needs objects that have no text: {", ".join(missing)}")\n'
    main = (
        "\n\ndef inputs():\n"
        "    from dvm.torch.runtime import example\n\n"
        "    torch.manual_seed(0)\n"
        "    return [\n" + "".join(lines) + "    ]\n\n\n"
        'if __name__ == "__main__":\n' + loads
    )
    return main + textwrap.indent(
        "for i, out in enumerate(call(inputs())):\n"
        "    if isinstance(out, torch.Tensor):\n"
        "        shape, mean = tuple(out.shape), out.double().mean()\n"
        '        print(f"output {i}: {out.dtype} {shape} mean {mean:.6g}")\n'
        "    else:\n"
        '        print(f"output {i}: {out}")\n',
        "    ",
    )


def _example(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        size = tuple(hint(s) for s in val.shape)
        stride = tuple(hint(s) for s in val.stride())
        return f"example({size}, {stride}, {val.dtype}, {str(val.device)!r})"
    if isinstance(val, torch.SymInt):
        return str(hint(val))
    if isinstance(val, (int, float, bool)):
        return repr(val)
    return "1.0" if isinstance(val, torch.SymFloat) else "None"
