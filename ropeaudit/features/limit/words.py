"""What is known of limits, in sentences: no more is said than was measured or proved.

"meets", "holds" and "fails" are said of offsets that were measured or proved; of others it is said
that no failure was seen, and in how many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropeaudit.features.limit.known import Limit
from ropeaudit.features.limit.tolerance import Tolerance
from ropeaudit.reports import headlines, verdicts


def headline(results: Sequence[Limit]) -> str:
    """Return the finding in a sentence or two: how many fail, and the one that fails first."""
    if not results:
        return "No limit was looked for."
    if len(results) == 1:
        return sentence(results[0])
    judged = [one for one in results if one.standing != "unjudged"]
    if judged:
        more = len(results) - len(judged)
        rest = f" ({_count(more, 'more case')} not judged by a maximum)" if more else ""
        return _of_models(judged, rest)
    seen = [one for one in results if one.first_failure_seen is not None]
    if seen:
        first = min(seen, key=lambda one: one.last_position(one.first_failure_seen) or 0)
        return (
            f"A failure was measured in {len(seen)} of {len(results)} cases; the earliest: {sentence(first)}"
        )
    none = "No failure was measured in any"
    if all(one.boundary.exhaustive for one in results):
        none = f"No offset up to {min(one.up_to for one in results):,} fails in any"
    return f"{none} of {len(results)} cases; the first of them: {sentence(results[0])}"


def _of_models(judged: Sequence[Limit], rest: str) -> str:
    """How models stand within the positions that they are made for."""
    one_each = len({one.at_zero.model for one in judged}) == len(judged)
    noun, own = ("model", "own ") if one_each else ("case", "model's ")
    failing = [one for one in judged if one.standing == "fails"]
    if failing:
        first = min(failing, key=lambda one: _of_maximum(one, one.first_failure_seen))
        verb = "does not hold through its" if len(failing) == 1 else "do not hold through their"
        text = f"{len(failing)} of {_count(len(judged), noun)} {verb} {own}maximum{rest}"
        return f"{text}; the earliest failure: {sentence(first)}"
    least = min(judged, key=lambda one: one.margin or 0.0)
    many = _count(len(judged), noun)
    if all(one.standing == "holds" for one in judged):
        verb = "holds through its" if len(judged) == 1 else "hold through their"
        text = f"{len(judged)} of {many} {verb} {own}maximum{rest}"
    elif all(one.standing in ("holds", "unseen") for one in judged):
        text = f"No failure was seen within the maximum in any of {many}{rest}"
    else:
        short = sum(1 for one in judged if one.standing == "partly")
        text = f"No failure was seen within the maximum in any of {many}{rest}, but {short} "
        text += f"{'was' if short == 1 else 'were'} not measured up to it"
    return f"{text}; the smallest margin: {sentence(least)}"


def sentence(one: Limit) -> str:
    """Return what is known of one limit."""
    who, tolerance = _who(one), one.tolerance
    if one.proved_up_to is None:
        return f"{who} does not meet {tolerance} at offset 0 already: {_value(one)}{_aside(one)}."
    if one.standing == "fails":
        failing = one.first_failure_seen
        return (
            f"{who} does not hold {tolerance} through its {one.case.maximum:,} positions: at offset "
            f"{_place(one, failing or 0)} {_value(one)}; {_before(one)}."
        )
    if one.standing == "holds":
        times = _times(one.proved_margin)
        over = f", {times} times over" if times else ""
        text = f"{who} holds {tolerance} through all {one.case.maximum:,} positions{over}"
        return f"{text}: {_proved(one)}{_beyond(one)}."
    if one.boundary.exhaustive:
        text = f"{who} meets {tolerance} at every offset up to {_place(one, one.proved_up_to)}{_aside(one)}"
        if one.first_failure_seen is None:
            return f"{text}."
        return f"{text} and fails at offset {one.first_failure_seen:,}: {_value(one)}."
    times = _times(one.margin)
    over = f", {times} times its {one.case.maximum:,} positions" if times and one.within else ""
    text = f"{who}: no failure of {tolerance} seen in {_measured(one)}{over}{_aside(one)}; {_proved(one)}"
    return f"{text}{_failure(one)}."


def notes(results: Sequence[Limit]) -> list[str]:
    """Return what the reader must know: models that fall short, remedies, frequencies that change."""
    message, shown = [], []
    for one in results:
        failing = one.at_failure
        if one.standing == "fails" and failing is not None:
            message.append(
                f"{failing.model}: made for {one.case.maximum:,} positions; {failing.subject} in "
                f"{failing.dtype} fails {one.tolerance} at offset {_place(one, failing.offset)}."
            )
        if failing is not None and (text := verdicts.note(failing)):
            message.append(text)
        shown += [record for record in (one.at_measured, failing) if record is not None]
    message += [
        f"scaling {record.scaling.partition(':')[0]} depends on the length: every offset is judged by exact "
        "scores with its own frequencies; what new frequencies do to those scores is not drift."
        for record in shown
        if record.length is not None and record.structural_max > 0
    ]
    return list(
        dict.fromkeys([*message, *headlines.structure_notes(shown, any(one.frozen for one in results))])
    )


def _who(one: Limit) -> str:
    zero = one.at_zero
    model = "" if zero.model == "none" else f" ({zero.model})"
    return f"{zero.subject} in {zero.dtype}{model} on {_count(zero.seq_len, 'token')}"


def _aside(one: Limit) -> str:
    """Why a model is not judged by the positions that it is made for."""
    maximum, zero = one.case.maximum, one.at_zero
    if one.frozen:
        stored = f" (with the frequencies of {zero.length:,} positions at every offset"
        return f"{stored}; --length shifted lets them change)"
    if maximum is not None and one.within is None:
        return f" (a longer sequence than the {_count(maximum, 'position')} that it is made for)"
    if one.standing == "partly":
        return f" (its {maximum:,} positions were not measured to their end)"
    return ""


def _place(one: Limit, offset: int) -> str:
    return f"{offset:,} (last position {one.last_position(offset):,})"


def _measured(one: Limit) -> str:
    count = _count(one.boundary.held, "measured offset")
    return f"{count} up to {_place(one, one.boundary.held_up_to)}"


def _proved(one: Limit) -> str:
    """What stands behind proved_up_to."""
    offset = one.boundary.proved
    if offset == 0:
        return "proved at offset 0 alone"
    how = {"bound": "by the bound", "exhaustive": "every offset measured"}[one.proof]
    if one.proof == "exhaustive" and one.bound_up_to is not None:
        how = f"by the bound up to {one.bound_up_to:,}, every later offset measured"
    return f"proved up to offset {offset:,} ({how})"


def _before(one: Limit) -> str:
    """What is known below a failure."""
    if one.boundary.exhaustive:
        return "every smaller offset meets it"
    return f"no failure seen in {_measured(one)}; {_proved(one)}"


def _beyond(one: Limit) -> str:
    """What is known past a proof that reaches through the maximum."""
    if one.boundary.exhaustive:
        return _failure(one)
    return f"; no failure seen in {_measured(one)}{_failure(one)}"


def _failure(one: Limit) -> str:
    if one.first_failure_seen is None:
        return ""
    seen = "fails at" if one.boundary.exhaustive else "first failure seen at"
    return f"; {seen} offset {one.first_failure_seen:,}: {_value(one)}"


def _value(one: Limit) -> str:
    """The value at the first failure seen, with as many digits as tell it from the tolerance."""
    record, column = one.at_failure, one.tolerance.column
    if record is None:
        return ""
    value = float(getattr(record, column))
    if math.isnan(value):
        if record.nonfinite:
            return f"{record.nonfinite:,} of {record.scores:,} scores are nan or infinite"
        return f"{column} is not defined"
    return f"{column} is {apart(value, one.tolerance)}"


def apart(value: float, tolerance: Tolerance) -> str:
    """Return a value that breaks a tolerance with four digits, or as many more as show that it does."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 17))
    return next((text for text in texts if not tolerance.accepts(float(text))), repr(value))


def _of_maximum(one: Limit, offset: int | None) -> float:
    """The positions of a sequence at an offset as a share of those that the model is made for."""
    return ((offset or 0) + one.at_zero.seq_len) / (one.case.maximum or 1)


def _times(margin: float | None) -> str:
    """Return a ratio rounded down, and nothing for one that does not reach 1.1."""
    tenths = math.floor(10 * margin) if margin is not None else 0
    return f"{tenths / 10:,.1f}" if tenths > 10 else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
