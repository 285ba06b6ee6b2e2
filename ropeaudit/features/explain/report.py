"""An explanation for people: the stage to blame, the remedy and the frequencies that suffer, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits.judging import EXCESS, TOLERANCE, ratio
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.explain import code_report
from ropeaudit.features.explain.analysis import CodeExplanation, Explanation
from ropeaudit.features.explain.blames import REST as FLOAT64
from ropeaudit.features.explain.columns import (
    COLUMNS,
    KINDS,
    OWN,
    SCHEMA,
    rows,
)
from ropeaudit.features.explain.remedies import USUAL_SHARE, Remedy
from ropeaudit.recipes import STAGES
from ropeaudit.reports import Report, settings
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import part, percent, short, times
from ropeaudit.runtime.columns import Column

LEGEND = (
    "share: of the mean square drift, over all orders of the stages (Shapley); alone: drift with only this "
    "stage rounded;\nwithout: with only this one in float64; removed: what that takes off the RMS drift. "
    "Scores are scaled, before softmax."
)
_LEGENDS = {
    "stage": LEGEND,
    "pair": "part: what the pair adds to the drift; wavelength in tokens; norms: means of unrotated q and k.",
    "remedy": "set: stages to keep wider, as --set takes them; removed: of the RMS drift; table bytes: cos "
    "and sin up to the last position.",
}
_PLURAL = {"dtypes": "dtypes", "stage": "stages", "pair": "pairs", "remedy": "remedies"}
_NOTABLE = 0.01  # share of the drift
_NEITHER = 0.9  # share of the drift that is of no pair, above which pairs are not compared
_ALIKE = 1.25  # how much more drift than the other kind of pair one must have to suffer more


def columns_of(kind: str) -> Mapping[str, Column]:
    """Return the columns of rows of a kind; dtypes: those of code."""
    return code_report.COLUMNS if kind == "dtypes" else COLUMNS[kind]


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
    traces = [one.trace for one in codes]
    kind = by or ("dtypes" if codes else "stage")
    check_kind(kind, bool(codes))
    of_code = code_report.code_tables(traces)
    of_stages = _tables(explained, "stage" if kind == "dtypes" else kind)
    if kind != "dtypes":  # people see none beside other rows
        of_code = {name: replace(one, headline="") for name, one in of_code.items()}
    tables = {**of_code, **(of_stages if explained or kind != "dtypes" else {})}
    main = tables.pop(_PLURAL[kind])
    words = [code_report.headline(one) for one in traces]
    if kind != "dtypes" and (explained or not traces):
        words.append(headline(explained))
    findings = list(dict.fromkeys(text for one in codes for text in one.findings))
    refusals = [f"{reason}; its stages get no shares" for one in codes for reason in one.unexplained.values()]
    about = {"schema": SCHEMA, "by": kind, **metadata, **({"findings": findings} if findings else {})}
    return replace(
        main,
        columns=list(columns or main.columns),
        screen=list(columns or main.screen),
        dispensable=() if columns else main.dispensable,
        headline=" ".join(words),
        notes=[
            *findings,
            *(text for one in traces for text in code_report.notes(one)),
            *refusals,
            *model_notes([one.case for one in explained], [one.offset for one in explained]),
            *notes(explained),
        ],
        metadata=about,
        further=tables,
        refusals=refusals,
    )


def _tables(results: Sequence[Explanation], kind: str) -> dict[str, Report]:
    """Return the rows of every kind, by its plural; people see those of `kind`, and what goes with stages."""
    whole = {name: [row for one in results for row in rows(one, name)] for name in KINDS}
    varying = settings.varying(whole["stage"])
    cells = ["implementation", "dtype", "offset"]
    first = settings.screen(whole["stage"], [] if len(results) == 1 else cells, [])
    constant = cells if "model" in varying else ()
    tables = {_PLURAL[name]: Report(whole[name], [*cells, *OWN[name], *varying], ()) for name in KINDS}

    def seen(name: str, columns: Sequence[str], headline: str, legend: str) -> Report:
        return Report(
            whole[name],
            list(columns),
            [*first, *OWN[name].screen(())],
            dispensable=settings.dispensable(first, OWN[name].dispensable),
            headline=headline,
            legend=legend,
            declared=COLUMNS[name],
            constant=constant,
        )

    tables[_PLURAL[kind]] = seen(kind, list(COLUMNS[kind]), headline(results), _LEGENDS[kind])
    if kind == "stage" and results:
        text = _search(results) if whole["remedy"] else ""
        tables["remedies"] = seen("remedy", tables["remedies"].columns, text, _LEGENDS["remedy"])
        one = _worst(results)
        who = f"{_who(one)}: " if len(results) > 1 else ""
        tables["pairs"] = replace(tables.pop("pairs"), headline=who + frequencies(one))
    return tables


def headline(results: Sequence[Explanation]) -> str:
    """Return the finding in a sentence: the worst case, the stage to blame, and the remedy."""
    if not results:
        return "No case was explained."
    one = _worst(results)
    worst = f"Worst of {len(results)} cases: " if len(results) > 1 else ""
    by_way = (
        f" Figures are those of {one.recipe.recipe.name}, which {one.code} resembles." if one.code else ""
    )
    return worst + (_overflow(one) if one.nonfinite else _drift(one)) + by_way


def _who(one: Explanation) -> str:
    model = "" if one.case.model_name == "none" else f"{one.case.model_name}: "
    return f"{model}{one.recipe.dtype} {one.implementation} at offset {one.offset}"


def _needs_nothing(one: Explanation) -> bool:
    """Return whether no bound was asked for, and the drift is sound and within the usual tolerance."""
    small = ratio(one.drift.rms, one.reference.rms) <= TOLERANCE
    return small and one.excess <= EXCESS and not (one.tolerance.given or one.nonfinite)


def _drift(one: Explanation) -> str:
    """Say what drifts and why, and whether it needs a change."""
    size = f"{_who(one)} drifts by {short(one.drift.rms)} RMS"
    if not one.drift.rms:
        return f"{_who(one)} does not drift: every score is exact."
    first = one.blames[0]
    if one.drift.max <= one.error:
        return f"{size}, within the certified error of the reference: there is nothing to explain."
    if not first.share > 0:
        return f"{size}: no stage is narrower than float64, so there is none to widen."
    blame = f"{part(first.share)} of the mean square is the {_noun(first.stage)} ({first.cause})"
    if _needs_nothing(one):
        best = "within" if one.excess <= 1 else f"{times(one.excess)} times"
        size += f", {best} the best achievable in {one.recipe.dtype}: no change is needed there"
        return f"{size}. {blame}; {_cure(one)}."
    return f"{size}: {blame}; {_cure(one)}."


def _overflow(one: Explanation) -> str:
    share = percent(one.drift.nonfinite / one.drift.count)
    first = next(blame for blame in one.blames if one.nonfinite and blame.stage == one.nonfinite.first)
    size = (
        f"{_who(one)}: {share} of the scores are nan or infinite (overflow, first at the {_noun(first.stage)}"
    )
    if first.stage == "input":
        return f"{size}, where q and k are stored in {first.format}); try --set input=fp32."
    return f"{size} in {first.format}); {_cure(one)}."


def _cure(one: Explanation) -> str:
    remedy = one.remedy
    if remedy is None:
        if not one.remedies:
            return "no stage can be widened"
        return f"no set of stages meets {one.tolerance}: {words(one.remedies[-1])} leaves {_left(one)}"
    if not remedy.widths:
        return f"that already meets {one.tolerance}, so no change is needed"
    if not one.tolerance.column:
        return f"{words(remedy)} makes every score finite"
    if math.isnan(remedy.removed):
        return f"{words(remedy)} meets {one.tolerance}"
    return f"{words(remedy)} removes {part(remedy.removed)} of the RMS drift"


def _left(one: Explanation) -> str:
    drift = one.remedies[-1].drift
    if drift.nonfinite:
        return f"{drift.nonfinite} scores that are not finite"
    column = one.tolerance.column or "drift_rms"
    return f"{column} = {short(float(one.tolerance.value(drift, one.reference)))}"


def words(remedy: Remedy) -> str:
    """Return a remedy in words: keeping table and score in float32 and angle in float64."""
    by_format: dict[str, list[str]] = {}
    for stage in STAGES:
        if stage in remedy.widths:
            by_format.setdefault(remedy.widths[stage].name, []).append(stage)
    parts = []
    for name, stages in sorted(by_format.items()):
        listed = [", ".join(stages[:-1]), stages[-1]] if len(stages) > 1 else stages
        parts.append(f"{' and '.join(listed)} in {name}")
    return f"keeping {' and '.join(parts)}"


def _noun(stage: str) -> str:
    return "accumulator" if stage == "accumulate" else stage


def _search(results: Sequence[Explanation]) -> str:
    one = results[0]
    if one.tolerance.given:
        return f"Stages to keep wider until {one.tolerance}, fewest first:"
    usual = f"a tenth of the RMS drift is left (--tolerance drift_rms={USUAL_SHARE * one.drift.rms:.2g})"
    if any(other.nonfinite for other in results):
        usual = "every score is finite" if len(results) == 1 else f"{usual}, or every score is finite"
    elif len(results) > 1:
        usual = "a tenth of the RMS drift is left (--tolerance sets a bound)"
    return f"Stages to keep wider until {usual}, fewest first:"


def frequencies(one: Explanation) -> str:
    """Return whether the fast, positional frequencies suffer or the slow, semantic ones.

    Fast: a full turn takes fewer tokens than there are positions. Source: arXiv 2410.06205.
    """
    length = one.inputs.q.shape[1]
    if not one.parts.whole > 0 or not math.isfinite(one.parts.whole):
        return "Frequencies: no finite drift to share out."
    held = one.parts.products / one.parts.whole
    fast = one.wavelengths < length
    count, slow_count = int(fast.sum()), int((~fast).sum())
    quick, slow, rest = float(held[:-1][fast].sum()), float(held[:-1][~fast].sum()), float(held[-1])
    message = (
        f"Frequencies: {count} fast pairs (wavelength below {length} tokens) hold {part(quick)} of the "
        f"mean square drift, {slow_count} slow ones {part(slow)}, accumulation and output rounding "
        f"{part(rest)}"
    )
    if rest > _NEITHER or not count or not slow_count or max(quick, slow) <= 0:
        return f"{message}."
    more = ratio(quick / count, slow / slow_count) if slow > 0 else math.inf
    than = "about as much as" if 1 / _ALIKE <= more <= _ALIKE else "more than" if more > 1 else "less than"
    return f"{message}; on average a fast pair holds {than} a slow one."


def notes(results: Sequence[Explanation]) -> list[str]:
    """Return what the reader must know: scores left out, shares that are not defined, float64 stages."""
    message = []
    for one in results:
        if one.code:
            message.append(
                f"{one.code} in {one.recipe.dtype} at offset {one.offset}: what it returns is, to within the "
                f"recipe's own roundings, {one.resembles}; the recipe is explained, its scores in float64."
            )
        heads, size, _ = one.inputs.q.shape
        sampled = one.sample
        if not sampled.covers(one.inputs):
            message.append(
                f"{one.recipe.dtype} {one.implementation}: {len(sampled.heads)} of {heads} heads and "
                f"{sampled.positions.size} of {size} positions, evenly spread, were looked at."
            )
        if one.nonfinite:
            repairs = " or ".join(one.nonfinite.repaired_by)
            alone = f"{repairs} alone repairs" if repairs else "no stage alone repairs"
            message.append(
                f"{_who(one)}: shares are not defined while scores are not finite; {alone} them all. Give "
                "the set of a remedy as --set to see what drift is left."
            )
        elif one.drift.rms and any(math.isnan(blame.share) for blame in one.blames):
            message.append(f"{_who(one)}: some mixtures of formats overflow, so shares are not defined.")
        elif (last := one.blames[-1]).stage == FLOAT64 and last.share > _NOTABLE:
            message.append(
                f"{_who(one)}: {part(last.share)} of the mean square drift is left with every stage in "
                "float64; there is no wider format here."
            )
    return list(dict.fromkeys(message))


def _worst(results: Sequence[Explanation]) -> Explanation:
    """Return the case that drifts most, of those that need a change where any does."""

    def severity(one: Explanation) -> tuple[int, bool, float]:
        relative = ratio(one.drift.rms, one.reference.rms)
        met = one.remedy is not None and not one.remedy.widths  # a bound that was asked for
        changed = not (met if one.tolerance.given else _needs_nothing(one))
        return one.drift.nonfinite, changed, relative if relative == relative else 0.0

    return max(results, key=severity)
