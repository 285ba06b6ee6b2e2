"""What a module's tables should be: the exact frequencies of its columns, and where those are known from.

They are those of what was given explicitly, else those of the setting that explains the buffers, or else
those that the module shows as it was built: of a usual base, where one agrees with all of them, and else
inferred, with an uncertainty that is allowed.
Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.features.module.expected import Expected
from ropeaudit.recognition import allowance
from ropeaudit.recognition.inferred import Inference, recovered, usual
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling import forwards
from ropeaudit.subjects.calling.forwards import PROBE, Call, Fitted
from ropeaudit.tensor_files import rope_values

Array = NDArray[np.float64]
_Held = tuple[Array, Array]  # frequencies, and how far off each may be, relative
CHUNK = 4096  # positions of a call
TOGETHER = 16384  # positions that one call takes, so that what depends on the length is of one length
AS_BUILT = "the frequencies that it shows as built"
_SNAP = 2.0**-7  # relative: what casts to bfloat16 leave of frequencies and of positions
_ONE = 0.02  # a length that near 1 is no attention factor but rounding
_BACKWARD = 2.0**-16  # radians per token: what float32 leaves of frequencies of several turns
_STILL = 1e-9  # radians per token


@dataclass(frozen=True, slots=True)
class Known:
    """Frequencies (p,) that are known, what says so in words, and a relative tolerance of each.

    setting: the one whose they are. buffer: the name of the one that holds them. held: what that holds, where
    these are exact.
    """

    words: str
    theta: Array
    tolerance: Array
    setting: RopeSetting | None = None
    buffer: str = ""
    held: Array | None = None

    @property
    def holder(self) -> str:
        """The name of the module that holds that buffer."""
        return self.buffer.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Reference:
    """Frequencies (c,), attention factors (c,), what they are in words, and a relative tolerance (c,).

    uncertain: how far off they may be for having been inferred, radians per token (c,). source: what says
    them; None of those that a call of the module as built shows.
    """

    theta: Array
    factor: Array
    words: str
    tolerance: Array
    uncertain: Array
    source: Known | None = None


def shown(module: Any, fitted: Fitted[TensorPlaces], n: int, dtype: Any) -> list[Reference]:
    """Return what a module shows at n positions, by call: the first decide, others refine.

    Positions that several calls take are given to a copy, for calls may change what depends on the length.
    """
    results = []
    for call in fitted.calls:
        rows = min(n, TOGETHER)  # of one length, where frequencies depend on it
        returned = call.run(module, 0, rows, dtype)
        points = fitted.places.points(fitted.places.planes(returned, rows))
        factor = np.median(np.abs(points[:PROBE]), axis=0)
        factor[np.abs(factor - 1) < _ONE] = 1.0
        # of angles cos is formed here
        unit = _unit("complex" if fitted.places.what == "angles" else fitted.places.dtype(returned))
        inference = Inference.of(points[:CHUNK] / factor, unit)
        for start in range(CHUNK, rows, CHUNK):
            inference.take(points[start : start + CHUNK] / factor, start)
        if rows < n and call.free:
            for start, later in _later(module, fitted, call, rows, n, dtype):
                inference.take(later / factor, start)
        factor = _factor(points[:CHUNK], factor, inference)
        theta = inference.theta
        results.append(Reference(theta, factor, AS_BUILT, np.zeros_like(theta), inference.uncertain))
    return results


def _factor(points: Any, factor: Array, seen: Inference) -> Array:
    """Return attention factors (c,): where all are one up to rounding, the mean of what fast columns have.

    Near the axes cos is the same for many positions, and so is what rounding does to it: they do not count.
    """
    angles = np.arange(len(points))[:, None] * seen.theta
    fast = seen.held & (np.abs(seen.theta) * len(points) > 8 * math.pi)
    usable = fast & (np.abs(np.sin(2 * angles)) > 0.5) & np.isfinite(points)
    if not usable.any() or np.all(factor == 1):
        return factor
    mean = float(np.mean((points[usable] * np.exp(-1j * angles[usable])).real))
    near = np.all(np.abs(factor - mean) <= 4 * seen.unit * mean)
    return np.full_like(factor, mean) if near else factor


def _later(
    module: Any, fitted: Fitted[TensorPlaces], call: Call, begin: int, n: int, dtype: Any
) -> Iterator[tuple[int, Any]]:
    """Yield points of a copy of a module from `begin` on, until it raises."""
    try:
        other = copy.deepcopy(module)
        for start in range(begin, n, CHUNK):
            stop = min(n, start + CHUNK)
            planes = fitted.places.planes(call.run(other, start, stop, dtype), stop - start)
            yield start, fitted.places.points(planes)
    except Exception:  # whatever other people's code raises: the run itself will show it
        return


def exact(seen: Reference, pool: Sequence[Known]) -> Reference:
    """Return what the columns of a call should be.

    pool: names, frequencies of buffers and tolerances; they count where all that rotate are near one of one.
    """
    pooled = _pooled(seen, pool)
    if pooled is not None and not pooled.tolerance.any():
        return pooled
    if known := _usual(seen):
        return known if pooled is None else replace(known, words=pooled.words, source=pooled.source)
    return pooled or seen


def _pooled(seen: Reference, pool: Sequence[Known]) -> Reference | None:
    theta, factor = seen.theta, seen.factor
    moving = np.abs(theta) > _STILL
    for one in pool:
        usable = np.abs(one.theta) > 0
        listed, near = one.theta[usable], one.tolerance[usable]
        if not listed.size:
            continue
        either = np.concatenate([listed, -listed])  # a module may rotate either way
        wrapped = _wrapped(either)  # positions are whole: a frequency above half a turn steps back
        backward = np.where(either < -math.pi, _BACKWARD, 0.0)  # others, forward, may step as far
        chosen = (np.abs(_wrapped(theta[:, None] - wrapped)) + backward).argmin(axis=1)
        off = np.abs(_wrapped(theta - wrapped[chosen]))
        if np.all((off <= _SNAP * np.abs(wrapped[chosen]) + 2.0**-20) | ~moving):
            index = chosen % listed.size
            return Reference(
                np.where(moving, either[chosen], 0.0),
                factor,
                one.words,
                np.where(moving, near[index], 0),
                np.zeros_like(theta),
                one,
            )
    return None


def _wrapped(angles: Array) -> Array:
    """Return angles within half a turn, radians."""
    return np.asarray((angles + math.pi) % (2 * math.pi) - math.pi)


def _usual(seen: Reference) -> Reference | None:
    """Return a usual base's frequencies that agree with all that rotate, or None."""
    moving = np.abs(seen.theta) > np.maximum(_STILL, seen.uncertain)
    known = usual(np.abs(seen.theta[moving]), seen.uncertain[moving]) if moving.any() else None
    if known is None:
        return None
    theta, tolerance = np.zeros_like(seen.theta), np.zeros_like(seen.theta)
    theta[moving] = np.sign(seen.theta[moving]) * known.theta
    tolerance[moving] = np.abs(seen.theta - theta)[moving] / known.theta  # what float32 made of them
    source = Known(known.words, known.theta, tolerance, known.setting)
    return Reference(theta, seen.factor, known.words, tolerance, seen.uncertain, source)


def explicit(seen: Reference, expected: Expected, axes: bool, n: int) -> Reference | None:
    """Return what the columns of a call should be by what was given; None where that is about others.

    Columns that are near none of its frequencies are matched with them by their order, from fast to slow,
    where there are as many. axes: whether the call has several, whose frequencies have no one order. n: the
    positions of the call, whose number dynamic scaling goes by.
    """
    theta, fast_first = seen.theta, speeds(seen)
    pool = [
        _of_setting(label, replace(one, length=n) if one.scaling.kind == "dynamic" else one)
        for label, one in expected.settings(fast_first.size)
    ]
    found = _pooled(seen, pool)
    if found is None:
        same = [one for one in pool if one.theta.size == fast_first.size]
        if axes or not same:
            return None
        source, moving = same[0], np.abs(theta) > _STILL
        order = np.argsort(-source.theta)
        rank = np.searchsorted(-fast_first, -np.abs(theta)).clip(max=fast_first.size - 1)
        signed = np.where(moving, np.sign(theta) * source.theta[order][rank], 0.0)
        tolerance = np.where(moving, source.tolerance[order][rank], 0)
        found = Reference(signed, seen.factor, source.words, tolerance, np.zeros_like(theta), source)
    given = None if found.source is None else found.source.setting
    assert given is not None  # noqa: S101  # each of the pool has one
    factor = float(exact_frequencies.attention_factor(given.scaling))  # whatever is shown
    return replace(found, factor=np.full_like(theta, factor))


def speeds(seen: Reference) -> Array:
    """Return the distinct nonzero frequencies of a call, from fast to slow."""
    theta = np.abs(seen.theta)
    return np.asarray(np.unique(theta[theta > _STILL])[::-1])


def possible_pairs(seen: Reference, axes: bool) -> set[int]:
    """Return how many pairs the setting of the columns may have: those that rotate, or all.

    axes: whether the call has several, which may share frequencies; else equal columns are of one pair.
    """
    counts = np.unique(seen.theta, return_counts=True)[1]
    columns = seen.theta.size
    twice = bool(np.all(counts % 2 == 0))
    return {speeds(seen).size} | ({columns // 2} if twice else {columns}) | ({columns} if axes else set())


def _of_setting(label: str, setting: RopeSetting) -> Known:
    theta = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
    return Known(label, theta, allowance.frequency_error(setting, theta=theta), setting)


def frequencies_of(tensor: Any) -> Array | None:
    """Return the frequencies that a tensor's values show; None for none."""
    values = values_of(tensor)
    seen = _frequencies(rope_values.known(values), values, str(tensor.dtype).removeprefix("torch."))
    return None if seen is None else seen[0]


def _frequencies(what: str, values: NDArray[Any], dtype: str) -> _Held | None:
    squeezed = np.squeeze(values)
    with np.errstate(all="ignore"):
        if what == "both" and (halves := rope_values.both(squeezed)):
            return _inferred(halves[0] + 1j * halves[1], dtype)
        if what not in ("inv_freq", "periods", "angles"):
            return None
        theta = np.asarray(rope_values.folded(squeezed[1] if what == "angles" else squeezed))
        theta = 1 / theta if what == "periods" else theta
    return theta, np.zeros_like(theta)


def _unit(dtype: str) -> float:
    """Return the unit roundoff of a dtype; of complex ones that of float32."""
    return FP32.unit_roundoff if dtype.startswith("complex") else parse(dtype).unit_roundoff


def _inferred(points: NDArray[np.complex128], dtype: str) -> _Held:
    """Return the frequencies that a table shows, and their relative uncertainty."""
    seen = Inference.of(points, _unit(dtype))
    return seen.theta, seen.uncertain / np.where(seen.theta == 0, 1.0, np.abs(seen.theta))


def _of_both(cos: Buffer, buffers: Sequence[Buffer]) -> _Held | None:
    """Return the frequencies of a cos table and the sin beside it, or None."""
    for sin in buffers:
        same = sin.what == "sin" and sin.stored.values.shape == cos.stored.values.shape
        beside = sin.stored.name.rpartition(".")[0] == cos.stored.name.rpartition(".")[0]
        first, second = np.squeeze(cos.stored.values), np.squeeze(sin.stored.values)
        if same and beside and first.ndim == 2 and rope_values.partners(first, second) == 1:
            return _inferred(first + 1j * second, cos.stored.dtype)
    return None


def known(buffers: Sequence[Buffer]) -> list[Known]:
    """Return the frequencies of each buffer that says them.

    Of one that was cast, or that is right, they are the exact ones of the setting that it is of. Those
    that are known without a tolerance come first; those of a table are inferred, up to theirs.
    """
    results = []
    for buffer in buffers:
        setting, stored = buffer.setting, buffer.stored
        held = _frequencies(buffer.what, stored.values, stored.dtype)
        if buffer.what == "cos" and buffer.cast == "none":
            held = _of_both(buffer, buffers)
        theta, tolerance = held or (None, np.zeros(0))
        right = buffer.table is not None and buffer.table.agrees
        if setting is not None and theta is not None and right and setting.pairs == theta.size:
            exact_ones = _of_setting(buffer.against, setting)
            results.append(replace(exact_ones, buffer=stored.name, held=theta))
            continue
        if setting is not None and (theta is None or (buffer.cast != "none" and setting.pairs == theta.size)):
            results.append(replace(_of_setting("", setting), words=stored.name, buffer=stored.name))
        elif theta is not None and theta.size:
            results.append(Known(stored.name, theta, tolerance, buffer=stored.name))
    return sorted(results, key=lambda one: bool(one.tolerance.any()))


Planes = NDArray[Any]
_FAR, _MEAN = 0.5, 0.1  # radians that bfloat16 angles of the first positions may be off: largest, mean
_LENGTH = 0.05  # of lengths, relative
_FEWEST = 2  # frequencies
_OFF = 0.05  # of points: what float32, and bfloat16 results, leave


@dataclass(frozen=True, slots=True)
class TensorPlaces:
    """Which tensors hold what: cos and sin, both, complex or angles; and the axis of positions.

    halves: the indices behind the axis of positions that choose cos and sin out of one tensor. theta: the
    frequencies of the columns, where rows are those of other positions than were given.
    """

    what: str
    tensors: tuple[int, ...]
    axis: int
    halves: tuple[Any, Any] | None = None
    theta: tuple[float, ...] = ()

    def planes(self, returned: Any, rows: int) -> list[Planes]:
        """Return the values, as returned, positions first: one plane (n, c), or cos and sin.

        Raises: LookupError or ValueError where the tensors have another shape.
        """
        tensors = forwards.tensors_of(returned)
        values = [np.moveaxis(values_of(tensors[index]), self.axis, 0) for index in self.tensors]
        if self.halves is not None:
            values = [values[0][half] for half in self.halves]
        if any(len(part) != rows for part in values):
            raise ValueError(f"{len(values[0])} rows for {rows} positions")
        return [part.reshape(rows, -1) for part in values]

    def points(self, planes: Sequence[Planes]) -> NDArray[np.complex128]:
        """Return cos + i sin. Shapes: (n, c)."""
        if self.what == "angles":
            with np.errstate(invalid="ignore"):
                return np.asarray(np.exp(1j * planes[0]))
        return np.asarray(planes[0] if len(planes) == 1 else planes[0] + 1j * planes[1], dtype=np.complex128)

    def dtype(self, returned: Any) -> str:
        """Return the dtype of what is returned."""
        return str(forwards.tensors_of(returned)[self.tensors[0]].dtype).removeprefix("torch.")


def places(returned: Any, rows: int) -> TensorPlaces | None:
    """Return where cos and sin, or angles, of the first `rows` positions stand, if anywhere."""
    for candidate, planes in _candidates(returned, rows):
        if _rotates(candidate.points(planes)) and (candidate.what != "angles" or _grows(planes[0])):
            return candidate
    return None


def misplaced(known: Sequence[Planes], returned: Any, rows: int) -> TensorPlaces | None:
    """Return where cos and sin of any whole positions stand; None where they do not.

    known: frequencies (p,) that they may have, each in one column or in two.
    """
    for candidate, planes in _candidates(returned, rows):
        if candidate.what == "angles":  # zeros are those of position 0
            continue
        points = candidate.points(planes)
        for theta in known:
            for columns in (theta, np.tile(theta, 2), np.repeat(theta, 2)):
                if columns.size == points.shape[1] and _of_whole_positions(points, columns):
                    return replace(candidate, theta=tuple(columns.tolist()))
    return None


def _of_whole_positions(points: NDArray[np.complex128], theta: Planes) -> bool:
    """Return whether each row (c,) is that of a whole position."""
    lengths = np.abs(points)
    if not np.isfinite(points).all() or np.any(lengths <= 0):
        return False
    at = np.arange(-2 * len(points), 2 * len(points))[:, None]
    off = np.abs((points / lengths)[:, None] - np.exp(1j * at * theta)).max(axis=2)  # (n, positions)
    even = np.all(np.abs(lengths - lengths[0]) <= _LENGTH * lengths[0])
    return bool(even and np.all(off.min(axis=1) <= _OFF))


def _candidates(returned: Any, rows: int) -> Iterator[tuple[TensorPlaces, list[Planes]]]:
    """Yield where cos and sin may stand, with the planes there."""
    for candidate in _places(forwards.tensors_of(returned), rows):
        with contextlib.suppress(LookupError, ValueError):
            yield candidate, candidate.planes(returned, rows)


def _places(tensors: Sequence[Any], rows: int) -> Iterator[TensorPlaces]:
    for index, tensor in enumerate(tensors):
        for axis in (axis for axis, size in enumerate(tensor.shape) if size == rows):
            if tensor.is_complex():
                yield TensorPlaces("complex", (index,), axis)
                continue
            follower = tensors[index + 1] if index + 1 < len(tensors) else None
            if follower is not None and follower.shape == tensor.shape:
                yield TensorPlaces("cos and sin", (index, index + 1), axis)
                yield TensorPlaces("cos and sin", (index + 1, index), axis)
            for halves in _halves([size for at, size in enumerate(tensor.shape) if at != axis]):
                yield TensorPlaces("both", (index,), axis, halves)
            yield TensorPlaces("angles", (index,), axis)


def _halves(sizes: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Yield indices that choose cos and sin. sizes: of axes after positions."""
    if tuple(sizes[-2:]) == (2, 2):
        yield (..., 0, 0), (..., 1, 0)
        yield (..., 0, 0), (..., 0, 1)
    for axis, size in enumerate(sizes):
        front = (slice(None),) * (axis + 1)
        if size == 2:
            yield (*front, 0), (*front, 1)
            yield (*front, 1), (*front, 0)
    if sizes and sizes[-1] % 2 == 0:
        half = sizes[-1] // 2
        yield (..., slice(0, half)), (..., slice(half, None))
        yield (..., slice(half, None)), (..., slice(0, half))
        yield (..., slice(0, None, 2)), (..., slice(1, None, 2))
        yield (..., slice(1, None, 2)), (..., slice(0, None, 2))


def values_of(tensor: Any) -> Planes:
    """Return the values of a tensor of torch in float64 or complex128."""
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return np.asarray(tensor.detach().to("cpu", wide).numpy())


def _rotates(points: NDArray[np.complex128]) -> bool:
    """Return whether every column starts at angle 0 and turns by a constant angle."""
    if not np.isfinite(points).all() or points.shape[1] == 0:
        return False
    lengths = np.abs(points)
    if np.any(lengths[0] <= 0) or np.any(np.abs(lengths - lengths[0]) > _LENGTH * lengths[0]):
        return False
    theta = recovered(points)
    off = np.abs(points / lengths - np.exp(1j * np.arange(len(points))[:, None] * theta))
    moves = np.unique(np.abs(theta[np.abs(theta) > 0])).size >= _FEWEST
    return bool(moves and off.max() <= _FAR and off.mean() <= _MEAN)


def _grows(angles: Planes) -> bool:
    """Return whether a column goes beyond what cos or sin could be: a table of angles."""
    return bool(not angles[0].any() and np.abs(angles[-1]).max() > math.pi / 2)
