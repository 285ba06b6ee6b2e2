"""Judge scores that a kernel formed itself: against the exact ones, the bound and the prediction of a recipe.

Letters: b batch elements, h heads of q, g of k, s positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ropeaudit import bounds, recipes
from ropeaudit.audits.judging import TOLERANCE
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.returned_files import Returned
from ropeaudit.conformance.score_drift import RMS_FACTOR, MeasuredDrift
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.engine import measure
from ropeaudit.inputs.qk import Inputs
from ropeaudit.subjects.emulated import Emulated

_USUAL, _UNIT = "hf", "score units"
_UNSEEN = "scores cannot show a position that is wrong for q and k alike"


def findings(case: VectorCase, returned: Returned, recipe: str | None) -> list[Finding]:
    """Return the checks of scores; recipe: what the kernel claims to follow, `hf` where it is None."""
    spec, vectors = case.spec, case.vectors()
    resolved = recipes.load(recipe or _USUAL).resolve(spec.dtype)
    subject = Emulated(resolved, spec.setting)
    cells: dict[str, list[tuple[float, float, str, str]]] = {"drift": [], "tolerance": []}
    for b in range(len(vectors["q"])):
        q, k = (vectors[name][b].astype(np.float64) for name in "qk")
        inputs = Inputs(q, k, "vectors", spec.seed)
        limits = bounds.bounds([(subject, offset) for offset in spec.offsets], inputs, "full")
        for offset, limit in zip(spec.offsets, limits, strict=True):
            formed = returned.arrays[offset]["scores"][b]
            cell = measure.of_scores(formed, measure.exact(inputs, spec.setting, spec.dtype))
            seen = MeasuredDrift.of_cell(cell, spec.seq_len, offset, limit)
            here = f"offset {offset}, batch element {b}"
            place = "{}, head {}, query {}, key {}".format(here, *seen.place)
            cells["drift"].append((seen.largest, seen.most, f"{_UNIT}, the largest", place))
            cells["drift"].append((seen.rms, seen.allowed, f"RMS, in {_UNIT}", here))
            relative = math.inf if math.isnan(seen.relative) else seen.relative
            cells["tolerance"].append((relative, TOLERANCE, "of the scores' RMS", here))
    name = f"recipe {resolved.recipe.name}{', as claimed' if recipe else ''}"
    what = f"{spec.seq_len} tokens at {len(spec.offsets)} offsets up to {spec.offsets[-1]}"
    limit_words = f"{RMS_FACTOR:g} times the predicted RMS of {name}, and its bound"
    drifting = _finding("drift", cells["drift"], f"{what}; allowed: {limit_words}; {_UNSEEN}")
    if recipe:
        return [drifting, not_applicable("tolerance", f"{name} says what is allowed")]
    share = f"drift against {TOLERANCE:.0%} of the RMS of the exact scores, {what}"
    return [drifting, _finding("tolerance", cells["tolerance"], share)]


def _finding(check: str, cells: Sequence[tuple[float, float, str, str]], detail: str) -> Finding:
    seen, allowed, unit, where = max(cells, key=lambda cell: cell[0] / cell[1] if cell[1] else math.inf)
    held = all(size <= most for size, most, _, _ in cells)
    return judged(check, held, detail, measured=seen, allowed=allowed, unit=unit, where=where)
