"""Scores against distance for people: the finding in words, the rows, the curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ropeaudit.features.decay.analysis import Decay
from ropeaudit.features.decay.audit import DecayCurves
from ropeaudit.features.decay.cosine_sum import searched
from ropeaudit.reports import Report
from ropeaudit.reports.charts.series import DataPoint, Series
from ropeaudit.reports.charts.terminal import curves
from ropeaudit.reports.numbers import percent, short
from ropeaudit.rope.setting import RopeSetting

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "setting": "the setting: model, or what was chosen",
    "head_dim": "dims of a head",
    "rotary_dim": "dims of a head that are rotated",
    "base": "theta: frequencies are base^(-2i/rotary_dim)",
    "scaling": "how the frequencies are changed",
    "clip": "cap of the angles, radians; inf without one",
    "layout": "pairs of dims: half (i, i + rotary_dim/2) or interleaved (2i, 2i + 1)",
    "scale": "softmax scale that multiplies every score",
    "source": "where q and k come from: gaussian, ones, arange or a file",
    "seed": "seed of gaussian q and k; nan where none was used",
    "heads": "query heads",
    "vectors": "queries and keys of a head: every query is paired with every key",
    "subject": "recipe, nan without one",
    "dtype": "number format of the model, nan without a recipe",
    "distance": "position of the query; the key stands at 0",
    "score_mean": "mean of the exact scores over all pairs, in score units",
    "score_rms": "RMS of the exact scores over all pairs, in score units",
    "mean_relative": "score_mean / score_rms at distance 0",
    "rms_relative": "score_rms / score_rms at distance 0",
    "bound": "RoFormer, section 3.4.3: mean over j of |sum_{i<j} e^{i distance theta_i}|, exact",
    "men_sum": "Men et al.: sum_i cos(distance theta_i), exact",
    "first_failing": "first distance, up to the largest one, at which men_sum < 0; nan where there is none",
    "subject_mean": "mean of the recipe's scores",
    "subject_rms": "RMS of the recipe's scores",
    "drift_rms": "RMS of the recipe's scores minus the exact ones",
    "drift_relative": "drift_rms / score_rms",
    "subject_bound": "bound, from the cos and sin that the recipe stores",
    "subject_men_sum": "men_sum, from the cos that the recipe stores",
    "subject_first_failing": "first distance at which subject_men_sum is negative or nan",
}
LEGEND = (
    "mean, rms relative: mean and RMS of the exact scores of every query with every key, over the RMS at "
    "distance 0;\nbound: RoFormer's decay curve, section 3.4.3; men sum: sum of cos(distance theta_i), "
    "which Men et al. want to be 0 or more."
)
_DECAYED = 0.5  # share of the RMS score at distance 0 below which scores "decay"
_MOST_SENTENCES, _MOST_CURVES = 3, 4


def rows(results: Decay) -> list[dict[str, Any]]:
    """Return a row per distance with the columns of `COLUMNS`."""
    setting, inputs, recipe = results.setting, results.inputs, results.recipe
    head = {
        "setting": results.label,
        **{name: getattr(setting, name) for name in ("head_dim", "rotary_dim", "base")},
        "scaling": str(setting.scaling),
        **{name: getattr(setting, name) for name in ("clip", "layout", "scale")},
        "source": inputs.source,
        "seed": inputs.seed,
        "heads": inputs.q.shape[0],
        "vectors": inputs.q.shape[1],
        "subject": recipe.recipe.name if recipe else None,
        "dtype": recipe.dtype.name if recipe else None,
    }
    whole = {"first_failing": results.first, "subject_first_failing": results.own_first}
    scores, nothing = results.scores, np.full(len(results.distances), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "score_mean": scores.mean,
            "score_rms": scores.rms,
            "mean_relative": scores.mean / results.start,
            "rms_relative": scores.rms / results.start,
            "bound": results.exact.bound,
            "men_sum": results.exact.men_sum,
            "subject_mean": scores.own_mean,
            "subject_rms": scores.own_rms,
            "drift_rms": scores.drift_rms,
            "drift_relative": scores.drift_rms / scores.rms,
            "subject_bound": results.own.bound if results.own else nothing,
            "subject_men_sum": results.own.men_sum if results.own else nothing,
        }
    built = []
    for i, distance in enumerate(results.distances):
        row = head | whole | {"distance": distance} | {k: float(v[i]) for k, v in columns.items()}
        built.append({name: row[name] for name in COLUMNS})
    return built


def curves_report(
    results: Sequence[DecayCurves],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    header: bool = True,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    return decay_report([one.curves for one in results], shapes(results), metadata, columns, header)


def shapes(results: Sequence[DecayCurves]) -> list[Decay]:
    """Return the exact curves on dense distances, those of each setting and each q and k once."""
    return list({id(one.shape): one.shape for one in results}.values())


def decay_report(
    results: Sequence[Decay],
    shapes: Sequence[Decay],
    metadata: Mapping[str, Any],
    columns: Sequence[str] | None = None,
    header: bool = True,
) -> Report:
    """Return the report; `shapes` are the exact curves on dense distances, for the finding in words."""
    whole = [row for one in results for row in rows(one)]
    some = [name for name in ("setting", "source") if len({row[name] for row in whole}) > 1]
    own = any(one.recipe for one in results)
    several = ["first_failing"] if "setting" in some else []
    screen = [*some, *(("subject", "dtype") if own else ()), "distance", "mean_relative", "rms_relative"]
    screen += ["bound", "men_sum", *several]
    screen += ["drift_rms", "drift_relative", "subject_bound", "subject_men_sum"] if own else []
    return Report(
        rows=whole,
        columns=list(columns or COLUMNS),
        screen=list(columns or screen),
        dispensable=()
        if columns
        else ("drift_relative", "subject_bound", "subject_men_sum", "first_failing"),
        headline=" ".join([*_headline(shapes), *_worst(results)]),
        notes=_notes(results),
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
        header=header,
    )


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


def plotted(shapes: Sequence[Decay], width: int = 48, plain: bool = False) -> str:
    """Return small curves as text: RMS score of every q and k, and RoFormer's bound, over distance 0."""
    lines = [
        _curve(
            f"{one.label} {one.inputs.source}: RMS score / that at distance 0",
            one.distances,
            one.scores.rms / one.start,
        )
        for one in shapes
        if one.start
    ]
    for one in {(shape.label, shape.setting): shape for shape in shapes}.values():
        lines.append(_curve(f"{one.label}: RoFormer's bound", one.distances, one.exact.bound))
    return curves(lines, _MOST_CURVES, width, plain)


def _curve(label: str, distances: Iterable[int], values: Iterable[float]) -> Series:
    return Series(label, [DataPoint(x, float(y)) for x, y in zip(distances, values, strict=True)])
