"""Whether a sequence in parts and a batch in other rows are rotated as one call rotates them.

A token at a time, as in decoding; in pieces of uneven lengths; each row alone; rows and heads in reverse
order. Each is a `CallForm`.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance.agreement import (
    DEAR,
    Agreement,
    Both,
    CallForm,
    beginning,
    called,
    cost,
    given_vectors,
    sizes,
    some_offsets,
    whole_call,
    worst,
)
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable, of_worst_pair
from ropeaudit.errors import ForeignError
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.arrays import Strides
from ropeaudit.subjects.calling.code import Rotator
from ropeaudit.subjects.calling.foreign import ForeignRotator

# seconds of CPU of a token, runs and their tokens, runs after a prefill and theirs: slow code is called less
_RUNS = ((1e-3, 31, 16, 5, 64), (DEAR, 31, 8, 5, 8), (np.inf, 4, 8, 2, 8))
_PREFILL, _WHOLE = 4096, 64
_PIECES = (2, 3, 5, 7, 11, 61, 128, 317, 490)  # uneven, 1,024 in all
_ROW_LENGTH = 64
_BY_OWN = ", each call held to the frequencies for its own length"


@dataclass(slots=True)
class Pieces(CallForm):
    """Parts of the sequence, one call each; lengths: of the parts, again from the first where they end.

    afresh: makes the instance that each part is a call of; None where all are of the same one.
    """

    lengths: Sequence[int]
    afresh: Callable[[], Rotator] | None = None

    def over(self, rotator: Rotator) -> Pieces:
        """Return the same parts, all of one instance."""
        return Pieces(rotator, self.lengths)

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, piece after piece."""
        parts = [(part.start, part.stop) for part in self.calls(at.shape[-1])]
        if self.afresh is None:
            return self.rotator.rotate_parts(q, k, at, parts)
        each = [self.afresh().rotate_parts(q, k, at, [part]) for part in parts]
        first, second = (np.concatenate(results, axis=2) for results in zip(*each, strict=True))
        return first, second

    def calls(self, length: int) -> Iterator[slice]:
        """Yield the rows of each piece."""
        start = 0
        for size in itertools.cycle(self.lengths):
            yield slice(start, min(start + size, length))
            start += size
            if start >= length:
                return


class Alone(CallForm):
    """Each batch element in a call of its own."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, element after element."""
        rotated = [
            self.rotator.rotate_both(q[b : b + 1], k[b : b + 1], at[b : b + 1] if at.ndim == 2 else at)
            for b in range(len(q))
        ]
        first, second = (np.concatenate(elements) for elements in zip(*rotated, strict=True))
        return first, second


class Reversed(CallForm):
    """The batch elements and the heads in reverse order."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, in the order in which they were given."""
        rows = np.ascontiguousarray(at[::-1]) if at.ndim == 2 else at
        q, k = (np.ascontiguousarray(x[::-1, ::-1]) for x in (q, k))
        first, second = self.rotator.rotate_both(q, k, rows)
        return first[::-1, ::-1], second[::-1, ::-1]


def _newest(code: CodeUnderTest) -> Finding | None:
    """Return what fails where fewer queries than keys are the newest tokens; None where nothing does.

    Code that is told no positions is asked, if it puts a single query at the end of its keys.
    """
    fit, length = code.tested.fit(code.setting), min(_WHOLE, code.up_to)
    if fit is None or not (fit.convention.takes_keys and fit.convention.signature.unplaced):
        return None
    q, k = (x[None].astype(code.dtype.carrier) for x in code.vectors(HEADS, length))
    rotator = code.rotator()
    for count in (1, 2, length // 2):
        first, given = length - count, np.ascontiguousarray(q[:, :, length - count :])
        try:
            rotated, _ = rotator.rotate_both(given, k, np.arange(length, dtype=np.int64))
        except ForeignError:  # it takes as many queries as keys
            return None

        def placed(begin: int, x: FloatArray = given, y: FloatArray = rotated) -> Places:
            at = np.arange(begin, begin + x.shape[2], dtype=np.int64)
            return code.judged(rotator, [CalledBlock(at, (x, x), (y, y))], explain=False)

        if (seen := placed(first)).excess <= 1:
            continue
        if count == 1:
            return None
        from_0 = placed(0).excess <= 1
        found = Diagnosis("positions-from-0" if from_0 else "unexplained", where=Where(sides=("q",)))
        detail = f"the newest {count} of {length} tokens as queries, all of them as keys"
        return of_worst_pair("decode", detail, replace(seen, diagnosis=found))
    return None


def decode(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether single tokens, also after a prefill, and the newest of all are rotated as all at once."""
    if newest := _newest(code):
        yield newest
        return
    seconds = cost(code)
    count, longest, later_runs, later = next(sizes for limit, *sizes in _RUNS if seconds < limit)
    length, later = min(longest, code.up_to), min(later, code.up_to)
    prefill = min(_PREFILL, code.up_to // 2)
    whole = min(_WHOLE, code.up_to)  # tokens of the plain calls whose beginnings are decoded
    words = "one token at a time"
    # what straddles what breaks, and random ones
    begun = some_offsets(code, whole, count)
    random = np.random.default_rng([code.seed, 2]).integers(0, max(1, code.up_to - whole + 1), count)
    offsets = sorted({*begun, *map(int, random[: count - len(begun)])})

    fresh = _in_pieces(code, words, (1,), code.rotator())
    fresh.take_all(beginning(whole_call(code, offset, whole), length) for offset in offsets)
    calls = f"runs of {length} positions, each a call of its own"
    if fresh.failed:
        yield fresh.finding("decode", f"{calls}; wrong in run number {fresh.calls} of {len(offsets)}")
        return
    detail = f"{len(offsets)} {calls}, up to position {offsets[-1] + length - 1}{_BY_OWN * code.each_call}"
    begin = [min(offset, code.up_to - later) for offset in offsets if offset >= prefill]
    begin = [offset for offset in dict.fromkeys(begin) if offset >= prefill]
    if not prefill or not begin:
        yield fresh.finding("decode", detail)
        return
    chosen = sorted({prefill, *begin[:: max(1, len(begin) // later_runs)]})
    rotator = code.rotator()
    rotator.rotate_both(*given_vectors(code, prefill), np.arange(prefill, dtype=np.int64))
    filled = _in_pieces(code, f"{words} after a prefill of {prefill}", (1,), rotator)
    filled.take_all(whole_call(code, offset, later) for offset in chosen)
    detail += f"; {len(chosen)} runs of {later} after a prefill of {prefill}"
    yield worst([fresh, filled]).finding("decode", detail)


def _in_pieces(code: CodeUnderTest, words: str, lengths: Sequence[int], rotator: Rotator) -> Agreement:
    """Return the comparison of calls in pieces with one whole call."""
    return Agreement(
        *(code, words, Pieces(rotator, lengths)), lambda: Pieces(code.rotator(), lengths, code.rotator)
    )


def pieces(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the sequence in pieces of uneven lengths is rotated as the whole."""
    length = min(sum(_PIECES), code.up_to)
    offsets = some_offsets(code, length, 5)
    words = f"in pieces of {_PIECES[0]} to {_PIECES[-1]}"
    agreement = _in_pieces(code, words, _PIECES, code.rotator())
    agreement.take_all(whole_call(code, offset, length) for offset in offsets)
    detail = f"{length} positions {words}, at {len(offsets)} offsets up to {offsets[-1]}"
    yield agreement.finding("pieces", detail + _BY_OWN * code.each_call)


def alone(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a batch element is rotated alike alone and in any place."""
    length = min(_ROW_LENGTH, code.up_to)
    if max(sizes(code, length)) == 1:
        yield not_applicable("alone", "it takes one row at a time, without heads")
        return
    offsets, instance = some_offsets(code, length, 5), code.rotator()
    agreements = [
        Agreement(code, "each row alone", Alone(instance), lambda: Alone(code.rotator())),
        Agreement(
            code, "rows and heads in reverse order", Reversed(instance), lambda: Reversed(code.rotator())
        ),
    ]
    for one in agreements:
        one.take_all(whole_call(code, offset, length) for offset in offsets)
    (batch, heads), ways = sizes(code, length), ", ".join(one.words for one in agreements)
    detail = f"{ways}, of {batch} rows with {heads} heads at {len(offsets)} offsets"
    yield worst(agreements).finding("alone", detail)


_LENGTH = 64
# how vectors lie -> the axes that code must have for it, and words
_WAYS: dict[Strides, tuple[str, str]] = {
    "transposed": ("hs", "transposed input"),
    "sliced": ("s", "input sliced out of a wider array"),
    "expanded": ("b", "an expanded batch (stride 0)"),
}


def strided(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether transposed, sliced and expanded views are rotated right."""
    own = code.own
    if own is None:
        yield not_applicable("strides", "an adapter calls it, with arrays of its own")
        return
    length = min(_LENGTH, code.up_to)
    offsets = some_offsets(code, length, 3)
    order = shapes.plain(own.fit(code.setting).convention.order)
    instance = code.rotator()
    done, refused = list[Agreement](), dict[str, list[str]]()
    for strides, (axes, words) in _WAYS.items():
        if not set(axes) <= set(order):
            continue

        def of_views(strides: Strides = strides, rotator: Rotator | None = None) -> Rotator:
            used = rotator or code.rotator()
            return used.lying(strides) if isinstance(used, ForeignRotator) else used

        seen = Agreement(code, words, of_views(strides, instance), of_views)
        wholes = [whole_call(code, offset, length) for offset in offsets]
        if strides == "expanded":  # plain calls in which all batch elements are the first
            firsts = [[np.repeat(x[:1], len(x), axis=0) for x in whole.block.given] for whole in wholes]
            both = zip(firsts, wholes, strict=True)
            wholes = [called(code, instance, (q, k), whole.block.at) for (q, k), whole in both]
        seen.take_all(wholes)
        if seen.raised:
            refused.setdefault(seen.raised, []).append(words)
        else:
            done.append(seen)
    raising = [f"it {reason} for {', '.join(ways)}" for reason, ways in refused.items()]
    if not done:
        yield not_applicable("strides", "; ".join(raising))
        return
    detail = f"{', '.join(one.words for one in done)}, at {len(offsets)} offsets"
    yield worst(done).finding("strides", "; ".join([detail, *raising]))
