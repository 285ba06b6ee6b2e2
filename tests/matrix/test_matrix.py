"""The matrix of faults and roads: one fault has one code, whichever road it comes by and command sees it.

`expected.toml` says what each cell must say, and was written before anything recognised the faults.
`python tests/matrix/test_matrix.py` prints it as a table for docs/diagnoses.md; with `--run` it runs every
cell and prints what the commands say.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from faults import FAULTS
from roads import ROADS, Answer, Command

EXPECTED: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())
SEEN = [(f, road) for f, roads in EXPECTED.items() for road, said in roads.items() if isinstance(said, str)]
# One cell a road and, as far as that goes, one a class of diagnoses; the others are slow.
FAST = {
    ("positions-bf16", "stored"),
    ("table-bf16", "tables"),
    ("positions-bf16", "named"),
    ("llama3-missing", "vectors"),
    ("dynamic-missing", "function"),
    ("dynamic-missing", "vectors"),
    ("base-10000", "checkpoint"),
    ("cos-sin-swapped", "onnx"),
    ("attention-missing", "module"),
    ("first-only", "function"),
    ("wraps-512", "module"),
    ("kept-by-length", "class"),
    ("off-by-one", "model"),
    ("q-k-swapped", "model"),
}
OPEN: dict[tuple[str, str], str] = {}  # cells that do not say it yet, and why; they fail once they do
# Settings of which the right code passes on every road: one fault of each.
SETTINGS = ("positions-bf16", "angles-fp16", "table-bf16", "llama3-missing", "yarn-missing", "linear-missing")
SETTINGS += ("longrope-missing", "base-10000", "exponent-128", "partial-ignored")
RIGHT = [(SETTINGS[0], road) for road in ROADS]
RIGHT += [
    (fault, road) for fault in SETTINGS[1:] for road in ("function", "vectors", "module", "onnx", "model")
]
# What may stand beside the code of a fault: it says how the code was called, or at which offset it is right.
BESIDE = {"known-recipe", "right-so"}


def commands(fault: str, road: str, folder: Path, right: bool = False) -> Iterator[tuple[str, list[Answer]]]:
    """Yield what each command of a road says of a fault. right: of the same code without the fault."""
    built: list[Command] = ROADS[road](folder, None if right else FAULTS[fault], FAULTS[fault])
    for command in built:
        yield command.name, command.run()


def verdict(code: str, answers: list[Answer]) -> str:
    """Return what is wrong with what a command says of a fault with this code, nothing if all is right."""
    if not answers:
        return "no row fails"
    codes = [set(one.code.split("|")) - BESIDE for one in answers if one.code]
    if any(each and code not in each for each in codes):
        return "says " + ", ".join(sorted({"|".join(sorted(each)) for each in codes if code not in each}))
    return "" if any(code in each for each in codes) else "names no code: " + words(answers)


def words(answers: list[Answer]) -> str:
    """Return what is printed of rows that fail, each once."""
    return "; ".join(dict.fromkeys(one.words for one in answers if one.words)) or "nothing"


def marks(cell: tuple[str, str]) -> list[Any]:
    """Return how a cell is run: by default or with the slow tests, and whether it is known to disagree."""
    known = [pytest.mark.xfail(reason=OPEN[cell], strict=True)] if cell in OPEN else []
    return known if cell in FAST else [*known, pytest.mark.slow]


@pytest.mark.parametrize(
    ("fault", "road"),
    [pytest.param(*cell, marks=marks(cell)) for cell in SEEN],
)
@pytest.mark.filterwarnings("ignore")  # those of libraries that a model is loaded with
def test_a_fault_has_one_code(fault: str, road: str, tmp_path: Path) -> None:
    code = EXPECTED[fault][road]
    wrong = {name: verdict(code, answers) for name, answers in commands(fault, road, tmp_path)}
    assert wrong == dict.fromkeys(wrong, "")


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "road"), RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_without_the_fault_no_row_fails(fault: str, road: str, tmp_path: Path) -> None:
    for name, answers in commands(fault, road, tmp_path, right=True):
        assert [one.code for one in answers if set(one.code.split("|")) - BESIDE - {""}] == []
        if name not in ("explain", "model"):  # they say more than what is wrong
            assert answers == []


def test_every_cell_has_a_code_or_a_reason() -> None:
    assert set(EXPECTED) == set(FAULTS)
    for fault, roads in EXPECTED.items():
        assert list(roads) == list(ROADS)
        for said in roads.values():
            assert said == FAULTS[fault].code or (list(said) == ["not_seen"] and said["not_seen"])
    assert set(OPEN) <= set(SEEN)
    assert len(SEEN) >= 0.7 * len(FAULTS) * len(ROADS)


def test_codes_are_known() -> None:
    known = resources.files("ropeaudit.data") / "diagnoses.toml"
    assert {fault.code for fault in FAULTS.values()} <= set(tomllib.loads(known.read_text(encoding="utf-8")))


# ---------------------------------------------------------------------------- the page


def table() -> str:
    """Return the matrix in Markdown: codes, and beneath it the reasons where there is none."""
    reasons: dict[str, int] = {}
    lines = ["| fault | code | " + " | ".join(ROADS) + " |", "| --- " * (2 + len(ROADS)) + "|"]
    for fault, roads in EXPECTED.items():
        cells = [
            ("no" if (fault, road) in OPEN else "yes")
            if isinstance(said, str)
            else f"{reasons.setdefault(said['not_seen'], 1 + len(reasons))}"
            for road, said in roads.items()
        ]
        lines.append(f"| {fault} | `{FAULTS[fault].code}` | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return "\n".join(lines)


def measured() -> str:
    """Run every cell and return in Markdown what the commands say, where that is not the code alone."""
    lines, right, begun = [], 0, time.process_time()
    for fault, road in SEEN:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = {}
            try:
                for name, answers in commands(fault, road, Path(folder)):
                    said[name] = verdict(FAULTS[fault].code, answers), answers
            except Exception as error:  # a cell that cannot be run is a line of the page
                said["refused"] = repr(error)[:300], []
        wrong = [
            f"{name}: {'' if reason.startswith('names') else reason + ': '}{words(answers)}"
            for name, (reason, answers) in said.items()
            if reason
        ]
        right += not wrong
        lines.append(f"| {fault} | {road} | {'<br>'.join(wrong) or 'as expected'} |")
        print(lines[-1], file=sys.stderr, flush=True)
    seconds = time.process_time() - begun
    head = [
        f"{right} of {len(SEEN)} cells say the code, on every command; {seconds:.0f} s of processor time."
    ]
    return "\n".join([*head, "", "| fault | road | says |", "| --- | --- | --- |", *lines])


if __name__ == "__main__":
    print(measured() if "--run" in sys.argv[1:] else table())
