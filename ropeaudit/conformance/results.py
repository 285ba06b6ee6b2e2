"""Whether what a call returned stays: while other calls are made, and when two threads call at once.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.arithmetic.arrays import bits_differ
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable, of_worst_pair
from ropeaudit.conformance.whole_calls import Both, given_vectors
from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.recognition import verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays
from ropeaudit.subjects.calling.own_rotator import OwnRotator
from ropeaudit.subjects.calling.timeout import at_once

_LENGTH, _SHORT = 64, 17
_THREADS, _CALLS = 2, 40
_ADAPTER = "an adapter calls it, with arrays of its own"
_GUARD = "keep nothing in the instance that a call needs: return it, or hold it in local variables"


def kept(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what a call returned is the same after other calls, such as q's after k's.

    A call alike follows, for a buffer may be kept for each shape, and one of another length.
    """
    rotator = code.rotator()
    if not isinstance(rotator, OwnRotator):
        yield not_applicable("results", _ADAPTER)
        return
    length = min(_LENGTH, code.up_to)
    q, k = given_vectors(code, length)
    at = np.arange(length, dtype=np.int64)
    both = "k" in rotator.fit.convention.signature.roles
    first = rotator.answer(q, k if both else None, at)
    before = [arrays.values(x)[0] for x in first.held]
    others = [
        (k, q if both else None, at),
        (q[:, :, :_SHORT], k[:, :, :_SHORT] if both else None, at[:_SHORT]),
    ]
    for x, other, positions in others:
        rotator.answer(x, other, positions)
        now = [arrays.values(held)[0] for held in first.held]
        differ = sum(int(bits_differ(a, b).sum()) for a, b in zip(before, now, strict=True))
        if differ:
            total = sum(x.size for x in before)
            told = f"{differ:,} of {total:,} numbers that a call returned are others after the next call"
            yield judged("results", False, told, diagnosis=Diagnosis("output-shared"))
            return
    yield judged("results", True, "what a call returned is the same after two others")


def threads(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether two threads that call one instance at the same time each get what is theirs."""
    rotator = code.rotator()
    if not isinstance(rotator, OwnRotator):
        yield not_applicable("threads", _ADAPTER)
        return
    calls = [list(_calls(code, number)) for number in range(_THREADS)]

    def run(own: list[CalledBlock]) -> list[Both]:
        return [rotator.rotate_both(*block.given, block.at) for block in own]

    try:
        results = at_once([lambda own=own: run(own) for own in calls], "calls from two threads")  # type: ignore[misc]
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        told = f"called by {_THREADS} threads at once it raises {one_line(error)}"
        yield judged("threads", False, told, remedy=_GUARD)
        return
    blocks = [
        CalledBlock(block.at, block.given, rotated)
        for own, mine in zip(calls, results, strict=True)
        for block, rotated in zip(own, mine, strict=True)
    ]
    places = verification.judged(blocks, rotator, code.setting, code.dtype, rule=code.rule, explain=False)
    detail = f"{_THREADS} threads, {len(blocks)} calls of one instance"
    allowed = code.allowed_at(places.position, places.pair)
    if places.excess <= 1:
        yield of_worst_pair("threads", detail, places, allowed)
        return
    alone = [rotator.rotate_both(*block.given, block.at) for block in blocks]
    right = [CalledBlock(block.at, block.given, both) for block, both in zip(blocks, alone, strict=True)]
    again = verification.judged(right, rotator, code.setting, code.dtype, rule=code.rule, explain=False)
    if again.excess <= 1:
        cause = Diagnosis("threads-meet")
        yield of_worst_pair(
            "threads", f"{detail}; one after the other they are right", places, allowed, diagnosis=cause
        )
    else:
        yield not_applicable("threads", "calls alone are wrong too")


def _calls(code: CodeUnderTest, number: int) -> Iterator[CalledBlock]:
    """Yield the calls of a thread: a run at its own positions in each, of two lengths in turn."""
    for turn in range(_CALLS):
        length = min(_SHORT if turn % 2 else _LENGTH, code.up_to)
        q, k = given_vectors(code, length)
        last = max(0, code.up_to - length)
        at: Positions = np.arange(length, dtype=np.int64) + min(last, 1000 * (_THREADS * turn + number))
        given: tuple[FloatArray, FloatArray] = q[:, :1], k[:, :1]
        yield CalledBlock(at, given, given)
