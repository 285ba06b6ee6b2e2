"""The rotary embedding over rows and columns of patches that a vision part of a config.json declares.

Rows turn the first half of a head's pairs, columns the second, each by base^(-2j / half of head_dim).
Source: transformers 5.23.0, models/qwen2_vl, Qwen2VLVisionRotaryEmbedding, and its like (read).
"""

from __future__ import annotations

from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope import axial, config_parts, hf_json
from ropeaudit.rope.axial import AxialRope
from ropeaudit.rope.config_parts import Part
from ropeaudit.rope.hf_json import count, first, needed, number

_HEADS, _WIDTHS = ("num_heads", *hf_json.HEADS), ("embed_dim", *hf_json.HIDDEN)
_PATCHES = 32  # along an axis, where the config does not say how large images are
_MOST = 128  # patches along an axis that are measured


def axial_rope_named(name: str) -> AxialRope:
    """Return the axes of a preset, a .toml file, or a vision part, FILE#PART.

    Raises: UnknownName, BadInput.
    """
    if "#" not in name:
        return axial.named(name)
    file, part = config_parts.path_and_part(name)
    try:
        return of_part(config_parts.named(hf_json.load(file), part), name)
    except RopeAuditError as error:
        raise BadInput(error.typed, where=repr(name)) from None


def of_part(one: Part, name: str) -> AxialRope:
    """Return the axes of a vision part. Raises: BadInput for unsupported axes or a missing size."""
    if not one.axial or one.unjudged:
        raise BadInput(one.unjudged or "it rotates by the index of a token; leave out --axes")
    heads = needed(one.given, _HEADS)
    head_dim = count(one.given, ["head_dim"]) or needed(one.given, _WIDTHS, 2**24) // heads
    key, theta = first({**one.given, **hf_json.rope_dict(one.given)}, hf_json.BASES)
    base = 10000.0 if theta is None else number(key, theta)
    table = {"axes": ["h", "w"], "dims": head_dim // 2, "base": base, "head_dim": head_dim, "heads": heads}
    return axial.of_table(name, table)


def patches(one: Part) -> int:
    """Return the number of patches along an axis: image_size / patch_size, or 32 if not given."""
    image, patch = (count(one.given, [key]) for key in ("image_size", "patch_size"))
    return max(1, min(image // patch, _MOST)) if image and patch else _PATCHES
