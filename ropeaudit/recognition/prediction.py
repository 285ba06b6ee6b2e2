"""Predictions: the vectors or tables of code with a fault, and the allowed error around them.

A table of cos and sin is the rotation of vectors whose pairs are all 1. Dims that are not rotated follow the
pairs, two by two.
Letters: s positions, d head_dim, p pairs, r pairs of dims that are not rotated.
"""

from __future__ import annotations

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recognition import allowance, faults, known_recipes
from ropeaudit.recognition.faults import Complex, Fault
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.emulated import Emulated


def paired(x: FloatArray, setting: RopeSetting) -> Complex:
    """Return the pairs of vectors as complex numbers. Shapes: (..., d) -> (..., p + r)."""
    pairs = np.empty((*x.shape[:-1], x.shape[-1] // 2), np.complex128)
    pairs[..., : setting.pairs] = exact_rotation.complex_pairs(x, setting)
    rest = pairs[..., setting.pairs :]
    rest.real, rest.imag = x[..., setting.rotary_dim :: 2], x[..., setting.rotary_dim + 1 :: 2]
    return pairs


def predicted(
    fault: Fault, asked: RopeSetting, x: FloatArray | None, at: Positions, dtype: Format
) -> Complex:
    """Return vectors, or a table, as code with a fault rotates them at (already mapped) positions.

    Shapes: x (s, d), at (s,) -> (s, p + r), of a table (s, p).
    """
    other = fault.setting(asked)
    if x is None:
        turns = _turns(fault, other, at, dtype)
        return fault.turned(np.ones_like(turns), turns)
    if fault.rounded is not None:  # torch rounds float64 by way of float32
        x = round_to(round_to(x, FP32) if dtype is FP64 else x, fault.rounded)
    if fault.recipe and not fault.bends:
        return paired(known_recipes.rotated(fault.recipe, x, at, other), other)
    pairs = paired(x, other)
    rotated, rest = pairs[:, : other.pairs], pairs[:, other.pairs :]
    turned = fault.turned(rotated, _turns(fault, other, at, dtype))
    if fault.grows is not None:
        turned = turned * fault.grows.lengths(other, at)
    return np.hstack([turned, fault.times * rest])


def _turns(
    fault: Fault,
    other: RopeSetting,
    at: Positions,
    dtype: Format,
) -> Complex:
    """Return the factors that rotate pairs, by the fault's recipe or NumPy. Shapes: -> (s, p)."""
    recipe = fault.recipe and fault.recipe.resolved
    if recipe and (recipe.table or recipe.trig is not FP64):
        cos, sin = Emulated(recipe, other).table(at, 0)
        return np.asarray(cos.astype(np.float64) + 1j * sin.astype(np.float64))
    if dtype is FP64 and not recipe:
        return exact_rotation.rotations(other, at, dtype)
    return np.asarray(attention_factor(other.scaling) * np.exp(1j * angles(fault, other, at)))


def angles(fault: Fault, other: RopeSetting, at: Positions) -> Array:
    """Return the angles of pairs, as the fault's recipe rounds them. Shapes: (s,) -> (s, p)."""
    if fault.recipe:
        return Emulated(fault.recipe.resolved, other).angles(at).astype(np.float64)
    return np.asarray(np.clip(at[:, None] * faults.theta(other), -other.clip, other.clip))


def allowed(
    fault: Fault, asked: RopeSetting, at: Positions, taken: Positions, dtype: Format, *, table: bool = False
) -> Array:
    """Return the allowed error of pairs around a fault's prediction, over their length.

    It is that of correct code in the dtype, or twice that of the fault's recipe if this is larger.
    at, taken: the positions of the call, and those that the fault makes of them. Shapes: (s,) twice ->
    (s, p + r), of a table (s, p).
    """
    rule, other = allowance.careful(dtype), fault.setting(asked)
    theta = faults.theta(other)
    phase = allowance.phase(rule, other, taken, theta)
    if at is not taken:
        phase = np.maximum(phase, allowance.phase(rule, other, at, theta))
    if fault.mixes:
        phase = np.broadcast_to(phase.max(axis=-1, keepdims=True), phase.shape)
    rounding = allowance.rounding_error(rule, asked)
    if table:
        rounding = attention_factor(asked.scaling) * allowance.table_error(rule, asked)
    elif fault.recipe:
        own = fault.recipe.resolved
        phase = np.maximum(phase, 2 * allowance.phase_error(own, other, taken, theta))
        rounding = max(rounding, 2 * allowance.rounding_error(own, asked))
    errors = attention_factor(other.scaling) * np.minimum(2.0, phase) + rounding
    rest = 0 if table else other.head_dim // 2 - other.pairs
    return np.pad(errors, ((0, 0), (0, rest)), constant_values=rounding * max(1.0, fault.times))
