"""State that leaks, for people: the finding in words, the rows, the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.features.history.analysis import History
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import short

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "implementation": "what was called",
    "version": "of its package",
    "dtype": "number format of the call",
    "offset": "first position of the call",
    "seq_len": "positions of the call",
    "before": "how the call before it on the same instance differs",
    "before_dtype": "number format of that call",
    "before_offset": "first position of that call",
    "before_seq_len": "positions of that call",
    "difference_max": "largest |result after that call - result on a fresh instance|; q and k are gaussian",
    "leaks": "yes where anything differs, no where nothing does, refused where it could not be called",
    "layout": "pairs of dims: half (i, i + rotary_dim/2) or interleaved (2i, 2i + 1)",
    "head_dim": "dims of a head",
    "rotary_dim": "dims of a head that are rotated",
    "base": "theta: frequencies are base^(-2i/rotary_dim)",
    "scaling": "how the frequencies are changed",
    "refused": "why it could not be called; none where it could",
}
LEGEND = (
    "difference max: of the rotated vectors (gaussian, size about 1) between the same call on an instance\n"
    "that was called before and on a fresh one; anything but 0 is state that leaks."
)
_SETTINGS = ("seq_len", "head_dim", "rotary_dim", "base", "layout", "scaling")
_CALL = ("implementation", "version", "dtype", "offset")
_BEFORE = ("before", "before_dtype", "before_offset", "before_seq_len", "difference_max", "leaks")


def row(results: History) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    setting = results.setting
    values = {
        "schema": SCHEMA,
        "implementation": results.name,
        "version": results.version,
        "dtype": results.call.dtype.name,
        "offset": results.call.first,
        "seq_len": results.call.length,
        "before": results.kind,
        "before_dtype": results.before.dtype.name,
        "before_offset": results.before.first,
        "before_seq_len": results.before.length,
        "difference_max": results.difference,
        "leaks": "refused" if results.refused else "yes" if results.leaks else "no",
        "layout": setting.layout,
        "head_dim": setting.head_dim,
        "rotary_dim": setting.rotary_dim,
        "base": setting.base,
        "scaling": str(setting.scaling),
        "refused": results.refused or "none",
    }
    return {name: values[name] for name in COLUMNS}


def history_report(
    results: Sequence[History], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(one) for one in results]
    varying = [name for name in _SETTINGS if len({repr(one[name]) for one in rows}) > 1]
    return Report(
        rows=rows,
        columns=list(columns or COLUMNS),
        screen=list(columns or [*_CALL, *varying, *_BEFORE]),
        dispensable=() if columns else ("before_seq_len", "before_offset", "version"),
        headline=headline(rows),
        notes=notes(rows),
        legend=LEGEND,
        metadata={"schema": SCHEMA, **metadata},
    )


def headline(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the finding in a sentence: who leaks, and where it is worst."""
    called = [one for one in rows if one["leaks"] != "refused"]
    if not called:
        return f"Nothing could be called: {rows[0]['refused']}." if rows else "Nothing was called."
    leaking = [one for one in called if one["leaks"] == "yes"]
    if not leaking:
        names = ", ".join(dict.fromkeys(one["implementation"] for one in called))
        return (
            f"No state leaked in {len(called)} cases: {names} gave the same on fresh instances and after "
            "another call."
        )
    worst = max(leaking, key=lambda one: one["difference_max"])
    count = f" ({len(leaking)} of {len(called)} cases leak)"
    return (
        f"State leaks{count}: {worst['implementation']} in {worst['dtype']} at offset {worst['offset']} "
        f"differs by {short(worst['difference_max'])} from a fresh instance after {_before(worst)}."
    )


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a remedy for each implementation that leaks, and why others were refused."""
    message = []
    for one in rows:
        if one["leaks"] == "yes":
            message.append(
                f"{one['implementation']}: what a call gives depends on the calls before it; make an "
                "instance for each dtype, or turn its cache off."
            )
        elif one["leaks"] == "refused":
            message.append(
                f"{one['implementation']} {one['dtype']} at offset {one['offset']} after {_before(one)}: "
                f"refused: {one['refused']}."
            )
    return list(dict.fromkeys(message))


def _before(one: Mapping[str, Any]) -> str:
    last = one["before_offset"] + one["before_seq_len"] - 1
    return f"a call in {one['before_dtype']} at positions {one['before_offset']} to {last}"
