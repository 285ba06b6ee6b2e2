"""The record: the flat row that a case yields, its columns, and the metadata of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

# 2: `stages` tells switches and `source` the content of a file; of schema 1 the columns are the same.
# 3: behaviour (`verdict`) and quality (`within_tolerance`) are two columns; places of rotated pairs
SCHEMA = 3

# Thresholds of verdicts, here and in the documentation of `verdict` and `within_tolerance` alone.
TOLERANCE = 0.01  # of drift_relative
EXCESS = 3.0  # "growing", "coarse": drift_rms > EXCESS * attainable_rms
GROWTH = 2.0  # "growing": drift_rms > GROWTH * floor_rms
BROKEN_SHARE = 0.5  # "broken": drift_rms >= BROKEN_SHARE * reference_rms
FEWEST = 100  # scores below which no drift is called good enough


@dataclass(frozen=True, slots=True)
class Record:
    """One case: RoPE setting x inputs x subject x dtype x offset. `COLUMNS` explains every field."""

    schema: int
    subject: str
    dtype: str
    offset: int
    model: str
    scaling: str
    clip: float | None
    length: int | None
    axes: str
    backend: str
    version: str
    device: str
    environment: str | None
    engine: str | None
    layout: str
    head_dim: int
    rotary_dim: int
    base: float
    scale: float
    seq_len: int
    heads: int
    kv_heads: int
    mask: str
    source: str
    seed: int | None
    sample: int | None
    softmax: str | None
    anchor: int | None
    grid: str | None
    offset_t: float | None
    offset_h: float | None
    offset_w: float | None
    stages: str
    tolerance: float
    scores: int
    nonfinite: int
    distinct_positions: int
    reference_rms: float
    reference_error: float
    drift_max: float
    drift_mean_abs: float
    drift_rms: float
    drift_rms_low: float | None
    drift_rms_high: float | None
    drift_bias: float
    drift_relative: float
    attainable_rms: float
    excess: float
    floor_rms: float
    self_drift_max: float
    self_drift_rms: float
    structural_max: float
    structural_rms: float
    predicted_rms: float | None
    bound_max: float | None
    attention_tv_max: float | None
    attention_tv_mean: float | None
    attention_kl_max: float | None
    top1_flips: float | None
    entropy_reference: float | None
    entropy: float | None
    weight_reference: float | None
    weight: float | None
    right_token: float | None
    attention_adaptive_tv_mean: float | None
    attention_d: float | None
    attention_d_logit: float | None
    worst_head: int | None
    worst_query: int | None
    worst_key: int | None
    place_excess: float | None
    place_side: str | None
    place_batch: int | None
    place_head: int | None
    place_position: int | None
    place_pair: int | None
    resembles: str | None
    within_tolerance: str
    verdict: str
    refused: str

    def identity(self) -> tuple[Any, ...]:
        """Return what was asked for, without what was measured: equal for the same cell of a sweep."""
        return _identity(self)

    def as_dict(self) -> dict[str, Any]:
        """Return column -> value, in the order of `COLUMNS`."""
        return dict(zip(COLUMNS, _values(self), strict=True))


# The columns of --attention -> what they hold; rows are those of the softmax, one per query and head.
ATTENTION: dict[str, str] = {
    "attention_tv_max": "--attention: largest share of a row's weight that drift moves, Σ|p - exact p|/2",
    "attention_tv_mean": "mean of that share (total variation) over rows and heads",
    "attention_kl_max": "largest KL(exact p || p) of a row, nats; inf where --softmax recipe lost a weight",
    "top1_flips": "rows whose largest weight moves to another key; ties do not count",
    "entropy_reference": "mean Shannon entropy of the exact rows, nats",
    "entropy": "mean Shannon entropy of the subject's rows, nats",
    "weight_reference": "mean largest weight of the exact rows",
    "weight": "mean largest weight of the subject's rows",
    "right_token": "share of rows that attend most, without a tie, to the token they were built for; nan "
    "unless --qk is diagonal or previous",
    "attention_adaptive_tv_mean": "attention_tv_mean at the adaptive temperature of arXiv 2410.01104",
    "attention_d": "AnchorAttention's D(offset, --anchor), arXiv 2411.13476: Σ over heads and keys of the "
    "mean |A - A at the anchor|; 0 for a subject that offsets do not change",
    "attention_d_logit": "the same of the first token's scores, before softmax. Random q and k say nothing "
    "about a trained model's first token",
}
# The columns of code that is called -> what they hold; of a recipe they are undefined.
PLACES: dict[str, str] = {
    "place_excess": "code: the largest error of a rotated pair over what roundings explain; above 1 a pair "
    "is not where its position says; nan for a recipe",
    "place_side": "q or k: which of them has that pair; nan where none does",
    "place_batch": "its batch element",
    "place_head": "its head",
    "place_position": "its position, shifted",
    "place_pair": "its pair of dims",
    "resembles": "the recipe or the fault that explains a pair out of place; nan where nothing known does",
}
# column -> what it holds
COLUMNS: dict[str, str] = {
    "schema": "version of this list of columns",
    "subject": "recipe, with the changes made to it in brackets",
    "dtype": "number format of the model, which the recipe applies to its stages",
    "offset": "integer added to every position, in tokens",
    "model": "preset or config, with its layer type where it has several; none without one",
    "scaling": "how the frequencies are changed: default, linear, dynamic, yarn, longrope, llama3, ...",
    "clip": "cap of the angles in radians; nan without one",
    "length": "positions that the frequencies stand for (longrope: the border, or one more); nan without",
    "axes": "M-RoPE: pairs per position axis and the axes that are shifted; none for one axis",
    "backend": "what executed the subject: numpy, torch, or an implementation's own engine",
    "version": "of the implementation; of your own code a digest of its file; torch's with --backend torch; "
    "ropeaudit's own for an emulated recipe",
    "device": "where it was executed",
    "environment": "what the code was run under, such as autocast:bf16; nan where nothing is known of it",
    "engine": "what measured: numpy or torch; nan where nothing is known of it",
    "layout": "pairs of dims: half (i, i + rotary_dim/2) or interleaved (2i, 2i + 1)",
    "head_dim": "dims of a head",
    "rotary_dim": "dims of a head that are rotated",
    "base": "theta: frequencies are base^(-2i/rotary_dim)",
    "scale": "softmax scale that multiplies every score",
    "seq_len": "positions",
    "heads": "query heads",
    "kv_heads": "key-value heads",
    "mask": "which keys a query sees: causal, full or window:N, the last N",
    "source": "where q and k come from: gaussian (by-row: each row by itself), ones, ..., or a file "
    "and the digest of its numbers",
    "seed": "seed of random q and k, and of the sample; nan where none was used",
    "sample": "how many scores were drawn at random to stand for all that the mask shows; nan without",
    "softmax": "--attention: arithmetic of the softmax, fp64 or the recipe's; nan without",
    "anchor": "--attention: offset that attention_d compares with, in tokens; nan without",
    "grid": "rows and columns of positions, of images and video; nan for a sequence",
    "offset_t": "offset of the position axis t as a real number; nan where `offset` says all",
    "offset_h": "the same of the axis h",
    "offset_w": "the same of the axis w",
    "stages": "number format per stage, as far as it is known: stage=format; then switches other than "
    "inverse_power, each and false, and the axes of --order",
    "tolerance": "--tolerance: the largest drift_relative that is good enough",
    "scores": "how many scores were compared",
    "nonfinite": "how many of the subject's scores are nan or infinite",
    "distinct_positions": "how many positions are still different finite numbers once rounded",
    "reference_rms": "RMS of the exact scores",
    "reference_error": "certified bound on the error of the reference, in score units",
    "drift_max": "largest |subject's score at the offset - exact score|; of a sample a lower bound",
    "drift_mean_abs": "mean of |drift|",
    "drift_rms": "root mean square of drift",
    "drift_rms_low": "lower end of the 95 % interval of drift_rms over all scores; nan without a sample",
    "drift_rms_high": "its upper end (normal approximation of the mean square, on a log scale)",
    "drift_bias": "signed mean of drift",
    "drift_relative": "drift_rms / reference_rms",
    "attainable_rms": "drift_rms that careful code in the dtype would have near offset 0: float32 "
    "angles, table and rotation (float64 for float64), one rounding of q and k to the dtype, and one of the "
    "scores for dtypes of 16 bits and fewer",
    "excess": "drift_rms / attainable_rms",
    "floor_rms": "drift_rms of the same subject at offset 0, with the frequencies that hold at the offset",
    "self_drift_max": "largest |subject's score at the offset - its own score at offset 0|",
    "self_drift_rms": "root mean square of self-drift; clipped angles add their structural change to it",
    "structural_max": "largest change of the exact scores by the shift itself: new frequencies, clipping",
    "structural_rms": "root mean square of that change; drift does not hold it",
    "predicted_rms": "drift_rms predicted from the recipe, for q and k of random phases; nan where "
    "numbers may overflow",
    "bound_max": "no emulated drift_max exceeds it with q and k of these sizes; inf: overflow; nan: sample",
    **ATTENTION,
    "worst_head": "head of drift_max; nan where no score differs or some are not finite",
    "worst_query": "query index of drift_max, unshifted",
    "worst_key": "key index of drift_max, unshifted",
    **PLACES,
    "within_tolerance": "yes or no: drift_relative <= tolerance, and each rotated pair where its position "
    "says; undecided below 100 scores",
    "verdict": "how it behaves: sound, exact, coarse, growing, broken, misplaced, overflow or refused",
    "refused": "why an implementation could not be audited here; none where it could",
}
# the columns that say what was asked for
IDENTITY = tuple(name for name in list(COLUMNS)[: list(COLUMNS).index("scores")])
_identity: Callable[[Record], tuple[Any, ...]] = attrgetter(*IDENTITY)
_values: Callable[[Record], tuple[Any, ...]] = attrgetter(*COLUMNS)
TEXT_COLUMNS = frozenset(f.name for f in fields(Record) if "str" in str(f.type))
WHOLE_COLUMNS = frozenset(f.name for f in fields(Record) if "int" in str(f.type))
OPTIONAL_COLUMNS = frozenset(f.name for f in fields(Record) if "None" in str(f.type))

# worst cases last; of those that hold, the last but refused is the verdict
VERDICTS: dict[str, str] = {
    "sound": f"drift_rms is at most {EXCESS:g} times what careful code in the dtype has near offset 0",
    "exact": "drift is within the certified error of the reference",
    "coarse": f"drift_rms is more than {EXCESS:g} times attainable_rms, and at most {GROWTH:g} times "
    "floor_rms: so do a rounded or wrong table, a wrong base, a narrow accumulator",
    "growing": f"drift_rms is more than {EXCESS:g} times attainable_rms, and more than {GROWTH:g} "
    "times floor_rms",
    "broken": f"drift_rms is at least {BROKEN_SHARE:.0%} of reference_rms",
    "misplaced": "code: a rotated pair is not where its position says, and no known recipe explains it",
    "overflow": "some scores are nan or infinite",
    "refused": "the implementation does not take this dtype, setting or position",
}
# of reports of schema 1 and 2, which are read with the verdicts that they hold
EARLIER_VERDICTS: dict[str, str] = {
    "floor": "schema 2: drift_rms was at most twice floor_rms, however large both were",
    "decorrelated": "schema 2: drift_rms was at least half of reference_rms; now broken",
}
WITHIN = ("yes", "no", "undecided")


def judge(
    *,
    nonfinite: int,
    drift_max: float,
    drift_rms: float,
    floor_rms: float,
    reference_rms: float,
    reference_error: float,
    excess: float,
    misplaced: bool,
) -> str:
    """Return how a row behaves, one word of `VERDICTS`: the first that holds, worst cases first."""
    if nonfinite:
        return "overflow"
    if misplaced:
        return "misplaced"
    if drift_rms >= BROKEN_SHARE * reference_rms and drift_max > reference_error:
        return "broken"
    if drift_max <= reference_error:
        return "exact"
    if excess <= EXCESS:
        return "sound"
    return "growing" if drift_rms > GROWTH * floor_rms else "coarse"


def within(
    tolerance: float,
    *,
    nonfinite: int,
    scores: int,
    drift_relative: float,
    interval: tuple[float, float] | None,
    misplaced: bool,
    exact: bool = False,
) -> str:
    """Return whether a row is good enough, one word of `WITHIN`.

    interval: of drift_relative, where it is estimated from a sample. misplaced: whether a rotated pair is off
    by more than roundings explain. exact: whether drift is within the certified error of the reference.
    """
    if nonfinite or misplaced:
        return "no"
    low, high = interval or (drift_relative, drift_relative)
    if scores < FEWEST or low <= tolerance < high:
        return "undecided"
    return "yes" if exact or drift_relative <= tolerance else "no"


def ratio(value: float, by: float) -> float:
    """Return value / by, or nan where that is undefined."""
    return value / by if by and math.isfinite(by) else math.nan
