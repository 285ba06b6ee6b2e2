"""The survey for people and for files: outliers first, each with what explains it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.features.survey.columns import CELLS, COLUMNS, SCHEMA, SurveyCell
from ropeaudit.features.survey.surveyed import Cell, Surveyed
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent, short

LEGEND = (
    "fp32, fp16, bf16: largest drift over the offsets, over the scores' RMS; times: over that of recipe hf;\n"
    "exposed: environments that make it an outlier; cast cos error: after .to(bfloat16) of the class."
)


def survey_report(
    results: Sequence[Surveyed], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report, outliers first. columns: what is shown and written, in this order."""
    ordered = sorted((one for one in results if not one.refused), key=_place)
    refused = [f"{one.name} was not surveyed: {one.refused}" for one in results if one.refused]
    rows = [COLUMNS.row(one) for one in ordered]
    cells = [CELLS.row(SurveyCell(one, cell)) for one in ordered for cell in one.cells]
    every = rows + [COLUMNS.row(one) for one in results if one.refused]
    return replace(
        tabulated(COLUMNS, SCHEMA, every, COLUMNS.screen(ordered), columns, metadata),
        folded=rows,
        headline=headline(rows, len(refused)),
        notes=[text for one in ordered for text in notes(one)] + refused,
        refusals=refused,
        legend=LEGEND,
        further={"cells": Report(cells, list(CELLS), list(CELLS), declared=CELLS)},
    )


def _place(one: Surveyed) -> tuple[bool, float, bool, str]:
    """Return by what rows are sorted: outliers first, the worst before; what is exposed; then by name."""
    return not one.outliers, -_size(one.outliers[0]) if one.outliers else 0.0, not one.exposures, one.name


def _size(cell: Cell) -> float:
    return math.inf if math.isnan(cell.drift_relative) else cell.drift_relative


def headline(rows: Sequence[Mapping[str, Any]], refused: int) -> str:
    """Return how many there are, and how many are outliers, by rows of `COLUMNS`."""
    if not rows:
        return f"None of {refused} implementations could be called."
    exposed = sum(row["exposed"] not in ("none", "untried") for row in rows)
    casts = [row["cast_cos_error"] for row in rows if not math.isnan(row["cast_cos_error"])]
    outliers = sum(row["outlier"] == "yes" for row in rows)
    parts = [
        f"{outliers} of {len(rows)} implementations drift more than 3 times as much as recipe hf, are out of "
        "tolerance or misplaced"
    ]
    if any(row["exposed"] != "untried" for row in rows):
        parts.append(f"{exposed} become so, or worse, in an environment")
    if casts:
        parts.append(f"of {len(casts)} classes {sum(error > 0 for error in casts)} are wrong after a cast")
    if refused:
        parts.append(f"{refused} could not be called")
    return "; ".join(parts) + "."


def notes(one: Surveyed) -> list[str]:
    """Return what explains an outlier, and what each environment does to it."""
    texts = []
    if one.outliers:
        cell = one.outliers[0]
        texts.append(f"{one.name}: {_cell(cell)}{_stage(one, cell)}")
    for cell in one.exposures:
        why = one.causes.get(cell.environment, "")
        texts.append(f"{one.name}: {_cell(cell)}" + (f": {why}" if why else ""))
    texts += [f"{one.name}: {text}" for text in one.notes]
    return texts


def _cell(cell: Cell) -> str:
    """Return what a cell came to, as a clause."""
    times = "" if math.isnan(cell.times) else f", {short(cell.times)} times that of hf"
    size = "nan or infinity" if math.isnan(cell.drift_relative) else percent(cell.drift_relative)
    return f"in {cell.where} scores drift by {size}{times} ({cell.verdict})"


def _stage(one: Surveyed, cell: Cell) -> str:
    """Return which arithmetic or stage explains it."""
    if cell.resembles:
        return f"; it behaves like {cell.resembles}"
    if one.behaves:
        return f"; its arithmetic is that of {one.behaves}" + (
            f" ({', '.join(one.recipes)})" if one.recipes else ""
        )
    seen = ", ".join(
        f"{stage} {text}" for stage, text in one.stages.items() if stage in ("frequency", "angle")
    )
    return f"; nothing known resembles it (seen: {seen})" if seen else "; nothing known resembles it"
