"""Judge the drift of scores of what a kernel wrote back: bound and prediction, growth, tolerance.

Scores are formed in float64 from rotated q and k of the first batch element.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ropeaudit.audits.records import Record
from ropeaudit.conformance import drift_findings
from ropeaudit.conformance.finding import Finding
from ropeaudit.conformance.returned_subject import ReturnedCode
from ropeaudit.conformance.score_drift import MeasuredDrift
from ropeaudit.conformance.yardstick import Yardstick, yardstick
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition.known_recipes import CalledBlock, explaining_recipe

_MASK = "causal"


def findings(
    code: ReturnedCode, inputs: Inputs, records: Sequence[Record], claimed: Resolved | None
) -> list[Finding]:
    """Return the checks of drift; records: of each offset, the first of them 0."""
    setting, dtype = code.spec.setting, code.spec.dtype
    wanted = _yardstick(code, claimed)
    limits = wanted.limits(setting, inputs, [one.offset for one in records], _MASK)
    part = " of batch element 0"
    seen = [MeasuredDrift.of_record(row, limit, part) for row, limit in zip(records, limits, strict=True)]
    return [
        drift_findings.drift("drift", seen, wanted, None),
        drift_findings.growth(seen, wanted, dtype, lambda _: records[-1].attainable_rms),
        drift_findings.tolerance(seen, claimed, setting, dtype),
    ]


def _yardstick(code: ReturnedCode, claimed: Resolved | None) -> Yardstick:
    """Return what the drift is compared with: the recipe that is claimed, or resembled at the last offset."""
    spec, last = code.spec, code.spec.offsets[-1]
    block = CalledBlock(np.arange(spec.seq_len, dtype=np.int64) + last, code.given, code.rotated[last])
    resembled = None if claimed else explaining_recipe(block, spec.setting, spec.dtype)
    return yardstick(claimed, resembled, spec.setting, spec.dtype, last + spec.seq_len)
