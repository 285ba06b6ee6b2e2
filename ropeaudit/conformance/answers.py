"""What a call does beside rotating: to its input, and the dtype of what it returns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.arithmetic.formats import Format, parse
from ropeaudit.conformance.agreement import given_vectors
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted
from ropeaudit.errors import RopeAuditError
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.calling.conventions import Answer
from ropeaudit.subjects.calling.foreign import ForeignRotator

_LENGTH, _FIRST = 64, 1  # position 0 shows nothing: it is not rotated


def inputs_unchanged(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether all that is given is afterwards what it was; q and k may be what is returned."""
    answer = answer_of(code)
    if answer is None:
        yield not_applicable("inputs", "an adapter calls it, with arrays of its own")
    elif answer.changed_beside:
        yield judged(
            "inputs", False, f"it changes the {' and '.join(answer.changed_beside)} that it is given"
        )
    elif not answer.changed and (calls := code.own.overwritten if code.own else []):
        told = f"it changes its input in some calls, and returns another array: such as {calls[0]}"
        yield judged("inputs", False, told)
    elif not answer.changed:
        yield judged("inputs", True, "what it is given is afterwards as before")
    elif answer.in_place:
        yield judged("inputs", True, "it rotates its input where it lies, and returns that or nothing")
    else:
        yield judged("inputs", False, "it changes its input, and returns another array")


def keys(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield that k is not seen, where code takes it and returns q alone; nothing elsewhere."""
    answer = answer_of(code)
    if answer is not None and answer.keys is None and code.takes_keys():
        yield noted("keys", "it takes k and returns q alone: what it does to k was not seen")


def output_dtype(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether what is returned has the dtype of what is given.

    Another one fails: a narrower loses digits or range; a wider loses nothing, but makes all that follows
    wider, and attention wants q, k and v in one dtype.
    """
    answer = answer_of(code)
    if answer is None:
        yield not_applicable("dtype", "an adapter calls it, and hands on numbers alone")
        return
    if code.composed:
        yield not_applicable("dtype", "it returns cos and sin, which are applied here")
        return
    given, returned = torch_arrays.spelled(code.dtype), answer.dtype
    if returned != answer.keys_dtype:
        yield judged("dtype", False, f"q comes back in {returned} and k in {answer.keys_dtype}, for {given}")
    elif returned == given:
        own, tables = code.own, ""
        if own is not None and own.narrow_tables(code.setting, code.dtype):
            tables = f" where tables are given in {given}; with float32 ones float32 comes back"
        yield judged("dtype", True, f"{given} comes back in {given}{tables}")
    else:
        wider = _holds(returned, code.dtype)
        lost = "loses nothing, but is not the dtype of v" if wider else "does not hold every number of it"
        yield judged("dtype", False, f"{given} comes back in {returned}, which {lost}")


def answer_of(code: CodeUnderTest) -> Answer | None:
    """Return what one call came to; None where an adapter makes it."""
    if not code.seen.answers:
        length = min(_LENGTH, code.up_to)
        rotator = code.seen.rotators.get(length) or code.rotator()
        q, k = given_vectors(code, length)
        at = np.arange(length, dtype=np.int64) + min(_FIRST, code.up_to - length)
        code.seen.answers.append(rotator.answer(q, k, at) if isinstance(rotator, ForeignRotator) else None)
    return code.seen.answers[0]


def _holds(returned: str, dtype: Format) -> bool:
    """Return whether a format, by its name, holds every number of a dtype."""
    try:
        wide = parse(returned.removesuffix("fn"))
    except RopeAuditError:
        return False
    return (
        wide.precision >= dtype.precision
        and wide.largest >= dtype.largest
        and wide.smallest_subnormal <= dtype.smallest_subnormal
    )
