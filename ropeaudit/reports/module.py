"""Buffers of a module for people: which were cast, to what, and what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.analyses.module import FAR, NEAR, Buffer
from ropeaudit.analyses.module_source import Source
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import percent

SCHEMA = 1
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "buffer": "name of the buffer",
    "what": "inv_freq, cos, sin, or both in one",
    "dtype": "dtype in which it is stored",
    "shape": "its sizes",
    "against": "the model, or the base guessed from its values, that it was compared with; none without",
    "cast": "format that its values were rounded to; none where no cast shows",
    "how": "stored: by its dtype; back: cast and cast back, which the values show; none",
    "agrees": "yes, no (beyond what float32 arithmetic accounts for), or unknown",
    "largest_error": "relative for frequencies, radians for cos and sin",
    "drift_256": "RMS drift of scores that these values cause by themselves, over the scores' RMS, in a "
    "causal sequence of 256 tokens, for independent Gaussian q and k",
    "drift_131072": "the same of tokens 131072 apart; nan for tables, which end before",
    "finding": "what explains the values",
}
LEGEND = (
    "how: stored: by its dtype; back: cast and cast back, as its values show. largest error: relative for\n"
    "frequencies, radians for cos and sin. drift 256, drift 131072: RMS drift of scores that these values\n"
    "alone cause, over the scores' RMS, within 256 tokens and 131072 apart (independent Gaussian q and k)."
)
_SCREEN: tuple[str, ...] = ("buffer", "dtype", "shape", "cast", "how", "agrees", "largest_error")
_SCREEN += ("drift_256", "drift_131072", "against")
_DISPENSABLE = ("shape", "against", "how", "drift_131072")


def row(found: Buffer) -> dict[str, Any]:
    """Return the columns of `COLUMNS`."""
    agrees = {True: "yes", False: "no", None: "unknown"}[found.agrees]
    return {
        "schema": SCHEMA,
        "buffer": found.stored.name,
        "what": found.what,
        "dtype": found.stored.dtype,
        "shape": "x".join(map(str, found.stored.shape)),
        "against": found.against,
        "cast": found.cast,
        "how": found.how,
        "agrees": agrees,
        "largest_error": found.error,
        f"drift_{NEAR}": found.drift_near,
        f"drift_{FAR}": found.drift_far,
        "finding": found.finding,
    }


def module_report(
    source: Source, found: Sequence[Buffer], columns: Sequence[str] | None, circumstances: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    return Report(
        rows=[row(one) for one in found],
        columns=list(columns or COLUMNS),
        screen=list(columns or _SCREEN) if found else [],
        dispensable=() if columns else _DISPENSABLE,
        headline=headline(source, found),
        notes=[*source.notes, *_notes(found)],
        legend=LEGEND if found else "",
        circumstances={"schema": SCHEMA, **circumstances},
    )


def headline(source: Source, found: Sequence[Buffer]) -> str:
    """Return the finding in a sentence: how many buffers were cast, to what, and what it does."""
    if not found:
        where = f"none of {source.tensors} tensors is a RoPE buffer"
        if source.made:
            return f"There is nothing to be cast: {where} of the module."
        return (
            f"There is nothing to be cast: {where}, so that frequencies, if there are any, are "
            "recomputed when the model is loaded; what a .half() or .to() does after that only shows in "
            "the loaded module."
        )
    cast = [one for one in found if one.cast != "none"]
    if cast:
        worst = max(cast, key=lambda one: one.drift_near or 0.0)
        how = "holds" if worst.how == "stored" else "was cast and cast back: every value is"
        kind = worst.cast if worst.how == "stored" else f"a {worst.cast} number"
        begin = f"{len(cast)} of {len(found)} RoPE buffers {'was' if len(cast) == 1 else 'were'} cast"
        return f"{begin}: {worst.stored.name} {how} {kind}{_effect(worst)}."
    off = [one for one in found if one.agrees is False]
    if off:
        return f"No cast, but {len(off)} of {len(found)} RoPE buffers are off: {off[0].finding}"
    known = sum(one.agrees is True for one in found)
    return (
        f"No RoPE buffer was cast: {known} of {len(found)} agree{'s' if known == 1 else ''} with the exact "
        "values within float32 rounding."
        if known
        else f"No cast shows in {len(found)} RoPE buffers, and there was nothing to compare them with."
    )


def _effect(one: Buffer) -> str:
    if one.error is None or one.drift_near is None:
        return ""
    size = "" if one.what != "inv_freq" else f", frequencies are off by up to {percent(one.error)}"
    text = f"{size}, which alone moves scores by {percent(one.drift_near)} of their RMS within {NEAR} tokens"
    return text if one.drift_far is None else f"{text} and by {percent(one.drift_far)} at a distance of {FAR}"


def _notes(found: Sequence[Buffer]) -> list[str]:
    said = [f"{one.stored.name}: {one.finding}" for one in found if one.wrong]
    guessed = [one for one in found if "guessed" in one.against]
    if guessed:
        said.append(
            f"{guessed[0].stored.name} was compared with {guessed[0].against} from its own values; "
            "--config says what it should be"
        )
    back = [one for one in found if one.how == "back"]
    if back:
        said.append("casting back does not heal: recompute the frequencies in float32 after the last cast")
    return list(dict.fromkeys(said))
