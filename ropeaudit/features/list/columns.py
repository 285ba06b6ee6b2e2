"""Every list: its columns, and what it lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ropeaudit.arithmetic.formats import FORMATS, Format
from ropeaudit.audits import judging, records, summation
from ropeaudit.recipes import STAGES, Recipe, all_recipes
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Kind, kinds
from ropeaudit.rope import axial_presets
from ropeaudit.rope.axial import AxialRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.presets import all_presets
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import Column
from ropeaudit.subjects import third_party
from ropeaudit.subjects.third_party.entries import Entry


@dataclass(frozen=True, slots=True)
class PresetLayer:
    """A layer type of a model."""

    preset: ModelRope
    layer: str
    setting: RopeSetting


def recipe_row(one: Recipe) -> dict[str, Any]:
    """Return the row of a recipe."""
    return {
        "recipe": one.name,
        "summary": one.summary,
        "runs": f"refused: {one.refused}" if one.refused else "yes",
        **{stage: one.stages[stage] for stage in STAGES},
        "frequency_form": one.frequency_form,
        "rotation_rounding": one.rotation_rounding,
        "scale_after_store": one.scale_after_store,
        "source": one.source,
        "note": one.note,
        "verified": one.verified,
    }


def _layouts(one: Entry) -> str:
    """Return the layouts; a family's class has one, which is measured when it is called."""
    return "one of two" if one.target or one.classes > 1 else " ".join(one.layouts)


def _runs(one: Entry) -> str:
    if not one.installed:
        return one.install
    return "when called" if one.target else "yes"


def entry_row(one: Entry) -> dict[str, Any]:
    """Return the row of an implementation."""
    return {
        "implementation": one.name,
        "package": one.package,
        "version": one.version,
        "layouts": _layouts(one),
        "dtypes": " ".join(one.dtypes),
        "calls": one.calls,
        "classes": one.classes,
        "runs": _runs(one),
    }


def format_row(one: Format) -> dict[str, Any]:
    """Return the row of a number format."""
    return {
        "format": one.name,
        "aliases": " ".join(one.aliases),
        "precision": one.precision,
        "unit_roundoff": one.unit_roundoff,
        "largest": one.largest,
        "smallest_normal": one.smallest_normal,
        "smallest_subnormal": one.smallest_subnormal,
        "first_inexact_integer": one.first_inexact_integer,
        "overflow": one.overflow,
    }


def layer_row(one: PresetLayer) -> dict[str, Any]:
    """Return the row of a layer type of a model."""
    return {
        "model": one.preset.name,
        "layer": one.layer,
        "base": one.setting.base,
        "head_dim": one.setting.head_dim,
        "rotary_dim": one.setting.rotary_dim,
        "layout": one.setting.layout,
        "heads": one.preset.heads,
        "kv_heads": one.preset.kv_heads,
        "maximum": one.preset.maximum,
        "scaling": str(one.setting.scaling),
        "scale": one.setting.scale,
        "source": one.preset.source,
        "kind": one.setting.scaling.kind,
    }


def axes_row(one: AxialRope) -> dict[str, Any]:
    """Return the row of position axes."""
    return {
        "name": one.name,
        "summary": one.summary,
        "axes": " ".join(one.axes),
        "dims": "+".join(str(2 * sum(p.axis == a for p in one.pairs())) for a in range(len(one.axes))),
        "base": " ".join(dict.fromkeys(f"{base:g}" for base in one.base)),
        "factor": one.factor,
        "arrangement": one.arrangement,
        "positions": " ".join(dict.fromkeys(one.positions)),
        "head_dim": one.head_dim,
        "layout": one.layout,
        "heads": one.heads,
        "kv_heads": one.kv_heads,
        "recipe": one.recipe,
        "source": one.source,
    }


def column_row(one: Column) -> dict[str, Any]:
    """Return the row of a column."""
    return {
        "column": one.name,
        "group": one.group or "core",
        "meaning": one.meaning,
        "unit": one.unit,
        "another_processor": summation.meaning(one.name),
    }


def verdict_row(one: tuple[str, str]) -> dict[str, Any]:
    """Return the row of a verdict."""
    return {
        "verdict": one[0],
        "meaning": one[1],
    }


def diagnosis_row(one: Kind) -> dict[str, Any]:
    """Return the row of a diagnosis."""
    return {
        "code": one.code,
        "class": one.group,
        "title": one.title,
        "sentence": wording.template(one.sentence),
        "gradient": wording.template(one.gradient),
        "shows": one.shows,
        "cause": one.cause,
        "remedy": wording.template(one.remedy),
        "gradient_remedy": wording.template(one.gradient_remedy),
        "option": wording.template(one.option),
        "bugs": ", ".join(one.bugs),
    }


def _layers() -> Iterator[PresetLayer]:
    for model in all_presets():
        for layer, setting in model.layers.items():
            yield PresetLayer(model, layer, setting)


# what `ropeaudit list` takes -> what it lists, and the row of each
LISTS: dict[str, tuple[Callable[[], Iterable[Any]], Callable[[Any], dict[str, Any]]]] = {
    "recipes": (all_recipes, recipe_row),
    "implementations": (third_party.listed, entry_row),
    "formats": (lambda: FORMATS, format_row),
    "models": (_layers, layer_row),
    "axes": (axial_presets.all_presets, axes_row),
    "columns": (lambda: map(records.COLUMNS.__getitem__, records.EVERY), column_row),
    "verdicts": (judging.VERDICTS.items, verdict_row),
    "diagnoses": (lambda: kinds().values(), diagnosis_row),
}
