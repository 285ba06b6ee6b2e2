"""Short names of scalings for tables, as `str(Scaling)` may be very long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ropeaudit.runtime.rows import ABSENT, Row, Rows

_LONGEST = 24  # characters of a value that a name may hold


def parts_of(text: str) -> tuple[str, list[str]]:
    """Return a scaling's kind and "key=value" items, as commands or reports spell it.

    >>> parts_of("yarn:factor=4,original=32768"), parts_of("yarn(factor=4 original=32768)")
    (('yarn', ['factor=4', 'original=32768']), ('yarn', ['factor=4', 'original=32768']))
    """
    text = text.strip()
    if text.endswith(")") and "(" in text:
        kind, _, inner = text[:-1].partition("(")
        return kind, inner.split()
    kind, _, inner = text.partition(":")
    return kind, [item for item in inner.split(",") if item]


def short_name(text: str) -> str:
    """Return a scaling's kind and stretch, from the text that `scaling.parse` reads.

    >>> short_name("yarn(factor=4 original=32768)"), short_name("longrope(original=4096 maximum=8192)")
    ('yarn ×4', 'longrope ×2')
    """
    kind, values = _parts(text)
    factor = values.get("factor", "")
    if not factor and {"original", "maximum"} <= values.keys():
        original, maximum = _number(values["original"]), _number(values["maximum"])
        factor = f"{maximum / original:g}" if original and maximum else ""
    return f"{kind} ×{factor}" if factor and len(factor) <= _LONGEST else kind


def short_names(texts: Iterable[str]) -> dict[str, str]:
    """Return text -> a unique short name: with the differing parameters, or a number.

    >>> list(short_names(["yarn(factor=4 fast=32)", "yarn(factor=4 fast=64)"]).values())
    ['yarn ×4 fast=32', 'yarn ×4 fast=64']
    """
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        groups.setdefault(short_name(text), []).append(text)
    names: dict[str, str] = {}
    for name, alike in groups.items():
        names |= {text: name + more for text, more in zip(alike, _differences(alike), strict=True)}
    return names


def shortened(rows: Sequence[Row]) -> Sequence[Row]:
    """Replace `scaling` in rows by a short name; rows without a scaling stay unchanged.

    Kind and factor are enough if each model has only one scaling.
    """
    held = Rows.of(rows)
    scalings, models = held.column("scaling", ABSENT), held.column("model")
    texts = [text for text in dict.fromkeys(scalings) if isinstance(text, str)]
    if not any("(" in text for text in texts):
        return rows
    names: dict[Any, Any] = dict(short_names(texts))
    of_model = set(zip(models, scalings, strict=True))
    if len(set(models)) == len(of_model) and not {None, "none"} & set(models):
        names = {text: short_name(text) for text in texts}
    shown = {**held.columns, "scaling": [names.get(text, text) for text in scalings]}
    return Rows(shown, len(held), held.gaps)


def _differences(alike: Sequence[str]) -> list[str]:
    """Return the additions that make a shared name unique; empty for a single scaling."""
    if len(alike) == 1:
        return [""]
    parts = [_parts(text)[1] for text in alike]
    added = [""] * len(alike)
    for key in dict.fromkeys(key for one in parts for key in one):
        values = [one.get(key, "") for one in parts]
        if len(set(values)) > 1 and max(map(len, values)) <= _LONGEST:
            added = [text + (f" {key}={one}" if one else "") for text, one in zip(added, values, strict=True)]
        if len(set(added)) == len(added):
            return added
    return [f"{text} #{number}" for number, text in enumerate(added, 1)]


def _parts(text: str) -> tuple[str, dict[str, str]]:
    kind, items = parts_of(text)
    pairs = (item.partition("=") for item in items)
    return kind, {key: value for key, _, value in pairs}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
