"""Whether the roundings of a narrower format explain vectors that are off by more than those of their dtype.

Letters: b batch elements, h heads of q, g of k, s positions, d head_dim.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FloatArray, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.subjects import Positions
from ropeaudit.subjects.placement import allowance, verification

_FINEST_FIRST = (FP32, parse("fp16"), parse("bf16"))


def explanation(
    code: CodeUnderTest,
    given: tuple[FloatArray, FloatArray],
    rotated: tuple[FloatArray, FloatArray],
    at: Positions,
    what: str,
) -> str:
    """Return in words the narrower format whose roundings explain vectors, empty where none does.

    what: the vectors are, such as "the gradient".
    Shapes: given and rotated q (b, h, s, d), k (b, g, s, d), at (s,).
    """
    rows = np.stack([at] * len(given[0]))
    for fmt in _FINEST_FIRST:
        rule = allowance.careful(fmt)
        if fmt.unit_roundoff > code.dtype.unit_roundoff and all(
            bool((verification.excess(x, y, rows, code.setting, fmt, rule) <= 1).all())
            for x, y in zip(given, rotated, strict=True)
        ):
            stored = all(np.array_equal(round_to(x, fmt), x, equal_nan=True) for x in rotated)
            held = f", and every number of it is a {fmt} number" if stored else ""
            return f"{what} is off by what roundings in {fmt} explain{held}"
    return ""
