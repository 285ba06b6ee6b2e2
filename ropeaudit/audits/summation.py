"""By how much the figures of a case may differ between two processors, whose BLAS adds in another order.

Everything else of an emulated case is the same bits everywhere: tables, rotated q and k, sums in narrow
formats, one by one. Sums of products in float32 and float64 are BLAS's. Let s be the RMS of the error of such
a sum, N how many scores are independent, u the spacing of stored scores, p the share of scores that another
order stores as another number. Two orders differ by sqrt(2) s in a sum, RMS, so that p = 1.13 s / u where s
is small beside u. A mean over scores then moves by a few standard deviations of a mean of N such
differences, a largest value by no more than a single score does, and a mean square also by what the order
itself adds, at most s². What was measured stands in docs/method.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropeaudit.arithmetic.formats import FP32, FP64, parse
from ropeaudit.audits import records

Row = Mapping[str, Any]

FLOAT64 = 1e-12  # relative: of sums in float64 alone, of up to 10^9 terms
_PREDICTED = 1e-10  # relative: of differences of such sums, of which a hundredth is left
_NEEDED = ("head_dim", "seq_len", "heads", "scores", "reference_rms")  # a report may lack columns
_ROUNDING = 0.42  # RMS of a relative rounding error over the unit roundoff
_DEVIATIONS = 4.0  # of a mean; scores of a row share its q, so that they are not quite independent
_RARE = 1e-6  # a stored score that differs so seldom is not expected in any comparison
_INDEPENDENT = ("gaussian", "randn")  # q and k of which every score has an error of its own
_ANYWHERE = ("worst_head", "worst_query", "worst_key", "top1_flips")
_DIFFERENCES = ("predicted_rms", "attainable_rms", "excess")
_JUDGED = ("within_tolerance", "verdict")
_MAXIMA = ("drift_max", "change_max", "attention_tv_max", "attention_kl_max")


@dataclass(frozen=True, slots=True)
class Order:
    """What the order of sums does to the scores of a case, in score units.

    sums: RMS of the error of a sum, at most. step: spacing of the stored scores about their RMS. other: share
    of the scores that another order stores as another number. independent: scores with errors of their own.
    """

    sums: float
    step: float
    other: float
    independent: int

    @property
    def mean(self) -> float:
        """By how much a mean over the scores may move."""
        flips = self.other * self.independent
        stored = self.step * math.sqrt(flips + 1) / self.independent if flips > _RARE else 0.0
        return _DEVIATIONS * (math.sqrt(2 / self.independent) * self.sums + stored)

    @property
    def single(self) -> float:
        """By how much a single score may move, the largest among them."""
        flips = self.other * self.independent > _RARE
        return 12 * self.sums + 2 * self.step * flips


def order_of(row: Row) -> Order | None:
    """Return what the order of sums does in a case; None where no sum is BLAS's, or the row does not say."""
    stages = _stages(row)
    if any(row.get(name) is None for name in _NEEDED):
        return None
    scores, rms = int(row["scores"]), float(row["reference_rms"])
    if "accumulate" not in stages or not scores or not math.isfinite(rms):
        return None
    accumulate, score = parse(stages["accumulate"]), parse(stages.get("score", "fp64"))
    if accumulate not in (FP32, FP64):
        return None
    sums = _ROUNDING * accumulate.unit_roundoff * math.sqrt(int(row["head_dim"]) / 2) * rms
    step = max(2 * score.unit_roundoff * rms, score.smallest_subnormal)
    independent = scores if row.get("source") in _INDEPENDENT else int(row["seq_len"])
    return Order(sums, step, min(1.0, 1.13 * sums / step), independent)


def meaning(column: str) -> str:
    """Return in words what another processor may change in a column."""
    declared = records.COLUMNS[column]
    if column in _ANYWHERE:
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


def allowance(before: Row, after: Row, column: str) -> float:
    """Return by how much a column of a case may differ for the order of sums alone; 0 where nothing may.

    before, after: rows of the same case, measured on two processors. Units: the column's.
    `worst_*` and `top1_flips` say where or how often something stands that a last digit decides: inf.
    """
    declared = records.COLUMNS[column]
    if column in _ANYWHERE:
        return math.inf
    old, new = (float(row.get(column) or 0.0) for row in (before, after))
    if declared.kind is not float or not math.isfinite(old + new):
        return 0.0
    summed = (_PREDICTED if column in _DIFFERENCES else FLOAT64) * max(abs(old), abs(new))
    order = order_of(after)
    if order is None or declared.role not in ("drift", "attention"):
        return summed
    if declared.role == "attention":
        return summed + _of_attention(column, order, after, max(old, new))
    unit = 1.0
    if column == "drift_relative":
        unit = float(after.get("reference_rms") or 0.0)
    elif column == "excess":
        # attainable_rms, from excess where the report has no column of it
        drift, excess = float(after.get("drift_rms") or 0.0), float(after.get("excess") or 0.0)
        unit = float(after.get("attainable_rms") or 0.0) or (drift / excess if excess else 0.0)
    return summed + (_of_drift(column, order, (old + new) * unit) / unit if unit else 0.0)


def _of_drift(column: str, order: Order, both: float) -> float:
    """Return it for a statistic of drift. both: the sum of its two values, in score units."""
    against_itself = 2.0 if column.startswith("change_") else 1.0  # two errors instead of one
    if column in _MAXIMA:
        return against_itself * order.single
    own = 0.0 if column == "drift_bias" else (against_itself * order.sums) ** 2 / both if both else math.inf
    return own + against_itself * order.mean


def _of_attention(column: str, order: Order, row: Row, size: float) -> float:
    """Return it for a statistic of rows after softmax, whose weights move by |δ| in 1-norm as scores by δ."""
    queries, heads = int(row["seq_len"]), int(row["heads"])
    flips = order.other * order.independent > _RARE
    narrow = 0.0
    if row.get("softmax") == "recipe":  # weights are rounded to its softmax, and stored in the dtype
        narrow = max(
            parse(_stages(row).get("softmax", "fp64")).unit_roundoff,
            parse(str(row.get("dtype") or "fp64")).unit_roundoff,
        )
    mean = 3 * order.sums + (order.step * flips + narrow) / queries
    single = order.single + narrow
    if column == "attention_kl_max":
        return math.sqrt(2 * size) * single + single**2
    if column in _MAXIMA:
        return single
    if column in ("entropy", "entropy_reference"):
        return mean * (1 + math.log(queries))
    if column.startswith("attention_d"):
        return mean * heads * queries
    return 4 * mean if "adaptive" in column else mean


def _stages(row: Row) -> dict[str, str]:
    return dict(word.split("=", 1) for word in str(row.get("stages") or "").split() if "=" in word)
