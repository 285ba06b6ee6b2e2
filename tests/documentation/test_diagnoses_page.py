"""docs/diagnoses.md is what data/diagnoses.toml, the wording and tests/net/matrix.toml say.

`python tests/documentation/test_diagnoses_page.py` writes it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Kind, Where, kinds

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "diagnoses.md"
UP_TO = 131072  # positions that the code of the examples must hold
CLASSES = {  # class of diagnoses -> what it is, in the order of the page
    "precision": "The right formula in a format that is too narrow.",
    "setting": "Right code for another model: its numbers are those of another setting.",
    "positions": "Each vector is rotated, and by the wrong position.",
    "operands": "What is rotated, or what it is rotated with, is not what it should be.",
    "state": "The same call gives other numbers at another time.",
    "files": "Numbers that are right, and are read in other places than they were written for.",
    "unknown": "What remains.",
}
ROADS = {  # of the matrix -> how a fault reaches the commands
    "function": "`f(x, positions)`",
    "stored": "`f(positions, q, k)` with a table that is made once",
    "class": "a class whose table grows",
    "tables": "`f(q, k, cos, sin)`, cos and sin given by ropeaudit",
    "named": "a library's function by its name",
    "vectors": "what a kernel outside of Python wrote back",
    "module": "a module, run",
    "checkpoint": "tensors of a file",
    "onnx": "a graph with `RotaryEmbedding`",
    "model": "a whole model",
}
VALUES = Path(__file__).with_name("diagnosis_values.json")  # code -> plausible values of its sentence
EXAMPLE = (
    "shift --impl examples/kernel.py:careless --dtype bf16 --offset 0,1000 --columns "
    "offset,verdict,diagnosis,resembles -f csv"
)
INTRODUCTION = """\
A code names what explains wrong numbers; the same fault has the same code, whichever command sees it. A code
stays; the sentence beside it has the numbers of the case, and its words may change.

| where | how |
| --- | --- |
| rows of `shift` and `check` | `diagnosis` is the code, `resembles` the sentence, with where it holds |
| rows of `module` | `diagnosis`; in JSON the `hypotheses` of a table have one each |
| JUnit of `check` | the `type` of a failure |
| waivers of `check` | `diagnosis = "wrong-base"` is of failures with that code ([waivers](check.md#in-ci)) |
| tickets | the end of the title, and the facts of the row |
| `ropeaudit list diagnoses` | a row a code; `-f json` has all that stands here |

`a+b` are two faults that are there together. `a|b` explain the numbers equally well: nothing that was called
tells which, and a remedy is named only where it is the same. An empty cell: nothing has to be explained; in
`module` also that nothing that was tried explains it, in `check` that what fails is no rotation (a limit, a
key of a config).

A sentence begins with where it holds, if that is not everywhere: "k alone", "head 1 of 4 alone", "pair 5
alone", "positions 0 to 8999 are right, from 9000 on". Below, each is as printed for one case, and remedies
are those of float32."""


def page() -> str:
    """Return the page as it should be."""
    return "\n\n".join(paragraphs()) + "\n"


def paragraphs() -> Iterator[str]:
    """Yield the introduction, a section a code by class, and the matrix."""
    yield "# Diagnoses"
    yield "Generated from `ropeaudit/data/diagnoses.toml`; a test compares it."
    yield f"```bash\nropeaudit {EXAMPLE}\n```"
    yield f"```text\n{_printed('-m', 'ropeaudit', *EXAMPLE.split())}\n```"
    yield INTRODUCTION
    values = json.loads(VALUES.read_text(encoding="utf-8"))
    for group, meaning in CLASSES.items():
        yield f"## {group.capitalize()}"
        yield meaning
        for kind in kinds().values():
            if kind.group == group:
                yield f"### {kind.code}"
                assert kind.code in values, f"{kind.code}: give its values in {VALUES.name}"
                yield "\n".join(section(kind, as_given(values[kind.code])))
    yield from matrix()


def as_given(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of a diagnosis with tuples where JSON has lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def section(kind: Kind, values: dict[str, float | str]) -> Iterator[str]:
    """Yield the lines of a code. values: plausible ones of its sentence."""
    found = Diagnosis(kind.code, values)
    backward = Diagnosis(kind.code, values, Where(gradient=True))
    remedy = wording.remedy(found, FP32, UP_TO)
    yield f"**{kind.title}**, printed as `{wording.sentence(found)}`"
    yield ""
    yield f"- **Shows**: {kind.shows}"
    yield f"- **Cause**: {kind.cause}"
    if remedy:
        yield f"- **Remedy**: {remedy}."
    if kind.gradient:
        yield f"- **Of a gradient**: `{wording.sentence(backward)}`"
    if kind.gradient_remedy:
        yield f"- **Remedy there**: {wording.remedy(backward, FP32, UP_TO)}."
    if kind.option:
        option = wording.template(kind.option)
        yield f"- **Option**, where the code is right and the setting is not: `{option}`"
    if kind.bugs:
        yield f"- **Shipped**: {', '.join(kind.bugs)}"


def matrix() -> Iterator[str]:
    """Yield the section on the faults that tests build, and on which roads each has its code."""
    table = _printed(str(TESTS / "net" / "test_matrix.py"))
    yield "## Matrix"
    yield (
        "Tests build each fault on each road, and hold every command to its code (`yes`). A number is the\n"
        "reason why the road cannot carry the fault, or cannot show it."
    )
    roads = [f"| {road} | {meaning} |" for road, meaning in ROADS.items()]
    yield "\n".join(["| road | what is audited |", "| --- | --- |", *roads])
    assert f"| fault | code | {' | '.join(ROADS)} |" in table
    yield table


def _printed(*arguments: str) -> str:
    """Return what Python prints in the root of the repository."""
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
