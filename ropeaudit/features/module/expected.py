"""What a module's frequencies should be: as a model, a config or options say, or guessed from the values.

A guess says what the values are, never that they are right.
Letters: n positions, c columns, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput
from ropeaudit.recognition import variants, wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.recognition.inferred import recovered
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.served import Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.tables import Dump

_TRIED = 5  # bases that are checked, of either kind
_WINDOWS, _ROWS = 5, 4  # parts of a table, and the rows that each has at least
_NEAR = 0.01  # of the frequencies, relative


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the frequencies; options stand above the model. What is unknown is None."""

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None

    def settings(self, pairs: int | None) -> list[tuple[str, RopeSetting]]:
        """Return what is expected, with what to call it: a setting per layer type, long sequences separately.

        pairs: those of a table, where nothing says how many there should be.
        """
        if self.model is None:
            if self.base is None:
                return []
            return [(self.words(f"base {self.base:.8g}"), self.plain(pairs, self.base))]
        expected: list[tuple[str, RopeSetting]] = []
        for layer, setting in self.model.layers.items():
            name = self.model.name if len(self.model.layers) == 1 else f"{self.model.name}/{layer}"
            changed = self._changed(setting)
            expected.append((label := self.words(name), changed))
            if changed.scaling.kind == "longrope":
                beyond = int(changed.scaling.original or 0) + 1
                expected.append((f"{label} (long)", replace(changed, length=beyond)))
        return [(label, setting) for label, setting in expected if setting.pairs]

    def pairs(self) -> list[tuple[str, int]]:
        """Return how many pairs there should be, with what says so; nothing where nothing does."""
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
        """Return a setting of this base and what the options say, of `pairs` pairs where they say nothing."""
        given = [
            dims
            for dims in (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs)
            if dims is not None
        ]
        rotary_dim = given[0] if given else 128
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)

    def _changed(self, start: RopeSetting) -> RopeSetting:
        """Return a model's setting with what the options say."""
        head_dim = start.head_dim if self.head_dim is None else self.head_dim
        usual = head_dim if start.rotary_dim == start.head_dim else start.rotary_dim
        return replace(
            start,
            head_dim=head_dim,
            rotary_dim=usual if self.rotary_dim is None else self.rotary_dim,
            base=start.base if self.base is None else self.base,
            scaling=self.scaling or start.scaling,
        )


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


def guessed(dump: Dump, expected: Expected) -> tuple[TableFinding, str, RopeSetting] | None:
    """Return what is found with a base that the values show; None where none explains them up to a fault.

    A scaling that explains them is named, and the setting is that without it.
    """
    pairs = expected.plain(pairs_of(dump), 1e4).pairs
    if not fits(dump, pairs):
        return None
    for theta in _frequencies(dump.folded(pairs)):
        if found := _guessed_from(np.abs(theta), dump, expected, pairs):
            return found
    return None


def _guessed_from(
    theta: Array, dump: Dump, expected: Expected, pairs: int
) -> tuple[TableFinding, str, RopeSetting] | None:
    """Return the same from frequencies (p,) that the values show."""
    faulty: tuple[TableFinding, str, RopeSetting] | None = None
    scaled = faulty
    for base in _bases(theta, expected.plain(pairs, 1e4)):
        setting = expected.plain(pairs, base)
        label, finding = expected.words(f"base {base:.8g}"), check(dump, setting)
        best = finding.best
        if finding.agrees:
            return finding, label, setting
        if best and (best.explains or best.few) and not best.another_setting:
            faulty = faulty or (finding, label, setting)
        elif best and best.explains:
            scaled = scaled or (finding, f"{label}, {_named(best)}", setting)
    return faulty or scaled


def _named(best: Hypothesis) -> str:
    """Return what is another than in the guessed setting."""
    if best.setting is not None and best.setting.scaling.kind not in ("default", "explicit"):
        return f"scaling {variants.called(best.setting.scaling)}"
    return wording.sentence(best.diagnosis)


def _bases(theta: Array, setting: RopeSetting) -> list[float]:
    """Return bases that come near frequencies (p,): published ones, then fitted ones in few digits."""
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
    """Yield the frequencies (p,) that the values show: from the first row on, then those most rows show."""
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
