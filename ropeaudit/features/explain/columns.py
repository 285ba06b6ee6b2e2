"""The columns of an explanation: those of every row, and those of rows of each kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ropeaudit.audits.judging import ratio
from ropeaudit.features.explain import shares
from ropeaudit.features.explain.analysis import Explanation
from ropeaudit.features.explain.blames import Blame
from ropeaudit.features.explain.remedies import Remedy
from ropeaudit.recipes import STAGES
from ropeaudit.reports import settings
from ropeaudit.runtime.columns import table

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


def common(one: Explanation) -> dict[str, Any]:
    """Return the row of what rows of every kind have."""
    return {
        "schema": SCHEMA,
        "implementation": one.implementation,
        "dtype": one.recipe.dtype.name,
        "offset": one.offset,
        **settings.values(one),
        "sampled_positions": int(one.sample.positions.size),
        "sampled_heads": len(one.sample.heads),
        "scores": one.drift.count,
        "nonfinite": one.drift.nonfinite,
        "reference_rms": one.reference.rms,
        "reference_error": one.error,
        "drift_max": one.drift.max,
        "drift_rms": one.drift.rms,
        "drift_relative": ratio(one.drift.rms, one.reference.rms),
    }


def stage_row(one: Blame) -> dict[str, Any]:
    """Return the row of a stage."""
    return {
        "stage": one.stage,
        "format": one.format,
        "share": one.share,
        "alone_rms": one.alone,
        "without_rms": one.without,
        "removed": one.removed,
        "cause": one.cause,
    }


def pair_row(one: PairPart) -> dict[str, Any]:
    """Return the row of a pair."""
    return {
        "pair": REST if one.rest else one.index,
        "wavelength": math.nan if one.rest else float(one.result.wavelengths[one.index]),
        "part_rms": math.sqrt(one.result.parts.squares[one.index] / one.result.drift.count),
        "share": ratio(float(one.result.parts.products[one.index]), one.result.parts.whole),
        "q_norm": one.norm(0),
        "k_norm": one.norm(1),
    }


def remedy_row(one: Widening) -> dict[str, Any]:
    """Return the row of a remedy."""
    return {
        "size": len(one.remedy.widths),
        "set": changes(one.result, one.remedy),
        "left_rms": one.remedy.drift.rms,
        "left_max": one.remedy.drift.max,
        "left_relative": ratio(one.remedy.drift.rms, one.result.reference.rms),
        "left_nonfinite": one.remedy.drift.nonfinite,
        "removed": one.remedy.removed,
        "meets": "yes" if one.remedy.meets else "no",
        "tolerance": str(one.result.tolerance),
        "table_bytes": one.remedy.table_bytes,
        "multiply_bits": one.remedy.multiply_bits,
    }


KINDS: dict[str, tuple[Callable[[Explanation], Iterable[Any]], Callable[[Any], dict[str, Any]]]] = {
    "stage": (lambda result: result.blames, stage_row),
    "pair": (lambda result: (PairPart(result, i) for i in range(len(result.parts.squares))), pair_row),
    "remedy": (lambda result: (Widening(result, one) for one in result.remedies), remedy_row),
}
COLUMNS = {kind: table("explain", f"explain-{kind}") for kind in KINDS}
OWN = {kind: table(f"explain-{kind}") for kind in KINDS}


def rows(result: Explanation, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind."""
    items, row = KINDS[kind]
    return [common(result) | row(item) for item in items(result)]


def changes(results: Explanation, remedy: Remedy) -> str:
    """Return a remedy as --set takes it: angle=fp64,table=fp32."""
    wide = shares.widened(results.recipe, remedy.widths)
    texts = {s: "/".join(dict.fromkeys(f.short for f in shares.formats(wide, s))) for s in remedy.widths}
    return ",".join(f"{stage}={texts[stage]}" for stage in STAGES if stage in texts) or "nothing"
