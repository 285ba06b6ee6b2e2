"""The columns of an explanation: those of every row, and those of rows of each kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ropeaudit.audits import records
from ropeaudit.audits.judging import ratio
from ropeaudit.features.explain import shares
from ropeaudit.features.explain.analysis import Explanation
from ropeaudit.features.explain.blames import Blame
from ropeaudit.features.explain.remedies import Remedy
from ropeaudit.recipes import STAGES
from ropeaudit.reports import settings
from ropeaudit.runtime.columns import Column, Columns, Declare

SCHEMA = 1
REST = "accumulation and output rounding"  # what is of no pair


@dataclass(frozen=True, slots=True)
class PairPart:
    """What a frequency pair adds to the drift; behind the last pair stands what is of none."""

    result: Explanation
    index: int

    @property
    def rest(self) -> bool:
        """Whether it is what is of no pair."""
        return self.index == len(self.result.wavelengths)

    def norm(self, which: int) -> float:
        """Return the mean norm of the pair of q (0) or k (1)."""
        if self.rest:
            return math.nan
        vectors = len(self.result.sample.heads) * self.result.sample.positions.size
        return float(self.result.parts.norms[which, self.index] / vectors)


@dataclass(frozen=True, slots=True)
class Widening:
    """A remedy, beside what it is to cure."""

    result: Explanation
    remedy: Remedy


of_case = Declare[Explanation]()
of_stage = Declare[Blame]()
of_pair = Declare[PairPart]()
of_remedy = Declare[Widening]()
_SHARE = "its share of the mean square drift; shares add up to 1"
_PART = "root mean square of the row's part of the drift"


class ExplainColumns:
    """The columns that rows of every kind have."""

    schema = of_case.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    implementation = of_case.like(records.COLUMNS["implementation"])
    dtype = of_case.like(records.COLUMNS["dtype"], lambda one: one.recipe.dtype.name)
    offset = of_case.like(records.COLUMNS["offset"])
    settings = settings.COLUMNS
    sampled_positions: int = of_case(
        "how many positions were looked at", lambda one: int(one.sample.positions.size)
    )
    sampled_heads: int = of_case("how many query heads were looked at", lambda one: len(one.sample.heads))
    scores = of_case.like(
        records.COLUMNS["scores"], lambda one: one.drift.count, "how many scores were looked at"
    )
    nonfinite = of_case.like(
        records.COLUMNS["nonfinite"],
        lambda one: one.drift.nonfinite,
        "how many of them are nan or infinite in the recipe as it is",
    )
    reference_rms = of_case.like(records.COLUMNS["reference_rms"], lambda one: one.reference.rms)
    reference_error = of_case.like(records.COLUMNS["reference_error"], lambda one: one.error)
    drift_max = of_case.like(
        records.COLUMNS["drift_max"],
        lambda one: one.drift.max,
        "largest |score - exact score| of the recipe as it is",
    )
    drift_rms = of_case.like(
        records.COLUMNS["drift_rms"], lambda one: one.drift.rms, "root mean square of the same"
    )
    drift_relative = of_case.like(
        records.COLUMNS["drift_relative"], lambda one: ratio(one.drift.rms, one.reference.rms)
    )


class StageColumns:
    """The columns of rows by stage."""

    stage: str = of_stage("step of the computation; float64: what float64 in every stage leaves", shown=True)
    format: str = of_stage(
        "number format of the stage; computed/stored where they differ", shown=True, leaves=3
    )
    share: float = of_stage(
        "share of the mean square drift: Shapley value over all subsets of the stages",
        style="part",
        shown=True,
    )
    alone_rms: float = of_stage(
        "RMS drift with this stage rounded and all others in float64",
        lambda one: one.alone,
        unit="score",
        shown=True,
        leaves=2,
    )
    without_rms: float = of_stage(
        "RMS drift with this stage in float64 and all others rounded",
        lambda one: one.without,
        unit="score",
        shown=True,
        leaves=1,
    )
    removed: float = of_stage("1 - without_rms / drift_rms", style="part", shown=True)
    cause: str = of_stage(
        "aliasing, sensitivity, quantisation, cancellation or overflow (docs/causes.md)", shown=True
    )


class PairColumns:
    """The columns of rows by frequency pair."""

    pair: str = of_pair(
        "index of the frequency pair, the fastest first; or accumulation and output rounding, of no pair",
        lambda one: REST if one.rest else one.index,
        shown=True,
    )
    wavelength: float = of_pair(
        "tokens of a full turn",
        lambda one: math.nan if one.rest else float(one.result.wavelengths[one.index]),
        unit="tokens",
        shown=True,
    )
    part_rms: float = of_pair(
        _PART,
        lambda one: math.sqrt(one.result.parts.squares[one.index] / one.result.drift.count),
        unit="score",
        shown=True,
    )
    share: float = of_pair(
        _SHARE,
        lambda one: ratio(float(one.result.parts.products[one.index]), one.result.parts.whole),
        style="part",
        shown=True,
    )
    q_norm: float = of_pair(
        "mean norm of the pair of q (frequency usage, arXiv 2410.06205)",
        lambda one: one.norm(0),
        shown=True,
        leaves=2,
    )
    k_norm: float = of_pair("mean norm of the pair of k", lambda one: one.norm(1), shown=True, leaves=1)


class RemedyColumns:
    """The columns of rows by remedy."""

    size: int = of_remedy("how many stages are kept wider", lambda one: len(one.remedy.widths), shown=True)
    set: str = of_remedy(
        "which, as --set takes them", lambda one: changes(one.result, one.remedy), shown=True
    )
    left_rms: float = of_remedy(
        "RMS drift that is left", lambda one: one.remedy.drift.rms, unit="score", shown=True
    )
    left_max: float = of_remedy(
        "largest |drift| that is left", lambda one: one.remedy.drift.max, unit="score"
    )
    left_relative: float = of_remedy(
        "left_rms / reference_rms",
        lambda one: ratio(one.remedy.drift.rms, one.result.reference.rms),
        style="part",
    )
    left_nonfinite: int = of_remedy(
        "how many scores are still nan or infinite", lambda one: one.remedy.drift.nonfinite
    )
    removed: float = of_remedy(
        "1 - left_rms / drift_rms", lambda one: one.remedy.removed, style="part", shown=True
    )
    meets: str = of_remedy(
        "yes or no: whether that meets the tolerance",
        lambda one: "yes" if one.remedy.meets else "no",
        shown=True,
    )
    tolerance: str = of_remedy("what is to be met", lambda one: str(one.result.tolerance), style="setting")
    table_bytes: int = of_remedy(
        "bytes of cos and sin of all positions from 0 to the last",
        lambda one: one.remedy.table_bytes,
        unit="bytes",
        shown=True,
        leaves=2,
    )
    multiply_bits: int = of_remedy(
        "width of the widest multiplication that is widened; 0: none is",
        lambda one: one.remedy.multiply_bits,
        unit="bits",
        shown=True,
        leaves=1,
    )


COMMON = of_case.columns(ExplainColumns)
OWN: dict[str, Columns[Any]] = {
    "stage": of_stage.columns(StageColumns),
    "pair": of_pair.columns(PairColumns),
    "remedy": of_remedy.columns(RemedyColumns),
}
KINDS = tuple(OWN)
COLUMNS: dict[str, dict[str, Column[Any]]] = {kind: {**COMMON, **own} for kind, own in OWN.items()}


def changes(results: Explanation, remedy: Remedy) -> str:
    """Return a remedy as --set takes it: angle=fp64,table=fp32."""
    wide = shares.widened(results.recipe, remedy.widths)
    texts = {s: "/".join(dict.fromkeys(f.short for f in shares.formats(wide, s))) for s in remedy.widths}
    return ",".join(f"{stage}={texts[stage]}" for stage in STAGES if stage in texts) or "nothing"
