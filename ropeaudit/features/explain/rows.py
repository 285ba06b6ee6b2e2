"""The rows of an explanation: by stage, frequency pair, position, head or remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ropeaudit.features.explain.analysis import Explanation
from ropeaudit.features.explain.columns import COMMON, OWN, HeadPart, PairPart, QueriesPart, Widening
from ropeaudit.inputs import masks

_BINS, _MOST_QUERIES = 32, 64


def rows(result: Explanation, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind, with the columns of `COLUMNS[kind]`."""
    common = COMMON.row(result)
    return [common | OWN[kind].row(part) for part in _PARTS[kind](result)]


def own_columns(kind: str) -> list[str]:
    """Return the columns that tell rows apart, without the setting."""
    return ["implementation", "dtype", "offset", *OWN[kind]]


def _queries(result: Explanation) -> Iterator[QueriesPart]:
    size, heads = result.sample.positions.size, len(result.sample.heads)
    seen = np.arange(1, size + 1) if result.case.mask == "causal" else np.full(size, size)
    bins = size if size <= _MOST_QUERIES else _BINS
    for indices in np.array_split(np.arange(size), bins):
        yield QueriesPart(result, indices, seen[indices].sum() * heads)


def _heads(result: Explanation) -> Iterator[HeadPart]:
    count = masks.count(result.case.mask, result.sample.positions.size)
    return (HeadPart(result, head, squares, count) for head, squares in result.parts.heads.items())


_PARTS: Mapping[str, Callable[[Explanation], Iterable[Any]]] = {
    "stage": lambda result: result.blames,
    "pair": lambda result: (PairPart(result, index) for index in range(len(result.parts.squares))),
    "position": _queries,
    "head": _heads,
    "remedy": lambda result: (Widening(result, one) for one in result.remedies),
}
