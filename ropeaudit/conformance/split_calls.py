"""Whether a sequence in parts and a batch in other rows are rotated as one call rotates them.

A token at a time, as in decoding; in pieces of uneven lengths; each row alone; rows and heads in reverse
order; given as views that lie otherwise in memory.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance.code_under_test import (
    DEAR,
    HEADS,
    Agreement,
    Both,
    CodeUnderTest,
    beginning,
    called,
    cost,
    cut,
    some_offsets,
    whole_call,
    worst,
)
from ropeaudit.conformance.finding import ADAPTER, Finding, not_applicable, of_worst_pair
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
_BY_OWN = ", each call held to the frequencies for its own length"
_LENGTH = 64
# how vectors lie -> the axes that code must have for it, and words
_WAYS: dict[Strides, tuple[str, str]] = {
    "transposed": ("hs", "transposed input"),
    "sliced": ("s", "input sliced out of a wider array"),
    "expanded": ("b", "an expanded batch (stride 0)"),
}


@dataclass(slots=True)
class Pieces(Rotator):
    """An instance that is called once for each part of the sequence; lengths: of the parts."""

    rotator: Rotator
    lengths: Sequence[int]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, piece after piece."""
        parts = [(part.start, part.stop) for part in cut(self.lengths, at.shape[-1])]
        return self.rotator.rotate_parts(q, k, at, parts)


@dataclass(slots=True)
class Alone(Rotator):
    """An instance that is called once for each batch element."""

    rotator: Rotator

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, element after element."""
        rotated = [self.rotator.rotate_both(q[b : b + 1], k[b : b + 1], at) for b in range(len(q))]
        first, second = (np.concatenate(elements) for elements in zip(*rotated, strict=True))
        return first, second


@dataclass(slots=True)
class Reversed(Rotator):
    """An instance that is given the batch elements and the heads in reverse order."""

    rotator: Rotator

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return q and k rotated, in the order in which they were given."""
        q, k = (np.ascontiguousarray(x[::-1, ::-1]) for x in (q, k))
        first, second = self.rotator.rotate_both(q, k, at)
        return first[::-1, ::-1], second[::-1, ::-1]


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
    rotator.rotate_both(*code.given(prefill), np.arange(prefill, dtype=np.int64))
    filled = _in_pieces(code, f"{words} after a prefill of {prefill}", (1,), rotator)
    filled.take_all(whole_call(code, offset, later) for offset in chosen)
    detail += f"; {len(chosen)} runs of {later} after a prefill of {prefill}"
    yield worst([fresh, filled]).finding("decode", detail)


def _newest(code: CodeUnderTest) -> Finding | None:
    """Return what fails where fewer queries than keys are the newest tokens; None where nothing does.

    Code that is told no positions is asked, if it puts a single query at the end of its keys.
    """
    length, called_so = min(_WHOLE, code.up_to), code.convention
    if called_so is None or not (called_so.takes_keys and called_so.signature.unplaced):
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


def _in_pieces(code: CodeUnderTest, words: str, lengths: Sequence[int], rotator: Rotator) -> Agreement:
    """Return the comparison of calls in pieces with one whole call."""
    return Agreement(
        *(code, words, Pieces(rotator, lengths)), lambda: Pieces(code.rotator(), lengths), lengths
    )


def pieces(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the sequence in pieces of uneven lengths is rotated as the whole."""
    length = min(sum(_PIECES), code.up_to)
    words = f"in pieces of {_PIECES[0]} to {_PIECES[-1]}"
    offsets = some_offsets(code, length, 5)
    agreement = _in_pieces(code, words, _PIECES, code.rotator())
    agreement.take_all(whole_call(code, offset, length) for offset in offsets)
    detail = f"{length} positions {words}, at {len(offsets)} offsets up to {offsets[-1]}"
    yield agreement.finding("pieces", detail + _BY_OWN * code.each_call)


def alone(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a batch element is rotated alike alone and in any place."""
    length = min(_LENGTH, code.up_to)
    batch, heads = code.batch_and_heads(length)
    if batch == heads == 1:
        yield not_applicable("alone", "it takes one row at a time, without heads")
        return
    offsets, instance = some_offsets(code, length, 5), code.rotator()
    ways = {"each row alone": Alone, "rows and heads in reverse order": Reversed}
    agreements = [
        Agreement(code, words, form(instance), lambda form=form: form(code.rotator()))  # type: ignore[misc]
        for words, form in ways.items()
    ]
    for one in agreements:
        one.take_all(whole_call(code, offset, length) for offset in offsets)
    detail = f"{', '.join(ways)}, of {batch} rows with {heads} heads at {len(offsets)} offsets"
    yield worst(agreements).finding("alone", detail)


def strided(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether transposed, sliced and expanded views are rotated right."""
    instance, called_so = code.rotator(), code.convention
    if called_so is None or not isinstance(instance, ForeignRotator):
        yield not_applicable("strides", ADAPTER)
        return
    length = min(_LENGTH, code.up_to)
    offsets = some_offsets(code, length, 3)
    done, refused = list[Agreement](), dict[str, list[str]]()
    for strides, (axes, words) in _WAYS.items():
        if not set(axes) <= set(shapes.plain(called_so.order)):
            continue

        def afresh(strides: Strides = strides) -> Rotator:
            return code.rotator().lying(strides)  # type: ignore[attr-defined, no-any-return]

        seen = Agreement(code, words, instance.lying(strides), afresh)
        wholes = [whole_call(code, offset, length) for offset in offsets]
        if strides == "expanded":  # plain calls in which all batch elements are the first
            q, k = (np.repeat(x[:1], len(x), axis=0) for x in code.given(length))
            wholes = [called(code, instance, (q, k), whole.block.at) for whole in wholes]
        if seen.take_all(wholes).raised:
            refused.setdefault(seen.raised, []).append(words)
        else:
            done.append(seen)
    raising = [f"it {reason} for {', '.join(ways)}" for reason, ways in refused.items()]
    if done:
        detail = f"{', '.join(one.words for one in done)}, at {len(offsets)} offsets"
        yield worst(done).finding("strides", "; ".join([detail, *raising]))
    else:
        yield not_applicable("strides", "; ".join(raising))
