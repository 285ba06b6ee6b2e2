"""The matrix of faults and roads: one fault has one code, whichever road it comes by and command sees it.

`matrix.toml` says what each cell must say, and was written before anything recognised the faults.
`python tests/net/test_matrix.py` prints it as a table.
"""

from __future__ import annotations

import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

NET = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(NET.parent), str(NET.parent / "kernels" / "matrix")]

from cases import first_fast  # noqa: E402
from faults import FAULTS  # noqa: E402

from net.roads import ROADS, Answer  # noqa: E402

EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((NET / "matrix.toml").read_text(encoding="utf-8"))
SEEN = [(f, road) for f, roads in EXPECTED.items() for road, said in roads.items() if isinstance(said, str)]
# One cell a road and, as far as that goes, one a class of diagnoses; the first four are fast.
FEW = [
    ("positions-bf16", "stored"),
    ("llama3-missing", "vectors"),
    ("base-10000", "checkpoint"),
    ("cos-sin-swapped", "onnx"),
    ("positions-bf16", "named"),
    ("dynamic-missing", "function"),
    ("off-by-one", "model"),
]
# Settings of which the right code passes on every road: one fault of each.
SETTINGS = ("positions-bf16", "angles-fp16", "table-bf16", "llama3-missing", "yarn-missing", "linear-missing")
SETTINGS += ("longrope-missing", "base-10000", "exponent-128", "partial-ignored")
QUICK = ("function", "module", "checkpoint", "onnx")  # roads of which some cells are slow
# What may stand beside the code of a fault: it says how the code was called, or at which offset it is right.
BESIDE = {"known-recipe", "right-so"}

pytestmark = pytest.mark.filterwarnings("ignore")  # those of libraries that a model is loaded with


def commands(fault: str, road: str, folder: Path, right: bool = False) -> dict[str, list[Answer]]:
    """Return what each command of a road says of a fault. right: of the same code without the fault."""
    folder /= f"{fault}-{road}"
    folder.mkdir()
    built = ROADS[road](folder, None if right else FAULTS[fault], FAULTS[fault])
    return {command.name: command.run() for command in built}


def verdict(code: str, answers: list[Answer]) -> str:
    """Return what is wrong with what a command says of a fault with this code, nothing if all is right."""
    if not answers:
        return "no row fails"
    codes = [set(one.code.split("|")) - BESIDE for one in answers if one.code]
    if others := [sorted(each) for each in codes if each and code not in each]:
        return f"says {others}"
    return "" if any(code in each for each in codes) else f"names no code: {answers}"


def disagreeing(cells: list[tuple[str, str]], folder: Path) -> list[str]:
    """Return a line for each command of some cells that does not say the code of its fault."""
    return [
        f"{fault} by {road}, {name}: {wrong}"
        for fault, road in cells
        for name, answers in commands(fault, road, folder).items()
        if (wrong := verdict(EXPECTED[fault][road], answers))
    ]


@pytest.mark.parametrize(("fault", "road"), first_fast(FEW, 4))
def test_a_fault_has_one_code(fault: str, road: str, tmp_path: Path) -> None:
    assert disagreeing([(fault, road)], tmp_path) == []


def on_each_road(every: dict[str, list[str]], some: int) -> list[Any]:
    """Return parameters of a road and its faults: of quick roads one of `some` is slow, each exhaustive."""
    few = {road: faults[::some] for road, faults in every.items() if road in QUICK}
    return [
        *(pytest.param(*one, id=f"some-{one[0]}", marks=pytest.mark.slow) for one in few.items()),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.exhaustive) for one in every.items()),
    ]


LEFT = {road: [fault for fault, by in SEEN if by == road and (fault, by) not in FEW] for road in ROADS}
ALL_SETTINGS = ("function", "vectors", "module", "onnx", "model")
RIGHT = {road: list(SETTINGS if road in ALL_SETTINGS else SETTINGS[:1]) for road in ROADS}


@pytest.mark.parametrize(("road", "faults"), on_each_road(LEFT, 8))
@pytest.mark.timeout(3600)
def test_every_fault_has_one_code(road: str, faults: list[str], tmp_path: Path) -> None:
    assert disagreeing([(fault, road) for fault in faults], tmp_path) == []


@pytest.mark.parametrize(("road", "faults"), on_each_road(RIGHT, 5))
@pytest.mark.timeout(3600)
def test_without_the_fault_no_row_fails(road: str, faults: list[str], tmp_path: Path) -> None:
    wrong = []
    for fault in faults:
        for name, answers in commands(fault, road, tmp_path, right=True).items():
            named = [one for one in answers if set(one.code.split("|")) - BESIDE - {""}]
            if named or (answers and name not in ("explain", "model")):  # they say more than what is wrong
                wrong.append(f"{fault} by {road}, {name}: {answers}")
    assert wrong == []


def test_every_cell_has_a_code_that_is_known_or_a_reason() -> None:
    assert set(EXPECTED) == set(FAULTS)
    for fault, roads in EXPECTED.items():
        assert list(roads) == list(ROADS)
        for said in roads.values():
            assert said == FAULTS[fault].code or (list(said) == ["not_seen"] and said["not_seen"])
    assert set(FEW) <= set(SEEN)
    assert len(SEEN) >= 0.7 * len(FAULTS) * len(ROADS)
    known = resources.files("ropeaudit.data") / "diagnoses.toml"
    assert {fault.code for fault in FAULTS.values()} <= set(tomllib.loads(known.read_text(encoding="utf-8")))


def table() -> str:
    """Return the matrix in Markdown: codes, and beneath it the reasons where there is none."""
    reasons: dict[str, int] = {}
    lines = ["| fault | code | " + " | ".join(ROADS) + " |", "| --- " * (2 + len(ROADS)) + "|"]
    for fault, roads in EXPECTED.items():
        cells = [
            "yes" if isinstance(said, str) else f"{reasons.setdefault(said['not_seen'], 1 + len(reasons))}"
            for said in roads.values()
        ]
        lines.append(f"| {fault} | `{FAULTS[fault].code}` | " + " | ".join(cells) + " |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
