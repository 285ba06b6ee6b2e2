"""What explains arrays that are no rotation of what was given: another order of axes, another byte order.

A rotation keeps the length of each pair, times the attention factor, whatever the position is.
Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance import raw_arrays
from ropeaudit.conformance.returned_files import Returned
from ropeaudit.conformance.vector_case import CaseSpec, VectorCase
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.exact_rotation import complex_pairs

# Of a length: rotations in bfloat16 change it by 3 % at most, float8_e4m3 by 13 %, and random pairs agree to
# within this in about a sixth of all cases.
_NEAR = 0.15
_MOST, _FEW = 0.9, 0.5  # shares of pairs whose lengths agree: those of a rotation, and of anything else


def explained(case: VectorCase, returned: Returned, offset: int) -> Diagnosis | None:
    """Return how q was written instead; None where most pairs are as long as they should be."""
    spec = case.spec
    given, written = ("grad_rotated_q", "grad_q") if spec.want == "gradient" else ("q", "q")
    x, y = case.vectors()[given], returned.arrays[offset][written]
    share = _agreeing(x, y, spec.setting)
    if share >= _MOST:
        return None
    for found, other in _readings(y, spec):
        if _agreeing(x, other, spec.setting) >= _MOST:
            return found
    return Diagnosis("not-a-rotation") if share < _FEW else None


def _readings(y: FloatArray, spec: CaseSpec) -> Iterator[tuple[Diagnosis, FloatArray]]:
    """Yield other ways to read what was written, as (b, h, s, d)."""
    b, h, s, d = y.shape
    yield _axes("batch", "seq", "heads", "head_dim"), y.reshape(b, s, h, d).transpose(0, 2, 1, 3)
    yield _axes("seq", "batch", "heads", "head_dim"), y.reshape(s, b, h, d).transpose(1, 2, 0, 3)
    yield _axes("heads", "batch", "seq", "head_dim"), y.reshape(h, b, s, d).transpose(1, 0, 2, 3)
    kind = raw_arrays.stored(spec.dtype)
    content = raw_arrays.array(y, spec.dtype).view(f"u{kind.itemsize}").byteswap().tobytes()
    yield Diagnosis("byte-order"), raw_arrays.numbers(content, spec.dtype, y.shape)


def _axes(*order: str) -> Diagnosis:
    return Diagnosis("axes-order", {"order": order})


def _agreeing(x: FloatArray, y: FloatArray, setting: RopeSetting) -> float:
    """Return the share of pairs that are as long as they should be."""
    before, after = (np.abs(complex_pairs(vectors, setting)) for vectors in (x, y))
    expected = before * attention_factor(setting.scaling)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.abs(after - expected) <= _NEAR * expected))
