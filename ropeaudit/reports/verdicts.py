"""Order of rows by badness, their quality, and clauses about their faults."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse
from ropeaudit.audits.comparison import value
from ropeaudit.audits.records import COLUMNS, IDENTITY, UNKNOWN, Record
from ropeaudit.errors import UnknownName
from ropeaudit.reports.numbers import percent, printable, short_format, times

if TYPE_CHECKING:
    from ropeaudit.subjects.calling.code import Code
    from ropeaudit.subjects.factories import SubjectFactory

Row = Mapping[str, Any]

# Verdicts that outrank any size of drift, the worst last; all others are ranked by drift_relative.
_RANKS = {"refused": -1, "exact": 0, "wrong_rotation": 2, "overflow": 3}
_SUBJECT = attrgetter("model", "implementation", "environment", "rerotated", "dtype")
_AFTER_SCORES = ("softmax",)  # stages that no score goes through


def severity(row: Row) -> tuple[int, float]:
    """Return the sort key of a row by badness: verdict, then drift."""
    size = value(row, "drift_relative")
    return rank(row.get("verdict")), math.inf if math.isnan(size) else size


def rank(verdict: Any) -> int:
    """Return the rank of a verdict by badness."""
    return _RANKS.get(str(verdict), 1)


def badness(row: Row, column: str) -> float:
    """Return the badness of a row in a column: larger is worse, nan is inf."""
    size = value(row, column)
    if math.isnan(size):
        return math.inf
    return -size if COLUMNS[column].least_is_worst else abs(size)


def quality(row: Row) -> str:
    """Return whether a row is within tolerance: yes, no, undecided; empty if unknown."""
    return quality_of(row.get("within_tolerance", UNKNOWN), row.get("verdict"))


def quality_of(within: Any, verdict: Any) -> str:
    """Return the quality by the cells `within_tolerance` and `verdict`."""
    if within == UNKNOWN or verdict == "refused":
        return ""
    return "undecided" if within is None else "yes" if within else "no"


def bad(row: Row) -> bool:
    """Return whether a row is out of tolerance."""
    return quality(row) == "no"


def who(record: Record, several: Mapping[str, str] | None = None) -> str:
    """Return a record's case in words. several: settings that differ among the records."""
    settings = [f"{name}={value}" for name, value in (several or {}).items() if name != "model"]
    words = printable(" ".join([*model(record), called(record), "in", record.dtype, *settings]))
    return f"{words} at offset {record.offset}"


def model(record: Record) -> list[str]:
    """Return the name of the model in a list, which is empty without one."""
    return [] if record.model in ("none", UNKNOWN) else [record.model]


def called(record: Record) -> str:
    """Return the subject, its environment, and how keys were rotated again."""
    turns = ["rerotated", record.rerotated] if record.rerotated else []
    return " ".join([record.implementation, *under(record.environment), *turns])


def under(environment: Any) -> list[str]:
    """Return "under" and an environment; nothing for a clean or unknown one."""
    return ["under", environment] if environment and environment != "none" else []


def case_name(row: Row) -> str:
    """Return model, subject, dtype and offset of a row, as far as it has them."""
    turns = ["rerotated", row["rerotated"]] if row.get("rerotated") else []
    how = *under(row.get("environment")), *turns
    names = (row.get("model"), row.get("implementation"), *how, row.get("dtype"))
    where = f" at offset {row['offset']}" if "offset" in row else ""
    return " ".join(str(name) for name in names if name not in (None, "none", UNKNOWN)) + where


def distinct_percent(share: float, tolerance: float) -> str:
    """Return a share with enough digits to differ from the tolerance."""
    if share == tolerance or percent(share) != percent(tolerance):
        return percent(share)
    for digits in range(3, 17):
        text = f"{100 * share:.{digits}g} %"
        if text != f"{100 * tolerance:.{digits}g} %":
            return text
    return percent(share)


def wrong_rotation(record: Record) -> str:
    """Return a clause about the worst rotated pair and its diagnosis."""
    if record.rotation_pair is None:
        return "has a rotated pair that is not where its position says"
    if not record.resembles:
        return f"rotates {wrong_pair(record)}"
    from ropeaudit.recognition.diagnosis import NO_CAUSE  # in-function: most rows are of no code

    like = "" if record.diagnosis in NO_CAUSE else "it resembles: "
    return f"rotates {wrong_pair(record)}; {like}{printable(record.resembles)}"


def wrong_pair(record: Record) -> str:
    """Return the place of the worst rotated pair, and its error."""
    place = f"pair {record.rotation_pair} of {record.rotation_side} at position {record.rotation_position}"
    rest = f", head {record.rotation_head}, batch element {record.rotation_batch}"
    excess = record.rotation_excess
    finite = excess is not None and math.isfinite(excess)
    by = f"error {times(excess or 0.0)}× the rounding allowance" if finite else "nan or infinite"
    return f"{place}{rest} wrongly: {by}"


def columns(record: Record) -> Row:
    """Return the columns that `severity`, `quality` and `bad` read."""
    return {name: getattr(record, name) for name in ("verdict", "within_tolerance", "drift_relative")}


def notes(
    results: Sequence[Record],
    telling: Callable[[Record], Mapping[str, str]],
    troubles: Iterable[Trouble | None] | None = None,
) -> list[str]:
    """Return notes on bad rows; rows that differ only in the offset share one, about the worst.

    telling: record -> settings that differ among the records. troubles: those of the rows, if at hand.
    """
    groups: dict[tuple[Any, ...], list[tuple[float, Record, str]]] = {}
    for record, problem in zip(results, troubles or map(trouble, results), strict=True):
        if problem:
            key = (*_SUBJECT(record), problem.kind, *telling(record).values())
            groups.setdefault(key, []).append((problem.size, record, problem.clause))
    texts = []
    for group in groups.values():
        _, record, text = max(group, key=itemgetter(0))
        others = len({other.offset for _, other, _ in group}) - 1
        worse = "" if record.verdict == "refused" else ", no worse"
        also = f" (and at {others} other{'s' * (others > 1)}{worse})" if others else ""
        texts.append(f"{who(record, telling(record))}{also}{text}.")
    return texts


class Trouble(NamedTuple):
    """A problem of a row: kind, badness, a few words, and a clause."""

    kind: str
    size: float
    words: str
    clause: str


def trouble(record: Record) -> Trouble | None:
    """Return the problem of a row, None for a good one."""
    if record.verdict == "refused":
        why = printable(record.why)
        return Trouble(f"refused: {record.why}", 0.0, f"refused: {why}", f": {why}")
    excess, count, length = record.rotation_excess, record.distinct_positions, record.seq_len
    lost = f"{record.nonfinite:,} of {record.scores:,} scores nan or infinite"
    if excess is not None and not excess <= 1:
        kind, size = f"wrong: {record.diagnosis} {record.resembles}", excess
        words = f"wrong rotation: {record.diagnosis or 'unexplained'}"
        if math.isnan(excess):
            size, words = math.inf, lost
        return Trouble(kind, size, words, f" {wrong_rotation(record)}")
    collapsed = count < length and record.rotary_dim > 0
    if not record.nonfinite and not (collapsed and count):
        return None
    at_zero = bool(record.nonfinite) and math.isnan(record.floor_rms)  # already at small positions
    far = abs(record.offset) + length > FP32.first_inexact_integer
    remedy = _wider_stages(record.stages, collapsed and not at_zero, far, bool(record.nonfinite))
    if record.nonfinite:
        kind = "sampled score" if record.sample else "score"
        share = f"{record.nonfinite} of {record.scores} {kind}s are"
        if record.nonfinite == record.scores:
            share = f"every {kind} is"
        clause = f": {share} nan or infinite{remedy}"
        return Trouble(f"nonfinite{remedy}", record.nonfinite, lost, clause)
    words = f"{short_format(record.dtype)} collapses {length:,} positions to {count:,}"
    clause = f": {words}{remedy}"
    return Trouble(f"collapsed{remedy}", -count, words, clause)


def stored(stages: str) -> dict[str, Format]:
    """Return the formats of stages whose names are known. stages: as in the column."""
    formats = dict[str, Format]()
    for word in stages.split():
        stage, _, name = word.partition("=")
        with contextlib.suppress(UnknownName):
            formats[stage] = parse(name.rpartition("/")[2])
    return formats


@lru_cache(maxsize=256)
def _wider_stages(stages: str, collapsed: bool, far: bool, nonfinite: bool) -> str:
    """Return a clause about stages to compute in wider formats; empty if stages are unknown."""
    formats, wide = stored(stages), FP64 if far else FP32
    if collapsed and "position" in formats:
        present = [stage for stage in ("position", "angle") if stage in formats]
        narrow = [stage for stage in present if formats[stage].precision < wide.precision]
        if "position" in narrow:
            return f"; compute {' and '.join(f'{stage}s' for stage in narrow)} in {wide}"
    if not nonfinite:
        return ""
    before_softmax = {stage: fmt for stage, fmt in formats.items() if stage not in _AFTER_SCORES}
    small = [stage for stage, fmt in before_softmax.items() if fmt.largest < FP32.largest]
    if not small and formats:
        return "; float32 does not hold these numbers: try --dtype fp64"
    if small and "position" in formats:
        return f"; keep in float32 which of {', '.join(small)} overflows (`ropeaudit explain` names it)"
    return ""


_SAME = 1.05  # times the clean drift: less is no change
_CASE = attrgetter(*(name for name in IDENTITY if name not in ("environment", "case")))


def environment_notes(factories: Sequence[SubjectFactory], results: Sequence[Record]) -> list[str]:
    """Return notes on environments that make rows worse; code is called again for the cause."""
    clean = {repr(_CASE(record)): record for record in results if record.environment == "none"}
    groups: dict[tuple[str, str], list[tuple[Record, Record]]] = {}
    for record in results:
        if record.verdict == "refused" or not under(record.environment):
            continue
        beside = clean.get(repr(_CASE(record)))
        if beside is None:
            continue
        lost = record.nonfinite > beside.nonfinite or record.distinct_positions < beside.distinct_positions
        if lost or record.drift_rms > _SAME * beside.drift_rms + record.reference_error:
            key = record.implementation, str(record.environment)
            groups.setdefault(key, []).append((record, beside))
    return [
        printable(f"{subject} under {environment}: {_environment_effect(factories, worse)}.")
        for (subject, environment), worse in groups.items()
    ]


def _environment_effect(factories: Sequence[SubjectFactory], worse: Sequence[tuple[Record, Record]]) -> str:
    """Return the cause and the effect, first and worst row."""
    from ropeaudit.subjects.calling import exposure  # in-function: most rows are of no code

    first = next((pair for pair in worse if bad(columns(pair[0]))), worse[0])
    worst = max(worse, key=lambda pair: badness(columns(pair[0]), "drift_relative"))
    clauses = []
    for record, clean in (first, worst) if worst is not first else (first,):
        factory = factory_of(record, factories)
        code, dtype = cast("Code", factory.code), factory.dtype
        sizes = (record.drift_relative, clean.drift_relative)
        drifts = [percent(size) if math.isfinite(size) else "nan or infinity" for size in sizes]
        drift = f"scores drift by {drifts[0]} (clean: {drifts[1]})"
        measured, _ = exposure.consequence(code, record.setting, dtype, record.offset, record.seq_len)
        where = f"{measured}," if measured else f"at offset {record.offset}"
        clauses.append(f"in {record.dtype} {where} {drift}")
    reason = exposure.cause(code, record.setting, dtype)  # of the worst, the last
    return ": ".join(filter(None, [reason, "; ".join(clauses)]))


def factory_of(record: Record, factories: Sequence[SubjectFactory]) -> SubjectFactory:
    """Return the factory of a row's subject."""
    wanted = record.implementation, record.dtype, record.environment
    return next(each for each in factories if (each.name, each.dtype.name, each.environment) == wanted)
