"""ropeaudit list: recipes, implementations, formats, models, columns, verdicts."""

from __future__ import annotations

from typing import Any

import click

from ropeaudit.console.options import ScreenOptions, screen_options
from ropeaudit.console.parameters import one_of

KINDS = ("recipes", "impls", "formats", "models", "columns", "verdicts")


@click.command(name="list")
@click.argument("kind", metavar="|".join(KINDS), type=one_of("list", KINDS))
@screen_options
def list_(kind: str, screen: ScreenOptions) -> None:
    """List what there is: recipes, implementations, formats, models, columns, verdicts."""
    from ropeaudit.console import output
    from ropeaudit.reports import Report

    rows, shown = {
        "recipes": _recipes,
        "impls": _implementations,
        "formats": _formats,
        "models": _models,
        "columns": _columns,
        "verdicts": _verdicts,
    }[kind]()
    columns = list(rows[0])
    output.print_report(Report(rows, columns, shown or columns), screen)


def _recipes() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.recipes import STAGES, all_recipes

    rows = []
    for recipe in all_recipes():
        rows.append(
            {
                "recipe": recipe.name,
                "summary": recipe.summary,
                "runs": f"refused: {recipe.refused}" if recipe.refused else "yes",
                **{stage: recipe.stages[stage] for stage in STAGES},
                "frequency_form": recipe.frequency_form,
                "rotation_rounding": recipe.rotation_rounding,
                "scale_after_store": recipe.scale_after_store,
                "source": recipe.source,
                "note": recipe.note,
                "verified": recipe.verified,
            }
        )
    screen = ["recipe", "position", "frequency", "angle", "table", "rotation", "score", "summary"]
    return rows, [*screen, "runs"]


def _implementations() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.subjects.third_party import ENTRIES

    return [
        {
            "implementation": entry.name,
            "package": entry.package,
            "version": entry.version,
            "layouts": " ".join(entry.layouts),
            "dtypes": " ".join(entry.dtypes),
            "calls": entry.calls,
            "runs": "yes" if entry.installed else entry.install,
        }
        for entry in ENTRIES.values()
    ], ["implementation", "version", "layouts", "dtypes", "runs"]


def _formats() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.arithmetic.formats import FORMATS

    return [
        {
            "format": fmt.name,
            "aliases": " ".join(fmt.aliases),
            "precision": fmt.precision,
            "unit_roundoff": fmt.unit_roundoff,
            "largest": fmt.largest,
            "smallest_normal": fmt.smallest_normal,
            "smallest_subnormal": fmt.smallest_subnormal,
            "first_inexact_integer": fmt.first_inexact_integer,
            "overflow": fmt.overflow,
        }
        for fmt in FORMATS
    ], []


def _models() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.rope.presets import all_presets

    rows = [
        {
            "model": model.name,
            "layer": layer,
            "base": setting.base,
            "head_dim": setting.head_dim,
            "rotary_dim": setting.rotary_dim,
            "layout": setting.layout,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "maximum": model.maximum,
            "scaling": str(setting.scaling),
            "scale": setting.scale,
            "source": model.source,
        }
        for model in all_presets()
        for layer, setting in model.layers.items()
    ]
    screen = [name for name in rows[0] if name not in ("scaling", "scale", "layout")]
    return [row | {"kind": str(row["scaling"]).partition(":")[0]} for row in rows], [*screen, "kind"]


def _columns() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.audits.records import COLUMNS

    return [{"column": name, "meaning": meaning} for name, meaning in COLUMNS.items()], []


def _verdicts() -> tuple[list[dict[str, Any]], list[str]]:
    from ropeaudit.audits.records import VERDICTS

    return [{"verdict": name, "meaning": meaning} for name, meaning in VERDICTS.items()], []
