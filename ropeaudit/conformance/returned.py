"""Judge what a kernel wrote back for a case of vectors, as if its code had been called.

Places, drift and verdicts come from the road that called code takes (`audits.case_run`), with what was
written back in the place of calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropeaudit import recipes
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.conformance import (
    misread,
    returned_drift,
    returned_files,
    returned_naming,
    returned_scores,
    vector_case,
)
from ropeaudit.conformance.finding import Finding, judged
from ropeaudit.conformance.gradient import of_gradient
from ropeaudit.conformance.returned_files import Returned
from ropeaudit.conformance.returned_subject import CaseVectors, ReturnedCode, factory
from ropeaudit.conformance.vector_case import VectorCase
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification, wording
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects import Subject

_MOST_UNEXPLAINED = 3  # offsets that nothing known explains: more would take seconds each to no avail
_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a case: where pairs stand and what scores drift by, offset by offset.

    inputs: q and k of the first batch element. rule: the recipe whose errors a pair may have.
    """

    code: ReturnedCode
    places: dict[int, Places]
    records: tuple[Record, ...]
    inputs: Inputs
    rule: Resolved


class _Run(CaseRun):
    """A case whose pairs are looked at as they were given, and allowed the errors of a rule."""

    def __init__(self, code: ReturnedCode, loaded: Inputs, rule: Resolved) -> None:
        super().__init__(
            *(_described(code), loaded, code.spec.setting, [factory(code)], None, 1, lambda share: None)
        )
        self.code, self.rule, self.placed = code, rule, dict[int, Places]()
        self.given = CaseVectors(code.given, code.spec.seed)

    def _places(self, subject: Subject, offset: int) -> Places:
        setting, dtype = self.code.spec.setting, self.code.spec.dtype
        unexplained = sum(_unexplained(one) for one in self.placed.values())
        if unexplained < _MOST_UNEXPLAINED:
            seen = verification.check(self.code, setting, dtype, self.given, offset, rule=self.rule)
        else:
            seen = _without_words(self.code, offset, self.rule)
        self.placed[offset] = seen
        return seen


def _without_words(code: ReturnedCode, offset: int, rule: Resolved) -> Places:
    """Return where the worst pair stands at an offset; what explains it is not looked for."""
    setting, dtype = code.spec.setting, code.spec.dtype
    at = np.arange(code.spec.seq_len, dtype=np.int64) + offset
    worst = Places(-1.0, "q", 0, 0, 0, 0)
    for side, x, y in zip("qk", code.given, code.rotated[offset], strict=True):
        over = verification.excess(x, y, np.stack([at] * len(x)), setting, dtype, rule)
        b, h, i, pair = np.unravel_index(int(over.argmax()), over.shape)
        if (excess := float(over[b, h, i, pair])) > worst.excess:
            worst = Places(excess, side, int(b), int(h), int(at[i]), int(pair))
    return worst


def findings(case_folder: str | Path, output_folder: str | Path, recipe: str | None = None) -> list[Finding]:
    """Return the checks of what was written back into `output_folder` for the case in `case_folder`.

    output_folder: or one .safetensors file. recipe: what the kernel claims to follow; without it what right
    code in the dtype explains is allowed.
    Raises: BadInput where a file is missing, damaged or of another case; UnknownName.
    """
    case = vector_case.read(case_folder)
    claimed = None if recipe is None else recipes.load(recipe).resolve(case.spec.dtype)
    returned = returned_files.read(case, output_folder)
    whole = _whole(case, returned)
    if not all(np.isfinite(x).any() for of in returned.arrays.values() for x in of.values()):
        return [whole]
    if case.spec.want == "scores":
        return [whole, *returned_scores.findings(case, returned, recipe)]
    measured = measure(case, returned, str(output_folder), claimed)
    drift = returned_drift.findings(measured.code, measured.inputs, measured.records, claimed)
    return [whole, _places(measured, returned), *drift]


def measure(case: VectorCase, returned: Returned, name: str, claimed: Resolved | None = None) -> Measured:
    """Return what is measured of rotated vectors or of gradients."""
    code, spec = ReturnedCode(case, returned.arrays, name), case.spec
    rule = claimed or allowance.careful(spec.dtype)
    if spec.want == "gradient":  # what a vector is used for more than once is summed in its own dtype
        rule = rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(spec.dtype)
    q, k = (x[0].astype(np.float64) for x in code.given)
    loaded = Inputs(q, k, "vectors", spec.seed)
    run = _Run(code, loaded, rule)
    records = tuple(run.records(spec.offsets))
    return Measured(code, run.placed, records, loaded, rule)


def _described(code: ReturnedCode) -> Case:
    """Return the case of an audit that has the setting and the sizes of a case of vectors."""
    spec, setting = code.spec, code.spec.setting
    return Case(
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


def _whole(case: VectorCase, returned: Returned) -> Finding:
    """Return whether all that was asked for came back, as finite numbers, and is not what was given."""
    nonfinite, unchanged, given = [], [], case.vectors()
    for offset, arrays in returned.arrays.items():
        for name, x in arrays.items():
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {name}.{offset} are nan or infinite")
            source = given.get(_SOURCES.get(name, name))
            if offset and source is not None and np.array_equal(source, x):
                unchanged.append(f"{name}.{offset} is what was given, number by number: nothing was rotated")
    count = sum(map(len, returned.arrays.values()))
    named = "" if returned.named else f"; it does not name its case ({returned_files.CASE})"
    seen = f"{count} arrays at {len(returned.arrays)} offsets came back, all finite{named}"
    problems = [*nonfinite, *unchanged]
    more = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
    return judged(
        "written back",
        not problems,
        "; ".join(problems[:2]) + more if problems else seen,
        measured=float(len(problems)),
        allowed=0.0,
        unit="arrays that are not finite, or what was given",
    )


def _places(measured: Measured, returned: Returned) -> Finding:
    """Return whether each pair of q and k stands where its position says, at every offset."""
    code, placed = measured.code, measured.places
    spec, gradient = code.spec, code.spec.want == "gradient"
    offset = max(placed, key=lambda one: _size(placed[one].excess))
    worst, off = placed[offset], [one for one in placed if not placed[one].excess <= 1]
    found = returned_naming.explained(placed, spec)
    if off and (found is None or not found.explains):
        found = misread.explained(code.case, returned, off[0]) or found
    if found and gradient:
        found = of_gradient(found)
    count = f"q and k, {spec.heads} and {spec.kv_heads} heads, 2 batch elements, {spec.seq_len} tokens"
    offsets = ", ".join(map(str, off[:6])) + (", ..." if len(off) > 6 else "")
    seen = f"; out of place at {len(off)} of them: {offsets}" if off else ""
    allowed = _allowed(measured, worst)
    return judged(
        "gradient" if gradient else "rotation",
        not off,
        f"{count} at {len(placed)} offsets up to {max(placed)}{seen}",
        measured=worst.excess * allowed,
        allowed=allowed,
        unit="relative to the pair",
        where=f"offset {offset}: {worst.side}, batch element {worst.batch}, head {worst.head}, position "
        f"{worst.position}, pair {worst.pair}",
        diagnosis=found,
        remedy=wording.remedy(found, spec.dtype, max(placed) + spec.seq_len) if off else "",
    )


def _allowed(measured: Measured, worst: Places) -> float:
    """Return the error that the worst pair may have, over its length."""
    setting = measured.code.spec.setting
    if worst.pair >= setting.pairs:  # dims that are not rotated
        return allowance.rounding_error(measured.rule, setting)
    at = np.array([worst.position])
    return float(allowance.allowed(measured.rule, setting, at)[0, worst.pair])


def _unexplained(one: Places) -> bool:
    return one.diagnosis is not None and not one.diagnosis.explains


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value
