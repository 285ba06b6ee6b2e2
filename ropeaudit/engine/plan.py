"""The plan of a measurement: its subjects and offsets, and how much fits in memory at once.

Letters: h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.engine.statistics import Moments, Statistics
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.inputs.masks import Mask
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference.exact_scores import Precision
from ropeaudit.rope.setting import RopeSetting, is_whole
from ropeaudit.subjects import Positions, Subject

PANEL = 8192  # positions rotated at once
TILE_ROWS, TILE_COLUMNS = 512, 512  # a tile's few arrays stay in a core's cache
CACHE_BYTES = 384 * 2**20  # rotated q and k held at once


SOFTMAX = ("fp64", "recipe")  # arithmetic of the softmax
ANCHOR = 16  # tokens: the offset with which AnchorAttention compares, arXiv 2411.13476


CellIndex: TypeAlias = tuple[int, int]  # index of the subject, offset


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Options of attention: the softmax's formats, and the anchor of D."""

    softmax: str = "fp64"
    anchor: int = ANCHOR

    def __post_init__(self) -> None:
        if self.softmax not in SOFTMAX:
            raise UnknownName("softmax", str(self.softmax), SOFTMAX)
        if not is_whole(self.anchor):
            raise UsageError(f"anchor {self.anchor!r} is not a whole number of tokens; try --anchor {ANCHOR}")

    @classmethod
    def requested(
        cls,
        attention: bool,
        softmax: str | None,
        anchor: int | None,
    ) -> AttentionOptions | None:
        """Return the options, None without `attention`. Raises: UsageError, UnknownName."""
        given = {name: v for name, v in (("softmax", softmax), ("anchor", anchor)) if v is not None}
        for name, value in given.items():
            if not attention:
                raise UsageError(f"--{name} {value} says how attention is measured; add --attention")
        return cls(**given) if attention else None  # type: ignore[arg-type]


@dataclass(slots=True)
class CellStatistics:
    """The measured errors of one subject at one offset.

    drift: against the reference. self_drift: against the same subject at offset 0.
    reference: the reference's scores. error: the certificate of the reference.
    """

    drift: Statistics = field(default_factory=Statistics)
    self_drift: Statistics = field(default_factory=lambda: Statistics(Moments.LARGEST))
    reference: Statistics = field(default_factory=lambda: Statistics(Moments.SQUARES))
    error: float = 0.0

    @classmethod
    def sampled(cls) -> CellStatistics:
        """Return empty statistics of sampled, weighted scores."""
        drift, self_drift, reference = (Statistics(moments, weighted=True) for moments in reversed(Moments))
        return cls(drift, self_drift, reference)

    def merge(self, later: CellStatistics) -> None:
        """Add the statistics of later tiles."""
        self.drift.merge(later.drift)
        self.self_drift.merge(later.self_drift)
        self.reference.merge(later.reference)
        self.error = float(np.maximum(self.error, later.error))  # nan stays nan


class Key(NamedTuple):
    """The rounding of q and k and the precision of a reference."""

    input: Format
    precision: Precision


V = TypeVar("V", Inputs, SampledInputs)  # q and k: all of them, or those of a sample


@dataclass(frozen=True, slots=True)
class Plan(Generic[V]):
    """Subjects and offsets that are measured together; each subject's first offset is 0.

    origin is added to the positions of the reference. It changes nothing, for exact scores depend on
    distances, unless angles are clipped. positions: of the rows, where they are not 0, 1, ... precision: of
    every reference, where each does not have that of its subject.
    """

    subjects: Sequence[Subject]
    offsets: Sequence[Sequence[int]]
    inputs: V
    setting: RopeSetting
    mask: Mask
    origin: int = 0
    positions: Positions | None = None
    precision: Precision | None = None

    def at(self, panel: slice) -> Positions:
        """Return the positions of some rows."""
        rows = np.arange(panel.start, panel.stop, dtype=np.int64)
        return rows if self.positions is None else self.positions[rows]

    def cells(self) -> list[CellIndex]:
        """Return the cells in order."""
        return [(index, offset) for index, offsets in enumerate(self.offsets) for offset in offsets]

    def keys(self) -> dict[Key, list[int]]:
        """Return the subjects by reference: those with the same rounded q and k share one.

        An input format that changes nothing counts as float64. A key depends on its subject and on q and k
        alone, so that a case gives the same bits whatever else is measured with it.
        """
        measured = [index for index, offsets in enumerate(self.offsets) if offsets]
        seen = self.inputs.distinct(self.subjects[index].input for index in measured)
        groups: dict[Key, list[int]] = {}
        for index in measured:
            subject = self.subjects[index]
            own: Precision = "extended" if subject.narrowest > FP32.precision else "double"
            groups.setdefault(Key(seen[subject.input], self.precision or own), []).append(index)
        return groups


def bytes_needed(setting: RopeSetting, heads: int, kv_heads: int, seq_len: int) -> int:
    """Estimate the peak memory of an audit: q, k, the caches and factors."""
    inputs = (heads + kv_heads) * seq_len * setting.head_dim * 8
    cell = cell_bytes(setting, seq_len)
    return inputs + max(CACHE_BYTES, 2 * cell) + 8 * cell + 64 * 2**20


def cell_bytes(setting: RopeSetting, seq_len: int) -> int:
    """Return a cell's bytes: a head's rotated q, k and tables, in float64."""
    return 2 * min(seq_len, PANEL) * (setting.head_dim + 2 * setting.pairs) * 8
