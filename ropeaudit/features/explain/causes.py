"""The cause of a stage's drift in a word; docs/causes.md has an example of each."""

from __future__ import annotations

import math

# stage -> why it drifts. Two things override it: any score that is not finite is overflow, and an accumulator
# is quantisation unless the terms of a score are more than CANCELS times what the sum of as many
# independent terms would leave of them.
CAUSES: dict[str, str] = {
    "position": "aliasing",  # distinct positions become the same number
    "frequency": "sensitivity",  # a position multiplies the relative error of a frequency
    "angle": "sensitivity",  # the spacing of angles grows with the position
    "trig": "quantisation",
    "table": "quantisation",
    "input": "quantisation",
    "rotation": "quantisation",
    "output": "quantisation",
    "accumulate": "cancellation",
    "score": "quantisation",
}
CANCELS = 3.0


def cause(stage: str, overflows: bool, cancelling: float, head_dim: int) -> str:
    """Return why a stage drifts.

    overflows: whether it makes scores infinite or nan, or its widening alone repairs them. cancelling: RMS
    of the summed |terms| of a score over the RMS score; independent terms have (2/pi) sqrt(head_dim).
    """
    if overflows:
        return "overflow"
    independent = 2 / math.pi * math.sqrt(head_dim)
    if stage == "accumulate" and not cancelling > CANCELS * independent:
        return "quantisation"
    return CAUSES[stage]
