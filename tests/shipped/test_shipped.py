"""Bugs that shipped are caught and named, and what is right beside each passes; docs/shipped-bugs.md says so.

`python tests/shipped/test_shipped.py` writes that page. With `--run` it prints what is said of every bug, or
of those whose ids follow, and the seconds of CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeaudit.recognition.diagnosis import NO_CAUSE, kinds
from shipped import bugs
from shipped.bugs import Bug

PAGE = Path(__file__).parents[2] / "docs" / "shipped-bugs.md"
BUGS = bugs.collected()
JUDGED = [bug for bug in BUGS if bug.faulty is not None]
# Ids that are quick to judge, of each class some; the others are slow.
FAST = ("K14", "K16", "K23", "K29", "K34", "K36", "S6", "S8", "G3", "G4")
FAST_RIGHT = ("K34", "S6", "G4")
CLASSES = {  # first letter of an id -> what the bugs are about
    "K": "Kernels",
    "T": "Tables and frequencies",
    "C": "Configs",
    "P": "Positions",
    "M": "Loading and conversion",
    "S": "State",
    "G": "Gradients",
    "F": "Further ones",
}
FURTHER = "F"  # of bugs that were found when the tool was finished: counted apart
COMMANDS = {
    "code": "`check` of code",
    "config": "`check` of a config, or of code with one",
    "module": "`module`",
    "model": "`model`",
}
INTRODUCTION = """\
RoPE bugs that public trackers tell of. The cause of each is re-enacted in a few lines of our own in
[tests/shipped](../tests/shipped), with what is right beside it; a command must fail the one, by a code of
[diagnoses](diagnoses.md) or by a check, and pass the other. What cannot be re-enacted, or is not caught, says
why."""


def each(some: Iterable[Bug], fast: Container[str]) -> list[Any]:
    """Return parameters that are slow but for some."""
    return [pytest.param(bug, id=bug.id, marks=() if bug.id in fast else pytest.mark.slow) for bug in some]


@pytest.mark.parametrize("bug", each(JUDGED, FAST))
def test_a_bug_is_caught_and_named_or_said_not_to_be(bug: Bug, tmp_path: Path) -> None:
    said = []
    for one in bugs.judged(bug.faulty, bug, tmp_path):
        said.append(one)
        if any(map(one.names, bug.caught)):
            return
    failed = [one for one in said if one.failed]
    assert not bug.caught, f"{bug.id} {bug.source}: {failed or 'nothing fails'}"
    assert failed == []


@pytest.mark.parametrize("bug", each(JUDGED, FAST_RIGHT))
def test_what_is_right_passes(bug: Bug, tmp_path: Path) -> None:
    said = list(bugs.judged(bug.right, bug, tmp_path))
    assert said
    assert [one for one in said if one.failed] == []


def test_every_bug_says_what_it_is() -> None:
    ids = [bug.id for bug in BUGS]
    assert len(set(ids)) == len(ids)
    assert {bug.id[0] for bug in BUGS} <= CLASSES.keys()
    for bug in BUGS:
        assert bug.source.partition("#")[2].isdigit(), bug.id
        assert bug.how in bugs.JUDGES, bug.id
        assert (bug.faulty is None) == (bug.right is None), bug.id
        assert bug.caught or bug.why_not, bug.id
        assert not bug.caught or bug.faulty is not None, bug.id
        assert _codes(bug) <= kinds().keys(), bug.id


def test_bugs_that_a_diagnosis_names_are_caught_by_it() -> None:
    """What data/diagnoses.toml lists as shipped, and a code catches here, is caught by one that lists it."""
    for source in {source for kind in kinds().values() for source in kind.bugs}:
        listed = {kind.code for kind in kinds().values() if source in kind.bugs}
        caught = {code for bug in JUDGED if bug.source == source for code in _codes(bug)}
        assert not caught or listed & caught, f"{source}: listed at {listed}, caught by {caught}"


def page() -> str:
    """Return the page as it should be."""
    return "\n\n".join(paragraphs()) + "\n"


def paragraphs() -> Iterator[str]:
    """Yield the introduction, how many there are of what, and a table a class."""
    yield "# Bugs that shipped"
    yield "Generated from `tests/shipped`; a test compares it, others hold each row."
    yield INTRODUCTION
    yield "\n".join(totals())
    for letter, title in CLASSES.items():
        if rows := [bug for bug in BUGS if bug.id[0] == letter]:
            yield f"## {title}"
            head = ["| id | source | what was wrong | shows | caught by |", "| --- | --- | --- | --- | --- |"]
            rows.sort(key=lambda bug: int(bug.id[1:]))
            yield "\n".join([*head, *map(row, rows)])


def totals() -> Iterator[str]:
    """Yield how many are re-enacted, caught and named: of the list, and of those found later."""
    both = [[bug for bug in BUGS if (bug.id[0] == FURTHER) == later] for later in (False, True)]
    columns = [counted(part) for part in both]
    yield "| bugs | of the list | found later |"
    yield "| --- | --- | --- |"
    for name in columns[0]:
        yield f"| {name} | {' | '.join(str(column[name]) for column in columns)} |"


def counted(some: list[Bug]) -> dict[str, int]:
    """Return what there is -> how many of it."""
    judged = [bug for bug in some if bug.faulty is not None]
    caught = [bug for bug in judged if bug.caught]
    misnamed = [bug for bug in caught if bug.why_not]
    by_check = [bug for bug in caught if bug not in misnamed and not _codes(bug)]
    named = [bug for bug in caught if bug not in misnamed and _codes(bug) - {*NO_CAUSE}]
    return {
        "told of": len(some),
        "cannot be re-enacted": len(some) - len(judged),
        "re-enacted": len(judged),
        "not caught": len(judged) - len(caught),
        "caught": len(caught),
        "named by a cause": len(named),
        "named as no rotation, or as one that nothing known explains": (
            len(caught) - len(misnamed) - len(by_check) - len(named)
        ),
        "named by a check alone": len(by_check),
        "named by a cause that it has not": len(misnamed),
        "corrected versions that fail (a test holds each)": 0,
    }


def _codes(bug: Bug) -> set[str]:
    return {one for one in bug.caught if not one.startswith("check:")}


def row(bug: Bug) -> str:
    """Return the line of a bug."""
    by = ", ".join(_told(one) for one in bug.caught)
    end = f"{COMMANDS[bug.how]}: {by}" if bug.caught else _fate(bug)
    end = f"{end}. {bug.why_not}" if bug.why_not else end
    return f"| {bug.id} | {bug.source} | {bug.what} | {bug.shows} | {end} |"


def _told(caught: str) -> str:
    name = caught.removeprefix("check:")
    return f"[`{name}`](diagnoses.md#{name})" if name == caught else f"check `{name}`"


def _fate(bug: Bug) -> str:
    return "Not re-enacted" if bug.faulty is None else "**Not caught**"


def test_the_page_is_what_the_bugs_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/shipped/test_shipped.py"


def main(arguments: list[str]) -> None:
    """Write the page, or print what is said of bugs."""
    if arguments[:1] != ["--run"]:
        PAGE.write_text(page(), encoding="utf-8")
        return
    for bug in (bug for bug in BUGS if bug.id in arguments[1:] or not arguments[1:]):
        for name in ("faulty", "right") if bug.faulty is not None else ():
            began = time.process_time()
            with tempfile.TemporaryDirectory() as folder:
                said = [one for one in bugs.judged(getattr(bug, name), bug, Path(folder)) if one.failed]
            named = next((by for one in said for by in bug.caught if one.names(by)), "-")
            print(f"{bug.id} {name}: {time.process_time() - began:.1f} s of CPU, named {named}")
            print(*(f"    {one.check}: {', '.join(one.codes)}: {one.words}" for one in said), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
