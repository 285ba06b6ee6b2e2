"""Whether code rotates each pair by its position: of q and k, all heads, every position.

Scores cannot see a position that is wrong for q and k alike, nor a sum over pairs one that is wrong alone.
Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import ForeignError
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, rotation
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import MisplacedSide, Searches
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling.code import Rotator

BATCH_STEP = 7  # tokens between the positions of two batch elements, where code takes a row of them for each
_AT_ONCE = 2**22  # numbers of q and k that one call is given
_IN_CACHE = 2**15  # pairs that are compared at once
_REPEATED = 4  # calls alike
_FEWEST = 512  # positions of a call, however many heads there are

Bool = NDArray[np.bool_]
_Call = TypeVar("_Call")


@dataclass(frozen=True, slots=True)
class Places:
    """The rotated pair that is worst placed, of q and k at one offset.

    excess: its error over what float32 positions and angles and roundings in the dtype explain; above 1 it
    is out of place. side: "q" or "k". batch, head, position (shifted), pair: which one. diagnosis: what
    explains it; None where nothing needs to. first: the lowest position of the call that is out of place, -1
    where none is. allowed: the error that it may have, over its length. off: of q and k those that have a
    pair out of place. noun: what `position` counts, on a grid tokens.
    """

    excess: float
    side: str
    batch: int
    head: int
    position: int
    pair: int
    diagnosis: Diagnosis | None = None
    first: int = -1
    allowed: float = np.nan
    off: tuple[str, ...] = ()
    noun: str = "position"

    @property
    def words(self) -> str:
        """Which pair it is, in words."""
        vector = f"{self.side}, batch element {self.batch}, head {self.head}"
        return f"{vector}, {self.noun} {self.position}, pair {self.pair}"

    @property
    def wrong_rotation(self) -> bool:
        """Whether a pair is out of place, or nan, and no recipe explains it."""
        known = self.diagnosis is not None and self.diagnosis.arithmetic
        return not self.excess <= 1 and not known


NOWHERE = Places(-1.0, "q", 0, 0, 0, 0)  # before any call


@dataclass(frozen=True, slots=True)
class GivenVectors:
    """What code is given: q (h, s, d) and k (g, s, d) at positions (s,) before the shift, in its dtype.

    Batch elements with random numbers of their own are added, `batch` in all, so that pairs that are 0 or
    alike in q and k, and what mixes up batch elements, are seen too. All is rounded to the dtype, so that
    those have all of its bits: code that holds them in a narrower format shows.
    """

    q: FloatArray
    k: FloatArray
    positions: Positions
    seed: int = 0
    batch: int = 2

    def blocks(self, dtype: Format) -> Iterator[tuple[FloatArray, FloatArray, Positions]]:
        """Yield q (b, h, n, d), k (b, g, n, d) and positions (n,) in parts."""
        each = (len(self.q) + len(self.k)) * self.q.shape[2] * self.batch
        size = max(_FEWEST, _AT_ONCE // each)
        for start in range(0, self.positions.size, size):
            part = slice(start, start + size)
            sides = []
            for side, x in enumerate((self.q[:, part], self.k[:, part])):
                others = _noise(self.seed, start, side, (self.batch - 1, *x.shape))
                sides.append(round_to(np.concatenate([x[None], others]), dtype).astype(dtype.carrier))
            yield sides[0], sides[1], self.positions[part]


@functools.lru_cache(maxsize=2)
def _noise(seed: int, start: int, side: int, shape: tuple[int, ...]) -> Array:
    """Return float64 noise that differs from q and k of the same seed."""
    generator = np.random.default_rng([seed, start, side, 1])  # zeros at the end do not count
    return generator.standard_normal(shape)


def sampled(positions: Positions, sizes: tuple[int, int, int], seq_len: int, seed: int) -> GivenVectors:
    """Return random vectors at sampled positions and both ends; sizes: h, g, d."""
    heads, kv_heads, d = sizes
    ends = np.array([0, 1, seq_len - 2, seq_len - 1])
    at = np.unique(np.concatenate([positions, ends[(ends >= 0) & (ends < seq_len)]])).astype(np.int64)
    generator = np.random.default_rng([seed, 1])
    q, k = (generator.standard_normal((count, at.size, d)) for count in (heads, kv_heads))
    return GivenVectors(q, k, at, seed)


@dataclass(slots=True)
class _SideExcess:
    """The largest excess of one side over all blocks, and where it was seen."""

    excess: float = -1.0
    place: tuple[int, int, int, int] = (0, 0, 0, 0)
    heads: Bool = field(default_factory=lambda: np.zeros((1, 1), np.bool_))
    pairs: Bool = field(default_factory=lambda: np.zeros(1, np.bool_))
    positions: list[Positions] = field(default_factory=list)
    block: CalledBlock | None = None
    setting: RopeSetting | None = None

    def take(self, over: Array, block: CalledBlock, setting: RopeSetting) -> None:
        """Add a block's excess over what is allowed. Shapes: over (b, h, s, p)."""
        worst = np.unravel_index(int(over.argmax()), over.shape)
        off = over > 1
        self.heads = self.heads | off.any(axis=(2, 3))
        self.pairs = self.pairs | off.any(axis=(0, 1, 2))
        self.positions.append(np.unique(block.rows()[off.any(axis=(1, 3))]))
        if float(over[worst]) > self.excess:
            self.excess, self.setting = float(over[worst]), setting
            batch, head, row, pair = map(int, worst)
            self.place = batch, head, int(block.rows()[batch, row]), pair
            if self.excess > 1:
                self.block = block

    def side(self) -> MisplacedSide | None:
        """Return what is out of place; None where nothing is."""
        if self.block is None:
            return None
        return MisplacedSide(self.heads, self.pairs, np.concatenate(self.positions), self.block)


@dataclass(slots=True)
class SameFrequencies(Rotator):
    """Code that raises for calls whose length changes the frequencies."""

    rotator: Rotator
    setting: RopeSetting

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k rotated. Raises: ForeignError for other frequencies."""
        if self.setting.for_positions(int(at.max()) + 1) != self.setting:
            raise ForeignError("a call of this length has other frequencies")
        return self.rotator.rotate_both(q, k, at)


class Held(TypedDict, total=False):
    """To what calls are held, and what is looked for where they are wrong.

    afresh: makes an instance without a past. rule: the recipe whose errors are allowed, by default
    `allowance.careful`. searches: those of other calls of the same code. explain: whether what explains a
    wrong one is looked for (so by default). each_call: whether each call is held to the frequencies for its
    own length, its largest position + 1, and not to those of the setting.
    """

    afresh: Callable[[], Rotator] | None
    rule: Resolved | None
    searches: Searches | None
    explain: bool
    each_call: bool


def check(
    rotator: Rotator,
    setting: RopeSetting,
    dtype: Format,
    vectors: GivenVectors,
    offset: int,
    *,
    warm: bool = False,
    batch_step: int = 0,
    **held: Unpack[Held],
) -> Places:
    """Return where the worst rotated pair stands of code that is called at positions + offset.

    warm: the instance is called at the positions before the shift first, so that what it keeps of a call
    shows. batch_step: added to the positions from one batch element to the next, where code takes a row for
    each.
    """

    def blocks() -> Iterator[CalledBlock]:
        for q, k, before in vectors.blocks(dtype):
            if warm and offset and before[0] == vectors.positions[0]:
                with contextlib.suppress(ForeignError):  # of interest is what the code stores of the call
                    rotator.rotate_both(q, k, before)
            at = before + offset
            rows = at + batch_step * np.arange(len(q))[:, None] if batch_step else at
            yield CalledBlock(rows, (q, k), rotator.rotate_both(q, k, rows))

    return judged(blocks(), rotator, setting, dtype, **held)


def judged(
    blocks: Iterable[CalledBlock],
    rotator: Rotator,
    setting: RopeSetting,
    dtype: Format,
    **held: Unpack[Held],
) -> Places:
    """Return where the worst rotated pair stands of calls that were made."""
    afresh, searches, each_call = held.get("afresh"), held.get("searches"), held.get("each_call", False)

    def held_to(block: CalledBlock) -> RopeSetting:
        return setting.for_positions(int(block.at.max()) + 1) if each_call else setting

    seen = {"q": _SideExcess(), "k": _SideExcess()}
    rule = held.get("rule") or allowance.careful(dtype)
    for block in blocks:
        over, own = None, held_to(block)
        for side_excess, x, y in zip(seen.values(), block.given, block.rotated, strict=True):
            if over is None or y is not block.rotated[0]:  # what was given once is judged once
                over = excess(x, y, block.rows(), own, dtype, rule)
            side_excess.take(over, block, own)
    worst = max(seen, key=lambda name: seen[name].excess)
    sides = {name: side for name, part in seen.items() if (side := part.side()) is not None}
    found = None
    if sides and held.get("explain", True):
        block = sides[worst].block
        rows, of_worst = block.rows(), held_to(block)
        found = unstable(rotator, block, afresh, searches)
        if found is None and afresh:
            found = state(afresh(), block, lambda x, y: excess(x, y, rows, of_worst, dtype, rule))
        alike: dict[RopeSetting, dict[str, MisplacedSide]] = {}  # held to the same frequencies
        for name, side in sides.items() if found is None else ():
            alike.setdefault(held_to(side.block), {})[name] = side
        told: dict[str, Diagnosis] = {}
        for own, some in alike.items():
            probed = SameFrequencies(rotator, own) if each_call else rotator
            found = rotation.explained(some, own, dtype, probed, searches)
            told |= {name: rotation.of_side(found, name) for name in some}
        if len(alike) > 1:
            found = rotation.joined(told)
    first = min((int(side.positions.min()) for side in sides.values() if side.positions.size), default=-1)
    batch, head, position, pair = seen[worst].place
    allowed = allowance.allowed_at(rule, seen[worst].setting or setting, position, pair)
    noun = "position" if setting.grid is None else "token"
    return Places(
        *(seen[worst].excess, worst, batch, head, position, pair, found, first, allowed, tuple(sides)), noun
    )


def with_rows(check_at: Callable[[int], Places], by_batch: bool, offset: int) -> Places:
    """Return the worst of a call alike for both batch elements and, `by_batch`, one with a row for each.

    check_at: `check` by its batch_step. A table may end between the last position that was asked for and that
    of the other batch element, which then stands before it, where there is room.
    """
    results = [check_at(0)]
    if by_batch:
        try:
            results.append(check_at(BATCH_STEP))
        except ForeignError:
            if offset >= BATCH_STEP:
                results.append(check_at(-BATCH_STEP))
    return worst(results)


def up_to_a_wrong_one(
    calls: Sequence[_Call], judge: Callable[[_Call, bool], Places]
) -> tuple[Places, list[_Call]]:
    """Return the worst pair of calls up to the first that is wrong, and that call; none where all are right.

    judge: as `with_other_side` takes it.
    """
    worst = NOWHERE
    for number, call in enumerate(calls):
        placed = judge(call, True)
        if not placed.excess <= 1:
            return with_other_side(placed, judge, calls[number + 1 :]), [call]
        worst = max(worst, placed, key=lambda places: places.excess)
    return worst, []


def with_other_side(wrong: Places, judge: Callable[[_Call, bool], Places], others: Iterable[_Call]) -> Places:
    """Return the places of a wrong call; where one side is right there, with what it is in other calls.

    judge: makes a call and judges it, and explains what is wrong if that is asked for. Calls up to the first
    in which the other side is wrong, or which raises, are made.
    """

    def explained() -> Iterator[Places]:
        with contextlib.suppress(ForeignError):
            for call in others:
                if set(judge(call, False).off) - set(wrong.off):
                    yield judge(call, True)

    return beside(wrong, explained())


def beside(wrong: Places, others: Iterable[Places]) -> Places:
    """Return places with the fault of the other side added from other calls, if they tell of one alone."""
    found = wrong.diagnosis
    if found is None or len(wrong.off) != 1 or found.where.sides != wrong.off:
        return wrong
    for one in others:
        if one.diagnosis and (other := set(one.off) - set(wrong.off)):
            told = dict.fromkeys(wrong.off, found) | dict.fromkeys(other, one.diagnosis)
            sides = {name: rotation.of_side(told[name], name) for name in "qk"}
            return replace(wrong, diagnosis=rotation.joined(sides), off=("q", "k"))
    return wrong


def worst(results: Sequence[Places]) -> Places:
    """Return the worst places: wrong ones with most faults, then by error."""

    def rank(one: Places) -> tuple[bool, int, float]:
        shown = len(list(one.diagnosis.parts())) if one.diagnosis and one.wrong_rotation else 0
        return one.wrong_rotation, shown, one.excess

    return beside(max(results, key=rank), results)


def excess(
    x: FloatArray,
    y: FloatArray,
    at: Positions,
    setting: RopeSetting,
    dtype: Format,
    rule: Resolved,
) -> Array:
    """Return the error of each pair over what is allowed.

    The r last "pairs" are the dims that are not rotated, two by two. What may overflow counts as 0.
    Shapes: x and rotated y (b, h, s, d), at (b, s) -> (b, h, s, p + r).
    """
    over = np.empty((*x.shape[:3], setting.head_dim // 2))
    step = max(1, _IN_CACHE // (x.shape[1] * max(1, setting.pairs)))
    with np.errstate(invalid="ignore", over="ignore"):
        for start, b in itertools.product(range(0, at.shape[1], step), range(len(at))):
            some = np.s_[b, :, start : start + step]
            over[some] = _excess(x[some], y[some], at[b, start : start + step], setting, dtype, rule)
    return over


def _excess(
    x: FloatArray,
    y: FloatArray,
    at: Positions,
    setting: RopeSetting,
    dtype: Format,
    rule: Resolved,
) -> Array:
    """Return `excess` of a batch element. Shapes: x and y (h, s, d), at (s,)."""
    size_of = np.hypot if dtype is FP64 else _length  # squares of smaller formats neither over- nor underflow
    tiny, (turns, allowed) = 4 * dtype.smallest_subnormal, _held_to(rule, setting, dtype, at.tobytes())
    (x1, x2), (y1, y2) = _sides(x, setting), _sides(y, setting)
    off = size_of(y1 - (x1 * turns.real - x2 * turns.imag), y2 - (x2 * turns.real + x1 * turns.imag))
    over = _over_allowance(off, size_of(x1, x2), allowed, tiny, dtype)
    rest = setting.head_dim - setting.rotary_dim
    if not rest:
        return over
    (x1, x2), (y1, y2) = (_sides(vectors[..., -rest:], RopeSetting.of(rest)) for vectors in (x, y))
    rounding = allowance.rounding_error(rule, setting)
    passed = _over_allowance(size_of(y1 - x1, y2 - x2), size_of(x1, x2), rounding, tiny, dtype)
    return np.concatenate([over, passed], axis=-1)


@functools.lru_cache(maxsize=16)
def _held_to(rule: Resolved, setting: RopeSetting, dtype: Format, at: bytes) -> tuple[Any, Array]:
    """Return what pairs are multiplied by, and their allowance: q and k share both. Shapes: (s, p) twice."""
    places = np.frombuffer(at, np.int64)
    return exact_rotation.rotations(setting, places, dtype), allowance.allowed(rule, setting, places)


def _sides(x: FloatArray, setting: RopeSetting) -> tuple[Array, Array]:
    """Return both halves of pairs in float64. Shapes: (..., d) -> (..., p) twice."""
    first, second = split_pairs(x, setting)
    return first.astype(np.float64), second.astype(np.float64)


def _length(a: Array, b: Array) -> Array:
    """Return sqrt(a² + b²), overwriting neither. Shapes: alike."""
    total = a * a
    total += b * b
    return np.sqrt(total, out=total)


def _over_allowance(error: Array, size: Array, allowed: Any, tiny: float, dtype: Format) -> Array:
    over: Array = error / (allowed * size + tiny)
    over[~np.isfinite(over)] = np.inf
    over[size > dtype.largest / 4] = 0.0
    return over


def state(
    rotator: Rotator,
    block: CalledBlock,
    over: Callable[[FloatArray, FloatArray], Array],
) -> Diagnosis | None:
    """Return that it is state, where an instance puts all pairs of a block where they belong.

    rotator: of an instance that was not called before, or of a function that has no other. over: x and
    rotated y (b, h, s, d) -> the error of each pair over what is allowed.
    """
    how = "again" if getattr(rotator, "has_past", False) else "afresh"
    rotated = rotator.rotate_both(*block.given, block.at)
    right = all(bool((over(x, y) <= 1).all()) for x, y in zip(block.given, rotated, strict=True))
    return Diagnosis("state-left", {"how": how}) if right else None


def unstable(
    rotator: Rotator,
    block: CalledBlock,
    afresh: Callable[[], Rotator] | None,
    searches: Searches | None,
) -> Diagnosis | None:
    """Return that it is random, where calls alike give different numbers with other seeds.

    What counts its calls, or stores something, does the same once more of another instance without a past:
    each seed gets one, where `afresh` makes them. Calls of a kind that was steady are not made again.
    """
    results, kind = [], (type(rotator).__name__, min(block.length, 2))
    if searches is not None and kind in searches.steady:
        return None
    with contextlib.suppress(ForeignError):  # then it decides nothing
        for number in range(_REPEATED):
            called = afresh() if afresh else rotator
            with chance.other(number):
                sides = [called.rotate_both(*block.given, block.at) for _ in range(1 + bool(afresh))]
            results.append([x.tobytes() for pair in sides for x in pair])
    seen = results if afresh else results[1:]  # the first may still see what was called before
    if any(one != seen[0] for one in seen[1:]):
        return Diagnosis("random")
    if searches is not None and len(results) == _REPEATED:
        searches.steady.add(kind)
    return None
