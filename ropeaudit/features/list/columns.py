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
from ropeaudit.runtime.columns import Column, Columns, Declare, Together
from ropeaudit.subjects import third_party
from ropeaudit.subjects.third_party import Entry


@dataclass(frozen=True, slots=True)
class PresetLayer:
    """A layer type of a model."""

    preset: ModelRope
    layer: str
    setting: RopeSetting


_SHOWN = ("position", "frequency", "angle", "table", "rotation", "score")  # stages
_STAGES: list[Column[Recipe]] = [
    Column(
        name,
        str,
        f"number format of the stage {name}",
        shown=name in _SHOWN,
        leaves=len(STAGES) - place if name in _SHOWN else 0,  # the last stage leaves a narrow screen first
    )
    for place, name in enumerate(STAGES)
]
of_recipe = Declare[Recipe]()
of_entry = Declare[Entry]()
of_format = Declare[Format]()
of_layer = Declare[PresetLayer]()
of_axes = Declare[AxialRope]()
of_column = Declare[Column[Any]]()
of_verdict = Declare[tuple[str, str]]()
of_kind = Declare[Kind]()


class RecipeColumns:
    """The columns of `ropeaudit list recipes`."""

    recipe: str = of_recipe("its name", lambda one: one.name, shown=True)
    summary: str = of_recipe("what it imitates", shown=True, shown_after="score")
    runs: str = of_recipe(
        "yes, or why it is refused",
        lambda one: f"refused: {one.refused}" if one.refused else "yes",
        shown=True,
        leaves=1,
        shown_after="summary",
    )
    stages = Together[Recipe](_STAGES, lambda one: one.stages)
    frequency_form: str = of_recipe("how frequencies are computed")
    rotation_rounding: str = of_recipe("what of a rotation is rounded")
    scale_after_store: int = of_recipe("whether scores are scaled after they are stored")
    source: str = of_recipe("the code that it imitates")
    note: str = of_recipe("what else is known of it")
    verified: str = of_recipe("how it was compared with that code")


def _layouts(one: Entry) -> str:
    """Return the layouts; a family's class has one, which is measured when it is called."""
    return "one of two" if one.target or one.classes > 1 else " ".join(one.layouts)


def _runs(one: Entry) -> str:
    if not one.installed:
        return one.install
    return "when called" if one.target else "yes"


class EntryColumns:
    """The columns of `ropeaudit list implementations`."""

    implementation: str = of_entry("its name", lambda one: one.name, shown=True)
    package: str = of_entry("the package that it is of")
    version: str = of_entry("of that package", shown=True)
    layouts: str = of_entry("pairs of dims that it takes", _layouts, shown=True)
    dtypes: str = of_entry("number formats that it takes", lambda one: " ".join(one.dtypes), shown=True)
    calls: str = of_entry("the function that is called")
    classes: int = of_entry("how many its name stands for", shown=True, leaves=1)
    runs: str = of_entry(
        "yes, or what to type to install it; of a family's class it shows when it is called",
        _runs,
        shown=True,
    )


class FormatColumns:
    """The columns of `ropeaudit list formats`."""

    format: str = of_format("its name", lambda one: one.name, shown=True)
    aliases: str = of_format("other names", lambda one: " ".join(one.aliases), shown=True, leaves=4)
    precision: int = of_format("significant bits", unit="bits", shown=True)
    unit_roundoff: float = of_format("largest relative error of a rounding", shown=True)
    largest: float = of_format("largest number", shown=True)
    smallest_normal: float = of_format("smallest normal number", shown=True, leaves=3)
    smallest_subnormal: float = of_format("smallest number above 0", shown=True, leaves=2)
    first_inexact_integer: int = of_format("smallest whole number that it does not hold", shown=True)
    overflow: str = of_format("what a number beyond the largest becomes", shown=True, leaves=1)


class LayerColumns:
    """The columns of `ropeaudit list models`."""

    model: str = of_layer("its name", lambda one: one.preset.name, shown=True)
    layer: str = of_layer("its layer type", shown=True)
    base = of_layer.like(records.COLUMNS["base"], lambda one: one.setting.base, shown=True)
    head_dim = of_layer.like(records.COLUMNS["head_dim"], lambda one: one.setting.head_dim, shown=True)
    rotary_dim = of_layer.like(records.COLUMNS["rotary_dim"], lambda one: one.setting.rotary_dim, shown=True)
    layout = of_layer.like(records.COLUMNS["layout"], lambda one: one.setting.layout)
    heads = of_layer.like(records.COLUMNS["heads"], lambda one: one.preset.heads, shown=True, leaves=3)
    kv_heads = of_layer.like(
        records.COLUMNS["kv_heads"], lambda one: one.preset.kv_heads, shown=True, leaves=2
    )
    maximum: int | None = of_layer(
        "positions that it is made for", lambda one: one.preset.maximum, unit="tokens", shown=True
    )
    scaling = of_layer.like(records.COLUMNS["scaling"], lambda one: str(one.setting.scaling))
    scale = of_layer.like(records.COLUMNS["scale"], lambda one: one.setting.scale)
    source: str = of_layer("where that stands", lambda one: one.preset.source, shown=True, leaves=1)
    kind: str = of_layer("the kind of scaling", lambda one: one.setting.scaling.kind, shown=True)


class AxesColumns:
    """The columns of `ropeaudit list axes`."""

    name: str = of_axes("its name", shown=True)
    summary: str = of_axes("whose they are", shown=True)
    axes: str = of_axes("position axes", lambda one: " ".join(one.axes), shown=True)
    dims: str = of_axes(
        "dims of a head that each axis rotates",
        lambda one: "+".join(str(2 * sum(p.axis == a for p in one.pairs())) for a in range(len(one.axes))),
        shown=True,
    )
    base: str = of_axes(
        "base of the frequencies of each axis, in the order of the axes where they differ",
        lambda one: " ".join(dict.fromkeys(f"{base:g}" for base in one.base)),
        shown=True,
    )
    factor: str = of_axes("what multiplies every frequency")
    arrangement: str = of_axes("which axis and which frequency a pair of dims has", shown=True, leaves=3)
    positions: str = of_axes(
        "where tokens stand on each axis",
        lambda one: " ".join(dict.fromkeys(one.positions)),
        shown=True,
        leaves=4,
    )
    head_dim: int = of_axes("dims of a head")
    layout: str = of_axes("pairs of dims: half or interleaved")
    heads: int = of_axes("query heads")
    kv_heads: int = of_axes("key-value heads")
    recipe: str = of_axes("the recipe that computes as the source does", shown=True)
    source: str = of_axes("where that stands", shown=True, leaves=1)


class ColumnColumns:
    """The columns of `ropeaudit list columns`."""

    column: str = of_column("its name", lambda one: one.name, shown=True)
    group: str = of_column(
        "with which others --columns takes it: core is always there",
        lambda one: one.group or "core",
        shown=True,
    )
    meaning: str = of_column("what it holds", shown=True)
    unit: str = of_column("unit of its numbers; empty where they have none", lambda one: one.unit)
    another_processor: str = of_column(
        "what of it another processor may change, at the same command",
        lambda one: summation.meaning(one.name),
    )


class VerdictColumns:
    """The columns of `ropeaudit list verdicts`."""

    verdict: str = of_verdict("the word", lambda one: one[0], shown=True)
    meaning: str = of_verdict("when it holds", lambda one: one[1], shown=True)


class DiagnosisColumns:
    """The columns of `ropeaudit list diagnoses`; a value that is measured stands there by its name."""

    code: str = of_kind("what rows, JUnit, waivers and tickets have", shown=True)
    group = Column[Kind]("class", str, "what kind of thing is wrong", lambda one: one.group, shown=True)
    title: str = of_kind("what it is, in a few words", shown=True)
    sentence: str = of_kind("how it is said", lambda one: wording.template(one.sentence))
    gradient: str = of_kind("how it is said of a gradient", lambda one: wording.template(one.gradient))
    shows: str = of_kind("how numbers look that have it")
    cause: str = of_kind("what it comes of")
    remedy: str = of_kind(
        "what to change; empty where that is not known", lambda one: wording.template(one.remedy), shown=True
    )
    gradient_remedy: str = of_kind(
        "what to change in a backward pass", lambda one: wording.template(one.gradient_remedy)
    )
    option: str = of_kind(
        "option with which the same code may be right", lambda one: wording.template(one.option)
    )
    bugs: str = of_kind("bugs of this kind that shipped", lambda one: ", ".join(one.bugs))


MODELS = of_layer.columns(LayerColumns)


def _layers() -> Iterator[PresetLayer]:
    for model in all_presets():
        for layer, setting in model.layers.items():
            yield PresetLayer(model, layer, setting)


# what `ropeaudit list` takes -> the columns, and the items of the rows
LISTS: dict[str, tuple[Columns[Any], Callable[[], Iterable[Any]]]] = {
    "recipes": (of_recipe.columns(RecipeColumns), all_recipes),
    "implementations": (of_entry.columns(EntryColumns), third_party.listed),
    "formats": (of_format.columns(FormatColumns), lambda: FORMATS),
    "models": (MODELS, _layers),
    "axes": (of_axes.columns(AxesColumns), axial_presets.all_presets),
    "columns": (of_column.columns(ColumnColumns), lambda: map(records.COLUMNS.__getitem__, records.EVERY)),
    "verdicts": (of_verdict.columns(VerdictColumns), judging.VERDICTS.items),
    "diagnoses": (of_kind.columns(DiagnosisColumns), lambda: kinds().values()),
}
