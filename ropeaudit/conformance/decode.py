"""Whether a sequence in parts is rotated as the whole is: a token at a time, as in decoding, and in pieces.

Letters: s positions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.conformance import whole_calls
from ropeaudit.conformance.agreement import Agreement
from ropeaudit.conformance.batches import worst
from ropeaudit.conformance.call_forms import Pieces, PiecesAfresh
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding
from ropeaudit.conformance.whole_calls import given_vectors, some_offsets, whole_call

# seconds of CPU of a token, runs, tokens of a run, runs after a prefill: what is slow is called less
_RUNS = ((1e-3, 31, 64, 5), (whole_calls.DEAR, 31, 8, 5), (np.inf, 4, 8, 2))
_PREFILL = 4096
_PIECES = (2, 3, 5, 7, 11, 61, 128, 317, 490)  # uneven, 1,024 in all


def decode(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a token at a time is rotated as all at once, of a fresh instance and after a prefill."""
    seconds = whole_calls.cost(code)
    count, longest, later_runs = next(sizes for limit, *sizes in _RUNS if seconds < limit)
    length, prefill = min(longest, code.up_to), min(_PREFILL, code.up_to // 2)
    words, offsets = "one token at a time", runs(code, length, count)

    def one_at_a_time() -> Pieces:
        return Pieces(code.rotator(), (1,))

    def afresh() -> PiecesAfresh:
        return PiecesAfresh(code.afresh, (1,))

    fresh = Agreement(code, words, one_at_a_time(), afresh)
    fresh.take_all(whole_call(code, offset, length) for offset in offsets)
    calls = f"runs of {length} positions, each a call of its own"
    if fresh.failed:
        yield fresh.finding("decode", f"{calls}; wrong in run number {fresh.calls} of {len(offsets)}")
        return
    detail = f"{len(offsets)} {calls}, up to position {offsets[-1] + length - 1}"
    begin = [offset for offset in offsets if offset >= prefill]
    if not prefill or not begin:
        yield fresh.finding("decode", detail)
        return
    chosen = sorted({prefill, *begin[:: max(1, len(begin) // later_runs)]})
    after = one_at_a_time()
    after.rotator.rotate_both(*given_vectors(code, prefill), np.arange(prefill, dtype=np.int64))
    later = Agreement(code, f"{words} after a prefill of {prefill}", after, afresh)
    later.take_all(whole_call(code, offset, length) for offset in chosen)
    detail += f"; {len(chosen)} runs after a prefill of {prefill}"
    yield worst([fresh, later]).finding("decode", detail)


def pieces(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the sequence in pieces of uneven lengths is rotated as the whole."""
    length = min(sum(_PIECES), code.up_to)
    offsets = some_offsets(code, length, 5)

    def afresh() -> PiecesAfresh:
        return PiecesAfresh(code.afresh, _PIECES)

    words = f"in pieces of {_PIECES[0]} to {_PIECES[-1]}"
    seen = Agreement(code, words, Pieces(code.rotator(), _PIECES), afresh)
    seen.take_all(whole_call(code, offset, length) for offset in offsets)
    where = f"at {len(offsets)} offsets up to {offsets[-1]}"
    yield seen.finding("pieces", f"{length} positions in pieces of {_PIECES[0]} to {_PIECES[-1]}, {where}")


def runs(code: CodeUnderTest, length: int, count: int) -> list[int]:
    """Return first positions of what is decoded: those that straddle what breaks, and random ones."""
    offsets = whole_calls.some_offsets(code, length, count)
    random = np.random.default_rng([code.seed, 2]).integers(0, max(1, code.up_to - length + 1), count)
    offsets += [int(offset) for offset in random[: count - len(offsets)]]
    return sorted(set(offsets))
