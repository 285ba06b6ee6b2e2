"""Survey every implementation that is installed, and write docs/survey.md and docs/survey.html.

python tests/survey_page.py [--jobs N]          survey all, and write the pages
python tests/survey_page.py --save A.json       write what was measured alone
python tests/survey_page.py --from A.json ...   the pages of what --save wrote: packages that exclude each
                                                other are surveyed apart

Rows are those of `ropeaudit shift --impl all`; each implementation is explained by the
nearest recipe, in a process of its own.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ropeaudit import Case, shift
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.errors import RopeAuditError
from ropeaudit.reports import Report, reading, render, tabulated
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import Declare
from ropeaudit.subjects import factories, third_party

DOCS = Path(__file__).parents[1] / "docs"
DTYPES, OFFSETS = ("fp32", "fp16", "bf16"), (0, 1000, 131072)
UNDER = ("autocast:bf16", "tf32", "default-dtype:bf16")
HEAD_DIMS = (128, 64)  # the first that an implementation takes is used
HEADS, SEQ_LEN = 4, 256
TRACED = (0, 1024)  # offsets at which recipes are compared
PATIENCE = 300  # seconds that an explanation may take
CLEAN = "none"  # the environment in which nothing is changed
BAD = ("overflow", "wrong_rotation", "broken")
SEVERAL = 3.0  # times the drift of recipe hf
CHANGED = 1.5  # times the clean drift: what an environment leaves below that is no exposure
FORMS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SCHEMA = 1
LEGEND = (
    "fp32, fp16, bf16: largest drift over the offsets, over the scores' RMS; times: over that of recipe hf;\n"
    "exposed: environments that make it an outlier; cast cos error: after .to(bfloat16) of the class."
)
COMMAND = (
    "ropeaudit shift --impl all --jobs 2 --dtype fp32,fp16,bf16 --offset 0,1000,131072 "
    "--under autocast:bf16,tf32,default-dtype:bf16 --heads 4 -o survey.json -o survey.html"
)
INTRODUCTION = f"""\
# Survey

Every RoPE implementation that could be called, with the same q and k (4 heads of 256 tokens, head_dim 128 or
64, base 10000) at offsets 0, 1000 and 131072, in three dtypes, in the clean state and in three environments,
and its class after `.to(bfloat16)`. Outliers come first, then what an environment makes one; find your
package by its name. The same table sorts and filters in [survey.html](survey.html).

```bash
{COMMAND}
```

These are the rows that it is made of, each implementation measured in a process of its own;
`python tests/survey_page.py` writes this page. fp32, fp16 and bf16 are the largest drift over the offsets, in
float32 nearly always that at 131072, where angles have lost digits. A wrong cast is what `.to(bfloat16)` of a
module does to its frequencies, not what the library does by itself: `from_pretrained(dtype=...)` keeps them
([real code](real-code.md)). Figures speak of these positions, dtypes and versions alone.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of `shift`. times: its drift over that of recipe hf in the same cell."""

    dtype: str
    offset: int
    environment: str
    drift_relative: float
    times: float
    verdict: str
    within: str
    resembles: str
    refused: str

    @property
    def outlier(self) -> bool:
        """Whether it is out of tolerance, wrong_rotation, or several times worse than recipe hf."""
        return self.verdict != "refused" and (
            self.within != "yes" or self.verdict in BAD or self.times > SEVERAL
        )

    @property
    def words(self) -> str:
        """What it came to, as a clause."""
        under = "" if self.environment == CLEAN else f" under {self.environment}"
        times = "" if math.isnan(self.times) else f", {short(self.times)} times that of hf"
        size = "nan or infinity" if math.isnan(self.drift_relative) else percent(self.drift_relative)
        return f"in {self.dtype} at {self.offset}{under} scores drift by {size}{times} ({self.verdict})"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """An implementation. behaves: the nearest recipe's arithmetic, in words; recipes: its names.

    stages: stage -> dtypes in order and operations. cast: largest wrong cos after .to(bfloat16), 0 where none
    is wrong, nan where it was not cast. causes: environment -> what `shift` says of it.
    """

    name: str
    version: str
    cells: Sequence[Cell]
    behaves: str = ""
    recipes: Sequence[str] = ()
    stages: Mapping[str, str] = field(default_factory=dict)
    cast: float = math.nan
    causes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Surveyed":
        """Return what `asdict` gave."""
        return cls(**{**given, "cells": [Cell(**one) for one in given["cells"]]})

    @property
    def clean(self) -> list[Cell]:
        """The cells in which nothing is changed and that were measured."""
        return [cell for cell in self.cells if cell.environment == CLEAN and cell.verdict != "refused"]

    @property
    def outliers(self) -> list[Cell]:
        """The clean cells that are outliers, the largest drift first."""
        return [cell for cell in sorted(self.clean, key=lambda cell: -size(cell)) if cell.outlier]

    @property
    def exposures(self) -> list[Cell]:
        """For each environment the worst cell, of those that are outliers and worse than clean."""
        clean = {(cell.dtype, cell.offset): cell for cell in self.clean}
        worst: dict[str, Cell] = {}
        for cell in self.cells:
            beside = clean.get((cell.dtype, cell.offset))
            if cell.environment == CLEAN or beside is None or not cell.outlier:
                continue
            if not size(cell) > CHANGED * beside.drift_relative:
                continue
            if cell.environment not in worst or size(cell) > size(worst[cell.environment]):
                worst[cell.environment] = cell
        return list(worst.values())

    @property
    def refused(self) -> str:
        """Why nothing of it was measured; empty where something was."""
        return "" if self.clean else next((cell.refused for cell in self.cells), "refused")

    def largest(self, dtype: str) -> float:
        """Return the largest drift in a dtype; nan where a score is not finite, and where there is none."""
        drifts = [cell.drift_relative for cell in self.clean if cell.dtype == FORMS[dtype]]
        return math.nan if any(map(math.isnan, drifts)) else max(drifts, default=math.nan)

    @property
    def ends(self) -> list[int]:
        """The offsets at which it is refused in every dtype."""
        clean = [cell for cell in self.cells if cell.environment == CLEAN]
        taken = {cell.offset for cell in self.clean}
        return list(dict.fromkeys(cell.offset for cell in clean if cell.offset not in taken))


def size(cell: Cell) -> float:
    """Return the drift of a cell; infinity where a score is not finite."""
    return math.inf if math.isnan(cell.drift_relative) else cell.drift_relative


of = Declare[Surveyed]()


def _exposed(one: Surveyed) -> str:
    if all(cell.environment == CLEAN for cell in one.cells):
        return "untried"
    return " ".join(cell.environment for cell in one.exposures) or "none"


def _verdict(one: Surveyed) -> str:
    seen = {cell.verdict for cell in one.clean}
    return next((word for word in reversed(VERDICTS) if word in seen), "refused")


class Columns:
    """The columns of the survey: a row an implementation."""

    implementation: str = of("what was called", lambda one: one.name)
    version: str = of("of its package")
    fp32: float = of(
        "largest drift in float32 over the offsets, over the scores' RMS; nan if a score is not finite",
        lambda one: one.largest("fp32"),
        style="percent",
    )
    fp16: float = of("the same in float16", lambda one: one.largest("fp16"), style="percent")
    bf16: float = of("the same in bfloat16", lambda one: one.largest("bf16"), style="percent")
    times: float = of(
        "largest drift over that of recipe hf in the same dtype and at the same offset",
        lambda one: max((cell.times for cell in one.clean if not math.isnan(cell.times)), default=math.nan),
    )
    outlier: str = of(
        "yes where a row is out of tolerance, wrong_rotation, or drifts more than 3 times as much as hf",
        lambda one: "yes" if one.outliers else "no",
    )
    verdict: str = of("the worst verdict over dtypes and offsets", _verdict)
    exposed: str = of(
        "environments that make it an outlier, or a worse one; none of those tried, or untried", _exposed
    )
    cast_cos_error: float = of(
        "largest error of cos after .to(bfloat16) of its class at positions up to 1255; 0 where it is within "
        "what roundings explain, nan where it was not cast",
        lambda one: one.cast,
    )
    ends: str = of(
        "offsets at which it is refused in every dtype, such as those past its table; none: none",
        lambda one: " ".join(map(str, one.ends)) or "none",
    )
    recipes: str = of(
        "recipes with that arithmetic; none: no named one", lambda one: " ".join(one.recipes) or "none"
    )


COLUMNS = of.columns(Columns)


def rows_of(names: Sequence[str], jobs: int) -> tuple[list[Mapping[str, Any]], list[str], dict[str, str]]:
    """Return the rows of `shift`, each implementation's in the head_dim that it takes; notes, environment."""
    done: dict[str, list[Mapping[str, Any]]] = {}
    left, notes, environment = list(names), list[str](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        for head_dim in HEAD_DIMS:
            if not left:
                break
            out = Path(folder) / f"{head_dim}.json"
            line = ["shift", "--impl", ",".join(left), "--dtype", ",".join(DTYPES), "--jobs", str(jobs)]
            line += ["--offset", ",".join(map(str, OFFSETS)), "--under", ",".join(UNDER), "-o", str(out)]
            line += ["--heads", str(HEADS), "--seq-len", str(SEQ_LEN), "--head-dim", str(head_dim), "-q"]
            line += ["--columns", "all"]
            run = [sys.executable, "-m", "ropeaudit", *line]
            subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
            groups: dict[str, list[Mapping[str, Any]]] = {}
            for row in reading.read(str(out)):
                groups.setdefault(row["implementation"], []).append(row)
            done |= groups
            left = [n for n, some in groups.items() if all(one["verdict"] == "refused" for one in some)]
            report = json.loads(out.read_text(encoding="utf-8"))
            notes += report.get("notes", [])
            environment = report["environment"]
    return [row for some in done.values() for row in some], notes, environment


def careful(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Return the RMS drift of recipe hf in the settings of rows, on the same q and k."""
    results = {}
    for head_dim, layout in dict.fromkeys((row["head_dim"], row["layout"]) for row in rows):
        case = Case(heads=HEADS, seq_len=SEQ_LEN, head_dim=head_dim, layout=layout)
        for one in shift(OFFSETS, DTYPES, "hf", cases=case):
            results[head_dim, layout, one.dtype, one.offset] = one.drift_rms
    return results


def explained(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an implementation is like, and what a cast of its class does; this calls it."""
    from ropeaudit import module
    from ropeaudit.features.explain.tracing import trace
    from ropeaudit.recognition import wording

    case = Case(head_dim=row["head_dim"], layout=row["layout"], seq_len=SEQ_LEN, heads=HEADS)
    traced = trace(factories.implementation(name), parse(row["dtype"]), case, TRACED)
    best = traced.nearest()
    result: dict[str, Any] = {
        "behaves": wording.arithmetic(best[0].group.values() | {"recipes": ()}) if best else traced.told(),
        "recipes": [found for one in best for found in one.group.names],
        "stages": {
            one.name: " ".join([" -> ".join(one.dtypes), *one.operations])
            for one in traced.stages
            if one.dtypes
        },
    }
    spec = "" if factories.is_own(name) else third_party.entry_of(name).target
    if spec:
        try:
            audit = module(spec, loaded=("built", "to"), dtypes=("bf16",), up_to=1000 + SEQ_LEN)
        except RopeAuditError:
            return result
        runs = [one for one in audit.runs if one.measured]
        if runs:
            result["cast"] = max((one.measured.cos_error for one in runs if one.wrong), default=0.0)
    return result


def in_a_process(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `explained` does, from a process of its own; nothing where that fails."""
    asked = {"name": name, "row": {column: row[column] for column in ("head_dim", "layout", "dtype")}}
    command = [sys.executable, "-P", "-W", "ignore", __file__, "--explain", json.dumps(asked)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    except subprocess.SubprocessError:
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def survey(names: Sequence[str], jobs: int) -> dict[str, Any]:
    """Return what was measured, as JSON: implementations, and the environment."""
    rows, notes, environment = rows_of(names, jobs)
    beside, groups = careful(rows), dict[str, list[Mapping[str, Any]]]()
    for row in rows:
        groups.setdefault(row["implementation"], []).append(row)
    taken = {
        name: min(some, key=lambda row: parse(row["dtype"]).precision)
        for name, group in groups.items()
        if (some := [row for row in group if row["environment"] == CLEAN and row["verdict"] != "refused"])
    }
    with ThreadPoolExecutor(jobs) as pool:
        more = dict(zip(taken, pool.map(in_a_process, taken, taken.values()), strict=True))
    results = []
    for name, group in groups.items():
        cells = [_cell(row, beside) for row in group]
        one = Surveyed(name, group[0]["version"], cells, causes=_causes(name, notes), **more.get(name, {}))
        results.append(asdict(one))
    return {"implementations": results, "environment": environment}


def _cell(row: Mapping[str, Any], beside: Mapping[tuple[Any, ...], float]) -> Cell:
    hf = beside[row["head_dim"], row["layout"], row["dtype"], row["offset"]]
    return Cell(
        *(row["dtype"], row["offset"], row["environment"], row["drift_relative"]),
        row["drift_rms"] / hf if hf else math.nan,
        *(row["verdict"], row["within_tolerance"], row["resembles"] or "", row["reason"] or ""),
    )


def _causes(name: str, notes: Iterable[str]) -> dict[str, str]:
    """Return environment -> why `shift` says that it is worse there."""
    begin = f"{name} under "
    found = [note.removeprefix(begin).partition(": ") for note in notes if note.startswith(begin)]
    return {where: why.partition(": in ")[0] for where, _, why in found if ": in " in why}


def notes_of(one: Surveyed) -> list[str]:
    """Return what explains an outlier, and what each environment does to it."""
    texts = [f"{one.name}: {one.outliers[0].words}{_stage(one, one.outliers[0])}"] if one.outliers else []
    for cell in one.exposures:
        why = one.causes.get(cell.environment, "")
        texts.append(f"{one.name}: {cell.words}" + (f": {why}" if why else ""))
    return texts


def _stage(one: Surveyed, cell: Cell) -> str:
    """Return which arithmetic or stage explains it."""
    if cell.resembles:
        return f"; it behaves like {cell.resembles}"
    if one.behaves:
        names = f" ({', '.join(one.recipes)})" if one.recipes else ""
        return f"; its arithmetic is that of {one.behaves}{names}"
    seen = ", ".join(
        f"{stage} {text}" for stage, text in one.stages.items() if stage in ("frequency", "angle")
    )
    return "; nothing known resembles it" + (f" (seen: {seen})" if seen else "")


def headline(rows: Sequence[Mapping[str, Any]], refused: int) -> str:
    """Return how many there are, and how many are outliers."""
    if not rows:
        return f"None of {refused} implementations could be called."
    exposed = sum(row["exposed"] not in ("none", "untried") for row in rows)
    casts = [row["cast_cos_error"] for row in rows if not math.isnan(row["cast_cos_error"])]
    outliers = sum(row["outlier"] == "yes" for row in rows)
    parts = [
        f"{outliers} of {len(rows)} implementations drift more than 3 times as much as recipe hf, are out of "
        "tolerance or wrong_rotation"
    ]
    if any(row["exposed"] != "untried" for row in rows):
        parts.append(f"{exposed} become so, or worse, in an environment")
    if casts:
        parts.append(f"of {len(casts)} classes {sum(error > 0 for error in casts)} are wrong after a cast")
    if refused:
        parts.append(f"{refused} could not be called")
    return "; ".join(parts) + "."


def place(one: Surveyed) -> tuple[bool, float, bool, str]:
    """Return by what rows are sorted: outliers first, the worst before; what is exposed; then by name."""
    return not one.outliers, -size(one.outliers[0]) if one.outliers else 0.0, not one.exposures, one.name


def report_of(results: Iterable[Surveyed]) -> Report:
    """Return the report: of two implementations of a name the first that could be called."""
    every: dict[str, Surveyed] = {}
    for one in results:
        if one.name not in every or every[one.name].refused:
            every[one.name] = one
    ordered = sorted((one for one in every.values() if not one.refused), key=place)
    refused = [f"{one.name} was not surveyed: {one.refused}" for one in every.values() if one.refused]
    rows = [COLUMNS.row(one) for one in ordered]
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, tuple(COLUMNS), (), {}),
        headline=headline(rows, len(refused)),
        notes=[text for one in ordered for text in notes_of(one)] + refused,
        legend=LEGEND,
    )


def write(report: Report, environment: Mapping[str, str]) -> None:
    """Write the pages."""
    listed = ", ".join(f"{name} {value}" for name, value in environment.items())
    apart = "Packages that do not go together with these were surveyed in environments of their own."
    page = f"{INTRODUCTION}\n{render('markdown', report)}\nMeasured with {listed}. {apart}\n"
    (DOCS / "survey.md").write_text(page, encoding="utf-8")
    (DOCS / "survey.html").write_text(render("html", report), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--impl", default="all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--from", dest="files", type=Path, nargs="*", default=[])
    parser.add_argument("--explain", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.explain:
        print(json.dumps(explained(**json.loads(options.explain))))
        return
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in options.files]
    parts = parts or [survey(options.impl.split(","), options.jobs)]
    report = report_of(Surveyed.from_json(one) for part in parts for one in part["implementations"])
    if options.save:
        options.save.write_text(json.dumps(parts[0]), encoding="utf-8")
    else:
        write(report, parts[0]["environment"])
    print(report.headline)


if __name__ == "__main__":
    main()
