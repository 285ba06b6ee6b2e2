"""What a shift of the positions does to logits: their change, and what of it float64 shows too.

Letters: s positions, v vocabulary. Losses and divergences in nats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_ROWS = 256  # compared at once


@dataclass(slots=True)
class Change:
    """Statistics over all logits of two passes, and those of their difference from the float64 passes.

    structural: the change that float64 shows; precision: the rest; error: shifted logits minus float64's;
    base_error: those at offset 0.
    kl: KL(unshifted || shifted) by token. flips: tokens whose most likely successor becomes another one.
    loss: mean next-token cross entropy, unshifted and shifted.
    """

    count: int = 0
    tokens: int = 0
    nonfinite: int = 0
    largest: float = 0.0
    squares: float = 0.0
    structural_largest: float = 0.0
    structural_squares: float = 0.0
    precision_largest: float = 0.0
    precision_squares: float = 0.0
    error_squares: float = 0.0
    base_error_squares: float = 0.0
    reference_largest: float = 0.0
    reference_squares: float = 0.0
    kl_sum: float = 0.0
    kl_largest: float = 0.0
    flips: int = 0
    loss_sum: float = 0.0
    shifted_loss_sum: float = 0.0

    def rms(self, squares: float) -> float:
        """Return the root of a mean over all logits."""
        return math.nan if self.nonfinite or not self.count else math.sqrt(squares / self.count)

    def defined(self, value: float) -> float:
        """Return a value, or nan where some logit is not finite."""
        return math.nan if self.nonfinite else value


def compare(base: Any, shifted: Any, reference_base: Any, reference_shifted: Any, ids: list[int]) -> Change:
    """Compare logits of the same tokens at two places, in float64. Shapes: four of (s, v)."""
    total, targets, entropy = Change(), torch.tensor(ids), torch.nn.functional.cross_entropy
    for start in range(0, base.shape[0], _ROWS):
        four = (base, shifted, reference_base, reference_shifted)
        a, b, exact_a, exact_b = (logits[start : start + _ROWS].double() for logits in four)
        change, structural = b - a, exact_b - exact_a
        total.count += change.numel()
        total.tokens += change.shape[0]
        total.nonfinite += int((~torch.isfinite(a)).sum() + (~torch.isfinite(b)).sum())
        for name, values in (
            ("", change),
            ("structural_", structural),
            ("precision_", change - structural),
            ("reference_", exact_a),
        ):
            largest = max(getattr(total, f"{name}largest"), float(values.abs().max()))
            setattr(total, f"{name}largest", largest)
            setattr(total, f"{name}squares", getattr(total, f"{name}squares") + float((values**2).sum()))
        total.base_error_squares += float(((a - exact_a) ** 2).sum())
        total.error_squares += float(((b - exact_b) ** 2).sum())
        p, q = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
        kl = (p.exp() * (p - q)).sum(-1).clamp_min(0)
        total.kl_sum += float(kl.sum())
        total.kl_largest = max(total.kl_largest, float(kl.max()))
        total.flips += int((a.argmax(-1) != b.argmax(-1)).sum())
        successors = targets[start + 1 : start + _ROWS + 1]
        if count := len(successors):  # the last token has none
            total.loss_sum += float(entropy(a[:count], successors, reduction="sum"))
            total.shifted_loss_sum += float(entropy(b[:count], successors, reduction="sum"))
    return total
