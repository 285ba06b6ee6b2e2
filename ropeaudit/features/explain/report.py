"""The report of `explain`: answers, and tables by stage, pair and remedy, and of code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, cast

from ropeaudit.audits.case_run import setting_columns
from ropeaudit.audits.judging import FEWEST, ratio
from ropeaudit.engine.statistics import Statistics
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.explain import shares
from ropeaudit.features.explain.analysis import CodeExplanation, Explanation
from ropeaudit.features.explain.remedies import Remedy
from ropeaudit.features.explain.tracing import COMPARED, Likeness, Trace, expected
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import STAGE_CODES
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.reports import Report, answers, settings
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import counted, limit_percent, percent, short
from ropeaudit.reports.verdicts import distinct_percent, under
from ropeaudit.runtime.columns import Columns, table
from ropeaudit.subjects.calling.stages import StageLog

Row = dict[str, Any]
Facts = Sequence[tuple[str, str]]
SCHEMA = 1
REST = "accumulation and output rounding"  # the part of no pair
_RECIPES = 4  # that are listed, beside those as near as the nearest


def _common_columns(result: Explanation) -> Row:
    return {
        "schema": SCHEMA,
        "implementation": result.implementation,
        "dtype": result.recipe.dtype.name,
        "offset": result.offset,
        **setting_columns(result.case, result.inputs, result.setting),
        "sampled_positions": int(result.sample.positions.size),
        "sampled_heads": len(result.sample.heads),
        "scores": result.drift.count,
        "nonfinite": result.drift.nonfinite,
        "reference_rms": result.reference.rms,
        "reference_error": result.error,
        "drift_max": result.drift.max,
        "drift_rms": result.drift.rms,
        "drift_relative": ratio(result.drift.rms, result.reference.rms),
    }


def _stage_rows(result: Explanation) -> list[Row]:
    names = table("explain-stage")
    return [
        _common_columns(result) | {name: getattr(blame, name.removesuffix("_rms")) for name in names}
        for blame in result.blames
    ]


def _pair_rows(result: Explanation) -> list[Row]:
    columns = {name: values.tolist() for name, values in result.pairs.items()}
    pairs = [*range(result.setting.pairs), REST]
    return [
        _common_columns(result) | {"pair": pair, **dict(zip(columns, row, strict=True))}
        for pair, *row in zip(pairs, *columns.values(), strict=True)
    ]


def _remedy_rows(result: Explanation) -> list[Row]:
    return [
        _common_columns(result)
        | {
            "size": len(remedy.widths),
            "set": changes(remedy),
            "left_rms": remedy.drift.rms,
            "left_max": remedy.drift.max,
            "left_relative": ratio(remedy.drift.rms, result.reference.rms),
            "left_nonfinite": remedy.drift.nonfinite,
            "removed": remedy.removed,
            "meets": "yes" if remedy.meets else "no",
            "tolerance": str(result.tolerance),
            "table_bytes": remedy.table_bytes,
            "multiply_bits": remedy.multiply_bits,
        }
        for remedy in result.remedies
    ]


def _code_columns(trace: Trace, like: Likeness | None = None) -> Row:
    """Return the first columns. like: the recipes of the row."""
    names = "distance", "equal", "profile"
    near = {name: getattr(like, name) if like else math.nan for name in names}
    called = {"implementation": trace.name, "dtype": trace.dtype.name}
    return called | {"environment": trace.environment, **near}


def dtypes_rows(trace: Trace) -> list[Row]:
    """Return a row for each observed stage of code, beside the nearest recipe."""
    best = trace.nearest()[0] if trace.likely else None
    formats = expected(best.group.resolved) if best else {}
    names = "layout", "head_dim", "rotary_dim", "base"
    about = {name: getattr(trace.setting, name) for name in names} | {
        **_code_columns(trace, best),
        "schema": SCHEMA,
        "device": trace.device,
        "nearest": " ".join(trace.recipes()) or "none",
        "behaviour": _arithmetic(best.group, ()) if best else trace.fault_words() or "none",
        "diagnosis": trace.diagnosis(),
        "refused": trace.refused or "none",
    }
    results, narrowest = [], trace.narrowest()
    for stage, log in (trace.stages or {"none": StageLog(["none"])}).items():
        there = formats.get(stage)
        row = {
            "stage": stage,
            "seen": " -> ".join(log.dtypes),
            "operations": " ".join(log.operations) or "none",
            "recipe_format": there or "none",
            "agrees": None if there is None else "yes" if narrowest[stage] == there else "no",
        }
        results.append(about | row)
    return results


def _profile_rows(trace: Trace) -> list[Row]:
    results = []
    for offset, drift in trace.drifts.items():
        predicted = trace.predicted.get(offset, math.nan)
        row = {"offset": offset, "drift_rms": drift, "predicted_rms": predicted}
        row["ratio"] = drift / predicted if predicted else math.nan
        results.append(_code_columns(trace) | row)
    return results


def _recipe_rows(trace: Trace) -> list[Row]:
    return [
        _code_columns(trace, like)
        | {
            "behaviour": _arithmetic(like.group, ()),
            "recipes": " ".join(like.group.names) or "none",
            "stages_differing": " ".join(like.differing) or "none",
        }
        for like in trace.likely[: max(_RECIPES, len(trace.nearest()))]
    ]


class Kind(NamedTuple):
    """A kind of rows: function of a Trace or an Explanation, columns, heading and legend."""

    rows: Any
    columns: Columns
    title: str = ""
    legend: str = ""
    of_code: bool = False


_SHARE = "share: of the mean square drift (Shapley value); scores are scaled, before softmax."
_DRIFTS = "Drift of scores formed in float64, by offset:"
_SETS = "Smallest sets of stages to compute in higher precision:"
TABLES = {  # by their names in JSON
    "dtypes": Kind(dtypes_rows, table("explain-dtypes"), "Stages of the code:", of_code=True),
    "profiles": Kind(_profile_rows, table("explain-profiles"), _DRIFTS, of_code=True),
    "recipes": Kind(_recipe_rows, table("explain-recipes"), "Recipes, nearest first:", of_code=True),
    "stages": Kind(_stage_rows, table("explain", "explain-stage"), "Stages, the worst first:", _SHARE),
    "pairs": Kind(_pair_rows, table("explain", "explain-pair")),  # seen where asked for
    "remedies": Kind(_remedy_rows, table("explain", "explain-remedy"), _SETS),
}
KINDS = {"dtypes": "dtypes", "stage": "stages", "pair": "pairs", "remedy": "remedies"}  # by --by
COLUMNS: Mapping[str, Columns] = {kind: TABLES[name].columns for kind, name in KINDS.items()}


def check_kind(kind: str, code: bool) -> None:
    """Raise UsageError or UnknownName for a kind of rows that is unknown or lacks code."""
    if kind not in KINDS:
        raise UnknownName("--by", kind, KINDS)
    if kind == "dtypes" and not code:
        raise UsageError("--by dtypes shows code that is called; name some, such as rope.py:apply_rope")


def report(
    results: Sequence[Explanation | CodeExplanation],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    by: str | None = None,
) -> Report:
    """Return the report. by: the kind of rows."""
    codes = [result for result in results if isinstance(result, CodeExplanation)]
    recipes = [result for result in results if isinstance(result, Explanation)]
    explained = [*recipes, *(each for code in codes for each in code.explanations)]
    kind = by or ("dtypes" if codes else "stage")
    check_kind(kind, bool(codes))
    traces, tables = [code.trace for code in codes], dict[str, Report]()
    for name, of in TABLES.items():
        if (subjects := traces if of.of_code else explained) or name == KINDS[kind]:
            tables[name] = _table(of, subjects, len(explained) > 1)
    targets = groupby(recipes, lambda result: (result.case, result.implementation, result.recipe.dtype))
    answered = [_answer_on_recipe(list(results)) for _, results in targets] + list(
        map(_answer_on_code, codes)
    )
    main = tables.pop(KINDS[kind])
    findings = dict.fromkeys(text for code in codes for text in code.findings)
    beside = [text for code in codes for text in _code_notes(code)]
    return replace(
        main,
        columns=list(columns or main.columns),
        screen=list(columns or main.screen),
        dispensable=() if columns else main.dispensable,
        headline=answers.headline(answered) or "No case was explained.",
        notes=[*findings, *beside, *_model_notes(explained)],
        metadata={"schema": SCHEMA, "by": kind, **metadata},
        further=tables,
        answers=answered,
        brief=not columns and by is None,  # who asks for rows of a kind sees them
    )


def _table(kind: Kind, subjects: Sequence[Any], several: bool) -> Report:
    rows = [row for subject in subjects for row in kind.rows(subject)]
    cells = ["implementation", "dtype", "offset"] if several else []
    lead = [] if kind.of_code else settings.screen(rows, cells, [])
    return Report(
        rows,
        list(kind.columns),
        [*lead, *kind.columns.screen(rows)],
        settings.dispensable(lead, kind.columns.dispensable),
        headline=kind.title if rows else "",
        legend=kind.legend,
        declared=kind.columns,
    )


def _code_notes(result: CodeExplanation) -> list[str]:
    trace = result.trace
    who = " ".join([trace.name, *under(trace.environment), str(trace.dtype)])
    left_out = trace.dropped.items()
    texts = [f"{who}: offset {offset} was left out: {reason}" for offset, reason in left_out]
    if not trace.refused and not trace.stages:
        texts.append(f"{who}: no operation of torch was seen; its numbers alone were compared.")
    return [*texts, *(f"{reason}; its stages get no shares" for reason in result.unexplained.values())]


_NOTABLE = 0.005  # of the mean square drift: smaller stages are not named
_BIT_IDENTICAL = 0.98  # share of equal numbers, above which dtypes may differ from the recipe's
_STAGES, _NAMED = 4, 3  # stages and recipes that are named
_OTHERS_NARROW = {
    "trig": "narrow-table",
    "output": "narrow-output",
    "accumulate": "narrow-accumulator",
    "score": "narrow-accumulator",
}
_CODES = STAGE_CODES | _OTHERS_NARROW  # stage -> code of `list diagnoses`


def _answer_on_recipe(some: Sequence[Explanation], called: Facts = ()) -> Answer:
    """Answer on the worst of several offsets. called: facts about code."""
    worst = max(some, key=_badness)
    decides = f"{worst.recipe.dtype.short}, offset {worst.offset:,}"
    decides += f": scores {_drift_words(worst, worst.drift)}"
    decides += f" (as {worst.recipe.recipe.name})" if worst.code else ""
    decides += "" if worst.nonfinite else f"; limit {_limit_words(worst)}"
    decides += f": nothing to change within {worst.inputs.seq_len:,} tokens" if worst.good else ""
    facts, causes, why = list[tuple[str, str]](), list[Cause](), ""
    if worst.good:
        facts += _stage_facts(worst)
    else:
        others = _by_offset([result for result in some if result is not worst and not result.good])
        cause = _cause(worst)
        causes = [replace(cause, facts=[*cause.facts, *(f"{label}: {text}" for label, text in others)])]
        known = causes[0].code in _CODES.values()
        why = f"why: ropeaudit list diagnoses {causes[0].code}    " if known else ""
    facts += _by_offset([result for result in some if result is not worst and result.good])
    facts += [*called, *_context_facts(worst), ("next", f"{why}all rows: -v    by pair: --by pair")]
    model = "" if worst.case.model_name == "none" else f"{worst.case.model_name}, "
    target = f"{model}{worst.code or worst.implementation}"
    few = min(some, key=lambda result: result.drift.count).drift.count
    if few < FEWEST:
        seen = f"{counted(few, 'score')} of the {FEWEST} that are needed; give a longer --seq-len"
        return Answer("WARN", target, f"{worst.recipe.dtype.short}: undecided: {seen}", (), facts)
    return Answer("OK" if worst.good else "FAIL", target, decides, causes, facts)


def _badness(result: Explanation) -> tuple[bool, float, int]:
    value = result.tolerance.value(result.drift, result.reference)
    return not result.good, math.inf if result.nonfinite or math.isnan(value) else value, abs(result.offset)


def _by_offset(some: Sequence[Explanation]) -> Facts:
    fixes = ["" if result.good else f"; fix: {_fix_words(result)}" for result in some]
    lines = [
        f"scores {_drift_words(result, result.drift)}{fix}" for result, fix in zip(some, fixes, strict=True)
    ]
    labels = [f"offset {result.offset:,}" for result in some]
    listed = settings.listed(list(zip(labels, lines, strict=True))) if some else []
    return [(label.strip(), text) for label, text in listed]


def _cause(result: Explanation) -> Cause:
    fix = f"fix: {_fix_words(result)}"
    if result.nonfinite:
        first, repairs = result.blames[0], " or ".join(result.nonfinite.repaired_by)
        where = f"the stage {first.stage} is"
        where = "q and k are stored" if first.stage == "input" else where
        alone = f"{repairs} alone repairs" if repairs else "no stage alone repairs"
        said = f"{alone} all of them; shares are not defined while scores are not finite"
        title = f"overflow, first where {where} in {first.format}"
        return Cause("nonfinite", title, facts=[said, fix])
    title = "no stages in wider formats are enough"
    if result.remedy:
        title = f"computed too coarsely: {', '.join(result.remedy.changes)}"
    lines = [f"{label:<5} {text}" for label, text in _stage_facts(result)]
    return Cause(_CODES.get(result.blames[0].stage, "unexplained"), title, facts=[*lines, fix])


def _drift_words(result: Explanation, drift: Statistics) -> str:
    if drift.nonfinite:
        return f"{percent(drift.nonfinite / drift.count)} nan or infinite"
    value, accepted = float(result.tolerance.value(drift, result.reference)), result.tolerance
    relative = accepted.column == "drift_relative"
    return f"{distinct_percent(value, accepted.bound) if relative else short(value)} off"


def _limit_words(result: Explanation) -> str:
    accepted = result.tolerance
    return limit_percent(accepted.bound) if accepted.column == "drift_relative" else str(accepted)


def _stage_facts(result: Explanation) -> list[tuple[str, str]]:
    if result.drift.max <= result.error:
        return [("stages", "no shares: the drift is within the certified error of the reference")]
    if any(math.isnan(blame.share) for blame in result.blames):
        return [("stages", "no shares: some mixtures of the formats overflow")]
    widths, facts = result.remedy.widths if result.remedy else {}, []
    for blame in [blame for blame in result.blames if blame.share >= _NOTABLE][:_STAGES]:
        wider = f" -> {widths[blame.stage]}" if blame.stage in widths else ""
        text = f"{blame.stage:<11} {blame.format}{wider}"
        if blame.stage == shares.REST:
            text = "left with every stage in float64: no wider format here"
        facts.append((f"{100 * blame.share:.0f} %", text))
    return facts


def _fix_words(result: Explanation) -> str:
    before, best = _drift_words(result, result.drift).removesuffix(" off"), result.remedy
    if best is None:
        left = _drift_words(result, result.remedies[-1].drift)
        none = f"none: no set of stages is within {_limit_words(result)}"
        return f"{none}; {before} -> {left} with every stage in float64"
    change = f"--set {changes(best)}"
    if result.code:  # it takes no --set: its author changes the stages
        change = ", ".join(f"{stage} in {fmt}" for stage, fmt in best.changes.items())
    return f"{change}   {before} -> {_drift_words(result, best.drift)} (limit {_limit_words(result)})"


def changes(remedy: Remedy) -> str:
    """Return a remedy as --set takes it: angle=fp64,table=fp32."""
    return ",".join(f"{stage}={fmt}" for stage, fmt in remedy.changes.items()) or "nothing"


def _context_facts(result: Explanation) -> list[tuple[str, str]]:
    facts = [fact for fact in settings.facts([_common_columns(result)]) if fact[0] != "read"]
    if not result.sample.covers(result.inputs):
        tokens, heads = result.sample.positions.size, len(result.sample.heads)
        of = f"; shares of {counted(int(tokens), 'token')}, {counted(heads, 'head')}"
        facts = [(label, f"{text}{of}" if "with" in label else text) for label, text in facts]
    read = _model_notes([result])  # what a config says
    texts = [text.partition(": read: ")[2] or text for text in read]
    facts += [("" if number else "read", text) for number, text in enumerate(texts)]
    rest = f"; other calls, such as one token: ropeaudit check {result.code}" if result.code else ""
    farther = f"distances over {result.inputs.seq_len - 1} (ropeaudit limit)"
    return [*facts, ("not checked", f"other offsets; {farther}; other q and k{rest}")]


def _model_notes(some: Sequence[Explanation]) -> list[str]:
    """Return notes on models; the default offset at their maximum is not past it."""
    offsets = [result.offset for result in some if result.offset != result.case.maximum]
    return model_notes([result.case for result in some], offsets)


def _answer_on_code(result: CodeExplanation) -> Answer:
    """Answer on code: on its explained offsets, or its trace."""
    trace, status, causes = result.trace, "WARN", list[Cause]()
    arithmetic = bool(trace.faults) and all(fault.arithmetic for fault in trace.faults.values())
    resembled = bool(trace.likely) or (arithmetic and bool(result.explanations))
    likeness = _likeness_words(trace) if trace.likely else trace.fault_words()
    called = [("behaves like", likeness)] if resembled else []
    for text in result.findings[:1]:
        called.append(("called as", text.rpartition(": called as ")[2].rstrip(".")))
    for at, text in list(trace.dropped.items())[:1]:
        called.append(("not compared", f"offset {at:,}: {text}"))
    if resembled:
        called += [("not explained", reason) for reason in list(result.unexplained.values())[:1]]
        if result.explanations:
            answer, unseen = (
                _answer_on_recipe(result.explanations, called),
                result.unexplained or trace.dropped,
            )
            return replace(answer, status="WARN") if unseen and answer.status == "OK" else answer
    decides = "its stages get no shares"
    if trace.refused:
        decides = "it could not be called"
        causes = [Cause("refused", trace.refused, warning=True)]
    elif not trace.likely:
        status, decides = "FAIL" if trace.faults else "WARN", "behaves like no known recipe"
        last = max(trace.faults, default=0)  # the largest offset that is wrong
        fix = wording.remedy(trace.faults.get(last), trace.dtype, last)
        code = trace.diagnosis() or "unexplained"
        title = trace.fault_words() or "no known implementation matches"
        facts = [f"fix: {fix}"] if fix else []
        causes = [Cause(code, title, facts=facts, warning=not trace.faults)]
    about = [*_by_offset(result.explanations), *called]
    about.append(("setting", f"head_dim {trace.setting.head_dim}, base {trace.setting.base:g}"))
    about.append(("not checked", "other offsets, other q and k than these"))
    about.append(("next", f"all checks: ropeaudit check {trace.name}    all rows: -v"))
    target = " ".join([trace.name, *under(trace.environment)])
    return Answer(cast(Status, status), target, f"{trace.dtype.short}: {decides}", causes, about)


def _likeness_words(trace: Trace) -> str:
    best, *others = trace.nearest()
    if best.differing and best.equal < _BIT_IDENTICAL:
        seen, right = trace.narrowest(), expected(best.group.resolved)
        parts = [f"{name} was seen in {seen[name]} (there {right[name]})" for name in best.differing]
        who = ", ".join(_first_names(best.group.names)) or _arithmetic(best.group)
        return f"no known recipe: nearest is {who}, yet {', '.join(parts)}"
    words = "; or ".join(_arithmetic(like.group) for like in (best, *others))
    named = "" if trace.recipes() else ", which no named recipe does"
    share = "" if best.equal == 1 else f"{percent(best.equal)} of q's numbers "
    equal = f"{share}bit-identical"
    return f"{words}{named}: {equal} at {len(trace.drifts) * COMPARED} positions"


def _arithmetic(group: RecipeGroup, names: Sequence[str] | None = None) -> str:
    """Return the roundings of recipes in words, with some names."""
    named = _first_names(group.names) if names is None else names
    return wording.arithmetic(group.values() | {"recipes": named})


def _first_names(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= _NAMED else (*names[:_NAMED], f"{len(names) - _NAMED} more")
