"""What a module's tables of cos and sin are at positions, by running it, for each way of loading.

The exact values are cos and sin, in float64, of whole positions times frequencies: those of the setting that
explains the buffers, or else those that the module shows as it was built.
Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import parse
from ropeaudit.features.module.outputs import Places
from ropeaudit.recognition.stored_table import recovered
from ropeaudit.subjects.calling.forwards import PROBE, Fitted

Array = NDArray[np.float64]
UP_TO = 4096  # positions
LAST = 256  # positions whose scores' drift is given
_CHUNK = 4096  # positions of a call
TOGETHER = 16384  # positions that one call takes, so that what depends on the length is of one length
_UNIT = 2.0**-24  # unit roundoff of float32
_ROUNDINGS = 3  # of an angle: of the frequency, of the product, of what is recovered
_RETURNED = 2  # roundings of what is returned: of cos, of its product with an attention factor
_SNAP = 2.0**-7  # relative: what casts to bfloat16 leave of frequencies and of positions
_ONE = 0.02  # a length that near 1 is no attention factor but rounding


@dataclass(frozen=True, slots=True)
class Exact:
    """Frequencies (c,), attention factors (c,), what they are in words, and a relative tolerance (c,)."""

    theta: Array
    factor: Array
    words: str
    tolerance: Array


@dataclass(frozen=True, slots=True)
class Measured:
    """What came out at n positions.

    distinct: rows that differ. cos_error: the largest of cos, at position `worst`; sin_error: of sin. excess:
    the largest error over what float32 angles and the returned dtype explain, above 1 for a fault. drift:
    of the scores of the last positions, over their RMS. returns: what, as in `Places`; returned: its dtype.
    """

    positions: int
    distinct: int
    cos_error: float
    sin_error: float
    worst: int
    excess: float
    allowed: float
    drift: float
    nonfinite: int
    returns: str
    returned: str


def length(module: Any, fitted: Fitted[Places], up_to: int, dtype: Any) -> int:
    """Return how many positions a module holds, `up_to` at most: tables end."""

    def runs(n: int) -> bool:
        try:
            returned = fitted.calls[0].run(
                module, max(0, n - _CHUNK) if fitted.calls[0].free else 0, n, dtype
            )
            fitted.places.planes(returned, min(n, _CHUNK) if fitted.calls[0].free else n)
        except Exception:  # whatever other people's code raises
            return False
        return True

    if runs(up_to):
        return up_to
    low, high = min(PROBE, up_to), up_to
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    return low


def shown(module: Any, fitted: Fitted[Places], n: int, dtype: Any) -> list[Array]:
    """Return frequencies and factors, (2, c), that a module shows at its first positions, for each call."""
    results = []
    for call in fitted.calls:
        rows = min(n, TOGETHER)  # of one length, where frequencies depend on it
        planes = fitted.places.planes(call.run(module, 0, rows, dtype), rows)
        points = fitted.places.points([plane[:_CHUNK] for plane in planes])
        factor = np.median(np.abs(points[:PROBE]), axis=0)
        factor[np.abs(factor - 1) < _ONE] = 1.0
        results.append(np.stack([recovered(points / factor), factor]))
    return results


def exact(seen: Array, pool: Sequence[tuple[str, Array, Array]]) -> Exact:
    """Return what the columns of a call should be. seen: frequencies and factors, (2, c).

    pool: names, frequencies of buffers and tolerances; they count where all that rotate are near one of one.
    """
    theta, factor = seen
    moving = np.abs(theta) > 1e-9
    for words, values, tolerance in pool:
        usable = np.abs(values) > 0
        listed, near = values[usable], tolerance[usable]
        if not listed.size:
            continue
        wrapped = np.abs((listed + math.pi) % (2 * math.pi) - math.pi)  # positions are whole
        index = np.abs(np.abs(theta)[:, None] - wrapped).argmin(axis=1)
        off = np.abs(np.abs(theta) - wrapped[index])
        if np.all((off <= _SNAP * wrapped[index] + 2.0**-20) | ~moving):
            turns = np.where(np.abs(theta - listed[index]) % (2 * math.pi) < math.pi / 2, 1.0, -1.0)
            signs = np.where(np.abs(listed[index]) <= math.pi, np.sign(theta), turns)
            return Exact(
                np.where(moving, signs * listed[index], 0.0), factor, words, np.where(moving, near[index], 0)
            )
    return Exact(theta, factor, "the frequencies that it shows as built", np.zeros_like(theta))


def measured(
    module: Any, fitted: Fitted[Places], references: Sequence[Exact], n: int, dtype: Any
) -> Measured:
    """Return what a module returns at positions 0 to n - 1, compared with the exact values.

    Raises: whatever the module raises; LookupError or ValueError where it returns another shape.
    """
    return _worst(
        [_of_call(module, fitted, k, reference, n, dtype) for k, reference in enumerate(references)]
    )


def _worst(results: Sequence[Measured]) -> Measured:
    """Return the measurement of the call that is furthest off."""
    return max(results, key=lambda one: math.inf if math.isnan(one.excess) else one.excess)


def _of_call(module: Any, fitted: Fitted[Places], k: int, reference: Exact, n: int, dtype: Any) -> Measured:
    rows: set[bytes] = set()
    errors, worst, excess, allowed, bad, returned = [0.0, 0.0], 0, 0.0, 0.0, 0, ""
    last: list[NDArray[np.complex128]] = []
    for start, planes, returned in _chunks(module, fitted, k, n, dtype):
        rows.update(row.tobytes() for row in np.concatenate(planes, axis=1))
        points = fitted.places.points(planes)
        at = np.arange(start, start + len(points), dtype=np.float64)[:, None]
        should = reference.factor * np.exp(1j * at * reference.theta)
        may = _allowed(reference, at, "" if fitted.places.what == "angles" else returned)
        fine = np.isfinite(points)
        bad += int(points.size - np.count_nonzero(fine))
        off = np.where(fine, points - should, 0)
        for part, error in enumerate((np.abs(off.real), np.abs(off.imag))):
            if part == 0 and error.max() > errors[0]:
                worst = start + int(np.unravel_index(error.argmax(), error.shape)[0])
            errors[part] = max(errors[part], float(error.max()))
            excess = max(excess, float((error / may).max()))
        allowed = max(allowed, float(may.max()))
        last = [*last, points][-2:]
    drift = _drift(np.concatenate(last)[-LAST:], reference, n)
    excess = math.nan if bad else excess
    cos_error, sin_error = errors
    return Measured(
        n, len(rows), cos_error, sin_error, worst, excess, allowed, drift, bad, fitted.places.what, returned
    )


def _chunks(
    module: Any, fitted: Fitted[Places], k: int, n: int, dtype: Any
) -> Iterator[tuple[int, list[Any], str]]:
    """Yield planes of up to `_CHUNK` positions, with the first, and the dtype that was returned."""
    call = fitted.calls[k]
    step = n if n <= TOGETHER or not call.free else _CHUNK
    for begin in range(0, n, step):
        stop = min(n, begin + step)
        returned = call.run(module, begin, stop, dtype)
        planes, held = fitted.places.planes(returned, stop - begin), fitted.places.dtype(returned)
        for start in range(0, stop - begin, _CHUNK):
            yield begin + start, [plane[start : start + _CHUNK] for plane in planes], held


def _allowed(reference: Exact, at: Array, returned: str) -> Array:
    """Return the largest error that float32 angles, and rounding cos and sin to a dtype, explain; (n, c)."""
    angles = at * np.abs(reference.theta)
    unit = 0.0
    if returned and not returned.startswith("complex"):
        unit = parse(returned).unit_roundoff
    of_angle = angles * (_ROUNDINGS * _UNIT + reference.tolerance) + 4 * _UNIT
    return np.asarray(reference.factor * (of_angle + _RETURNED * unit))


def _drift(points: NDArray[np.complex128], reference: Exact, n: int) -> float:
    """Return the expected RMS drift of the scores of all pairs of positions, over the scores' RMS.

    For independent Gaussian q and k, of the columns that rotate: the mean of |P P* - E E*|² over E⁴.
    """
    at = np.arange(n - len(points), n, dtype=np.float64)[:, None]
    should = np.exp(1j * at * reference.theta)
    seen = points / reference.factor
    if not np.isfinite(seen).all():
        return math.nan
    cross = np.abs(np.sum(seen * np.conj(should), axis=0)) ** 2
    powers = np.sum(np.abs(seen) ** 2, axis=0) ** 2 + len(points) ** 2 - 2 * cross
    return math.sqrt(max(0.0, float(np.mean(powers)))) / len(points)
