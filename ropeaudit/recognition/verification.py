"""Verification that code rotates each pair by its position, in q and k, in all heads.

Scores cannot show a position that is wrong for q and k alike, nor a single wrong pair among many.
Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import ForeignError
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, rotation
from ropeaudit.recognition.allowance import excess
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import MisplacedSide, Searches
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator

BATCH_STEP = 7  # tokens between the positions of two batch elements
_AT_ONCE = 2**22  # numbers of q and k that one call is given
_REPEATED = 4  # calls alike
_FEWEST = 512  # positions of a call, however many heads there are

_Call = TypeVar("_Call")


@dataclass(frozen=True, slots=True)
class Places:
    """The rotated pair with the largest error, of q and k.

    excess: its error over the allowed one; above 1 it is wrong. side: "q" or "k". batch, head, position
    (shifted), pair: its place. diagnosis: None where nothing is wrong. told: the diagnosis of each wrong
    side, where sides were diagnosed separately. first: the lowest wrong position of the call, -1 if none is.
    allowed: the allowed error, over the pair's length. off: the sides, of q and k, with a wrong pair.
    noun: "position", or "token" on a grid.
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
    told: Mapping[str, Diagnosis] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The place of the pair in words."""
        vector = f"{self.side}, batch element {self.batch}, head {self.head}"
        return f"{vector}, {self.noun} {self.position}, pair {self.pair}"

    @property
    def wrong_rotation(self) -> bool:
        """Whether a pair is wrong, or nan, and no recipe explains it."""
        known = self.diagnosis is not None and self.diagnosis.arithmetic
        return not self.excess <= 1 and not known


NOWHERE = Places(-1.0, "q", 0, 0, 0, 0)  # before any call


@dataclass(frozen=True, slots=True)
class GivenVectors:
    """The vectors of calls: q (h, s, d) and k (g, s, d) at positions (s,) before the shift.

    Random batch elements are added, `batch` in all, so that pairs which are 0 or equal in q and k, and batch
    elements that are mixed up, are noticed. All are rounded to the dtype and have all of its bits, which
    shows code that computes in a narrower format.
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
                others = _random_vectors(self.seed, start, side, (self.batch - 1, *x.shape))
                sides.append(round_to(np.concatenate([x[None], others]), dtype).astype(dtype.carrier))
            yield sides[0], sides[1], self.positions[part]


@functools.lru_cache(maxsize=2)
def _random_vectors(seed: int, start: int, side: int, shape: tuple[int, ...]) -> Array:
    """Return random numbers that differ from q and k of the same seed."""
    generator = np.random.default_rng([seed, start, side, 1])  # zeros at the end do not count
    return generator.standard_normal(shape)


def sampled(
    positions: Positions,
    sizes: tuple[int, int, int],
    seq_len: int,
    seed: int,
) -> GivenVectors:
    """Return random vectors at sampled positions and both ends; sizes: h, g, d."""
    heads, kv_heads, d = sizes
    ends = np.array([0, 1, seq_len - 2, seq_len - 1])
    at = np.unique(np.concatenate([positions, ends[(ends >= 0) & (ends < seq_len)]])).astype(np.int64)
    generator = np.random.default_rng([seed, 1])
    q, k = (generator.standard_normal((count, at.size, d)) for count in (heads, kv_heads))
    return GivenVectors(q, k, at, seed)


def check(
    rotator: Rotator,
    setting: RopeSetting,
    dtype: Format,
    vectors: GivenVectors,
    offset: int,
    *,
    warm: bool = False,
    by_batch: bool = False,
    new_rotator: Callable[[], Rotator] | None = None,
    **held: Any,
) -> Places:
    """Call code at positions + offset; return the worst rotated pair.

    warm: the instance is called at the unshifted positions first, so that state shows. by_batch: code takes
    a row of positions for each batch element, and is called with such rows too. Where a table ends before
    the second row's last position, that row stands before the first. new_rotator, held: see `judge_calls`.
    """

    def blocks(called: Rotator, step: int) -> Iterator[CalledBlock]:
        for q, k, before in vectors.blocks(dtype):
            if warm and offset and before[0] == vectors.positions[0]:
                with contextlib.suppress(ForeignError):
                    called.rotate_both(q, k, before)
            at = before + offset
            rows = at + step * np.arange(len(q))[:, None] if step else at
            yield CalledBlock(rows, (q, k), called.rotate_both(q, k, rows))

    def judge(step: int) -> Places:
        called = new_rotator() if step and new_rotator else rotator
        return judge_calls(blocks(called, step), called, setting, dtype, new_rotator=new_rotator, **held)

    results = [judge(0)]
    if by_batch:
        try:
            results.append(judge(BATCH_STEP))
        except ForeignError:
            if offset >= BATCH_STEP:
                results.append(judge(-BATCH_STEP))
    return _worst(results)


def judge_calls(
    blocks: Iterable[CalledBlock],
    rotator: Rotator,
    setting: RopeSetting,
    dtype: Format,
    *,
    new_rotator: Callable[[], Rotator] | None = None,
    rule: Resolved | None = None,
    searches: Searches | None = None,
    explain: bool = True,
    each_call: bool = False,
) -> Places:
    """Return the worst rotated pair of calls, with its diagnosis.

    new_rotator: makes an instance without state. rule: the recipe whose errors are allowed, by default
    `allowance.careful`. searches: those of other calls of the same code. explain: whether to diagnose a wrong
    pair. each_call: whether each call is compared with the frequencies for its own length, its largest
    position + 1, instead of those of the setting.
    """
    rule = rule or allowance.careful(dtype)

    def held_to(block: CalledBlock) -> RopeSetting:
        return setting.for_positions(int(block.at.max()) + 1) if each_call else setting

    worst, sides = _misplaced(blocks, held_to, rule)
    largest = max(worst, key=lambda one: one.excess)
    told = dict[str, Diagnosis]()
    if sides and explain:  # by chance, by state, or else by a fault
        block = sides[largest.side].block
        own = held_to(block)
        found = diagnose_random(rotator, block, new_rotator, searches)
        if found is None and new_rotator:
            found = diagnose_state(new_rotator(), block, own, rule)
        told = {} if found is None else {"": found}
    for own in dict.fromkeys(held_to(side.block) for side in sides.values()) if explain and not told else ():
        alike = {name: side for name, side in sides.items() if held_to(side.block) == own}
        one = rotation.explained(alike, own, dtype, rotator, searches, each_call=each_call)
        told |= dict.fromkeys(alike, one[""]) if "" in one and len(alike) < len(sides) else one
    first = min((int(side.positions.min()) for side in sides.values() if side.positions.size), default=-1)
    return replace(
        largest,
        diagnosis=rotation.join_sides(told) if told else None,
        told={} if "" in told else told,
        first=first,
        off=tuple(sides),
        noun="position" if setting.grid is None else "token",
    )


def _misplaced(
    blocks: Iterable[CalledBlock], held_to: Callable[[CalledBlock], RopeSetting], rule: Resolved
) -> tuple[list[Places], dict[str, MisplacedSide]]:
    """Return the worst pairs of q and k in calls, and the wrong part of each side."""
    sides, worst = dict[str, MisplacedSide](), {"q": NOWHERE, "k": NOWHERE}
    for block in blocks:
        over, own = None, held_to(block)
        for name, x, y in zip("qk", block.given, block.rotated, strict=True):
            if over is None or y is not block.rotated[0]:  # what was given once is judged once
                over = excess(x, y, block.rows(), own, rule)
            placed = worst_pair(over, name, block.rows(), own, rule)
            if new := placed.excess > worst[name].excess:
                worst[name] = placed
            if placed.excess > 1:
                before, side = sides.get(name), MisplacedSide.of(over > 1, block)
                sides[name] = side.beside(before, block if new else before.block) if before else side
    return [*worst.values()], {name: sides[name] for name in "qk" if name in sides}  # whichever was first


def worst_pair(
    over: Array,
    side: str,
    rows: Positions,
    setting: RopeSetting,
    rule: Resolved,
) -> Places:
    """Return the pair with the largest excess. Shapes: over (b, h, s, p)."""
    batch, head, row, pair = map(int, np.unravel_index(int(over.argmax()), over.shape))
    position = int(rows[batch, row])
    allowed = allowance.allowed_at(rule, setting, position, pair)
    return Places(float(over[batch, head, row, pair]), side, batch, head, position, pair, allowed=allowed)


def with_other_side(
    wrong: Places,
    judge: Callable[[_Call, bool], Places],
    others: Iterable[_Call],
) -> Places:
    """Add the diagnosis of the other side to that of a wrong call, where only one side is wrong there.

    judge: makes a call and judges it, with a diagnosis if its second argument is true. Other calls are made
    up to the first in which the other side is wrong, or which raises.
    """

    def explained() -> Iterator[Places]:
        with contextlib.suppress(ForeignError):
            for call in others:
                if set(judge(call, False).off) - set(wrong.off):
                    yield judge(call, True)

    return with_side_of(wrong, explained())


def with_side_of(wrong: Places, others: Iterable[Places]) -> Places:
    """Add the other side's diagnosis from other calls, where this one has only one side."""
    found = wrong.diagnosis
    if found is None or len(wrong.off) != 1 or found.where.sides != wrong.off:
        return wrong
    own = {wrong.off[0]: replace(found, where=replace(found.where, sides=()))}
    for one in others:
        told = one.told or ({} if one.diagnosis is None else dict.fromkeys(one.off, one.diagnosis))
        if set(told) - set(own):
            both = dict(told) | own
            joined = rotation.join_sides({name: both[name] for name in "qk"})
            return replace(wrong, diagnosis=joined, off=("q", "k"))
    return wrong


def _worst(results: Sequence[Places]) -> Places:
    """Return the worst pair: wrong rotations first, with most faults, then by error."""

    def rank(one: Places) -> tuple[bool, int, float]:
        shown = len(list(one.diagnosis.parts())) if one.diagnosis and one.wrong_rotation else 0
        return one.wrong_rotation, shown, one.excess

    return with_side_of(max(results, key=rank), results)


def diagnose_state(
    rotator: Rotator,
    block: CalledBlock,
    setting: RopeSetting,
    rule: Resolved,
) -> Diagnosis | None:
    """Diagnose state, if a new instance rotates all pairs of a block rightly.

    rotator: of an instance that was not called before, or of a function that has no other.
    """
    how = "again" if getattr(rotator, "may_hold_state", False) else "afresh"
    both = zip(block.given, rotator.rotate_both(*block.given, block.at), strict=True)
    right = all((excess(x, y, block.rows(), setting, rule) <= 1).all() for x, y in both)
    return Diagnosis("state-left", {"how": how}) if right else None


def diagnose_random(
    rotator: Rotator,
    block: CalledBlock,
    new_rotator: Callable[[], Rotator] | None,
    searches: Searches | None,
) -> Diagnosis | None:
    """Diagnose randomness, if equal calls give different numbers with other seeds.

    Each seed gets a new instance, where `new_rotator` makes them, as code that counts its calls differs for
    another reason. Kinds of calls that were steady are not repeated.
    """
    results, kind = [], (type(rotator).__name__, min(block.length, 2))
    if searches is not None and kind in searches.steady:
        return None
    with contextlib.suppress(ForeignError):  # then it decides nothing
        for number in range(_REPEATED):
            called = new_rotator() if new_rotator else rotator
            with chance.other(number):
                sides = [called.rotate_both(*block.given, block.at) for _ in range(1 + bool(new_rotator))]
            results.append([x.tobytes() for pair in sides for x in pair])
    seen = results if new_rotator else results[1:]  # the first may still see what was called before
    if any(one != seen[0] for one in seen[1:]):
        return Diagnosis("random")
    if searches is not None and len(results) == _REPEATED:
        searches.steady.add(kind)
    return None
