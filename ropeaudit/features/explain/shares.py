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
    result = getattr(recipe, stage)
    if result is None:
        return ()
    return result if isinstance(result, tuple) else (result,)


def widened(recipe: Resolved, stages: Mapping[str, Format]) -> Resolved:
    """Return the recipe with each of these stages at least as precise as the format beside it.

    Both parts of a stage that is computed in one format and stored in another are widened.
    """
    changes: dict[str, Any] = {}
    for stage, wide in stages.items():
        results = tuple(wide if wide.precision > f.precision else f for f in formats(recipe, stage))
        if results:
            changes[stage] = results if isinstance(getattr(recipe, stage), tuple) else results[0]
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
        whole = bool((round_to(exact, recipe.position) == exact).all())
    return [
        stage
        for stage in SHARED
        if any(fmt is not FP64 for fmt in formats(recipe, stage)) and not (stage == "position" and whole)
    ]


def coalitions(names: Iterable[str]) -> Iterator[Coalition]:
    """Yield every subset, by growing size."""
    some = list(names)
    for size in range(len(some) + 1):
        yield from map(frozenset, combinations(some, size))


def shapley(values: Mapping[Coalition, float]) -> dict[str, float]:
    """Return the Shapley value of every player; they add up to values[all] - values[nobody].

    values: what each coalition is worth; nan makes the values of all that it bears on nan.

    >>> found = shapley({frozenset(s): v for s, v in [("", 0.0), ("a", 1.0), ("b", 2.0), ("ab", 5.0)]})
    >>> found["a"], found["b"]
    (2.0, 3.0)
    """
    everybody = max(values, key=len)
    count, result = len(everybody), {}
    for player in everybody:
        total = 0.0
        for some, value in values.items():
            if player not in some:
                total += (values[some | {player}] - value) / (count * math.comb(count - 1, len(some)))
        result[player] = total
    return result
