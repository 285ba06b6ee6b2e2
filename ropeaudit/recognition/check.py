"""Check of a dumped inv_freq or cos/sin table: which pairs are wrong, and which fault explains it.

Each known fault, with casts, predicts a table. It explains the dump if only float32 rounding and the half ulp
of the casts are left. The simplest explanation comes first, then those that explain all but a few pairs.
Letters: p pairs, n positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recognition import allowance, faults, prediction
from ropeaudit.recognition.diagnosis import Diagnosis, Value, Where, kinds
from ropeaudit.recognition.faults import CASTS, RIGHT, Fault, position_fault
from ropeaudit.recognition.solving import recover_frequencies, recover_from_half
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.tensor_files.rope_values import Dump

_SHOWN = 5, 3  # explanations listed, those that explain and those that do not
_NEAR = 0.5  # a hypothesis is called near if it leaves at most this share of the error
_ROWS_AT_ONCE = 8192  # positions compared at once
_EQUAL = 0.045  # of costs: those that explain, and are no more far-fetched than this, are equals
_FEWEST_PAIRS = 4  # pairs of which one may be off beside a rest that is explained
_STRAY = 0.002  # share of angles that float32 may push over a midpoint of a narrower format
_STRAY_PAIR = 0.03  # of a single pair
_FEW_ROWS = 4  # that may be off beside a table that is right
_SEEN = 2.0**-20  # relative: how closely a float32 table shows its frequencies
_FACTOR = 1e-3  # relative: attention factors nearer than this may be the same, rounded
_NEAR_POINTS = 1e-2  # relative: an attention factor that may be a usual one
_ALONE = 0.5  # how far-fetched it is that cos is of other angles than sin
_SIDES = ("cos", "sin")
_OF_TABLES = ("wrong-direction", "first-position-only", "cos-sin-swapped")  # codes that tables show


@dataclass(frozen=True, slots=True)
class Explanation:
    """A possible explanation of a dump; explains: of every pair. residual: RMS and largest error left.

    diagnosis: None for the expected setting and formats. setting: another one with these frequencies.
    strays: pairs that it does not explain; few: whether they are few. Units: those of the finding.
    """

    diagnosis: Diagnosis | None
    explains: bool
    residual: float
    residual_max: float
    setting: RopeSetting | None = None
    few: bool = False
    strays: tuple[int, ...] = field(default=(), repr=False)
    cost: float = field(default=0.0, repr=False)

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key: full explanations by cost, then those with few strays, then the rest."""
        residual = self.residual if math.isfinite(self.residual) else math.inf
        if self.explains:
            return 0, self.cost, residual
        return (1, len(self.strays) + self.cost / 100, residual) if self.few else (2, 0.0, residual)

    @property
    def another_setting(self) -> bool:
        """Whether it names another setting or other positions for both cos and sin."""
        parts = () if self.diagnosis is None or self.diagnosis.where.sides else self.diagnosis.parts()
        return any(kinds()[one.code].group in ("setting", "positions") for one in parts)


@dataclass(frozen=True, slots=True)
class TableFinding:
    """The difference of a dump from the exact table of a setting, and its explanation.

    rows: one per pair; `size` is the column of its error, in `unit`. nonfinite: how many of `values` are.
    side: cos or sin, if only that one is wrong. hypotheses: the best first, which leaves the share `left` of
    the error. diagnosis: None where the dump agrees, and where no hypothesis comes near.
    """

    name: str
    agrees: bool
    rows: list[dict[str, Any]]
    size: str
    unit: str
    nonfinite: int
    values: int
    side: str
    hypotheses: list[Explanation]
    left: float
    diagnosis: Diagnosis | None

    @property
    def best(self) -> Explanation | None:
        """The best hypothesis, or None."""
        return next(iter(self.hypotheses), None)

    @property
    def off(self) -> list[dict[str, Any]]:
        """The rows of wrong pairs."""
        return [row for row in self.rows if row["off"] == "yes"]

    @property
    def other_dims(self) -> bool:
        """Whether it rotates another number of dims, so that pairs cannot be compared."""
        return self.diagnosis is not None and self.diagnosis.code == "partial-rotation"

    def diagnosis_of(self, side: str) -> Diagnosis | None:
        """Return the diagnosis of cos or of sin, without faults of the other."""
        parts = () if self.diagnosis is None else tuple(self.diagnosis.parts())
        own = [one for one in parts if not one.where.sides or side in one.where.sides]
        if side not in _SIDES or len(own) == len(parts) or not own:
            return self.diagnosis
        return replace(own[0], also=tuple(replace(one, also=()) for one in own[1:]))

    @property
    def worst(self) -> dict[str, Any]:
        """The row of the pair that is furthest off."""
        return max(self.rows, key=lambda row: abs(row[self.size]))

    @property
    def preference(self) -> tuple[bool, tuple[tuple[int, float, float], ...]]:
        """The sort key: findings that agree first, then the best explained."""
        return not self.agrees, () if self.best is None else (self.best.rank,)


def check(dump: Dump, setting: RopeSetting, label: str = "") -> TableFinding:
    """Compare a dump with the exact table of a setting, and explain the difference.

    Where the two columns of a pair differ, the worse one counts.
    Raises: BadInput if the dump has not one column (or two) for each pair of the setting.
    """
    first, second = dump.twice(setting.pairs)
    alike = all(getattr(first, name) is getattr(second, name) for name in ("frequencies", "cos", "sin"))
    kind = FrequencyList if dump.cos is None else CosSinTable
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    with np.errstate(all="ignore"):
        found = [_finding(kind(one, setting, exact), label) for one in (first, second)[: 2 - alike]]
    return max(found, key=lambda one: (one.nonfinite, len(one.off), abs(one.worst[one.size])))


def _finding(work: FrequencyList | CosSinTable, label: str) -> TableFinding:
    """Return the wrong pairs and their best explanation, with equally good ones as alternatives."""
    values, ranked, pairs = work.values, list[Explanation](), work.off.size
    columns: dict[str, Sequence[Any]] = {
        "setting": [label] * pairs,
        "pair": range(pairs),
        "theta": work.exact.tolist(),
        "found": work.recovered.tolist(),
        "relative_error": ((work.recovered - work.exact) / _reference_sizes(work.exact)).tolist(),
        **work.columns,
        "off": ["yes" if off else "no" for off in work.off],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    nonfinite, left = int(values.size - np.isfinite(values).sum()), 0.0
    if work.off.any() and not nonfinite:
        ranked = sorted(work.explanations(), key=lambda one: one.rank)
    right = [one for one in ranked if one.explains][: _SHOWN[0]]
    rest = [one for one in ranked if not one.explains and (one.few or one.diagnosis)][: _SHOWN[1]]
    diagnosis = Diagnosis("nonfinite") if nonfinite else None
    if best := next(iter(right + rest), None):
        without = min((one.residual for one in ranked if one.diagnosis is None), default=0.0)
        left, diagnosis = best.residual / without if without else 0.0, best.diagnosis
        if right and diagnosis:  # with its equals
            equals = (one.diagnosis for one in right[1:] if one.cost <= best.cost + _EQUAL)
            diagnosis = replace(diagnosis, alternatives=tuple(filter(None, equals)))
        elif best.few:  # but for a few pairs
            where = Where() if diagnosis else work.where()
            diagnosis = _entries_off(work.things, best.strays, pairs, diagnosis, where)
        elif diagnosis:  # at least near
            diagnosis = replace(diagnosis, certainty="resembles") if left <= _NEAR else None
    found = work.name, not work.off.any(), rows, work.size, work.unit, nonfinite, values.size, work.side
    return TableFinding(*found, right + rest, left, diagnosis)


# ---------------------------------------------------------------------------- what is tried, and its score


def explanation(work: FrequencyList | CosSinTable, fault: Fault, at: Positions) -> Explanation:
    """Judge how far a fault explains a dump, by some positions (s,)."""
    right, slack, size = work.predicted(fault, at)
    fits = _fits(work.parts[:, at], right, slack, fault.stored)
    missed = np.mean(~fits[work.sides].all(axis=0), axis=0)
    off = missed > 0
    if fault.recipe and fault.recipe.resolved.angle[1] is not FP64:
        off = (missed > _STRAY_PAIR) & (float(np.mean(missed)) > _STRAY)
    stored, expected = work.parts[:, at], cast(right, fault.stored)
    apart = 1 / stored - 1 / expected if work.inverse else stored - expected
    errors = np.linalg.norm(apart[work.sides], axis=0) / size
    found, cost = fault.diagnosis if fault.diagnosis.explains else None, fault.cost
    if not fits[~work.sides].all():
        cost += _ALONE
        found = found and replace(found, where=Where(sides=(work.side,)))
    strays = tuple(np.flatnonzero(off).tolist())
    few = 0 < len(strays) <= allowed_strays(off.size)
    sizes = float(np.sqrt(np.mean(errors**2))), float(errors.max())
    other = fault.setting(work.setting) if fault.change else None
    return Explanation(found, not strays, *sizes, other, few, strays, cost)


def _fits(parts: Array, right: Array, slack: Array, fmt: Format | None) -> NDArray[np.bool_]:
    """Return which numbers are casts of numbers near the right ones. Shapes: -> (sides, s, p)."""
    return np.asarray((cast(right - slack, fmt) <= parts) & (parts <= cast(right + slack, fmt)))


class FrequencyList:
    """A dumped inv_freq, or its inverses."""

    size, unit, things, side = "relative_error", "relative", "frequencies", ""
    sides = np.ones(1, bool)

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        self.name, self.inverse, self.values = dump.name, dump.inverse, np.asarray(dump.frequencies)
        self.parts = (1 / self.values if self.inverse else self.values)[None, None]
        self.setting, self.exact, self.recovered = setting, exact, self.values
        self.tolerance = allowance.frequency_error(setting, theta=exact)
        relative = np.abs(self.values - exact) / _reference_sizes(exact)
        self.off = np.asarray(~(relative <= np.where(exact == 0, 0.0, self.tolerance)))
        self.columns = {"tolerance": self.tolerance.tolist()}

    def where(self) -> Where:
        """Return no restriction: a wrong frequency is wrong at every position."""
        return Where()

    def explanations(self) -> Iterator[Explanation]:
        """Yield the explanations by other settings, with and without the casts that fit."""
        casts, at = formats_holding(self.parts, allowed_strays(self.values.size)), np.zeros(1, np.int64)
        meant = RIGHT, *faults.frequency_lists(self.setting, self.values)
        for fmt, fault in itertools.product((None, *casts), meant):
            yield explanation(self, fault.combined(faults.of_cast("frequency", fmt)), at)
        yield from (explanation(self, fault, at) for fault in faults.of_computed("frequency"))

    def predicted(self, fault: Fault, at: Positions) -> tuple[Array, Array, Array]:
        """Return a fault's frequencies, allowed errors and the divisors of errors."""
        other = fault.setting(self.setting)
        (theta,) = prediction.angles(fault, other, at + 1)
        right, own = 1 / theta if self.inverse else theta, allowance.frequency_error(other, theta=theta)
        slack = np.where(theta == 0, 0.0, np.maximum(self.tolerance, own))
        return right[None, None], slack * _reference_sizes(right), _reference_sizes(theta)


class CosSinTable:
    """A dumped table of cos and sin, for the positions 0 ... n-1.

    off: which pairs are wrong; first, last, worst: their first, last and worst positions. sides: whether cos
    and sin are to be explained. recovered: the frequencies that the points show.
    """

    size, unit, things, inverse = "largest_error", "radians", "pairs", False

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        nothing = np.zeros((0, 0))
        self.name, self.setting, self.exact = dump.name, setting, exact
        self.parts = np.stack([nothing if part is None else part for part in (dump.cos, dump.sin)])
        self.values = np.stack([*self.parts], axis=-1).view(np.complex128)[..., 0]
        self.factor = float(exact_frequencies.attention_factor(setting.scaling))
        errors, wrong, sides = (
            np.empty(self.values.shape),
            np.empty(self.values.shape, bool),
            np.zeros(2, bool),
        )
        for part in _position_blocks(len(errors)):
            cos, sin = distance_table(part.astype(np.float64), setting)
            apart = self.parts[:, part] - np.stack([cos[0], sin[0]])
            slack = prediction.allowed(RIGHT, setting, part, part, FP32, table=True)
            errors[part] = np.hypot(*apart)
            wrong[part] = ~(errors[part] <= slack)
            sides |= ~(np.abs(apart) <= slack).all(axis=(1, 2))
        self.off, self.worst = np.asarray(wrong.any(axis=0)), errors.argmax(axis=0)
        self.first, self.last = wrong.argmax(axis=0), len(wrong) - 1 - wrong[::-1].argmax(axis=0)
        begins = [first if off else None for first, off in zip(self.first.tolist(), self.off, strict=True)]
        largest = (errors.max(axis=0) / self.factor).tolist()
        self.columns = {"largest_error": largest, "first_position_off": begins}
        whole = dump.angles or not (self.off.any() and sides.any())
        self.sides = np.ones(2, bool) if whole else sides
        self.side = "" if self.sides.all() else _SIDES[int(sides.argmax())]
        self.recovered = recover_frequencies(self.values)
        if self.side:
            self.recovered = recover_from_half(self.parts[sides][0] / self.factor, sine=self.side == "sin")

    def where(self) -> Where:
        """Return where pairs are wrong: only in cos or sin, only at one position."""
        first, last = int(self.first[self.off].min()), int(self.last[self.off].max())
        return Where(sides=(self.side,) if self.side else (), position=first if first == last else None)

    def explanations(self) -> Iterator[Explanation]:
        """Yield the explanations by each fault and cast, judged at early, late and wrong positions."""
        n = len(self.values)
        chosen = (np.arange(min(n, 96)), np.geomspace(1, n - 1, 96).round(), self.first[self.off], self.worst)
        at = np.unique(np.concatenate(chosen)).astype(np.int64)
        every = [RIGHT, *self._position_faults(), *self._other_settings(at)]
        for fmt in (None, *formats_holding(self.parts[self.sides][:, at])):
            stored = faults.of_cast("table", fmt)
            yield from self._wrong_rows(stored, at)
            for (factor, told, cost), fault in itertools.product(self._attention_factors(at), every):
                own = attention_factor(fault.setting(self.setting).scaling)
                longer = Fault(told, longer=factor / own, cost=cost)
                if told.explains and fault.change and abs(factor / own - 1) < _FACTOR:
                    longer = RIGHT  # it goes with that setting, and is no fault
                yield explanation(self, longer.combined(fault).combined(stored), at)

    def predicted(self, fault: Fault, at: Positions) -> tuple[Array, Array, Array]:
        """Return cos and sin by a fault at positions, the allowed errors and divisors."""
        taken = fault.positions(at[None])[0]
        points = prediction.predicted(fault, self.setting, None, taken, FP32)
        slack = prediction.allowed(fault, self.setting, at, taken, FP32, table=True)
        return np.stack([points.real, points.imag]), slack, np.ones(1)

    def _wrong_rows(self, stored: Fault, at: Positions) -> Iterator[Explanation]:
        """Yield the explanation that only a few rows of a correct table are wrong."""
        n, pairs = self.values.shape

        def missed(rows: Positions) -> NDArray[np.int64]:  # pairs of each row, (2, s)
            fits = _fits(self.parts[:, rows], *self.predicted(stored, rows)[:2], stored.stored)
            return np.asarray(np.count_nonzero(~fits, axis=2))

        some, most = missed(at)[self.sides].sum(axis=0), min(_FEW_ROWS, allowed_strays(n))
        if 0 < np.count_nonzero(some) <= most and some.max() > allowed_strays(pairs):
            off = np.concatenate([missed(part) for part in _position_blocks(n)], axis=1) > 0
            rows, sides = np.flatnonzero(off[self.sides].any(axis=0)), off.any(axis=1) & self.sides
            if rows.size <= _FEW_ROWS:
                of = () if sides.all() else tuple(np.array(_SIDES)[sides].tolist())
                found = _entries_off("rows", tuple(rows.tolist()), n, stored.diagnosis, Where(sides=of))
                yield Explanation(found, True, 0.0, 0.0, cost=0.5 + stored.cost)

    def _attention_factors(self, at: Positions) -> list[tuple[float, Diagnosis, float]]:
        """Return possible attention factors, each with its diagnosis and cost."""
        found = [(self.factor, RIGHT.diagnosis, 0.0)]
        seen = self.factor if self.side else float(np.median(np.abs(self.values[at])))
        if abs(seen / self.factor - 1) > _FACTOR:
            known = faults.other_factors(self.setting.scaling)
            usual = [one for one in known if abs(seen / one - 1) < _NEAR_POINTS]
            rounded = [float(f"{seen:.{k}g}") for k in (3, 6)]
            for factor in dict.fromkeys(one for one in usual + rounded if one != self.factor):
                told = Diagnosis("attention-factor", {"seen": factor, "asked": self.factor})
                found.append((factor, told, 1.0 + 0.1 * len(found)))
        return found

    def _position_faults(self) -> Iterator[Fault]:
        """Yield the faults of positions and operands that tables can show."""
        n = len(self.values)
        yield from (
            replace(position_fault("positions-off", by).combined(position_fault("wrap", n)), cost=1.5)
            for by in (1, -1)
        )
        yield position_fault("positions-off", 1)
        for fault in (*faults.of_positions(), *faults.of_operands(self.setting)):
            if fault.diagnosis.code in _OF_TABLES and not (
                self.side and fault.turn
            ):  # of cos alone none turns
                yield fault
        yield Fault(Diagnosis("positions-reversed"), move=lambda rows, head: n - 1 - rows)
        if (begin := int(self.first[self.off].min())) > 1:
            yield from (position_fault("wrap", begin), position_fault("table-ends", begin - 1))

    def _other_settings(self, at: Positions) -> Iterator[Fault]:
        """Yield other settings and rounded stages. at: the positions by which they are judged (s,)."""
        for fmt in CASTS[:3]:
            yield from faults.of_stages(fmt, integers=np.array_equal(cast(at, fmt), at))
        shown, strays = np.abs(self.recovered), allowed_strays(self.recovered.size)
        casts = [  # whose numbers the frequencies that points show are, but for a few
            faults.of_table({"frequency": fmt}, 1.0 + 0.01 * number)
            for number, fmt in enumerate(CASTS[:3])
            if np.count_nonzero(np.abs(cast(shown, fmt) - shown) > _SEEN * shown) <= strays
        ]
        for fault in faults.frequency_lists(self.setting, self.recovered):
            yield from (fault, *map(fault.combined, casts))
        yield from (*faults.of_computed(*faults.STEPS), *faults.of_computed("frequency"))


# ---------------------------------------------------------------------------- casts, and what they leave


def _position_blocks(n: int) -> Iterator[Positions]:
    every = np.arange(n)
    yield from np.split(every, range(_ROWS_AT_ONCE, n, _ROWS_AT_ONCE))


def allowed_strays(count: int) -> int:
    """Return how many of `count` values an explanation may leave wrong."""
    return max(1, count // 8) if count >= _FEWEST_PAIRS else 0


def _entries_off(
    things: str, entries: tuple[int, ...], total: int, beside: Diagnosis | None, where: Where
) -> Diagnosis:
    """Diagnose a few wrong pairs, frequencies or rows. beside: the diagnosis of the others."""
    values: dict[str, Value] = {"count": len(entries), "total": total, "things": things, "entries": entries}
    return Diagnosis("entries-off", values, where, also=(beside,) if beside and beside.explains else ())


def formats_holding(values: Array, most: int = 0) -> list[Format]:
    """Return the formats narrower than float32 that hold all values but `most`.

    tf32 is left out where float16 is among them, whose numbers are its numbers too.
    """
    missed = {fmt: np.count_nonzero(cast(values, fmt) != values) for fmt in CASTS}
    fitting = [fmt for fmt, count in missed.items() if count <= most]
    return [fmt for fmt in fitting if not (fmt.name == "tf32" and CASTS[0] in fitting)]


def cast(values: Any, fmt: Format | None) -> Array:
    """Return values in float64, rounded to a format if there is one."""
    wide = np.asarray(values, np.float64)
    return wide if fmt is None else round_to(wide, fmt).astype(np.float64)


def _reference_sizes(theta: Array) -> Array:
    """Return the divisors of relative errors: the frequency, or the largest one for 0."""
    return np.where(theta == 0, np.abs(theta).max(initial=0.0) or 1.0, np.abs(theta))
