"""The report of `limit`: answers, rows, and evidence of measurements and proofs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.limit.analysis import CODE_UP_TO, RELATIVE, Limit
from ropeaudit.recognition.diagnosis import NO_CAUSE
from ropeaudit.reports import Report, drift, settings, tabulated, verdicts
from ropeaudit.reports.answers import STATUSES, Answer, Cause, Status
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.runtime.columns import table

SCHEMA = 2
COLUMNS = table("limit")


def row(one: Limit) -> dict[str, Any]:
    """Return the row of a limit."""
    zero, frequencies = one.at_zero, "shifted" if one.changing else "fixed"
    values = {name: getattr(one, name) for name in COLUMNS if hasattr(one, name)}
    for name, record in (("zero", zero), ("measured", one.at_measured), ("failure", one.at_failure)):
        values[f"value_at_{name}"] = None if record is None else getattr(record, one.tolerance.column)
    values |= {name: getattr(zero, name) for name in ("implementation", "dtype", "device", *settings.NAMES)}
    values |= {
        "schema": SCHEMA,
        "frequencies": "unshifted" if one.frozen else frequencies,
        "maximum": one.case.maximum,
        "tolerance_column": one.tolerance.column,
        "tolerance": one.tolerance.value,
        "measured_offsets": one.boundary.held,
        "proved_position": one.last_position(one.proved_up_to),
        "measured_position": one.last_position(one.measured_up_to),
        "failure_position": one.last_position(one.first_failure_seen),
        "evaluated": one.boundary.tested,
        "measured_distances": one.distances.held if one.distances else None,
        "value_at_distance": one.at_distance,
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
    failing = [one.at_failure for one in results if one.at_failure is not None]
    findings = dict.fromkeys(text for one in results for text in one.findings)
    notes = [*model_notes([one.case for one in results]), *findings]
    return tabulated(
        *(COLUMNS, SCHEMA, rows, screen, columns, metadata, some),
        dispensable=settings.dispensable(screen, COLUMNS.dispensable),
        notes=[*notes, *verdicts.notes(failing, lambda record: {})],
        brief=not columns,
    )


def answer(limits: Sequence[Limit], rows: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the answer about limits: all about one, a line for each of several, the worst first."""
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


def status(one: Limit) -> Status:
    """Return the status within the model's maximum, else within `CODE_UP_TO`."""
    failing, maximum = one.last_position(one.first_failure_seen), one.case.maximum
    early = failing is not None and failing < (maximum or CODE_UP_TO)
    if one.fails_at_zero or one.standing == "fails" or (early and one.misplaced):
        return "FAIL"
    short = one.standing in ("partly", "unjudged")
    if maximum is None:
        short = early or one.failing_distance is not None
    return "WARN" if one.misplaced or short else "OK"


def _sort_key(one: Limit) -> tuple[int, float]:
    """Return the sort key of a limit, the worst first: status, then the first failure."""
    failing = (one.last_position(one.first_failure_seen), one.failing_distance)
    last = min((place / (one.case.maximum or 1) for place in failing if place is not None), default=math.inf)
    return list(STATUSES).index(status(one)), last


def range_words(one: Limit) -> str:
    """Return a clause about the good offsets and distances of a limit, or its first failure."""
    tests, maximum, apart = one.boundary, one.case.maximum or 0, one.distances
    if status(one) == "FAIL":
        if one.at_zero.verdict == "refused":
            return f"it cannot be called: {printable(one.at_zero.why)}"
        within = f", of {maximum:,} positions" if one.standing == "fails" else ""
        return f"{first_failure(one)}{within}"
    far = ""
    if apart is not None and apart.failing is None:
        far = f" and {counted(apart.held, 'distance')} to {apart.held_up_to:,}"
    if one.misplaced:
        return f"{first_failure(one)}; no failure in {counted(tests.held, 'tested offset')} below it"
    if one.standing == "holds":
        over = ratio_words(one.proved_margin)
        over = f", {over} times over," if over else ""
        return f"within tolerance at every offset of all {maximum:,} positions{over}{far}"
    fails = "" if tests.failing is None or one.frozen else f"; fails at {tests.failing:,}"
    first = f"{first_failing_distance(one)}; " if one.failing_distance is not None else ""
    if tests.exhaustive:
        return f"{first}within tolerance at every offset to {tests.proved:,}{far}{fails}"
    reach = {"partly": f", short of its {maximum:,} positions", "unseen": ", all it serves"}
    clause = reach.get(one.standing, "")
    if one.frozen:
        clause = f", all at frequencies of {one.at_zero.length:,} positions"
    elif over := ratio_words(one.margin):
        clause, fails = f", {over} times its {maximum:,} positions", ""
    comma = "," if clause and far else ""
    seen = counted(tests.held, "tested offset")
    return f"{first}no failure in {seen} to {tests.held_up_to:,}{clause}{comma}{far}{fails}"


def sentence(one: Limit) -> str:
    """Return a limit with its evidence as a sentence without a full stop."""
    return "; ".join(
        [range_words(one), *(f"{label} {text}" for label, text in evidence(one) if label != "tested")]
    )


def evidence(one: Limit) -> list[tuple[str, str]]:
    """Return the evidence as facts: tests, failures and proofs."""
    tests, proved, bound = one.boundary, one.proved_up_to, one.bound_up_to
    if one.fails_at_zero:
        return []
    facts = [
        ("tested", f"{counted(tests.held, 'offset')} to {_offset_words(one, tests.held_up_to)}: none fails")
    ]
    if tests.failing is not None:
        label = "first failure" if tests.exhaustive else "failure seen"
        facts.append((label, f"offset {_offset_words(one, tests.failing)}: {failure_value(one)}"))
    if one.distances is not None:
        measured = f"{counted(one.distances.held, 'distance')} to {one.distances.held_up_to:,}: none fails"
        facts.append(("distance", "; ".join(filter(None, [measured, first_failing_distance(one)]))))
    if proved is None:
        return [*facts, ("proven", "nothing: this is code, and not every offset was measured")]
    if proved == 0:
        return [*facts, ("proven", "offset 0 only")]
    how = "all measured" if bound is None else f"by bound to {bound:,}, later ones measured"
    how = "by bound" if one.proof == "bound" else how
    return [*facts, ("proven", f"every offset to {proved:,} ({how})")]


def _offset_words(one: Limit, offset: int) -> str:
    return f"{offset:,} (last position {one.last_position(offset):,})"


def first_failure(one: Limit) -> str:
    """Return the first failure in words: at an offset, or at a distance of query and key."""
    offset, distance = one.first_failure_seen, one.failing_distance
    if offset is not None and (distance is None or offset <= distance):
        return f"{failure_value(one)} at offset {offset:,}"
    return first_failing_distance(one)


def first_failing_distance(one: Limit) -> str:
    """Return the value at the first failing distance; empty if none fails."""
    distance, value = one.failing_distance, one.at_distance
    if distance is None or value is None:
        return ""
    words = "scores are nan or infinite" if math.isnan(value) else _value(one, value)
    return f"{words} at distance {distance:,}"


def failure_value(one: Limit) -> str:
    """Return the value at the first failing offset, with digits that differ from the tolerance."""
    record, column = one.at_failure, one.tolerance.column
    if record is None:
        return ""
    if record.verdict == "refused":
        return f"refused: {printable(record.why)}"
    value = float(getattr(record, column))
    if one.misplaced:
        by = "" if one.tolerance.accepts(value) else f", {_value(one, value)}"
        return f"rotates wrongly{by}"
    if math.isnan(value) and record.nonfinite:
        return f"{record.nonfinite:,} of {record.scores:,} scores are nan or infinite"
    if math.isnan(value):
        return f"{column} is not defined"
    return _value(one, value)


def _value(one: Limit, value: float) -> str:
    if (column := one.tolerance.column) == RELATIVE:
        return verdicts.distinct_percent(value, one.tolerance.value)
    text = f"{value:.4g}"
    return f"{column} {value if float(text) == one.tolerance.value else text}"


def ratio_words(margin: float | None) -> str:
    """Return a ratio rounded down to two digits; empty below 1.1.

    >>> ratio_words(1.09), ratio_words(9.87), ratio_words(157.1)
    ('', '9.8', '150')
    """
    if margin is None or margin < 1.1:
        return ""
    step = 10.0 ** (math.floor(math.log10(margin)) - 1)
    return f"{math.floor(margin / step) * step:,.{int(step < 1)}f}"


def _causes(one: Limit) -> list[Cause]:
    record = one.at_failure
    if record is None or not one.misplaced or not record.diagnosis:
        return []
    title = record.diagnosis if record.diagnosis in NO_CAUSE else printable(record.resembles or "")
    facts = [f"at offset {record.offset:,} it {verdicts.wrong_rotation(record).partition('; ')[0]}"]
    return [Cause(record.diagnosis, title, facts=facts, warning=status(one) != "FAIL")]


def _context_facts(
    one: Limit,
    limits: Sequence[Limit],
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[str, str]]:
    zero, record, facts = one.at_zero, one.at_failure, list[tuple[str, str]]()
    if one.findings and len(limits) == 1:
        facts.append(("called as", one.findings[0].rpartition(": called as ")[2]))
    if record is not None and not one.misplaced and record.verdict != "refused":
        facts += [("why", text) for text in verdicts.notes([record], lambda _: {})]
    seen = [record, *(limit.at_measured for limit in limits)]
    facts += drift.structure_fact([one for one in seen if one is not None])
    facts += settings.facts(rows)
    gaps = []
    if not all(limit.boundary.exhaustive for limit in limits):
        gaps.append("offsets between those tested: one may fail")
    if one.frozen:
        gaps.append(f"other frequencies than those of {zero.length:,} positions (--length shifted)")
    elif one.case.maximum is not None and one.within is None:
        gaps.append(f"its {one.case.maximum:,} positions: the sequence is longer")
    if any(limit.distances is None and status(limit) != "FAIL" for limit in limits):
        gaps.append(f"distances over {zero.seq_len - 1}: --seq-len")
    elif not all(limit.distances.exhaustive for limit in limits if limit.distances):
        gaps.append("distances between those tested, and at other offsets")
    gaps.append("other q and k")
    command = f"check {zero.implementation}"
    if one.called:
        gaps.append(f"other calls, such as one token: ropeaudit {command}")
    else:
        recipe = zero.implementation.partition("[")[0]
        command = f"explain --recipe {recipe} --offset {one.first_failure_seen} (same options)"
        if first_failure(one) == first_failing_distance(one):
            command = f"decay --recipe {recipe} --dtype {zero.dtype} (same options)"
    cause = f"ropeaudit {command};  " if status(one) == "FAIL" else ""
    return [*facts, ("not checked", "; ".join(gaps)), ("next", f"{cause}all columns: -v")]
