"""All checks of code, in the order in which a reader meets them; a line each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator

from ropeaudit.conformance import every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding
from ropeaudit.errors import RopeAuditError
from ropeaudit.subjects.calling.implementation import one_line

CodeCheck = Callable[[CodeUnderTest], Iterable[Finding]]

# name of the first finding -> the check
CHECKS: dict[str, CodeCheck] = {
    "places": every_position.places,
    "short calls": every_position.short_calls,
    "batch rows": every_position.batch_rows,
}


def findings(
    code: CodeUnderTest, progress: Callable[[float], None] = lambda share: None
) -> Iterator[Finding]:
    """Yield what every check of some code came to; what it raises is a finding.

    progress gets the share that is done, from 0 to 1. Raises: UsageError and other errors of the request.
    """
    for done, (name, check) in enumerate(CHECKS.items()):
        progress(done / len(CHECKS))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield from check(code)
        except RopeAuditError:
            raise
        except Exception as error:  # whatever other people's code raises
            yield Finding(name, "fail", f"it raises {one_line(error)}")
