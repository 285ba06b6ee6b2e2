"""Checks that other ways of calling give the results of plain calls: in parts, other rows, views.

A pair passes within the allowed error around the exact rotation. Where the plain call is itself wrong, the
two results are compared within twice that error. Differing bits are only counted.
Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import bits_differ
from ropeaudit.conformance.code_under_test import (
    DEAR,
    HEADS,
    CodeUnderTest,
    calls_from,
    cost,
    make_call,
    some_offsets,
)
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted, of_worst_pair
from ropeaudit.errors import ForeignError, did
from ropeaudit.recognition import allowance, rotation, verification
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import MisplacedSide
from ropeaudit.recognition.verification import NOWHERE, Places
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.arrays import Strides
from ropeaudit.subjects.calling.code import Both, Rotator

# seconds of CPU of a token, runs and their tokens, runs after a prefill and theirs: slow code is called less
_RUNS = ((1e-3, 31, 16, 5, 64), (DEAR, 31, 8, 5, 8), (np.inf, 4, 8, 2, 8))
_PREFILL, _LENGTH = 4096, 64
# tokens of pieces, uneven, 1,024 in all; those of other checks for jax, which compiles anew for each shape
_PIECES, _COMPILED = (2, 3, 5, 7, 11, 61, 128, 317, 490), (17, 64) * 12 + (17, 17, 17, 1)
_Q = Where(sides=("q",))
_BY_OWN = ", each call held to the frequencies for its own length"
# how vectors lie -> the axes that code must have for it, and words
_VIEWS: dict[Strides, tuple[str, str]] = {
    "transposed": ("hs", "transposed input"),
    "sliced": ("s", "input sliced out of a wider array"),
    "expanded": ("b", "an expanded batch (stride 0)"),
}


def plain_calls(rotator: Rotator, given: Both, offsets: Iterable[int]) -> Iterator[CalledBlock]:
    """Call with consecutive positions from each offset. Raises: what code raises."""
    return (make_call(rotator, call) for call in calls_from(given, list(offsets)))


def excess(
    code: CodeUnderTest, x: FloatArray, y: FloatArray, at: Positions, parts: Sequence[slice] = (np.s_[:],)
) -> Array:
    """Return the error of each pair over the allowed one. parts: tokens that share one length each.

    Shapes: (b, h, s, d) twice, (s,) or (b, s) -> (b, h, s, p).
    """
    over, every = [], np.broadcast_to(at, (len(x), x.shape[2]))
    for rows in parts:
        setting = code.setting_at(at[..., rows])
        over.append(allowance.excess(x[:, :, rows], y[:, :, rows], every[:, rows], setting, code.rule))
    return np.concatenate(over, axis=2)


def split_rows(lengths: Sequence[int], length: int) -> list[slice]:
    """Split tokens into parts of lengths that repeat; without lengths, one part."""
    ends = [0]
    for size in itertools.cycle(lengths or [length]):
        ends.append(min(ends[-1] + size, length))
        if ends[-1] == length:
            break
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def _rows_of(block: CalledBlock, rows: slice) -> CalledBlock:
    """Return some tokens of a call. Shapes: (b, h, s, d) -> (b, h, n, d)."""
    (q, k), (rotated_q, rotated_k) = block.given, block.rotated
    given = q[:, :, rows], k[:, :, rows]
    rotated = rotated_q[:, :, rows], rotated_k[:, :, rows]
    return CalledBlock(block.at[..., rows], given, rotated)


@dataclass(slots=True)
class Way:
    """Another way to call code, and its results compared with plain calls, up to the first failure.

    words: its name. form: turns a rotator into one that is called this way. lengths: of the calls into which
    it splits one, repeated; none for no split. right_passes: whether a right pair passes where the plain call
    is wrong. apart: the largest difference from a plain call.
    """

    code: CodeUnderTest
    words: str
    instance: Rotator
    form: Callable[[Rotator], Rotator] = lambda instance: instance
    lengths: Sequence[int] = ()
    right_passes: bool = False
    places: Places = NOWHERE
    raised: str = ""
    raised_at: str = ""
    wrong_alike: int = 0
    differing: int = 0
    elements: int = 0
    apart: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether a pair is wrong, or a call raised."""
        return bool(self.raised) or self.places.excess > 1

    def repeat_calls(self, plain: Iterable[CalledBlock]) -> Way:
        """Repeat plain calls this way until one fails. Raises: RopeAuditError."""
        rotator = self.form(self.instance)
        for one in plain:
            try:
                mine = make_call(rotator, (*one.given, one.at))
            except ForeignError as error:
                self.raised = did(error)
                self.raised_at = f"{self.words}, positions {one.at[0]} to {one.at[-1]}"
                break
            over = [self._over(one, mine, side) for side in (0, 1)]
            side = int(over[1].max() > over[0].max())
            row = int(np.unravel_index(int(over[side].argmax()), over[side].shape)[2])
            part = next(part for part in self._parts(mine) if row < part.stop)
            setting = self.code.setting_at(one.at[part])
            placed = verification.worst_pair(over[side], "qk"[side], mine.rows(), setting, self.code.rule)
            self.places = max(self.places, placed, key=lambda places: places.excess)
            if placed.excess > 1:
                self.places = replace(self.places, diagnosis=self._explained(one, mine, over, row))
                break
        return self

    def finding(self, check: str, detail: str) -> Finding:
        """Return the finding; a failed one names this way of calling."""
        differing = self.differing / self.elements if self.elements else np.nan
        if self.raised:
            told = f"it {self.raised}"
            return Finding(check, "fail", told, where=self.raised_at, differing=differing)
        where = self.places.words if self.places.excess else ""
        if self.failed:
            where = f"{self.words}: {where}"
        elif self.wrong_alike:
            detail += f"; {self.wrong_alike} pairs that a plain call has out of place are so here too: see "
            detail += "places; the figure is of pairs that differ from a plain call's"
        return of_worst_pair(check, detail, self.places, where=where, differing=differing)

    def _parts(self, mine: CalledBlock) -> list[slice]:
        """Return the tokens that share frequencies: those of a call, or all."""
        return split_rows(self.lengths if self.code.each_call else (), mine.length)

    def _over(self, plain: CalledBlock, mine: CalledBlock, side: int) -> Array:
        """Return a side's error over the allowed one; count differing bits. Shapes: -> (b, h, s, p).

        Where the plain call is wrong, the error is half of the difference from it.
        """
        x, expected, y = mine.given[side], plain.rotated[side], mine.rotated[side]
        if y.shape != expected.shape:
            raise shapes.WrongShape(f"{self.words}: the shape {y.shape} comes back for {expected.shape}")
        different, parts = bits_differ(y, expected), self._parts(mine)
        self.differing += int(different.sum())
        self.elements += different.size
        with np.errstate(invalid="ignore", over="ignore"):  # nan and inf in both are no difference
            by = np.where(different, y.astype(np.float64) - expected.astype(np.float64), 0.0)
        self.apart = max(self.apart, float(np.where(np.isnan(by), np.inf, np.abs(by)).max(initial=0.0)))
        over = excess(self.code, x, y, mine.at, parts)
        if len(parts) > 1:  # of other lengths, with other frequencies
            return over
        wrong = ~((excess(self.code, x, expected, mine.at) if different.any() else over) <= 1)
        self.wrong_alike += int(wrong.sum())
        if not wrong.any() or not different.any():  # it is right, or wrong alike
            return np.where(wrong.any(), 0.0, over)
        exact = exact_rotation.rotated(x, mine.at, self.code.setting_at(mine.at))
        apart = excess(self.code, x, exact + by / 2, mine.at)  # over twice the allowance
        if self.right_passes:
            apart = np.where(over <= 1, np.minimum(apart, over), apart)
        return np.where(wrong, apart, over)

    def _explained(
        self, plain: CalledBlock, mine: CalledBlock, over: list[Array], row: int
    ) -> Diagnosis | None:
        """Diagnose a wrong call; if it is right, diagnose the plain one.

        row: the token with the largest error.
        """
        code, probed, own = self.code, self.form(self.instance), self._parts(mine)

        def new_rotator() -> Rotator:
            return self.form(code.rotator())

        def state(rotator: Rotator, block: CalledBlock) -> Diagnosis | None:
            return verification.diagnose_state(rotator, block, code.setting_at(block.at), code.rule)

        if found := verification.diagnose_random(probed, mine, new_rotator, code.shared.searches):
            return found
        both = zip(mine.given, mine.rotated, strict=True)
        if all((excess(code, x, y, mine.at, own) <= 1).all() for x, y in both):
            return state(code.rotator(), plain) or Diagnosis("right-so")
        parts = split_rows(self.lengths, mine.length)  # each a call of an instance of its own
        each = (
            (new_rotator() if len(parts) == 1 else code.rotator(), _rows_of(mine, rows)) for rows in parts
        )
        if all(found := state(rotator, block) for rotator, block in each):
            return found
        if len(parts) > 1 and (code.shared.wrong_rotation or code.each_call):
            # a plain call is wrong too: the call that is wrong here shows whether it is so in the same way;
            # or each call is held to frequencies of its own
            rows = next(part for part in parts if row < part.stop)
            mine, probed = _rows_of(mine, rows), self.instance
            over = [part[:, :, rows] for part in over]
        sides = {}
        for name, x, y, part in zip("qk", mine.given, mine.rotated, over, strict=True):
            wrong = ~(excess(code, x, y, mine.at) <= 1)
            off = ~(part <= 1) & wrong  # a pair that only the plain call has out of place is right here
            if wrong.any():  # where none is off, as wrong as a plain call: else the other were alone
                sides[name] = MisplacedSide.of(off if off.any() else wrong, mine)
        asked = code.setting_at(mine.at), code.dtype, probed, code.shared.searches
        return rotation.join_sides(rotation.explained(sides, *asked, each_call=code.each_call))


def worst(ways: Sequence[Way]) -> Way:
    """Return the first failed way, or the worst, with the differing bits of all."""
    failed = [way for way in ways if way.failed]
    chosen = failed[0] if failed else max(ways, key=lambda way: way.places.excess)
    differing, elements = (sum(getattr(way, name) for way in ways) for name in ("differing", "elements"))
    return replace(chosen, differing=differing, elements=elements)


@dataclass(slots=True)
class Rearranged(Rotator):
    """A rotator that makes other calls in place of one. how: makes them."""

    rotator: Rotator
    how: Callable[[Rotator, FloatArray, FloatArray, Positions], Both]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, as they were given."""
        return self.how(self.rotator, q, k, at)


def _row_by_row(instance: Rotator, q: FloatArray, k: FloatArray, at: Positions) -> Both:
    rotated = [instance.rotate_both(q[b : b + 1], k[b : b + 1], at) for b in range(len(q))]
    first, second = (np.concatenate(elements) for elements in zip(*rotated, strict=True))
    return first, second


def _in_reverse(instance: Rotator, q: FloatArray, k: FloatArray, at: Positions) -> Both:
    q, k = (np.ascontiguousarray(x[::-1, ::-1]) for x in (q, k))
    first, second = instance.rotate_both(q, k, at)
    return first[::-1, ::-1], second[::-1, ::-1]


def decode(code: CodeUnderTest) -> Iterator[Finding]:
    """Check decode: single tokens, with and without a prefill, and fewer queries than keys."""
    newest, why = _fewer_queries(code), code.why_from_0()
    if newest or why:
        yield newest or not_applicable("decode", why)
    if why or (newest and newest.failed):
        return
    seconds = cost(code)
    count, longest, later_runs, later = next(sizes for limit, *sizes in _RUNS if seconds < limit)
    length, later = min(longest, code.up_to), min(later, code.up_to)
    prefill = min(_PREFILL, code.up_to // 2)
    whole = min(_LENGTH, code.up_to)  # tokens of the plain calls whose beginnings are decoded
    # what straddles what breaks, and random ones
    begun = some_offsets(code, whole, count)
    random = np.random.default_rng([code.seed, 2]).integers(0, max(1, code.up_to - whole + 1), count)
    offsets = sorted({*begun, *map(int, random[: count - len(begun)])})
    begin = [min(offset, code.up_to - later) for offset in offsets if offset >= prefill]
    begin = [offset for offset in dict.fromkeys(begin) if offset >= prefill]

    words = "one token at a time"
    ways = [_in_pieces(code, words, (1,), code.rotator())]
    calls_of_all = plain_calls(code.rotator(), code.batched_vectors(whole), offsets)
    ways[0].repeat_calls(_rows_of(plain, slice(0, length)) for plain in calls_of_all)
    detail = f"{len(offsets)} runs of {length} positions, each a call of its own"
    detail += f", up to position {offsets[-1] + length - 1}{_BY_OWN * code.each_call}"
    if prefill and begin and not ways[0].failed:
        chosen = sorted({prefill, *begin[:: max(1, len(begin) // later_runs)]})
        rotator = code.rotator()
        rotator.rotate_both(*code.batched_vectors(prefill), np.arange(prefill, dtype=np.int64))
        ways.append(_in_pieces(code, f"{words} after a prefill of {prefill}", (1,), rotator))
        ways[1].repeat_calls(plain_calls(code.rotator(), code.batched_vectors(later), chosen))
        detail += f"; {len(chosen)} runs of {later} after a prefill of {prefill}"
    yield worst(ways).finding("decode", detail)


def _fewer_queries(code: CodeUnderTest) -> Finding | None:
    """Return whether fewer queries than keys are rotated as the newest tokens.

    For code that takes no positions, or cos and sin of all keys, and that places a single query at the end.
    None for other code, and if tables are used rightly.
    """
    length, called_so = min(_LENGTH, code.up_to), code.convention
    if called_so is None or not (called_so.takes("k", "qkv") and (called_so.unplaced or called_so.tables)):
        return None
    q, k = (x[None].astype(code.dtype.carrier) for x in code.vectors(HEADS, length))
    rotator = code.rotator()
    for count in (1, 2, length // 2):
        given, run = np.ascontiguousarray(q[:, :, length - count :]), np.arange(count, dtype=np.int64)
        try:
            rotated, _ = rotator.rotate_both(given, k, np.arange(length, dtype=np.int64))
        except ForeignError:  # it takes as many queries as keys
            return None
        both = (given, given), (rotated, rotated)
        blocks = [CalledBlock(run + first, *both) for first in (length - count, 0)]
        at_end, from_0 = (code.judge(rotator, [block], explain=False) for block in blocks)
        if at_end.excess <= 1:
            continue
        if count == 1:
            told = "fewer queries than keys stand at the first positions, not at the last"
            return noted("decode", told) if from_0.excess <= 1 and called_so.tables else None
        found = Diagnosis("positions-from-0" if from_0.excess <= 1 else "unexplained", where=_Q)
        detail = f"the newest {count} of {length} tokens as queries, all of them as keys"
        return of_worst_pair("decode", detail, replace(at_end, diagnosis=found))
    detail = f"the newest 1, 2 and {length // 2} of {length} tokens as queries, all of them as keys"
    return judged("decode", True, detail) if called_so.unplaced else None


def _in_pieces(code: CodeUnderTest, words: str, lengths: Sequence[int], rotator: Rotator) -> Way:

    def how(instance: Rotator, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        parts = [(part.start, part.stop) for part in split_rows(lengths, at.shape[-1])]
        return instance.rotate_parts(q, k, at, parts)

    return Way(code, words, rotator, lambda instance: Rearranged(instance, how), lengths)


def chunked_prefill(code: CodeUnderTest) -> Iterator[Finding]:
    """Check chunked prefill: a sequence in pieces of uneven lengths."""
    if why := code.why_from_0():
        yield not_applicable("chunked-prefill", why)
        return
    lengths = _COMPILED if code.tested.engine == "jax" else _PIECES
    length = min(sum(lengths), code.up_to)
    words = f"in pieces of {min(lengths)} to {max(lengths)}"
    offsets = some_offsets(code, length, 5)
    way = _in_pieces(code, words, lengths, code.rotator())
    way.repeat_calls(plain_calls(code.rotator(), code.batched_vectors(length), offsets))
    detail = f"{length} positions {words}, at {len(offsets)} offsets up to {offsets[-1]}"
    yield way.finding("chunked-prefill", detail + _BY_OWN * code.each_call)


def batch_of_one(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that a batch element is rotated alike in a batch of one and in any place."""
    length = min(_LENGTH, code.up_to)
    batch, heads = code.batch_and_heads(length)
    if batch == heads == 1:
        yield not_applicable("batch-of-one", "it takes one row at a time, without heads")
        return
    offsets, instance = some_offsets(code, length, 5), code.rotator()
    kinds = {"each row alone": _row_by_row, "rows and heads in reverse order": _in_reverse}
    ways = [Way(code, words, instance, partial(Rearranged, how=how)) for words, how in kinds.items()]
    calls = list(plain_calls(code.rotator(), code.batched_vectors(length), offsets))
    for way in ways:
        way.repeat_calls(calls)
    detail = f"{', '.join(kinds)}, of {batch} rows with {heads} heads at {len(offsets)} offsets"
    yield worst(ways).finding("batch-of-one", detail)


def memory_layout(code: CodeUnderTest) -> Iterator[Finding]:
    """Check transposed, sliced and expanded views."""
    instance, length = code.own_rotator(), min(_LENGTH, code.up_to)
    offsets = some_offsets(code, length, 3)
    plain = list(plain_calls(code.rotator(), code.batched_vectors(length), offsets))
    done, refused = list[Way](), dict[str, list[str]]()
    for strides, (axes, words) in _VIEWS.items():
        if not set(axes) <= set(shapes.axis_letters(instance.fit.convention.order)):
            continue
        calls = plain
        if strides == "expanded":  # plain calls in which all batch elements are the first
            q, k = (np.repeat(x[:1], len(x), axis=0) for x in code.batched_vectors(length))
            calls = list(plain_calls(instance, (q, k), offsets))
        way = Way(code, words, instance, methodcaller("with_layout", strides)).repeat_calls(calls)
        if way.raised:
            refused.setdefault(way.raised, []).append(words)
        else:
            done.append(way)
    raising = [f"it {reason} for {', '.join(ways)}" for reason, ways in refused.items()]
    if done:
        detail = f"{', '.join(one.words for one in done)}, at {len(offsets)} offsets"
        yield worst(done).finding("memory-layout", "; ".join([detail, *raising]))
    else:
        yield not_applicable("memory-layout", "; ".join(raising))
