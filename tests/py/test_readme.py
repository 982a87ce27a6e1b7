"""The examples of the README and of docs/kernels.md run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands(start: str) -> list[str]:
    """The indented command lines that begin so."""
    return re.findall(rf"^    ({re.escape(start)}.*)$", README, re.M)


def build() -> Path:
    return Path(os.environ.get("DVM_BUILD", ROOT / "build"))


def test_python(capsys):
    (text,) = (b for b in blocks("python") if "import dvm" in b)
    exec(compile(text, "README.md", "exec"), {})
    assert "Exp" in capsys.readouterr().out


def test_the_page_on_kernels(capsys):
    (text,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/kernels.md").read_text(), re.S)
    exec(compile(text, "docs/kernels.md", "exec"), {})
    assert "gemm, a product" in capsys.readouterr().out


def test_every_test_that_the_documentation_names_exists():
    """Functions in Python and C, and files."""
    named = set(
        re.findall(r"`(?:[\w/]+\.\w+`: `)?(test_\w+)`", (ROOT / "docs/testing.md").read_text())
    )
    known = {p.stem for p in (ROOT / "tests").rglob("test_*.*")}
    for file in (ROOT / "tests").rglob("test_*.*"):
        if file.suffix in (".py", ".c"):
            known |= set(re.findall(r"^(?:def|static void) (test_\w+)", file.read_text(), re.M))
    assert len(named) > 100 and not named - known, named - known


def test_torch():
    pytest.importorskip("torch")
    (text,) = (b for b in blocks("python") if "import torch" in b)
    exec(compile(text, "README.md", "exec"), {})


@pytest.mark.parametrize("shared", [False, True])
def test_c(tmp_path, shared):
    """The compile lines as they stand, in a folder that looks like the root of the tree."""
    if not (build() / "libdvm.a").exists() or not shutil.which("cc"):
        pytest.skip("no compiler or no static library")
    (line,) = re.findall(r"`(cc .*-Lbuild .*)`", README) if shared else commands("cc ")
    (text,) = blocks("c")
    (tmp_path / "example.c").write_text(text)
    (tmp_path / "include").symlink_to(ROOT / "include")
    (tmp_path / "build").symlink_to(build())
    line = line.replace("cc ", "cc -Wall -Wextra -Werror ", 1)
    subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    done = subprocess.run(["./example"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0.090 0.245 0.665\n"


@pytest.mark.parametrize("line", commands("./dev exec dvm"))
def test_shell(line):
    """Without `./dev exec`, which would look after the build while tests use it."""
    line = line.removeprefix("./dev exec ").split("#")[0]
    path = f"{build() / 'cli'}:{os.environ['PATH']}"
    done = subprocess.run(
        line, shell=True, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout, done.stderr


def test_shell_lines_are_found():
    assert len(commands("./dev exec dvm")) >= 3
