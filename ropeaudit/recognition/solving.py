"""Faults solved from rotated vectors: frequencies, a base, a factor, a position.

Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.recognition import allowance, faults
from ropeaudit.recognition.diagnosis import Diagnosis, Value
from ropeaudit.recognition.faults import Complex, Fault, Power, other_factors, position_fault, solved_base
from ropeaudit.rope.axes import LARGEST_BASE
from ropeaudit.rope.scaled import attention_factor, effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, exact_rotation

_COARSE = 0.15  # error of a step from position to position: 16-bit formats stay well below it
_STILL = 0.005  # the same of the mean of many steps, beside the roundings behind the angle
_CLOSEST = 1e-9  # how closely steps show a frequency at most
_SEEN = 0.01  # of a frequency: less is the same to two digits
_FAINT = 2.0**-10  # of a factor: what is as good as 0 is none
_SPREAD = 0.1  # of the factors of vectors that all have one, over what it differs from 1
_LONGEST = 128  # positions of a step
_FARTHEST = 2**18  # position that others are tried for
_ROUNDS = 7  # in which a base is refined
_FITTED = 12  # settings that fit what is shown, and are tried
_ASKED = 5  # wrong positions that are looked for
_RULED = 3  # of which so many at least show a rule
_PARTS = 64  # of a size, that are tried
_LEAST_POWER = 1e-6  # of lengths, a position
_TRIED = 3  # positions that come nearest


def _modulo(angles: Array) -> Array:
    """Return angles without whole turns, from -π to π."""
    return np.asarray(angles - 2 * math.pi * np.round(angles / (2 * math.pi)))


@dataclass(frozen=True)
class Vectors:
    """Vectors as passed (x) and as rotated (y). Shapes: at (s,), x, y (h, s, d)."""

    at: Positions
    x: FloatArray
    y: FloatArray
    setting: RopeSetting
    dtype: Format

    @functools.cached_property
    def pairs(self) -> tuple[Complex, Complex]:
        """Pairs as passed and as rotated. Shapes: (h, s, p) twice."""
        z, w = (exact_rotation.complex_pairs(vectors, self.setting) for vectors in (self.x, self.y))
        return z, w

    @property
    def first(self) -> Vectors:
        """Only the first vector."""
        return replace(self, x=self.x[:1], y=self.y[:1])

    @functools.cached_property
    def _steps(self) -> tuple[Array, Array] | None:
        """The angle by which pairs turn per position, and its uncertainty, (p,) each; or None."""
        at, (z, w), pairs = self.at, self.pairs, self.setting.pairs
        if pairs < 4 or at.size < 8 or (np.diff(at) != 1).any():
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            turns = w * np.conj(z) / (np.abs(z) ** 2 + 1e-30)
            turns = turns / np.maximum(np.abs(turns), 1e-30)
        if not np.isfinite(turns).all():
            return None
        theta, lag, spread = np.zeros(pairs), 1, np.zeros(pairs)
        while lag < min(at.size, _LONGEST):
            steps = turns[:, lag:] * np.conj(turns[:, :-lag])
            mean = steps.mean(axis=(0, 1))
            if (np.abs(mean) < 1 - _COARSE).any():  # they do not turn by one angle
                return None
            theta = theta + np.angle(mean * np.exp(-1j * lag * theta)) / lag
            spread = np.sqrt(np.maximum(0.0, 2 - 2 * np.abs(mean))) / lag
            lag *= 4
        return theta, 2 * spread

    def _remaining_phase(self, theta: Array, axes: Any) -> Array:
        """Return the phase of pairs beyond position times frequency (p,), summed over axes."""
        z, w = self.pairs
        return np.asarray(np.angle((w * np.conj(z) * np.exp(-1j * self.at[:, None] * theta)).sum(axis=axes)))

    def settings(self) -> Iterator[Fault]:
        """Yield settings with the frequencies measured between positions, the simplest first."""
        if self._steps is None:
            return
        (theta, uncertain), setting = self._steps, self.setting
        shown = np.where(theta > 0, theta, faults.theta(setting))
        close = uncertain + _CLOSEST + 1e-6 * np.abs(theta)
        fitting = [
            replace(fault, fitted=True)
            for fault in faults.frequency_lists(setting, shown)
            if (np.abs(_modulo(faults.theta(fault.setting(setting)) - theta)) <= close).all()
        ]
        yield from sorted(fitting, key=lambda fault: fault.cost)[:_FITTED]

    def frequencies(self) -> Iterator[Fault]:
        """Yield the measured frequencies themselves, if they follow no formula but are constant.

        Nothing if all agree with the expected ones in two digits. They are measured between positions, then
        refined by the whole run and by the phase since position 0.
        """
        if self._steps is None:
            return
        (theta, uncertain), at, setting = self._steps, self.at, self.setting
        theta = np.where(theta < -_STILL, theta + 2 * math.pi, theta)
        for centre in (at.mean(), 0.0):
            lever = at - centre
            theta = np.maximum(0.0, theta + lever @ self._remaining_phase(theta, 0) / (lever @ lever))
        right, places = faults.theta(setting), {"first": 0, "middle": setting.pairs // 2, "last": -1}
        least = uncertain + _CLOSEST
        told = np.where(theta > least, theta, np.where(right > least, 0.0, right))
        if (np.abs(told - right) <= _SEEN * right).all():
            return
        values: dict[str, Value] = {name: float(f"{told[i]:.2g}") for name, i in places.items()}
        values |= {f"asked_{name}": float(right[i]) for name, i in places.items()}
        other = faults.of_frequencies(setting, theta)
        yield faults.frequencies_of(other, Diagnosis("other-frequencies", values))

    def base(self) -> Iterator[Fault]:
        """Yield the base of the measured frequencies, rounded to 2 to 10 digits.

        For dynamic scaling it is the base before scaling. It is fitted to the steps between positions, then
        to the phase since position 0: of slow pairs first, then of all whose number of turns is certain.
        """
        setting = self.setting
        if self._steps is None or setting.scaling.kind not in ("default", "dynamic"):
            return
        start, power = int(self.at[0]), 2 * np.arange(setting.pairs) / setting.rotary_dim
        theta, uncertain = self._steps[0], self._steps[1] + _CLOSEST * self._steps[0]
        usable, error = (power > 0) & (theta > 0) & (theta < 1), math.inf
        noise = np.full(power.shape, self._rounding + _STILL)
        for _ in range(_ROUNDS if start else 1):
            if not usable.any():
                return
            log, log_error = solved_base(theta[usable], power[usable], uncertain[usable])
            guess, error = np.exp(-power * log), min(error, log_error)
            theta, uncertain = (
                guess + self._remaining_phase(guess, (0, 1)) / max(1, start),
                noise / max(1, start),
            )
            usable = (power > 0) & (start * guess * power * error < 1) & (theta > 0) & (theta < 1)
        times = effective_base(setting) / setting.base
        for digits in range(2, 11):
            rounded = float(f"{np.exp(log) / times:.{digits}g}")
            if 1 < rounded < LARGEST_BASE and rounded != setting.base:
                yield replace(faults.of_base(setting, rounded), fitted=True)

    @property
    def _rounding(self) -> float:
        """The error that correct code makes after the angle."""
        return allowance.rounding_error(allowance.careful(self.dtype), self.setting)

    def longer(self, *, clear: bool = False) -> Iterator[Fault]:
        """Yield the factor by which vectors are too long, whatever their rotation.

        It must be the same for all vectors. clear: whether to leave out a factor that roundings may cause.
        """
        asked, near = attention_factor(self.setting.scaling), 4 * self._rounding
        for given, rotated, part in ((*self.pairs, asked), (self.x, self.y, 1.0)):
            with np.errstate(over="ignore"):
                before, after = (
                    (np.abs(one) ** 2.0).sum(axis=(1, 2), dtype=np.float64) for one in (given, rotated)
                )
            if not np.isfinite(after).all() or not before.all():
                continue
            each = np.sqrt(after / before) / part
            times = float(np.sqrt(after.sum() / before.sum())) / part
            if np.ptp(each) > _SPREAD * np.abs(each - 1).min() or times <= _FAINT:
                continue
            if clear and abs(times - 1) <= near:
                continue
            rounded = [float(f"{times:.{digits}g}") for digits in (4, 6, 9)]
            told = Diagnosis(
                "scaled-vectors", {"times": next((one for one in rounded if one != 1), rounded[-1])}
            )
            for seen in other_factors(self.setting.scaling):
                if abs(times * asked - seen) <= near * seen:
                    told = Diagnosis("attention-factor", {"seen": seen, "asked": asked})
            for rest in (1.0, times):  # the dims that are not rotated may be longer too
                yield Fault(told, longer=times, times=rest, fitted=True)

    def longer_by_power(self, side: str) -> Iterator[Fault]:
        """Yield lengths that are a power of the position, as in xPos.

        side: "q", which xPos multiplies, or "k", which it divides.
        """
        if found := self.power():
            way = "like" if (found.base > 0) == (side == "q") else "unlike"
            for one in dict.fromkeys((replace(found, centre=0), found)):
                values: dict[str, Value] = {"way": way, "base": abs(one.base), "centre": one.centre}
                yield Fault(Diagnosis("xpos", values), grows=one, fitted=True)

    def power(self) -> Power | None:
        """Fit a power of the position to the lengths, in three digits; None if none fits."""
        with np.errstate(all="ignore"):
            before, after = ((np.abs(one) ** 2).sum(axis=0) for one in self.pairs)
            logs, zeta = np.log(after / before) / 2, Power(1.0).logs(self.setting)
            shares = logs @ zeta / (zeta @ zeta)  # (position - centre) / base
        if self.at.size < 2 or not np.isfinite(shares).all() or not np.ptp(self.at):
            return None
        slope, start = np.polyfit(self.at, shares, 1)
        if not _LEAST_POWER < abs(slope) < 1:
            return None
        return Power(float(f"{1 / slope:.3g}"), round(-start / slope))

    def positions(self, off: NDArray[np.bool_]) -> dict[int, int]:
        """Return position -> the position by which the first vector is rotated there, for some wrong ones.

        Empty if none fits at one of them. Shapes: off (s,).
        """
        rule, setting, found = allowance.careful(self.dtype), self.setting, dict[int, int]()
        z, w = (pairs[0][off] for pairs in self.pairs)
        theta, here, step = allowance.frequencies(setting), self.at[off], max(1, setting.pairs // 8)
        chosen = dict.fromkeys(np.linspace(0, max(0, here.size - 1), _ASKED).round().astype(int).tolist())
        for i in chosen if here.size and setting.pairs >= 4 else ():
            if not np.isfinite(w[i]).all() or abs(here[i]) > _FARTHEST:
                return {}
            ratio, reach = (
                w[i] * np.conj(z[i]) / (np.abs(z[i]) ** 2 + 1e-30),
                2 * (abs(here[i]) + off.size) + 256,
            )
            candidates = np.arange(-reach, reach)
            score = np.zeros(candidates.size)
            for turned, angle in zip(ratio[::step], theta[::step], strict=True):
                score += (turned * np.exp(-1j * candidates * angle)).real
            tried = np.r_[here[i], candidates[np.argsort(-score)[:_TRIED]]]
            most = allowance.allowed(rule, setting, tried)
            most = np.maximum(most, most[0]) * np.abs(z[i]) + 4 * self.dtype.smallest_subnormal
            errors = np.abs(w[i] - z[i] * exact_rotation.rotations(setting, tried, self.dtype))
            if not (fits := (errors <= most).all(axis=1)).any():
                return {}
            found[int(here[i])] = int(tried[fits.argmax()])
        return found


def rules(rotated_as: Mapping[int, int], first: int) -> Iterator[Fault]:
    """Yield faults that map positions as observed. first: the first position of the call."""
    wrong = {at: other for at, other in rotated_as.items() if other != at}
    if len(rotated_as) < _RULED or not wrong:
        return
    low, high = min(wrong.values()), max(wrong.values())
    if low == high >= 0:
        yield replace(position_fault("table-ends", low), fitted=True)
    steps = {other - at for at, other in wrong.items()}
    size = math.gcd(*steps)
    for code, start in (("wrap", 0), ("restart", first)):
        for part in range(1, size // max(1, high - start) + 1) if low >= start else ():
            if size % part == 0 and size // part > high - start and part <= _PARTS:
                yield replace(position_fault(code, size // part), fitted=True)
    if len(steps) == 1 and len(wrong) == len(rotated_as):
        yield replace(position_fault("positions-off", steps.pop()), fitted=True)


def recover_frequencies(points: NDArray[np.complex128]) -> Array:
    """Return frequencies from the phases of points, refined from position 1 to ever later ones.

    Shapes: (n, p) -> (p,). Coarse angles lose count of turns; then early positions decide.
    """
    with np.errstate(all="ignore"):  # angles begin in row 0
        phases = np.angle(np.nan_to_num(points * np.conj(points[0] / np.abs(points[0]))))
    return _refined(phases[None])


def recover_from_half(values: Array, *, sine: bool) -> Array:
    """Return frequencies from only cos or sin: of two possible phases the one nearer to the prediction.

    Shapes: (n, p) -> (p,). Frequencies are below half a turn for cos, a quarter for sin.
    """
    with np.errstate(all="ignore"):
        phases = (np.arcsin if sine else np.arccos)(np.clip(np.nan_to_num(values), -1, 1))
    return _refined(np.stack([phases, (math.pi if sine else 0) - phases]))


def _refined(choices: Array) -> Array:
    """Return the growth of phases per position, refined at ever later positions.

    Of c possible phases the nearest to the prediction counts. Shapes: (c, n, p) -> (p,).
    """
    theta, at, last = choices[0, 1].copy(), 1, choices.shape[1] - 1
    while at < last:
        at = min(2 * at, last)
        rest = _modulo(choices[:, at] - theta * at)
        theta += np.take_along_axis(rest, np.abs(rest).argmin(axis=0)[None], axis=0)[0] / at
    return np.asarray(theta)
