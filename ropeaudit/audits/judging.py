"""The verdict on a row: how it behaves, and whether it is good enough."""

from __future__ import annotations

import math
import tomllib
from typing import Literal

from ropeaudit import data

# Thresholds of verdicts, here and in the words of verdicts.toml and columns.toml alone.
TOLERANCE = 0.01  # of drift_relative
EXCESS = 3.0  # "growing", "coarse": drift_rms > EXCESS * attainable_rms
GROWTH = 2.0  # "growing": drift_rms > GROWTH * floor_rms
BROKEN_SHARE = 0.5  # "broken": drift_rms >= BROKEN_SHARE * reference_rms
FEWEST = 100  # scores below which no drift is called good enough

_WORDS = tomllib.loads(data.text("verdicts.toml"))
VERDICTS: dict[str, str] = _WORDS["verdicts"]
Verdict = Literal["sound", "exact", "coarse", "growing", "broken", "wrong_rotation", "overflow", "refused"]
Refused = Literal["unsupported", "raises", "uncalled"]
REFUSALS: dict[Refused, str] = _WORDS["refusals"]


def judge(
    *,
    nonfinite: int,
    drift_max: float,
    drift_rms: float,
    floor_rms: float,
    reference_rms: float,
    reference_error: float,
    excess: float,
    wrong_rotation: bool,
) -> Verdict:
    """Return the verdict of a row: the first that holds, worst cases first."""
    if nonfinite:
        return "overflow"
    if wrong_rotation:
        return "wrong_rotation"
    if drift_rms >= BROKEN_SHARE * reference_rms and drift_max > reference_error:
        return "broken"
    if drift_max <= reference_error:
        return "exact"
    if excess <= EXCESS:
        return "sound"
    return "growing" if drift_rms > GROWTH * floor_rms else "coarse"


def within(
    tolerance: float,
    *,
    nonfinite: int,
    scores: int,
    drift_relative: float,
    interval: tuple[float, float] | None,
    wrong_rotation: bool,
    exact: bool = False,
) -> bool | None:
    """Return whether a row is good enough; None where that is undecided.

    interval: of drift_relative, where it is estimated from a sample. wrong_rotation: whether a pair is off
    by more than roundings explain. exact: whether drift is within the certified error of the reference.
    """
    if nonfinite or wrong_rotation:
        return False
    low, high = interval or (drift_relative, drift_relative)
    if scores < FEWEST or low <= tolerance < high:
        return None
    return exact or drift_relative <= tolerance


def rotates_wrongly(excess: float | None) -> bool:
    """Return whether a rotated pair is further off than its dtype explains, whatever recipe rounds so.

    excess: the largest rotation error / allowed of code; None of a recipe.
    """
    return (excess or 0.0) > 1


def ratio(value: float, by: float) -> float:
    """Return value / by, or nan where that is undefined."""
    return value / by if by and math.isfinite(by) else math.nan
