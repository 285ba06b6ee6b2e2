"""Whether a sequence in parts is rotated as the whole is: a token at a time, as in decoding, and in pieces.

Letters: s positions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.agreement import Agreement
from ropeaudit.conformance.call_forms import Pieces
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding
from ropeaudit.conformance.whole_calls import given_vectors, some_offsets, whole_call

_RUN = 64  # tokens that are decoded in a row
_RUNS, _RUNS_AFTER = 31, 5  # rows of a fresh instance, and of one that saw a prefill
_DEAR = 0.15, 1.0  # seconds of CPU of a row of 64, above which there are fewer
_PREFILL = 4096
_PIECES = (1, 2, 3, 5, 7, 61, 128, 317, 500)  # uneven, 1,024 in all


def decode(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a token at a time is rotated as all at once, of a fresh instance and after a prefill."""
    length = min(_RUN, code.up_to)
    words, prefill = "one token at a time", min(_PREFILL, code.up_to)

    def one_at_a_time() -> Pieces:
        return Pieces(code.rotator(), (1,))

    fresh = Agreement(code, words, one_at_a_time(), one_at_a_time)
    began = time.process_time()
    offsets = runs(code, length)
    fresh.take(whole_call(code, offsets[0], length))
    taken = time.process_time() - began
    offsets = fewer(offsets, taken)
    if not fresh.failed:
        fresh.take_all(whole_call(code, offset, length) for offset in offsets[1:])
    detail = f"{len(offsets)} runs of {length} positions up to {offsets[-1] + length - 1}, a call each"
    if fresh.failed:
        yield fresh.finding("decode", detail)
        return
    after = one_at_a_time()
    later = Agreement(code, f"{words} after a prefill of {prefill}", after, one_at_a_time)
    after.rotator.rotate_both(*given_vectors(code, prefill), np.arange(prefill, dtype=np.int64))
    begin = [offset for offset in offsets if offset >= prefill] or offsets
    chosen = begin[:: max(1, len(begin) // _RUNS_AFTER)]
    later.take_all(whole_call(code, offset, length) for offset in chosen)
    later.differing += fresh.differing
    later.elements += fresh.elements
    worst = later if later.failed or later.excess > fresh.excess else fresh
    worst.differing, worst.elements = later.differing, later.elements
    detail += f"; {len(chosen)} runs of an instance that saw a prefill of {prefill}"
    yield worst.finding("decode", detail)


def pieces(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the sequence in pieces of uneven lengths is rotated as the whole."""
    length = min(sum(_PIECES), code.up_to)
    offsets = some_offsets(code, length, 5)

    def in_pieces() -> Pieces:
        return Pieces(code.rotator(), _PIECES)

    seen = Agreement(code, f"in pieces of {_PIECES[0]} to {_PIECES[-1]}", in_pieces(), in_pieces)
    seen.take_all(whole_call(code, offset, length) for offset in offsets)
    where = f"at {len(offsets)} offsets up to {offsets[-1]}"
    yield seen.finding("pieces", f"{length} positions in pieces of {_PIECES[0]} to {_PIECES[-1]}, {where}")


def runs(code: CodeUnderTest, length: int) -> list[int]:
    """Return first positions of what is decoded: those that straddle what breaks, and random ones."""
    offsets = straddling(code.up_to, length)
    random = np.random.default_rng([code.seed, 2]).integers(0, max(1, code.up_to - length + 1), _RUNS)
    offsets += [int(offset) for offset in random[: max(0, _RUNS - len(offsets))]]
    return sorted(set(offsets))


def fewer(offsets: list[int], seconds: float) -> list[int]:
    """Return as many as the CPU time of a row leaves: all, 8 or 3, the first and the last with them."""
    most = len(offsets) if seconds < _DEAR[0] else 8 if seconds < _DEAR[1] else 3
    chosen = np.unique(np.linspace(0, len(offsets) - 1, min(most, len(offsets))).round().astype(int))
    return [offsets[i] for i in chosen]
