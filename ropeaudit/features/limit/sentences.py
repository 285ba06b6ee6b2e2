"""What is known of limits, in sentences: no more is claimed than was measured or proved.

"meets", "holds" and "fails" are said of offsets that were measured or proved; of others it is said
that no failure was seen, and in how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropeaudit.audits.records import Record
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.features.limit.tolerance import Tolerance
from ropeaudit.reports import drift_notes, verdicts
from ropeaudit.reports.numbers import counted, printable


def headline(limits: Sequence[Limit]) -> str:
    """Return the finding in a sentence or two: how many fail, and the one that fails first."""
    if not limits:
        return "No limit was looked for."
    if len(limits) == 1:
        return sentence(limits[0])
    with_maximum = [limit for limit in limits if limit.standing != "unjudged"]
    if with_maximum:
        more = len(limits) - len(with_maximum)
        rest = f" ({counted(more, 'more case')} not judged by a maximum)" if more else ""
        return _of_models(with_maximum, rest)
    seen = [limit for limit in limits if limit.first_failure_seen is not None]
    if seen:
        first = min(seen, key=lambda limit: limit.last_position(limit.first_failure_seen) or 0)
        return (
            f"A failure was measured in {len(seen)} of {len(limits)} cases; the earliest: {sentence(first)}"
        )
    none = "No failure was measured in any"
    if all(limit.boundary.exhaustive for limit in limits):
        fails = "failed" if any(limit.called for limit in limits) else "fails"
        none = f"No offset up to {min(limit.up_to for limit in limits):,} {fails} in any"
    return f"{none} of {len(limits)} cases; the first of them: {sentence(limits[0])}"


def _of_models(with_maximum: Sequence[Limit], rest: str) -> str:
    """Return how models stand within the positions that they are made for."""
    single = len({limit.at_zero.model for limit in with_maximum}) == len(with_maximum)
    noun, own = ("model", "own ") if single else ("case", "model's ")
    failing = [limit for limit in with_maximum if limit.standing == "fails"]
    if failing:
        first = min(failing, key=lambda limit: (limit.first_failure_seen or 0, _of_maximum(limit)))
        verb = "does not hold through its" if len(failing) == 1 else "do not hold through their"
        text = f"{len(failing)} of {counted(len(with_maximum), noun)} {verb} {own}maximum{rest}"
        return f"{text}; the earliest failure: {sentence(first)}"
    least = min(with_maximum, key=lambda limit: limit.margin or 0.0)
    many = counted(len(with_maximum), noun)
    if all(limit.standing == "holds" for limit in with_maximum):
        verb = "holds through its" if len(with_maximum) == 1 else "hold through their"
        text = f"{len(with_maximum)} of {many} {verb} {own}maximum{rest}"
    elif all(limit.standing in ("holds", "unseen") for limit in with_maximum):
        text = f"No failure was seen within the maximum in any of {many}{rest}"
    else:
        short = sum(1 for limit in with_maximum if limit.standing == "partly")
        text = f"No failure was seen within the maximum in any of {many}{rest}, but {short} "
        text += f"{'was' if short == 1 else 'were'} not measured up to it"
    return f"{text}; the smallest margin: {sentence(least)}"


def sentence(limit: Limit) -> str:
    """Return what is known of one limit."""
    who, tolerance = _who(limit), limit.tolerance
    if limit.fails_at_zero:
        if limit.at_zero.verdict == "refused":
            return f"{who} cannot be called: {printable(limit.at_zero.why)}."
        return f"{who} does not meet {tolerance} at offset 0 already: {_value(limit)}{_aside(limit)}."
    if limit.standing == "fails":
        failing = limit.first_failure_seen
        return (
            f"{who} does not hold {tolerance} through its {limit.case.maximum:,} positions: at offset "
            f"{_place(limit, failing or 0)} {_value(limit)}; {_before(limit)}."
        )
    if limit.standing == "holds":
        times = _times(limit.proved_margin)
        over = f", {times} times over" if times else ""
        verb = "held" if limit.called else "holds"
        text = f"{who} {verb} {tolerance} through all {limit.case.maximum:,} positions{over}"
        return f"{text}: {_proved(limit)}{_beyond(limit)}."
    if limit.boundary.exhaustive:
        meets, fails = ("met", "failed") if limit.called else ("meets", "fails")
        text = f"{who} {meets} {tolerance} at every offset up to {_place(limit, limit.proved_up_to or 0)}"
        text += _aside(limit)
        if limit.first_failure_seen is None:
            return f"{text}."
        return f"{text} and {fails} at offset {limit.first_failure_seen:,}: {_value(limit)}."
    times = _times(limit.margin)
    over = f", {times} times its {limit.case.maximum:,} positions" if times and limit.within else ""
    text = f"{who}: no failure of {tolerance} seen in {_measured(limit)}{over}{_aside(limit)}"
    proof = "" if limit.called else f"; {_proved(limit)}"
    return f"{text}{proof}{_failure(limit)}."


def notes(limits: Sequence[Limit]) -> list[str]:
    """Return what the reader must know: models that fall short, remedies, frequencies that change."""
    texts, shown = [text for limit in limits for text in limit.findings], list[Record]()
    for name in dict.fromkeys(limit.at_zero.implementation for limit in limits if limit.called):
        texts.append(
            f"{name} is code: what it does was measured, in these calls and on these q and k, and no bound "
            "proves anything of it; scores are formed in float64."
        )
    for limit in limits:
        failing = limit.at_failure
        if limit.standing == "fails" and failing is not None:
            texts.append(
                f"{failing.model}: made for {limit.case.maximum:,} positions; {failing.implementation} in "
                f"{failing.dtype} fails {limit.tolerance} at offset {_place(limit, failing.offset)}."
            )
        if failing is not None and (text := verdicts.note(failing)):
            texts.append(text)
        shown += [record for record in (limit.at_measured, failing) if record is not None]
    texts += [
        f"scaling {record.scaling.partition(':')[0]} depends on the length: every offset is judged by exact "
        "scores with its own frequencies; what new frequencies do to those scores is not drift."
        for record in shown
        if record.length is not None and record.structural_max > 0
    ]
    return list(
        dict.fromkeys([*texts, *drift_notes.structure_notes(shown, any(limit.frozen for limit in limits))])
    )


def _who(limit: Limit) -> str:
    zero = limit.at_zero
    model = "" if zero.model == "none" else f" ({zero.model})"
    return f"{zero.implementation} in {zero.dtype}{model} on {counted(zero.seq_len, 'token')}"


def _aside(limit: Limit) -> str:
    """Return why a model is not judged by the positions that it is made for."""
    maximum, zero = limit.case.maximum, limit.at_zero
    if limit.frozen:
        unchanged = f" (with the frequencies of {zero.length:,} positions at every offset"
        return f"{unchanged}; --length shifted lets them change)"
    if maximum is not None and limit.within is None:
        return f" (a longer sequence than the {counted(maximum, 'position')} that it is made for)"
    if limit.standing == "partly":
        return f" (its {maximum:,} positions were not measured to their end)"
    return ""


def _place(limit: Limit, offset: int) -> str:
    return f"{offset:,} (last position {limit.last_position(offset):,})"


def _measured(limit: Limit) -> str:
    count = counted(limit.boundary.held, "measured offset")
    return f"{count} up to {_place(limit, limit.boundary.held_up_to)}"


def _proved(limit: Limit) -> str:
    """Return what stands behind proved_up_to."""
    offset = limit.boundary.proved
    if limit.called:
        return f"every offset up to {offset:,} was measured"
    if offset == 0:
        return "guaranteed at offset 0 alone"
    how = {"bound": "by the bound", "exhaustive": "every offset measured"}[limit.proof]
    if limit.proof == "exhaustive" and limit.bound_up_to is not None:
        how = f"by the bound up to {limit.bound_up_to:,}, every later offset measured"
    return f"guaranteed up to offset {offset:,} ({how})"


def _before(limit: Limit) -> str:
    """Return what is known below a failure."""
    if limit.boundary.exhaustive:
        return "every smaller offset met it" if limit.called else "every smaller offset meets it"
    proof = "" if limit.called else f"; {_proved(limit)}"
    return f"no failure seen in {_measured(limit)}{proof}"


def _beyond(limit: Limit) -> str:
    """Return what is known past a proof that reaches through the maximum."""
    if limit.boundary.exhaustive:
        return _failure(limit)
    return f"; no failure seen in {_measured(limit)}{_failure(limit)}"


def _failure(limit: Limit) -> str:
    if limit.first_failure_seen is None:
        return ""
    seen = "fails at" if limit.boundary.exhaustive else "first failure seen at"
    return f"; {seen} offset {limit.first_failure_seen:,}: {_value(limit)}"


def _value(limit: Limit) -> str:
    """Return the value at the first failure seen, with as many digits as tell it from the tolerance."""
    record, column = limit.at_failure, limit.tolerance.column
    if record is None:
        return ""
    if record.verdict == "refused":
        return f"it is refused: {printable(record.why)}"
    if record.verdict == "wrong_rotation":
        return f"wrong rotation: it {verdicts.wrong_rotation(record)}"
    value = float(getattr(record, column))
    if math.isnan(value):
        if record.nonfinite:
            return f"{record.nonfinite:,} of {record.scores:,} scores are nan or infinite"
        return f"{column} is not defined"
    return f"{column} is {telling_digits(value, limit.tolerance)}"


def telling_digits(value: float, tolerance: Tolerance) -> str:
    """Return a value that breaks a tolerance with four digits, or as many more as show that it does."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 17))
    return next((text for text in texts if not tolerance.accepts(float(text))), repr(value))


def _of_maximum(limit: Limit) -> float:
    """Return the positions up to the first failure as a share of those that the model is made for."""
    return ((limit.first_failure_seen or 0) + limit.at_zero.seq_len) / (limit.case.maximum or 1)


def _times(margin: float | None) -> str:
    """Return a ratio rounded down, and nothing for one that does not reach 1.1."""
    tenths = math.floor(10 * margin) if margin is not None else 0
    return f"{tenths / 10:,.1f}" if tenths > 10 else ""
