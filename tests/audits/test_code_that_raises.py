"""Code that raises in a later call than its first ones: its error in a line, and no row is lost."""

import json

import pytest
from cases import first_fast

from ropeaudit.main import main

CODE = """import numpy as np

calls = [0]

def rope(x, positions):
    calls[0] += 1
    if calls[0] > {most}:
        raise ValueError("enough calls")
    d = x.shape[-1]
    a = np.asarray(positions)[:, None] * 10000.0 ** -(np.arange(0, d, 2) / d)
    c, s = np.cos(a), np.sin(a)
    p, q = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([p * c - q * s, q * c + p * s], -1).astype(x.dtype)
"""
SMALL = ["--dtype", "fp32", "--heads", "1", "--seq-len", "8", "--head-dim", "8", "-q"]


@pytest.mark.parametrize("most", [20, 40])
def test_a_later_call_that_raises_is_an_error_of_the_code(most, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.py").write_text(CODE.format(most=most))
    line = ["shift", "--impl", "r.py:rope", *SMALL, "--offset", "0-99+1", "-o", "x.jsonl"]
    assert main(line) == 2
    message = capsys.readouterr().err
    assert "r.py:rope: a later call raises ValueError: enough calls" in message
    assert "a fault of ropeaudit" not in message
    part = tmp_path / "x.jsonl.part"
    if part.exists():
        assert all(json.loads(row)["implementation"] == "r.py:rope" for row in part.read_text().splitlines())


SILENT = """import os
import numpy as np

class Silent({base}):
    def __str__(self):
        {text}

def rope(x, positions):
    if positions.max() > {most}:
        raise Silent("never read")
    return x
"""


@pytest.mark.parametrize(
    ("base", "text", "most"),
    first_fast(
        [
            ("BaseException", "os._exit(5)", 40),
            ("Exception", "raise self", -1),
            ("Exception", "raise KeyboardInterrupt", 40),
            ("BaseException", "return 7", -1),
        ]
    ),
)
def test_an_exception_whose_text_raises_is_one_of_the_code(base, text, most, tmp_path, capsys) -> None:
    """Where nothing is found out of how it is called, and in a later call."""
    (tmp_path / "r.py").write_text(SILENT.format(base=base, text=text, most=most))
    line = ["shift", "--impl", f"{tmp_path / 'r.py'}:rope", *SMALL, "--offset", "0,100", "-f", "json"]
    assert main(line) == (2 if most < 0 else 0)
    seen = capsys.readouterr()
    assert "it raises Silent" in (seen.err if most < 0 else seen.out)
