"""The rows of a model's audit: one a dtype and offset, and below it by layer, head and pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ropeaudit.features.model.analysis import ModelAudit, Shifted
from ropeaudit.features.model.columns import COMMON, OWN
from ropeaudit.features.model.parts import HeadScores, PairDrift, Run, by_layer


def rows(
    kind: str, audit: ModelAudit, results: Sequence[Shifted], threshold: float, versions: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a kind, with the columns of `COLUMNS[kind]`."""
    for shifted in results:
        run = Run(audit, shifted, threshold, versions)
        common = COMMON.row(run)
        for part in _parts(kind, run):
            yield common | OWN[kind].row(part)


def _parts(kind: str, run: Run) -> Iterable[Any]:
    heads = run.shifted.heads
    if kind == "summary":
        return [run]
    if kind == "layer":
        return map(HeadScores, by_layer(run.shifted).values())
    if kind == "head":
        return heads
    return (PairDrift(head, pair) for head in heads for pair in range(head.pair_rms.size))
