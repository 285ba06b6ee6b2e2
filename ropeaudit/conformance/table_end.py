"""Whether every position up to the last is taken at all, alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, judged, not_applicable
from ropeaudit.conformance.whole_calls import given_vectors
from ropeaudit.errors import RopeAuditError, one_line


def table_end(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether the last position is taken, and where not, up to which position its table reaches.

    A table that ends silently shows in `places`: there it is a wrong rotation.
    """
    last = code.up_to - 1
    reason = _raised(code, last)
    if not reason:
        yield judged("table end", True, f"a token at position {last} is taken")
        return
    if _raised(code, 0):
        yield not_applicable("table end", f"it takes no single token: {reason}")
        return
    taken, refused = 0, last
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if found := _raised(code, middle):
            refused, reason = middle, found
        else:
            taken = middle
    yield judged(
        "table end",
        False,
        f"a token at position {taken} is taken, one at {refused} is not: {reason}",
        measured=float(refused),
        allowed=float(code.up_to),
        unit="positions",
        where=f"position {refused}",
    )


def _raised(code: CodeUnderTest, position: int) -> str:
    """Return what a call of one token raises, of a new instance; empty where it raises nothing."""
    q, k = given_vectors(code, 1)
    try:
        code.rotator().rotate_both(q, k, np.array([position], dtype=np.int64))
    except RopeAuditError:
        raise
    except Exception as error:  # whatever other people's code raises
        return one_line(error)
    return ""
