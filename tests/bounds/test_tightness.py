"""Bounds and predictions from the other side: no looser than they were, for every class of recipe."""

from __future__ import annotations

import functools
import math
from collections import defaultdict

import pytest

from ropeaudit import recipes, shift
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.records import Record

DTYPES = ("fp64", "fp32", "fp16", "bf16")
CASE = {"heads": 1, "seq_len": 256, "head_dim": 64}

# Largest drift over bound at offsets 0 and 131072; nan where scores overflow. A bound holds if this is at
# most 1 (test_bounds), and says something if it does not fall: a term that is counted twice, or a format
# that is taken for a narrower one, shows here.
RATIOS = {
    ("uniform", "float64"): (0.106, 0.39),
    ("uniform", "float32"): (0.161, 0.564),
    ("uniform", "float16"): (0.301, math.nan),
    ("uniform", "bfloat16"): (0.211, 0.207),
    ("fp64-angles", "float32"): (0.031, 0.024),
    ("fp64-angles", "float16"): (0.069, 0.095),
    ("fp64-angles", "bfloat16"): (0.087, 0.086),
    ("fp16-table-in-bf16", "float64"): (0.082, 0.363),
    ("fp16-table-in-bf16", "float32"): (0.082, 0.363),
    ("fp16-table-in-bf16", "float16"): (0.079, 0.264),
    ("fp16-table-in-bf16", "bfloat16"): (0.108, 0.094),
    ("hf", "float64"): (0.336, 0.565),
    ("hf", "float16"): (0.057, 0.174),
    ("hf", "bfloat16"): (0.05, 0.056),
    ("hf-model-cast", "float64"): (0.336, 0.565),
    ("hf-model-cast", "float16"): (0.432, 0.413),
    ("hf-model-cast", "bfloat16"): (0.175, 0.196),
    ("hf-tf32-matmul", "float64"): (0.658, 0.201),
    ("hf-tf32-matmul", "float32"): (0.658, 0.201),
    ("hf-tf32-matmul", "float16"): (0.432, 0.2),
    ("hf-tf32-matmul", "bfloat16"): (0.112, 0.198),
    ("hf-4.31-table", "float64"): (0.47, 0.47),
    ("hf-4.31-table", "float16"): (0.24, math.nan),
    ("hf-4.31-table", "bfloat16"): (0.216, 0.207),
    ("hf-complex", "float64"): (0.309, 0.565),
    ("hf-complex", "float16"): (0.114, 0.308),
    ("hf-complex", "bfloat16"): (0.169, 0.118),
    ("torchtune", "float16"): (0.12, 0.357),
    ("torchtune", "bfloat16"): (0.122, 0.118),
    ("vllm-cuda", "float64"): (0.317, 0.565),
    ("vllm-cuda", "bfloat16"): (0.073, 0.081),
    ("te-fused", "float64"): (0.317, 0.565),
    ("te-fused", "float32"): (0.163, 0.564),
    ("te-fused", "float16"): (0.12, 0.357),
    ("te-fused", "bfloat16"): (0.122, 0.118),
    ("gpt-neox-te", "float64"): (0.317, 0.565),
    ("gpt-neox-te", "float16"): (0.256, math.nan),
    ("gpt-neox-te", "bfloat16"): (0.34, 0.257),
    ("llamacpp-cpu", "float64"): (0.138, 0.168),
    ("llamacpp-cpu", "float16"): (0.119, 0.143),
    ("llamacpp-cpu", "bfloat16"): (0.122, 0.089),
    ("diffusers-flux", "float64"): (0.053, 0.054),
    ("diffusers-flux", "float16"): (0.12, 0.13),
    ("diffusers-flux", "bfloat16"): (0.122, 0.128),
    ("trtllm", "float64"): (0.292, 0.565),
    ("trtllm", "float32"): (0.15, 0.564),
    ("trtllm", "float16"): (0.12, 0.363),
    ("trtllm", "bfloat16"): (0.122, 0.108),
}
WORSE = 0.9  # of what it was


def distinct() -> dict[str, list[str]]:
    """Return recipe -> dtypes, without those whose stages are the same as earlier ones'."""
    seen, result = set(), defaultdict(list)
    for recipe in recipes.all_recipes():
        for dtype in DTYPES if not recipe.refused else ():
            stages = recipe.resolve(parse(dtype))
            words = repr(stages).replace(recipe.name, "")
            if words not in seen:
                result[recipe.name].append(dtype)
            seen.add(words)
    return dict(result)


DISTINCT = distinct()


@functools.cache
def rows(name: str) -> list[Record]:
    return list(shift((0, 1000, 131072), DISTINCT[name], name, threads=1, **CASE))


@pytest.mark.parametrize("name", DISTINCT)
def test_the_prediction_is_near_what_is_measured(name: str) -> None:
    """Where scores still resemble the exact ones; beyond that phases are no small errors any more."""
    judged = [row for row in rows(name) if not row.nonfinite and row.drift_relative < 0.5]
    ratios = {(row.dtype, row.offset): row.predicted_rms / row.drift_rms for row in judged}
    assert ratios
    assert {key: ratio for key, ratio in ratios.items() if not 0.73 < ratio < 1.46} == {}


@pytest.mark.parametrize("name", sorted({name for name, _ in RATIOS}))
def test_the_bound_is_as_tight_as_it_was(name: str) -> None:
    looser = {}
    for row in rows(name):
        was = RATIOS.get((name, row.dtype), (math.nan,) * 2)[row.offset > 0]
        if row.offset != 1000 and was == was:
            ratio = row.drift_max / row.bound_max
            looser |= {(row.dtype, row.offset): (ratio, was)} if not ratio >= WORSE * was else {}
    assert looser == {}


def test_every_class_of_recipe_is_here() -> None:
    """Narrow positions, angles, tables, rotations, accumulators; frequencies of every form."""
    assert {name for name, _ in RATIOS} <= DISTINCT.keys()
    assert len(DISTINCT) > 20
    assert sum(map(len, DISTINCT.values())) > 60
