"""What a RoPE module returns, as points on circles: where positions, cos and sin stand in its tensors.

That is known by the values at positions 0, 1, 2, ..., once, as the module was built; what other ways of
loading return is read in the same places, whatever it holds.
Letters: n positions, c columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.recognition.inferred import recovered

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
        tensors = tensors_of(returned)
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
        return str(tensors_of(returned)[self.tensors[0]].dtype).removeprefix("torch.")


def unit_of(where: TensorPlaces, returned: Any) -> float:
    """Return the unit roundoff of what is returned; of angles that of float32, whose cos is formed here."""
    held = where.dtype(returned)
    wide = held.startswith("complex") or where.what == "angles"
    return FP32.unit_roundoff if wide else parse(held).unit_roundoff


def tensors_of(returned: Any) -> list[Any]:
    """Return all tensors of nested lists, tuples and dicts, in order."""
    import torch

    if isinstance(returned, torch.Tensor):
        return [returned]
    parts = list(returned.values()) if isinstance(returned, Mapping) else returned
    if not isinstance(parts, list | tuple):
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]


def places(returned: Any, rows: int) -> TensorPlaces | None:
    """Return where cos and sin, or angles, of positions 0 to `rows` - 1 stand; None where they do not."""
    tensors = tensors_of(returned)
    for candidate in _candidates(tensors, rows):
        try:
            points = candidate.points(planes := candidate.planes(returned, rows))
        except (LookupError, ValueError):
            continue
        if _rotates(points) and (candidate.what != "angles" or _grows(planes[0])):
            return candidate
    return None


def misplaced(known: Sequence[Planes], returned: Any, rows: int) -> TensorPlaces | None:
    """Return where cos and sin of whole positions stand, whichever those are; None where they do not.

    known: frequencies (p,) that they may have, each in one column or in two.
    """
    for candidate in _candidates(tensors_of(returned), rows):
        if candidate.what == "angles":  # zeros are those of position 0
            continue
        try:
            points = candidate.points(candidate.planes(returned, rows))
        except (LookupError, ValueError):
            continue
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


def _candidates(tensors: Sequence[Any], rows: int) -> Iterator[TensorPlaces]:
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
    """Yield indices that choose cos and sin. sizes: of the axes behind that of positions."""
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
    """Return whether every column rotates by a constant angle from row to row, or stays, from angle 0."""
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
