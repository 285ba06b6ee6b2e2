"""Code whose frequencies follow the length of each call, as those of dynamic and longrope in transformers do.

Other code holds the frequencies of one length, whatever a call's is. A call's length is its largest
position + 1; the border is the length before the extension, up to which frequencies are the same.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.conformance.agreement import given_vectors
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import PAIR, Finding, noted, of_worst_pair
from ropeaudit.errors import RopeAuditError
from ropeaudit.recognition import variants, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.subjects import exact_rotation
from ropeaudit.subjects.calling.code import Rotator

_NAME = "frequency switch"
_TOKENS = 64  # before the border, and behind it
_AWAY = 8  # tokens from the border to where a short call ends: code may be off by one there
_NEARER = 0.5  # of the distance to the frequencies of the other length


def followed(code: CodeUnderTest) -> bool:
    """Return whether frequencies follow the length of each call, as far as two calls show.

    Both begin with the same tokens, and one is longer than the border: it rotates those otherwise, and at
    least one of the two is near the frequencies for its own length. What raises shows nothing.
    """
    border = code.setting.scaling.length_before or 0
    if not code.setting.scaling.depends_on_length or not 0 < border < code.up_to:
        return False
    if code.tested.refusal(code.setting, code.dtype):
        return False
    first, ends = _around(code, border - min(_AWAY, border // 2), border)
    try:
        given, short, long = _rotated(code, [code.afresh(), code.afresh()], first, ends)
    except RopeAuditError:
        raise
    except Exception:  # whatever other people's code raises: the checks will see it
        return False
    at = np.arange(first, ends[0], dtype=np.int64)
    expected = [exact_rotation.rotated(given, at, code.setting.for_positions(end)) for end in ends]
    near = [[_rms(one - exact) for exact in expected] for one in (short, long)]
    own = [near[0][0] < _NEARER * near[0][1], near[1][1] < _NEARER * near[1][0]]
    return any(own) and _rms(long - short) > _NEARER * _rms(expected[1] - expected[0])


def switch(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether frequencies become others behind the border alone, and what cached keys are then.

    Nothing of code that holds the frequencies of one length.
    """
    border = code.setting.scaling.length_before
    if not code.each_call or not border:
        return
    worst, rotator = Places(-1.0, "q", 0, 0, 0, 0), code.rotator()
    ends = [end for end in (border - 1, border, border + 1, border) if 0 < end <= code.up_to]

    def made(end: int, most: int) -> CalledBlock:
        length = min(most, end)
        q, k = given_vectors(code, length)
        at = np.arange(end - length, end, dtype=np.int64)
        return CalledBlock(at, (q, k), rotator.rotate_both(q, k, at))

    def judge(call: tuple[int, int], explain: bool) -> Places:
        return code.judged(rotator, [made(*call)], explain=explain)

    calls = list(itertools.product(ends, (_TOKENS, 1)))
    for number, call in enumerate(calls):
        block = made(*call)
        placed = code.judged(rotator, [block])
        worst = max(worst, placed, key=lambda places: places.excess)
        if not placed.excess <= 1:
            other = _misplaced(code, block, border)
            worst = replace(placed, diagnosis=other) if other else placed
            worst = verification.with_other_side(worst, judge, calls[number + 1 :])
            break
    told = f"calls of {', '.join(f'{end:,}' for end in ends)} positions"
    yield of_worst_pair(_NAME, f"{told}: up to {_TOKENS} tokens at their ends, and the last alone", worst)
    if worst.excess <= 1:
        yield _cached(code, border)


def _misplaced(code: CodeUnderTest, block: CalledBlock, border: int) -> Diagnosis | None:
    """Return that a call near the border has the divisors of the other side; None where it has not."""
    own = code.setting_at(block.at)
    other = next(
        one for one in map(code.setting.for_positions, (border, border + 1)) if one.length != own.length
    )
    sides = zip(block.given, block.rotated, strict=True)
    over = [verification.excess(x, y, block.rows(), other, code.dtype, code.rule) for x, y in sides]
    found = variants.of_other(own, other, 1.0).diagnosis
    if found is None or own.scaling.kind != "longrope" or not all((one <= 1).all() for one in over):
        return None
    return replace(found, certainty="in this call")


def _cached(code: CodeUnderTest, border: int) -> Finding:
    """Return by how much keys that were cached before the border differ from those of a call across it."""
    first, ends = _around(code, border, border)
    given, short, long = _rotated(code, [code.rotator(), code.rotator()], first, ends)
    pairs = [np.abs(exact_rotation.complex_pairs(one, code.setting)) for one in (long - short, given)]
    apart = float((pairs[0] / np.maximum(pairs[1], 1e-30)).max())
    then = " and each further position changes them again" * (code.setting.scaling.kind == "dynamic")
    detail = (
        f"keys that were cached before position {border:,} was reached were rotated with other frequencies "
        f"than calls that reach it use{then}: the {border - first} tokens before it by up to {apart:.3g} of "
        f"the pair, so that decoding or prefilling in pieces across position {border:,} does not give what "
        "one whole call gives; code that holds the frequencies of one length has no such switch"
    )
    return noted(_NAME, detail, measured=apart, unit=PAIR, where=f"from position {border:,} on")


def _around(code: CodeUnderTest, end: int, border: int) -> tuple[int, tuple[int, int]]:
    """Return the first position of a run up to an end, and that end and one behind the border."""
    return max(0, end - _TOKENS), (end, min(border + _TOKENS, code.up_to))


def _rotated(
    code: CodeUnderTest, rotators: list[Rotator], first: int, ends: tuple[int, int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return k of a run up to the first end, and as calls up to each end rotate it, in float64."""
    q, k = given_vectors(code, ends[-1] - first)
    shared, results = ends[0] - first, list[FloatArray]()
    for rotator, end in zip(rotators, ends, strict=True):
        at = np.arange(first, end, dtype=np.int64)
        _, rotated = rotator.rotate_both(q[:, :, : at.size], k[:, :, : at.size], at)
        results.append(rotated[:, :, :shared].astype(np.float64))
    return k[:, :, :shared].astype(np.float64), results[0], results[1]


def _rms(x: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.abs(x) ** 2)))
