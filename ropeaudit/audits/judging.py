"""The verdict on a row, and whether it is within tolerance; the thresholds of both."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from ropeaudit import data

# Thresholds, which the texts of verdicts.toml and columns.toml repeat.
TOLERANCE = 0.01  # of drift_relative
EXCESS = 3.0  # "growing", "coarse": drift_rms > EXCESS * attainable_rms
GROWTH = 2.0  # "growing": drift_rms > GROWTH * floor_rms
BROKEN_SHARE = 0.5  # "broken": drift_rms >= BROKEN_SHARE * reference_rms
FEWEST = 100  # scores that a judgement needs

_WORDS = tomllib.loads(data.text("verdicts.toml"))
VERDICTS: dict[str, str] = _WORDS["verdicts"]
Verdict = Literal["sound", "exact", "coarse", "growing", "broken", "wrong_rotation", "overflow", "refused"]
Refused = Literal["unsupported", "raises", "uncalled"]
REFUSALS: dict[Refused, str] = _WORDS["refusals"]


def judge(row: Mapping[str, Any], wrong_rotation: bool) -> Verdict:
    """Return the verdict of a row: the worst that holds."""
    if row["nonfinite"]:
        return "overflow"
    if wrong_rotation:
        return "wrong_rotation"
    if row["drift_rms"] >= BROKEN_SHARE * row["reference_rms"] and row["drift_max"] > row["reference_error"]:
        return "broken"
    if row["drift_max"] <= row["reference_error"]:
        return "exact"
    if row["excess"] <= EXCESS:
        return "sound"
    return "growing" if row["drift_rms"] > GROWTH * row["floor_rms"] else "coarse"


def within(row: Mapping[str, Any], wrong_rotation: bool) -> bool | None:
    """Return whether a row is within its tolerance; None where that is undecided."""
    if row["nonfinite"] or wrong_rotation:
        return False
    relative, tolerance = row["drift_relative"], row["tolerance"]
    low = high = relative
    if row["drift_rms_low"] is not None:  # the interval of a sample
        low, high = (row[name] / row["reference_rms"] for name in ("drift_rms_low", "drift_rms_high"))
    if row["scores"] < FEWEST or low <= tolerance < high:
        return None
    return bool(relative <= tolerance or row["drift_max"] <= row["reference_error"])


def rotates_wrongly(excess: float | None) -> bool:
    """Return whether a pair is rotated wrongly. excess: its error ÷ allowed; None for a recipe."""
    return (excess or 0.0) > 1


def ratio(value: float, by: float) -> float:
    """Return value / by; nan if undefined."""
    return value / by if by and math.isfinite(by) else math.nan
