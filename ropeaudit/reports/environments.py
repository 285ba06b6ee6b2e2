"""What environments change of code: why, from where, and where it is worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from ropeaudit.arithmetic.formats import Format
from ropeaudit.audits.records import IDENTITY, Record
from ropeaudit.audits.sweep import Audit
from ropeaudit.reports import verdicts
from ropeaudit.reports.numbers import percent, printable
from ropeaudit.subjects.calling import exposure
from ropeaudit.subjects.calling.code import Code

_SAME = 1.05  # times the clean drift: what differs less is no change
_CASE = tuple(name for name in IDENTITY if name not in ("environment", "case"))


def environment_notes(audit: Audit, results: Sequence[Record]) -> list[str]:
    """Return what environments make worse; code is called again to see why."""
    case = attrgetter(*_CASE)
    clean = {repr(case(record)): record for record in results if record.environment == "none"}
    groups: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    for record in results:
        beside = clean.get(repr(case(record)))
        if beside is None or record.verdict == "refused" or not verdicts.under(record.environment):
            continue
        if _worse(record, beside):
            key = record.implementation, str(record.environment)
            groups.setdefault(key, []).append((record, beside))
    return [
        printable(f"{subject} under {environment}: {_change(audit, worse)}.")
        for (subject, environment), worse in groups.items()
    ]


def _worse(record: Record, clean: Record) -> bool:
    """Return whether a row is worse than the clean one."""
    if record.nonfinite > clean.nonfinite or record.distinct_positions < clean.distinct_positions:
        return True
    return record.drift_rms > _SAME * clean.drift_rms + record.reference_error


def _change(audit: Audit, worse: Sequence[tuple[Record, Record]]) -> str:
    """Return the cause, and what it comes to where it begins and where it is worst."""
    first = next((pair for pair in worse if verdicts.bad(verdicts.columns(pair[0]))), worse[0])
    sizes = [math.inf if math.isnan(one.drift_relative) else one.drift_relative for one, _ in worse]
    worst = worse[sizes.index(max(sizes))]
    code, dtype = _called(audit, worst[0])
    reason = exposure.cause(code, worst[0].setting, dtype)
    shown = [first, *([worst] if worst[0] is not first[0] else [])]
    return ": ".join(filter(None, [reason, "; ".join(_clause(audit, *pair) for pair in shown)]))


def _clause(audit: Audit, record: Record, clean: Record) -> str:
    """Return what is left of the rotation in a row, and how far its scores drift."""
    code, dtype = _called(audit, record)
    sizes = (record.drift_relative, clean.drift_relative)
    drifts = [percent(size) if math.isfinite(size) else "nan or infinity" for size in sizes]
    drift = f"scores drift by {drifts[0]} (clean: {drifts[1]})"
    measured, _ = exposure.consequence(code, record.setting, dtype, record.offset, record.seq_len)
    return f"in {record.dtype} {f'{measured}, ' if measured else f'at offset {record.offset} '}{drift}"


def _called(audit: Audit, record: Record) -> tuple[Code, Format]:
    """Return what a row called, and its dtype."""
    wanted = record.implementation, record.dtype, record.environment
    every = ((one.code, one) for one in audit.factories())
    return next(
        (code, one.dtype)
        for code, one in every
        if code is not None and (one.name, one.dtype.name, one.environment) == wanted
    )
