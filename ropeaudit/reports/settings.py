"""The setting columns of every report (model, RoPE, q and k), and labels from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits import records
from ropeaudit.audits.cases import Case
from ropeaudit.reports.numbers import counted, setting
from ropeaudit.rope.scaling_names import short_name, short_names
from ropeaudit.runtime.rows import Rows, column

NAMES = records.COLUMNS.having("setting")
_NAMED = ("scaling", "head_dim", "rotary_dim", "base", "clip", "layout")  # fields that a label may name
_MOST_LINES = 6  # of the cases of an answer
_IMPLIED = ("length", "heads", "kv_heads")  # they follow from the model


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the setting columns that differ between rows."""
    telling = [name for name in NAMES if name not in _IMPLIED]
    return [name for name in telling if len(set(map(repr, set(column(rows, name))))) > 1]


def screen(
    rows: Sequence[Mapping[str, Any]],
    first: Sequence[str],
    others: Sequence[str],
) -> list[str]:
    """Return the columns to show: the model if there are several, `first`, differing settings, `others`.

    Of the settings that follow from a model, only the scaling is shown; JSON and CSV have all.
    """
    names = independent(rows)
    names += [name for name in ("scaling",) if name not in names and name in varying(rows)]
    model = [name for name in names if name == "model"]
    return [*model, *first, *(name for name in names if name not in model), *others]


def dispensable(screen: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the columns that may leave a narrow screen."""
    return [*(["scaling"] if {"model", "scaling"} <= set(screen) else []), *others]


def shared_and_own(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that all rows share, and for each row the words that distinguish it.

    names: columns that are always included; settings are where they differ.
    """
    implied = {*names, "scale"} if "head_dim" in varying(rows) else set(names)
    if all(row["rotary_dim"] == row["head_dim"] for row in rows):
        implied.add("rotary_dim")
    others = [name for name in independent(rows) if name not in implied]
    words = []
    for row in rows:
        always = [_cell_words(name, row[name]) for name in names]
        words.append(always + [f"{name} {_cell_words(name, row[name])}" for name in others])
    alike = [len(set(column)) == 1 for column in zip(*words, strict=True)]
    shared, *own = (
        ", ".join(word for word, same in zip(texts, alike, strict=True) if word and same == (number == 0))
        for number, texts in enumerate([words[0], *words])
    )
    return shared, own


def listed(lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the lines of several cases as facts, a few at most."""
    shown, more = lines[:_MOST_LINES], len(lines) - _MOST_LINES
    width = 2 + max(len(label) for label, _ in shown)
    rest = [("…", f"and {more} more: -v")] if more > 0 else []
    return [*((label.ljust(width), text) for label, text in shown), *rest]


def facts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return facts about the setting that all rows share, and about their q and k."""
    texts: dict[str, dict[str, None]] = {"assumed": {}, "read": {}, "measured with": {}}
    for row in rows:
        read = f"base {setting(row['base'])}, head_dim {row['head_dim']}"
        read += f", scaling {short_name(row['scaling'])}"
        texts["assumed" if row["model"] == "none" else "read"][read] = None
        drawn = "" if row["seed"] is None else f" (seed {row['seed']})"
        sizes = f"{counted(row['seq_len'], 'token')}, {counted(row['heads'], 'head')}"
        texts["measured with"][f"{row['source']} q and k{drawn}, {sizes}"] = None
    return [(label, next(iter(some))) for label, some in texts.items() if len(some) == 1]


def _cell_words(name: str, value: Any) -> str:
    if name == "dtype":
        return parse(value).short
    if name == "offset":
        return f"offset {value:,}"
    if name == "scaling":
        return short_name(value)
    return "" if name == "model" and value == "none" else setting(value)


def independent(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the setting columns that differ between rows of the same model."""
    full = Rows.of(rows).distinct(NAMES)
    models = {repr(row["model"]) for row in full}
    of_one = [varying([row for row in full if repr(row["model"]) == name]) for name in models]
    own = {name for some in of_one for name in some}
    return [name for name in varying(full) if name in own or name == "model"]


def labels(cases: Sequence[Case]) -> list[str]:
    """Return a label per case: its model and differing settings, or else the base."""
    every = [case.setting(case.maximum or 0) for case in cases]
    scalings, results = short_names(str(setting.scaling) for setting in every), []
    rows = [
        {name: getattr(own, name) for name in _NAMED}
        | {"model": case.model_name, "scaling": scalings[str(own.scaling)]}
        for case, own in zip(cases, every, strict=True)
    ]
    telling = independent(rows)
    for row in rows:
        words = [] if row["model"] == "none" else [row["model"]]
        for name in _NAMED:
            if name in telling or (not words and name == "base"):
                text = f"{row[name]:g}" if name in ("base", "clip") else row[name]
                words.append(f"{name}={text}")
        results.append(" ".join(words))
    return results
