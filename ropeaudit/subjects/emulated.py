"""The default engine: a recipe executed stage by stage in NumPy, each operation rounded once.

An operation in wider arithmetic, rounded once, is correctly rounded: its result is exact, or a float32 sum of
terms of at most 11 bits (24 >= 2*11 + 2: Figueroa, SIGNUM Newsletter 30, 1995), or rounded to odd.

Keys may be stored with scales, as in 8-bit caches, or rotated again.
The reference sees k as it was before: what storing does to it counts as drift.

Letters: g key-value heads, s positions, d head_dim, p pairs. Positions in tokens, angles in radians.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ropeaudit import __version__
from ropeaudit.arithmetic import doubledouble as dd
from ropeaudit.arithmetic import elementary
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import ScaledFormat, round_nearest, round_own, round_to
from ropeaudit.errors import UsageError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Recipe, Resolved
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.frequencies import effect, frequencies
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import threads
from ropeaudit.subjects import Positions, Subject

Table = tuple[FloatArray, FloatArray]


class OfRecipe(Subject):
    """A resolved recipe and a RoPE setting; base class of the engines."""

    def __init__(self, recipe: Resolved, setting: RopeSetting, axes: Axes | None = None) -> None:
        self.axes = axes
        self.name = recipe.recipe.name
        self.recipe, self.setting = recipe, setting
        self.dtype, self.input = recipe.dtype, recipe.input
        self.accumulate, self.score = recipe.accumulate, recipe.score
        self.scale_after_store = recipe.recipe.scale_after_store
        self.narrowest = recipe.narrowest
        self.softmax, self.output = recipe.softmax, recipe.output

    def stages(self) -> dict[str, str]:
        """Return stage -> format name, then switches that differ from the default."""
        return self.recipe.stages() | self.recipe.switches()


class Emulated(OfRecipe):
    """A resolved recipe applied to a RoPE setting; implements `ropeaudit.subjects.Subject`."""

    backend, device = "numpy", "cpu"
    version = __version__

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions are finite and distinct after the position stage."""
        rounded = round_to(positions.astype(np.float64), self.recipe.position)
        finite = np.sort(rounded[np.isfinite(rounded)])  # np.unique would load numpy.ma
        return int(np.count_nonzero(np.diff(finite))) + bool(finite.size)

    def distinct_tokens(self, seq_len: int, offset: int) -> int:
        """Return how many tokens of a grid have distinct, finite positions."""
        held = self.on_grid(np.arange(seq_len, dtype=np.int64), offset)
        held = held[np.isfinite(held).all(axis=1)]
        ordered = held[np.lexsort(held.T)]
        return int(np.count_nonzero(np.diff(ordered, axis=0).any(axis=1))) + bool(len(held))

    def table(self, positions: Positions, offset: int) -> Table:
        """Return cos and sin as stored, times the attention factor. Shapes: (s,) -> two of (s, p)."""
        trig, factor = self.recipe.trig, attention_factor(self.setting.scaling)
        grid, stored = self.setting.grid, self.recipe.table
        last = stored if trig is FP64 and factor == 1.0 else None  # few values of it need all of float64
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            if grid is not None:
                angles = self._angles_of_rounded(self.on_grid(positions, offset)[:, grid.of_pairs()])
            else:
                angles = self.angles(positions + offset)
            if self.axes is not None:
                angles = np.where(self.axes.moved(), angles, self.angles(positions))
            cos, sin = elementary.cos_sin(angles, last or trig, twice=last is not None)
            if factor != 1.0:
                weight = round_to(np.array(factor), trig)
                cos, sin = (_rounded_product(part, weight, trig) for part in (cos, sin))
        if stored is not None and last is None:
            cos, sin = round_to(cos, stored), round_to(sin, stored)
        return cos, sin

    def angles(self, positions: Positions) -> FloatArray:
        """Return the angles as stored. Shapes: positions (s,) -> (s, p). Units: radians."""
        position = round_to(positions.astype(np.float64), self.recipe.position)
        return self._angles_of_rounded(position.astype(np.float64)[:, None])

    def on_grid(self, steps: Positions, offset: int) -> FloatArray:
        """Return the positions of tokens of a grid, shifted exactly, rounded once. (s,) -> (s, a)."""
        grid, fmt = self.setting.grid, self.recipe.position
        if grid is None:
            raise ValueError("a sequence is no grid")
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            total = dd.two_sum(grid.computed(steps, fmt), grid.shift(offset))
            return round_to(total[0] if fmt is FP64 else dd.to_odd(total), fmt).astype(np.float64)

    def _angles_of_rounded(self, position: FloatArray) -> FloatArray:
        """Return the angles of rounded positions. Shapes: (s, 1) or (s, p) -> (s, p)."""
        recipe, form = self.recipe, self.recipe.recipe.frequency_form
        computed, stored = recipe.frequency
        cached = frequencies(self.setting, form, computed)
        cached = round_to(cached, stored).astype(np.float64)
        product, angle = recipe.angle
        if form == "recurrence":  # theta_0 = position, theta_{i+1} = round(theta_i * step)
            raw = np.empty((len(position), cached.size))
            current = round_to(position[:, 0], product).astype(np.float64)
            for i in range(cached.size):
                raw[:, i] = current
                current = round_to(current * cached[i], product).astype(np.float64)
            raw *= effect(self.setting, stored)
        elif form == "divide":
            with np.errstate(divide="ignore"):
                raw = position / cached
        else:
            raw = position * cached
        angle_values = round_to(round_to(raw, product), angle)
        clip = self.setting.clip
        return np.clip(angle_values, -clip, clip) if self.setting.clipped else angle_values

    def rotate(self, x: FloatArray, table: Table) -> FloatArray:
        """Return x, in the input format, rotated. Shapes: x (s, d), table (s, p) -> (s, d)."""
        recipe, fmt = self.recipe, self.recipe.rotation
        single = x.dtype == np.float32 and fmt is not FP64
        rotated: FloatArray = np.empty(x.shape, np.float32 if single else np.float64)
        rotated[:, self.setting.rotary_dim :] = x[:, self.setting.rotary_dim :]
        pairs = np.array(split_pairs(x, self.setting))
        first, second = split_pairs(rotated, self.setting)
        combine = _rounding_each if recipe.recipe.rotation_rounding == "each" else _rounding_once
        bits = recipe.input.precision + (recipe.table or recipe.trig).precision  # of a product
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            first[...], second[...] = combine(pairs, *table, fmt, bits)
            same = recipe.output is fmt and self.setting.rotary_dim == self.setting.head_dim
            return rotated if same else round_own(rotated, recipe.output)


def _rounding_each(
    pairs: FloatArray,
    cos: FloatArray,
    sin: FloatArray,
    fmt: Format,
    bits: int,
) -> FloatArray:
    """Return a*cos - b*sin and b*cos + a*sin, each operation rounded. bits: of an exact product.

    Shapes: pairs (2, s, p), cos and sin (s, p) -> (2, s, p).
    """
    result, right = _rounded_product(pairs, cos, fmt, bits), _rounded_product(pairs, sin, fmt, bits)
    result[0] -= right[1]
    result[1] += right[0]
    return round_own(result, fmt)


def _rounding_once(
    pairs: FloatArray,
    cos: FloatArray,
    sin: FloatArray,
    fmt: Format,
    _: int,
) -> FloatArray:
    """Return a*cos - b*sin and b*cos + a*sin, each rounded once. Shapes: as `_rounding_each`."""
    wide, *parts = (part.astype(np.float64, copy=False) for part in (pairs, cos, sin))
    left, right = (dd.two_product(wide, part) for part in parts)
    totals = [
        dd.subtract((left[0][0], left[1][0]), (right[0][1], right[1][1])),
        dd.add((left[0][1], left[1][1]), (right[0][0], right[1][0])),
    ]
    return np.array([round_to(total[0] if fmt is FP64 else dd.to_odd(total), fmt) for total in totals])


def _rounded_product(a: FloatArray, b: FloatArray, fmt: Format, bits: int = 2 * 24) -> FloatArray:
    """Return a * b, correctly rounded. bits: of an exact product, of which float32 holds 24."""
    single = a.dtype == np.float32 and b.dtype == np.float32
    if single and fmt is not FP64 and (fmt is FP32 or bits <= 24):
        return round_own(a * b, fmt)
    left, right = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
    if single or fmt is FP64:
        return round_own(left * right, fmt)

    def exactly(where: NDArray[np.intp]) -> FloatArray:
        return dd.to_odd(dd.two_product(left.reshape(-1)[where], right.reshape(-1)[where % right.size]))

    return round_nearest(left * right, exactly, fmt)


BY = -16  # tokens of a turn
MOST_TURNS = 100_000
_TURNED_AT_ONCE = 512  # keys that take all turns together, within the processor's cache
_BLOCK = 8192  # positions rotated at once


class Turns(NamedTuple):
    """Repeated rotation of stored keys: how often, and by how many tokens each time."""

    number: int
    by: int

    def start(self, offset: int) -> int:
        """Return the offset at which keys are first stored that are rotated on to `offset`."""
        return offset - self.number * self.by

    def __str__(self) -> str:
        return f"{self.number} x {self.by}"


def turns(count: int | None, by: int | None) -> Turns | None:
    """Return the turns of a case, None where keys are stored once. Raises: UsageError."""
    if count is None:
        if by is not None:
            raise UsageError(f"--turn {by} says how far a turn moves stored keys; add --rerotate 64")
        return None
    if not 0 <= count <= MOST_TURNS:
        raise UsageError(
            f"--rerotate {count} is not a number from 0 to {MOST_TURNS}; try --rerotate 1,16,64,256"
        )
    return Turns(count, BY if by is None else by)


class StoredTable(NamedTuple):
    """Cos and sin at the final offset (fresh), and where k is first stored. offset: the final one."""

    fresh: Table
    stored: Table
    positions: Positions
    offset: int


class StoredKeys(Emulated):
    """A recipe whose k is stored with scales, rotated again, or both.

    A turn reads stored keys, rotates them and stores them as at first, with scales of what it rotated. So
    does a shift of llama.cpp's cache: `build_rope_shift` of src/llama-kv-cache.cpp casts quantized keys to
    float32, rotates them, and copies them back, which quantizes each block by its own largest value.
    """

    def __init__(
        self,
        recipe: Resolved,
        setting: RopeSetting,
        axes: Axes | None,
        turns: Turns | None,
        inputs: object,
    ) -> None:
        """Prepare the table of a turn. inputs: q and k, or a sample of them."""
        super().__init__(recipe, setting, axes)
        self.turns = turns or Turns(0, 0)
        self.scaled: ScaledFormat | None = None
        self.before = False  # whether k is stored before the rotation
        if recipe.recipe.keys is not None:
            stage, self.scaled = recipe.recipe.keys
            self.before = stage == "input"
        self._read = recipe.input if self.before else recipe.output
        self.k = inputs.k if isinstance(inputs, Inputs) else None  # a sample has no norms
        if attention_factor(setting.scaling) != 1.0:  # the stored keys have it
            setting = replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))
        self._turned = Emulated(replace(recipe, input=recipe.output), setting, axes)
        self._turn = self._turned.table(np.zeros(1, dtype=np.int64), self.turns.by)
        self._counts_norms = turns is not None and self.k is not None
        self._growth: dict[int, FloatArray] = {}  # offset -> |k| over its exact norm, (g, s)
        self._largest: dict[int, FloatArray] = {}  # offset -> result of `_by_channel`
        self._lock = threading.Lock()

    def table(self, positions: Positions, offset: int) -> StoredTable:  # type: ignore[override]
        """Return cos and sin as stored, at both ends of the turns. Shapes: (s,) -> of (s, p)."""
        fresh = stored = super().table(positions, offset)
        if self.turns.number:
            stored = super().table(positions, self.turns.start(offset))
        return StoredTable(fresh, stored, positions, offset)

    def rotate(self, x: FloatArray, table: StoredTable) -> FloatArray:  # type: ignore[override]
        """Return x rotated once, as q. Shapes: (s, d) -> (s, d)."""
        return super().rotate(x, table.fresh)

    def rotate_head(
        self,
        x: FloatArray,
        table: StoredTable,
        key: bool,
        head: int | None,
    ) -> FloatArray:
        """Rotate x; k is stored too, then rotated and stored again at each turn. Shapes: (s, d) -> (s, d).

        head: None in a sample.
        """
        if not key:
            return self.rotate(x, table)
        if self.before:
            return self.rotate(self._stored(x, 0, 0, head), table)
        keys = super().rotate(x, table.stored)
        for start in range(0, len(keys), _TURNED_AT_ONCE):
            block = keys[start : start + _TURNED_AT_ONCE]
            for turn in range(self.turns.number + 1):
                if turn:
                    block = self._turned.rotate(block, self._turn)
                block = self._stored(block, table.offset, turn, head)
                if threads.dropped():
                    break
            keys[start : start + _TURNED_AT_ONCE] = block
        if self._counts_norms and head is not None:
            self._count_norms(x, keys, table, head)
        return keys

    def _stored(
        self,
        x: FloatArray,
        offset: int,
        turn: int,
        head: int | None,
    ) -> FloatArray:
        """Return k as read back from the cache after a turn. Shapes: (s, d) -> (s, d)."""
        if self.scaled is None:
            return x
        if self.scaled.group == "token":
            largest = np.asarray(np.abs(x).max(axis=1, keepdims=True))
        else:
            with self._lock:
                if offset not in self._largest:
                    self._largest[offset] = self._by_channel(offset)
            largest = self._of_group(self._largest[offset][turn], head or 0)
        return round_to(self.scaled.stored(x, largest), self._read)

    def _of_group(self, largest: FloatArray, head: int) -> FloatArray:
        """Return the largest |k| of each group of a head. Shapes: (g, d) -> (d,) or ()."""
        assert self.scaled is not None  # noqa: S101 for mypy
        if self.scaled.group == "tensor":
            return np.asarray(largest.max())
        return largest[head] if self.scaled.group == "channel" else np.asarray(largest[head].max())

    def _by_channel(self, offset: int) -> FloatArray:
        """Return the largest |k| of each dim of each head after each turn.

        A turn needs the scales of all keys before it. Shapes: -> (turns + 1, g, d).
        """
        assert self.k is not None  # noqa: S101 a sample has scales by token alone
        assert self.scaled is not None  # noqa: S101
        heads, size, dims = self.k.shape
        largest = np.zeros((self.turns.number + 1, heads, dims))
        together = size if self.turns.number else _BLOCK
        for start in range(0, size, together):
            block = self.k[:, start : start + together]
            keys = [round_to(x, self.recipe.input) for x in block]
            if not self.before:
                at = np.arange(start, start + len(keys[0]), dtype=np.int64)
                table = super().table(at, self.turns.start(offset))
                keys = [super(StoredKeys, self).rotate(x, table) for x in keys]
            for turn, most in enumerate(largest):
                if turn:
                    scales = [self._of_group(largest[turn - 1], head) for head in range(heads)]
                    read = map(self.scaled.stored, keys, scales)
                    keys = [self._turned.rotate(round_to(x, self._read), self._turn) for x in read]
                np.maximum(most, [np.abs(x).max(axis=0) for x in keys], out=most)  # nan stays nan
        return largest

    def _count_norms(
        self,
        x: FloatArray,
        keys: FloatArray,
        table: StoredTable,
        head: int,
    ) -> None:
        """Record the norms of a head's keys over their exact norms. Shapes: (s, d)."""
        assert self.k is not None  # noqa: S101 for mypy
        growth = self._growth.setdefault(table.offset, np.full(self.k.shape[:2], np.nan))
        exact = x.astype(np.float64)
        exact[:, : self.setting.rotary_dim] *= attention_factor(self.setting.scaling)
        norms, own = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (exact, keys))
        none = np.full(len(norms), -1.0)  # where x is 0
        growth[head, table.positions] = np.divide(own, norms, out=none, where=norms > 0)

    def norm_growth(self, offset: int) -> float | None:
        """Return the mean relative change of the norms of keys that are not 0.

        None for a sample, and for keys that are not rotated again.
        """
        if not self._counts_norms:
            return None
        growth = self._growth[offset]
        kept = growth[growth != -1]
        return float(np.mean(kept - 1)) if kept.size else float("nan")


def stored(subject: Subject, inputs: object) -> Subject:
    """Return the subject; if its recipe stores keys with scales, one with the scales of these inputs."""
    if not isinstance(subject, Emulated) or subject.recipe.recipe.keys is None:
        return subject
    return StoredKeys(subject.recipe, subject.setting, subject.axes, None, inputs)


def check_sampled(recipe: Recipe) -> None:
    """Raise UsageError for a recipe whose scales need all of k, not a sample."""
    if recipe.keys and recipe.keys[1].group != "token":
        codes = str(recipe.keys[1]).partition(":")[0]
        raise UsageError(
            f"{recipe.keys[0]}={recipe.keys[1]} takes scales from all tokens, and --sample forms scores of "
            f"some; leave out --sample, or give {codes}:token"
        )


def check_turned(recipe: Recipe) -> None:
    """Raise UsageError for a recipe whose keys are stored before their rotation: no shift rotates them."""
    if recipe.keys and recipe.keys[0] == "input":
        raise UsageError(
            f"input={recipe.keys[1]} stores keys before the rotation, and --rerotate rotates keys that are "
            f"stored after it; leave out --rerotate, or give output={recipe.keys[1]}"
        )
