"""The report of explanations: the answer, the tables by stage, pair and remedy, and those of code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits.case_run import setting_columns
from ropeaudit.audits.judging import ratio
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.explain.analysis import CodeExplanation, Explanation
from ropeaudit.features.explain.answer import answer, changes
from ropeaudit.features.explain.tracing import Likeness, Stage, Trace, expected, narrowest
from ropeaudit.recognition import wording
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.reports import Report, answers, settings
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import part
from ropeaudit.reports.verdicts import under
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
        **setting_columns(one.case, one.inputs, one.setting),
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


def _rounding(group: RecipeGroup) -> str:
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
            "behaviour": _rounding(best.group) if best else one.told() or "none",
            "diagnosis": one.diagnosis(),
            **_near(best),
            "refused": one.refused or "none",
        }
        results.append(row)
    return results


def profile_rows(one: Trace) -> list[Row]:
    """Return a row an offset: the drift of code, and what the nearest recipe predicts, nan without one."""
    results = []
    for offset, drift in one.drifts.items():
        predicted = one.predicted.get(offset, math.nan)
        times = drift / predicted if predicted else math.nan
        row = {"offset": offset, "drift_rms": drift, "predicted_rms": predicted, "ratio": times}
        results.append(_called(one) | row)
    return results


def recipe_rows(one: Trace) -> list[Row]:
    """Return a row a recipe that code may be like, the nearest first."""
    return [
        _called(one)
        | {
            "behaviour": _rounding(like.group),
            "recipes": " ".join(like.group.names) or "none",
            **_near(like),
            "stages_differing": " ".join(like.differing) or "none",
        }
        for like in one.likely[: max(_RECIPES, len(one.nearest()))]
    ]


_LEGENDS = {"stage": "share: of the mean square drift (Shapley value); scores are scaled, before softmax."}
_TITLES = {
    "stage": "Stages, the worst first:",
    "pair": "",  # people see them where they ask for them
    "remedy": "Smallest sets of stages to compute in higher precision:",
}
_PLURAL = {"dtypes": "dtypes", "stage": "stages", "pair": "pairs", "remedy": "remedies"}


def check_kind(kind: str, code: bool) -> None:
    """Check that there are rows of a kind. Raises: UsageError, UnknownName."""
    if kind not in _PLURAL:
        raise UnknownName("--by", kind, _PLURAL)
    if kind == "dtypes" and not code:
        raise UsageError("--by dtypes shows code that is called; name some, such as rope.py:apply_rope")


def report(
    results: Sequence[Explanation | CodeExplanation],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    by: str | None = None,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    by: what the rows are; by default dtypes where there is code, else stages.
    """
    codes = [one for one in results if isinstance(one, CodeExplanation)]
    explained = [
        each for one in results for each in (one.explanations if isinstance(one, CodeExplanation) else (one,))
    ]
    kind = by or ("dtypes" if codes else "stage")
    check_kind(kind, bool(codes))
    tables = _of_code([one.trace for one in codes]) if codes else {}
    if explained or kind != "dtypes":
        tables |= _of_stages(explained, kind)
    main = tables.pop(_PLURAL[kind])
    findings = list(dict.fromkeys(text for one in codes for text in one.findings))
    refusals = [f"{reason}; its stages get no shares" for one in codes for reason in one.unexplained.values()]
    about = {"schema": SCHEMA, "by": kind, **metadata, **({"findings": findings} if findings else {})}
    told = [answer(results)] if results else []
    return replace(
        main,
        columns=list(columns or main.columns),
        screen=list(columns or main.screen),
        dispensable=() if columns else main.dispensable,
        headline=answers.headline(told) or "No case was explained.",
        notes=[
            *findings,
            *(text for one in codes for text in _dropped(one.trace)),
            *refusals,
            *model_notes([one.case for one in explained], [one.offset for one in explained]),
            *dict.fromkeys(text for one in explained for text in _notes(one)),
        ],
        metadata=about,
        further=tables,
        refusals=refusals,
        answers=told,
        brief=not columns and by is None,  # who asks for rows of a kind sees them
    )


def _of_code(traces: Sequence[Trace]) -> dict[str, Report]:
    """Return the dtypes by stage, the drift by offset and the nearest recipes of code."""

    def of(columns: Columns, rows_of: Callable[[Trace], list[Row]], title: str) -> Report:
        rows = [row for one in traces for row in rows_of(one)]
        screen, leaving = columns.screen(rows), columns.dispensable
        return Report(rows, list(columns), screen, leaving, title if rows else "", declared=columns)

    profiles, recipes = table("explain-profiles"), table("explain-recipes")
    return {
        "dtypes": of(COLUMNS["dtypes"], dtypes_rows, "Stages of the code:"),
        "profiles": of(profiles, profile_rows, "Drift of scores formed in float64, by offset:"),
        "recipes": of(recipes, recipe_rows, "Recipes, nearest first:"),
    }


def _of_stages(results: Sequence[Explanation], main: str) -> dict[str, Report]:
    """Return the rows by stage, pair and remedy; those of `main` have all columns in files."""
    whole = {kind: [row for one in results for row in rows_of(one)] for kind, rows_of in KINDS.items()}
    varying = settings.varying(whole["stage"])
    cells = ["implementation", "dtype", "offset"]
    first = settings.screen(whole["stage"], [] if len(results) == 1 else cells, [])
    return {
        _PLURAL[kind]: Report(
            rows,
            list(COLUMNS[kind]) if kind == main else [*cells, *OWN[kind], *varying],
            [*first, *OWN[kind].screen(())],
            dispensable=settings.dispensable(first, OWN[kind].dispensable),
            headline=_TITLES[kind] if rows else "",
            legend=_LEGENDS.get(kind, ""),
            declared=COLUMNS[kind],
        )
        for kind, rows in whole.items()
    }


def _dropped(trace: Trace) -> list[str]:
    """Return at which offsets code was refused, and whether its operations could be seen."""
    who = " ".join([trace.name, *under(trace.environment), str(trace.dtype)])
    texts = [f"{who}: offset {offset} was left out: {reason}" for offset, reason in trace.dropped.items()]
    if not trace.refused and not trace.stages:
        texts.append(f"{who}: it does not run in torch; its numbers alone were compared.")
    return texts


def _notes(one: Explanation) -> list[str]:
    """Return as which recipe code is explained, and which frequencies hold the drift."""
    who = f"{one.code or one.implementation} in {one.recipe.dtype} at offset {one.offset}"
    texts = [f"{who}: explained as {one.resembles}, its scores in float64"] if one.code else []
    if not (one.parts.whole > 0 and math.isfinite(one.parts.whole)):
        return texts
    held, length = one.parts.products / one.parts.whole, one.inputs.q.shape[1]
    fast = one.wavelengths < length  # source: arXiv 2410.06205
    quick, slow, rest = (part(float(some.sum())) for some in (held[:-1][fast], held[:-1][~fast], held[-1:]))
    pairs = f"{int(fast.sum())} pairs with a wavelength below {length} tokens hold {quick} of the drift"
    return [*texts, f"{who}: {pairs}, the {int((~fast).sum())} others {slow}, {REST} {rest}"]
