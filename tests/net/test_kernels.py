"""Every kernel under check has the exit code and the codes that `kernels.toml` states, by the command line.

A row fails whose answer is neither right nor today's; one whose answer is right, and was not, is a note.
"""

from __future__ import annotations

import itertools
import tomllib
import warnings
from collections.abc import Iterator
from importlib import resources

import pytest

from net import kernel_rows
from net.kernel_rows import KERNELS, Row
from ropeaudit.conformance import code_under_test

ROWS = kernel_rows.read()
AT_ONCE = 8  # rows of a test
NO_KERNELS = {"import_inside_helper.py", "turning.py"}  # what kernels import
APART = {"matrix", "called"}  # folders of which not all is judged here: tests call it in ways of their own


PARTS = {  # the slow ones: far from 0, in a whole battery of calls, or searched for long
    "fast": [],
    "slow": [pytest.mark.slow],
    "exhaustive": [pytest.mark.exhaustive],
}


def chunks() -> Iterator[object]:
    """Yield parameters of a few rows of a part and a folder each."""
    for part, marks in PARTS.items():
        cells = [(row, dtype) for row in ROWS for dtype in row.stated if row.part(dtype) == part]
        for folder, some in itertools.groupby(cells, lambda cell: cell[0].table.partition("/")[0]):
            rows = list(some)
            for start in range(0, len(rows), AT_ONCE):
                name = f"{part}-{folder}-{start // AT_ONCE}"
                yield pytest.param(rows[start : start + AT_ONCE], id=name, marks=marks)


def wrong(cells: list[tuple[Row, str]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Judge rows and return a line for each that answers otherwise than is stated."""
    lines = []
    for row, dtype in cells:
        with monkeypatch.context() as patch:
            patch.setattr(code_under_test, "seconds_of_a_call", kernel_rows.seconds(row, dtype))
            given = kernel_rows.answer(row.words(dtype))
        stated = row.stated[dtype]
        told = f"{row.name} {dtype}: says {kernel_rows.spelled(given)}"
        if kernel_rows.agrees(stated["right"], given):
            if "today" in stated:
                warnings.warn(f"{told}, now right: remove `today`", stacklevel=1)
        elif "today" not in stated or not kernel_rows.agrees(stated["today"], given):
            lines.append(f"{told} instead of {stated}")
    return lines


@pytest.mark.parametrize("cells", list(chunks()))
@pytest.mark.filterwarnings("default")  # those of torch's compiler, in code of others
def test_a_kernel_is_judged_as_stated(cells, monkeypatch) -> None:
    assert wrong(cells, monkeypatch) == []


def test_every_file_of_kernels_is_judged() -> None:
    there = {
        str(path.relative_to(KERNELS))
        for path in KERNELS.rglob("*.py")
        if path.name not in NO_KERNELS and path.parent.name not in APART
    }
    assert there == {row.file for row in ROWS if row.file.partition("/")[0] not in APART}


def test_rows_say_what_is_possible() -> None:
    known = tomllib.loads((resources.files("ropeaudit.data") / "diagnoses.toml").read_text("utf-8"))
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.stated, row.name
        assert row.fast in row.stated or row.why, f"{row.name} is slow, and does not say why"
        for stated in row.stated.values():
            assert stated.keys() <= {"right", "today"}
            assert stated.get("today") != stated["right"]
            today = set("|".join(stated.get("today", stated["right"])[1:]).split("|")) - {"", "..."}
            assert {one for one in today if not one.startswith("check:")} <= set(known), row.name
            assert stated["right"][0] in (0, 1, 2)


@pytest.mark.parametrize(
    ("stated", "given", "agree"),
    [
        ([0], (0, []), True),
        ([0], (1, ["wrap"]), False),
        ([1, "wrap"], (1, ["wrap"]), True),
        ([1, "wrap"], (1, ["wrap", "restart"]), False),
        ([1, "wrap", "..."], (1, ["wrap", "restart"]), True),
        ([1, "wrap", "..."], (1, ["restart"]), False),
        ([1, "wrap|restart"], (1, ["restart"]), True),
        ([1, "wrap|restart"], (1, ["check:rotation"]), False),
        ([1, "wrap"], (0, ["wrap"]), False),
    ],
)
def test_an_answer_is_what_is_stated(stated, given, agree) -> None:
    assert kernel_rows.agrees(stated, (given[0], frozenset(given[1]))) is agree
