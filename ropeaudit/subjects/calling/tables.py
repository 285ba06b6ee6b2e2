"""Tables that code is given, and those that it returns instead of rotated vectors.

Letters: b batch, s positions, d head_dim, r rotated dims, p pairs.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.code import Changes
from ropeaudit.subjects.calling.devices import Device
from ropeaudit.subjects.emulated import Emulated

_FEWEST_ROWS = 2**12  # of a table of all positions
_LARGE, _STEP = 2**20, 61  # numbers of an array of which not all are looked at, but each 61st
# role, width, narrow, engine, device, dtype, setting, changes
WholeKey = tuple[str, str, bool, Engine, Device, Format, RopeSetting, tuple[tuple[str, str], ...]]


def table(
    role: str, width: str, dtype: Format, setting: RopeSetting, changes: Changes, at: Positions
) -> tuple[Any, Format | None]:
    """Return cos, sin, both, cos + i sin or the angle, of float64, rounded once to float32, and its dtype.

    Not at all for float64. Where stages are changed they are those; a table that is requested in a dtype has
    it, None where none is. width: p pairs, or each twice, in halves or interleaved; both are one after the
    other, or stacked, as cos + i sin may be.
    Shapes: at (s,) -> (s, p), (s, r), both (s, 2p), (s, 2r) or stacked (s, p, 2).
    """
    recipe = recipes.named("fp64-angles").changed(changes).resolve(dtype)
    held = recipe.table if "table" in changes else None
    cos, sin, angle = _cos_sin(dtype, tuple(sorted(changes.items())), setting, at.tobytes())
    wide = np.float64 if dtype is FP64 else np.float32
    both = (sin, cos) if role == "sin_cos" else (cos, sin)
    if width == "stacked":
        return np.stack(both, axis=-1).astype(wide), held
    if role == "freqs":
        result: Any = np.empty(cos.shape, np.result_type(wide, np.complex64))
        result.real, result.imag = cos, sin
        return result, None
    parts = {"cos": (cos,), "sin": (sin,), "angles": (angle,), "cos_sin": both, "sin_cos": both}[role]
    repeated = [part.astype(wide) for part in parts]
    if width != "pairs":
        repeated = [np.tile(one, 2) if width == "half" else np.repeat(one, 2, axis=1) for one in repeated]
    return (repeated[0] if len(repeated) == 1 else np.concatenate(repeated, axis=1)), held


def given(table: Any, held: Format | None, engine: Engine, device: Device) -> Any:
    """Return a table as an array of the engine, rounded to a dtype of 16 bits where it is to be held so."""
    if table.dtype.kind != "c" and held and held.storage_bits <= 16:
        rounded = round_to(np.ascontiguousarray(table), held)
        return arrays.new_array(rounded, held, engine, device)
    return arrays.tensor(table, device) if engine == "torch" else table


class _Whole:
    """The tables of all positions that were made last, each kept until code changes it."""

    made: dict[tuple[WholeKey, int], tuple[Any, object]] = {}  # noqa: RUF012


def whole(key: WholeKey, last: int) -> Any:
    """Return a table of all positions from 0 to at least `last`, one object for many calls.

    It is made anew where code has changed it.
    """
    rows = max(_FEWEST_ROWS, 1 << last.bit_length())
    role, width, narrow, engine, device, dtype, setting, changes = key
    known = _Whole.made.get((key, rows))
    if known is None or content(known[0]) != known[1]:
        at = np.arange(rows, dtype=np.int64)
        values, held = table(role, width, dtype, setting, dict(changes), at)
        result = given(values, dtype if narrow else held, engine, device)
        while len(_Whole.made) >= 4:
            _Whole.made.pop(next(iter(_Whole.made)), None)
        known = _Whole.made[key, rows] = result, content(result)
    return known[0]


def content(array: Any) -> object:
    """Return all bits of an array; of a large tensor how often it was changed, of other large ones a few."""
    if isinstance(array, tuple):
        return tuple(map(content, array))
    plain = isinstance(array, np.ndarray)
    if (array.size if plain else array.numel()) < _LARGE:
        return arrays.content(array)
    return array.reshape(-1)[::_STEP].tobytes() if plain else array._version


@functools.lru_cache(maxsize=4)
def _cos_sin(
    dtype: Format, changes: tuple[tuple[str, str], ...], setting: RopeSetting, at: bytes
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return cos, sin and the angle at positions, which q and k share. Shapes: -> (s, p) thrice."""
    recipe = recipes.named("fp64-angles").changed(dict(changes)).resolve(dtype)
    emulated, positions = Emulated(recipe, setting), np.frombuffer(at, np.int64)
    return *emulated.table(positions, 0), emulated.angles(positions)


def applied(
    returned: Any, x: FloatArray, letters: str, setting: RopeSetting, dtype: Format, width: str
) -> FloatArray:
    """Return x rotated by cos and sin that a function returned: in float64, rounded once to the dtype.

    width: what their columns are, of p pairs or of r dims. Shapes: x has the axes `letters`.
    Raises: WrongShape.
    """
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise arrays.WrongShape("does not return cos and sin")
    layout: Layout = "interleaved" if width == "interleaved" else "half"
    batch = x.shape[letters.index("b")] if "b" in letters else 1
    length = x.shape[letters.index("s")]
    cos, sin = (_columns(each, (batch, length), setting, width, letters) for each in returned)
    of = RopeSetting.of(setting.head_dim, setting.rotary_dim, layout=layout)
    result = np.array(x, np.float64)
    first, second = split_pairs(result, of)
    a, b = first.copy(), second.copy()
    first[...], second[...] = a * cos - b * sin, b * cos + a * sin
    return round_to(result, dtype).astype(dtype.carrier)


def _columns(
    table: Any, sizes: tuple[int, int], setting: RopeSetting, width: str, letters: str
) -> FloatArray:
    """Return a table with a column for each pair, to be multiplied with x. Raises: WrongShape."""
    values = arrays.values(table)[0].astype(np.float64)
    batch, length = sizes
    columns = setting.pairs if width == "pairs" else setting.rotary_dim
    if values.size == length * columns:
        rows = values.reshape(1, length, columns)
    elif values.size == batch * length * columns:
        rows = values.reshape(batch, length, columns)
    else:
        raise arrays.WrongShape(f"returns cos or sin of the shape {values.shape}")
    rows = rows[..., ::2] if width == "interleaved" else rows[..., : setting.pairs]
    result: FloatArray = rows[0] if "b" not in letters else rows[:, None] if "h" in letters else rows
    return result
