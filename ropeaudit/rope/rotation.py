"""Which dimensions of a head form a pair: half-split or interleaved, whole or partial.

Letters: h heads, s positions, d head_dim, p = rotary_dim/2 pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from ropeaudit.rope.setting import RopeSetting

if TYPE_CHECKING:
    import torch

Sliced = TypeVar("Sliced", NDArray[Any], "torch.Tensor")  # a slice is a view of its kind


def split_pairs(x: Sliced, setting: RopeSetting) -> tuple[Sliced, Sliced]:
    """Return views of the first and the second members of all rotated pairs.

    Shapes: x (..., d) -> two of (..., p). Writing to a view writes to x.
    Source: RoFormer, arXiv 2104.09864, section 3.4 (interleaved); GPT-NeoX (half-split).
    """
    if setting.layout == "interleaved":
        return x[..., 0 : setting.rotary_dim : 2], x[..., 1 : setting.rotary_dim : 2]
    return x[..., : setting.pairs], x[..., setting.pairs : setting.rotary_dim]
