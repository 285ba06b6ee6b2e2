"""Which stage is to blame: the players, what is left of a recipe without some of them, their Shapley values.

A stage takes part by rounding as the recipe says, and stays away by being float64. Errors of one stage may
hide or amplify those of another, so what a stage adds depends on which others are there; the Shapley value
is its mean over all orders in which they can come in.
Source: Shapley, "A value for n-person games", 1953.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recipes import STAGES, Resolved
from ropeaudit.subjects import Positions

Coalition = frozenset[str]
# the reference rounds its q and k too, and scores come before the softmax
SHARED = tuple(stage for stage in STAGES if stage not in ("input", "softmax"))


def formats(recipe: Resolved, stage: str) -> tuple[Format, ...]:
    """Return the formats of a stage: computed and stored, one alone, or none."""
    stage_formats = getattr(recipe, stage)
    if stage_formats is None:
        return ()
    return stage_formats if isinstance(stage_formats, tuple) else (stage_formats,)


def widened(recipe: Resolved, stages: Mapping[str, Format]) -> Resolved:
    """Return the recipe with each of these stages at least as precise as the format beside it.

    Both parts of a stage that is computed in one format and stored in another are widened.
    """
    changes: dict[str, Any] = {}
    for stage, wide in stages.items():
        stage_formats = tuple(wide if wide.precision > f.precision else f for f in formats(recipe, stage))
        if stage_formats:
            changes[stage] = stage_formats if isinstance(getattr(recipe, stage), tuple) else stage_formats[0]
    return replace(recipe, **changes)


def without(recipe: Resolved, stages: Iterable[str]) -> Resolved:
    """Return the recipe with these stages in float64."""
    return widened(recipe, dict.fromkeys(stages, FP64))


def alone(recipe: Resolved, players: Iterable[str], stages: Iterable[str]) -> Resolved:
    """Return the recipe with every player but these stages in float64."""
    return without(recipe, set(players) - set(stages))


def players(recipe: Resolved, positions: Positions) -> list[str]:
    """Return the stages that can round: not those in float64, nor a position stage that is exact."""
    exact = positions.astype(np.float64)
    with np.errstate(over="ignore"):
        positions_exact = bool((round_to(exact, recipe.position) == exact).all())
    return [
        stage
        for stage in SHARED
        if any(fmt is not FP64 for fmt in formats(recipe, stage))
        and not (stage == "position" and positions_exact)
    ]


def coalitions(names: Iterable[str]) -> Iterator[Coalition]:
    """Yield every subset, by growing size."""
    stages = list(names)
    for size in range(len(stages) + 1):
        yield from map(frozenset, combinations(stages, size))


def shapley(values: Mapping[Coalition, float]) -> dict[str, float]:
    """Return the Shapley value of every player; they add up to values[all] - values[nobody].

    values: what each coalition is worth; nan makes the values of all that it bears on nan.

    >>> parts = shapley({frozenset(s): v for s, v in [("", 0.0), ("a", 1.0), ("b", 2.0), ("ab", 5.0)]})
    >>> parts["a"], parts["b"]
    (2.0, 3.0)
    """
    everybody = max(values, key=len)
    count, shapley_values = len(everybody), {}
    for player in everybody:
        total = 0.0
        for coalition, value in values.items():
            if player not in coalition:
                total += (values[coalition | {player}] - value) / (
                    count * math.comb(count - 1, len(coalition))
                )
        shapley_values[player] = total
    return shapley_values
