"""Comparison of two reports of the same cases: which cases changed, which are new or gone.

Differences that another processor's order of sums explains are no change (docs/method.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from ropeaudit.arithmetic.formats import FP32, FP64, parse
from ropeaudit.audits import records
from ropeaudit.audits.records import NOT_IN_CASE, UNKNOWN
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.runtime.rows import ABSENT, Row, Rows

Places = tuple[int | None, int | None]
RATIO = 1.05  # times what it was, or the inverse: a column has changed
COMPARED = records.COLUMNS.compared
_JUDGED = ("verdict", "within_tolerance")
_JUDGED_BY = ("drift_rms", "floor_rms", "drift_max", "rotation_excess")  # the columns that verdicts depend on


@dataclass(frozen=True, slots=True)
class Pair:
    """The rows of a case in two reports. reordered: whether its sums may be in another order."""

    before: Row | None
    after: Row | None
    changed: tuple[str, ...] = ()  # columns
    reordered: bool = False

    @property
    def row(self) -> Row:
        """The later row where there is one, else the earlier."""
        return self.after or self.before or {}

    @property
    def status(self) -> str:
        """One word: new, gone, changed or same."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        return "changed" if self.changed else "same"

    def ratio(self, column: str) -> float:
        """Return after / before: 1 for 0 / 0, inf for a change from 0, nan if undefined."""
        old, new = value(self.before, column), value(self.after, column)
        if math.isnan(old) or math.isnan(new):
            return math.nan
        if old == new:
            return 1.0
        return math.inf if old == 0 else new / old

    def change(self, column: str) -> float:
        """Return after - before; nan if undefined."""
        old, new = value(self.before, column), value(self.after, column)
        return 0.0 if old == new else new - old

    def explained(self, column: str) -> bool:
        """Return whether a column may have changed although the code has not."""
        if self.before is None or self.after is None:
            return False
        change, error = abs(self.change(column)), 0.0
        if change == 0:
            return True
        if "drift" in column:
            error = max(value(self.before, "reference_error"), value(self.after, "reference_error"))
        if self.reordered:
            error += allowance(self.before, self.after, column)
        return change <= error


class Pairs(Sequence[Pair]):
    """The pairs of rows of two reports, made when they are accessed.

    places: the row of each case in the earlier and the later report, None for none.
    changed: number of the pair -> the columns that changed.
    """

    def __init__(self, before: Rows, after: Rows, places: Sequence[Places], reordered: bool) -> None:
        """Join rows; no column has changed yet."""
        self.before, self.after, self.places, self.reordered = before, after, places, reordered
        self.changed: dict[int, tuple[str, ...]] = {}
        self.shared = [(n, i, j) for n, (i, j) in enumerate(places) if i is not None and j is not None]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: Any) -> Any:
        """Return a pair, or the pairs of a slice."""
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        i, j = self.places[number]
        number = range(len(self))[number]
        before, after = None if i is None else self.before[i], None if j is None else self.after[j]
        return Pair(before, after, self.changed.get(number, ()), self.reordered)

    def numbers(self, status: str) -> list[int]:
        """Return the numbers of the pairs with a status."""
        missing = {"new": 0, "gone": 1}
        if status in missing:
            return [n for n, sides in enumerate(self.places) if sides[missing[status]] is None]
        return [n for n, _, _ in self.shared if (n in self.changed) == (status == "changed")]

    def cells(self, name: str, differing: bool = False) -> Iterator[tuple[int, Any, Any]]:
        """Yield the number and both cells of each pair whose rows have a column.

        differing: only cells that differ.
        """
        old, new = self.before.columns.get(name, ()), self.after.columns.get(name, ())
        for n, i, j in self.shared if old and new else ():
            if not differing or old[i] != new[j]:  # most are the same
                first, second = _nan_as_none(old[i]), _nan_as_none(new[j])
                present = first is not ABSENT and second is not ABSENT
                if present and not (differing and first == second):
                    yield n, first, second


@dataclass(frozen=True, slots=True)
class Difference(Result):
    """All pairs in the order of the later report, missing cases last. ratio: counts as a change.

    processors: those of the earlier and the later report, empty where unknown.
    """

    report_module: ClassVar[str] = "ropeaudit.reports.comparison"
    pairs: Pairs
    ratio: float
    processors: tuple[str, str] = ("", "")

    def of(self, status: str) -> list[Pair]:
        """Return the pairs of a status."""
        return [self.pairs[number] for number in self.pairs.numbers(status)]

    @property
    def shared(self) -> list[Pair]:
        """The cases that both reports have."""
        return [self.pairs[number] for number, _, _ in self.pairs.shared]

    @property
    def only_reordered(self) -> bool:
        """Whether values differ, and all by no more than the order of sums explains."""
        figures = ((n, name) for name in COMPARED for n, _, _ in self.pairs.cells(name, differing=True))
        if not self.pairs.reordered or (first := next(figures, None)) is None:
            return False
        return all(self.pairs[n].explained(name) for n, name in chain([first], figures))


def compare(
    before: Sequence[Row],
    after: Sequence[Row],
    ratio: float = RATIO,
    processors: tuple[str, str] | None = None,
) -> Difference:
    """Join the rows of two reports by `case`, and find which changed.

    processors: those of the two reports, empty where unknown; None: the same.
    Raises: UsageError for a ratio, BadInput if rows cannot be told apart or none is in both.
    """
    if not 1 <= ratio < math.inf:
        raise UsageError(f"--ratio {ratio:g} is not 1 or more; try --ratio {RATIO}")
    old, new = Rows.of(before), Rows.of(after)
    earlier, later = _places_by_case(old, "earlier"), _places_by_case(new, "later")
    if not earlier.keys() & later.keys():
        raise BadInput(f"the two reports have no case in common{_difference_of_all(old, new)}")
    processors = processors or ("this", "this")
    reordered = processors[0] != processors[1] or not processors[0]
    places: list[Places] = [(earlier.get(case), place) for case, place in later.items()]
    places += [(place, None) for case, place in earlier.items() if case not in later]
    pairs = Pairs(old, new, places, reordered)
    for name in COMPARED:
        for number, was, now in pairs.cells(name, differing=True):
            # any other count is a change, and so is an undefined value
            other = was is None or now is None or records.COLUMNS[name].kind is int
            beyond = other or was == 0 or not 1 / ratio <= now / was <= ratio
            if other or (beyond and not pairs[number].explained(name)):
                pairs.changed[number] = (*pairs.changed.get(number, ()), name)
    tolerances = [rows.column("tolerance") for rows in (old, new)]
    for name in _JUDGED:
        for number, _, _ in pairs.cells(name, differing=True):
            i, j = places[number]
            alike = i is not None and j is not None and tolerances[0][i] == tolerances[1][j]
            pair = pairs[number]
            small = (pair.explained(each) or _nan_as_none(pair.row.get(each)) is None for each in _JUDGED_BY)
            if alike and not (pair.reordered and all(small)):  # else the order of sums alone may do it
                pairs.changed[number] = (*pairs.changed.get(number, ()), name)
    return Difference(pairs, ratio, processors)


def value(row: Row | None, column: str) -> float:
    """Return a number of a row; nan where it is undefined or missing."""
    result = None if row is None else row.get(column)
    return math.nan if result is None else float(result)


def _places_by_case(rows: Rows, which: str) -> dict[str, int]:
    """Return the place of each case's row. Raises: BadInput."""
    results: dict[str, int] = {}
    for place, case in enumerate(rows.column("case")):
        if case is None:
            raise BadInput(f"the {which} report has no column case; write both reports without --columns")
        before = results.setdefault(case, place)
        if before != place and repr(rows[before]) != repr(row := rows[place]):
            row_of = f"{row['implementation']} {row.get('dtype', '')} at offset {row['offset']}"
            raise BadInput(f"the {which} report has two rows for {row_of} that differ; leave one out")
    return results


def _difference_of_all(before: Rows, after: Rows) -> str:
    names = (name for name in records.IDENTITY if name not in NOT_IN_CASE)
    for name in (name for name in names if before.all_have(name) and after.all_have(name)):
        old, new = (set(map(_nan_as_none, rows.column(name))) for rows in (before, after))
        empty = {None, "", UNKNOWN}
        if old - empty and new - empty and not old & new:
            first, second = (min(map(str, values)) for values in (old, new))
            return f": {name} is {first} in the earlier and {second} in the later one"
    if before and after:
        return ": what they say does not tell why; measure one of them again"
    return f": the {'later' if before else 'earlier'} one is empty"


def _nan_as_none(cell: Any) -> Any:
    return None if cell != cell else cell


FLOAT64 = 1e-12  # relative: of sums in float64 of up to 10^9 terms
_PREDICTED = 1e-10  # relative: of differences of such sums that cancel to a hundredth
_NEEDED = ("head_dim", "seq_len", "heads", "scores", "reference_rms")  # a report may lack columns
_ROUNDING = 0.42  # RMS of a relative rounding error over the unit roundoff
_DEVIATIONS = 4.0  # of a mean; scores of a row share its q
_RARE = 1e-6  # of flips: fewer are none
_INDEPENDENT = ("gaussian", "randn")  # scores with errors of their own
_UNSTABLE = ("worst_head", "worst_query", "worst_key", "top1_flips")
_DIFFERENCES = ("predicted_rms", "attainable_rms", "excess")
_MAXIMA = ("drift_max", "change_max", "attention_tv_max", "attention_kl_max")


def meaning(column: str) -> str:
    """Return how another processor may change a column, in words."""
    declared = records.COLUMNS[column]
    if column in _UNSTABLE:
        return "anything: a last digit decides"
    if declared.kind is not float:
        return "nothing, but verdicts at a threshold" if column in _JUDGED else "nothing"
    if column.startswith("rotation_"):
        return "nothing of a recipe; of code what it computes"
    if declared.role in ("drift", "attention"):
        return "the order of sums"
    if column in records.IDENTITY:
        return "nothing"
    return f"{_PREDICTED if column in _DIFFERENCES else FLOAT64:g} of it"


class SummationError(NamedTuple):
    """How far another order of sums moves the scores of a case, in score units.

    sums: RMS of the change of a sum. step: spacing of stored scores, 0 where none changes.
    mean, single: the largest change of a mean, and of a score.
    """

    sums: float
    step: float
    mean: float
    single: float


def summation_error(row: Row) -> SummationError | None:
    """Return the change by the order of sums in a case; None if there is none, or unknown."""
    stages = _stages(row)
    if "accumulate" not in stages or any(row.get(name) is None for name in _NEEDED):
        return None
    accumulate, score = parse(stages["accumulate"]), parse(stages.get("score", "fp64"))
    scores, rms = int(row["scores"]), float(row["reference_rms"])
    if accumulate not in (FP32, FP64) or not scores or not math.isfinite(rms):
        return None
    sums = _ROUNDING * accumulate.unit_roundoff * math.sqrt(int(row["head_dim"]) / 2) * rms
    step = max(2 * score.unit_roundoff * rms, score.smallest_subnormal)
    independent = scores if row.get("source") in _INDEPENDENT else int(row["seq_len"])
    flips = min(1.0, 1.13 * sums / step) * independent  # scores stored otherwise
    if flips <= _RARE:
        step = 0.0
    stored = step * math.sqrt(flips + 1) / independent
    mean = _DEVIATIONS * (math.sqrt(2 / independent) * sums + stored)
    return SummationError(sums, step, mean, 12 * sums + 2 * step)


def allowance(before: Row, after: Row, column: str) -> float:
    """Return how far the order of sums may change a column; inf where a last digit decides."""
    declared = records.COLUMNS[column]
    if column in _UNSTABLE:
        return math.inf
    old, new = (float(row.get(column) or 0.0) for row in (before, after))
    if declared.kind is not float or not math.isfinite(old + new):
        return 0.0
    summed = (_PREDICTED if column in _DIFFERENCES else FLOAT64) * max(abs(old), abs(new))
    order = summation_error(after)
    if order is None or declared.role not in ("drift", "attention"):
        return summed
    if declared.role == "attention":
        return summed + _attention_allowance(column, order, after, max(old, new))
    unit = 1.0
    if column == "drift_relative":
        unit = float(after.get("reference_rms") or 0.0)
    elif column == "excess":
        # attainable_rms, from excess where the report has no column of it
        drift, excess = float(after.get("drift_rms") or 0.0), float(after.get("excess") or 0.0)
        unit = float(after.get("attainable_rms") or 0.0) or (drift / excess if excess else 0.0)
    errors = 2.0 if column.startswith("change_") else 1.0  # against itself: two
    both = (old + new) * unit
    if column in _MAXIMA:
        return summed + errors * order.single
    own = 0.0 if column == "drift_bias" else (errors * order.sums) ** 2 / both if both else math.inf
    return summed + ((own + errors * order.mean) / unit if unit else 0.0)


def _attention_allowance(column: str, order: SummationError, row: Row, size: float) -> float:
    """Return `allowance` of a column after softmax: δ in scores moves weights by |δ| in 1-norm."""
    queries, narrow = int(row["seq_len"]), 0.0
    if row.get("softmax") == "recipe":  # where weights are rounded
        formats = _stages(row).get("softmax", "fp64"), str(row.get("dtype") or "fp64")
        narrow = max(parse(name).unit_roundoff for name in formats)
    mean = 3 * order.sums + (order.step + narrow) / queries
    single = order.single + narrow
    if column == "attention_kl_max":
        return math.sqrt(2 * size) * single + single**2
    if column in _MAXIMA:
        return single
    if column in ("entropy", "entropy_reference"):
        return mean * (1 + math.log(queries))
    if column.startswith("attention_d"):
        return mean * int(row["heads"]) * queries
    return 4 * mean if "adaptive" in column else mean


def _stages(row: Row) -> dict[str, str]:
    return dict(word.split("=", 1) for word in str(row.get("stages") or "").split() if "=" in word)
