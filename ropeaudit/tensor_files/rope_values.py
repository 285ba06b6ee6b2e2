"""Recognition of RoPE tensors by their values: frequencies, angles, cos and sin.

Frequencies are base^(-2i/d) or close to that for most i; angles grow by the same amount from row to row, and
cos and sin follow the addition theorem. Casts leave all of this to a few percent. Rows are positions 0, 1 ...
Letters: n positions, p pairs, c columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput

Array = NDArray[Any]
HEAD = 4  # rows by which a table is known
ALIKE = 64  # rows by which a cos knows its sin
_FEWEST, _WIDEST = 4, 4096  # columns
_CLOSE = 0.03  # what casts leave of the addition theorem, relative
_NEAR = 0.01  # ... of the ratio of neighbouring frequencies
_TINY = 2.0**-12  # below, float16 has few digits


def may_hold(shape: tuple[int, ...]) -> bool:
    """Return whether a shape may be that of RoPE: (c,), (n, c), (n, p, 2), (n, p, 2, 2)."""
    sizes = [size for size in shape if size != 1]
    if len(sizes) == 1:
        return _FEWEST <= sizes[0] <= _WIDEST
    return 2 <= len(sizes) <= 4 and sizes[0] >= HEAD and _FEWEST <= sizes[1] <= _WIDEST


def kind_of(values: Array) -> str:
    """Return the kind of a tensor: inv_freq, periods, angles, cos, sin, both, or ""."""
    values = np.squeeze(values)
    if not may_hold(values.shape) or not np.isfinite(values[:HEAD]).all():
        return ""
    with np.errstate(all="ignore"):
        if values.ndim == 1:
            return "" if np.iscomplexobj(values) else _listed(values)
        if both(rows := values[:HEAD]):
            return "both"
        if values.ndim != 2 or np.iscomplexobj(values):
            return ""
        size = min(values.shape)
        square = values[:size, :size]
        if size >= _FEWEST and np.all(np.abs(square - square.T) <= _CLOSE * np.abs(square).max()):
            return ""  # a Fourier basis: cos or sin of 2 pi k n / N
        if _is_cos(rows):
            return "cos"
        if np.any(rows[0]) or not np.any(rows[1]):
            return ""
        # angles: rows grow by the second one, which holds frequencies; the last one is no sin
        at = np.unique([2, 3, len(values) - 1])
        right = at[:, None] * rows[1]
        grows = (np.abs(rows[1]) < _TINY) | (np.abs(values[at] - right) <= _CLOSE * np.abs(right))
        if np.all(grows) and _geometric(folded(rows[1])):
            return "angles"
        return "sin" if _is_sin(rows) else ""


def both(values: Array) -> tuple[Array, Array] | None:
    """Split a table with both cos and sin, in any usual order; else None."""
    for cos, sin in halves(np.squeeze(values)):
        if cos.ndim == 2 and _is_cos(cos[:HEAD]) and _is_sin(sin[:HEAD]):
            return cos, sin
    return None


def partners(cos: Array, sin: Array) -> float:
    """Return the share of columns in which two tables are cos and sin of the same angles.

    0 if it is a half or less: slow pairs of unrelated tables look alike.
    """
    c, s = (np.squeeze(part)[:ALIKE] for part in (cos, sin))
    radius = c**2 + s**2
    usual = np.median(radius, axis=0)
    share = float(np.mean(np.abs(radius - usual) <= _CLOSE * usual))
    return share if share > 0.5 else 0.0


def folded(row: Array) -> Array:
    """Drop the copies where each value of a pair is stored twice. Shapes: (c,) -> (p,)."""
    half = row.shape[0] // 2
    if row.shape[0] == 2 * half:
        for first, second in ((row[:half], row[half:]), (row[::2], row[1::2])):
            if np.array_equal(first, second):
                return first
    return row


def halves(values: Array) -> list[tuple[Array, Array]]:
    """Return the possible splits of a table into cos and sin, the usual order first."""
    if np.iscomplexobj(values):
        return [(values.real, values.imag)]
    if values.ndim == 4 and values.shape[2:] == (2, 2):  # rotation matrices, sin in either corner
        return [(values[..., 0, 0], values[..., 1, 0]), (values[..., 0, 0], values[..., 0, 1])]
    if values.ndim == 3 and values.shape[2] == 2:
        return [(values[..., 0], values[..., 1]), (values[..., 1], values[..., 0])]
    if values.ndim == 2 and values.shape[1] % 2 == 0:
        first, second = np.split(values, 2, axis=1)
        even, odd = values[:, ::2], values[:, 1::2]
        return [(first, second), (second, first), (even, odd), (odd, even)]
    return []


def _listed(values: Array) -> str:
    pairs = folded(values)
    if pairs.size < _FEWEST or np.any(pairs < 0):
        return ""
    if _geometric(pairs):
        return "inv_freq"
    rising = pairs.size > 1 and pairs[0] > 0 and pairs[1] / pairs[0] > 1 and np.all(pairs > 0)
    octaves = rising and np.allclose(pairs[1:] / pairs[:-1], 2.0, rtol=1e-6)  # bands of NeRF, no periods
    return "periods" if rising and not octaves and _geometric(1 / pairs) else ""


def _geometric(theta: Array) -> bool:
    """Return whether most values fall by one ratio, from 1; or all of them, from 1/factor.

    Their logarithms lie on a line through the first, or on a parallel one where a scaling bends them.
    """
    rotator = theta[theta > 0]
    if rotator.size < _FEWEST or not np.array_equal(rotator, theta[: rotator.size]):
        return False
    logs, lag = np.log(rotator), max(1, rotator.size // 4)
    slope = float(np.median(logs[lag:] - logs[:-lag])) / lag
    if slope >= -1e-3 or np.any(np.diff(logs) > _NEAR):
        return False
    rest = logs - logs[0] - slope * np.arange(rotator.size)
    if abs(rotator[0] - 1) <= _NEAR:
        last = float(np.median(rest[-lag:]))
        return bool(np.mean(np.minimum(np.abs(rest), np.abs(rest - last)) <= _CLOSE) >= 0.5)
    factor = 1 / rotator[0]  # as in linear scaling; ALiBi's slopes begin with their own ratio
    scaled = factor > 1.5 and abs(2 * factor - np.round(2 * factor)) <= _NEAR * factor
    return bool(scaled and np.all(np.abs(rest) <= _CLOSE) and abs(logs[0] - slope) > _NEAR)


def _is_cos(rows: Array) -> bool:
    """Test cos 2x = 2 cos² x - 1 and cos 3x = 4 cos³ x - 3 cos x, times the first row."""
    factor = rows[0].flat[0]
    if not factor > 0 or np.any(np.abs(rows[0] - factor) > _NEAR * factor):
        return False
    x, double, triple = rows[1:HEAD] / factor
    if np.any(np.abs(x) > 1 + _NEAR) or x.min() > 1 - _NEAR:  # nothing rotates
        return False
    fits = np.abs(double - (2 * x * x - 1)) <= _CLOSE, np.abs(triple - (4 * x**3 - 3 * x)) <= 2 * _CLOSE
    return bool(np.all(fits))


def _is_sin(rows: Array) -> bool:
    """Test sin x sin 3x = sin² 2x - sin² x, up to a factor, with different pairs."""
    if np.any(rows[0]) or not np.any(rows[1]):
        return False
    x, double, triple = rows[1:HEAD]
    scale = np.maximum(x * x, double * double)
    tiny = np.abs(x) < _TINY
    fits = tiny | (np.abs(x * triple - (double**2 - x**2)) <= _CLOSE * scale)
    bounded = tiny | (np.abs(double) <= 2 * np.abs(x) * (1 + _NEAR))
    return bool(np.all(fits & bounded) and np.unique(np.abs(x)).size >= _FEWEST)


Floats = NDArray[np.float64]
_FEWEST_ROWS = 8  # rows or columns of which one may be damaged


@dataclass(frozen=True, slots=True)
class Dump:
    """The RoPE values of a file, in float64, exactly as stored: frequencies (c,), or cos and sin (n, c).

    inverse: whether inverse frequencies are stored. angles: whether angles are stored, with cos and sin
    computed from them.
    """

    spec: str
    name: str
    frequencies: Floats | None = None
    cos: Floats | None = None
    sin: Floats | None = None
    inverse: bool = False
    angles: bool = False

    @property
    def arrays(self) -> dict[str, Floats]:
        """Its arrays by name."""
        held = {"frequencies": self.frequencies, "cos": self.cos, "sin": self.sin}
        return {name: values for name, values in held.items() if values is not None}

    def folded(self, pairs: int) -> Dump:
        """Return the dump with one column per pair, without copies in halves or side by side.

        Raises: BadInput if the columns are not those of `pairs` pairs.
        """
        return self.twice(pairs)[0]

    def fits(self, pairs: int) -> bool:
        """Return whether it has one or two columns for each of `pairs` pairs."""
        try:
            self.folded(pairs)
        except BadInput:
            return False
        return True

    @property
    def pairs(self) -> int:
        """The number of pairs: half the columns if each is stored twice."""
        columns = int(next(iter(self.arrays.values())).shape[-1])
        half = columns // 2
        return half if columns == 2 * half and half and self.fits(half) else columns

    def twice(self, pairs: int) -> tuple[Dump, Dump]:
        """Return the dump with the first column of each pair, and that with the second, if any.

        The columns of a pair are equal in most rows, or most pairs have equal ones: some may be damaged.

        Raises: BadInput if the columns are not those of `pairs` pairs.
        """
        both = [(name, self._halves(values, pairs)) for name, values in self.arrays.items()]
        firsts, seconds = (dict[str, Any]((name, some[n]) for name, some in both) for n in (0, 1))
        return replace(self, **firsts), replace(self, **seconds)

    def _halves(self, part: Floats, pairs: int) -> tuple[Floats, Floats]:
        columns = part.shape[-1]
        if columns == pairs:
            return part, part
        if columns != 2 * pairs:
            raise BadInput(
                f"{self.spec!r}: {self.name} has {columns} columns and the setting has {pairs} "
                f"pairs; give --head-dim or --rotary-dim {2 * columns}, or {columns} if each stands twice"
            )
        splits = (np.split(part, 2, axis=-1), (part[..., ::2], part[..., 1::2]))
        for first, second in splits:
            if np.array_equal(first, second, equal_nan=True):
                return first, first
        for first, second in splits:
            differs = (first != second) & ~(np.isnan(first) & np.isnan(second))
            axes = [differs] if differs.ndim == 1 else [differs.any(axis=1), differs.any(axis=0)]
            # all but an eighth of the rows, or of the columns, of eight at least
            if any(8 * np.count_nonzero(one) <= one.size >= _FEWEST_ROWS for one in axes):
                return first, second
        raise BadInput(
            f"{self.spec!r}: the {columns} columns of {self.name} repeat {pairs} pairs neither in "
            f"halves nor side by side; give one column a pair, or --rotary-dim {2 * columns}"
        )
