"""The RoPE setting of a case: that of its model, with what is given by hand in its place."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, TypeVar

from ropeaudit.errors import UsageError
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.setting import Layout, RopeSetting

if TYPE_CHECKING:
    from ropeaudit.rope.hf_config import ModelRope

T = TypeVar("T")
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30  # squares of scores neither overflow nor vanish


def resolve(
    default: RopeSetting,
    seq_len: int,
    *,
    head_dim: int | None,
    rotary_dim: int | None,
    base: float | None,
    layout: Layout | None,
    scale: float | None,
    scaling: str | None,
    clip: float | None,
) -> RopeSetting:
    """Return a setting for `seq_len` positions: `default`, with what is given in its place.

    A rotary_dim of the whole head follows head_dim, and a scale of 1/sqrt(head_dim) does; with another
    scaling so does one that holds the old scaling's mscale. Raises: UsageError, BadShape.
    """
    if scale is not None and not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise UsageError(
            f"--scale {scale!r} is not a number from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}; "
            "try --scale 0.125"
        )
    chosen = default.scaling if scaling is None else scalings.parse(scaling)
    follows = math.isclose(default.scale, 1 / math.sqrt(default.head_dim), rel_tol=1e-12)
    if scaling is not None and default.scaling.mscale_all_dim:
        follows = True
    return RopeSetting.of(
        _first(head_dim, default.head_dim),
        _first(rotary_dim, None if default.rotary_dim == default.head_dim else default.rotary_dim),
        _first(base, default.base),
        layout or default.layout,
        _first(scale, None if follows else default.scale),
        chosen,
        chosen.length_for(seq_len),
        _first(clip, default.clip),
    )


def _first(given: T | None, default: T) -> T:
    return default if given is None else given


def model(name: str | None, config: str | None, base: float | None) -> ModelRope | None:
    """Return a named model, or that of a config; None without either. Raises: UsageError, BadInput."""
    if name is not None and config is not None:
        raise UsageError("--model and --config both name a model; give one of them")
    if name is not None:
        from ropeaudit.rope import presets  # in-function: most audits need neither

        return presets.named(name)
    return None if config is None else _config(config, base, _changed(config))


@functools.lru_cache(maxsize=64)
def _config(path: str, base: float | None, changed: int) -> ModelRope:
    """Read a config once, until it is changed."""
    from ropeaudit.rope import hf_config

    return hf_config.read(path, base=base)


def _changed(path: str) -> int:
    """Return when a file was last changed, in nanoseconds; 0 where that cannot be told."""
    try:
        return os.stat(os.path.join(path, "config.json") if os.path.isdir(path) else path).st_mtime_ns
    except (OSError, ValueError):
        return 0
