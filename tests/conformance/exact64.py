"""RoPE in float64, written apart from the package: NumPy, and mpmath for the table.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import mpmath
import numpy as np

UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-9}  # half an ulp at 1
PHASE = 16 + 2 * np.log(10000.0)  # u of float32: power, its exponent times ln base, product, tables


def frequencies(d):
    return 10000.0 ** (-np.arange(0, d, 2) / d)


def as_pairs(x, layout):
    """x (..., d) as complex numbers (..., p)."""
    d = x.shape[-1]
    if layout == "half":
        return x[..., : d // 2] + 1j * x[..., d // 2 :]
    return x[..., 0::2] + 1j * x[..., 1::2]


def turned(pairs, positions, frequencies_=None):
    """Pairs (b, h, s, p) rotated by positions (s,) or (b, s)."""
    theta = frequencies(2 * pairs.shape[-1]) if frequencies_ is None else frequencies_
    angles = np.asarray(positions, dtype=np.float64)[..., None] * theta
    return pairs * np.exp(1j * (angles[:, None] if angles.ndim == 3 else angles))


def allowance(positions, p, dtype):
    """What code of float32 angles and roundings in a dtype may be off by, over a pair's length: (..., s, p).

    Phase: `PHASE` roundings of float32. Then cos and sin, two products, a sum, the output: at most
    sqrt(2) + sqrt(5) + 1 < 5 units, and their products.
    """
    phase = (
        np.abs(np.asarray(positions, dtype=np.float64))[..., None] * frequencies(2 * p) * PHASE * UNIT["fp32"]
    )
    return np.minimum(phase, 2.0) + 5.2 * UNIT[dtype] + 8 * UNIT["fp32"]


def excess(before, after, positions, layout, dtype):
    """Largest error of each pair over its allowance: before, after (b, h, s, d) -> (b, h, s, p)."""
    z, w = as_pairs(before, layout), as_pairs(after, layout)
    allowed = allowance(positions, z.shape[-1], dtype)
    allowed = allowed[:, None] if allowed.ndim == 3 else allowed
    return np.abs(w - turned(z, positions)) / (allowed * np.abs(z) + 1e-30)


def exact_point(position, i, d):
    """cos + i sin of an angle with 60 digits."""
    with mpmath.workdps(60):
        angle = position * mpmath.mpf(10000) ** (-mpmath.mpf(2 * i) / d)
        return complex(mpmath.cos(angle), mpmath.sin(angle))
