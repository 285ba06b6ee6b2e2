"""The columns of scores against distance: a row a distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.audits import records
from ropeaudit.features.decay.analysis import Decay
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
