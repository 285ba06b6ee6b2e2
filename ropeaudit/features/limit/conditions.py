"""--fail-if of limits: conditions on their columns, where a limit that nothing limits is the best one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ropeaudit.console import gates
from ropeaudit.console.gates import Gate, Row
from ropeaudit.errors import UsageError
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.features.limit.report import COLUMNS

# undefined where no failure was seen: then a condition on them does not hold
OF_FAILURE = ("first_failure_seen", "first_failure", "failure_position", "value_at_failure")
_OFFSETS = ("first_failure_seen", "first_failure")
_EXAMPLE = "first_failure_seen<131072"


def parse(texts: Iterable[str], up_to: int | None) -> list[Gate]:
    """Read conditions on columns of limits. up_to: the largest offset that is looked at, if it is known.

    Raises: UsageError, UnknownName; UsageError also for a failure below an offset up to which none is looked
    for: what is not looked at cannot be seen to fail.
    """
    conditions = [gates.parse(text, columns=COLUMNS, example=_EXAMPLE) for text in texts]
    for gate in conditions:
        last = gate.bound if gate.sign == "<=" else gate.bound - 1
        if up_to is not None and gate.sign in ("<", "<=") and gate.column in _OFFSETS and last > up_to:
            raise UsageError(
                f"--fail-if '{gate}': offsets are looked at up to {up_to} alone; try --up-to {_ceiling(last)}"
            )
    return conditions


def _ceiling(value: float) -> str:
    return str(math.ceil(value)) if math.isfinite(value) else "an offset and a condition below it"


def broken(conditions: Sequence[Gate], limits: Iterable[Limit]) -> list[str]:
    """Return a line for every condition that some limit fulfils."""
    return gates.broken_by_rows(conditions, [COLUMNS.row(one) for one in limits], _nothing_failed)


def _nothing_failed(gate: Gate, row: Row) -> bool:
    """Return whether a condition is on a failure, and none was seen."""
    seen: Any = row["first_failure_seen"]
    return gate.column in OF_FAILURE and seen is None
