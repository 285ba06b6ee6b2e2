"""Whether what a call returned stays: while other calls are made, and when two threads call at once.

Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import bits_differ
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable, of_worst_pair
from ropeaudit.conformance.whole_calls import Both, given_vectors
from ropeaudit.errors import RopeAuditError, one_line
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import arrays
from ropeaudit.subjects.calling.own_rotator import OwnRotator
from ropeaudit.subjects.calling.timeout import at_once

_LENGTH, _SHORT = 64, 17
_THREADS, _CALLS = 2, 6
_ADAPTER = "an adapter calls it, with arrays of its own"


def kept(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what a call returned is the same after other calls, such as q's after k's.

    A call alike follows, for a buffer may be kept for each shape, and one of another length.
    """
    rotator = code.rotator()
    if not isinstance(rotator, OwnRotator):
        yield not_applicable("results", _ADAPTER)
        return
    both = rotator.fit.convention.takes_keys
    for length in {min(_LENGTH, code.up_to), 1}:
        q, k = given_vectors(code, length)
        at = np.arange(length, dtype=np.int64) + min(1, code.up_to - length)
        first = rotator.answer(q, k if both else None, at)
        before = [arrays.values(x)[0] for x in first.held]
        for x, other, some in ((k, q, length), (q, k, min(length, _SHORT))):
            rotator.answer(x[:, :, :some], other[:, :, :some] if both else None, at[:some])
            now = [arrays.values(held)[0] for held in first.held]
            differ = sum(int(bits_differ(a, b).sum()) for a, b in zip(before, now, strict=True))
            if differ:
                total, tokens = sum(x.size for x in before), "1 token" if length == 1 else f"{length} tokens"
                told = (
                    f"{differ:,} of {total:,} numbers that a call of {tokens} returned change with the next"
                )
                yield judged("results", False, told, diagnosis=Diagnosis("output-shared"))
                return
    yield judged("results", True, "what calls of 1 and of many tokens returned is the same after others")


def threads(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether two threads that call one instance at the same time each get what is theirs."""
    rotator = code.rotator()
    if not isinstance(rotator, OwnRotator):
        yield not_applicable("threads", _ADAPTER)
        return
    calls = [list(_calls(code, number)) for number in range(_THREADS)]

    def run(own: list[CalledBlock]) -> list[Both]:
        return [rotator.rotate_both(*block.given, block.at) for block in own]

    told = f"{_THREADS} threads, {_THREADS * _CALLS} calls of one instance"

    def placed(results: list[list[Both]]) -> Places:
        both = zip(itertools.chain(*calls), itertools.chain(*results), strict=True)
        blocks = [CalledBlock(block.at, block.given, rotated) for block, rotated in both]
        return code.judged(rotator, blocks, explain=False)

    try:
        alone = placed([run(own) for own in calls])
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        yield not_applicable("threads", f"it raises {one_line(error)} from one thread too")
        return
    if not alone.excess <= 1:
        yield not_applicable("threads", "calls from one thread are wrong too")
        return
    try:
        meeting = placed(at_once([functools.partial(run, own) for own in calls], "calls from two threads"))
    except RopeAuditError:
        raise
    except Exception:  # whatever other people's code raises, or returns: it varies from run to run
        meeting = None
    if meeting is not None and meeting.excess <= 1:
        yield of_worst_pair("threads", told, meeting)
        return
    text = f"{told}: one is wrong or raises; one after the other they are right"
    yield judged("threads", False, text, diagnosis=Diagnosis("threads-meet"))


def _calls(code: CodeUnderTest, number: int) -> Iterator[CalledBlock]:
    """Yield the calls of a thread: a run at its own positions in each, of three lengths in turn."""
    for turn in range(_CALLS):
        length = min((_LENGTH, _SHORT, 1)[turn % 3], code.up_to)
        q, k = given_vectors(code, length)
        last = max(0, code.up_to - length)
        at: Positions = np.arange(length, dtype=np.int64) + min(last, 1000 * (_THREADS * turn + number))
        given: tuple[FloatArray, FloatArray] = q[:, :1], k[:, :1]
        yield CalledBlock(at, given, given)
