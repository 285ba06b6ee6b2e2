"""The report of `limit`: answers, rows, and evidence of measurements and proofs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits.cases import USUAL_MAXIMUM
from ropeaudit.features.limit.analysis import RELATIVE, Limit
from ropeaudit.recognition.diagnosis import NO_CAUSE
from ropeaudit.reports import Report, drift, settings, tabulated, verdicts
from ropeaudit.reports.answers import STATUSES, Answer, Cause, Status
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.runtime.columns import table

SCHEMA = 2
COLUMNS = table("limit")


def row(limit: Limit) -> dict[str, Any]:
    """Return the row of a limit."""
    zero, frequencies = limit.at_zero, "shifted" if limit.changing else "fixed"
    values = {name: getattr(limit, name) for name in COLUMNS if hasattr(limit, name)}
    for name, record in (("zero", zero), ("measured", limit.at_measured), ("failure", limit.at_failure)):
        values[f"value_at_{name}"] = None if record is None else getattr(record, limit.tolerance.column)
    values |= {name: getattr(zero, name) for name in ("implementation", "dtype", "device", *settings.NAMES)}
    values |= {
        "schema": SCHEMA,
        "frequencies": "unshifted" if limit.frozen else frequencies,
        "maximum": limit.case.maximum,
        "tolerance_column": limit.tolerance.column,
        "tolerance": limit.tolerance.value,
        "measured_offsets": limit.boundary.held,
        "proved_position": limit.last_position(limit.proved_up_to),
        "measured_position": limit.last_position(limit.measured_up_to),
        "failure_position": limit.last_position(limit.first_failure_seen),
        "evaluated": limit.boundary.tested,
        "measured_distances": limit.distances.held if limit.distances else None,
        "value_at_distance": limit.at_distance,
    }
    return {name: values[name] for name in COLUMNS}


def report(
    results: Sequence[Limit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` are those to show."""
    rows = [row(result) for result in results]
    subject, dtype, *others = COLUMNS.screen(rows)
    screen = settings.screen(rows, [subject, dtype], others)
    some = [answer(results, rows)] if results else []
    failing = [limit.at_failure for limit in results if limit.at_failure is not None]
    findings = dict.fromkeys(text for limit in results for text in limit.findings)
    notes = [*model_notes([limit.case for limit in results]), *findings]
    return tabulated(
        *(COLUMNS, SCHEMA, rows, screen, columns, metadata, some),
        dispensable=settings.dispensable(screen, COLUMNS.dispensable),
        notes=[*notes, *verdicts.notes(failing, lambda record: {})],
        brief=not columns,
    )


def answer(limits: Sequence[Limit], rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the answer about one limit, or a line for each of several, worst first."""
    shared, own = settings.shared_and_own(rows, ("model", "implementation", "dtype"))
    tolerances = dict.fromkeys(str(one.tolerance) for one in limits)
    if len(tolerances) > 1:
        own = [f"{name}, {one.tolerance}".removeprefix(", ") for name, one in zip(own, limits, strict=True)]
    every = sorted(zip(limits, own, strict=True), key=lambda one: _sort_key(one[0]))
    worst, name = every[0]
    facts, around = [("tolerance", "; ".join(tolerances))], _context_facts(worst, limits, rows)
    if len(limits) == 1:
        judged = status(worst) == "FAIL" and not worst.misplaced
        judged = judged and worst.at_zero.verdict != "refused"
        decides = range_words(worst) + (f" (tolerance {worst.tolerance})" if judged else "")
        return Answer(status(worst), shared, decides, _causes(worst), [*facts, *evidence(worst), *around])
    facts += settings.listed([(label, f"{status(one)}  {range_words(one)}") for one, label in every])
    counts = Counter(status(one) for one, _ in every)
    decides = ", ".join(f"{count} {word}" for word, count in counts.items())
    if not (worst.first_failure_seen is None and worst.failing_distance is None):
        decides += f"; worst: {name}, {first_failure(worst)}"
    target = ", ".join(filter(None, [shared, f"{len(limits)} cases"]))
    return Answer(status(worst), target, decides, _causes(worst), [*facts, *around])


def status(limit: Limit) -> Status:
    """Return the status within the model's maximum, else within `USUAL_MAXIMUM`."""
    failing, maximum = limit.last_position(limit.first_failure_seen), limit.case.maximum
    early = failing is not None and failing < (maximum or USUAL_MAXIMUM)
    if limit.fails_at_zero or limit.standing == "fails" or (early and limit.misplaced):
        return "FAIL"
    short = limit.standing in ("partly", "unjudged")
    if maximum is None:
        short = early or limit.failing_distance is not None
    return "WARN" if limit.misplaced or short else "OK"


def _sort_key(limit: Limit) -> tuple[int, float]:
    """Sort the worst first: by status, then by the first failure."""
    failing = (limit.last_position(limit.first_failure_seen), limit.failing_distance)
    last = min(
        (place / (limit.case.maximum or 1) for place in failing if place is not None), default=math.inf
    )
    return list(STATUSES).index(status(limit)), last


def range_words(limit: Limit) -> str:
    """Return a clause about the good offsets and distances of a limit, or its first failure."""
    tests, maximum, apart = limit.boundary, limit.case.maximum or 0, limit.distances
    if status(limit) == "FAIL":
        if limit.at_zero.verdict == "refused":
            return f"it cannot be called: {printable(limit.at_zero.why)}"
        within = f", of {maximum:,} positions" if limit.standing == "fails" else ""
        return f"{first_failure(limit)}{within}"
    far = ""
    if apart is not None and apart.failing is None:
        far = f" and {counted(apart.held, 'distance')} to {apart.held_up_to:,}"
    if limit.misplaced:
        return f"{first_failure(limit)}; no failure in {counted(tests.held, 'tested offset')} below it"
    if limit.standing == "holds":
        over = ratio_words(limit.proved_margin)
        over = f", {over} times over," if over else ""
        return f"within tolerance at every offset of all {maximum:,} positions{over}{far}"
    fails = "" if tests.failing is None or limit.frozen else f"; fails at {tests.failing:,}"
    first = f"{first_failing_distance(limit)}; " if limit.failing_distance is not None else ""
    if tests.exhaustive:
        return f"{first}within tolerance at every offset to {tests.proved:,}{far}{fails}"
    reach = {"partly": f", short of its {maximum:,} positions", "unseen": ", all it serves"}
    clause = reach.get(limit.standing, "")
    if limit.frozen:
        clause = f", all at frequencies of {limit.at_zero.length:,} positions"
    elif over := ratio_words(limit.margin):
        clause, fails = f", {over} times its {maximum:,} positions", ""
    comma = "," if clause and far else ""
    seen = counted(tests.held, "tested offset")
    return f"{first}no failure in {seen} to {tests.held_up_to:,}{clause}{comma}{far}{fails}"


def sentence(limit: Limit) -> str:
    """Return a limit with its evidence as a sentence without a full stop."""
    return "; ".join(
        [range_words(limit), *(f"{label} {text}" for label, text in evidence(limit) if label != "tested")]
    )


def evidence(limit: Limit) -> list[tuple[str, str]]:
    """Return the evidence as facts: tests, failures and proofs."""
    tests, proved, bound = limit.boundary, limit.proved_up_to, limit.bound_up_to
    if limit.fails_at_zero:
        return []
    facts = [
        ("tested", f"{counted(tests.held, 'offset')} to {_offset_words(limit, tests.held_up_to)}: none fails")
    ]
    if tests.failing is not None:
        label = "first failure" if tests.exhaustive else "failure seen"
        facts.append((label, f"offset {_offset_words(limit, tests.failing)}: {failure_value(limit)}"))
    if limit.distances is not None:
        measured = (
            f"{counted(limit.distances.held, 'distance')} to {limit.distances.held_up_to:,}: none fails"
        )
        facts.append(("distance", "; ".join(filter(None, [measured, first_failing_distance(limit)]))))
    if proved is None:
        return [*facts, ("proven", "nothing: this is code, and not every offset was measured")]
    if proved == 0:
        return [*facts, ("proven", "offset 0 only")]
    how = "all measured" if bound is None else f"by bound to {bound:,}, later ones measured"
    how = "by bound" if limit.proof == "bound" else how
    return [*facts, ("proven", f"every offset to {proved:,} ({how})")]


def _offset_words(limit: Limit, offset: int) -> str:
    return f"{offset:,} (last position {limit.last_position(offset):,})"


def first_failure(limit: Limit) -> str:
    """Return the first failure in words: at an offset, or at a distance of query and key."""
    offset, distance = limit.first_failure_seen, limit.failing_distance
    if offset is not None and (distance is None or offset <= distance):
        return f"{failure_value(limit)} at offset {offset:,}"
    return first_failing_distance(limit)


def first_failing_distance(limit: Limit) -> str:
    """Return the value at the first failing distance; empty if none fails."""
    distance, value = limit.failing_distance, limit.at_distance
    if distance is None or value is None:
        return ""
    words = "scores are nan or infinite" if math.isnan(value) else _value(limit, value)
    return f"{words} at distance {distance:,}"


def failure_value(limit: Limit) -> str:
    """Return the value at the first failing offset, in enough digits."""
    record, column = limit.at_failure, limit.tolerance.column
    if record is None:
        return ""
    if record.verdict == "refused":
        return f"refused: {printable(record.why)}"
    value = float(getattr(record, column))
    if limit.misplaced:
        by = "" if limit.tolerance.accepts(value) else f", {_value(limit, value)}"
        return f"rotates wrongly{by}"
    if math.isnan(value) and record.nonfinite:
        return f"{record.nonfinite:,} of {record.scores:,} scores are nan or infinite"
    if math.isnan(value):
        return f"{column} is not defined"
    return _value(limit, value)


def _value(limit: Limit, value: float) -> str:
    if (column := limit.tolerance.column) == RELATIVE:
        return verdicts.distinct_percent(value, limit.tolerance.value)
    text = f"{value:.4g}"
    return f"{column} {value if float(text) == limit.tolerance.value else text}"


def ratio_words(margin: float | None) -> str:
    """Return a ratio rounded down to a whole number, below 10 to a tenth; empty below 1.1.

    >>> ratio_words(1.09), ratio_words(9.87), ratio_words(157.1)
    ('', '9.8', '157')
    """
    if margin is None or margin < 1.1:
        return ""
    return f"{math.floor(margin):,}" if margin >= 10 else f"{math.floor(10 * margin) / 10:.1f}"


def _causes(limit: Limit) -> list[Cause]:
    record = limit.at_failure
    if record is None or not limit.misplaced or not record.diagnosis:
        return []
    title = record.diagnosis if record.diagnosis in NO_CAUSE else printable(record.resembles or "")
    facts = [f"at offset {record.offset:,} it {verdicts.wrong_rotation(record).partition('; ')[0]}"]
    return [Cause(record.diagnosis, title, facts=facts, warning=status(limit) != "FAIL")]


def _context_facts(
    worst: Limit,
    limits: Sequence[Limit],
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[str, str]]:
    zero, record, facts = worst.at_zero, worst.at_failure, list[tuple[str, str]]()
    if worst.findings and len(limits) == 1:
        facts.append(("called as", worst.findings[0].rpartition(": called as ")[2]))
    if record is not None and not worst.misplaced and record.verdict != "refused":
        facts += [("why", text) for text in verdicts.notes([record], lambda _: {})]
    seen = [record, *(limit.at_measured for limit in limits)]
    facts += drift.structure_fact([record for record in seen if record is not None])
    facts += settings.facts(rows)
    gaps = []
    if not all(limit.boundary.exhaustive for limit in limits):
        gaps.append("offsets between those tested: one may fail")
    if worst.frozen:
        gaps.append(f"other frequencies than those of {zero.length:,} positions (--length shifted)")
    elif worst.case.maximum is not None and worst.within is None:
        gaps.append(f"its {worst.case.maximum:,} positions: the sequence is longer")
    if any(limit.distances is None and status(limit) != "FAIL" for limit in limits):
        gaps.append(f"distances over {zero.seq_len - 1}: --seq-len")
    elif not all(limit.distances.exhaustive for limit in limits if limit.distances):
        gaps.append("distances between those tested, and at other offsets")
    gaps.append("other q and k")
    command = f"check {zero.implementation}"
    if worst.called:
        gaps.append(f"other calls, such as one token: ropeaudit {command}")
    else:
        recipe = zero.implementation.partition("[")[0]
        command = f"explain --recipe {recipe} --offset {worst.first_failure_seen} (same options)"
        if first_failure(worst) == first_failing_distance(worst):
            command = f"decay --recipe {recipe} --dtype {zero.dtype} (same options)"
    cause = f"ropeaudit {command};  " if status(worst) == "FAIL" else ""
    return [*facts, ("not checked", "; ".join(gaps)), ("next", f"{cause}all columns: -v")]
