"""What code behaves like: the named recipe, or the fault, whose rotated vectors are nearest to its own.

Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recipes import Resolved
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement.exact_rotation import rotated
from ropeaudit.subjects.placement.faults import faults

_CLEAR = 0.3  # what it behaves like is at most this share as far away as what it should be
_FORMS = {"recurrence": "angles by recurrence", "divide": "positions divided"}


@dataclass(frozen=True, slots=True)
class RecipeGroup:
    """Recipes that rotate with the same arithmetic in a dtype; scores are formed in float64 for all."""

    names: tuple[str, ...]
    resolved: Resolved

    def __str__(self) -> str:
        return f"{words(self.resolved)} ({', '.join(self.names)})" if self.names else words(self.resolved)


_WIDE_ROTATION = dict.fromkeys(("rotation", "output"), "fp64")


@functools.lru_cache(maxsize=16)
def groups(dtype: Format) -> tuple[RecipeGroup, ...]:
    """Return the named recipes by what they do to vectors of a dtype."""
    alike: dict[tuple[object, ...], list[Resolved]] = {}
    for recipe in recipes.all_recipes():
        if not recipe.refused:
            with_exact_scores = replace(
                recipe, stages=dict(recipe.stages) | {"accumulate": "fp64", "score": "fp64"}
            )
            resolved = with_exact_scores.resolve(dtype)
            alike.setdefault(arithmetic(resolved), []).append(resolved)
    return tuple(
        RecipeGroup(tuple(resolved.recipe.name for resolved in members), members[0])
        for members in alike.values()
    )


def variants(dtype: Format) -> Iterator[RecipeGroup]:
    """Yield `groups`, then what has no name: float32 but for one stage, in the dtype or in a 16-bit one.

    The rest is as in `meta` or as in `hf`.
    """
    yield from groups(dtype)
    known = {arithmetic(group.resolved) for group in groups(dtype)}
    stages = ("position", "frequency", "angle", "table", "rotation")
    if dtype is FP64:  # angles of float64 too, and float32 tables: what flux does, called with wide vectors
        yield RecipeGroup((), recipes.named("diffusers-flux").changed(_WIDE_ROTATION).resolve(dtype))
    for start, stage, narrow in itertools.product(("meta", "hf"), stages, ("model", "bf16", "fp16")):
        fmt = f"fp32/{narrow}" if stage in ("frequency", "angle") else narrow
        resolved = recipes.named(start).changed({stage: fmt}).resolve(dtype)
        if arithmetic(resolved) not in known:
            known.add(arithmetic(resolved))
            yield RecipeGroup((), resolved)


def arithmetic(recipe: Resolved) -> tuple[object, ...]:
    """Return all that a rotated vector depends on; cos and sin count as they are multiplied."""
    table = recipe.table or recipe.trig
    narrow = recipe.trig if recipe.trig.precision < table.precision else table
    rounding = recipe.recipe.rotation_rounding
    rest = (narrow, recipe.input, recipe.rotation, recipe.output, recipe.recipe.frequency_form, rounding)
    return (recipe.position, recipe.frequency, recipe.angle, *rest)


def words(recipe: Resolved) -> str:
    """Return in words how a recipe rotates: what is rounded before and after cos and sin."""
    parts = []
    before = {"positions": recipe.position, "frequencies": recipe.frequency[1], "angles": recipe.angle[1]}
    for name, fmt in before.items():
        if fmt.precision != FP32.precision:
            parts.append(f"{fmt} {name}")
    computed, stored = recipe.frequency
    if stored is FP32 and computed is not FP32:
        parts.append(f"frequencies computed in {computed}")
    form = recipe.recipe.frequency_form
    if form != "inverse_power":
        parts.append(_FORMS.get(form, f"frequencies by {form}"))
    table = recipe.table or recipe.trig
    if table.precision < FP32.precision:
        parts.append("rounded table" if table is recipe.dtype else f"{table} table")
    elif table is FP32 and recipe.rotation.precision > FP32.precision:
        parts.append("float32 table")
    once = " rounded once" if recipe.recipe.rotation_rounding == "once" else ""
    return ", ".join([*parts, f"{recipe.rotation} rotation{once}"])


def emulated(recipe: Resolved, setting: RopeSetting, x: Array, offset: int) -> FloatArray:
    """Return x as a recipe rotates it. Shapes: (h, s, d) -> (h, s, d)."""
    subject = Emulated(recipe, setting)
    table = subject.table(np.arange(x.shape[1], dtype=np.int64), offset)
    return np.stack([subject.rotate(round_to(head, subject.input), table) for head in x])


def rms_difference(y: FloatArray, other: FloatArray) -> float:
    """Return the RMS difference of two arrays; inf where either is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        value = float(np.sqrt(np.mean((y.astype(np.float64) - other) ** 2)))
    return value if np.isfinite(value) else float("inf")


def named(
    y: FloatArray,
    x: Array,
    setting: RopeSetting,
    dtype: Format,
    offset: int,
    seen: Callable[[FloatArray], FloatArray] = lambda vectors: vectors,
    explains: Callable[[FloatArray], bool] | None = None,
) -> str:
    """Return in words what rotated x into `y`; empty where nothing known is clearly nearer than exact.

    seen: what is compared of rotated vectors, such as their scores. explains: whether what is seen of others
    is all of `y`; without it the nearest is returned. Shapes: x (h, s, d).
    """
    exact = rotated(x, np.arange(x.shape[1]) + offset, setting)
    from_exact = rms_difference(y, seen(exact))
    if not np.isfinite(from_exact):
        return _named_nonfinite(y, x, setting, dtype, offset, seen)
    plain = [(str(group), emulated(group.resolved, setting, x, offset)) for group in variants(dtype)]
    nearest, distance = "", _CLEAR * from_exact
    for text, other_vectors in (*_faulty(x, setting, offset), *plain):
        if (size := rms_difference(y, other := seen(other_vectors))) < distance and (
            not explains or explains(other)
        ):
            nearest, distance = text, size
    return nearest or _heads(y, seen(exact))


def _faulty(x: Array, setting: RopeSetting, offset: int) -> Iterator[tuple[str, FloatArray]]:
    """Yield what usual faults make of x, in float64. Shapes: x (h, s, d)."""
    at = np.arange(x.shape[1], dtype=np.int64) + offset
    for fault in faults(setting):
        seen = fault.seen(at)
        if fault.setting != setting or not np.array_equal(seen, at):
            yield fault.text, rotated(x, seen, fault.setting)


def base_of(y: FloatArray, x: Array, setting: RopeSetting) -> float:
    """Return the base that vectors at neighbouring positions show; nan where they show none.

    From one position to the next pair i is rotated by theta_i = base^(-2i/d). Shapes: y, x (h, s, d).
    """
    (a, b), (c, d) = split_pairs(x, setting), split_pairs(y.astype(np.float64), setting)
    with np.errstate(invalid="ignore", divide="ignore"):
        rotations = (c + 1j * d) * np.conj(a + 1j * b)
        angle = np.angle((rotations[:, 1:] * np.conj(rotations[:, :-1])).sum(axis=(0, 1)))
        i = np.arange(setting.pairs)
        usable = (i >= 1) & (angle > 0.02) & (angle < 1)
        logs = -np.log(angle[usable]) * setting.rotary_dim / (2 * i[usable])
    return float(np.exp(np.median(logs))) if logs.size else float("nan")


def _named_nonfinite(
    y: FloatArray,
    x: Array,
    setting: RopeSetting,
    dtype: Format,
    offset: int,
    seen: Callable[[FloatArray], FloatArray],
) -> str:
    """Return the recipes whose vectors are nonfinite in the same places, in words."""
    with np.errstate(invalid="ignore", over="ignore"):
        names = [
            name
            for group in groups(dtype)
            if np.array_equal(np.isfinite(y), np.isfinite(seen(emulated(group.resolved, setting, x, offset))))
            for name in group.names
        ]
    return f"nan or inf, as {', '.join(names)}" if names else "nan or inf"


def _heads(y: FloatArray, exact: FloatArray) -> str:
    """Return which heads are off, in words, where most are not."""
    sizes = np.sqrt(np.mean((y - exact) ** 2, axis=(1, 2)))
    off = np.flatnonzero(sizes > max(10 * float(np.median(sizes)), 1e-12))
    if not off.size or off.size * 2 > sizes.size:
        return ""
    return f"head {', '.join(map(str, off))} of {sizes.size} is turned otherwise than the rest"
