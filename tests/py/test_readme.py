"""The examples of the README run."""

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


def test_python(capsys):
    (text,) = (b for b in blocks("python") if "import dvm" in b)
    exec(compile(text, "README.md", "exec"), {})
    assert "Exp" in capsys.readouterr().out


def test_c(tmp_path):
    library = Path(os.environ.get("DVM_BUILD", ROOT / "build")) / "libdvm.a"
    compiler = shutil.which("cc")
    if not library.exists() or not compiler:
        pytest.skip("no compiler or no static library")
    (text,) = blocks("c")
    source, program = tmp_path / "example.c", tmp_path / "example"
    source.write_text(text)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    subprocess.run(
        [compiler, *flags, source, library, "-lm", "-lpthread", "-ldl", "-o", program], check=True
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "0.090 0.245 0.665\n"
