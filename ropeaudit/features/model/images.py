"""Rows of tokens with an image in them, for models whose positions have axes (M-RoPE).

An image of h x w tokens takes max(h, w) positions: the text behind it stands at its place in the row plus a
delta, max(h, w) - h w, which decode has to add by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_BEFORE, _BEHIND = 6, 6  # tokens of text before the image of the first row, and at least behind it
_HEIGHT, _WIDTHS = 2, (3, 2)  # tokens of the images of two rows; their deltas differ
_CHANNELS = ("in_channels", "in_chans", "num_channels")
_GIVEN = ("pixel_values", "image_grid_thw")


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a row. height, width: in tokens."""

    height: int
    width: int

    @property
    def tokens(self) -> int:
        """How many tokens stand for it."""
        return self.height * self.width

    @property
    def delta(self) -> int:
        """What is added to the place of a token behind it in the row, which gives its position."""
        return max(self.height, self.width) - self.tokens


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens. image: the one among them, if there is one."""

    ids: list[int]
    image: Image | None = None


def padded(rows: Sequence[Row]) -> tuple[Any, Any]:
    """Return ids of rows padded on the left, and a mask that is 1 for what is no padding. Shapes: (b, s)."""
    longest = max(len(row.ids) for row in rows)
    pads = [longest - len(row.ids) for row in rows]
    ids = [[row.ids[0]] * pad + row.ids for row, pad in zip(rows, pads, strict=True)]
    mask = [[0] * pad + [1] * len(row.ids) for row, pad in zip(rows, pads, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def shown(model: Any, ids: Sequence[int], skipped: int) -> list[Row]:
    """Return two rows of text with an image in each; none for a model that takes no image in this way.

    skipped: tokens at the beginning that the second row has not. Tokens that stand for images are left out.
    """
    config, taken = model.config, inspect.signature(model.forward).parameters
    if any(name not in taken for name in _GIVEN) or not hasattr(config, "image_token_id"):
        return []
    begins = [getattr(config, name, None) for name in ("vision_start_token_id", "image_start_token_id")]
    begin = next(([one] for one in begins if one not in (None, config.image_token_id)), [])
    special = {config.image_token_id, getattr(config, "video_token_id", None), *begin}
    text = [token for token in ids if token not in special]
    if len(text) < _BEFORE + _BEHIND:
        return []
    results = []
    for width, first in zip(_WIDTHS, (0, skipped), strict=True):
        image = Image(_HEIGHT, width)
        inside = [*begin, *[config.image_token_id] * image.tokens]
        results.append(Row([*text[first:_BEFORE], *inside, *text[_BEFORE:]], image))
    return results


def beside(model: Any, rows: Sequence[Row], prompt: int | None = None) -> dict[str, Any]:
    """Return what a model is given beside the tokens of rows, as far as the prompt: their images.

    Of random numbers, alike wherever an image of that size stands.
    """
    seen = [row.image for row in rows if row.image is not None]
    if not seen:
        return {}
    vision = model.config.vision_config
    side = vision.spatial_merge_size
    channels = next(n for name in _CHANNELS if (n := getattr(vision, name, None)))
    size = channels * vision.temporal_patch_size * vision.patch_size**2
    patches = [
        torch.randn(one.tokens * side**2, size, generator=torch.Generator().manual_seed(one.tokens))
        for one in seen
    ]
    grid = torch.tensor([[1, one.height * side, one.width * side] for one in seen])
    results = {"pixel_values": torch.cat(patches), "image_grid_thw": grid}
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        results["mm_token_type_ids"] = (padded(rows)[0] == model.config.image_token_id).int()[:, :prompt]
    return results
