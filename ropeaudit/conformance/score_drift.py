"""How far scores are from the exact ones, as the engine measured it, and how far they may be.

Scores are scaled, before softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from ropeaudit.audits import judging
from ropeaudit.audits.records import Record
from ropeaudit.bounds import Bound
from ropeaudit.engine.plan import CellStatistics
from ropeaudit.engine.statistics import Place

RMS_FACTOR = 1.5  # measured RMS drift is 0.8 to 1.3 times the predicted RMS: docs/method.md


@dataclass(frozen=True, slots=True)
class MeasuredDrift:
    """What was measured at an offset with so many tokens, and what is allowed; inf where one is not finite.

    largest, rms: differences of scores. place: head, query and key of the largest. error: of the reference.
    part: of what the tokens are, where that is not all that was given.
    """

    length: int
    offset: int
    largest: float
    rms: float
    place: Place
    reference_rms: float
    error: float
    limit: Bound
    part: str = ""

    @classmethod
    def of_cell(cls, cell: CellStatistics, length: int, offset: int, limit: Bound, part: str = "") -> Self:
        """Return what the engine measured."""
        sizes, place = (_size(cell.drift.max), _size(cell.drift.rms)), cell.drift.place or (0, 0, 0)
        return cls(length, offset, *sizes, place, cell.reference.rms, cell.error, limit, part)

    @classmethod
    def of_record(cls, row: Record, limit: Bound, part: str = "") -> Self:
        """Return what a row of an audit says."""
        sizes = _size(row.drift_max), _size(row.drift_rms)
        place = row.worst_head or 0, row.worst_query or 0, row.worst_key or 0
        reference = row.reference_rms, row.reference_error
        return cls(row.seq_len, row.offset, *sizes, place, *reference, limit, part)

    @property
    def tokens(self) -> str:
        """What was measured: `4096 tokens of one head`."""
        return f"{self.length} tokens{self.part}"

    @property
    def allowed(self) -> float:
        """The RMS drift that is allowed."""
        return RMS_FACTOR * self.limit.rms + self.error

    @property
    def most(self) -> float:
        """The largest drift that is allowed."""
        return self.limit.maximum + self.error

    @property
    def over_bound(self) -> bool:
        """Whether the largest is above the a-priori bound."""
        return self.largest > self.most

    @property
    def over_prediction(self) -> bool:
        """Whether the RMS is above `RMS_FACTOR` times the predicted one."""
        return self.rms > self.allowed

    @property
    def fails(self) -> bool:
        """Whether it is more than allowed."""
        return self.over_bound or self.over_prediction

    @property
    def relative(self) -> float:
        """The RMS drift over the RMS of the exact scores."""
        return judging.ratio(self.rms, self.reference_rms)

    @property
    def finite(self) -> bool:
        """Whether every score is finite."""
        return math.isfinite(self.rms)


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else value
