"""What can be audited: anything that rotates q and k and defines how it forms scores."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format

Positions = NDArray[np.int64]


class Raised(str):
    """Why an implementation was not measured: in the words of what its call raised."""

    __slots__ = ()


class Uncalled(Raised):
    """The same of one among several that cannot be imported, or called in any way."""

    __slots__ = ()


@runtime_checkable
class Subject(Protocol):
    """A way to rotate q and k at given positions, in its own number formats.

    Scores are formed from the rotated arrays by `ropeaudit.engine.measure`: q·k in `accumulate`, times
    the softmax scale, stored in `score` (`scale_after_store`: stored before and after scaling).
    softmax, output: formats of the softmax and of what it gives.
    Code may tell heads apart, and keys may be stored otherwise than q. Such a subject has another method,
    `rotate_head(x, table, key, head)`, which is called in place of `rotate`; head: None for a single one.
    Shapes: (s, d) -> (s, d).
    """

    name: str
    dtype: Format
    backend: str
    device: str
    input: Format
    accumulate: Format
    score: Format
    scale_after_store: bool
    softmax: Format
    output: Format
    narrowest: int

    @property
    def version(self) -> str:
        """That of what executes the subject."""

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why seq_len positions from offset on are refused; empty if they are not."""
        return ""

    def table(self, positions: Positions, offset: int) -> Any:
        """Return what rotating at positions + offset needs and all heads share.

        They are separate because a subject may shift some of its position axes only.
        """

    def rotate(self, x: FloatArray, table: Any) -> FloatArray:
        """Return x rotated by its positions. Shapes: (s, d) -> (s, d)."""

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions are finite and distinct after the position stage."""

    def stages(self) -> dict[str, str]:
        """Return stage -> format name, as far as it is known."""
