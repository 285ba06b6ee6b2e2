"""What a module's tables of cos and sin are at positions, by running it, for each way of loading.

The exact values are cos and sin, in float64, of whole positions times the frequencies of `references`.
Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import parse
from ropeaudit.features.module.references import CHUNK, TOGETHER, Reference, TensorPlaces
from ropeaudit.recognition import inferred
from ropeaudit.recognition.check import check
from ropeaudit.recognition.diagnosis import Diagnosis, kinds
from ropeaudit.recognition.inferred import ROUNDINGS
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.forwards import PROBE, Call, Fitted
from ropeaudit.tensor_files.rope_values import Dump

Array = NDArray[np.float64]
UP_TO = 4096  # positions
LAST = 256  # positions whose scores' drift is given
_UNIT = 2.0**-24  # unit roundoff of float32
_RETURNED = 2  # roundings of what is returned: of cos, of its product with an attention factor


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came out at n positions.

    distinct: rows that differ. cos_error: the largest of cos, at position `worst`; sin_error: of sin. excess:
    the largest error over what float32 angles and rounding to `usual` explain, above 1 for a fault. usual:
    the dtype that the module as built returns for the same inputs. once: the largest error over what float32
    angles and one rounding to `returned` explain, where that is a narrower dtype; else infinite. drift: of
    the scores of the last positions, over their RMS. returns: what, as in `TensorPlaces`; returned: its
    dtype. of_frequencies: whether computing frequencies in float32 is allowed too. uncertain: the part of
    what is allowed that is for frequencies having been inferred from what is returned. diagnosis: what
    explains the errors, where they are more than is allowed and it is known.
    """

    cos_error: float
    sin_error: float
    excess: float
    once: float
    allowed: float
    nonfinite: int
    returns: str
    returned: str
    usual: str
    positions: int
    distinct: int
    worst: int
    drift: float
    of_frequencies: bool = False
    uncertain: float = 0.0
    diagnosis: Diagnosis | None = None

    @property
    def rounded(self) -> bool:
        """Whether it is beyond the allowed error, and one rounding explains it."""
        return self.excess > 1 and self.once <= 1


def length(module: Any, fitted: Fitted[TensorPlaces], up_to: int, dtype: Any) -> int:
    """Return how many positions a module holds, `up_to` at most: tables end."""

    def runs(n: int) -> bool:
        try:
            returned = fitted.calls[0].run(module, max(0, n - CHUNK) if fitted.calls[0].free else 0, n, dtype)
            fitted.places.planes(returned, min(n, CHUNK) if fitted.calls[0].free else n)
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


def of_positions(
    module: Any, fitted: Fitted[TensorPlaces], references: Sequence[Reference], n: int, dtype: Any, usual: str
) -> Measurement:
    """Return what a module returns at positions 0 to n - 1, compared with the exact values.

    Of several calls it is the one that is furthest off. usual: the dtype that the module as built returns.
    Raises: whatever the module raises; LookupError or ValueError where it returns another shape.
    """
    results = []
    for call, reference in zip(fitted.calls, references, strict=True):
        chunks = _chunks(module, call, fitted.places, n, dtype)
        results.append(_of_call(chunks, fitted.places, reference, n, usual))
    return max(results, key=lambda measured: math.inf if math.isnan(measured.excess) else measured.excess)


def _errors(points: Any, should: Any, of_angle: Any, factor: Any, usual: str, held: str) -> tuple[int, Array]:
    """Return the row of the largest error of cos, and the largest errors of points (n, c).

    Those are of cos, of sin, over what is allowed, over what one rounding to `held` explains, and what is
    allowed at most. of_angle: what float32 angles explain of points.
    """
    off = np.where(np.isfinite(points), points - should, 0)
    may = np.broadcast_to(of_angle + factor * _RETURNED * _unit(usual), off.shape)
    cos, sin = np.abs(off.real), np.abs(off.imag)
    once = math.inf
    if _unit(held) > _unit(usual):
        sizes = np.abs(should.real) + of_angle, np.abs(should.imag) + of_angle
        narrow = [
            error / (of_angle + _unit(held) * size) for error, size in zip((cos, sin), sizes, strict=True)
        ]
        once = np.max(narrow)
    row = int(np.unravel_index(cos.argmax(), cos.shape)[0])
    return row, np.array([cos.max(), sin.max(), np.max([cos / may, sin / may]), once, may.max()])


def _unit(held: str) -> float:
    """Return the unit roundoff of a dtype; 0 of complex ones and of angles."""
    return 0.0 if not held or held.startswith("complex") else parse(held).unit_roundoff


def _of_call(
    chunks: Iterable[tuple[int, list[Any], str]],
    places: TensorPlaces,
    reference: Reference,
    n: int,
    usual: str,
) -> Measurement:
    """Return what a call returns at n positions, compared with exact values."""
    rows: set[bytes] = set()
    angles, returned = places.what == "angles", ""
    parts, nonfinite = list[tuple[int, Array]](), 0
    first, last = np.zeros((0, 0), np.complex128), list[NDArray[np.complex128]]()
    for start, planes, returned in chunks:
        rows.update(row.tobytes() for row in np.concatenate(planes, axis=1))
        for part in (part for plane in planes for part in (plane.real, plane.imag)):
            nonfinite += int(np.count_nonzero(~np.isfinite(part)))
        points = places.points(planes)
        at = np.arange(start, start + len(points), dtype=np.float64)[:, None]
        should = reference.factor * np.exp(1j * at * reference.theta)
        # the largest error that float32 angles, and frequencies that are inferred, explain
        turned = at * np.abs(reference.theta)
        may = turned * (ROUNDINGS * _UNIT + reference.tolerance) + at * reference.uncertain
        of_angle = np.asarray(reference.factor * (may + 4 * _UNIT))
        dtypes = ("", "") if angles else (usual, returned)
        row, largest = _errors(points, should, of_angle, reference.factor, *dtypes)
        parts.append((start + row, largest))
        first, last = first if first.size else points, [*last, points][-2:]
    cos, sin, excess, once, allowed = (float(size) for size in np.max([sizes for _, sizes in parts], axis=0))
    measured = Measurement(
        cos_error=cos,
        sin_error=sin,
        excess=math.nan if nonfinite else excess,
        once=once,
        allowed=allowed,
        nonfinite=nonfinite,
        returns=places.what,
        returned=returned,
        positions=n,
        distinct=len(rows),
        worst=max(parts, key=lambda part: part[1][0])[0],
        drift=_drift(np.concatenate(last)[-LAST:], reference, n),
        usual=usual,
        of_frequencies=bool(reference.tolerance.any()),
        uncertain=float(np.max(reference.factor * reference.uncertain, initial=0.0)) * (n - 1),
    )
    if measured.excess <= 1:
        return measured
    return replace(measured, diagnosis=_diagnosis(measured, first, reference))


def _diagnosis(seen: Measurement, points: NDArray[np.complex128], reference: Reference) -> Diagnosis | None:
    """Return why the first points (n, c) are off; None where nothing explains it."""
    if seen.nonfinite:
        return Diagnosis("nonfinite")
    if seen.rounded:
        return inferred.rounded({"table": parse(seen.returned)})
    theta, factor = np.abs(reference.theta), reference.factor
    should = factor * np.exp(1j * np.arange(len(points))[:, None] * reference.theta)
    worst_first = np.argsort(-np.abs(points - should).max(axis=0))
    _, index = np.unique(theta[worst_first], return_index=True)
    columns = worst_first[index[::-1]]  # of equal frequencies the one that is furthest off
    columns = columns[theta[columns] > 0]
    if not columns.size:
        return None
    shown, own = points[:, columns], 1.0
    shown = np.where(reference.theta[columns] < 0, np.conj(shown), shown)
    explicit = Scaling("explicit", frequencies=tuple(theta[columns].tolist()))
    setting, source = RopeSetting.of(2 * columns.size, scaling=explicit), reference.source
    if source is not None and source.setting is not None:
        own = float(attention_factor(source.setting.scaling))
        whole = np.array_equal(np.sort(source.theta)[::-1], theta[columns])
        setting = source.setting if whole and np.all(factor == own) else setting
    if setting.scaling == explicit:
        shown = shown / factor[columns]
    found = check(Dump("", "", cos=shown.real, sin=shown.imag), setting).diagnosis
    parts = () if found is None else found.parts()
    known = setting.scaling != explicit or all(kinds()[one.code].group != "setting" for one in parts)
    return found if known else None


def _chunks(
    module: Any, call: Call, places: TensorPlaces, n: int, dtype: Any
) -> Iterator[tuple[int, list[Any], str]]:
    """Yield planes of up to `CHUNK` positions, the first position and the dtype."""
    step = n if n <= TOGETHER or not call.free else CHUNK
    for begin in range(0, n, step):
        stop = min(n, begin + step)
        returned = call.run(module, begin, stop, dtype)
        planes, held = places.planes(returned, stop - begin), places.dtype(returned)
        for start in range(0, stop - begin, CHUNK):
            yield begin + start, [plane[start : start + CHUNK] for plane in planes], held


def _drift(points: NDArray[np.complex128], reference: Reference, n: int) -> float:
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
