"""What was withdrawn ends in exit code 2 and in a line that says what to use instead."""

from pathlib import Path

import numpy as np
import pytest

from ropeaudit import data
from ropeaudit.main import main

WITHDRAWN = {
    tuple(one.rsplit(" ", 1)): instead
    for instead, gone in data.table("help.toml")["withdrawn"].items()
    for one in gone
}
SMALL = "--heads 1 --seq-len 4"
COLUMNS = {
    f"shift {SMALL} --columns engine": "NumPy forms all scores",
    f"shift {SMALL} --fail-if engine>1": "NumPy forms all scores",
    "decay --columns subject_bound": "use drift_rms or drift_relative",
    "decay --columns subject_first_failing": "use drift_rms or drift_relative",
    "model x --columns routing_flips": "use change_rms",
    "module f.npz --loaded saved": "use to",
    "module f.npz --loaded low-cpu-mem": "use from-pretrained",
    "explain --by position": "--by pair says where drift sits",
    "explain --by head": "--by pair says where drift sits",
    "model --by head": "--by pair says it of each pair of a head",
    "model --by cache": "decode with the default cache is in every run: see decode_max",
}
# command line -> what its message holds
LINES = {
    "vectors --want scores -o case": "known: rotated, gradient (scores are judged from rotated q and k)",
    "module x.xml": "'x.xml': OpenVINO IR is no longer read; give the .onnx file that it is made of",
    **{line: f"; it was withdrawn: {instead}\n" for line, instead in COLUMNS.items()},
    **{
        f"{command} --ticket {name}": "it was withdrawn: any tracker takes the one form; give a file"
        for command in ("check", "shift", "module")
        for kind, name in WITHDRAWN
        if kind == "--ticket"
    },
    **{
        f"{kind.removeprefix('option of ')} {option} anything": f" was withdrawn; {instead}\n"
        for (kind, option), instead in WITHDRAWN.items()
        if kind.startswith("option of ")
    },
}


def test_each_thing_withdrawn_says_what_to_use_instead(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("f.npz", inv_freq=1e4 ** -(np.arange(4) / 4))
    Path("x.xml").write_text("<net/>")
    failed = []
    for line, wanted in LINES.items():
        code, said = main(line.split()), capsys.readouterr().err
        if code != 2 or wanted not in said or not said.startswith("ropeaudit: error: "):
            failed.append(f"{line}: exit code {code}, {said!r}")
    assert not failed, "\n".join(failed)
    assert len(LINES) >= 20
