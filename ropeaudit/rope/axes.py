"""How pairs lie in a head, and position axes (M-RoPE): which axis rotates each pair, which axes are shifted.

Source: Qwen2-VL, arXiv 2409.12191 (contiguous sections); Qwen3-VL (interleaved sections), as in
transformers 5.23.0. Axes are t, h, w. Tokens of text have the same position on all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import UnknownName, UsageError

Layout: TypeAlias = Literal["half", "interleaved"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
LARGEST_DIM, LARGEST_BASE = 2**16, 1e100  # far beyond any model, near enough for every formula to hold
AXES = ("t", "h", "w")
ARRANGEMENTS = ("split", "interleaved")


@dataclass(frozen=True, slots=True)
class Axes:
    """sections: pairs per axis, t h w. shifted: the axes that an offset moves."""

    sections: tuple[int, int, int]
    arrangement: str = "split"
    shifted: tuple[str, ...] = AXES

    def __post_init__(self) -> None:
        if self.arrangement not in ARRANGEMENTS:
            raise UnknownName("arrangement of axes", self.arrangement, ARRANGEMENTS)
        for name in self.shifted:
            if name not in AXES:
                raise UnknownName("axis", name, AXES, "(or all)")
        if len(self.sections) != len(AXES) or min(self.sections) < 0 or not sum(self.sections):
            raise UsageError(f"mrope {self.sections} is not three counts of pairs; try --mrope 16,24,24")

    def of_pairs(self) -> NDArray[np.int64]:
        """Return the axis of every pair: 0 t, 1 h, 2 w. Shapes: -> (p,)."""
        t, h, w = self.sections
        if self.arrangement == "split":
            return np.repeat(np.arange(3), self.sections)
        axes = np.zeros(t + h + w, dtype=np.int64)
        axes[1 : 3 * h : 3] = 1
        axes[2 : 3 * w : 3] = 2
        return axes

    def moved(self) -> NDArray[np.bool_]:
        """Return which pairs are rotated by a shifted axis. Shapes: -> (p,)."""
        return np.isin(self.of_pairs(), [AXES.index(name) for name in self.shifted])

    def __str__(self) -> str:
        counts = "/".join(map(str, self.sections))
        return f"{self.arrangement} {counts} shifted {''.join(self.shifted)}"


def parse(text: str, shifted: str = "all") -> Axes:
    """Read "16,24,24" or "24,20,20:interleaved", and "all", "t", "h", "w" or several such as "hw".

    Raises: UsageError, UnknownName.
    """
    counts, _, arrangement = text.strip().partition(":")
    try:
        t, h, w = (int(word) for word in counts.split(","))
    except ValueError:
        raise UsageError(f"--mrope {text!r} is not three counts of pairs; try --mrope 16,24,24") from None
    return Axes((t, h, w), arrangement or "split", AXES if shifted == "all" else tuple(shifted))
