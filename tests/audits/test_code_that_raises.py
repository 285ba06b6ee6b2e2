"""Code that raises in a later call than its first ones: its error in a line, and no row is lost."""

import json

import pytest
from cases import first_fast
from command_line import ran

from ropeaudit.conformance import code_checks
from ropeaudit.features.check import config_target
from ropeaudit.main import main

CODE = """import sys
import numpy as np

class Own(BaseException):
    pass

class Returned:
    def __getattr__(self, name):
        {how}

def rope(x, positions):
    if x.shape[-2] == {tokens}:
        {then}
    d = x.shape[-1]
    a = np.asarray(positions)[:, None] * 10000.0 ** -(np.arange(0, d, 2) / d)
    c, s = np.cos(a), np.sin(a)
    p, q = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([p * c - q * s, q * c + p * s], -1).astype(x.dtype)
"""
SMALL = ["--dtype", "fp32", "--heads", "1", "--seq-len", "8", "--head-dim", "8", "-q"]


def test_a_later_call_that_raises_is_an_error_of_the_code(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    raised = "raise ValueError('enough calls')"
    (tmp_path / "r.py").write_text(CODE.format(tokens=8, how="pass", then=raised))
    line = ["shift", "--impl", "r.py:rope", *SMALL, "--offset", "0-99+1", "-o", "x.jsonl"]
    message = ran(capsys, line, 2).err
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
    line += ["--order", "bhsd"]
    assert main(line) == (2 if most < 0 else 0)
    seen = capsys.readouterr()
    assert "Silent" in (seen.err if most < 0 else seen.out)


@pytest.mark.parametrize(
    ("how", "where"),
    first_fast(
        [
            ("sys.exit(0)", "in the call"),
            ("raise Own('x')", "in what it returns"),
            ("raise GeneratorExit", "in the call"),
        ],
        2,
    ),
)
def test_code_that_leaves_python_fails_its_checks(how, where, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    then = how if where == "in the call" else "return Returned()"
    (tmp_path / "r.py").write_text(CODE.format(tokens=64, how=how, then=then))
    line = "check r.py:rope --up-to 64 --head-dim 8 --dtype fp32 --under none -f csv"
    seen = ran(capsys, line.split(), 1)
    assert "it raises " in seen.out
    assert "fault of ropeaudit" not in seen.out + seen.err


def test_a_check_at_fault_is_ours_and_stops_no_other(tmp_path, monkeypatch, capsys) -> None:
    def broken(*_):
        raise LookupError("of ours")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(code_checks.CHECKS, "decode", code_checks.Check(broken))
    monkeypatch.setattr(config_target, "_config_keys_finding", broken)
    for name in ("r.py", "s.py"):
        (tmp_path / name).write_text(CODE.format(tokens=0, how="pass", then="pass"))
    line = "check r.py:rope llama-3.1-8b s.py:rope --up-to 64 --head-dim 8 --dtype fp32 --under none"
    seen = ran(capsys, [*line.split(), "-f", "json", "-v", "--ticket", "t.md"], 3)
    rows = [(row["target"], row["check"], row["status"]) for row in json.loads(seen.out)["records"]]
    failed = [row[:2] for row in rows if row[2] == "fail"]
    assert failed == [("r.py:rope", "decode"), ("llama-3.1-8b", "model"), ("s.py:rope", "decode")]
    assert ("s.py:rope", "score-error", "pass") in rows
    said = "decode in float32: a fault of ropeaudit, not of what is checked: LookupError: of ours"
    assert f"ropeaudit: r.py:rope, {said}\n" in seen.err
    assert "Traceback" in seen.err
    assert not (tmp_path / "t.md").exists()
