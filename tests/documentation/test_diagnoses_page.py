"""docs/diagnoses.md is what data/diagnoses.toml says.

`python tests/documentation/test_diagnoses_page.py` writes it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cases import table
from command_line import ran

from ropeaudit.features.explain.shares import CANCELS, CAUSES
from ropeaudit.features.list.columns import explained
from ropeaudit.recognition.diagnosis import Kind, kinds

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "diagnoses.md"
WORDS = table(__file__, "pages.toml")
CLASSES = WORDS["classes"]
OFTEN = 3  # reports of a fault from which on the page shows lines of code
EXAMPLE = (
    "shift --impl examples/kernel.py:careless --dtype bf16 --offset 0,1000 --columns "
    "offset,verdict,diagnosis,resembles -f csv"
)
INTRODUCTION = Path(__file__).with_name("diagnoses.md").read_text(encoding="utf-8").rstrip("\n")


def page() -> str:
    """Return the page as it should be."""
    return "\n\n".join(paragraphs()) + "\n"


def paragraphs() -> Iterator[str]:
    """Yield the introduction, and a section a code by class."""
    yield "# Diagnoses"
    yield "Generated from `ropeaudit/data/diagnoses.toml`; a test compares it."
    yield f"```bash\nropeaudit {EXAMPLE}\n```"
    yield f"```text\n{_printed('-m', 'ropeaudit', *EXAMPLE.split())}\n```"
    yield INTRODUCTION
    for group, meaning in CLASSES.items():
        yield f"## {group.capitalize()}"
        yield meaning
        for kind in kinds().values():
            if kind.group == group:
                yield f"### {kind.code}"
                yield from section(kind)


def section(kind: Kind) -> Iterator[str]:
    """Yield a paragraph on a code, and lines of code where the fault was reported often."""
    known = explained(kind)
    wrong, right = known.pop("wrong", ""), known.pop("right", "")
    sentence, shows = known.pop("printed as"), known.pop("shows")
    quoted = ("of a gradient", "if it is meant")
    texts = {label: f"`{text}`" if label in quoted else text for label, text in known.items()}
    rest = [f"*{label.capitalize()}*: {text.rstrip('.')}." for label, text in texts.items()]
    yield " ".join([f"**{kind.title}** (`{sentence}`).", shows, *rest])
    if wrong and len(kind.bugs) >= OFTEN:
        yield f"```python\n# wrong\n{wrong}\n# right\n{right}\n```"


def _printed(*arguments: str) -> str:
    line = [sys.executable, *arguments]
    done = subprocess.run(line, check=True, capture_output=True, encoding="utf-8", cwd=TESTS.parent)
    return done.stdout.rstrip()


def test_the_page_is_what_the_table_of_diagnoses_and_the_matrix_say() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "run python tests/documentation/test_diagnoses_page.py"


def test_every_code_has_one_section_in_a_class_that_is_explained() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [lines.count(f"### {code}") for code in kinds()] == [1] * len(kinds())
    assert {kind.group for kind in kinds().values()} == set(CLASSES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")


def test_the_introduction_has_every_cause_of_a_stage_and_counts_the_faults_of_the_matrix() -> None:
    causes = {*CAUSES.values(), "quantisation", "overflow"}
    assert causes < {*re.findall(r"^\| (\w+) \|", INTRODUCTION, re.MULTILINE)}
    assert f"more than {CANCELS:g} times" in INTRODUCTION
    faults = tomllib.loads((TESTS / "net" / "matrix.toml").read_text(encoding="utf-8"))
    assert f"Tests build {len(faults)} faults in ten forms" in INTRODUCTION
    assert {len(forms) for forms in faults.values()} == {10}


def test_examples_are_python_and_differ() -> None:
    shown = [kind for kind in kinds().values() if kind.wrong]
    assert len(shown) >= 25
    for kind in shown:
        assert kind.wrong != kind.right
        for text in (kind.wrong, kind.right):
            assert text.count("\n") <= 6
            ast.parse(text)


def test_of_one_code_all_is_told(capsys) -> None:
    [told] = ran(capsys, ["list", "diagnoses", "wrong-base", "-f", "json"]).json["records"]
    assert "\nright" in (said := ran(capsys, ["list", "diagnoses", "wrong-base"]).out)
    assert "base = config.rope_theta\n" in said
    assert told["bugs"].startswith("vllm#42624")
