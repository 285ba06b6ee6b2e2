"""docs/benchmarks.md has the tables that tests/benchmarks/page.py writes, and its cheap sections run."""

import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SECTIONS = ["page", "memory", "script", "testing", "model", "startup", "commands", "cells", "processes"]
SECTION = re.compile(r"<!-- measured: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)


@pytest.fixture(scope="module")
def script() -> dict[str, object]:
    """Load the script as Python runs it, with its folder first on the path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(FOLDER), *sys.path])
        return runpy.run_path(str(FOLDER / "page.py"))


@pytest.fixture(scope="module")
def shown(script) -> dict[str, list[str]]:
    """Return section -> lines, as the page has them."""
    return {
        name: text.splitlines() for name, text in SECTION.findall(script["PAGE"].read_text(encoding="utf-8"))
    }


def shape(text: str) -> str:
    """Return a text without its figures."""
    return re.sub(r"-?\d[\d,.]*|nan", "0", text)


def test_the_page_has_every_section(script, shown) -> None:
    assert list(shown) == list(script["SECTIONS"])
    foot = r"(One run|The least of \d+ runs) on .+, \d+ cores, Python .+, numpy .+, torch .+\."
    for lines in shown.values():
        assert lines[:2] == ["| what | measured |", "| --- | --- |"]
        assert re.fullmatch(foot, lines[-1])


@pytest.mark.exhaustive  # each is measured
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_as_the_script_writes_it(script, shown, name) -> None:
    tiny = script["TINY"]
    fresh = script["table"](script["SECTIONS"][name](tiny), tiny).splitlines()
    assert [shape(line) for line in fresh[:-1]] == [shape(line) for line in shown[name][:-1]]
