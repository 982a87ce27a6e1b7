"""Writes libdvm-VERSION.dist-info beside the built extension module.

The build tree is then a place where importlib.metadata finds the distribution and its entry
points, so `torch.compile(backend="dvm")` works under `./dev exec` without an installation.

usage: dist_info.py VERSION FOLDER
"""

import shutil
import sys
import tomllib
from pathlib import Path


def main(version: str, folder: str) -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())[
        "project"
    ]
    name = project["name"]
    for old in Path(folder).glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    out = Path(folder) / f"{name}-{version}.dist-info"
    out.mkdir(parents=True)
    (out / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Summary: {project['description']}\n"
    )
    lines: list[str] = []
    for group, entries in project.get("entry-points", {}).items():
        lines.append(f"[{group}]")
        lines += [f"{key} = {value}" for key, value in entries.items()]
        lines.append("")
    (out / "entry_points.txt").write_text("\n".join(lines))
    (out / "RECORD").write_text("")
    (out / "INSTALLER").write_text("dev\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
