"""What the notes of an audit say of several rows together: frequencies that are kept, remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ropeaudit.arithmetic.formats import FP32, FP64, parse
from ropeaudit.audits import judging
from ropeaudit.audits.records import Record
from ropeaudit.bounds.attainable import storing
from ropeaudit.reports import settings, verdicts
from ropeaudit.reports.numbers import counted, percent, setting
from ropeaudit.rope.scaling_names import short_names

_DECORRELATED, _NOTABLE = 0.5, 0.01  # shares of the RMS score, and of the norm of the keys


def notes(results: Sequence[Record], frozen: bool) -> list[str]:
    """Return all notes on some rows. frozen: see `drift.report`."""
    return [
        *verdicts.notes(results, differing(results)),
        *(frozen_notes(results) if frozen else []),
        *rerotation_notes(results),
        *format_notes(results),
    ]


def refusals(results: Sequence[Record]) -> list[str]:
    """Return why rows were refused, each reason of a subject once."""
    reasons = Counter((one.implementation, one.why) for one in results if one.verdict == "refused")
    return [
        f"refused: {subject}, {counted(count, 'row')}: {reason}"
        for (subject, reason), count in reasons.items()
    ]


def differing(results: Sequence[Record]) -> Callable[[Record], dict[str, str]]:
    """Return what gives a row's settings, besides the model, that differ from row to row."""
    rows = [{name: getattr(record, name) for name in settings.NAMES} for record in results]
    several = [name for name in settings.independent(rows) if name not in ("model", "layout")]
    scalings = short_names(record.scaling for record in results)

    def named(record: Record) -> dict[str, str]:
        texts = {name: setting(getattr(record, name)) for name in several}
        return texts | ({"scaling": scalings[record.scaling]} if "scaling" in texts else {})

    return named


def frozen_notes(results: Sequence[Record]) -> list[str]:
    """Return that frequencies that depend on the length were kept at every offset."""
    shifted = [record for record in results if record.length is not None and record.offset]
    if not shifted or any(record.structural_max > 0 for record in results):
        return []
    return [
        f"scaling {shifted[0].scaling.partition(':')[0]} depends on the length; frequencies are those for "
        f"{shifted[0].length} positions at every offset; --length shifted lets them change."
    ]


def format_notes(results: Iterable[Record]) -> list[str]:
    """Return in which dtypes careful code does not meet the tolerance, and what of it costs that much."""
    costly: dict[str, Record] = {}
    for record in results:
        if record.attainable_rms > record.tolerance * record.reference_rms:
            costly.setdefault(record.dtype, record)
    return [
        f"careful code in {dtype} drifts by {percent(judging.ratio(one.attainable_rms, one.reference_rms))} "
        f"near offset 0 at {one.seq_len} tokens, by prediction: {_costs(one)}."
        for dtype, one in costly.items()
    ]


def _costs(record: Record) -> str:
    """Return what of careful code costs more than the tolerance: what the dtype stores, or its arithmetic."""
    allowed, dtype = percent(record.tolerance), parse(record.dtype)
    if storing(dtype, record.rotary_dim / record.head_dim) > record.tolerance:
        return f"storing rotated q and k and scores in it costs more than the tolerance of {allowed}"
    arithmetic = FP64 if dtype.precision > FP32.precision else FP32
    wider = "" if arithmetic is FP64 else "; angles in float64 (--recipe fp64-angles) may meet it"
    return f"its angles, rotation and sums in {arithmetic} cost more than the tolerance of {allowed}{wider}"


def rerotation_notes(results: Sequence[Record]) -> list[str]:
    """Return what keys that are rotated again cost, and the remedy: each subject and dtype at its worst."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in results:
        if record.rerotated is not None and record.verdict != "refused":
            groups.setdefault((record.model, record.implementation, record.dtype), []).append(record)
    named, notes = differing(results), []
    for some in groups.values():
        worst = max(some, key=lambda one: verdicts.severity(verdicts.columns(one)))
        clauses = _remedies(worst)
        if clauses:
            notes.append(f"{verdicts.who(worst, named(worst))}: {'; '.join(clauses)}.")
    return notes


def _remedies(record: Record) -> list[str]:
    """Return what scores that are lost, and norms that change, ask for."""
    if record.nonfinite:
        return ["scores are nan or infinite: rotate keys afresh from their unrotated values"]
    clauses, growth = [], record.key_norm_growth
    if record.drift_relative >= _DECORRELATED:
        clauses.append(f"drift is {percent(record.drift_relative)} of the scores' RMS: rotate keys afresh")
    if growth is not None and abs(growth) >= _NOTABLE:
        share = f"{100 * growth:+.2g} %" if abs(growth) < 0.995 else f"{100 * growth:+.0f} %"
        clauses.append(
            f"key norms change by {share}: each turn multiplies a pair by sqrt(cos² + sin²) as stored and "
            "rounds the products; take fewer, larger turns, or a wider table and rotation"
        )
    return clauses
