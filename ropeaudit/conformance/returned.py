"""Judge what a kernel wrote back for a case of vectors, as if its code had been called.

Rotations, drift and verdicts come from the road that called code takes (`audits.case_run`), with what was
written back in the place of calls.
Called code is asked for further positions until faults that look alike differ. Here the other offsets of the
case decide: a fault is named only if it changes positions at the offsets that are wrong, and at none of those
that are right.
Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.conformance import returned_subject, score_drift, vector_case
from ropeaudit.conformance.finding import Finding, judged, of_worst_pair
from ropeaudit.conformance.gradient import of_gradient
from ropeaudit.conformance.returned_subject import Returned, ReturnedCall, ReturnedCode, factory
from ropeaudit.conformance.score_drift import MeasuredDrift, size, yardstick
from ropeaudit.conformance.vector_case import CaseSpec, Key, VectorCase
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.faults import Fault, faults
from ropeaudit.recognition.known_recipes import CalledBlock, explaining_recipe
from ropeaudit.recognition.rotation import Searches, common
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.exact_rotation import complex_pairs

_MOST_UNEXPLAINED = 3  # offsets that nothing known explains: more would take seconds each to no avail
_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it
_MASK = "causal"
_SERVED = {  # call -> what it is
    "ragged": "rows at positions of their own",
    "one-token": "rows at positions of their own, one token each",
    "packed": "sequences packed into a row, each from position 0",
    "groups": "groups of query heads to a key head",
    "one-key-head": "all query heads to one key head",
}
# Of a length: rotations in bfloat16 change it by 3 % at most, float8_e4m3 by 13 %, and random pairs agree to
# within this in about a sixth of all cases.
_NEAR = 0.15
_ROTATED, _ELSE = 0.9, 0.5  # shares of pairs whose lengths agree: those of a rotation, and of anything else


class Measured(CaseRun):
    """What was measured of a case: where pairs stand, as they were given, and what scores drift by.

    rule: the recipe whose errors a pair may have. inputs: q and k of the first batch element. places: by
    offset. rows: what drifted, offset by offset.
    """

    def __init__(self, code: ReturnedCode, rule: Resolved) -> None:
        q, k = (x[0].astype(np.float64) for x in code.given)
        spec, self.inputs = code.spec, Inputs(q, k, "vectors", code.spec.seed)
        setting, same = spec.setting, ("head_dim", "rotary_dim", "base", "layout", "scale")
        said: dict[str, Any] = {name: getattr(setting, name) for name in same}
        said |= {name: getattr(spec, name) for name in ("heads", "kv_heads", "seq_len")}
        case = Case(**said, scaling=str(setting.scaling))
        super().__init__(case, self.inputs, setting)
        self.code, self.rule, self.places = code, rule, dict[int, Places]()
        made = factory(code)
        self.rows = list(self.records([(made, offset) for offset in spec.offsets]))

    def _places(self, subject: Subject, offset: int) -> Places:
        setting, dtype = self.code.spec.setting, self.code.spec.dtype
        diagnoses = [places.diagnosis for places in self.places.values()]
        unexplained = sum(found is not None and not found.explains for found in diagnoses)
        at = np.arange(self.code.spec.seq_len, dtype=np.int64) + offset
        call = CalledBlock(at, self.code.given, self.code.rotated[offset])
        explain = unexplained < _MOST_UNEXPLAINED
        places = verification.judged([call], self.code, setting, dtype, rule=self.rule, explain=explain)
        self.places[offset] = places
        return places


def findings(case_folder: str | Path, output_folder: str | Path, recipe: str | None = None) -> list[Finding]:
    """Return the checks of what was written back into `output_folder` for the case in `case_folder`.

    output_folder: or one .safetensors file. recipe: what the kernel claims to follow; without it what right
    code in the dtype explains is allowed.
    Raises: BadInput where a file is missing, damaged or of another case; UnknownName.
    """
    case = vector_case.read(case_folder)
    claimed = None if recipe is None else recipes.load(recipe).resolve(case.spec.dtype)
    returned = returned_subject.read_returned(case, output_folder)
    complete = _written_back(case, returned)
    if not all(np.isfinite(x).any() for arrays in returned.arrays.values() for x in arrays.values()):
        return [complete]
    measured = measure(case, returned, str(output_folder), claimed)
    rotation = _rotation(measured, returned)
    served = _served(measured, returned, rotation.diagnosis)
    return [complete, rotation, *_drift_findings(measured, claimed), *served]


def _written_back(case: VectorCase, returned: Returned) -> Finding:
    """Return whether all that came back is finite, and not what was given."""
    nonfinite, unchanged, given = [], [], case.vectors()
    for call in case.spec.calls:
        for name, x in returned.arrays[call.key].items():
            array, source = f"{name}.{call.key}", given[_SOURCES.get(name, name)]
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {array} are nan or infinite")
            if call.key != 0 and np.array_equal(call.part(source, name.endswith("k")), x):
                unchanged.append(f"{array} is what was given, number by number: nothing was rotated")
    problems, count = [*nonfinite, *unchanged], sum(map(len, returned.arrays.values()))
    named = "" if returned.named else f"; it does not name its case ({returned_subject.CASE})"
    detail = f"{count} arrays of {len(returned.arrays)} calls came back, all finite{named}"
    if problems:
        more = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
        detail = "; ".join(problems[:2]) + more
    sizes = {"measured": float(len(problems)), "allowed": 0.0}
    unit = "arrays that are not finite, or what was given"
    return judged("written back", not problems, detail, unit=unit, **sizes)


def measure(case: VectorCase, returned: Returned, name: str, claimed: Resolved | None = None) -> Measured:
    """Return what is measured of rotated vectors or of gradients."""
    code, spec = ReturnedCode(case, returned.arrays, name), case.spec
    rule = claimed or allowance.careful(spec.dtype)
    if spec.want == "gradient":  # what a vector is used for more than once is summed in its own dtype
        rule = rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(spec.dtype)
    return Measured(code, rule)


def _rotation(measured: Measured, returned: Returned) -> Finding:
    """Return whether each pair of q and k is in its place at every offset."""
    code, placed = measured.code, measured.places
    spec, gradient = code.spec, code.spec.want == "gradient"
    sizes = {offset: math.inf if math.isnan(at.excess) else at.excess for offset, at in placed.items()}
    offset = max(sizes, key=lambda offset: sizes[offset])
    worst, off = placed[offset], [offset for offset, size in sizes.items() if size > 1]
    found = consistent_diagnosis(placed, spec)
    if off and (found is None or not found.explains):
        found = misread(code.case, returned, off[0]) or found
    count = f"q and k, {spec.heads} and {spec.kv_heads} heads, 2 batch elements, {spec.seq_len} tokens"
    offsets = ", ".join(map(str, off[:6])) + (", ..." if len(off) > 6 else "")
    wrong = f"; out of place at {len(off)} of them: {offsets}" if off else ""
    detail = f"{count} at {len(placed)} offsets up to {max(placed)}{wrong}"
    worst = replace(worst, diagnosis=found and (of_gradient(found) if gradient else found))
    name, up_to = "gradient" if gradient else "rotation", max(placed) + spec.seq_len
    return _of_pair(name, detail, worst, f"offset {offset}", spec, up_to)


def _of_pair(name: str, detail: str, worst: Places, place: str, spec: CaseSpec, up_to: int) -> Finding:
    """Return whether the worst pair is in place. up_to: number of positions."""
    found, where = worst.diagnosis, f"{place}: {worst.words}"
    remedy, option = wording.remedy(found, spec.dtype, up_to), wording.option(found)
    return of_worst_pair(name, detail, worst, where=where, remedy=remedy, option=option)


def _served(measured: Measured, returned: Returned, known: Diagnosis | None) -> Iterator[Finding]:
    """Yield whether each pair of the calls as servers make them stands where its position says.

    known: what explains the calls at offsets.
    """
    code, rule = measured.code, measured.rule
    spec, setting = code.spec, code.spec.setting
    unknown = sum(at.diagnosis is not None and not at.diagnosis.explains for at in measured.places.values())
    searches = Searches(in_vain=2 * unknown)  # q and k at each of those offsets
    for call in spec.served_calls:
        called = ReturnedCall(code, call)
        at = call.positions() if call.step else call.row()
        block = CalledBlock(at, called.given, code.rotated[call.key])
        worst = verification.judged([block], called, setting, spec.dtype, rule=rule, searches=searches)
        found = worst.diagnosis
        if found and not found.explains:
            found = misread(code.case, returned, call.key) or found
        if found and spec.want == "gradient":
            found = of_gradient(found)
        worst = replace(worst, diagnosis=_as_known(found, known) if found and known else found)
        tokens = "1 token" if call.seq_len == 1 else f"{call.seq_len} tokens"
        rows = "1 batch element" if call.batch == 1 else f"{call.batch} batch elements"
        key, up_to = str(call.key), int(call.positions().max()) + 1
        detail = f"{_SERVED[key]}: {call.heads} and {call.kv_heads} heads, {rows}, {tokens}"
        yield _of_pair(key.replace("-", " "), detail, worst, key, spec, up_to)


def _as_known(found: Diagnosis, known: Diagnosis) -> Diagnosis:
    """Return the diagnosis of other calls, if it explains this one as well."""
    for one in (found, *found.alternatives):
        if (one.code, one.values) == (known.code, known.values):
            return replace(one, where=found.where, alternatives=())
    return found


def _drift_findings(measured: Measured, claimed: Resolved | None) -> list[Finding]:
    """Return the drift checks of float64 scores of the first batch element."""
    code, records = measured.code, measured.rows
    spec, setting, dtype = code.spec, code.spec.setting, code.spec.dtype
    last = spec.offsets[-1]
    block = CalledBlock(np.arange(spec.seq_len, dtype=np.int64) + last, code.given, code.rotated[last])
    resembled = None if claimed else explaining_recipe(block, setting, dtype)
    wanted = yardstick(claimed, resembled, setting, dtype, last + spec.seq_len)
    limits = wanted.limits(setting, measured.inputs, [row.offset for row in records], _MASK)
    drifts = list[MeasuredDrift]()
    for row, limit in zip(records, limits, strict=True):
        place = row.worst_head or 0, row.worst_query or 0, row.worst_key or 0
        measures = size(row.drift_max), size(row.drift_rms), place, row.reference_rms, row.reference_error
        drifts.append(MeasuredDrift(f"{row.seq_len} tokens of batch element 0", row.offset, *measures, limit))
    return [
        score_drift.drift("drift", drifts, wanted, None),
        score_drift.growth(drifts, wanted, dtype, lambda _: records[-1].attainable_rms),
        score_drift.tolerance(drifts, claimed, setting, dtype),
    ]


def consistent_diagnosis(placed: Mapping[int, Places], spec: CaseSpec) -> Diagnosis | None:
    """Return what explains all wrong offsets, else what leaves fewest faults."""
    off = [offset for offset, places in placed.items() if not places.excess <= 1]
    found = {offset: _consistent(placed[offset].diagnosis, spec, off) for offset in off}
    named = {offset: diagnosis for offset, diagnosis in found.items() if diagnosis and diagnosis.explains}

    def beside(offset: int) -> Diagnosis | None:
        chosen = replace(placed[offset], diagnosis=found[offset])
        return verification.beside(chosen, placed.values()).diagnosis

    if not named:
        return beside(off[0]) if off else None
    of_all: Diagnosis | None
    of_all, *others = named.values()
    for other in others:
        of_all = of_all and common(of_all, other)
    if of_all and len(named) == len(off):
        return of_all
    best = min(named, key=lambda offset: len(named[offset].alternatives))
    worst = max(off, key=lambda offset: (placed[offset].excess, offset))
    of_worst = named.get(worst)
    same = of_worst is not None and (of_worst.code, of_worst.values) == (named[best].code, named[best].values)
    both = beside(best)
    if same or both != named[best]:
        return both
    return replace(named[best], where=replace(named[best].where, offset=best))


def _consistent(found: Diagnosis | None, spec: CaseSpec, off: list[int]) -> Diagnosis | None:
    """Return the faults that fit all offsets; if none does, all of them."""
    if found is None or found.also:
        return found
    by_diagnosis = {
        (fault.diagnosis.code, *fault.diagnosis.values.items()): fault for fault in faults(spec.setting)
    }
    fitting = [
        diagnosis
        for diagnosis in (replace(found, alternatives=()), *found.alternatives)
        if (fault := by_diagnosis.get((diagnosis.code, *diagnosis.values.items()))) is None
        or _fits(fault, spec, off)
    ]
    return replace(fitting[0], where=found.where, alternatives=tuple(fitting[1:])) if fitting else found


def _fits(fault: Fault, spec: CaseSpec, off: list[int]) -> bool:
    """Return whether a fault changes just the offsets that are wrong."""
    if fault.turn or fault.setting(spec.setting) != spec.setting:
        return len(off) == len(spec.offsets)
    for offset in spec.offsets:
        at = np.arange(spec.seq_len, dtype=np.int64)[None] + offset
        if np.array_equal(fault.positions(at), at) == (offset in off):
            return False
    return True


def misread(case: VectorCase, returned: Returned, key: Key) -> Diagnosis | None:
    """Return in which other order of axes q was written, or that it is no rotation.

    A rotation keeps the length of each pair, times the attention factor, whatever the position is. None where
    most pairs are as long as they should be.
    """
    spec = case.spec
    given, written = ("grad_rotated_q", "grad_q") if spec.want == "gradient" else ("q", "q")
    call = next(call for call in spec.calls if call.key == key)
    x, y = call.part(case.vectors()[given], key=False), returned.arrays[key][written]
    share = _agreeing(x, y, spec.setting)
    if share >= _ROTATED:
        return None
    b, h, s, d = y.shape
    for order, other in (
        (("batch", "seq", "heads", "head_dim"), y.reshape(b, s, h, d).transpose(0, 2, 1, 3)),
        (("seq", "batch", "heads", "head_dim"), y.reshape(s, b, h, d).transpose(1, 2, 0, 3)),
        (("heads", "batch", "seq", "head_dim"), y.reshape(h, b, s, d).transpose(1, 0, 2, 3)),
    ):
        if _agreeing(x, other, spec.setting) >= _ROTATED:
            return Diagnosis("axes-order", {"order": order})
    return Diagnosis("not-a-rotation") if share < _ELSE else None


def _agreeing(x: FloatArray, y: FloatArray, setting: RopeSetting) -> float:
    """Return the share of pairs that are as long as they should be."""
    before, after = (np.abs(complex_pairs(vectors, setting)) for vectors in (x, y))
    expected = before * attention_factor(setting.scaling)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.abs(after - expected) <= _NEAR * expected))
