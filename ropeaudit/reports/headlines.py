"""The result of an audit in a sentence, and the notes that look at several rows together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ropeaudit.arithmetic.formats import FP32, FP64, parse
from ropeaudit.audits import judging
from ropeaudit.audits.identity import moved_apart
from ropeaudit.audits.records import Record
from ropeaudit.bounds.attainable import storing
from ropeaudit.reports import settings, verdicts
from ropeaudit.reports.numbers import percent, printable, setting, short, times
from ropeaudit.rope.scaling_names import short_names

_MOST_GROWING = 3
# what must agree for two rows to be of the same case but for their subject
_BESIDE = (
    *(name for name in settings.NAMES if name != "layout"),
    *("dtype", "offset", "sample", "tolerance", "rerotated"),
)
_DECORRELATED, _NOTABLE = 0.5, 0.01  # shares of the RMS score, and of the norm of the keys


def headline(results: Sequence[Record], worst: Record) -> str:
    """Return the result in a sentence: the worst row, how many are like it, and another subject beside it."""
    named = differing(results)(worst)
    word, like = _word(results, worst)
    count = f" ({like} of {len(results)} cases)" if len(results) > 1 else ""
    refused = sum(record.verdict == "refused" for record in results)
    if word == "Within tolerance" and refused:  # what did not run is no reason to be at ease
        word = f"Refused in {refused} of {len(results)} cases, within tolerance in the other {like}"
        count = ""
    text = f"{word}{count}: {verdicts.sentence(worst, named)[:-1]}"
    if word == "Undecided" and worst.scores < judging.FEWEST:
        text += f"; {worst.scores} scores are too few to judge, at least {judging.FEWEST} are needed"
    elif word == "Undecided":
        text += "; the interval of the sample holds the tolerance: a larger --sample decides"
    others = "" if word.startswith("Refused in") else _others(results, worst)
    return f"{text}{_beside(results, worst)}{others}{_structure(results)}."


def _word(results: Sequence[Record], worst: Record) -> tuple[str, int]:
    """Return the first word of the headline and how many rows it holds for."""
    if worst.verdict not in ("overflow", "wrong_rotation", "refused", "exact"):
        kinds = [verdicts.quality(verdicts.columns(record)) for record in results]
        words = {"no": "Out of tolerance", "undecided": "Undecided", "yes": "Within tolerance"}
        for kind, word in words.items():
            if kind in kinds:
                return word, kinds.count(kind)
    return verdicts.words(worst.verdict).capitalize(), sum(
        record.verdict == worst.verdict for record in results
    )


def differing(results: Sequence[Record]) -> Callable[[Record], dict[str, str]]:
    """Return what gives a row's settings, besides the model, that differ from row to row."""
    rows = [{name: getattr(record, name) for name in settings.NAMES} for record in results]
    several = [name for name in settings.independent(rows) if name not in ("model", "layout")]
    scalings = short_names(record.scaling for record in results)

    def named(record: Record) -> dict[str, str]:
        texts = {name: setting(getattr(record, name)) for name in several}
        return texts | ({"scaling": scalings[record.scaling]} if "scaling" in texts else {})

    return named


def _beside(results: Sequence[Record], worst: Record) -> str:
    """Return how far another subject drifts in the same case; of several the one that drifts least."""
    same = [
        record
        for record in results
        if record.implementation != worst.implementation
        and record.environment in (None, worst.environment)
        and record.verdict != "refused"
        and all(getattr(record, name) == getattr(worst, name) for name in _BESIDE)
    ]
    if not same or worst.verdict == "refused":
        return ""
    least = min(same, key=lambda record: verdicts.severity(verdicts.columns(record)))
    several = len({record.implementation for record in same}) > 1
    name = (
        f"least of the others there, {least.implementation}" if several else f"{least.implementation} there"
    )
    known = math.isfinite(least.drift_relative) and least.verdict not in ("overflow", "wrong_rotation")
    result = percent(least.drift_relative) if known else verdicts.words(least.verdict)
    return f"; {name}: {result}"


def _others(results: Sequence[Record], worst: Record) -> str:
    """Return how many rows are bad in another way than the worst one, and how many were refused."""
    first = [name for name in ("overflow", "wrong_rotation") if name != worst.verdict]
    counts = {name: sum(record.verdict == name for record in results) for name in first}
    if worst.verdict in ("overflow", "wrong_rotation"):
        plain = [record for record in results if record.verdict not in ("overflow", "wrong_rotation")]
        counts["out of tolerance"] = sum(verdicts.bad(verdicts.columns(record)) for record in plain)
    if worst.verdict != "refused":
        counts["refused"] = sum(record.verdict == "refused" for record in results)
    listed = ", ".join(f"{count} {verdicts.words(name)}" for name, count in counts.items() if count)
    return f"; also {listed}" if listed else ""


def _structure(results: Sequence[Record]) -> str:
    moved = max((record.structural_rms for record in results if record.structural_max > 0), default=0.0)
    return f"; the shift itself changes exact scores by up to {short(moved)} RMS" if moved else ""


def growth_notes(results: Sequence[Record]) -> list[str]:
    """Return who grows with the offset within the tolerance: each subject and dtype at its largest."""
    groups: dict[tuple[str, ...], Record] = {}
    named = differing(results)
    for record in results:
        if record.verdict == "growing" and record.within_tolerance is True:
            key = record.model, verdicts.called(record), record.dtype
            known = groups.setdefault(key, record)
            if record.drift_relative > known.drift_relative:
                groups[key] = record
    words: dict[str, list[str]] = {}
    for one in groups.values():
        growth = times(judging.ratio(one.drift_rms, one.floor_rms))
        share = percent(one.drift_relative)
        where = " ".join([one.dtype, *(f"{name}={value}" for name, value in named(one).items())])
        alike = f"in {where} by {share} at offset {one.offset}, {growth} times {verdicts.at_zero(one)}"
        subject = verdicts.called(one)
        words.setdefault(alike, []).append(subject if one.model == "none" else f"{one.model} {subject}")
    listed = "; ".join(
        f"{' and '.join(names)} {alike}" for alike, names in list(words.items())[:_MOST_GROWING]
    )
    more = f"; and {len(words) - _MOST_GROWING} more" if len(words) > _MOST_GROWING else ""
    return [printable(f"growing with the offset, within tolerance: {listed}{more}.")] if words else []


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


def structure_notes(results: Iterable[Record], frozen: bool) -> list[str]:
    """Return what the shift does to exact scores, or that length-dependent frequencies were kept."""
    results = list(results)
    moved = [record for record in results if record.structural_max > 0]
    if moved:
        most = max(moved, key=lambda record: record.structural_rms)
        why = "clipped angles" if most.clip else "new frequencies"
        return [
            f"structure, not precision: at offset {most.offset} the shift itself changes the exact scores by "
            f"{most.structural_rms:.3g} RMS in every dtype ({why})."
        ]
    shifted = [record for record in results if record.length is not None and record.offset]
    if not shifted or not frozen:
        return []
    return [
        f"scaling {shifted[0].scaling.partition(':')[0]} depends on the length; frequencies are those for "
        f"{shifted[0].length} positions at every offset; --length shifted lets them change."
    ]


def grid_notes(results: Iterable[Record]) -> list[str]:
    """Return by how much an offset moved each axis of a grid, where `offset` does not say it."""
    farthest: dict[str, Record] = {}
    for record in results:
        if record.offset and moved_apart(record):
            name = f"{record.model} {record.axes}"
            farthest[name] = max(farthest.setdefault(name, record), record, key=lambda one: abs(one.offset))
    return [
        f"{name}, grid {one.grid}: offset {one.offset} moves {_moves(one)}, in the unit of its positions."
        for name, one in list(farthest.items())[:_MOST_GROWING]
    ]


def _moves(record: Record) -> str:
    """Return the axes of a grid and by how much each moved."""
    moved = [(name, getattr(record, f"offset_{name}")) for name in "thw"]
    return ", ".join(f"{name} by {short(value)}" for name, value in moved if value is not None)


def rerotation_notes(results: Sequence[Record]) -> list[str]:
    """Return what keys that are rotated again cost, and the remedy: each subject and dtype at its worst."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in results:
        if record.rerotated is not None and record.verdict != "refused":
            groups.setdefault((record.model, record.implementation, record.dtype), []).append(record)
    named, notes = differing(results), []
    for some in groups.values():
        worst = max(some, key=lambda one: verdicts.severity(verdicts.columns(one)))
        clauses = [*_times_fresh(worst, results), *_remedies(worst)]
        if clauses:
            notes.append(f"{verdicts.who(worst, named(worst))}: {'; '.join(clauses)}.")
    return notes


def _times_fresh(record: Record, results: Sequence[Record]) -> list[str]:
    """Return how many times as much it drifts as keys that were rotated once, where that was measured."""
    same = ("implementation", "environment", *(name for name in _BESIDE if name != "rerotated"))
    for one in results:
        once = one.rerotated is None or one.rerotated.startswith("0 x ")
        if once and one is not record and all(getattr(one, name) == getattr(record, name) for name in same):
            growth = judging.ratio(record.drift_rms, one.drift_rms)
            return [f"{times(growth)} times the drift of keys rotated once"] if math.isfinite(growth) else []
    return []


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


def device_notes(results: Iterable[Record]) -> list[str]:
    """Return which devices had no float64, so that stages in it were executed elsewhere."""
    places = dict.fromkeys(record.device for record in results if record.device.endswith("(float64 on cpu)"))
    return [f"{place.partition(' ')[0]} has no float64: it was computed on the CPU." for place in places]
