"""The rows of an explanation: by stage, frequency pair, position, head or remedy, and their columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ropeaudit.audits import records
from ropeaudit.audits.records import ratio
from ropeaudit.features.explain import shares
from ropeaudit.features.explain.analysis import Explanation
from ropeaudit.features.explain.remedies import Remedy
from ropeaudit.inputs import masks
from ropeaudit.recipes import STAGES
from ropeaudit.reports import settings

SCHEMA = 1
REST = "sum and store"  # what is of no pair
_BINS, _MOST_QUERIES = 32, 64

_NAMES = ("subject", "dtype", "offset")
# column -> what it holds, in rows of every kind
_COMMON: dict[str, str] = {
    "schema": "version of this list of columns",
    "subject": records.COLUMNS["subject"],
    "dtype": "number format of the model, which the recipe applies to its stages",
    "offset": "integer added to every position, in tokens",
    **settings.COLUMNS,
    "sampled_positions": "how many positions were looked at",
    "sampled_heads": "how many query heads were looked at",
    "scores": "how many scores were looked at",
    "nonfinite": "how many of them are nan or infinite in the recipe as it is",
    "reference_rms": "RMS of the exact scores",
    "reference_error": "certified bound on the error of the exact scores, in score units",
    "drift_max": "largest |score - exact score| of the recipe as it is",
    "drift_rms": "root mean square of the same",
    "drift_relative": "drift_rms / reference_rms",
}
_PART: dict[str, str] = {
    "part_rms": "root mean square of the row's part of the drift",
    "share": "its share of the mean square drift; shares add up to 1",
}
_OWN: dict[str, dict[str, str]] = {
    "stage": {
        "stage": "step of the computation; float64: what float64 in every stage leaves",
        "format": "number format of the stage; computed/stored where they differ",
        "share": "share of the mean square drift: Shapley value over all subsets of the stages",
        "alone_rms": "RMS drift with this stage rounded and all others in float64",
        "without_rms": "RMS drift with this stage in float64 and all others rounded",
        "removed": "1 - without_rms / drift_rms",
        "cause": "aliasing, sensitivity, quantisation, cancellation or overflow (docs/causes.md)",
    },
    "pair": {
        "pair": "index of the frequency pair, the fastest first; sum and store: what is of no pair",
        "wavelength": "tokens of a full turn",
        **_PART,
        "q_norm": "mean norm of the pair of q (frequency usage, arXiv 2410.06205)",
        "k_norm": "mean norm of the pair of k",
    },
    "position": {
        "first_query": "first query of the row, unshifted",
        "last_query": "last query of the row, unshifted",
        **_PART,
    },
    "head": {"head": "query head", **_PART},
    "remedy": {
        "size": "how many stages are kept wider",
        "set": "which, as --set takes them",
        "left_rms": "RMS drift that is left",
        "left_max": "largest |drift| that is left",
        "left_relative": "left_rms / reference_rms",
        "left_nonfinite": "how many scores are still nan or infinite",
        "removed": "1 - left_rms / drift_rms",
        "meets": "yes or no: whether that meets the tolerance",
        "tolerance": "what is to be met",
        "table_bytes": "bytes of cos and sin of all positions from 0 to the last",
        "multiply_bits": "width of the widest multiplication that is widened; 0: none is",
    },
}
KINDS = tuple(_OWN)
COLUMNS: dict[str, dict[str, str]] = {kind: _COMMON | own for kind, own in _OWN.items()}


def rows(results: Explanation, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind, with the columns of `COLUMNS[kind]`."""
    common = _common(results)
    return [common | row for row in _ROWS[kind](results)]


def own_columns(kind: str) -> list[str]:
    """Return the columns that tell rows apart, without the setting."""
    return [*_NAMES, *_OWN[kind]]


def _common(results: Explanation) -> dict[str, Any]:
    values = {
        "schema": SCHEMA,
        "subject": results.subject,
        "dtype": results.recipe.dtype.name,
        "offset": results.offset,
        **settings.row(results),
        "sampled_positions": int(results.sample.positions.size),
        "sampled_heads": len(results.sample.heads),
        "scores": results.drift.count,
        "nonfinite": results.drift.nonfinite,
        "reference_rms": results.reference.rms,
        "reference_error": results.error,
        "drift_max": results.drift.max,
        "drift_rms": results.drift.rms,
        "drift_relative": ratio(results.drift.rms, results.reference.rms),
    }
    return {name: values[name] for name in _COMMON}


def _stages(results: Explanation) -> Iterator[dict[str, Any]]:
    for one in results.blames:
        yield {
            "stage": one.stage,
            "format": one.format,
            "share": one.share,
            "alone_rms": one.alone,
            "without_rms": one.without,
            "removed": one.removed,
            "cause": one.cause,
        }


def _pairs(results: Explanation) -> Iterator[dict[str, Any]]:
    parts, count = results.parts, results.drift.count
    norms = parts.norms / (len(results.sample.heads) * results.sample.positions.size)
    for index, (squares, product) in enumerate(zip(parts.squares, parts.products, strict=True)):
        last = index == len(results.wavelengths)
        yield {
            "pair": REST if last else index,
            "wavelength": math.nan if last else float(results.wavelengths[index]),
            "part_rms": math.sqrt(squares / count),
            "share": ratio(float(product), parts.whole),
            "q_norm": math.nan if last else float(norms[0, index]),
            "k_norm": math.nan if last else float(norms[1, index]),
        }


def _positions(results: Explanation) -> Iterator[dict[str, Any]]:
    queries, size = results.parts.queries, results.sample.positions.size
    seen = np.arange(1, size + 1) if results.case.mask == "causal" else np.full(size, size)
    bins = size if size <= _MOST_QUERIES else _BINS
    for some in np.array_split(np.arange(size), bins):
        squares = float(queries[some].sum())
        yield {
            "first_query": int(results.sample.positions[some[0]]),
            "last_query": int(results.sample.positions[some[-1]]),
            "part_rms": math.sqrt(squares / (seen[some].sum() * len(results.sample.heads))),
            "share": ratio(squares, results.parts.whole),
        }


def _heads(results: Explanation) -> Iterator[dict[str, Any]]:
    count = masks.count(results.case.mask, results.sample.positions.size)
    for head, squares in results.parts.heads.items():
        yield {
            "head": head,
            "part_rms": math.sqrt(squares / count),
            "share": ratio(squares, results.parts.whole),
        }


def _remedies(results: Explanation) -> Iterator[dict[str, Any]]:
    for one in results.remedies:
        yield {
            "size": len(one.widths),
            "set": changes(results, one),
            "left_rms": one.drift.rms,
            "left_max": one.drift.max,
            "left_relative": ratio(one.drift.rms, results.reference.rms),
            "left_nonfinite": one.drift.nonfinite,
            "removed": one.removed,
            "meets": "yes" if one.meets else "no",
            "tolerance": str(results.tolerance),
            "table_bytes": one.table_bytes,
            "multiply_bits": one.multiply_bits,
        }


def changes(results: Explanation, remedy: Remedy) -> str:
    """Return a remedy as --set takes it: angle=fp64,table=fp32."""
    wide = shares.widened(results.recipe, remedy.widths)
    texts = {s: "/".join(dict.fromkeys(f.short for f in shares.formats(wide, s))) for s in remedy.widths}
    return ",".join(f"{stage}={texts[stage]}" for stage in STAGES if stage in texts) or "nothing"


_ROWS: Mapping[str, Callable[[Explanation], Iterator[dict[str, Any]]]] = {
    "stage": _stages,
    "pair": _pairs,
    "position": _positions,
    "head": _heads,
    "remedy": _remedies,
}
