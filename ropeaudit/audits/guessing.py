"""How long a cell takes one core, guessed from sizes: for plans, shares of work and warnings.

It changes no result. The rates were measured on a server's core of 2024; what is given is meant to be within
a factor of two on one like it. Own code is guessed as a recipe is: what it does is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits.cases import Outline
from ropeaudit.engine.plan import TILE_COLUMNS
from ropeaudit.inputs import masks

START_SECONDS, CELL_SECONDS = 0.25, 1e-3
_SCORE, _ATTENTION = 1.4e-8, 5e-8  # seconds a score that is formed, those that a mask hides in a tile too
_ROTATED = 8e-9  # seconds an element of q and k
_STEP = 2e-8  # seconds a product that is added on its own, to a narrow accumulator
_SAMPLED = 3e-7  # seconds a dim of a sampled score: its table, its rotation, its reference
_TURN = 3e-9  # seconds an element of k that is rotated again
_GENERATED = 9e-9  # seconds an element of q and k
_CHOSEN = 4e-6  # seconds a position to sample among


def cell_seconds(
    sizes: Outline,
    head_dim: int,
    mask: masks.Mask,
    stages: Mapping[str, str],
    sample: int | None = None,
    attention: bool = False,
    cells: int = 1,
    turns: int = 0,
) -> float:
    """Return a guess of one core's time for a subject at an offset.

    stages: stage -> format name. cells: how many there are of the same q and k, which are generated once.
    turns: how many times its stored keys are rotated again.
    """
    elements = (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim
    each = CELL_SECONDS + _GENERATED * elements / cells
    if sample is not None:
        return each + _CHOSEN * sizes.seq_len / cells + (_SAMPLED + _TURN * turns) * head_dim * sample
    score, accumulate = _SCORE + _ATTENTION * attention, stages.get("accumulate")
    if accumulate and parse(accumulate).precision < FP32.precision:
        score += _STEP * head_dim * (1 + attention)  # its scores are formed twice
    each += _TURN * turns * sizes.kv_heads * sizes.seq_len * head_dim
    return each + _ROTATED * elements + score * sizes.heads * _formed(mask, sizes.seq_len)


def drawing_share(sizes: Outline, head_dim: int, sample: int, cells: int) -> float:
    """Return about which share of the time that the cells of a sampled case take goes into drawing it."""
    drawing = _GENERATED * (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim + _CHOSEN * sizes.seq_len
    return drawing / (drawing + _SAMPLED * head_dim * sample * cells)


def _formed(mask: masks.Mask, seq_len: int) -> int:
    """Return about how many scores of a head the tiles hold that a mask does not hide whole."""
    if mask == "full":
        return seq_len**2
    half = seq_len * min(seq_len, TILE_COLUMNS) // 2  # what the tiles at one edge hide
    return min(masks.count("causal", seq_len) + half, masks.count(mask, seq_len) + 3 * half)
