"""The rows of each list of `ropeaudit list`; their columns are in `data/columns.toml`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ropeaudit.arithmetic.formats import FORMATS, FP32
from ropeaudit.audits import comparison, judging, records
from ropeaudit.recipes import all_recipes
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Kind, Where, kinds
from ropeaudit.rope import axial
from ropeaudit.rope.axial import AxialRope
from ropeaudit.rope.presets import all_presets
from ropeaudit.runtime.columns import Column, table
from ropeaudit.subjects import third_party
from ropeaudit.subjects.third_party import Entry

Row = dict[str, Any]
_UP_TO = 131072  # positions in the examples of remedies


def _row(kind: str, one: object, /, **own: Any) -> Row:
    return {name: own[name] if name in own else getattr(one, name) for name in table(f"list-{kind}")}


def entry_row(entry: Entry) -> Row:
    """Return the row of an implementation; a family's layout is known only when called."""
    several = entry.target or entry.classes > 1
    return _row(
        "implementations",
        entry,
        implementation=entry.name,
        layouts="one of two" if several else " ".join(entry.layouts),
        dtypes=" ".join(entry.dtypes),
        runs=entry.install if not entry.installed else "when called" if entry.target else "yes",
    )


def layer_rows() -> Iterator[Row]:
    """Yield a row for each layer type of each model."""
    for model in all_presets():
        for layer, setting in model.layers.items():
            own = {name: getattr(model, name) for name in ("heads", "kv_heads", "maximum", "source")}
            own |= {"model": model.name, "layer": layer, "kind": setting.scaling.kind}
            yield _row("models", setting, scaling=str(setting.scaling), **own)


def axes_row(axes: AxialRope) -> Row:
    """Return the row of position axes."""
    pairs = [pair.axis for pair in axes.pairs()]
    return _row(
        "axes",
        axes,
        axes=" ".join(axes.axes),
        dims="+".join(str(2 * pairs.count(axis)) for axis in range(len(axes.axes))),
        base=" ".join(dict.fromkeys(f"{base:g}" for base in axes.base)),
        positions=" ".join(dict.fromkeys(axes.positions)),
    )


def column_row(column: Column) -> Row:
    """Return the row of a column of `shift`."""
    another = comparison.meaning(column.name)
    return _row(
        "columns", column, column=column.name, group=column.group or "core", another_processor=another
    )


def diagnosis_row(kind: Kind) -> Row:
    """Return the row of a diagnosis."""
    templates = ("sentence", "gradient", "remedy", "gradient_remedy", "option")
    own = {name: wording.template(getattr(kind, name)) for name in templates}
    return _row("diagnoses", kind, **own, **{"class": kind.group}, bugs=", ".join(kind.bugs))


def explained(kind: Kind) -> dict[str, str]:
    """Return the texts of a diagnosis by label, with example values in its sentences."""
    found = Diagnosis(kind.code, kind.values)
    backward = Diagnosis(kind.code, kind.values, Where(gradient=True))
    texts = {
        "printed as": wording.sentence(found),
        "of a gradient": wording.sentence(backward) if kind.gradient else "",
        "shows": kind.shows,
        "cause": kind.cause,
        "wrong": kind.wrong.rstrip(),
        "right": kind.right.rstrip(),
        "fix": wording.remedy(found, FP32, _UP_TO),
        "fix of a gradient": wording.remedy(backward, FP32, _UP_TO) if kind.gradient_remedy else "",
        "if it is meant": wording.option(found),
        "shipped in": ", ".join(kind.bugs),
    }
    return {label: text for label, text in texts.items() if text}


def explained_rows(kind: Kind) -> list[Row]:
    """Return the texts of a diagnosis as rows, a line each, under its code and title."""
    return [
        {kind.code: "" if number else label, kind.title: line}
        for label, text in explained(kind).items()
        for number, line in enumerate(text.split("\n"))
    ]


# kind of list -> its rows
LISTS: dict[str, Callable[[], Iterable[Row]]] = {
    "recipes": lambda: (
        _row("recipes", x, recipe=x.name, runs=f"refused: {x.refused}" if x.refused else "yes", **x.stages)
        for x in all_recipes()
    ),
    "implementations": lambda: map(entry_row, third_party.listed()),
    "formats": lambda: (_row("formats", x, format=x.name, aliases=" ".join(x.aliases)) for x in FORMATS),
    "models": layer_rows,
    "axes": lambda: map(axes_row, axial.all_presets()),
    "columns": lambda: (column_row(records.COLUMNS[name]) for name in records.ALL_COLUMNS),
    "verdicts": lambda: ({"verdict": name, "meaning": text} for name, text in judging.VERDICTS.items()),
    "diagnoses": lambda: map(diagnosis_row, kinds().values()),
}
