"""Keys that are rotated again and again from their stored values, instead of afresh.

After S steps of `by` tokens a key has been rounded S + 1 times: its error grows, and where the cos and sin
of the step are rounded, cos² + sin² is not 1, and its norm grows or shrinks by the same factor at every step.
This is what llama.cpp does to shift a context (K-shift), and what position-independent reuse of a KV cache
does to place one.
Letters: g key-value heads, s positions, d head_dim, p pairs. Positions in tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments, case_by_case
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import Case, fits
from ropeaudit.engine import plan
from ropeaudit.engine.kernel import Side
from ropeaudit.engine.pair import Comparison, FreshRotation, PairStatistics
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.reference import exact_scores
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import run_metadata
from ropeaudit.runtime.threads import mapping, worth
from ropeaudit.subjects.emulated import Emulated

STEPS, BY = (1, 16, 64, 256), -16
MOST_STEPS = 100_000


@dataclass(frozen=True, slots=True)
class Rerotated:
    """Keys after some steps. position: that of the first key by then.

    statistics: a is the re-rotated, b a fresh rotation at the final position.
    norm: mean relative change of the norm of the keys; nan where all are zero or one is not finite.
    """

    case: Case
    setting: RopeSetting
    inputs: Inputs
    subject: str
    dtype: Format
    steps: int
    by: int
    position: int
    statistics: PairStatistics
    norm: float


def start(steps: Sequence[int], by: int) -> int:
    """Return the first position from which keys never go below 0. Units: tokens."""
    return max(0, -by) * max(steps)


def check(cases: Sequence[Case], steps: Sequence[int], by: int) -> None:
    """Raise UsageError or BadShape for what cannot be rotated again and again."""
    for count in steps:
        if not 0 <= count <= MOST_STEPS:
            raise UsageError(
                f"--steps {count} is not a number from 0 to {MOST_STEPS}; try --steps 1,16,64,256"
            )
    fits(max(case.check([max(steps) * abs(by)]) for case in cases))


@arguments.checked
def rerotate(
    steps: int | Iterable[int] = STEPS,
    by: int = BY,
    dtypes: Names = "bf16",
    recipes: Names = DEFAULT,
    *,
    changes: Mapping[str, str] | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Rerotated]:
    """Rotate stored keys again and again, and measure how far their scores drift.

    Yields one Rerotated per recipe, dtype and number of steps, in that order.
    steps: how many times keys are rotated. by: tokens of one step; negative ones move keys to the start.
    dtypes, recipes, changes, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.

    >>> [result.steps for result in rerotate([4, 1], recipes="hf", heads=1, seq_len=16)]
    [1, 4]
    """
    resolved = arguments.resolved(recipes, dtypes, changes)
    numbers = arguments.numbers(steps)
    return run(arguments.cases_of(cases, case), resolved, numbers, by, on_progress or arguments.silent)


def run(
    cases: Sequence[Case],
    recipes: Sequence[Resolved],
    steps: Sequence[int],
    by: int,
    on_progress: OnProgress = arguments.silent,
) -> Iterator[Rerotated]:
    """Check the arguments, and yield what was measured: case by case, recipe by recipe, by growing steps.

    by: tokens of one step; negative ones move keys towards the start.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    check(cases, steps, by)
    work = case_by_case.steps(on_progress, len(cases) * len(recipes))
    return (
        result
        for case, inputs, setting in case_by_case.loaded(cases, [max(steps) * abs(by)])
        for recipe in recipes
        for result in _rerotations(case, inputs, setting, recipe, sorted(set(steps)), by, next(work))
    )


class CachedKeys(FreshRotation):
    """Queries rotated afresh at an offset, keys as they lie in a cache."""

    def __init__(self, subject: Emulated, inputs: Inputs, offset: int, keys: Sequence[FloatArray]) -> None:
        """Keep the keys: per head (s, d)."""
        super().__init__(subject, inputs, offset)
        self.keys = keys

    def rotated(self, side: Side, head: int, panel: slice) -> FloatArray:
        """Return a fresh q or a stored k of a head. Shapes: -> (panel, d)."""
        return self.keys[head][panel] if side == "k" else super().rotated(side, head, panel)


def _rerotations(
    case: Case,
    inputs: Inputs,
    setting: RopeSetting,
    recipe: Resolved,
    steps: Sequence[int],
    by: int,
    on_progress: OnProgress,
) -> Iterator[Rerotated]:
    if setting.clipped:
        raise UsageError("clipped angles do not add up, so keys cannot be rotated again; leave out --clip")
    axes = case.position_axes(setting)
    subject, stepper = Emulated(recipe, setting, axes), Emulated(recipe, _step_setting(setting), axes)
    first, norms, done = start(steps, by), _norms(inputs, setting, recipe.input), 0
    table = stepper.table(np.zeros(1, dtype=np.int64), by)
    keys = _fresh_keys(subject, inputs, first)
    with mapping(worth(run_metadata.threads(), inputs.seq_len)) as mapped:
        for count in steps:
            for _ in range(done, count):
                keys = list(mapped(stepper.rotate, keys, [table] * len(keys)))
                done += 1
                on_progress(done / (max(steps) + 1))
            at = first + count * by
            sides = CachedKeys(subject, inputs, at, keys), FreshRotation(subject, inputs, at)
            held = functools.partial(_hold, on_progress, done / (max(steps) + 1))
            difference = Comparison(inputs, setting, case.mask, sides).run(held)
            growth = _growth(keys, norms)
            yield Rerotated(
                case, setting, inputs, subject.name, recipe.dtype, count, by, at, difference, growth
            )


def _hold(on_progress: OnProgress, share: float, _: float) -> None:
    """Report the same share again, so that the work can be interrupted."""
    on_progress(share)


def _step_setting(setting: RopeSetting) -> RopeSetting:
    """Return the setting of a step: the attention factor is in the stored keys and must not come in again."""
    if attention_factor(setting.scaling) == 1.0:
        return setting
    return replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))


def _fresh_keys(subject: Emulated, inputs: Inputs, offset: int) -> list[FloatArray]:
    """Return all keys as first stored. Shapes: -> per head (s, d)."""
    fresh, size = FreshRotation(subject, inputs, offset), inputs.k.shape[1]
    parts: list[list[FloatArray]] = [[] for _ in inputs.k]
    for i in range(0, size, plan.PANEL):
        panel = slice(i, min(i + plan.PANEL, size))
        fresh.prepare([panel])
        for head, panels in enumerate(parts):
            panels.append(fresh.rotated("k", head, panel))
    return [np.concatenate(panels) for panels in parts]


def _norms(inputs: Inputs, setting: RopeSetting, fmt: Format) -> list[FloatArray]:
    """Return exact norms of the keys, rounded inputs and the attention factor included. Shapes: (s,) each."""
    table: Any = exact_scores.distance_table(np.zeros(1), setting)
    rounded = (round_to(k, fmt).astype(np.float64) for k in inputs.k)
    return [np.linalg.norm(exact_scores.rotated(k, table, setting, "double").whole, axis=1) for k in rounded]


def _growth(keys: Sequence[FloatArray], norms: Sequence[FloatArray]) -> float:
    """Return the mean of |key| / exact norm - 1 over keys that are not zero."""
    own = np.concatenate([np.linalg.norm(k.astype(np.float64), axis=1) for k in keys])
    exact = np.concatenate(list(norms))
    nonzero = exact > 0
    return float(np.mean(own[nonzero] / exact[nonzero] - 1)) if nonzero.any() else float("nan")
