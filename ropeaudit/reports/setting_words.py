"""A RoPE setting in words."""

from __future__ import annotations

from ropeaudit.reports.numbers import setting as shown
from ropeaudit.rope import scaled
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting

_ROTATED = {"half": "dims i and i + {half} a pair", "interleaved": "dims 2i and 2i + 1 a pair"}


def setting_words(setting: RopeSetting, axes: Axes | None, maximum: int | None) -> str:
    """Return what a setting is: "base 500000, head_dim 128, all dims rotated, ..."."""
    dims = "all dims" if setting.rotary_dim == setting.head_dim else f"{setting.rotary_dim} dims"
    parts = [
        f"base {shown(setting.base)}",
        f"head_dim {setting.head_dim}",
        f"{dims} rotated ({_ROTATED[setting.layout].format(half=setting.pairs)})",
        scaling_words(setting.scaling),
        f"softmax scale {shown(setting.scale)}",
        f"{maximum:,} positions" if maximum else "nothing says for how many positions",
    ]
    if axes is not None:
        t, h, w = axes.sections
        parts.insert(4, f"sections of {t} pairs for time, {h} for height, {w} for width ({axes.arrangement})")
    return ", ".join(parts)


def scaling_words(scaling: Scaling) -> str:
    """Return a scaling and its numbers, lists by their range."""
    if scaling.kind == "default":
        return "no scaling"
    values = {}
    for name, value in scaling.parameters().items():
        values[name] = f"{shown(min(value))} to {shown(max(value))}" if isinstance(value, tuple) else value
    inner = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
    factor = scaled.attention_factor(scaling)
    times = f"; cos and sin times {shown(factor)}" if factor != 1 else ""
    return f"{scaling.kind} scaling ({inner}{times})"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shown(value)
