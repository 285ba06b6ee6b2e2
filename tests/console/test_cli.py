"""Whole outputs, streams and exit codes."""

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest
from command_line import ran

from ropeaudit.audits import records
from ropeaudit.console import values
from ropeaudit.console.delivery import Progress
from ropeaudit.main import main
from ropeaudit.runtime import doing

SMALL = ["shift", "--heads", "1", "--seq-len", "40", "--offset", "0,1000", "--dtype", "fp32,bf16"]


@pytest.fixture
def out(capsys, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["ropeaudit", *arguments])
        assert main(list(arguments)) == code
        return capsys.readouterr().out

    return run


def test_default_table(out, snapshot) -> None:
    assert out(*SMALL) == snapshot


def test_markdown(out, snapshot) -> None:
    text = out(*SMALL, "-f", "markdown")
    ticket, _, environment = text.partition("Environment:")
    assert ticket == snapshot
    for word in ("time: 1970-01-01", "numpy: ", "platform: ", "threads: ", "angle=bfloat16"):
        assert word in environment


def test_json_is_strict_and_holds_the_circumstances(out) -> None:
    line = "shift --heads 1 --seq-len 4 --offset 131072 --dtype fp16 --recipe uniform -f json"
    text = out(*line.split())

    def refuse(word: str) -> None:
        raise AssertionError(word)

    whole = json.loads(text, parse_constant=refuse)
    assert whole["schema"] == records.SCHEMA
    assert whole["command"].startswith("ropeaudit shift --heads 1")
    assert whole["records"][0]["drift_rms"] is None
    assert whole["stages"]["uniform float16"]["angle"] == "float16"
    assert list(whole["records"][0]) == list(records.CORE)
    assert whole["constants"]["backend"] == "numpy"


def test_no_number_is_nan_and_what_does_not_apply_is_empty_in_csv(out) -> None:
    text = out(
        "shift", "--heads", "1", "--seq-len", "4", "--offset", "131072", "--dtype", "fp16", "--qk", "ones",
        "--recipe", "uniform", "-f", "csv", "--columns", "seed,drift_rms,worst_head,change_max",
    )  # fmt: skip
    assert text.splitlines()[1] == ",nan,,nan"


def test_a_gate_that_holds_gives_0_and_a_broken_one_1_and_says_which(capsys) -> None:
    line = [*SMALL, "--fail-if", "drift_max>10", "-q"]
    assert ran(capsys, line).err == ""
    message = ran(capsys, [*line, "--fail-if", "drift_rms>1e-9"], 1).err
    assert "failed: drift_rms = " in message
    assert "8 of 8 cases fail" in message
    assert "drift_max" not in message
    far = ["--offset", "131072", "--dtype", "fp16", "--fail-if", "drift_rms>9"]
    ran(capsys, ["shift", "--heads", "1", *far], 1)  # nan


def test_notes_and_errors_stay_off_stdout(capsys) -> None:
    command = ["shift", "--recipe", "uniform", "--dtype", "bf16", "--offset", "1000", "--heads", "1"]
    seen = ran(capsys, [*command, "-f", "csv", "--no-header"])
    assert seen.out.count("\n") == 1
    assert "bf16 collapses 256 positions to 36; compute positions and angles in float32" in seen.err


def on_terminal(columns: int, *more: str, **variables: str) -> str:
    import pty

    leader, follower = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), **variables}
    command = [sys.executable, "-m", "ropeaudit", *SMALL, *more]
    subprocess.run(command, stdout=follower, stderr=subprocess.DEVNULL, check=True, env=environment)
    os.close(follower)
    text = os.read(leader, 100_000).decode()
    os.close(leader)
    return text


def test_a_terminal_gets_colour_no_cut_numbers_and_a_report_whatever_its_width() -> None:
    text = on_terminal(80)
    assert "\x1b[" in text
    assert "…" not in text
    assert "Hidden (terminal too narrow): vs offset 0, vs best" in text
    assert re.search(r"^uniform +bf16 +1,000 +52 %", text, re.MULTILINE)  # what decides stays
    assert "offset" in on_terminal(0, "--dtype", "fp32")
    plain = on_terminal(80, "--dtype", "fp32", "-q", NO_COLOR="1")
    assert "offset" in plain
    assert "\x1b" not in plain


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [1, 30, 50, 80, 200])
def test_progress_fits_into_the_terminal(width, monkeypatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((width, 24)))
    monkeypatch.delenv("COLUMNS", raising=False)
    progress = Progress(False)
    progress.started -= 100
    progress.last -= 100
    progress(0.21)
    line = shown.getvalue().removeprefix("\r\033[K")
    assert line.startswith("ropeaudit: "[: width - 1])
    assert len(line) < width  # a longer one would leave its end behind
    assert ("21%, " in line) == (width >= 30)


@pytest.mark.parametrize("named", ["", "check 7 of 23: decode"])
def test_time_is_guessed_from_the_first_tenth_on_and_not_of_named_steps(named, monkeypatch) -> None:
    now, shown = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress(False)
    doing.begin(named)
    for share in (0.05, 0.1, 0.5, 0.999):
        now += 6
        progress(share)
    lines = [line.removeprefix("ropeaudit: ").strip() for line in shown.getvalue().split("\r\033[K")[1:]]
    left = ["5%", "10%, 1 min 48 s to go", "50%, 18 s to go", "99%, 0 s to go"]
    steps = [f"{share}, check 7 of 23: decode" for share in ("5%", "10%", "50%", "99%")]
    assert lines == (steps if named else left)


def test_a_ctrl_c_while_the_command_loads_is_one_line() -> None:
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from ropeaudit.__main__ import main\n"
        "sys.exit(main())\n"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (seen.returncode, seen.stdout, seen.stderr) == (130, "", "ropeaudit: interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_that_c_code_takes_for_an_import_that_failed_is_an_interruption() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name != 'numpy': return\n"
        "        try: os.kill(os.getpid(), signal.SIGTERM)\n"
        "        except KeyboardInterrupt: raise ImportError('numpy failed to import') from None\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from ropeaudit.__main__ import main\n"
        "sys.argv[1:] = ['shift', '--dtype', 'bf16']\n"
        "main()\n"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (seen.returncode, seen.stdout, seen.stderr) == (130, "", "ropeaudit: interrupted\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,1000,16k,128k,1m", [0, 1000, 16384, 131072, 1048576]),
        ("1024-8192*2", [1024, 2048, 4096, 8192]),
        ("1k-1m*4", [1024, 4096, 16384, 65536, 262144, 1048576]),
        ("0-1024+256", [0, 256, 512, 768, 1024]),
        ("-1000", [-1000]),
        ("-4--1+1", [-4, -3, -2, -1]),
        ("2^20,2**10", [2**20, 2**10]),
        ("1e6,1.5k", [1000000, 1536]),
        ("5,5,6", [5, 6]),
        ("9007199254740991", [2**53 - 1]),
    ],
)
def test_integers(text, expected) -> None:
    assert values.integers(text, "--offset") == expected
