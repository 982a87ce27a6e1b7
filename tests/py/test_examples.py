"""Every example runs."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"
NAMES = sorted(p.name for p in FOLDER.glob("*.py") if not p.name.startswith("demo"))


@pytest.mark.parametrize("name", NAMES)
def test_example(name, capsys):
    text = (FOLDER / name).read_text()
    if "import torch" in text:
        pytest.importorskip("torch")
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out.strip()
