"""Keys of a config.json about RoPE that have no effect on the rotary embedding.

A key is used if its removal, or another value, changes the result or makes the config refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP64
from ropeaudit.errors import RopeAuditError
from ropeaudit.rope import config_parts, hf_config, hf_json, scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.model_types import takes_fraction
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting

Path = tuple[str, ...]
# names that are about positions and hold neither "rope" nor "rotary"
_ABOUT = (
    *("partial_rotary_factor", "original_max_position_embeddings", "max_position_embeddings", "n_positions"),
    *("head_dim", "global_head_dim", "query_pre_attn_scalar", "attention_multiplier", "alibi"),
    *("position_embedding_type", "use_logn_attn", "attn_temperature_tuning"),
)
_MISSPELT = 0.9  # of difflib's likeness: hed_dim is head_dim, v_head_dim (0.89) is another key
# which layers rotate: `rope.layer_kinds` reads these
LAYERS = ("no_rope_layers", "no_rope_layer_interval", "layer_types", "sliding_window_pattern")
_BASES = (*hf_json.BASES, hf_json.LOCAL_BASE)
_AGREES = {**dict.fromkeys(hf_json.FRACTIONS, 1), "rotary": True}  # key -> what it says of all models
_ROUNDING = 1e-12  # of float64, in which frequencies are compared
_WHY = {
    "finetuned": "whether weights were trained with the scaling; that changes no number",
    "llama_4_scaling_beta": "queries grow with their position, beside RoPE; not audited",
}


@dataclass(frozen=True, slots=True)
class UnusedKey:
    """A key without effect. place: the keys of the objects around it, and its name.

    contradicts: the value that was used instead of it, empty if there is none.
    """

    place: Path
    value: Any
    contradicts: str = ""

    def __str__(self) -> str:
        """Return the key, its value, and why it is not used, if known."""
        reason = f"{self.contradicts} is used" if self.contradicts else _WHY.get(self.place[-1], "")
        return f"{'.'.join(self.place)} = {hf_json.shown(self.value)}" + (f" ({reason})" if reason else "")


def unused_keys(config: Mapping[str, Any], base: float | None = None, part_name: str = "") -> list[UnusedKey]:
    """Return the keys about RoPE without effect. part_name: the path of a part. Raises: BadInput."""
    model = hf_config.from_config(config, "model", "config", base, part_name)
    one = config_parts.named(config, part_name)
    part, own_type = one.given, {"model_type": one.model} if one.path else {}
    lengths = _lengths(model.layers.values())
    reading = _effect(model, lengths)

    def same(path: Path, value: Any) -> bool:
        """Return whether another value has no effect; None removes the key."""
        changed = copy.deepcopy({**part, **own_type})
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        if value is None:
            del inner[path[-1]]
        try:
            return _effect(hf_config.from_config(changed, "model", "config", base), lengths) == reading
        except RopeAuditError:
            return False

    unused = [key for key in _keys(part) if all(same(key[0], other) for other in (None, *_changed(key[1])))]
    of_others = {path for path, _ in unused if len(path) == 3 and path[1] not in model.layers}
    kind = one.model.removesuffix("_text")

    def used_instead(path: Path) -> list[float]:
        return [] if path in of_others else _values_used(path[-1], part, model, kind)

    found = [(path, value, used_instead(path)) for path, value in unused]
    every = [other for other in config_parts.parts(config) if not other.instead and not other.unjudged]
    for path, value in _stray_keys(config, [part, *(other.given for other in every)], ()):
        if config is not part and value != part.get(path[-1]):  # deeper ones are of images or sound
            found.append((path, value, used_instead(path) if len(path) == 1 else []))
    keys = []
    for path, value, used in found:
        if used and isinstance(value, (int, float)) and not isinstance(value, bool):
            if value not in used:
                keys.append(UnusedKey(path, value, f"{used[0]:g}"))
        elif path == ("head_dim",) and value == part.get("qk_rope_head_dim"):
            continue  # transformers writes it so for latent attention
        elif path[0] not in model.unjudged and (used or not _says_rope_alone(path[-1], value)):
            keys.append(UnusedKey(path, value))
    return keys


def idle_scalings(model: ModelRope) -> dict[str, Scaling]:
    """Return layer type -> scaling without effect up to the served length.

    Frequencies, factors and that length are those without a scaling, but for rounding.
    """
    idle: dict[str, Scaling] = {}
    if model.maximum != model.declared:
        return idle
    lengths = [n for n in _lengths(model.layers.values()) if model.maximum is None or n <= model.maximum]
    for name, one in model.layers.items():
        own = one.scaling
        if own.kind == "default" or scaled.mscale(own.stretch, own.mscale_all_dim or 0.0) != 1.0:
            continue  # latent attention has that in its softmax scale
        pairs = zip(_numbers(one, lengths), _numbers(replace(one, scaling=DEFAULT), lengths), strict=True)
        if all(np.allclose(a, b, rtol=_ROUNDING, atol=0.0) for a, b in pairs):
            idle[name] = own
    return idle


def _numbers(setting: RopeSetting, lengths: list[int]) -> list[Any]:
    """Return the numbers that a scaling may change: softmax scale, attention factor, frequencies."""
    of_length = [frequencies(setting.for_positions(n), "inverse_power", FP64).tolist() for n in lengths]
    return [setting.scale, scaled.attention_factor(setting.scaling), of_length]


def _says_rope_alone(name: str, value: Any) -> bool:
    if name == "position_embedding_type":
        return "rope" in str(value) or "rotary" in str(value)
    return bool(_AGREES.get(name) == value)


def about_rope(name: str) -> bool:
    """Return whether a key, even misspelt, is about RoPE and not about layers."""
    near = name in _ABOUT or get_close_matches(name, _ABOUT, n=1, cutoff=_MISSPELT)
    return name not in LAYERS and bool(near or "rope" in name or "rotary" in name)


def _keys(part: Mapping[str, Any], inside: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the keys with a value of a part and of its RoPE parameters."""
    for key, value in part.items():
        path = (*inside, key)
        if value is None or not (inside or about_rope(key)):
            continue
        if isinstance(value, Mapping):
            yield from _keys(value, path)
        else:
            yield path, value


def _changed(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value, value / 2 if isinstance(value, float) else value // 2]
    if isinstance(value, str):
        return ["nope", f"{value}?"]
    if isinstance(value, list) and value:
        return [[*_changed(value[0])[:1], *value[1:]], value[:-1]]
    return []


def _stray_keys(
    inner: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    inside: Path,
) -> Iterator[tuple[Path, Any]]:
    """Yield the keys about RoPE outside the parts, where they are not read."""
    for key, value in inner.items():
        if any(value is other for other in parts):
            continue
        if isinstance(value, Mapping) and not about_rope(key) and len(inside) < 4:
            yield from _stray_keys(value, parts, (*inside, key))
        elif about_rope(key) and value is not None and key in (*hf_json.DICTS, *_BASES):
            yield (*inside, key), value


def _values_used(name: str, part: Mapping[str, Any], model: ModelRope, model_type: str) -> list[float]:
    """Return the values that were used in place of a key with several spellings."""
    settings = list(model.layers.values())
    if name in _BASES:
        return [setting.base for setting in settings]
    if name in hf_json.FRACTIONS:
        taken = takes_fraction(model_type)
        if not taken and "qk_nope_head_dim" not in part:
            return []  # nothing in the config says that all dims rotate
        shares = [setting.rotary_dim / setting.head_dim for setting in settings]
        if part.get("qk_nope_head_dim") is None:
            return shares
        whole = part.get("head_dim")  # latent attention: of qk_rope_head_dim, of all dims, or of head_dim
        own = [one.rotary_dim / whole for one in settings] if isinstance(whole, int) and whole > 0 else []
        return [1.0, *shares, *own]
    if name == "original_max_position_embeddings":
        scalings = [one.scaling for one in settings if one.scaling.rules.original_outside]
        return [one.original for one in scalings if one.original is not None]
    return []


def _lengths(settings: Iterable[RopeSetting]) -> list[int]:
    """Return the numbers of positions around which frequencies change."""
    lengths = {1}
    for scaling in (setting.scaling for setting in settings):
        for border in (scaling.original, scaling.maximum):
            if border is not None:
                lengths |= {int(border), int(border) + 1, 2 * int(border) + 1}
    return sorted(lengths)


def _effect(model: ModelRope, lengths: list[int]) -> tuple[Any, ...]:
    """Return the numbers of a reading that a computation would use."""
    layers: dict[str, tuple[Any, ...]] = {}
    for name, one in model.layers.items():
        numbers = _numbers(one, lengths if one.scaling.depends_on_length else lengths[:1])
        layers[name] = (one.head_dim, one.rotary_dim, one.layout, *numbers)
    return (model.heads, model.kv_heads, model.declared, model.maximum, model.axes, layers)
