"""The rows of an explanation: by stage, pair and remedy; of code its dtypes, drift and recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ropeaudit.audits.judging import ratio
from ropeaudit.features.explain import blames
from ropeaudit.features.explain.analysis import Explanation
from ropeaudit.features.explain.known_recipes import Likeness, Stage, expected, narrowest
from ropeaudit.features.explain.remedies import Remedy
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.recipes import STAGES
from ropeaudit.recognition import wording
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.reports import settings
from ropeaudit.runtime.columns import Columns, table

Row = dict[str, Any]
SCHEMA = 1
REST = "accumulation and output rounding"  # what is of no pair
_NOTHING = Stage("none", ("none",), ())
_RECIPES = 4  # listed, beside those that are as near as the nearest


def _common(one: Explanation) -> Row:
    return {
        "schema": SCHEMA,
        "implementation": one.implementation,
        "dtype": one.recipe.dtype.name,
        "offset": one.offset,
        **settings.values(one),
        "sampled_positions": int(one.sample.positions.size),
        "sampled_heads": len(one.sample.heads),
        "scores": one.drift.count,
        "nonfinite": one.drift.nonfinite,
        "reference_rms": one.reference.rms,
        "reference_error": one.error,
        "drift_max": one.drift.max,
        "drift_rms": one.drift.rms,
        "drift_relative": ratio(one.drift.rms, one.reference.rms),
    }


def stage_rows(one: Explanation) -> list[Row]:
    """Return a row a stage, the worst first."""
    common = _common(one)
    return [
        common
        | {
            "stage": blame.stage,
            "format": blame.format,
            "share": blame.share,
            "alone_rms": blame.alone,
            "without_rms": blame.without,
            "removed": blame.removed,
            "cause": blame.cause,
        }
        for blame in one.blames
    ]


def pair_rows(one: Explanation) -> list[Row]:
    """Return a row a frequency pair; behind the last stands what is of none."""
    common, results, vectors = _common(one), [], len(one.sample.heads) * one.sample.positions.size
    for i, (square, product) in enumerate(zip(one.parts.squares, one.parts.products, strict=True)):
        rest = i == len(one.wavelengths)
        q_norm, k_norm = (math.nan, math.nan) if rest else (one.parts.norms[:, i] / vectors).tolist()
        own = {
            "pair": REST if rest else i,
            "wavelength": math.nan if rest else float(one.wavelengths[i]),
            "part_rms": math.sqrt(square / one.drift.count),
            "share": ratio(float(product), one.parts.whole),
            "q_norm": q_norm,
            "k_norm": k_norm,
        }
        results.append(common | own)
    return results


def remedy_rows(one: Explanation) -> list[Row]:
    """Return a row a remedy, the smallest set of stages first."""
    common = _common(one)
    return [
        common
        | {
            "size": len(remedy.widths),
            "set": changes(one, remedy),
            "left_rms": remedy.drift.rms,
            "left_max": remedy.drift.max,
            "left_relative": ratio(remedy.drift.rms, one.reference.rms),
            "left_nonfinite": remedy.drift.nonfinite,
            "removed": remedy.removed,
            "meets": "yes" if remedy.meets else "no",
            "tolerance": str(one.tolerance),
            "table_bytes": remedy.table_bytes,
            "multiply_bits": remedy.multiply_bits,
        }
        for remedy in one.remedies
    ]


def changes(one: Explanation, remedy: Remedy) -> str:
    """Return a remedy as --set takes it: angle=fp64,table=fp32."""
    wide = blames.widened(one.recipe, remedy.widths)
    texts = {s: "/".join(dict.fromkeys(f.short for f in blames.formats(wide, s))) for s in remedy.widths}
    return ",".join(f"{stage}={texts[stage]}" for stage in STAGES if stage in texts) or "nothing"


KINDS: Mapping[str, Callable[[Explanation], list[Row]]] = {
    "stage": stage_rows,
    "pair": pair_rows,
    "remedy": remedy_rows,
}
OWN: Mapping[str, Columns] = {kind: table(f"explain-{kind}") for kind in KINDS}
COLUMNS: Mapping[str, Columns] = {  # of every kind of rows that may be asked for
    "dtypes": table("explain-dtypes"),
    **{kind: table("explain", f"explain-{kind}") for kind in KINDS},
}


def _called(one: Trace) -> Row:
    return {"implementation": one.name, "dtype": one.dtype.name, "environment": one.environment}


def _near(like: Likeness | None) -> Row:
    return {name: getattr(like, name) if like else math.nan for name in ("distance", "equal", "profile")}


def _arithmetic(group: RecipeGroup) -> str:
    """Return what recipes round, in words, without their names."""
    return wording.arithmetic(group.values() | {"recipes": ()})


def dtypes_rows(one: Trace) -> list[Row]:
    """Return a row a stage of code that was seen, beside the nearest recipe."""
    best = one.nearest()[0] if one.likely else None
    formats = expected(best.group.resolved) if best else {}
    results = []
    for stage in one.stages or (_NOTHING,):
        there = formats.get(stage.name)
        row = {
            "schema": SCHEMA,
            **_called(one),
            "device": one.device,
            **{name: getattr(one.setting, name) for name in ("layout", "head_dim", "rotary_dim", "base")},
            "stage": stage.name,
            "seen": " -> ".join(stage.dtypes),
            "operations": " ".join(stage.operations) or "none",
            "recipe_format": there or "none",
            "agrees": None if there is None else "yes" if narrowest(stage) == there else "no",
            "nearest": " ".join(one.recipes()) or "none",
            "behaviour": _arithmetic(best.group) if best else one.told() or "none",
            "diagnosis": one.diagnosis(),
            **_near(best),
            "refused": one.refused or "none",
        }
        results.append(row)
    return results


def profile_rows(one: Trace) -> list[Row]:
    """Return a row an offset: the drift of code, and what the nearest recipe predicts, nan without one."""
    results = []
    for offset, drift in (one.drifts or {}).items():
        predicted = (one.predicted or {}).get(offset, math.nan)
        times = drift / predicted if predicted else math.nan
        row = {"offset": offset, "drift_rms": drift, "predicted_rms": predicted, "ratio": times}
        results.append(_called(one) | row)
    return results


def recipe_rows(one: Trace) -> list[Row]:
    """Return a row a recipe that code may be like, the nearest first."""
    return [
        _called(one)
        | {
            "behaviour": _arithmetic(like.group),
            "recipes": " ".join(like.group.names) or "none",
            **_near(like),
            "stages_differing": " ".join(like.differing) or "none",
        }
        for like in one.likely[: max(_RECIPES, len(one.nearest()))]
    ]
