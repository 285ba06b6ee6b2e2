"""The columns of the survey: a row an implementation, and beside them a row a cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropeaudit.audits import records
from ropeaudit.audits.judging import VERDICTS
from ropeaudit.features.survey.surveyed import CLEAN, Cell, Surveyed
from ropeaudit.runtime.columns import Declare

SCHEMA = 1
of = Declare[Surveyed]()


def largest(one: Surveyed, dtype: str) -> float:
    """Return the largest drift over the scores' RMS of the clean cells in a dtype.

    nan where a score is not finite, and where there is no such cell.
    """
    cells = [cell.drift_relative for cell in one.clean if cell.dtype == dtype and cell.verdict != "refused"]
    return math.nan if any(map(math.isnan, cells)) else max(cells, default=math.nan)


def worst(one: Surveyed) -> Cell | None:
    """Return the clean cell with the largest drift over that of recipe hf; None without any."""
    cells = [cell for cell in one.clean if not math.isnan(cell.times)]
    return max(cells, key=lambda cell: cell.times, default=None)


def _worst_times(one: Surveyed) -> float:
    cell = worst(one)
    return cell.times if cell else math.nan


def _exposed(one: Surveyed) -> str:
    if all(cell.environment == CLEAN for cell in one.cells):
        return "untried"
    return " ".join(cell.environment for cell in one.exposures) or "none"


def _verdict(one: Surveyed) -> str:
    """Return the worst verdict of the clean cells that were measured."""
    seen = {cell.verdict for cell in one.clean} - {"refused"}
    return next((word for word in reversed(VERDICTS) if word in seen), "refused")


def _cast(one: Surveyed) -> float:
    return max((cast.cos_error for cast in one.casts if cast.wrong), default=0.0 if one.casts else math.nan)


class SurveyColumns:
    """The columns of `ropeaudit survey`: a row an implementation."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    implementation: str = of("what was called", lambda one: one.name, shown=True)
    version: str = of("of its package", shown=True, leaves=4)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: one.head_dim)
    layout: str = of("pairs of dims: half or interleaved", lambda one: one.layout or "none")
    fp32: float = of(
        "largest drift in float32 over the offsets, over the scores' RMS; nan if a score is not finite",
        lambda one: largest(one, "float32"),
        style="percent",
        shown=True,
    )
    fp16: float = of("the same in float16", lambda one: largest(one, "float16"), style="percent", shown=True)
    bf16: float = of(
        "the same in bfloat16", lambda one: largest(one, "bfloat16"), style="percent", shown=True
    )
    times: float = of(
        "largest drift over that of recipe hf in the same dtype and at the same offset",
        _worst_times,
        shown=True,
    )
    outlier: str = of(
        "yes where a row is out of tolerance, misplaced, or drifts more than 3 times as much as hf",
        lambda one: "yes" if one.outliers else "no" if one.cells else "unknown",
        shown=True,
    )
    verdict: str = of("the worst verdict over dtypes and offsets", _verdict, shown=True)
    exposed: str = of(
        "environments that make it an outlier, or a worse one; none of those tried, or untried",
        _exposed,
        shown=True,
        leaves=1,
    )
    cast_cos_error: float = of(
        "largest error of cos after .to(bfloat16) of its class at positions up to 1255; 0 where it is within "
        "what roundings explain, nan where it was not cast",
        _cast,
        shown=True,
        leaves=2,
    )
    ends: str = of(
        "offsets at which it is refused in every dtype, such as those past its table; none: none",
        lambda one: " ".join(map(str, one.ends)) or "none",
        shown=lambda one: bool(one.ends),
        leaves=1,
    )
    behaves: str = of(
        "the nearest recipe's arithmetic; none: nothing known", lambda one: one.behaves or "none"
    )
    recipes: str = of(
        "recipes with that arithmetic; none: no named one",
        lambda one: " ".join(one.recipes) or "none",
        shown=True,
        leaves=3,
    )
    refused: str = of("why it could not be called; none where it could", lambda one: one.refused or "none")


COLUMNS = of.columns(SurveyColumns)


@dataclass(frozen=True, slots=True)
class SurveyCell:
    """A cell of an implementation."""

    surveyed: Surveyed
    cell: Cell


in_cell = Declare[SurveyCell]()


class CellColumns:
    """The columns of the cells: a row an implementation, dtype, environment and offset."""

    implementation: str = in_cell("what was called", lambda one: one.surveyed.name)
    dtype: str = in_cell("number format of q and k", lambda one: one.cell.dtype)
    environment: str = in_cell("what it was called under; none: nothing", lambda one: one.cell.environment)
    offset: int = in_cell("added to every position", lambda one: one.cell.offset, unit="tokens")
    drift_relative: float = in_cell("drift over the scores' RMS", lambda one: one.cell.drift_relative)
    times: float = in_cell("drift over that of recipe hf in the same cell", lambda one: one.cell.times)
    distinct_positions: int = in_cell(
        "how many positions rotate differently", lambda one: one.cell.distinct, unit="tokens"
    )
    verdict: str = in_cell("how the row behaves", lambda one: one.cell.verdict)
    within_tolerance: str = in_cell("yes, no or undecided", lambda one: one.cell.within)
    refused: str = in_cell("why it could not be called; none", lambda one: one.cell.refused or "none")


CELLS = in_cell.columns(CellColumns)
