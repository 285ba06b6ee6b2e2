"""docs/shipped-bugs.md is what tests/net/shipped.toml says, and each bug is a row of tests/net/kernels.toml.

`python tests/documentation/test_shipped_page.py` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))

from cases import table  # noqa: E402
from net import kernel_rows  # noqa: E402

from ropeaudit.recognition.diagnosis import NO_CAUSE, kinds  # noqa: E402

PAGE = TESTS.parent / "docs" / "shipped-bugs.md"
BUGS: dict[str, dict[str, Any]] = table(__file__, "../net/shipped.toml")
WORDS = table(__file__, "pages.toml")["shipped"]
CLASSES = WORDS["classes"]
FURTHER = "F"  # of bugs that were found when the tool was finished: counted apart
COMMANDS = {"code": "`check` of code", "module": "`module`"}


def codes(bug: dict[str, Any]) -> set[str]:
    """Return the codes of diagnoses that name a bug."""
    return {one for one in bug.get("caught", ()) if not one.startswith("check:")}


def test_every_bug_says_what_it_is_and_is_judged() -> None:
    rows: dict[str, list[kernel_rows.Row]] = {}
    for row in kernel_rows.read():
        rows.setdefault(f"{row.file}:{row.kernel.split()[0]}", []).append(row)
    for name, bug in BUGS.items():
        assert name[0] in CLASSES
        assert bug["source"].partition("#")[2].isdigit(), name
        assert bug.get("caught") or bug.get("why_not"), name
        assert codes(bug) <= kinds().keys(), name
        for which, exit_code in (("faulty", int(bool(bug.get("caught")))), ("right", 0)):
            if "faulty" in bug:
                judged = [stated for row in rows[bug[which]] for stated in row.stated.values()]
                assert judged
                assert exit_code in {stated["right"][0] for stated in judged}, (name, which)
                named = {one for stated in judged for one in stated["right"][1:]}
                if exit_code and not any(one.startswith("check:") for one in bug["caught"]):
                    assert codes(bug) & {code for one in named for code in one.split("|")}, name


def test_bugs_that_a_diagnosis_names_are_caught_by_it() -> None:
    """What data/diagnoses.toml lists as shipped, and a code catches here, is caught by one that lists it."""
    for source in {source for kind in kinds().values() for source in kind.bugs}:
        listed = {kind.code for kind in kinds().values() if source in kind.bugs}
        caught = {code for bug in BUGS.values() if bug["source"] == source for code in codes(bug)}
        assert not caught or listed & caught, f"{source}: listed at {listed}, caught by {caught}"


def page() -> str:
    """Return the page as it should be."""
    return "\n\n".join(paragraphs()) + "\n"


def paragraphs() -> Iterator[str]:
    """Yield the introduction, how many there are of what, and a table a class."""
    yield "# Bugs that shipped"
    yield "Generated from `tests/net/shipped.toml`; a test compares it, and other tests run each row."
    yield WORDS["introduction"]
    yield "\n".join(totals())
    for letter, title in CLASSES.items():
        rows = sorted((name for name in BUGS if name[0] == letter), key=lambda name: int(name[1:]))
        head = [
            "| id | source | what was wrong | when it shows | caught by |",
            "| --- | --- | --- | --- | --- |",
        ]
        yield f"## {title}"
        yield "\n".join([*head, *map(row, rows)])


def totals() -> Iterator[str]:
    """Yield how many are re-enacted, caught and named: of the list, and of those found later."""
    columns = [
        counted([bug for name, bug in BUGS.items() if (name[0] == FURTHER) == later])
        for later in (False, True)
    ]
    yield "| bugs | of the list | found later |"
    yield "| --- | --- | --- |"
    for name in columns[0]:
        yield f"| {name} | {' | '.join(str(column[name]) for column in columns)} |"


def counted(some: list[dict[str, Any]]) -> dict[str, int]:
    """Return what there is -> how many of it."""
    judged = [bug for bug in some if "faulty" in bug]
    caught = [bug for bug in judged if bug["caught"]]
    misnamed = [bug for bug in caught if "why_not" in bug]
    by_check = [bug for bug in caught if bug not in misnamed and not codes(bug)]
    named = [bug for bug in caught if bug not in misnamed and codes(bug) - {*NO_CAUSE}]
    return {
        "reported": len(some),
        "cannot be re-enacted": len(some) - len(judged),
        "re-enacted": len(judged),
        "not caught": len(judged) - len(caught),
        "caught": len(caught),
        "named by a cause": len(named),
        "named as `not-a-rotation` or `unexplained` alone": (
            len(caught) - len(misnamed) - len(by_check) - len(named)
        ),
        "seen by a check, without a code": len(by_check),
        "named by a wrong cause": len(misnamed),
        "corrected versions that fail": 0,
    }


def row(name: str) -> str:
    """Return the line of a bug."""
    bug = BUGS[name]
    by = ", ".join(map(told, bug.get("caught", ())))
    fate = (
        "Not re-enacted"
        if "faulty" not in bug
        else f"{COMMANDS[bug['how']]}: {by}"
        if by
        else "**Not caught**"
    )
    end = f"{fate}. {bug['why_not']}" if "why_not" in bug else fate
    return f"| {name} | {bug['source']} | {bug['what']} | {bug['shows']} | {end} |"


def told(caught: str) -> str:
    """Return a code as a link to what it means, or a check."""
    name = caught.removeprefix("check:")
    return f"[`{name}`](diagnoses.md#{name})" if name == caught else f"check `{name}`"


def test_the_page_is_what_the_bugs_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/documentation/test_shipped_page.py"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
