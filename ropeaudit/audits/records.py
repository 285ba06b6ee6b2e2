"""The record: the flat row that a case yields, and its columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from ropeaudit.audits.identity import Identity
from ropeaudit.runtime.columns import column, columns_of, row_class

# 2: `stages` tells switches and `source` the content of a file; of schema 1 the columns are the same.
# 3: behaviour (`verdict`) and quality (`within_tolerance`) are two columns; places of rotated pairs
SCHEMA = 3


def _sampled(record: Record) -> bool:
    return bool(record.sample)


def _weighed(record: Record) -> bool:
    return record.attention_tv_mean is not None


def _built(record: Record) -> bool:
    return record.right_token is not None and not math.isnan(record.right_token)


def _placed(record: Record) -> bool:
    return record.place_excess is not None


def _rerotated(record: Record) -> bool:
    return record.key_norm_growth is not None


@row_class
class Record(Identity):
    """One case: RoPE setting x inputs x subject x dtype x offset. `COLUMNS` explains every field."""

    scores: int = column("how many scores were compared", nonnegative=True)
    nonfinite: int = column(
        "how many of the subject's scores are nan or infinite", nonnegative=True, compared=1
    )
    distinct_positions: int = column(
        "how many positions are still different finite numbers once rounded",
        shown=True,
        leaves=9,
        nonnegative=True,
        least_is_worst=True,
        compared=2,
    )
    reference_rms: float = column("RMS of the exact scores", unit="score", nonnegative=True, compared=3)
    reference_error: float = column(
        "certified bound on the error of the reference, in score units", unit="score", nonnegative=True
    )
    drift_max: float = column(
        "largest |subject's score at the offset - exact score|; of a sample a lower bound",
        unit="score",
        role="drift",
        shown=True,
        leaves=8,
        nonnegative=True,
        compared=5,
    )
    drift_mean_abs: float = column(
        "mean of |drift|", unit="score", role="drift", nonnegative=True, compared=6
    )
    drift_rms: float = column(
        "root mean square of drift", unit="score", role="drift", shown=True, nonnegative=True, compared=4
    )
    drift_rms_low: float | None = column(
        "lower end of the 95 % interval of drift_rms over all scores; nan without a sample",
        unit="score",
        role="drift",
        shown=_sampled,
        leaves=5,
    )
    drift_rms_high: float | None = column(
        "its upper end (normal approximation of the mean square, on a log scale)",
        unit="score",
        role="drift",
        shown=_sampled,
        leaves=6,
    )
    drift_bias: float = column("signed mean of drift", unit="score", role="drift")
    drift_relative: float = column(
        "drift_rms / reference_rms",
        role="drift",
        style="percent",
        shown=True,
        leaves=12,
        nonnegative=True,
        compared=7,
    )
    attainable_rms: float = column(
        "drift_rms that careful code in the dtype would have near offset 0: float32 angles, table and "
        "rotation (float64 for float64), one rounding of q and k to the dtype, and one of the scores for "
        "dtypes of 16 bits and fewer",
        unit="score",
        nonnegative=True,
    )
    excess: float = column("drift_rms / attainable_rms", role="drift", shown=True, leaves=10)
    floor_rms: float = column(
        "drift_rms of the same subject at offset 0, with the frequencies that hold at the offset",
        unit="score",
        role="drift",
        nonnegative=True,
        compared=8,
    )
    self_drift_max: float = column(
        "largest |subject's score at the offset - its own score at offset 0|",
        unit="score",
        role="drift",
        nonnegative=True,
        compared=10,
    )
    self_drift_rms: float = column(
        "root mean square of self-drift; clipped angles add their structural change to it",
        unit="score",
        role="drift",
        shown=True,
        leaves=7,
        nonnegative=True,
        compared=9,
    )
    structural_max: float = column(
        "largest change of the exact scores by the shift itself: new frequencies, clipping",
        unit="score",
        nonnegative=True,
        compared=12,
    )
    structural_rms: float = column(
        "root mean square of that change; drift does not hold it", unit="score", nonnegative=True, compared=11
    )
    predicted_rms: float | None = column(
        "drift_rms predicted from the recipe, for q and k of random phases; nan where numbers may overflow",
        unit="score",
        nonnegative=True,
    )
    bound_max: float | None = column(
        "no emulated drift_max exceeds it with q and k of these sizes; inf: overflow; nan: sample",
        unit="score",
        nonnegative=True,
    )
    attention_tv_max: float | None = column(
        "--attention: largest share of a row's weight that drift moves, Σ|p - exact p|/2",
        role="attention",
        shown=_weighed,
        leaves=4,
        compared=14,
    )
    attention_tv_mean: float | None = column(
        "mean of that share (total variation) over rows and heads",
        role="attention",
        shown=_weighed,
        compared=14,
    )
    attention_kl_max: float | None = column(
        "largest sum of p* log(p*/p) + p - p* of a row, nats, p* the exact weights: KL(p* || p) where p sums "
        "to 1, which weights that --softmax recipe rounds do not; inf where that lost one",
        unit="nats",
        role="attention",
        compared=14,
    )
    top1_flips: float | None = column(
        "rows whose largest weight moves to another key; ties do not count",
        role="attention",
        shown=_weighed,
        compared=14,
    )
    entropy_reference: float | None = column(
        "mean Shannon entropy of the exact rows, nats",
        unit="nats",
        role="attention",
        shown=_weighed,
        leaves=3,
        compared=14,
    )
    entropy: float | None = column(
        "mean Shannon entropy of the subject's rows, nats",
        unit="nats",
        role="attention",
        shown=_weighed,
        leaves=2,
        compared=14,
    )
    weight_reference: float | None = column(
        "mean largest weight of the exact rows", role="attention", compared=14
    )
    weight: float | None = column(
        "mean largest weight of the subject's rows", role="attention", least_is_worst=True, compared=14
    )
    right_token: float | None = column(
        "share of rows that attend most, without a tie, to the token they were built for; nan "
        "unless --qk is diagonal or previous",
        role="attention",
        shown=_built,
        shown_after="attention_d",
        least_is_worst=True,
        compared=14,
    )
    attention_adaptive_tv_mean: float | None = column(
        "attention_tv_mean at the adaptive temperature of arXiv 2410.01104",
        role="attention",
        shown=_weighed,
        shown_after="attention_tv_mean",
    )
    attention_d: float | None = column(
        "AnchorAttention's D(offset, --anchor), arXiv 2411.13476: Σ over heads and keys of the "
        "mean |A - A at the anchor|; 0 for a subject that offsets do not change",
        role="attention",
        shown=_weighed,
        leaves=1,
        compared=14,
    )
    attention_d_logit: float | None = column(
        "the same of the first token's scores, before softmax. Random q and k say nothing "
        "about a trained model's first token",
        unit="score",
        role="attention",
        compared=14,
    )
    worst_head: int | None = column(
        "head of drift_max; nan where no score differs or some are not finite", nonnegative=True
    )
    worst_query: int | None = column("query index of drift_max, unshifted", nonnegative=True)
    worst_key: int | None = column("key index of drift_max, unshifted", nonnegative=True)
    place_excess: float | None = column(
        "code: the largest error of a rotated pair over what roundings explain; above 1 a pair "
        "is not where its position says; nan for a recipe",
        role="place",
        shown=_placed,
        leaves=11,
        compared=13,
    )
    place_side: str | None = column("q or k: which of them has that pair; nan where none does", role="place")
    place_batch: int | None = column("its batch element", role="place")
    place_head: int | None = column("its head", role="place")
    place_position: int | None = column("its position, shifted", unit="tokens", role="place")
    place_pair: int | None = column("its pair of dims", role="place")
    resembles: str | None = column(
        "the recipe or the fault that explains a pair out of place; nan where nothing known does",
        role="place",
    )
    key_norm_growth: float | None = column(
        "--rerotate: mean relative change of the norm of the keys against the exact norm; nan without, of a "
        "sample, and where all keys are 0",
        shown=_rerotated,
        leaves=13,
    )
    within_tolerance: str = column(
        "yes or no: drift_relative <= tolerance, and each rotated pair where its position "
        "says; undecided below 100 scores",
        shown=True,
    )
    verdict: str = column(
        "how it behaves: sound, exact, coarse, growing, broken, misplaced, overflow or refused", shown=True
    )
    refused: str = column("why an implementation could not be audited here; none where it could")

    def identity(self) -> tuple[Any, ...]:
        """Return what was requested, without what was measured: equal for the same cell of a sweep."""
        return _identity(self)

    def as_dict(self) -> dict[str, Any]:
        """Return column -> value, in the order of `COLUMNS`."""
        return dict(zip(COLUMNS, _values(self), strict=True))


COLUMNS = columns_of(Record)
IDENTITY = COLUMNS.identity
_identity: Callable[[Record], tuple[Any, ...]] = attrgetter(*IDENTITY)
_values: Callable[[Record], tuple[Any, ...]] = attrgetter(*COLUMNS)
