"""Plain calls, with which other ways to call the same code are compared.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.straddling import straddling
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.recognition import verification
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.subjects.calling.code import Rotator

BATCH = 2
Both = tuple[FloatArray, FloatArray]  # q and k
DEAR = 8e-3  # seconds of CPU of a call of one token, above which there are fewer calls


@dataclass(frozen=True, slots=True)
class WholeCall:
    """A call of q and k with all positions at once. over: error over allowance, (b, h, s, p) of each."""

    block: CalledBlock
    over: tuple[Array, Array]


def whole_call(code: CodeUnderTest, offset: int, length: int) -> WholeCall:
    """Return what one call at `length` positions from an offset came to, with few heads; known ones at once.

    Instances see all whole calls of a length, in the order in which they are needed first.
    Raises: whatever the code raises.
    """
    known, key = code.seen, (offset, length)
    if key not in known.calls:
        if length not in known.rotators:
            known.rotators[length] = code.rotator()
        given, at = given_vectors(code, length), offset + np.arange(length, dtype=np.int64)
        known.calls[key] = called(code, known.rotators[length], given, at)
    return known.calls[key]


def called(
    code: CodeUnderTest, rotator: Rotator, given: tuple[FloatArray, FloatArray], at: np.ndarray
) -> WholeCall:
    """Call, and compare with the exact rotation. Shapes: given (b, h, s, d), at (s,)."""
    block = CalledBlock(at, given, rotator.rotate_both(*given, at))
    first, second = (excess(code, x, y, block) for x, y in zip(given, block.rotated, strict=True))
    return WholeCall(block, (first, second))


def beginning(whole: WholeCall, length: int) -> WholeCall:
    """Return the first tokens of a call as if they were a call."""
    some, (q, k), (y, z) = np.s_[:, :, :length], whole.block.given, whole.block.rotated
    block = CalledBlock(whole.block.at[:length], (q[some], k[some]), (y[some], z[some]))
    return WholeCall(block, (whole.over[0][some], whole.over[1][some]))


def excess(code: CodeUnderTest, x: FloatArray, y: FloatArray, block: CalledBlock) -> Array:
    """Return the error of each pair over what is allowed. Shapes: (b, h, s, d) twice -> (b, h, s, p)."""
    setting = code.setting_at(block.at)
    return verification.excess(x, y, block.rows(), setting, code.dtype, code.rule)


def given_vectors(code: CodeUnderTest, length: int) -> tuple[FloatArray, FloatArray]:
    """Return q and k, with as many batch elements and heads as one call takes. Shapes: -> (b, h, s, d)."""
    batch, heads = sizes(code, length)
    shape = (batch, heads, length, code.setting.head_dim)
    q, k = (
        round_to(x, code.dtype).astype(code.dtype.carrier).reshape(shape)
        for x in code.vectors(batch * heads, length)
    )
    return q, k


def sizes(code: CodeUnderTest, length: int) -> tuple[int, int]:
    """Return the number of batch elements and of heads of a call: one where the code has no such axis."""
    order = code.order
    return BATCH if "b" in order else 1, HEADS if "h" in order and length <= 64 else 1


def some_offsets(code: CodeUnderTest, length: int, count: int) -> list[int]:
    """Return up to `count` of the offsets that break positions, the first and the last with them.

    Two where a call is dear.
    """
    count = min(count, 2) if cost(code) > DEAR else count
    offsets = straddling(code.up_to, min(length, code.up_to))
    chosen = np.unique(np.linspace(0, len(offsets) - 1, min(count, len(offsets))).round().astype(int))
    return [offsets[i] for i in chosen]


def cost(code: CodeUnderTest) -> float:
    """Return the seconds of CPU of q and k of one token, the least of five; 0 where it raises."""
    if code.seen.cost is None:
        rotator, given, taken = code.rotator(), given_vectors(code, 1), list[float]()

        def calls() -> list[Both]:
            for _ in range(5):
                began = time.process_time()
                rotator.rotate_both(*given, np.array([code.up_to - 1], dtype=np.int64))
                taken.append(time.process_time() - began)
            return []

        with contextlib.suppress(Exception):  # whatever other people's code raises: the checks will see it
            rotator.together(calls, "a row of calls")
        code.seen.cost = min(taken, default=0.0)
    return code.seen.cost
