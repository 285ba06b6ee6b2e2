"""Scores against distance for people: the finding in words, the rows, the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ropeaudit.features.decay.analysis import Decay
from ropeaudit.features.decay.audit import DecayCurves
from ropeaudit.features.decay.columns import COLUMNS, SCHEMA, Point
from ropeaudit.features.decay.cosine_sum import searched
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent, short
from ropeaudit.rope.setting import RopeSetting

LEGEND = (
    "mean relative: mean of the exact scores of every query with every key, over their RMS at distance 0;\n"
    "rms relative: their RMS over that at distance 0;\n"
    "bound: RoFormer's decay curve, section 3.4.3;\n"
    "men sum: sum of cos(distance theta_i), which Men et al. want to be 0 or more."
)
_DECAYED = 0.5  # share of the RMS score at distance 0 below which scores "decay"
_CURVES = ("setting", "source", "distance", "rms_relative", "bound", "men_sum", "first_failing")
_MOST_SENTENCES = 3


def report(
    results: Sequence[DecayCurves],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    header: bool = True,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    curves = [one.curves for one in results]
    points = [Point(one, index) for one in curves for index in range(len(one.distances))]
    rows = [COLUMNS.row(point) for point in points]
    varying = [name for name in ("setting", "source") if len({row[name] for row in rows}) > 1]
    shown = COLUMNS.screen(points)
    if "setting" not in varying:
        shown.remove("first_failing")  # it is in the headline
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, [*varying, *shown], columns, metadata),
        headline=" ".join([*_headline(_shapes(results)), *_worst(curves)]),
        notes=_notes(curves),
        legend=LEGEND,
        header=header,
        further={} if columns else {"curves": _dense(_shapes(results))},
    )


def _dense(shapes: Sequence[Decay]) -> Report:
    """Return the exact curves at the distances that a picture needs: for JSON alone."""
    rows = [COLUMNS.row(Point(one, index)) for one in shapes for index in range(len(one.distances))]
    return Report([{name: row[name] for name in _CURVES} for row in rows], _CURVES, ())


def _shapes(results: Sequence[DecayCurves]) -> list[Decay]:
    """Return the exact curves on dense distances, those of each setting and each q and k once."""
    return list({id(one.shape): one.shape for one in results}.values())


def _headline(shapes: Sequence[Decay]) -> list[str]:
    """A sentence per setting: which q and k decay, where the bound rises again, where the sum fails."""
    by_setting: dict[tuple[str, RopeSetting], list[Decay]] = {}
    for one in shapes:
        by_setting.setdefault((one.label, one.setting), []).append(one)
    message = [_sentence(some) for some in list(by_setting.values())[:_MOST_SENTENCES]]
    more = len(by_setting) - len(message)
    return [*message, f"({more} more settings.)"] if more else message


def _sentence(some: Sequence[Decay]) -> str:
    one = some[0]
    far = np.array(one.distances) >= (one.distances[0] + one.distances[-1]) / 2
    words = []
    for shape in some:
        level = math.sqrt(float(np.mean(shape.scores.rms[far] ** 2)))
        share = level / shape.start if shape.start else math.nan
        verb = "decays to" if share < _DECAYED else "keeps"
        words.append(f"{shape.inputs.source} {verb} {percent(share)}")
    first = int(np.array(one.distances)[far][0])
    what = f"from distance {first} on {' and '.join(words)} of the RMS score at distance 0"
    return f"{one.label}: {what}; {_rise(one)}; {_failing(one)}."


def _rise(shape: Decay) -> str:
    """The largest rise of the bound, which shows that it is not monotone."""
    values, distances = shape.exact.bound, shape.distances
    if np.isnan(values).any():
        return "nothing is rotated"
    lowest = np.minimum.accumulate(values)
    top = int(np.argmax(values - lowest))
    if values[top] - lowest[top] <= 1e-9 * values.max():
        return f"RoFormer's bound falls from {short(float(values[0]))} to {short(float(values[-1]))}"
    low = int(np.argmin(values[: top + 1]))
    return (
        f"RoFormer's bound is not monotone: from {short(float(values[low]))} at {distances[low]} it rises "
        f"to {short(float(values[top]))} at {distances[top]}"
    )


def _failing(shape: Decay) -> str:
    last = min(shape.distances[-1], searched(shape.setting))
    if shape.setting.pairs == 0:
        return "no sum of cosines can fail"
    if shape.first is None:
        return f"the sum of Men et al. is not negative up to {last}"
    inside = ""
    if shape.maximum is not None:
        side = "within" if shape.first < shape.maximum else "past"
        inside = f", {side} the model's {shape.maximum} positions"
    return f"the sum of Men et al. is first negative at {shape.first}{inside}"


def _worst(results: Sequence[Decay]) -> list[str]:
    """The recipe that is farthest off, over all distances."""
    own = [one for one in results if one.recipe]
    if not own:
        return []
    off = [np.where(np.isnan(one.scores.drift_rms), np.inf, one.scores.drift_rms) for one in own]
    which = max(range(len(own)), key=lambda i: float(off[i].max()))
    place = int(np.argmax(off[which]))
    size, one = float(off[which][place]), own[which]
    what = f"is off by {short(size)} RMS" if math.isfinite(size) else "gives scores that are nan or infinite"
    return [f"{_name(one)} {what} at distance {one.distances[place]} ({one.inputs.source})."]


def _notes(results: Sequence[Decay]) -> list[str]:
    message = []
    for one in results:
        last = max(one.distances)
        for recipe in (None, one.recipe) if one.recipe else (None,):
            limit = searched(one.setting, recipe)
            first = one.own_first if recipe else one.first
            if last > limit and first is None:
                who = f"{one.label} {_name(one)}" if recipe else one.label
                message.append(f"{who}: a first failing distance was looked for up to {limit} only.")
        if one.recipe and one.own_first != one.first:
            message.append(
                f"{one.label} {_name(one)}: first failing distance "
                f"{_or_none(one.own_first)}, exactly {_or_none(one.first)}."
            )
    return list(dict.fromkeys(message))


def _name(one: Decay) -> str:
    return f"{one.recipe.recipe.name} {one.recipe.dtype}" if one.recipe else ""


def _or_none(distance: int | None) -> str:
    return "none" if distance is None else str(distance)
