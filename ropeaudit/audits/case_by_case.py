"""Work through cases: q and k of each when its turn comes, and the progress of work that has steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from ropeaudit.audits.arguments import OnProgress
from ropeaudit.audits.cases import Case, positions_fit
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import RopeSetting


def loaded(cases: Iterable[Case], offsets: Sequence[int]) -> Iterator[tuple[Case, Inputs, RopeSetting]]:
    """Yield each case with its q and k and its setting. Raises: BadShape where an offset leads too far."""
    for case in cases:
        inputs, setting = case.load()
        positions_fit(offsets, inputs.q.shape[1])
        yield case, inputs, setting


def steps(on_progress: OnProgress, count: int) -> Iterator[OnProgress]:
    """Yield, for each of `count` steps of equal size in turn, what takes the share of it that is done.

    >>> shares = []
    >>> for step in steps(shares.append, 2):
    ...     step(0.5)
    >>> shares
    [0.25, 0.75]
    """

    def step(start: int, share: float) -> None:
        on_progress((start + share) / count)

    return (functools.partial(step, start) for start in range(count))
