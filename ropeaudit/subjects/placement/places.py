"""Where rotated pairs stand, against where their positions say: what scores cannot see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """The rotated pair that is worst placed, of q and k at one offset.

    excess: its error over what float32 positions and angles and roundings in the dtype explain; above 1 it
    is out of place. side: "q" or "k". batch, head, position (shifted), pair: which one. resembles: the recipe
    or the fault that explains it, in words; empty where nothing known does, or nothing needs to. recipe:
    whether that is a known recipe, whose behaviour has a word of its own, and not a fault. first: the lowest
    position of the call that is out of place, -1 where none is.
    """

    excess: float
    side: str
    batch: int
    head: int
    position: int
    pair: int
    resembles: str = ""
    recipe: bool = False
    first: int = -1

    @property
    def wrong_rotation(self) -> bool:
        """Whether a pair is out of place and no known recipe explains it; nan counts as out of place."""
        return not self.excess <= 1 and not self.recipe
