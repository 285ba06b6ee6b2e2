"""Judge the drift of scores of what a kernel wrote back: bound and prediction, growth, tolerance.

Scores are formed in float64 from rotated q and k of the first batch element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ropeaudit import bounds, recipes
from ropeaudit.audits import judging
from ropeaudit.audits.records import Record
from ropeaudit.bounds import Bound, attainable
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.returned_subject import ReturnedCode
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import allowance
from ropeaudit.subjects.placement.recipe_match import CalledBlock, explaining_recipe

RMS_FACTOR = 1.5  # of the predicted RMS, as in `ropeaudit.testing.assert_shift_invariant`, which says why
_MASK = "causal"
_USUAL = "hf"  # the coarsest of recipes that are right
_EXACT_SCORES = {"accumulate": "fp64", "score": "fp64"}


def findings(
    code: ReturnedCode, inputs: Inputs, records: Sequence[Record], claimed: Resolved | None
) -> list[Finding]:
    """Return the checks of drift; records: of each offset, the first of them 0."""
    recipe, text = _yardstick(code, claimed)
    subject = Emulated(recipe, code.spec.setting)
    limits = bounds.bounds([(subject, one.offset) for one in records], inputs, _MASK)
    first, last = records[0], records[-1]
    return [
        _drift(records, limits, text),
        _growth(first, last, RMS_FACTOR * limits[-1].rms + last.reference_error, text),
        _tolerance(code, records, claimed),
    ]


def _yardstick(code: ReturnedCode, claimed: Resolved | None) -> tuple[Resolved, str]:
    """Return the recipe whose bound and prediction are to hold, and which it is, in words.

    One that the numbers resemble is a yardstick only if it allows no pair more than right code does: a cast
    table is not made right by being known.
    """
    spec = code.spec
    if claimed is not None:
        name = f"recipe {claimed.recipe.name}, as claimed"
        return claimed.recipe.changed(_EXACT_SCORES).resolve(spec.dtype), name
    last = spec.offsets[-1]
    block = CalledBlock(np.arange(spec.seq_len, dtype=np.int64) + last, code.given, code.rotated[last])
    group = explaining_recipe(block, spec.setting, spec.dtype)
    if group and _right(group.resolved, code):
        return group.resolved, f"{group}, which it resembles"
    usual = recipes.named(_USUAL).changed(_EXACT_SCORES).resolve(spec.dtype)
    return usual, f"recipe {_USUAL}, the coarsest right one in {spec.dtype}"


def _right(recipe: Resolved, code: ReturnedCode) -> bool:
    """Return whether a recipe allows no pair a larger error than right code does, at any offset."""
    spec, rule = code.spec, allowance.careful(code.spec.dtype)
    at = np.unique([0, 1, *spec.offsets, spec.offsets[-1] + spec.seq_len - 1])
    most = allowance.allowed(rule, spec.setting, at) * (1 + 2.0**-40)
    return bool((allowance.allowed(recipe, spec.setting, at) <= most).all())


def _drift(records: Sequence[Record], limits: Sequence[Bound], text: str) -> Finding:
    """Return whether drift keeps the bound and the prediction at every offset."""
    cells = []
    for record, limit in zip(records, limits, strict=True):
        error = record.reference_error
        cells.append((record, _size(record.drift_rms), RMS_FACTOR * limit.rms + error, "RMS, in score units"))
        largest = (_size(record.drift_max), limit.maximum + error, "score units, the largest")
        cells.append((record, *largest))
    record, seen, allowed, unit = max(cells, key=lambda cell: cell[1] / cell[2] if cell[2] else math.inf)
    offsets = f"{len(records)} offsets up to {records[-1].offset}"
    return judged(
        "drift",
        all(size <= most for _, size, most, _ in cells),
        f"{record.seq_len} tokens at {offsets}; allowed: {RMS_FACTOR:g} times the predicted RMS of {text}, "
        "and its bound",
        measured=seen,
        allowed=allowed,
        unit=unit,
        where=f"offset {record.offset}",
    )


def _growth(first: Record, last: Record, most: float, text: str) -> Finding:
    """Return whether drift at the last offset is sound, or no more than the yardstick's there."""
    attained = last.attainable_rms
    allowed = max(judging.EXCESS, most / attained if attained else math.inf)
    excess = 0.0 if last.drift_rms == 0 else _size(last.excess)
    passed = excess <= allowed
    times = judging.ratio(last.drift_rms, first.drift_rms)
    growth = f", {times:.3g} times its drift at offset 0" if math.isfinite(times) and last.offset else ""
    return judged(
        "growth",
        passed,
        f"drift at offset {last.offset}{growth}; allowed: {judging.EXCESS:g}, or as much as {text} has there",
        measured=excess,
        allowed=allowed,
        unit=f"times what careful {last.dtype} code has near offset 0",
        where=f"offset {last.offset}",
    )


def _tolerance(code: ReturnedCode, records: Sequence[Record], claimed: Resolved | None) -> Finding:
    """Return whether scores drift within the tolerance of `shift`, at every offset."""
    spec, share = code.spec, f"{judging.TOLERANCE:.0%}"
    if claimed is not None:
        return not_applicable("tolerance", f"recipe {claimed.recipe.name} says what is allowed")
    stored = attainable.storing(spec.dtype, spec.setting.rotary_dim / spec.setting.head_dim)
    if stored > judging.TOLERANCE:
        why = f"no code in {spec.dtype} meets {share}: storing q, k and scores in it costs {stored:.2g}"
        return not_applicable("tolerance", why)
    worst = max(records, key=lambda one: _size(one.drift_relative))
    return judged(
        "tolerance",
        worst.drift_relative <= judging.TOLERANCE,
        f"drift against {share} of the RMS of the exact scores, {spec.seq_len} tokens at {len(records)} "
        "offsets",
        measured=_size(worst.drift_relative),
        allowed=judging.TOLERANCE,
        unit="of the scores' RMS",
        where=f"offset {worst.offset}",
    )


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value
