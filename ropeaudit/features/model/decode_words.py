"""How decode with a cache differs from one pass, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ropeaudit.recognition import wording
from ropeaudit.reports.numbers import short

if TYPE_CHECKING:
    from ropeaudit.features.model.decode import Decoded


def apart(change: float) -> str:
    """Return how far logits are off, in words."""
    return f"are off by up to {short(change)}" if math.isfinite(change) else "are nan or infinite in part"


def notes(one: Decoded | None) -> list[str]:
    """Return how decode differs from one pass, in words; nothing where it does not."""
    if one is None or not one.way:
        return []
    seen = "in" if one.diagnosis else "seen in q or k of"
    layer = "" if one.layer is None else f", first {seen} layer {one.layer}"
    begin = f"decode of a row {one.way}"
    if not one.differs:
        both = one.diagnosis is not None and not one.diagnosis.where.sides
        return [
            f"{begin} rotates otherwise than one pass over its tokens, {wording.sentence(one.diagnosis)}; "
            + "scores depend on distances, and " * both
            + "float64 logits stay"
        ]
    return [
        f"{begin} is not one pass over its tokens: float64 logits {apart(one.change)}, from position "
        f"{one.position} on{layer}"
    ]
