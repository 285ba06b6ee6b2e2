"""The rotations of the named recipes and of variants of them; and the record of a call.

Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit import data, recipes
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recipes import Recipe, Resolved
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import STAGE_CODES, Diagnosis, Value
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

_ROUNDINGS = data.table("candidates.toml")["roundings"]
_WIDE_ROTATION = dict.fromkeys(("rotation", "output"), "fp64")


@dataclass(frozen=True, slots=True)
class CalledBlock:
    """One call and its result: positions, q and k as passed and as rotated.

    Shapes: at (s,), or (b, s) where batch elements have positions of their own; q and k (b, h, s, d).
    """

    at: Positions
    given: tuple[FloatArray, FloatArray]
    rotated: tuple[FloatArray, FloatArray]

    @property
    def length(self) -> int:
        """The number of tokens of a row."""
        return int(self.at.shape[-1])

    @property
    def first(self) -> int:
        """The lowest position, which is the first one of a run."""
        return int(self.at.min())

    def rows(self) -> Positions:
        """Return the positions of each batch element. Shapes: -> (b, s)."""
        return np.broadcast_to(self.at, (len(self.given[0]), self.length))


@dataclass(frozen=True, slots=True)
class RecipeGroup:
    """Recipes with the same arithmetic in a dtype; all form scores in float64."""

    names: tuple[str, ...]
    resolved: Resolved

    def values(self) -> dict[str, Value]:
        """Return the format of each stage, as values of a diagnosis."""
        one = self.resolved
        return {
            "position": str(one.position),
            "frequency": str(one.frequency[1]),
            "computed": str(one.frequency[0]),
            "angle": str(one.angle[1]),
            "table": str(one.table or one.trig),
            "rotation": str(one.rotation),
            "form": one.recipe.frequency_form,
            "rounding": one.recipe.rotation_rounding,
            "dtype": str(one.dtype),
            "recipes": self.names,
        }

    @property
    def narrow(self) -> list[str]:
        """The stages that are too narrow, in the order in which they are computed."""
        has, needs = _precisions(self.resolved), _precisions(allowance.careful(self.resolved.dtype))
        return [stage for stage, bits in has.items() if bits < needs[stage]]

    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of its first stage that is too narrow, or "known-recipe"."""
        has, below = _precisions(self.resolved), self.narrow
        first = [stage for stage in below if has[stage] < FP32.precision] or below  # of float64 vectors too
        return Diagnosis(STAGE_CODES[first[0]] if first else "known-recipe", self.values())


def _precisions(recipe: Resolved) -> dict[str, int]:
    """Return the precision of each stage, in the order in which they are computed."""
    return {
        "position": recipe.position.precision,
        "frequency": min(fmt.precision for fmt in recipe.frequency),
        "angle": recipe.angle[1].precision,
        "table": (recipe.table or recipe.trig).precision,
        "rotation": recipe.rotation.precision,
    }


def _with_exact_scores(recipe: Recipe) -> Recipe:
    return replace(recipe, stages=dict(recipe.stages) | {"accumulate": "fp64", "score": "fp64"})


@functools.lru_cache(maxsize=16)
def groups(dtype: Format, *, stepped: bool = True) -> tuple[RecipeGroup, ...]:
    """Return the named recipes, grouped by their arithmetic in a dtype.

    stepped: whether to include recipes that compute a frequency from the one before; not on a grid.
    """
    alike: dict[tuple[object, ...], list[Resolved]] = {}
    for recipe in recipes.all_recipes():
        if not recipe.refused and (stepped or recipe.frequency_form not in allowance.STEPPED):
            resolved = _with_exact_scores(recipe).resolve(dtype)
            alike.setdefault(arithmetic(resolved), []).append(resolved)
    return tuple(
        RecipeGroup(tuple(resolved.recipe.name for resolved in members), members[0])
        for members in alike.values()
    )


@functools.lru_cache(maxsize=16)
def candidate_groups(dtype: Format, *, stepped: bool = True) -> tuple[RecipeGroup, ...]:
    """Return `groups` and unnamed variants of candidates.toml: float32 but for one stage."""
    found = list(groups(dtype, stepped=stepped))
    known = {arithmetic(group.resolved) for group in found}
    if dtype is FP64:  # angles of float64 too, and float32 tables: what flux does, called with wide vectors
        found.append(RecipeGroup((), recipes.named("diffusers-flux").changed(_WIDE_ROTATION).resolve(dtype)))
    for start, (stage, computed), narrow in itertools.product(*_ROUNDINGS.values()):
        one = _with_exact_scores(recipes.named(start))
        resolved = one.changed({stage: computed + narrow}).resolve(dtype)
        if arithmetic(resolved) not in known:
            known.add(arithmetic(resolved))
            found.append(RecipeGroup((), resolved))
    return tuple(found)


@functools.lru_cache(maxsize=64)
def table_recipe(
    form: str, position: str = "fp64", computed: str = "fp64", frequency: str = "fp64", angle: str = "fp64"
) -> RecipeGroup:
    """Return the recipe of a table with some stages rounded to formats, all others in float64."""
    changes = {"position": position, "frequency": f"{computed}/{frequency}", "angle": f"fp64/{angle}"}
    changes |= {"frequency_form": form, "table": "none"}
    return RecipeGroup((), recipes.named("fp64-angles").changed(changes).resolve(FP64))


def arithmetic(recipe: Resolved) -> tuple[object, ...]:
    """Return the formats and forms of a recipe that affect a rotated vector."""
    table = recipe.table or recipe.trig
    narrow = recipe.trig if recipe.trig.precision < table.precision else table
    rounding = recipe.recipe.rotation_rounding
    rest = (narrow, recipe.input, recipe.rotation, recipe.output, recipe.recipe.frequency_form, rounding)
    return (recipe.position, recipe.frequency, recipe.angle, *rest)


def rotated(group: RecipeGroup, x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    """Return x as a recipe rotates it. Shapes: (..., s, d), (s,) -> (..., s, d)."""
    subject = Emulated(group.resolved, setting)
    table, flat = subject.table(at, 0), round_to(x, subject.input).reshape(-1, *x.shape[-2:])
    return np.asarray(np.stack([subject.rotate(head, table) for head in flat]).reshape(x.shape))
