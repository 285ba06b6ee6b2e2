"""Judge what a kernel wrote back for a case of vectors, as if its code had been called.

Places, drift, bound and prediction come from the road that called code takes (`audits.case_run`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ropeaudit import bounds, recipes
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.conformance import case_files, misread, returned_files, returned_scores
from ropeaudit.conformance.case_files import VectorCase
from ropeaudit.conformance.finding import Finding
from ropeaudit.conformance.returned_files import Returned
from ropeaudit.conformance.returned_subject import CaseVectors, ReturnedCode, factory
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement.recipe_match import CalledBlock, explaining_recipe

RMS_FACTOR = 1.5  # of the predicted RMS, as in `ropeaudit.testing.assert_shift_invariant`, which says why
_EXACT_SCORES = {"accumulate": "fp64", "score": "fp64"}  # scores are formed in float64 from what came back
_USUAL = "hf"  # where nothing is claimed and no recipe explains the numbers
_FORWARD = "the other direction"  # of a gradient: that of the rotation itself


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was measured of a case: a record an offset.

    inputs: q and k of the first batch element. recipe: whose bound and prediction are to hold. source: where
    that comes from, in words.
    """

    case: VectorCase
    returned: Returned
    records: tuple[Record, ...]
    inputs: Inputs
    recipe: Resolved
    source: str


def findings(case_folder: str | Path, output_folder: str | Path, recipe: str | None = None) -> list[Finding]:
    """Return the checks of what was written back into `output_folder` for the case in `case_folder`.

    recipe: what the kernel claims to follow; without it the one that its numbers resemble.
    Raises: BadInput where a file is missing, damaged, or of another case; UnknownName.
    """
    case = case_files.read(case_folder)
    returned = returned_files.read(case, output_folder)
    claimed = None if recipe is None else _resolved(recipe, case)
    whole = _whole(case, returned)
    if case.spec.want == "scores":
        return [whole, *returned_scores.findings(case, returned, recipe)]
    if not all(np.isfinite(x).any() for of in returned.arrays.values() for x in of.values()):
        return [whole]
    judged = judge(case, returned, str(output_folder), claimed)
    return [whole, _places(judged), _tolerance(judged), *_limits(judged)]


def judge(case: VectorCase, returned: Returned, name: str, claimed: Resolved | None) -> Judgement:
    """Return what is measured of rotated vectors or gradients, offset by offset."""
    code, spec = ReturnedCode(case, returned.arrays, name), case.spec
    setting = spec.setting
    q, k = (x[0].astype(np.float64) for x in code.given)
    loaded = Inputs(q, k, "vectors", spec.seed)
    described = Case(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        seq_len=spec.seq_len,
        head_dim=setting.head_dim,
        rotary_dim=setting.rotary_dim,
        base=setting.base,
        layout=setting.layout,
        scale=setting.scale,
        scaling=str(setting.scaling),
    )
    run = CaseRun(described, loaded, setting, [factory(code)], None, 1, lambda share: None)
    run.vectors = CaseVectors(code.given, spec.seed)
    records = tuple(replace(record, model=spec.model) for record in run.records(spec.offsets))
    resolved, source = claimed, "as claimed"
    if resolved is None:
        last = spec.offsets[-1]
        block = CalledBlock(run.vectors.positions + last, code.given, code.rotated[last])
        group = explaining_recipe(block, setting, spec.dtype)
        resolved = group.resolved if group else _resolved(_USUAL, case)
        source = (
            f"which its numbers resemble at offset {last}" if group else "the usual one; none is resembled"
        )
    return Judgement(case, returned, records, loaded, resolved, source)


def _resolved(recipe: str, case: VectorCase) -> Resolved:
    return recipes.load(recipe).changed(_EXACT_SCORES).resolve(case.spec.dtype)


def _whole(case: VectorCase, returned: Returned) -> Finding:
    """Return whether all that was asked for came back, as finite numbers, and is not what was given."""
    nonfinite, unchanged, count = [], [], 0
    given = case.vectors()
    for offset, arrays in returned.arrays.items():
        for name, x in arrays.items():
            count += 1
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {name}.{offset} are nan or infinite")
            source = given.get(_SOURCES.get(name, name))
            if offset and source is not None and np.array_equal(source, x):
                unchanged.append(f"{name}.{offset} is what was given, number by number: nothing was rotated")
    problems = [*nonfinite, *unchanged]
    named = "" if returned.named else f"; it does not name its case ({returned_files.CASE})"
    seen = f"{count} arrays at {len(returned.arrays)} offsets were written back, all finite{named}"
    more = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
    return Finding(
        check="written back",
        status="fail" if problems else "pass",
        detail="; ".join(problems[:2]) + more if problems else seen,
        measured=len(problems),
        allowed=0,
        unit="arrays",
    )


_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it


def _excess(record: Record) -> float:
    """Return the error of the worst pair over what is allowed; inf where it is not finite."""
    excess = record.place_excess
    return math.inf if excess is None or math.isnan(excess) else excess


def _places(judged: Judgement) -> Finding:
    """Return whether each pair of q and k stands where its position says, at every offset."""
    gradient = judged.case.spec.want == "gradient"
    off = [record for record in judged.records if not _excess(record) <= 1]
    worst = max(judged.records, key=_excess)
    resembles = next((one.resembles for one in sorted(off, key=_excess)[::-1] if one.resembles), None) or ""
    if off and not resembles:
        resembles = misread.explained(judged.case, judged.returned, off[0].offset)
    if gradient:
        resembles = resembles.replace(_FORWARD, "the rotation itself instead of its inverse")
    offsets = ", ".join(str(record.offset) for record in off[:6]) + (", ..." if len(off) > 6 else "")
    what = "the gradient is the inverse rotation of" if gradient else "stand where their positions say:"
    seen = f"out of place at {len(off)} of {len(judged.records)} offsets ({offsets})"
    return Finding(
        check="gradient" if gradient else "places",
        status="fail" if off else "pass",
        detail=seen if off else f"{what} all pairs of q and k, heads and batch elements",
        measured=_excess(worst),
        allowed=1.0,
        unit="times what roundings explain",
        where=f"offset {worst.offset}, position {worst.place_position}, pair {worst.place_pair} of "
        f"{worst.place_side}, head {worst.place_head}, batch element {worst.place_batch}",
        resembles=resembles,
    )


def _tolerance(judged: Judgement) -> Finding:
    """Return whether scores of q and k drift within the tolerance of `shift`."""
    worst = max(judged.records, key=lambda one: _size(one.drift_relative))
    first = judged.records[0]
    growth = f"; at offset 0 it is {100 * first.drift_relative:.2g} %" if worst.offset else ""
    return Finding(
        check="drift",
        status="fail" if not worst.drift_relative <= worst.tolerance else "pass",
        detail=f"RMS drift of scores over their RMS at {worst.seq_len} tokens{growth}",
        measured=worst.drift_relative,
        allowed=worst.tolerance,
        unit="of the scores' RMS",
        where=f"offset {worst.offset}",
    )


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _limits(judged: Judgement) -> list[Finding]:
    """Return whether drift keeps the a-priori bound and the prediction of the recipe, at every offset."""
    subject = Emulated(judged.recipe, judged.case.spec.setting)
    offsets = [record.offset for record in judged.records]
    limits = bounds.bounds([(subject, offset) for offset in offsets], judged.inputs, "causal")
    name = f"recipe {judged.recipe.recipe.name} ({judged.source})"
    rows = list(zip(judged.records, limits, strict=True))
    largest = [(one, _size(one.drift_max), limit.maximum + one.reference_error) for one, limit in rows]
    rms = [(one, _size(one.drift_rms), RMS_FACTOR * limit.rms + one.reference_error) for one, limit in rows]
    results = []
    for check, what, cells in (
        ("bound", f"largest drift against the a-priori bound of {name}", largest),
        ("prediction", f"RMS drift against {RMS_FACTOR:g} times the prediction of {name}", rms),
    ):
        record, seen, allowed = max(cells, key=lambda cell: cell[1] / cell[2] if cell[2] else math.inf)
        results.append(
            Finding(
                check=check,
                status="pass" if all(size <= most for _, size, most in cells) else "fail",
                detail=what,
                measured=seen,
                allowed=allowed,
                unit="score units",
                where=f"offset {record.offset}",
            )
        )
    return results
