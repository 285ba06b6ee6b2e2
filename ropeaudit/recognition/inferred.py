"""Frequencies inferred from points on circles, and hypotheses of what explains a table.

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
from ropeaudit.recognition.diagnosis import Diagnosis, Value, kinds
from ropeaudit.recognition.variants import CASTS
from ropeaudit.rope.frequencies import FrequencyForm
from ropeaudit.rope.setting import RopeSetting


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
