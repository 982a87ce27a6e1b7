"""Every example runs."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"
NAMES = sorted(p.name for p in FOLDER.glob("*.py") if not p.name.startswith("demo"))


@pytest.mark.parametrize("name", NAMES)
def test_example(name, capsys, monkeypatch):
    text = (FOLDER / name).read_text()
    if "import torch" in text:
        pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", [name])
    try:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    except SystemExit as end:
        assert not end.code
    assert capsys.readouterr().out.strip()
