"""Read the rotary embedding out of a Hugging Face config.json, in its old and new spellings.

A key about RoPE that is not understood is refused. A missing base, length or size of heads is the default of
the type's configuration class, and named; where that has none it is refused.
Source: transformers 5.23.0, modeling_rope_utils.py (read); of model types: `ropeaudit.rope.hf_json`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput, BadShape, RopeAuditError
from ropeaudit.rope import hf_json, scaling
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.hf_json import Config, NotRotated, count, first, flag, needed, number, shown
from ropeaudit.rope.scaled import mscale
from ropeaudit.rope.scaling import HF_NAMES, KINDS, Scaling, Served
from ropeaudit.rope.setting import Layout, RopeSetting

_HEADS = ("num_attention_heads", "n_head", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_KV_HEADS, _POSITIONS = ("num_key_value_heads", "num_kv_heads"), hf_json.POSITIONS
_SPELLINGS = {keys[0]: keys for keys in (_HEADS, _KV_HEADS, _POSITIONS)}
_FULL, _SLIDING = hf_json.LAYER_TYPES[:2]


@dataclass(frozen=True, slots=True)
class ModelRope:
    """The rotary embedding of a model, as its config declares it.

    layers: layer type -> its setting; a model with one kind has only "full_attention".
    declared: its max_position_embeddings. axes: of M-RoPE. source: where this was read.
    unrotated: which of its layers do not rotate, in words; still: their numbers as far as they are known.
    kinds: the type of each layer, empty where nothing says it; count: how many layers there are.
    defaults: what was taken from the class where a key is missing, in words.
    unjudged: keys by which its code moves positions, not judged, and how.
    """

    name: str
    source: str
    heads: int
    kv_heads: int
    declared: int | None
    layers: Mapping[str, RopeSetting]
    axes: Axes | None = None
    unrotated: str = ""
    defaults: tuple[str, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)
    still: Sequence[int] = field(default=(), repr=False)
    kinds: Sequence[str] = field(default=(), repr=False)
    count: int | None = field(default=None, repr=False)

    @property
    def served(self) -> Served:
        """Up to where it serves, and out of which numbers that is."""
        return Served.of(self.declared, (setting.scaling for setting in self.layers.values()))

    @property
    def maximum(self) -> int | None:
        """The number of positions that it serves, None where nothing says it."""
        return self.served.positions

    @property
    def kinds_of_layers(self) -> dict[int, str]:
        """The types of layers that have a setting, by number."""
        return {n: kind for n, kind in enumerate(self.kinds) if kind in self.layers}

    @property
    def layer_words(self) -> str:
        """Its layers by its config: "5 full_attention, 25 sliding_attention layers"."""
        listed = ", ".join(f"{n} {kind}" for kind, n in Counter(self.kinds).items()) or self.count
        return "; ".join(filter(None, [f"{listed} layers" if listed else "", self.unrotated]))

    @property
    def notes(self) -> list[str]:
        """What a reader must know of it beside its settings, in words."""
        unjudged = [f"not judged: {key} ({why})" for key, why in self.unjudged.items()]
        return [*filter(None, [self.unrotated]), *self.defaults, *unjudged]


def read(path: str, base: float | None = None) -> ModelRope:
    """Read a config.json or its folder; `base` is a default. Raises: BadInput."""
    config = hf_json.load(path)
    full = Path(path).absolute()
    name = full.name if full.is_dir() else full.parent.name if full.name == "config.json" else full.stem
    return from_config(config, name if name.isprintable() else repr(name)[1:-1], repr(path), base)


def from_config(config: Config, name: str, source: str, base: float | None = None) -> ModelRope:
    """Return what a config says; `base` is used where it gives none. Raises: BadInput."""
    try:
        part = hf_json.text_part(config)
        model = hf_json.model_type(part)
        if hf_json.is_one(model, "never_rotates"):
            raise NotRotated.because(f"model_type = {model}")
        key, value = hf_json.of_type(model, "rotates_if", ("", None))
        if key and part.get(key) != value:
            raise NotRotated.because(f"{key} = {shown(part.get(key))}")
        if flag(part, "position_encoding_2d"):  # the first ChatGLM
            own = "halves of a head have own positions"
            raise BadInput(f"position_encoding_2d = true ({own}) is not supported")
        if "global_config" in part and "encoder_config" in part:
            raise BadInput(
                "the model is of several parts that rotate (encoder_config, global_config, decoder_config); "
                "give one of them as a file of its own"
            )
        part = hf_json.with_usual_names(part, model)
        hf_json.check_keys(part, model)
        part, sizes = _with_sizes(part, model)
        ropes, of_bases = _ropes(part, model, base)
        layers = {layer: _setting(part, rope, layer, model) for layer, rope in ropes.items()}
        axes = next(filter(None, (_axes(rope, layers[layer], model) for layer, rope in ropes.items())), None)
        still, unrotated = hf_json.unrotated(part, model)
        heads = needed(part, _HEADS)
        kv_heads = count(part, _KV_HEADS) or heads
        if flag(part, "multi_query") and not flag(part, "new_decoder_architecture"):  # Falcon
            kv_heads = 1
        if hf_json.is_one(model, "base_times_ratio") and not flag(part, "multi_query_attention"):
            kv_heads = heads
        if heads % kv_heads:
            default = next((f"{sizes[key]}, which" for key in _KV_HEADS if key in sizes), "")
            seen = default or f"{_KV_HEADS[0]} = {kv_heads}"
            raise BadInput(
                f"{seen} does not divide num_attention_heads = {heads}; give {_KV_HEADS[0]} that does"
            )
        return ModelRope(
            name=name,
            source=source,
            heads=heads,
            kv_heads=kv_heads,
            declared=count(part, _POSITIONS, 2**53),
            layers=layers,
            axes=axes,
            unrotated=unrotated,
            defaults=tuple(dict.fromkeys([*of_bases, *sizes.values()])),
            unjudged=(_BUILT if axes else {}) | dict(_found(config, _DEPTH)),
            still=still,
            kinds=hf_json.kinds_of_layers(part, model),
            count=count(part, hf_json.LAYERS),
        )
    except NotRotated as error:
        raise NotRotated(error.typed, where=source) from None
    except RopeAuditError as error:
        raise BadInput(error.typed, where=source) from None


def _with_sizes(config: Config, model: str) -> tuple[Config, dict[str, str]]:
    """Return a config with its class's default sizes, and what was added."""
    default, taken, words = hf_json.class_default(model), dict(config), dict[str, str]()
    latent = config.get("qk_nope_head_dim") is not None or "qk_nope_head_dim" in default
    for name, size in ((one, default[one]) for one in hf_json.SIZES if one in default):
        key, given = first(config, spellings := _SPELLINGS.get(name, (name,)))
        if given is not None or (latent and name == "head_dim"):  # which is not read there
            continue
        if (null := next((one for one in spellings if one in config), None)) is None:
            taken[key] = size
            words[key] = f"{key} missing: {default['class']}'s default {size}"
        elif name != _KV_HEADS[0]:  # as many as heads
            without = f"without the key it is {default['class']}'s {size}"
            raise BadInput(f"{null} = null is not a number; {without}")
    return taken, words


def _ropes(config: Config, model: str, base: float | None) -> tuple[dict[str, Config], list[str]]:
    """Return the RoPE parameters by layer type, and the defaults taken."""
    (key, theta), usual = first(config, hf_json.BASES), hf_json.class_default(model)
    given, defaults = hf_json.rope_dict(config), list[str]()
    own_scaling = usual.get("scaled", {})
    if own_scaling and not given and config.get(hf_json.DICTS[1]) is None:
        words = f"{usual['class']}'s default {json.dumps(own_scaling)}"
        defaults.append(f"{hf_json.DICTS[1]} missing: {words}")
        kept = base is None or "rope_theta" in config  # --base stands before a default
        # a base that is one of these is used whatever rope_theta says beside them
        given = {name: value for name, value in own_scaling.items() if kept or name != "rope_theta"}
    kind, rotates = config.get("position_embedding_type"), bool(given) or theta is not None
    reason = next((f"{key} = true" for key in ("alibi", "mla_use_nope") if flag(config, key)), None)
    if flag(config, "rotary") is False:
        reason = "rotary = false"
    elif kind in ("nope", "alibi") or (kind == "absolute" and not rotates):
        reason = f"position_embedding_type = {kind}"
    elif hf_json.is_one(model, "no_rope") and not rotates:
        reason = f"model_type = {model}"
    if reason:
        raise NotRotated.because(reason)
    of_code: float | None = hf_json.of_type(model, "base")  # ChatGLM's times its rope_ratio
    if of_code is not None and hf_json.is_one(model, "base_times_ratio"):
        ratio = config.get("rope_ratio")
        of_code *= 1.0 if ratio is None else number("rope_ratio", ratio)
        if of_code <= 0:
            raise BadInput(f"rope_ratio = {shown(ratio)} is not above 0")
    own_keys = hf_json.BASE_KEYS if hf_json.is_one(model, "two_bases") else {}
    layers = hf_json.by_layer(config, given) or dict.fromkeys(own_keys or [_FULL], given)
    own_base = config.get(hf_json.LOCAL_BASE) is not None or hf_json.is_one(model, "local_base")
    if _SLIDING not in layers and (own_base or (given and hf_json.is_one(model, "sliding_unscaled"))):
        # another base, or the same, and never scaled
        layers[_SLIDING] = {one: given[one] for one in given if one == "rope_theta" and not own_base}
    layers = hf_json.rotating(config, model, layers)
    for layer, rope in layers.items():
        for one in rope:
            hf_json.check_known("RoPE parameter", one)
        if "rope_theta" in rope and rope["rope_theta"] is None:
            raise BadInput("rope_theta = null in the RoPE parameters is not a number; leave it out there")
        wanted = hf_json.LOCAL_BASE if layer == _SLIDING and own_base else own_keys.get(layer, key)
        choices = [
            ("rope_theta", rope.get("rope_theta")),
            (wanted, config.get(wanted)),
            ("rope_theta", of_code),
        ]
        choices += [("--base", base)] if wanted in (key, own_keys.get(_FULL)) else []
        theta_choice = next((choice for choice in choices if choice[1] is not None), None)
        if theta_choice is None:
            if (default := usual.get(layer, usual.get("rope_theta"))) is None:
                raise BadInput(f"{wanted} {'is missing; give --base' if wanted == key else hf_json.MISSING}")
            if wanted in config:  # null, with which transformers computes none
                raise BadInput(
                    f"{wanted} = null is not a number; without the key it is {usual['class']}'s {default:g}"
                )
            defaults.append(f"{wanted} missing: {usual['class']}'s default {default:g}")
            theta_choice = wanted, default
        layers[layer] = {**rope, "rope_theta": number(*theta_choice)}
        if layers[layer]["rope_theta"] <= 1 and theta_choice[0] != "--base":
            raise BadInput(f"{theta_choice[0]} = {shown(theta_choice[1])} is not a finite number above 1")
    return layers, defaults


def _setting(config: Config, rope: Config, layer: str, model: str) -> RopeSetting:
    names = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    named = next((key for key in ("rope_type", "type") if key in rope), "")
    if named and rope[named] is None:  # transformers asks for "type" where there is no "rope_type"
        raise BadInput(f"{named} = null names no scaling; leave it out, or give one of {', '.join(_KINDS)}")
    kinds = [_LEGACY.get(name, name) if isinstance(name, str) else name for name in names]
    for kind in kinds:
        if kind not in _KINDS:
            known = ", ".join((*_KINDS, *_LEGACY))
            raise BadInput(f"rope_type = {shown(kind)} is not understood; known: {known}")
    if len(set(kinds)) > 1:
        raise BadInput(f"rope_type = {shown(names[0])} and type = {shown(names[1])} differ; keep one")
    kind = str(kinds[0]) if kinds else "default"
    taken = hf_json.of_type(model, "scalings")
    if taken is not None and kind not in ("default", *taken):
        others = "no scaling that is known here" if not taken else f"no scaling but {', '.join(taken)}"
        raise BadInput(
            f"rope_type = {shown(kind)} is refused by the code of {model}, which loads with {others}"
        )
    key, share = first({**config, **{k: v for k, v in rope.items() if v is not None}}, hf_json.FRACTIONS)
    fraction = None if share is None else number(key, share)
    head_dim = _head_dim(config, layer, model)
    if kind != "proportional" and not hf_json.takes_fraction(model):
        latent = config.get("qk_nope_head_dim") is not None
        taken = head_dim if fraction is None else int(head_dim * fraction)
        if kind != "default" and not latent and taken != head_dim:
            raise BadInput(
                f"{hf_json.FRACTIONS[0]} = {shown(fraction)} is read by {kind}, which makes frequencies of "
                f"{taken} dims, and not by the code of {model}, which rotates all "
                f"{head_dim}: it fails when it is called; leave it out"
            )
        fraction = None
    rotary_dim = head_dim if kind == "proportional" else _rotary_dim(config, head_dim, fraction, model)
    scale = _scaling(config, rope, kind, fraction)
    declared = flag(config, "rope_interleave")
    interleaved = hf_json.is_one(model, "interleaved") if declared is None else declared
    softmax = _softmax_scale(config, model, scale)
    layout: Layout = "interleaved" if interleaved else "half"
    try:
        return RopeSetting.of(head_dim, rotary_dim, rope["rope_theta"], layout, softmax, scale)
    except BadShape as error:  # its remedy is an option
        raise BadInput(error.fault) from None


def _head_dim(config: Config, layer: str, model: str) -> int:
    if config.get("qk_nope_head_dim") is not None:  # latent attention
        return needed(config, ["qk_nope_head_dim"]) + needed(config, ["qk_rope_head_dim"])
    own = hf_json.of_layers(config, layer, "head_dim")
    if own is not None:
        return own
    named = {_FULL: "global_head_dim", _SLIDING: "swa_head_dim"}.get(layer, "")
    if config.get(named) is not None or (layer == _FULL and model.startswith("gemma4")):
        return needed(config, [named])
    divided = hf_json.class_default(model) or hf_json.is_one(model, "divided_head_dim")
    if config.get("head_dim") is not None or not (divided or not hf_json.is_one(model, "own_head_dim")):
        return needed(config, ["head_dim"])
    width, heads = needed(config, _HIDDEN, 2**24), needed(config, _HEADS)
    if width % heads:
        said = f"{first(config, _HIDDEN)[0]} = {width} is not a multiple of"
        raise BadInput(f"{said} {first(config, _HEADS)[0]} = {heads}; give head_dim")
    return (2 * width if hf_json.is_one(model, "double_head_dim") else width) // heads


def _rotary_dim(config: Config, head_dim: int, fraction: float | None, model: str) -> int:
    dims = count(config, ["rotary_dim"])
    if config.get("qk_nope_head_dim") is not None:
        dims, fraction = needed(config, ["qk_rope_head_dim"]), None  # of which the fraction is 1
    fraction = hf_json.of_type(model, "fraction", fraction)
    if fraction is None and hf_json.is_one(model, "rotary_dim_unread"):
        if dims not in (None, head_dim):
            unless, remedy = "", "leave it out"
            if hf_json.takes_fraction(model):
                unless = " unless the RoPE parameters say partial_rotary_factor"
                remedy = "add it there, or leave rotary_dim out"
            raise BadInput(
                f"rotary_dim = {dims} is not read by the code of {model}, which rotates all {head_dim} dims"
                f"{unless}; {remedy}"
            )
        return head_dim
    if fraction is None:
        if dims is None and hf_json.is_one(model, "own_fraction"):
            raise BadInput(f"{hf_json.FRACTIONS[0]} {hf_json.MISSING}")
        return dims or head_dim
    if not 0 < fraction <= 1:
        raise BadInput(f"{hf_json.FRACTIONS[0]} = {shown(fraction)} is not above 0 and at most 1")
    if dims not in (None, int(head_dim * fraction)):
        raise BadInput(
            f"rotary_dim = {dims} is not {shown(fraction)} of head_dim = {head_dim}; keep one of the two"
        )
    return int(head_dim * fraction)


def _softmax_scale(config: Config, model: str, scale: Scaling) -> float | None:
    """Return what multiplies q·k; None for one over the root of head_dim."""
    key, value = first(config, ("attention_multiplier", "query_pre_attn_scalar"))
    if hf_json.is_one(model, "scale_one"):
        return 1.0
    if hf_json.is_one(model, "double_head_dim"):
        return float((_head_dim(config, _FULL, model) / 2) ** -0.5)
    if value is not None:
        multiplier = number(key, value)
        if multiplier <= 0:
            raise BadInput(f"{key} = {shown(value)} is not above 0")
        return multiplier if key == "attention_multiplier" else float(multiplier**-0.5)
    latent = config.get("qk_nope_head_dim") is not None and not hf_json.is_one(model, "scale_without_mscale")
    if latent and scale.kind == "yarn" and scale.mscale_all_dim:
        return (
            float(_head_dim(config, _FULL, model) ** -0.5) * mscale(scale.stretch, scale.mscale_all_dim) ** 2
        )
    return None


def _axes(rope: Config, setting: RopeSetting, model: str) -> Axes | None:
    sections, interleaved_key = rope.get("mrope_section"), flag(rope, "mrope_interleaved")
    if sections is None:
        if interleaved_key:
            raise BadInput("mrope_section is missing beside mrope_interleaved; add it to the RoPE parameters")
        return None
    fits = isinstance(sections, list) and len(sections) == 3
    if not fits or not all(type(n) is int and 0 <= n <= 2**15 for n in sections):
        example = "three counts of pairs, such as [16, 24, 24]"
        raise BadInput(f"mrope_section = {shown(sections)} is not {example}")
    by_code = hf_json.is_one(model, "axes_interleaved")
    if hf_json.is_one(model, "axes_otherwise") or (interleaved_key is False and by_code):
        arranged = "is arranged in a way that is not understood"
        raise BadInput(f"mrope_section of model_type {shown(model)} {arranged}")
    if sum(sections) != setting.pairs:
        raise BadInput(f"mrope_section sums to {sum(sections)} pairs and there are {setting.pairs}")
    t, h, w = sections
    return Axes((t, h, w), "interleaved" if interleaved_key or by_code else "split")


# key -> what code does by it. Source: Qwen2.5-1M (arXiv 2501.15383); transformers 5.23.0, models/qwen2_5_vl
# and models/qwen2_5_omni (read)
_MOVES = {
    "dual_chunk_attention_config": "positions are counted within chunks",
    "tokens_per_second": "positions of video follow its seconds",
    "position_id_per_seconds": "positions of sound and video follow their seconds",
}
_BUILT = {"mrope_section": "the model's code builds the positions of images and video"}
_NAMED_SO = re.compile("position.*(shift|offset|delta)|(shift|offset|delta).*position")
_DEPTH = 3  # objects within one another that are looked into


def _found(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the keys by which code moves positions, not judged, and why."""
    for key, value in config.items():
        if not isinstance(key, str) or not value:
            continue
        if key in _MOVES or (len(key) <= 40 and key.isprintable() and _NAMED_SO.search(key)):
            yield key, _MOVES.get(key, "by its name it moves positions")
        elif isinstance(value, Mapping) and depth:
            yield from _found(value, depth - 1)


_KINDS = tuple(name for name, rules in KINDS.items() if rules.in_config)
_LEGACY = {"su": "longrope", "mrope": "default"}
_KEYS = {name: key for key, name in HF_NAMES.items()}  # of parameters, as the file calls them
_OUTSIDE = ("maximum", "fraction")  # not read in the RoPE parameters, or not as one of the scaling's own


def _scaling(config: Config, rope: Config, kind: str, fraction: float | None) -> Scaling:
    """Return the scaling that RoPE parameters say, some of it outside them. Raises: BadInput.

    fraction: of the dims that are rotated, None where it is not given.
    """
    rules, values = KINDS[kind], dict[str, Any]()
    for key, name in HF_NAMES.items():
        if rope.get(key) is not None and name not in _OUTSIDE:
            values[name] = flag(rope, key) if name == "truncate" else hf_json.numbers(key, rope[key])
    if kind == "yarn" and "truncate" in rope:
        values["truncate"] = bool(rope["truncate"])  # null is taken for false
    if kind == "proportional":
        values["fraction"] = 1.0 if fraction is None else fraction
    outside, maximum = config.get(_KEYS["original"]), count(config, _POSITIONS, 2**53)
    last = config if _KEYS["original"] in config else rope
    if rules.original_outside and last.get(_KEYS["original"], outside) is None and _KEYS["original"] in last:
        raise BadInput(f"{_KEYS['original']} = null is not a number; give the length before the extension")
    if rules.original_outside and outside is not None:  # Phi-3; it has the last word there
        values["original"] = number(_KEYS["original"], outside)
    if kind == "linear" and outside is not None:  # no frequency is of it, but the range
        values.setdefault("original", number(_KEYS["original"], outside))
    if kind == "yarn" and maximum is not None:
        values.setdefault("original", maximum)
    if "maximum" in rules.needs:
        values["maximum"] = needed(config, _POSITIONS, 2**53)
    elif "maximum" in rules.takes and "factor" not in values and ("factor" in rope or kind != "yarn"):
        values |= {} if maximum is None else {"maximum": maximum}  # yarn's factor of null is their ratio
    inside = next((key for key in hf_json.DICTS if config.get(key)), hf_json.DICTS[-1])
    foreign = [name for name in values if name not in (*rules.needs, *rules.takes)]
    if foreign and rope.get("rope_type", rope.get("type")) is None:
        taking = [one for one in _KINDS if values.keys() <= {*KINDS[one].needs, *KINDS[one].takes}]
        fitting = " or ".join(f'"rope_type": "{one}"' for one in taking)
        raise BadInput(
            f"rope_type is missing, so {inside} is read as default, which takes no "
            f"{', '.join(_KEYS[name] for name in foreign)}; "
            + (f"add {fitting}" if fitting else "no type takes all of them")
        )
    scaling.check(kind, values, f"rope_type {kind}", _KEYS, f"add that to {inside}")
    return Scaling(kind, **values)
