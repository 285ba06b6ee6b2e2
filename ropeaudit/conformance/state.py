"""Whether a call gives what it should after calls in another dtype, of another length, at another offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ropeaudit.arithmetic.formats import parse
from ropeaudit.conformance import earlier_calls
from ropeaudit.conformance.agreement import Agreement
from ropeaudit.conformance.batches import worst
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.earlier_calls import AuditCall, histories
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.conformance.whole_calls import called, given_vectors
from ropeaudit.errors import RopeAuditError
from ropeaudit.subjects.calling.implementation import Alike, Rotator, one_line
from ropeaudit.subjects.calling.own_rotator import OwnRotator

_LENGTH, _FIRST = 64, 1000
_DTYPES = ("fp32", "fp16", "bf16")


def state(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether a call is right after others on the same instance.

    What the code refuses before is left out, and said.
    """
    if not earlier_calls.reusable(code.implementation):
        yield not_applicable("state", "its instances cannot be called again")
        return
    length = min(_LENGTH, code.up_to)
    call = AuditCall(code.dtype, min(_FIRST, code.up_to - length), length)
    at = np.arange(length, dtype=np.int64) + call.first
    plain, seen, refused = called(code, code.afresh(), given_vectors(code, length), at), [], []
    for kind, before in histories(call, [parse(name) for name in _DTYPES]):
        if before.first + before.length > code.up_to:
            continue  # past the end of its table
        used = _called_before(code, before)
        words = f"after a call in {before.dtype.name} at positions {before.first} to "
        words += str(before.first + before.length - 1)
        if isinstance(used, str):
            refused.append(f"{kind}, {before.dtype.name}: {used}")
        else:
            form = Agreement(code, words, used, lambda: code.afresh())
            seen.append(form.take_all([plain]))
    if not seen:
        yield not_applicable("state", f"no other call works: {refused[0]}")
        return
    detail = f"positions {call.first} to {call.first + length - 1} after {len(seen)} other calls"
    if not earlier_calls.afresh(code.implementation, code.setting, code.dtype):
        detail += "; a function that is loaded once: what the first call of all left is not seen"
    yield worst(seen).finding("state", "; refused: ".join([detail, *refused]))


def _called_before(code: CodeUnderTest, before: AuditCall) -> Rotator | str:
    """Return an instance that was called, or what that raised."""
    if reason := code.implementation.refuses(code.setting, before.dtype):
        return reason
    try:
        if code.own is None:
            rotate = earlier_calls.instance(code.implementation, code.setting, code.dtype)
            earlier_calls.rotated(rotate, code.setting, before)
            return Alike(lambda x, at: rotate(x, at, code.dtype))
        rotator = code.afresh()
        q, k = (earlier_calls.given(code.setting, before, seed)[None] for seed in (code.seed, code.seed + 1))
        at = np.arange(before.length, dtype=np.int64) + before.first
        if isinstance(rotator, OwnRotator):
            replace(rotator, dtype=before.dtype).rotate_both(q, k, at)
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        return one_line(error)
    return rotator
