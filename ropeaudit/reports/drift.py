"""The report of `shift`: answer, rows and columns on the screen, legend, notes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ropeaudit.audits import judging, records
from ropeaudit.audits.records import Record, axes_moved_apart
from ropeaudit.inputs import masks
from ropeaudit.reports import Report, Row, settings, tabulated, verdicts
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.numbers import (
    counted,
    limit_percent,
    percent,
    printable,
    setting,
    short,
    short_format,
)
from ropeaudit.rope.scaling_names import short_names
from ropeaudit.runtime.columns import Columns, table
from ropeaudit.runtime.rows import Rows, column

_NOTABLE = 0.01  # share of the norm of the keys
_VERBOSE = ("drift_max", "change_rms", "verdict")  # on the screen with -v alone
_READER_COLUMNS = table("shift", "shift-readers")
Telling = Callable[[Record], dict[str, str]]
_JUDGED: Callable[[Record], tuple[Any, str]] = attrgetter("within_tolerance", "verdict")
_QUALITIES = {
    "no": "out of tolerance",
    "undecided": "undecided",
    "yes": "within tolerance",
    "": "not judged",
}
# columns that agree if two rows differ in their subject only
_SAME_CASE = (
    *(name for name in settings.NAMES if name != "layout"),
    "dtype",
    "offset",
    "sample",
    "tolerance",
    "rerotated",
)


def report(
    results: Sequence[Record],
    columns: Sequence[str],
    metadata: Mapping[str, Any],
    extra_notes: Sequence[str] = (),
    needed: Sequence[str] = (),
    held: Mapping[str, Sequence[Any]] | None = None,
) -> Report:
    """Return the report of records; `columns` chooses and orders what is shown and written.

    extra_notes: notes on the subjects, which come first. needed: columns that are written too, with their
    groups. held: the columns of the records, and others, if they are at hand.
    """
    chosen, troubles = columns, list(map(verdicts.trouble, results))
    growth = [
        math.nan if record.verdict == "refused" else judging.ratio(record.drift_rms, record.floor_rms)
        for record in results
    ]
    words = [trouble.words if trouble else "" for trouble in troubles]
    held = held or {name: [getattr(record, name) for record in results] for name in records.COLUMNS}
    rows = Rows({"growth": growth, "note": words, **held}, len(results), ())
    own = records.distinct(results)
    telling = distinguishing(own)
    columns, named = records.file_columns(own, columns, needed)
    wide = _screen(results, rows)
    screen = [name for name in wide if name not in _VERBOSE]
    notes = [
        *extra_notes,
        *verdicts.notes(results, telling, troubles),
        *frozen_notes(results),
        *rerotation_notes(results, telling),
    ]
    if any(record.attention_tv_mean is not None for record in results):
        notes += _temperature_notes(worst_of(results))
    stored = records.row_metadata(results, columns) if metadata else {}
    return tabulated(
        _declared(results, chosen, named),
        records.SCHEMA,
        rows,
        screen,
        columns if chosen else (),
        metadata={**stored, **metadata},
        answers=[answer(results, telling)],
        dispensable=settings.dispensable(wide, _READER_COLUMNS.dispensable),
        written=columns,
        verbose_screen=() if chosen else wide,
        notes=notes,
        legend=legend(results),
    )


def _screen(results: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """Return the columns that -v shows; those of grid axes only if their shifts differ."""
    on_grids = (record for record in results if record.grid is not None)
    axes = () if any(map(axes_moved_apart, on_grids)) else ("offset_t", "offset_h", "offset_w")
    subject, dtype, *others = (name for name in _READER_COLUMNS.screen(rows) if name not in axes)
    names = settings.screen(rows, [subject, dtype], others)
    if "model" not in names:
        return names
    alike = [name for name in (subject, dtype, "offset") if len(set(column(rows, name))) == 1]
    return [name for name in names if name not in alike]  # the answer says them


def legend(results: Sequence[Record]) -> str:
    """Return the definition of drift, with sizes and seed of q and k if all rows share them."""
    sizes = {(record.seq_len, record.heads, record.seed) for record in results}
    drawn = ""
    if len(sizes) == 1:
        seq_len, heads, seed = sizes.pop()
        spread = any(record.grid or record.sample for record in results)
        near = "" if spread else f" (distances to {seq_len - 1:,})"
        drawn = f"; {counted(seq_len, 'token')}{near}, {counted(heads, 'head')}"
        drawn += "" if seed is None else f", seed {seed}"
    best = "vs best: drift ÷ that expected of careful code in the dtype"
    return f"drift = RMS(score - exact) / RMS(exact); {best}{drawn}\ncolumns: ropeaudit list columns"


def _declared(results: Sequence[Record], chosen: Sequence[str], named: Sequence[str]) -> Columns:
    wanted = {
        name: replace(_READER_COLUMNS[name], sentence=False) for name in named if name in _READER_COLUMNS
    }
    if not chosen:
        wanted["dtype"] = replace(records.COLUMNS["dtype"], style="format")
    tolerances = {record.tolerance for record in results}
    if len(tolerances) == 1 and not math.isnan(tolerance := tolerances.pop()):
        within = records.COLUMNS["within_tolerance"]
        wanted["within_tolerance"] = replace(within, title=f"within {limit_percent(tolerance)}")
    return Columns({**_READER_COLUMNS, **wanted}.values())


def answer(results: Sequence[Record], telling: Telling | None = None) -> Answer:
    """Return the answer about records: the worst row, and how many are good or bad.

    telling: the result of `distinguishing`, if it is at hand.
    """
    if not results:
        return Answer("WARN", "shift", "no case was measured")
    telling = telling or distinguishing(results)
    worst = worst_of(results)
    quality = verdicts.quality(verdicts.columns(worst))
    wrong = worst.verdict in ("overflow", "wrong_rotation") or quality == "no"
    missing = any(record.verdict == "refused" for record in results)
    missing = missing or math.isnan(worst.drift_relative)
    status: Status = "OK" if quality == "yes" and not missing else "WARN"
    if wrong:
        status = "FAIL"
    facts = list[tuple[str, str]]()
    if len(results) > 1:
        kinds = Counter[str]()
        for (within, verdict), count in Counter(map(_JUDGED, results)).items():
            word = _QUALITIES[verdicts.quality_of(within, verdict)]
            kinds["refused" if verdict == "refused" else word] += count
        counts = [f"{kinds[word]:,} {word}" for word in (*_QUALITIES.values(), "refused") if kinds[word]]
        facts.append(("rows", f"{', '.join(counts)}, of {len(results):,}"))
    if _mean_weight_moved(worst) is not None:
        facts.append(("after softmax", _after_softmax(worst)))
    if worst.sample:
        every = masks.count(worst.mask, worst.seq_len) * worst.heads
        text = f"{worst.scores:,} of {every:,} scores"
        if worst.drift_rms_low is not None and not math.isnan(worst.drift_rms_low):
            text += f"; drift rms {short(worst.drift_rms_low)} to {short(worst.drift_rms_high)} (95 %)"
        facts.append(("sample", f"{text}; a fault at one position of thousands is likely missed"))
    facts += structure_fact(results)
    return Answer(
        status,
        " ".join([*verdicts.model(worst), verdicts.called(worst)]),
        _reason(results, worst, quality, telling),
        _causes(worst) if wrong else (),
        facts,
    )


def _reason(results: Sequence[Record], worst: Record, quality: str, telling: Telling) -> str:
    named = [f"{name}={value}" for name, value in telling(worst).items()]
    where = " ".join(["in", short_format(worst.dtype), *named, f"at offset {worst.offset:,}"])
    limit = "" if math.isnan(worst.tolerance) else f" (limit {limit_percent(worst.tolerance)})"
    if worst.verdict == "refused":
        every = "all " if len(results) > 1 else ""
        return f"refused in {every}{counted(len(results), 'row')}: {worst.why}"
    if worst.verdict == "overflow":
        kind = "sampled scores" if worst.sample else "scores"
        lost = f"{worst.nonfinite:,} of {worst.scores:,} {kind} are nan or infinite"
        return f"{lost} {where}{_subjects_within(results, worst)}"
    size = f"{verdicts.distinct_percent(worst.drift_relative, worst.tolerance)} off{limit}"
    if worst.verdict == "wrong_rotation" or (
        quality == "no" and judging.rotates_wrongly(worst.rotation_excess)
    ):
        return f"rotates wrongly {where}: scores {size}{_subjects_within(results, worst)}"
    if quality == "no":
        return f"out of tolerance {where}: scores {size}{_subjects_within(results, worst)}"
    if quality == "undecided" and worst.scores < judging.FEWEST:
        few = f"{counted(worst.scores, 'score')} of the {judging.FEWEST} that are needed"
        return f"undecided {where}: {few}"
    if quality == "undecided":
        return f"undecided {where}: the sample's interval holds the tolerance; a larger --sample decides"
    if quality == "":
        return "not judged: the file does not say whether rows are within tolerance"
    if math.isnan(worst.drift_relative):
        return f"within tolerance, the file says, but drift_relative {where} is no number"
    refused = sum(record.verdict == "refused" for record in results)
    begin = f"refused in {refused} of {len(results)} rows, the others " if refused else ""
    return f"{begin}within tolerance, furthest off {where}: scores {size}"


def _subjects_within(results: Sequence[Record], worst: Record) -> str:
    names = [
        verdicts.called(record)
        for record in results
        if record.implementation != worst.implementation
        and record.environment in (None, worst.environment)
        and record.within_tolerance is True
        and all(getattr(record, name) == getattr(worst, name) for name in _SAME_CASE)
    ]
    if not names:
        return ""
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"; {names[0]}{more} within it"


def _causes(worst: Record) -> list[Cause]:
    if worst.rotation_excess is None:
        return []
    from ropeaudit.recognition.diagnosis import kinds  # in-function: most rows are of no code

    code = worst.diagnosis or ("nonfinite" if worst.nonfinite else "unexplained")
    known = kinds().get(code.partition("+")[0].partition("|")[0])
    title = known.title if known else "nothing that was tried explains it"
    title = printable(worst.resembles or title)
    facts = [f"rotates {verdicts.wrong_pair(worst)}"] if not worst.rotation_excess <= 1 else []
    return [Cause(code, title, facts=facts)]


def worst_of(results: Sequence[Record]) -> Record:
    """Return the worst row: by verdict and tolerance, then by drift, where nan counts most."""

    def kind(judged: tuple[Any, str]) -> tuple[int, int]:
        rank = verdicts.rank(judged[1])
        quality = verdicts.quality_of(*judged)
        return rank if rank > 1 else min(rank, 0), {"no": 2, "undecided": 1}.get(quality, 0)

    def size(record: Record) -> tuple[bool, float]:
        lost = judging.ratio(record.nonfinite, record.scores) if record.nonfinite else 0.0
        drift = math.inf if math.isnan(record.drift_relative) else record.drift_relative
        return judging.rotates_wrongly(record.rotation_excess), lost or drift

    kinds = {judged: kind(judged) for judged in set(map(_JUDGED, results))}
    worst = max(kinds.values())
    return max((one for one in results if kinds[_JUDGED(one)] == worst), key=size)


def _mean_weight_moved(record: Record) -> float | None:
    mean = record.attention_tv_mean
    return None if mean is None or math.isnan(mean) else mean


def _after_softmax(record: Record) -> str:
    moved = f"{percent(_mean_weight_moved(record) or 0.0)} of the weight moves"
    if record.right_token is not None:
        return f"{moved}; {percent(record.right_token)} of the rows attend to the token they were made for"
    flips, rows = int(record.top1_flips or 0), record.heads * record.seq_len
    return f"{moved}; {flips:,} of {rows:,} top-1 keys change"


def structure_fact(results: Sequence[Record]) -> list[tuple[str, str]]:
    """Return a fact about the change of exact scores by the shift itself, if there is one."""
    moved = [record.structural_rms for record in results if record.structural_max > 0]
    size = short(max(moved, default=0))
    changes = f"the shift itself changes exact scores by up to {size} RMS, in every dtype"
    return [("structure", changes)] if moved else []


def _temperature_notes(record: Record) -> list[str]:
    plain, adaptive = _mean_weight_moved(record), record.attention_adaptive_tv_mean
    if not plain or adaptive is None:
        return []
    ratio = adaptive / plain
    where = f"{verdicts.who(record)}: an adaptive temperature (arXiv 2410.01104)"
    if 0.95 <= ratio <= 1.05:
        return [f"{where} neither undoes nor amplifies what drift moves."]
    does = "amplifies" if ratio > 1 else "undoes part of"
    share = f"{percent(adaptive)} of the weight instead of {percent(plain)}"
    return [f"{where} {does} what drift moves: {share}."]


def distinguishing(results: Sequence[Record]) -> Telling:
    """Return a function from a record to those of its settings that differ among records."""
    own = records.distinct(results)
    rows = [{name: getattr(record, name) for name in settings.NAMES} for record in own]
    several = [name for name in settings.independent(rows) if name not in ("model", "layout")]
    scalings = short_names(row["scaling"] for row in rows)
    known: dict[tuple[Any, ...], dict[str, str]] = {}

    def named(record: Record) -> dict[str, str]:
        values = tuple([getattr(record, name) for name in several])
        if values not in known:
            texts = {name: setting(value) for name, value in zip(several, values, strict=True)}
            known[values] = texts | ({"scaling": scalings[record.scaling]} if "scaling" in texts else {})
        return known[values]

    return named


def frozen_notes(results: Sequence[Record]) -> list[str]:
    """Return a note if frequencies depend on the length and were the same at all offsets."""
    shifted = [record for record in results if record.length is not None and record.offset]
    if not shifted:
        return []
    lengths: dict[tuple[str, int], set[int | None]] = {}
    for record in results:
        lengths.setdefault((record.scaling, record.seq_len), set()).add(record.length)
    one_length = all(len(some) == 1 for some in lengths.values())
    offsets = {record.offset for record in results}
    changed = any(record.structural_max > 0 for record in results)
    if not (one_length and len(offsets) > 1) or changed:
        return []
    return [
        f"scaling {shifted[0].scaling.partition(':')[0]} depends on the length; frequencies are those for "
        f"{shifted[0].length} positions at every offset; --length shifted lets them change."
    ]


def rerotation_notes(results: Sequence[Record], telling: Telling) -> list[str]:
    """Return notes on norms of keys that repeated rotations changed, with the remedy."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in results:
        if record.rerotated is not None and abs(record.key_norm_growth or 0.0) >= _NOTABLE:
            groups.setdefault((record.model, record.implementation, record.dtype), []).append(record)
    notes = []
    for some in groups.values():
        worst = max(some, key=lambda one: verdicts.severity(verdicts.columns(one)))
        growth = 100 * (worst.key_norm_growth or 0.0)
        share = f"{growth:+.2g} %" if abs(growth) < 99.5 else f"{growth:+.0f} %"
        notes.append(
            f"{verdicts.who(worst, telling(worst))}: key norms change by {share}: each turn multiplies a "
            "pair by sqrt(cos² + sin²) as stored and rounds the products; take fewer, larger turns, or a "
            "wider table and rotation."
        )
    return notes
