"""Survey every implementation that is installed, and write docs/survey.md and docs/survey.html.

python tests/survey_page.py [--jobs N]        survey all, and write the pages
python tests/survey_page.py --from A.json ... the pages of reports that `ropeaudit survey -o A.json`
                                              for packages that exclude each other are surveyed apart
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ropeaudit.audits.judging import VERDICTS
from ropeaudit.features.survey.columns import COLUMNS, SCHEMA
from ropeaudit.features.survey.report import LEGEND, headline
from ropeaudit.reports import render, tabulated

DOCS = Path(__file__).parents[1] / "docs"
SCREEN = (
    *("implementation", "version", "fp32", "fp16", "bf16", "times", "outlier", "verdict", "exposed"),
    *("cast_cos_error", "ends", "recipes"),
)
INTRODUCTION = """\
# Survey

Every RoPE implementation that could be called, with the same q and k (4 heads of 256 tokens, head_dim 128 or
64, base 10000) at offsets 0, 1000 and 131072, in three dtypes, in the clean state and in three environments,
and its class after `.to(bfloat16)`. Outliers come first, then what an environment makes one; find your
package by its name. The same table sorts and filters in [survey.html](survey.html).

```bash
ropeaudit survey all --jobs 2 -o survey.md -o survey.html
```

`python tests/survey_page.py` writes this page. fp32, fp16 and bf16 are the largest drift over the offsets, in
float32 nearly always that at 131072, where angles have lost digits. A wrong cast is what `.to(bfloat16)` of a
module does to its frequencies, not what the library does by itself: `from_pretrained(dtype=...)` keeps them
([real code](real-code.md)). Figures speak of these positions, dtypes and versions alone.
"""


def surveyed(jobs: int) -> Path:
    """Run the survey; return the report's file."""
    out = Path(tempfile.mkdtemp()) / "survey.json"
    command = [sys.executable, "-m", "ropeaudit", "survey", "all", "--jobs", str(jobs), "-o", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def joined(files: list[Path]) -> dict:
    """Return one report of several: of two rows of an implementation the first."""
    rows, notes, environments = {}, [], []
    for file in files:
        report = json.loads(file.read_text(encoding="utf-8"))
        cells = report["cells"]
        for row in report["records"]:
            row = {name: math.nan if value is None else value for name, value in row.items()}
            rows.setdefault(row["implementation"], row | _of_cells(row["implementation"], cells))
        notes += report.get("notes", [])
        environments.append(report["environment"])
    refused = {note.partition(" was not surveyed: ")[0] for note in notes if " was not surveyed: " in note}
    called = [note for note in notes if note.partition(" was not surveyed: ")[0] not in set(rows) & refused]
    return {"rows": list(rows.values()), "notes": list(dict.fromkeys(called)), "environment": environments[0]}


def _of_cells(name: str, cells: list[dict]) -> dict:
    """Return the worst verdict of an implementation's clean cells, and its largest drift in each dtype."""
    mine = [one for one in cells if one["implementation"] == name and one["environment"] == "none"]
    mine = [one for one in mine if one["verdict"] != "refused"]
    seen = {one["verdict"] for one in mine}
    row = {"verdict": next(word for word in reversed(VERDICTS) if word in seen)}
    for column, dtype in (("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")):
        drifts = [one["drift_relative"] for one in mine if one["dtype"] == dtype]
        row[column] = max(drifts) if drifts and None not in drifts else math.nan
    return row


def place(row: dict) -> tuple:
    """Return by what rows are sorted: as the command does."""
    worst = max(
        (row[name] for name in ("fp32", "fp16", "bf16") if not math.isnan(row[name])), default=math.inf
    )
    outlier = row["outlier"] == "yes"
    return (
        not outlier,
        -worst if outlier else 0.0,
        row["exposed"] in ("none", "untried"),
        row["implementation"],
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--from", dest="files", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    found = joined(options.files or [surveyed(options.jobs)])
    rows, refused = (
        sorted(found["rows"], key=place),
        [one for one in found["notes"] if "not surveyed:" in one],
    )
    report = replace(
        tabulated(COLUMNS, SCHEMA, rows, SCREEN, (), {}),
        headline=headline(rows, len(refused)),
        notes=found["notes"],
        legend=LEGEND,
    )
    listed = ", ".join(f"{name} {value}" for name, value in found["environment"].items())
    apart = "Packages that do not go together with these were surveyed in environments of their own."
    page = f"{INTRODUCTION}\n{render('markdown', report)}\nMeasured with {listed}. {apart}\n"
    (DOCS / "survey.md").write_text(page, encoding="utf-8")
    (DOCS / "survey.html").write_text(render("html", report), encoding="utf-8")
    print(report.headline)


if __name__ == "__main__":
    main()
