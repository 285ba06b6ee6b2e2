"""The protocol of what can be audited: it rotates q and k and says how scores are formed of them."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FloatArray, Format

Positions = NDArray[np.int64]


class Raised(str):
    """The reason why an implementation was not measured: what its call raised."""

    __slots__ = ()


class Uncalled(Raised):
    """The reason why one of several implementations cannot be imported or called."""

    __slots__ = ()


@runtime_checkable
class Subject(Protocol):
    """A way to rotate q and k at given positions, in its own number formats.

    Scores are formed from the rotated arrays by `ropeaudit.engine.measure`: q·k in `accumulate`, times
    the softmax scale, stored in `score` (`scale_after_store`: stored before and after scaling).
    softmax, output: formats of the softmax and of the attention output.
    A subject that treats heads differently, or keys differently from queries, has a method
    `rotate_head(x, table, key, head)`, called in place of `rotate`; head is None for a single head.
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
        """The version of the library that computes."""

    def refusal(self, seq_len: int, offset: int) -> str:
        """Return why seq_len positions from offset on are refused; empty if they are not."""
        return ""

    def table(self, positions: Positions, offset: int) -> Any:
        """Return the table for positions + offset, which all heads share, such as cos and sin.

        The offset is separate because a subject may shift only some of its position axes.
        """

    def rotate(self, x: FloatArray, table: Any) -> FloatArray:
        """Return x rotated by its positions. Shapes: (s, d) -> (s, d)."""

    def distinct_positions(self, positions: Positions) -> int:
        """Return how many positions are finite and distinct after the position stage."""

    def stages(self) -> dict[str, str]:
        """Return the known stages: stage -> format name."""
