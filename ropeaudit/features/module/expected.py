"""What a module's frequencies should be: as a model, a config or options say, or guessed from the values.

A guess says what the values are, never that they are right.
Letters: n positions, c columns, p pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput
from ropeaudit.recognition import variants, wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.inferred import recovered
from ropeaudit.reference import exact_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_TRIED = 5  # bases that are checked, of either kind
_WINDOWS, _ROWS = 5, 4  # parts of a table, and the rows that each has at least
_NEAR = 0.01  # of the frequencies, relative


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the frequencies, or None; options stand above the model."""

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None

    def settings(self, pairs: int | None) -> list[tuple[str, RopeSetting]]:
        """Return what is expected, by name: a setting per layer type, also for long sequences.

        pairs: those of a table, where nothing says how many there should be.
        """
        if self.model is None:
            if self.base is None:
                return []
            return [(self.words(f"base {self.base:.8g}"), self.plain(pairs, self.base))]
        expected: list[tuple[str, RopeSetting]] = []
        for layer, setting in self.model.layers.items():
            name = self.model.name if len(self.model.layers) == 1 else f"{self.model.name}/{layer}"
            head_dim = setting.head_dim if self.head_dim is None else self.head_dim
            usual = head_dim if setting.rotary_dim == setting.head_dim else setting.rotary_dim
            changed = replace(
                setting,
                head_dim=head_dim,
                rotary_dim=usual if self.rotary_dim is None else self.rotary_dim,
                base=setting.base if self.base is None else self.base,
                scaling=self.scaling or setting.scaling,
            )
            expected.append((label := self.words(name), changed))
            if changed.scaling.kind == "longrope":
                beyond = int(changed.scaling.original or 0) + 1
                expected.append((f"{label} (long)", replace(changed, length=beyond)))
        return [(label, setting) for label, setting in expected if setting.pairs]

    def pairs(self) -> list[tuple[str, int]]:
        """Return how many pairs there should be, by what says so."""
        if self.model is not None:
            return [(label, setting.pairs) for label, setting in self.settings(None)]
        given = {"--rotary-dim": self.rotary_dim, "--head-dim": self.head_dim}
        return [(f"{flag} {dim}", dim // 2) for flag, dim in given.items() if dim is not None][:1]

    @property
    def positions(self) -> int | None:
        """The number of positions that the model serves; None where nothing says it."""
        if self.model is None:
            return None
        scalings = (setting.scaling for _, setting in self.settings(None))
        return Served.of(self.model.declared, scalings).positions

    def words(self, begin: str) -> str:
        """Return what the options say, behind the name of a model or a base."""
        given = {"scaling": self.scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        parts = [
            f"{name} {getattr(value, 'kind', value)}" for name, value in given.items() if value is not None
        ]
        if self.model is not None and self.base is not None:
            parts.insert(0, f"base {self.base:.8g}")
        return ", ".join([begin, *parts])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting of this base and the options, with `pairs` pairs by default."""
        given = [
            dims
            for dims in (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs)
            if dims is not None
        ]
        rotary_dim = given[0] if given else 128
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)


def fits(dump: Dump, pairs: int) -> bool:
    """Return whether a table has the columns of so many pairs, once or twice."""
    try:
        dump.folded(pairs)
    except BadInput:
        return False
    return True


def pairs_of(dump: Dump) -> int:
    """Return the pairs of a table: half its columns where each stands twice."""
    columns = int((dump.frequencies if dump.frequencies is not None else dump.cos[0]).shape[-1])  # type: ignore[index]
    half = columns // 2
    return half if columns == 2 * half and half and fits(dump, half) else columns


Guess: TypeAlias = tuple[TableFinding, str, RopeSetting]  # what is found, the label and the setting


def guessed(dump: Dump, expected: Expected) -> Guess | None:
    """Return what is found with a base that the values show; None where it explains nothing.

    A scaling that explains them is named, and the setting is that without it.
    """
    pairs = expected.plain(pairs_of(dump), 1e4).pairs
    if not fits(dump, pairs):
        return None
    for theta in _frequencies(dump.folded(pairs)):
        faulty, scaled = list[Guess](), list[Guess]()
        for base in _bases(np.abs(theta), expected.plain(pairs, 1e4)):
            setting = expected.plain(pairs, base)
            label, finding = expected.words(f"base {base:.8g}"), check(dump, setting)
            best = finding.best
            if finding.agrees:
                return finding, label, setting
            if best and (best.explains or best.few) and not best.another_setting:
                faulty.append((finding, label, setting))
            elif best and best.explains:
                other = wording.sentence(best.diagnosis)
                if best.setting is not None and best.setting.scaling.kind not in ("default", "explicit"):
                    other = f"scaling {variants.called(best.setting.scaling)}"
                scaled.append((finding, f"{label}, {other}", setting))
        if faulty or scaled:
            return (faulty or scaled)[0]
    return None


def _bases(theta: Array, setting: RopeSetting) -> list[float]:
    """Return bases near frequencies (p,): published ones, then fitted ones."""
    exponents = 2.0 * np.arange(setting.pairs) / setting.rotary_dim
    with np.errstate(all="ignore"):
        theta = theta / theta[0] if 1.5 * theta[0] < 1 else theta  # linear scaling divides all of them
        shown = variants.bases_shown(theta, exponents)
    rounded = [float(f"{base:.{digits}e}") for digits in (0, 1, 2, 4, 6) for base in shown]

    usable = (exponents > 0) & (theta > 0)
    logs, weights = np.log(theta[usable]), exponents[usable]

    def missed(base: float) -> float:
        return float(np.median(np.abs(math.log(base) * weights + logs)))

    near: list[float] = []
    if shown:
        tried = [base for base in dict.fromkeys((*variants.BASES, *rounded)) if 1 < base < 1e40]
        near = [base for base in tried if missed(base) <= max(_NEAR, 2 * min(map(missed, tried)))]
    fast = [base for base in rounded[1::4] if base > 1 and base not in near]
    return [*near[:_TRIED], *fast[:_TRIED]]  # a scaling leaves the fast ones alone


def _frequencies(dump: Dump) -> Iterator[Array]:
    """Yield the frequencies (p,) that the values show: from the first row, then from most."""
    if dump.frequencies is not None:
        yield dump.frequencies
        return
    assert dump.cos is not None  # noqa: S101
    assert dump.sin is not None  # noqa: S101
    points = dump.cos + 1j * dump.sin
    yield recovered(points)
    if len(points) >= _WINDOWS * _ROWS:
        parts = np.array_split(points[1:], _WINDOWS)
        yield np.median([recovered(part) for part in parts], axis=0)


NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance


def drifts(dump: Dump, setting: RopeSetting, far: int = FAR) -> tuple[float | None, float | None]:
    """Return the drift over `NEAR` causal tokens, and at a distance of `far`."""
    if dump.frequencies is None:  # a table has no further rows
        return _sequence(dump, setting), None
    return _sequence(dump, setting), float(_at(dump.frequencies, setting, [far])[0])


@functools.lru_cache(maxsize=8)
def of_float32(setting: RopeSetting) -> float:
    """Return the drift over `NEAR` tokens from rounding frequencies once to float32."""
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    rounded = exact.astype(np.float32).astype(np.float64)
    return _sequence(Dump("", "inv_freq", frequencies=rounded), setting) or 0.0


def _sequence(dump: Dump, setting: RopeSetting) -> float | None:
    """Return the RMS over distances below `NEAR`, each as often as in a causal sequence."""
    rows = NEAR if dump.cos is None else min(NEAR, len(dump.cos))
    if rows < 2:
        return None
    if dump.cos is not None:
        points: Any = (dump.cos + 1j * (0 if dump.sin is None else dump.sin))[:rows]
        exact = _exact(np.arange(rows, dtype=np.float64), setting)
        squares = 0.0
        for m in range(rows):
            product = points[m] * np.conj(points[: m + 1])
            squares += float(np.sum(np.abs(product - exact[m] * np.conj(exact[: m + 1])) ** 2))
        mean = squares / (rows * (rows + 1) / 2) / setting.pairs
        return float(_share(np.float64(mean), setting))
    if dump.frequencies is None:
        return None
    each, weights = _at(dump.frequencies, setting, range(rows)), rows - np.arange(rows)
    return math.sqrt(float(np.sum(weights * each**2)) / float(weights.sum()))


def _at(frequencies: Array, setting: RopeSetting, distances: Sequence[int]) -> Array:
    """Return the expected RMS drift of scores at some distances, over the RMS of the exact scores.

    For independent Gaussian q and k, a pair rotated by D theta' instead of D theta adds |e^(iD theta') -
    e^(iD theta)|² to the mean square, and every other dim nothing. Without rounding of q, k, cos or sin.
    Shapes: frequencies (p,), distances (n,) -> (n,).
    """
    at = np.array(distances, dtype=np.float64)
    exact = _exact(at, setting)
    factor = np.abs(exact)  # once in the table of q and once in that of k
    with np.errstate(invalid="ignore", over="ignore"):  # what is stored may be inf, and then it is nan
        rotated = factor**2 * np.exp(1j * np.mod(at[:, None] * frequencies, 2 * math.pi))
    means = np.mean(np.abs(rotated - factor * exact) ** 2, axis=1)
    return np.asarray(_share(means, setting))


def _share(mean_square: Any, setting: RopeSetting) -> Any:
    """Return the RMS drift relative to that of exact scores, with all dims counted."""
    power = float(np.abs(_exact(np.zeros(1), setting)[0, 0]) ** 4)
    share = setting.rotary_dim / setting.head_dim
    return np.sqrt(mean_square * share / (power * share + (1 - share)))


def _exact(at: Array, setting: RopeSetting) -> Any:
    """Return e^(i D theta), times the attention factor. Shapes: (s,) -> (s, p)."""
    cos, sin = distance_table(at, setting)
    return cos[0] + 1j * sin[0]
