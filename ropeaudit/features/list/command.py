"""ropeaudit list: recipes, implementations, formats, models, columns, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from ropeaudit.console.options import ScreenOptions, screen_options
from ropeaudit.console.parameters import one_of

if TYPE_CHECKING:
    from ropeaudit.runtime.columns import Columns

KINDS = ("recipes", "impls", "formats", "models", "columns", "verdicts")


@click.command(name="list")
@click.argument("kind", metavar="|".join(KINDS), type=one_of("list", KINDS))
@screen_options
def list_(kind: str, screen: ScreenOptions) -> None:
    """List what there is: recipes, implementations, formats, models, columns, verdicts."""
    from ropeaudit.console import output
    from ropeaudit.reports import Report

    columns, items = _LISTS[kind]()
    rows = [columns.row(item) for item in items]
    report = Report(rows, list(columns), columns.screen(()), declared=columns)
    output.print_report(report, screen)


def _recipes() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.features.list.columns import RECIPES
    from ropeaudit.recipes import all_recipes

    return RECIPES, all_recipes()


def _implementations() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.features.list.columns import ENTRIES as COLUMNS
    from ropeaudit.subjects.third_party import ENTRIES

    return COLUMNS, ENTRIES.values()


def _formats() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.arithmetic.formats import FORMATS
    from ropeaudit.features.list.columns import FORMATS as COLUMNS

    return COLUMNS, FORMATS


def _models() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.features.list.columns import MODELS, PresetLayer
    from ropeaudit.rope.presets import all_presets

    layers = ((model, layer, setting) for model in all_presets() for layer, setting in model.layers.items())
    return MODELS, (PresetLayer(*layer) for layer in layers)


def _columns() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.audits.records import COLUMNS as LISTED
    from ropeaudit.features.list.columns import COLUMNS

    return COLUMNS, LISTED.values()


def _verdicts() -> tuple[Columns[Any], Iterable[Any]]:
    from ropeaudit.audits.judging import VERDICTS as LISTED
    from ropeaudit.features.list.columns import VERDICTS

    return VERDICTS, LISTED.items()


_LISTS: dict[str, Callable[[], tuple[Columns[Any], Iterable[Any]]]] = {
    "recipes": _recipes,
    "impls": _implementations,
    "formats": _formats,
    "models": _models,
    "columns": _columns,
    "verdicts": _verdicts,
}
