"""What was withdrawn ends in exit code 2 and in a line that says what to use instead."""

from pathlib import Path

import numpy as np
import pytest

from ropeaudit.console.withdrawn import WITHDRAWN, WITHDRAWN_VALUES
from ropeaudit.main import main

FORMS = (
    "the forms of trackers were withdrawn; --ticket {0} would be a file: give one, such as --ticket ticket.md"
)
WAYS = (
    "unknown way of loading {0!r}; known: built, to, default-dtype, from-pretrained (others were withdrawn)"
)
TRACKERS = {
    "check": ("vllm", "transformers", "pytorch", "llama.cpp"),
    "shift": ("vllm",),
    "module": ("vllm",),
}
# command line -> what its message holds
LINES = {
    "vectors --want scores -o case": "known: rotated, gradient (scores are judged from rotated q and k)",
    "module x.xml": "'x.xml': OpenVINO IR is no longer read; give the .onnx file that it is made of",
    **{f"module f.npz --loaded {way}": WAYS.format(way) for way in ("saved", "low-cpu-mem")},
    **{
        f"{command} --ticket {name}": FORMS.format(name)
        for command, names in TRACKERS.items()
        for name in names
    },
    **{
        f"{command} {option} anything": f"{option} of `ropeaudit {command}` was withdrawn; {instead}\n"
        for (command, option), instead in WITHDRAWN.items()
    },
    **{
        f"{command} {option} {value}": f"({value!r} was withdrawn: {instead})\n"
        for (command, option, value), instead in WITHDRAWN_VALUES.items()
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
