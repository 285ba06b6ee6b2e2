"""Commands whose code does what it likes in its process: a finding of its target, and of nothing else."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from cases import first_fast

from ropeaudit.conformance import code_under_test
from ropeaudit.door import process
from ropeaudit.main import main
from ropeaudit.runtime import doing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux alone")
RIGHT = """
import numpy as np
def right(x: np.ndarray, pos):
    d = x.shape[-1]
    angles = np.asarray(pos, float)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    (a, b), cos, sin = np.split(x.astype(float), 2, -1), np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)
"""
CALLED = "def f(x: np.ndarray, positions):\n    {}\n    return right(x, positions)\n"
SMALL = ["--up-to", "64", "--head-dim", "8", "--under", "none", "--dtype", "fp32"]
ENDS = "import os; os._exit(7)"
# what stands at the top of the file, what its function does -> exit code, what is said of it
HOSTILE = [
    ("", ENDS, 1, "ended its process in call 1: exit code 7"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "pass", 2, "in its import: SIGSEGV"),
    ("", "while True: pass", 1, "has not returned after 1 s, in call 1"),
    ("import os; os.chdir('/'); os.umask(0); os.closerange(0, 3)", "pass", 0, ""),
]
KERNELS = Path(__file__).parents[1] / "kernels"


@pytest.mark.parametrize(("at_import", "in_call", "code", "said"), first_fast(HOSTILE, 2))
def test_another_target_is_judged_and_the_report_is_written(
    at_import, in_call, code, said, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostile.py").write_text(at_import + RIGHT + CALLED.format(in_call))
    (tmp_path / "right.py").write_text(RIGHT)
    line = ["check", "hostile.py:f", "right.py:right", *SMALL, "-o", "x.json", "--timeout", "1"]
    if code != 1 or "returned" not in said:
        line = line[:-2]
    assert main(line) == code
    whole = json.loads((tmp_path / "x.json").read_text())
    records, told = whole["records"], {one["target"]: str(one["facts"]) for one in whole["answers"]}
    assert "right.py" not in told["hostile.py:f"]
    of = {name: [one for one in records if one["target"] == name] for name in line[1:3]}
    assert {one["status"] for one in of["right.py:right"]} >= {"pass"}
    assert not any(one["status"] == "fail" for one in of["right.py:right"])
    assert said in capsys.readouterr().out if said else not any(one["status"] == "fail" for one in records)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["hostile.py", "right.py", "x.json"]


def test_a_signal_ends_a_call_that_does_not_return(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text(RIGHT + CALLED.format("while True: pass"))

    def once_it_waits() -> None:
        while not doing.waiting:
            time.sleep(0.01)
        time.sleep(4)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=once_it_waits, daemon=True).start()
    assert main(["check", "k.py:f", *SMALL, "--timeout", "60"]) == 130
    assert "interrupted: 0 checks done" in capsys.readouterr().err


@pytest.mark.parametrize("command", first_fast([["shift", "--impl"], ["parity", "hf"], ["explain"]]))
def test_commands_say_how_code_ended_its_process(command, tmp_path, capsys) -> None:
    (tmp_path / "k.py").write_text(RIGHT + CALLED.format(ENDS))
    sizes = ["--heads", "1", "--seq-len", "8", "--head-dim", "8", "--dtype", "fp32"]
    assert main([*command, f"{tmp_path / 'k.py'}:f", *sizes]) in (0, 2)  # a refused row, or an error
    seen = capsys.readouterr()
    assert "ended its process in call 1: exit code 7" in seen.out + seen.err


def test_a_check_of_right_code_asks_for_few_states(tmp_path, monkeypatch) -> None:
    doors: list[process.Door] = []
    opened = process.Door.__init__

    def counted(self, *given, **named) -> None:
        doors.append(self)
        opened(self, *given, **named)

    monkeypatch.setattr(process.Door, "__init__", counted)
    code = f"{KERNELS / 'conformance' / 'faulty_calls.py'}:right"
    assert main(["check", code, "--up-to", "256", "--head-dim", "16"]) == 0
    assert len(doors) == 1
    assert doors[0].forks <= 60


CALLS, UNDER = (KERNELS / "conformance" / name for name in ("faulty_calls.py", "kernels_environments.py"))
TEN = [
    ("keeps_dtype", "table_of_5000", "wants_contiguous", "EvalLate", "Locked"),
    ("right", "right_numpy", "third_row_late", "position_70_late"),
]


@pytest.mark.slow  # checks, twice
@pytest.mark.parametrize("names", TEN, ids=["states", "calls"])
def test_code_is_judged_alike_in_this_process(names, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(code_under_test, "seconds_of_a_call", lambda *_: 1.0)  # of dear code there are fewer
    kernels = [f"{CALLS}:{name}" for name in names] + [f"{UNDER}:by_mm"] * (names is TEN[1])
    rows = []
    for how in ([], ["--in-process"]):
        out = tmp_path / f"{len(how)}.json"
        main(["check", *kernels, "--up-to", "256", *how, "-o", str(out)])
        records = json.loads(out.read_text())["records"]
        columns = ("target", "check", "status", "measured", "diagnosis")
        rows.append([[one[column] for column in columns] for one in records])
    assert rows[0] == rows[1]
