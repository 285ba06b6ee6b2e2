"""How far a recipe holds within the positions that a model is made for: `limit`, as a check."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import Finding, Status
from ropeaudit.features.check.checked import Progress
from ropeaudit.features.limit import analysis as limit_analysis
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.features.limit.sentences import sentence
from ropeaudit.features.limit.tolerance import TOLERANCE, tolerance
from ropeaudit.recipes import Resolved

CHECK, UNIT = "limit", "times its maximum"  # measured is at least what is allowed
_STATUS: dict[str, Status] = {
    "holds": "pass",
    "unseen": "pass",
    "fails": "fail",
    "partly": "info",
    "unjudged": "info",
}


def findings(
    case: Case, recipes: Sequence[Resolved], up_to: int | None, progress: Progress
) -> Iterator[Finding]:
    """Yield how far each recipe holds. up_to: number of positions that are looked at, None for `limit`'s.

    measured is `margin` of `ropeaudit limit`: nan where there is no maximum. Raises: see `limit`.
    """
    seq_len = case.outline()[0].seq_len
    largest = limit_analysis.UP_TO if up_to is None else max(0, up_to - seq_len)
    accepted = [tolerance(TOLERANCE)]
    for limit in limit_analysis.run([case], recipes, accepted, largest, None, progress):
        margin = limit.margin
        allowed, unit = (1.0, UNIT) if limit.within is not None else (math.nan, "")
        yield Finding(
            CHECK,
            _STATUS[limit.standing],
            sentence(limit).rstrip("."),
            measured=math.nan if margin is None else margin,
            allowed=allowed,
            unit=unit,
            where=f"{limit.at_zero.implementation}: {_where(limit)}",
        )


def _where(limit: Limit) -> str:
    """Return up to which position nothing fails, and what that is worth."""
    failing = limit.last_position(limit.first_failure_seen)
    if limit.standing == "fails" and failing is not None:
        return f"fails at position {failing:,}"
    if limit.standing == "holds":
        return f"proved to position {limit.last_position(limit.proved_up_to):,}"
    seen = limit.last_position(max(limit.boundary.proved, limit.boundary.held_up_to))
    return f"no failure seen to position {seen:,}"
