"""The examples of docs/attention.md run in order, and its table is the argument list."""

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("_dvm")

from dvm.attn import npu_fusion_attention, npu_fusion_attention_grad

PAGE = (Path(__file__).parent.parent.parent / "docs/attention.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_examples():
    assert len(BLOCKS) >= 5
    names = {}
    for text in BLOCKS:
        if "import torch" in text:
            pytest.importorskip("torch")
        exec(compile(text, "docs/attention.md", "exec"), names)


def test_the_window_of_the_example_is_one():
    """Rows see themselves and 127 keys before them, as the page says."""
    import numpy as np

    x = np.zeros((1, 1, 300, 4), np.float32)
    v = np.arange(300, dtype=np.float32)[:, None].repeat(4, 1)[None, None]
    out = npu_fusion_attention(x, x, v, 1, "BNSD", sparse_mode=4, pre_tockens=127, next_tockens=0)[
        0
    ]
    i = np.arange(300)
    first = np.maximum(i - 127, 0)
    assert np.allclose(out[0, 0, :, 0], (first + i) / 2, atol=1e-3)


def test_arguments():
    """Every argument has a row, with the default that it has."""
    rows = re.findall(r"^\| ([\w, ]+) \| [^|]*\| ([^|]*)\|", PAGE, re.M)
    table = {}
    for names, default in rows:
        defaults = default.strip().split(", ")
        for i, name in enumerate(names.split(", ")):
            table[name] = defaults[min(i, len(defaults) - 1)].strip()
    for name, p in inspect.signature(npu_fusion_attention).parameters.items():
        given = "" if p.default is p.empty else p.default
        assert table[name] == ('""' if name == "softmax_layout" else str(given)), name
    page = PAGE[PAGE.index("The gradient function takes") :]
    known = set(table) | set(re.findall(r"`?(\w+)`?", page[: page.index("\n\n")]))
    assert set(inspect.signature(npu_fusion_attention_grad).parameters) <= known
