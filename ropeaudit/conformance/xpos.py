"""Removal of xPos: its power of the position is divided out of q and k, so that RoPE is left.

The scores of xPos are those of rotations times a power of the distance. The position of power 1 differs by
code, and by the length of a call: it is read off the vectors of each call.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance.code_under_test import CodeUnderTest, calls_from, make_call
from ropeaudit.errors import UsageError
from ropeaudit.recognition.faults import Power
from ropeaudit.recognition.solving import Vectors
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Both

_TOKENS = 512  # of the call whose lengths are looked at


def power(code: CodeUnderTest) -> tuple[float, bool] | None:
    """Measure the base of q's power, in positions, and whether its centre depends on the length.

    None unless q is multiplied by the power and k divided, as in xPos.
    Raises: UsageError where the lengths are no power of the position; ForeignError.
    """
    found = list[Power]()
    for tokens in (_TOKENS, _TOKENS // 4):
        [call] = calls_from(code.batched_vectors(min(tokens, code.up_to)), [0])
        block = make_call(code.rotator(), call)
        both = zip(block.given, block.rotated, strict=True)
        q, k = (Vectors(block.at, x[0], y[0], code.setting, code.dtype).power() for x, y in both)
        if q is None:
            name = code.tested.name
            raise UsageError(f"--xpos: the lengths of {name} are no power of the position; leave it out")
        if q.base < 0 or k is None or k.base > 0:
            return None
        found.append(q)
    return found[0].base, abs(found[0].centre - found[1].centre) > _TOKENS // 8


def without_lengths(base: float, given: Both, rotated: Both, at: Positions, setting: RopeSetting) -> Both:
    """Divide the power of xPos out of rotated q and k. base: positions to a power of 1.

    Shapes: q (b, h, s, d), k (b, g, s, d), at (s,) or (b, s).
    """
    rows = np.broadcast_to(at, (len(given[0]), at.shape[-1]))
    powers = Power(base), Power(-base)
    seen = [_centre_positions(*one, rows, setting) for one in zip(powers, given, rotated, strict=True)]
    middle = float(np.median(np.concatenate(seen)))
    centre = round(middle) if np.isfinite(middle) else 0
    q, k = (
        _without_power(y, replace(power, centre=centre), rows, setting)
        for y, power in zip(rotated, powers, strict=True)
    )
    return q, k


def _centre_positions(
    power: Power, x: FloatArray, y: FloatArray, rows: Positions, setting: RopeSetting
) -> Array:
    """Return the centre that each token shows: the position with exponent 0.

    Shapes: x and y (b, h, s, d), rows (b, s) -> (b * s,).
    """
    before, after = (
        np.square(split_pairs(one.astype(np.float64), setting)).sum(axis=(0, 2)) for one in (x, y)
    )
    zeta = power.logs(setting)
    with np.errstate(all="ignore"):
        shares = np.log(after / before) @ zeta / (2 * zeta @ zeta)
    return np.asarray(rows - power.base * shares).reshape(-1)


def _without_power(y: FloatArray, power: Power, rows: Positions, setting: RopeSetting) -> FloatArray:
    """Divide vectors by a power of the position. Shapes: (b, h, s, d), rows (b, s)."""
    lengths = np.stack([power.lengths(setting, row) for row in rows])[:, None]
    divided = y.astype(np.float64)
    with np.errstate(all="ignore"):
        for part in split_pairs(divided, setting):
            part /= lengths
    return divided
