"""python -m dvm doctor, and the check that package and extension belong together."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dvm import doctor


def python(*args, **env):
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )


def test_doctor():
    done = python("-m", "dvm", "doctor", "--json", DVM_ODD="1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    assert rows["ok"]
    sections = {r["section"] for r in rows["rows"]}
    assert {"versions", "origin", "device", "self-test", "cache", "openmp", "torch"} <= sections
    named = {(r["section"], r["name"]): r for r in rows["rows"]}
    assert named["self-test", "same bits at every run"]["value"] is True
    assert named["environment", "DVM_ODD"]["state"] == "note"


def test_checklist(tmp_path):
    """Eight points with evidence; what is odd carries a remedy."""
    (tmp_path / "dvm").mkdir()
    (tmp_path / "dvm" / "__init__.py").write_text("")
    behind = os.environ.get("PYTHONPATH", "") + os.pathsep + str(tmp_path)
    done = python(
        "-m", "dvm", "doctor", "--json", PYTHONPATH=behind, DVM_STRIKT="1", DVM_PORT_RANGE="7-x"
    )
    rows = json.loads(done.stdout)["rows"]
    points = {r["name"][0]: r for r in rows if r["section"] == "checklist"}
    assert sorted(points) == list("12345678")
    assert str(tmp_path) in points["3"]["value"] and points["3"]["remedy"]
    assert "did you mean DVM_STRICT?" in points["5"]["remedy"]
    assert "48 rows: at most 0.0e+00 from eager, 1 compilation" in points["7"]["value"]
    for proof in ("import dvm", "@dvm.kernel", "k.load(", "k.relu(", "k.store("):
        assert proof in points["8"]["value"]
    assert {p["state"] for n, p in points.items() if n not in "35"} == {"ok"}
    [ports] = [r for r in rows if r["section"] == "ports"]
    assert (ports["state"], done.returncode) == ("bad", 1) and ports["remedy"]


def test_switched_off_code_is_noticed():
    """With the ops left to torch the examples still agree; only the code tells."""
    done = python("-m", "dvm", "doctor", "--json", DVM_DISABLE_OPS="relu,add,div")
    points = {r["name"][0]: r for r in json.loads(done.stdout)["rows"]}
    assert points["6"]["state"] == "ok" and points["8"]["state"] == "bad"
    assert "DVM_DISABLE_OPS" in points["8"]["remedy"]


def test_doctor_for_people(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DVM_CACHE_DIR", str(tmp_path))
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert "everything works" in out and "self-test" in out
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert doctor.main([]) == 0
    assert "self-test\n   softmax" in capsys.readouterr().out


def test_commands():
    assert python("-m", "dvm", "version").stdout.strip()
    assert python("-m", "dvm").returncode == 0
    assert python("-m", "dvm", "nurse").returncode == 2
    assert python("-m", "dvm", "doctor", "--xml").returncode == 2


@pytest.mark.parametrize("body", ["", "PROJECT = 'libdvm'\nABI = -1\n"])
def test_a_foreign_extension_is_told(tmp_path, body):
    (tmp_path / "_dvm.py").write_text(body)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = python("-c", "import dvm", PYTHONPATH=path)
    assert done.returncode != 0
    assert "do not belong together" in done.stderr and "Another project" in done.stderr


def test_a_missing_extension_is_told(tmp_path):
    (tmp_path / "_dvm.py").write_text("raise ImportError('cut off')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = python("-c", "import dvm", PYTHONPATH=path)
    assert "needs its extension module _dvm" in done.stderr and "cut off" in done.stderr


def test_importing_is_light():
    code = "import dvm, sys; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert python("-c", code).stdout.split() == ["False", "False"]


def test_every_variable_that_is_read_is_known():
    """doctor takes a DVM_ name that it does not know for a mistake."""
    from dvm.checklist import EFFECTS

    root = Path(__file__).parents[2]
    reads = re.compile(
        r"""(?:\$\{?|getenv\("|wanted\("|environ[^"\n]*"|setenv\("|_(?:names|flag|choice)\([^\n]*?")(DVM_[A-Z_]+)"""
    )
    found = set()
    for folder in ("dev", "tools", "tests", "bench", "examples", "python", "src", "cli"):
        path = root / folder
        for file in [path] if path.is_file() else path.rglob("*"):
            if file.is_file() and file.suffix in ("", ".sh", ".py", ".c", ".h"):
                found |= set(reads.findall(file.read_text(errors="replace")))
    assert {"DVM_ISA", "DVM_CACHE", "DVM_JOBS", "DVM_GDB"} <= found
    assert found <= set(EFFECTS), found - set(EFFECTS)
