"""State that leaks, for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.history.analysis import History
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import short
from ropeaudit.reports.verdicts import under
from ropeaudit.runtime.columns import Declare

SCHEMA = 1
of = Declare[History]()


class HistoryColumns:
    """The columns of `ropeaudit history`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    implementation: str = of("what was called", lambda one: one.name, shown=True)
    version: str = of("of its package", shown=True, leaves=3)
    dtype: str = of("number format of the call", lambda one: one.call.dtype.name, shown=True)
    environment: str = of(
        "what the call was made under, such as autocast:bf16; none: nothing",
        shown=lambda one: one.environment != "none",
    )
    offset: int = of("first position of the call", lambda one: one.call.first, unit="tokens", shown=True)
    device = of.like(records.COLUMNS["device"], shown=lambda one: one.device != "cpu", leaves=4)
    seq_len: int = of("positions of the call", lambda one: one.call.length, unit="tokens")
    before: str = of("how the call before it on the same instance differs", lambda one: one.kind, shown=True)
    before_dtype: str = of("number format of that call", lambda one: one.before.dtype.name, shown=True)
    before_offset: int = of(
        "first position of that call", lambda one: one.before.first, unit="tokens", shown=True, leaves=2
    )
    before_seq_len: int = of(
        "positions of that call", lambda one: one.before.length, unit="tokens", shown=True, leaves=1
    )
    before_environment: str = of(
        "what that call was made under; none: nothing", shown=lambda one: one.before_environment != "none"
    )
    difference_max: float = of(
        "largest |result after that call - result without it|; q and k are gaussian",
        lambda one: one.difference,
        shown=True,
    )
    leaks: str = of(
        "yes where anything differs, no where nothing does, refused where it could not be called",
        lambda one: "refused" if one.refused else "yes" if one.leaks else "no",
        shown=True,
    )
    afresh: str = of(
        "whether the calls were made on instances without a past: yes, a file being executed anew, or no: a "
        "function that is loaded once",
        lambda one: "yes" if one.afresh else "no",
    )
    layout = of.like(records.COLUMNS["layout"], lambda one: one.setting.layout)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: one.setting.head_dim)
    rotary_dim = of.like(records.COLUMNS["rotary_dim"], lambda one: one.setting.rotary_dim)
    base = of.like(records.COLUMNS["base"], lambda one: one.setting.base)
    scaling = of.like(records.COLUMNS["scaling"], lambda one: str(one.setting.scaling))
    refused: str = of("why it could not be called; none where it could", lambda one: one.refused or "none")


COLUMNS = of.columns(HistoryColumns)
LEGEND = (
    "difference max: of the rotated vectors (gaussian, size about 1) between the same call after another\n"
    "one and without it; anything but 0 is state that leaks."
)
_ONCE = "a function that is loaded once: what its first call of all left is not seen."
_SETTINGS = ("seq_len", "head_dim", "rotary_dim", "base", "layout", "scaling")


def history_report(
    results: Sequence[History], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [COLUMNS.row(result) for result in results]
    names = COLUMNS.screen(results)
    behind = names.index("before")
    varying = [name for name in _SETTINGS if len({repr(one[name]) for one in rows}) > 1]
    screen = [*names[:behind], *varying, *names[behind:]]
    report = tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata)
    return replace(report, headline=headline(rows), notes=notes(rows), legend=LEGEND)


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: who leaks, and where it is worst."""
    called = [one for one in rows if one["leaks"] != "refused"]
    if not called:
        return f"Nothing could be called: {rows[0]['refused']}." if rows else "Nothing was called."
    leaking = [one for one in called if one["leaks"] == "yes"]
    if not leaking:
        names = ", ".join(dict.fromkeys(_who(one) for one in called))
        how = "on fresh instances" if all(one["afresh"] == "yes" for one in called) else "before"
        return f"No state leaked in {len(called)} cases: {names} gave the same {how} and after another call."
    worst = max(leaking, key=lambda one: one["difference_max"])
    count = f" ({len(leaking)} of {len(called)} cases leak)"
    without = "a fresh instance" if worst["afresh"] == "yes" else "the same call before"
    return (
        f"State leaks{count}: {_who(worst)} in {worst['dtype']} at offset {worst['offset']} "
        f"differs by {short(worst['difference_max'])} from {without} after {_before(worst)}."
    )


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remedy for each implementation that leaks, and why others were refused."""
    message = []
    for one in rows:
        if one["afresh"] == "no":
            message.append(f"{one['implementation']}: {_ONCE}")
        if one["leaks"] == "yes":
            message.append(
                f"{_who(one)}: what a call gives depends on the calls before it; make an "
                f"instance for each {_kept_apart(one)}, or turn its cache off."
            )
        elif one["leaks"] == "refused":
            message.append(
                f"{_who(one)} {one['dtype']} at offset {one['offset']} after {_before(one)}: "
                f"refused: {one['refused']}."
            )
    return list(dict.fromkeys(message))


def _who(one: Mapping[str, Any]) -> str:
    return " ".join([one["implementation"], *under(one["environment"])])


def _kept_apart(one: Mapping[str, Any]) -> str:
    return "environment" if one["before_environment"] != one["environment"] else "dtype"


def _before(one: Mapping[str, Any]) -> str:
    last = one["before_offset"] + one["before_seq_len"] - 1
    call = f"a call in {one['before_dtype']} at positions {one['before_offset']} to {last}"
    return " ".join([call, *under(one["before_environment"])])
