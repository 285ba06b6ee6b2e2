"""Scores against distance for people: the finding in words, the rows, the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits import records
from ropeaudit.features.decay.analysis import Decay
from ropeaudit.features.decay.audit import DecayCurves
from ropeaudit.features.decay.cosine_sum import searched
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import percent, short
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import Declare

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Point:
    """The curves of a setting at one of its distances, by its index."""

    curves: Decay
    index: int

    def at(self, values: Array | None) -> float:
        """Return the value of a curve at the distance, nan without one. Shapes: (s,)."""
        return float("nan") if values is None else float(values[self.index])

    def over(self, values: Array, by: Array | float) -> float:
        """Return a curve over another, or over a number, at the distance; empty or infinite over 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.divide(values[self.index], by if isinstance(by, float) else by[self.index]))


def _emulated(one: Point) -> bool:
    return one.curves.recipe is not None


of = Declare[Point]()


class DecayColumns:
    """The columns of `ropeaudit decay`."""

    setting: str = of("the setting: model, or what was chosen", lambda one: one.curves.label)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: one.curves.setting.head_dim)
    rotary_dim = of.like(records.COLUMNS["rotary_dim"], lambda one: one.curves.setting.rotary_dim)
    base = of.like(records.COLUMNS["base"], lambda one: one.curves.setting.base)
    scaling = of.like(records.COLUMNS["scaling"], lambda one: str(one.curves.setting.scaling))
    clip: float = of(
        "cap of the angles, radians; inf without one", lambda one: one.curves.setting.clip, unit="radians"
    )
    layout = of.like(records.COLUMNS["layout"], lambda one: one.curves.setting.layout)
    scale = of.like(records.COLUMNS["scale"], lambda one: one.curves.setting.scale)
    source: str = of(
        "where q and k come from: gaussian, ones, arange or a file", lambda one: one.curves.inputs.source
    )
    seed: int | None = of(
        "seed of gaussian q and k; empty where none was used", lambda one: one.curves.inputs.seed
    )
    heads = of.like(records.COLUMNS["heads"], lambda one: one.curves.inputs.q.shape[0])
    vectors: int = of(
        "queries and keys of a head: every query is paired with every key",
        lambda one: one.curves.inputs.q.shape[1],
    )
    implementation: str | None = of(
        "recipe; empty without one",
        lambda one: one.curves.recipe.recipe.name if one.curves.recipe else None,
        shown=_emulated,
    )
    dtype: str | None = of(
        "number format of the model; empty without a recipe",
        lambda one: one.curves.recipe.dtype.name if one.curves.recipe else None,
        shown=_emulated,
    )
    distance: int = of(
        "position of the query; the key stands at 0",
        lambda one: one.curves.distances[one.index],
        unit="tokens",
        shown=True,
    )
    score_mean: float = of(
        "mean of the exact scores over all pairs, in score units",
        lambda one: one.at(one.curves.scores.mean),
        unit="score",
    )
    score_rms: float = of(
        "RMS of the exact scores over all pairs, in score units",
        lambda one: one.at(one.curves.scores.rms),
        unit="score",
    )
    mean_relative: float = of(
        "score_mean / score_rms at distance 0",
        lambda one: one.over(one.curves.scores.mean, one.curves.start),
        shown=True,
    )
    rms_relative: float = of(
        "score_rms / score_rms at distance 0",
        lambda one: one.over(one.curves.scores.rms, one.curves.start),
        shown=True,
    )
    bound: float = of(
        "RoFormer, section 3.4.3: mean over j of |sum_{i<j} e^{i distance theta_i}|, exact",
        lambda one: one.at(one.curves.exact.bound),
        shown=True,
    )
    men_sum: float = of(
        "Men et al.: sum_i cos(distance theta_i), exact",
        lambda one: one.at(one.curves.exact.men_sum),
        shown=True,
    )
    first_failing: int | None = of(
        "first distance, up to the largest one, at which men_sum < 0; empty where there is none",
        lambda one: one.curves.first,
        unit="tokens",
        leaves=4,
        shown=True,
    )
    subject_mean: float = of(
        "mean of the recipe's scores", lambda one: one.at(one.curves.scores.own_mean), unit="score"
    )
    subject_rms: float = of(
        "RMS of the recipe's scores", lambda one: one.at(one.curves.scores.own_rms), unit="score"
    )
    drift_rms: float = of(
        "RMS of the recipe's scores minus the exact ones",
        lambda one: one.at(one.curves.scores.drift_rms),
        unit="score",
        shown=_emulated,
    )
    drift_relative: float = of(
        "drift_rms / score_rms",
        lambda one: one.over(one.curves.scores.drift_rms, one.curves.scores.rms),
        style="percent",
        leaves=1,
        shown=_emulated,
    )
    subject_bound: float = of(
        "bound, from the cos and sin that the recipe stores",
        lambda one: one.at(one.curves.own.bound if one.curves.own else None),
        leaves=2,
        shown=_emulated,
    )
    subject_men_sum: float = of(
        "men_sum, from the cos that the recipe stores",
        lambda one: one.at(one.curves.own.men_sum if one.curves.own else None),
        leaves=3,
        shown=_emulated,
    )
    subject_first_failing: int | None = of(
        "first distance at which subject_men_sum is negative or nan",
        lambda one: one.curves.own_first,
        unit="tokens",
    )


COLUMNS = of.columns(DecayColumns)


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
        headline=headline(results),
        notes=notes(curves),
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


def headline(results: Sequence[DecayCurves]) -> str:
    """Return a sentence per setting: which q and k decay, where the bound rises again, where the sum fails.

    The last is about the recipe that is farthest off.
    """
    by_setting: dict[tuple[str, RopeSetting], list[Decay]] = {}
    for one in _shapes(results):
        by_setting.setdefault((one.label, one.setting), []).append(one)
    message = [_sentence(some) for some in list(by_setting.values())[:_MOST_SENTENCES]]
    more = len(by_setting) - len(message)
    rest = [f"({more} more settings.)"] if more else []
    return " ".join([*message, *rest, *_worst([one.curves for one in results])])


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


def notes(results: Sequence[Decay]) -> list[str]:
    """Return how far first distances were looked for, and which a recipe has of its own."""
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
