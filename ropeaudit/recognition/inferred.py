"""Frequencies inferred from points on circles, how uncertain they are, and which published base has them.

Letters: n positions, c columns; theta in radians per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.recognition import allowance
from ropeaudit.recognition.diagnosis import Diagnosis, Value, kinds
from ropeaudit.recognition.variants import BASES, CASTS
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.frequencies import FrequencyForm
from ropeaudit.rope.setting import RopeSetting

ROUNDINGS = 3  # of a float32 angle, relative: of the frequency, of the product, of what is inferred
_UNIT = 2.0**-24  # unit roundoff of float32
_RETURNED = 2  # roundings of cos and of sin, each relative: of the value, of its product with a factor
_COUNTED = 1.0  # radians: phases that near what is predicted have lost no rotation
_FEWEST = 4  # frequencies that say a base
_LARGEST = 2048  # dims


@dataclass(slots=True)
class Inference:
    """Frequencies (c,) that points show so far, and how far off each may be, in radians per token.

    unit: unit roundoff of the points. held: columns whose points are all where these frequencies put them,
    within rounding; of others the first positions decide, and no uncertainty is given (0).
    """

    theta: Array
    unit: float
    uncertain: Array
    held: NDArray[np.bool_]
    _sums: Array  # (3, c): of squared positions; of those times phases, and what rounding may change these by

    @classmethod
    def of(cls, points: NDArray[np.complex128], unit: float) -> Inference:
        """Return what the points of positions 0 to n - 1 show. Shapes: (n, c), n > 1."""
        finite = np.isfinite(points).all(axis=1)
        whole = len(points) if finite.all() else max(2, int(finite.argmin()))
        theta = recovered(points[:whole])
        one = cls(theta, unit, theta, np.ones(theta.shape, np.bool_), np.zeros((3, *theta.shape)))
        one.uncertain = one._noise(theta * (whole - 1)) / (whole - 1)
        one.take(points, 0)
        one.uncertain = np.where(one._sums[0] > 0, one.uncertain, 0.0)
        return one

    def take(self, points: NDArray[np.complex128], start: int) -> None:
        """Refine frequencies by the points of positions from `start` on."""
        at = np.arange(start, start + len(points), dtype=np.float64)[:, None]
        fine = np.isfinite(points)
        angles = at * self.theta
        off = np.where(fine, np.angle(np.where(fine, points, 1) * np.exp(-1j * angles)), 0.0)
        noise = self._noise(angles)
        may = noise + at * (self.uncertain + ROUNDINGS * _UNIT * np.abs(self.theta))
        within = np.all((np.abs(off) <= np.minimum(2 * may, _COUNTED)) | ~fine, axis=0)
        self.held = self.held & within
        used = np.where(fine, at, 0.0)
        sums = self._sums + [np.sum(used * values, axis=0) for values in (used, off + angles, noise)]
        better = self.held & (sums[0] > 0)
        self._sums = np.where(better, sums, self._sums)
        theta, uncertain = sums[1:] / np.where(better, sums[0], 1.0)
        self.theta = np.where(better, theta, self.theta)
        self.uncertain = np.where(better, uncertain, self.uncertain)

    def _noise(self, angles: Array) -> Array:
        """Return what rounding of cos and sin changes a phase by at most.

        cos (1 + a) and sin (1 + b) have a phase that is sin cos (b - a) off, which is 0 on the axes.
        """
        relative = _RETURNED * self.unit * (1 + 2 * _RETURNED * self.unit)
        return np.asarray(relative * np.abs(np.sin(2 * angles)) + 4 * _UNIT)


def recovered(points: NDArray[np.complex128]) -> Array:
    """Return the frequencies that the phases show, refined from position 1 to ever later ones.

    Shapes: (n, p) -> (p,). Angles rounded coarsely lose count of rotations; early positions decide then.
    """
    with np.errstate(all="ignore"):  # row 0 is where angles begin, which is no position in every table
        phases = np.angle(np.nan_to_num(points * np.conj(points[0] / np.abs(points[0]))))
    return _refined(phases[None])


def recovered_alone(values: Array, *, sine: bool) -> Array:
    """Return the frequencies that cos or sin alone shows: of two phases, the one nearer to what is predicted.

    Shapes: (n, p) -> (p,). Frequencies are below half a turn for cos, a quarter for sin.
    """
    with np.errstate(all="ignore"):
        phases = (np.arcsin if sine else np.arccos)(np.clip(np.nan_to_num(values), -1, 1))
    return _refined(np.stack([phases, (math.pi if sine else 0) - phases]))


def _refined(choices: Array) -> Array:
    """Return frequencies by which phases grow: at each position the choice nearest to what is predicted.

    Shapes: (c, n, p), of which the first is that at position 1 -> (p,).
    """
    theta, at, last = choices[0, 1].copy(), 1, choices.shape[1] - 1
    while at < last:
        at = min(2 * at, last)
        rest = choices[:, at] - theta * at
        rest -= 2 * math.pi * np.round(rest / (2 * math.pi))
        theta += np.take_along_axis(rest, np.abs(rest).argmin(axis=0)[None], axis=0)[0] / at
    return np.asarray(theta)


@dataclass(frozen=True, slots=True)
class Usual:
    """The frequencies of columns (c,), the setting that has them, and that in words."""

    theta: Array
    setting: RopeSetting
    words: str


def usual(theta: Array, uncertain: Array) -> Usual | None:
    """Return the setting of a usual base that agrees with every frequency; None where none does.

    theta: frequencies above 0 (c,). uncertain: how far off each may be, beside what float32 arithmetic does.
    """
    distinct = _distinct(theta, uncertain)
    if distinct.size < _FEWEST or not 0 < distinct[-1] < distinct[0]:
        return None
    fall = math.log(distinct[0] / distinct[-1]) / (distinct.size - 1)
    dims = [(2 * round(math.log(base) / fall), base) for base in BASES]
    dims.sort(key=lambda one: one[0] != 2 * distinct.size)  # all pairs rotate in most models
    for dim, base in dims:
        if not 2 * distinct.size <= dim <= _LARGEST:
            continue
        pairs = dim // 2
        index = np.round(-np.log(theta) * pairs / math.log(base)).astype(np.int64)
        if index.min() < 0 or index.max() >= pairs:
            continue
        setting = RopeSetting.of(dim, dim, base)
        tolerance = allowance.frequency_error(setting)[index]
        near = base ** (-index / pairs)
        if np.all(np.abs(theta - near) <= uncertain + (tolerance + ROUNDINGS * _UNIT) * near):
            exact = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
            of_dims = "" if dim == 2 * distinct.size else f" over {dim} dims"
            return Usual(exact[index], setting, f"base {base:.8g}{of_dims} (guessed)")
    return None


def _distinct(theta: Array, uncertain: Array) -> Array:
    """Return frequencies from fast to slow, those once that may be the same."""
    order = np.argsort(-theta)
    listed, near = theta[order], uncertain[order]
    apart = listed[:-1] - listed[1:] > near[:-1] + near[1:] + 2.0**-20 * listed[:-1]
    return np.asarray(listed[np.concatenate([[True], apart])])


_FEWEST_PAIRS = 4  # pairs of which one may be off beside a rest that is explained
_NARROW = {  # stage, in the order in which they are computed -> what its rounding is
    "position": "narrow-positions",
    "frequency": "narrow-frequencies",
    "computed": "narrow-frequencies",
    "angle": "narrow-angles",
    "table": "narrow-table",
}


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What may explain a table, whether it does for every pair, the RMS and the largest of what it leaves.

    diagnosis: None for the expected setting in the expected formats. setting: another one whose frequencies
    these are. strays: the pairs that it does not explain. few: whether they are so few that it explains the
    rest. Units: relative to the frequency, or radians for a cos/sin table.
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
        """A sort key: explanations by cost, then few strays, then the rest."""
        residual = self.residual if math.isfinite(self.residual) else math.inf
        if self.explains:
            return 0, self.cost, residual
        return (1, len(self.strays) + self.cost / 100, residual) if self.few else (2, 0.0, residual)

    @property
    def another_setting(self) -> bool:
        """Whether values are those of a setting, or of positions, that is not the expected one.

        cos and sin of two settings are those of none.
        """
        parts = () if self.diagnosis is None or self.diagnosis.where.sides else self.diagnosis.parts()
        return any(kinds()[one.code].group in ("setting", "positions") for one in parts)


def allowed_strays(count: int) -> int:
    """Return how many of `count` values an explanation may leave off."""
    return max(1, count // 8) if count >= _FEWEST_PAIRS else 0


def hypothesis(
    diagnosis: Diagnosis | None,
    strays: NDArray[np.bool_],
    errors: Array,
    cost: float,
    setting: RopeSetting | None = None,
) -> Hypothesis:
    """Return a hypothesis that leaves these errors. Shapes: strays (p,)."""
    left = tuple(np.flatnonzero(strays).tolist())
    few = 0 < len(left) <= allowed_strays(strays.size)
    size = float(np.sqrt(np.mean(errors**2))), float(errors.max())
    return Hypothesis(diagnosis, not left, *size, setting, few, left, cost)


def rounded(stages: Mapping[str, Format | None], form: FrequencyForm = "inverse_power") -> Diagnosis | None:
    """Return the diagnosis of stages rounded to formats; None without any."""
    formats = {stage: str(fmt) for stage, fmt in stages.items() if fmt is not None}
    return _of_stages(formats, form) if formats else None


def _of_stages(formats: Mapping[str, Value], form: Value) -> Diagnosis:
    named = {stage: formats[stage] for stage in _NARROW if stage in formats}
    return Diagnosis(_NARROW[next(iter(named))], {**named, "form": form, "recipes": ()})


def together(*faults: Diagnosis | None) -> Diagnosis | None:
    """Return several faults as one diagnosis, with all roundings merged."""
    parts = [replace(part, also=()) for one in faults if one is not None for part in one.parts()]
    wrong = [part for part in parts if not part.arithmetic]
    stages: dict[str, Value] = {}
    for part in parts:
        stages = dict(part.values) | stages if part.arithmetic else stages
    if stages:
        wrong.append(_of_stages(stages, stages["form"]))
    return replace(wrong[0], also=tuple(wrong[1:])) if wrong else None


def entries_off(things: str, entries: tuple[int, ...], total: int) -> Diagnosis:
    """Return that a few of so many are off: pairs, frequencies or rows."""
    values: dict[str, Value] = {"count": len(entries), "total": total, "things": things, "entries": entries}
    return Diagnosis("entries-off", values)


def formats_holding(values: Array, most: int = 0) -> list[Format]:
    """Return the formats narrower than float32 that hold all values but `most`.

    tf32 is left out where float16 is among them, whose numbers are its numbers too.
    """
    missed = {fmt: np.count_nonzero(cast(values, fmt) != values) for fmt in CASTS}
    fitting = [fmt for fmt, count in missed.items() if count <= most]
    return [fmt for fmt in fitting if not (fmt.name == "tf32" and CASTS[0] in fitting)]


def cast(values: Array, fmt: Format | None) -> Array:
    """Return values rounded to a format, in float64; as they are without one."""
    return values if fmt is None else round_to(values, fmt).astype(np.float64)


def within(values: Array, predicted: Array, slack: Array, fmt: Format | None) -> NDArray[np.bool_]:
    """Return where a value is a cast of a number near the predicted one."""
    low, high = cast(predicted - slack, fmt), cast(predicted + slack, fmt)
    return np.asarray((low <= values) & (values <= high))


def reference_sizes(theta: Array) -> Array:
    """Return the divisors of relative errors: the frequency, or the largest one for 0."""
    return np.where(theta == 0, np.abs(theta).max(initial=0.0) or 1.0, np.abs(theta))


def cast_cost(fmt: Format | None) -> float:
    """Return how far-fetched a cast is."""
    return 0.0 if fmt is None else 1.0 + 0.01 * CASTS.index(fmt)
