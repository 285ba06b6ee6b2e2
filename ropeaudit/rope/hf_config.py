"""Read the rotary embedding out of a Hugging Face config.json, in its old and new spellings.

An unknown key about RoPE is refused. A missing base, length or head size is the default of the type's
configuration class, with a note; it is refused if the class has none.
Source: transformers 5.23.0, modeling_rope_utils.py (read); of model types: `ropeaudit.rope.model_types`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ropeaudit.errors import BadInput, BadShape, RopeAuditError
from ropeaudit.rope import config_parts, hf_json, scaling
from ropeaudit.rope.axes import Axes, Layout
from ropeaudit.rope.config_parts import Part
from ropeaudit.rope.hf_json import (
    HEADS,
    HIDDEN,
    Config,
    NotRotated,
    Unjudged,
    count,
    first,
    flag,
    needed,
    number,
    shown,
)
from ropeaudit.rope.model_types import (
    SIZES,
    class_default,
    in_its_place,
    is_known,
    is_listed,
    of_type,
    takes_fraction,
    unread,
)
from ropeaudit.rope.scaled import mscale
from ropeaudit.rope.scaling import HF_NAMES, KINDS, Scaling, Served
from ropeaudit.rope.setting import RopeSetting

_KV_HEADS, _POSITIONS = ("num_key_value_heads", "num_kv_heads"), hf_json.POSITIONS
_SPELLINGS = {keys[0]: keys for keys in (HEADS, HIDDEN, _KV_HEADS, _POSITIONS)}
_ITS_CODE = "nothing was judged: check its code, ropeaudit check FILE.py:FUNCTION"
_FULL, _SLIDING = hf_json.LAYER_TYPES[:2]


class Doubt(NamedTuple):
    """A reason why a model may not compute what its config says, and a remedy, if known."""

    seen: str
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, self))


@dataclass(frozen=True, slots=True)
class ModelRope:
    """The rotary embedding of a model, as its config declares it.

    layers: layer type -> its setting; a model with one kind has only "full_attention".
    declared: its max_position_embeddings. axes: of M-RoPE. source: the file or preset.
    unrotated: the layers without rotation, in words; still: their numbers as far as known.
    kinds: the type of each layer, empty if not given; count: the number of layers.
    defaults: values taken from the class for missing keys, in words.
    doubts: why the model may compute something else.
    unjudged: key -> how code moves positions by it, which is not judged.
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
    doubts: tuple[Doubt, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)
    still: Sequence[int] = field(default=(), repr=False)
    kinds: Sequence[str] = field(default=(), repr=False)
    count: int | None = field(default=None, repr=False)

    @property
    def served(self) -> Served:
        """The range of positions that it serves, with the numbers that give it."""
        return Served.of(self.declared, (setting.scaling for setting in self.layers.values()))

    @property
    def maximum(self) -> int | None:
        """The number of positions that it serves; None if not given."""
        return self.served.positions

    @property
    def kinds_of_layers(self) -> dict[int, str]:
        """The types of layers that have a setting, by number."""
        return {n: kind for n, kind in enumerate(self.kinds) if kind in self.layers}

    @property
    def layer_words(self) -> str:
        """Its layers in words: "5 full_attention, 25 sliding_attention layers"."""
        listed = ", ".join(f"{n} {kind}" for kind, n in Counter(self.kinds).items()) or self.count
        return "; ".join(filter(None, [f"{listed} layers" if listed else "", self.unrotated]))

    @property
    def notes(self) -> list[str]:
        """Notes for the reader: doubts, layers without rotation, defaults, keys not judged."""
        unjudged = [f"not judged: {key} ({why})" for key, why in self.unjudged.items()]
        return [*map(str, self.doubts), *filter(None, [self.unrotated]), *self.defaults, *unjudged]


def read(path: str, base: float | None = None) -> ModelRope:
    """Read a config.json or its folder, or FILE#PART; `base` is a default. Raises: BadInput."""
    file, part = config_parts.path_and_part(path)
    config, full = hf_json.load(file), Path(file).absolute()
    name = full.name if full.is_dir() else full.parent.name if full.name == "config.json" else full.stem
    name = f"{name}#{part}" if part else name
    return from_config(config, name if name.isprintable() else repr(name)[1:-1], repr(path), base, part)


def from_config(
    config: Config,
    name: str,
    source: str,
    base: float | None = None,
    part: str = "",
) -> ModelRope:
    """Return the rotary embedding of a part of a config, by default of the text. Raises: BadInput.

    base: used if the config gives none. part: its path, such as "encoder".
    """
    try:
        if isinstance(config, Mapping):
            config_parts.is_a_model(config)
        return _of_part(config_parts.named(config, part), config, name, source, base)
    except (NotRotated, Unjudged) as error:
        raise type(error)(error.typed, where=source) from None
    except RopeAuditError as error:
        raise BadInput(error.typed, where=source) from None


def _of_part(
    one: Part,
    whole: Config,
    name: str,
    source: str,
    base: float | None,
) -> ModelRope:
    """Return the rotary embedding of a part. whole: the config, searched for keys that move positions."""
    part, model = one.given, one.model.removesuffix("_text")
    _check_rotates(one, base)
    if flag(part, "position_encoding_2d"):  # the first ChatGLM
        own = "halves of a head have own positions"
        raise Unjudged(f"position_encoding_2d = true ({own}) is not supported; {_ITS_CODE}")
    doubts, beside = list(_doubts(one)), of_type(model, "unjudged", {})
    beside = {key: why for key, why in beside.items() if part.get(key)}
    part = hf_json.with_usual_names(part, model)
    hf_json.check_keys(part, model)
    part, sizes = _with_sizes(part, model)
    ropes, of_bases = _rope_by_layer(part, model, base)
    layers = {layer: _setting(part, rope, layer, model) for layer, rope in ropes.items()}
    axes = next(filter(None, (_axes(rope, layers[layer], model) for layer, rope in ropes.items())), None)
    if (own := of_type(model, "sections")) and not any("mrope_section" in rope for rope in ropes.values()):
        of_bases.append(f"mrope_section missing: the code's default {own}")
    still, unrotated = hf_json.unrotated(part, model)
    heads = needed(part, HEADS)
    return ModelRope(
        name=name,
        source=source,
        heads=heads,
        kv_heads=_kv_heads(part, model, heads, sizes),
        declared=count(part, _POSITIONS, 2**53),
        layers=layers,
        axes=axes,
        unrotated=unrotated,
        defaults=tuple(dict.fromkeys([*of_bases, *sizes.values()])),
        doubts=tuple(doubts),
        unjudged=(_BUILT if axes else {}) | dict(_position_keys(whole, _DEPTH)) | beside,
        still=still,
        kinds=hf_json.kinds_of_layers(part, model),
        count=count(part, hf_json.LAYERS),
    )


def _check_rotates(one: Part, base: float | None) -> None:
    """Raise NotRotated for a part without rotary code, Unjudged if that is not known."""
    part, model = one.given, one.model.removesuffix("_text")
    reason = one.instead or _rope_off_by(part, model)
    for key, value in of_type(model, "rotates_if", {}).items():
        if not reason and part.get(key) not in (value if isinstance(value, list) else [value]):
            instead = f", where {in_its_place(model)}" if in_its_place(model) else ""
            said = f"{key} = {shown(part[key])}" if key in part else f"without {key}"
            reason = f"{said}{instead}"
    if reason and part.get("auto_map") and config_parts.says_rope(part):
        raise Unjudged(f"{reason} in transformers, and auto_map names code of its own; {_ITS_CODE}")
    if reason:
        stray = [key for key in hf_json.STRAY if part.get(key) is not None]
        unread = f"; {' and '.join(stray)} {'is' if len(stray) == 1 else 'are'} not read" if stray else ""
        if base is not None:
            raise Unjudged(f"base {base:g} is for a model with RoPE, and here {reason}; leave out --base")
        raise NotRotated.because(f"{reason}{unread}")
    if one.missing:
        raise Unjudged(f"{one.unjudged}; add it")
    if one.axial:
        raise Unjudged(
            f"model_type {shown(one.model)} rotates by rows and columns, for which no config is checked; "
            "check its code: ropeaudit check FILE.py:FUNCTION --axes NAME --grid ROWSxCOLUMNS"
        )
    if not is_known(model) and base is None and not config_parts.says_rope(part):
        raise Unjudged(f"{_unknown(one.model)}, and no key is about RoPE; {_ITS_CODE}")


def _rope_off_by(part: Config, model: str) -> str:
    """Return the key that turns RoPE off, for a type that reads it or is unknown; else ""."""
    if is_known(model) and not is_listed(model, "reads_alibi"):
        return ""  # a stray key of an ancestor
    kind = part.get("position_embedding_type")
    if kind in ("nope", "alibi") or (kind == "absolute" and not config_parts.says_rope(part)):
        return f"position_embedding_type = {kind}"
    if flag(part, "rotary") is False:
        return "rotary = false"
    return next((f"{key} = true" for key in ("alibi", "mla_use_nope") if flag(part, key)), "")


def _kv_heads(part: Config, model: str, heads: int, sizes: Mapping[str, str]) -> int:
    """Return the number of heads of keys, a divisor of that of queries. Raises: BadInput."""
    kv_heads = count(part, _KV_HEADS) or heads
    if flag(part, "multi_query") and not flag(part, "new_decoder_architecture"):  # Falcon
        kv_heads = 1
    if (grouped := of_type(model, "grouped_if")) and not flag(part, grouped):
        kv_heads = heads
    if each := of_type(model, "heads_a_key"):
        kv_heads = max(1, heads // each)
    if heads % kv_heads:
        default = next((f"{sizes[key]}, which" for key in _KV_HEADS if key in sizes), "")
        seen = default or f"{_KV_HEADS[0]} = {kv_heads}"
        raise BadInput(f"{seen} does not divide num_attention_heads = {heads}; give {_KV_HEADS[0]} that does")
    return kv_heads


def _doubts(one: Part) -> Iterator[Doubt]:
    """Yield reasons why the model may not compute what its config says."""
    model = one.model.removesuffix("_text")
    if not is_known(model):
        yield Doubt(f"{_unknown(one.model)}: read as Llama's, whose layout and dims are a guess")
    parameters = hf_json.rope_dict(one.given)
    named = [parameters.get(key) for key in ("rope_type", "type") if parameters.get(key) is not None]
    if (
        named[:1] == ["mrope"]
        and not one.astray
        and "class" in class_default(model)
        and not is_listed(model, "reads_mrope")
    ):
        raises = f"rope_type = mrope raises KeyError in {model} of transformers {hf_json.VERSION}"
        yield Doubt(f"{raises}; read is default, with mrope_section", 'give rope_type = "default"')
    if one.astray:
        usual = class_default(model)["class"]
        told = f"the text's keys stand outside {one.astray}, where transformers {hf_json.VERSION} reads none"
        means, runs = (_part_summary(given, model) for given in (one.given, {"model_type": model}))
        yield Doubt(
            f"{told}: it runs {usual}'s defaults, {runs}; checked is what the file means, {means}",
            f"put them into {one.astray}",
        )


def _unknown(model: str) -> str:
    return f"model_type {shown(model)} is not known here" if model else "model_type is missing"


def _part_summary(config: Config, model: str) -> str:
    """Describe the dims, base and range of a part in short."""
    try:
        part, _ = _with_sizes(hf_json.with_usual_names(config, model), model)
        ropes, _ = _rope_by_layer(part, model, None)
        settings = [_setting(part, rope, layer, model) for layer, rope in ropes.items()]
    except BadInput:
        return "which are not read here"
    dims = " and ".join(dict.fromkeys(f"{setting.rotary_dim}" for setting in settings))
    served = Served.of(count(part, _POSITIONS, 2**53), (one.scaling for one in settings)).positions
    bases = " and ".join(dict.fromkeys(f"{setting.base:g}" for setting in settings))
    return f"{dims} dims of base {bases}, " + (f"{served:,} positions" if served else "positions unknown")


def _with_sizes(config: Config, model: str) -> tuple[Config, dict[str, str]]:
    """Add the class's default sizes to a config; return it, and notes about them."""
    default, taken, words = class_default(model), dict(config), dict[str, str]()
    latent = config.get("qk_nope_head_dim") is not None or "qk_nope_head_dim" in default
    for name, size in ((one, default[one]) for one in SIZES if one in default):
        key, given = first(config, spellings := _SPELLINGS.get(name, (name,)))
        if given is not None or (latent and name == "head_dim"):  # which is not read there
            continue
        if name == HIDDEN[0] and (latent or taken.get("head_dim") is not None):
            continue  # nothing hangs on it
        if (null := next((one for one in spellings if one in config), None)) is None:
            taken[key] = size
            words[key] = f"{key} missing: {default['class']}'s default {size}"
        elif name != _KV_HEADS[0]:  # as many as heads
            without = f"without the key it is {default['class']}'s {size}"
            raise BadInput(f"{null} = null is not a number; {without}")
    return taken, words


def _rope_by_layer(config: Config, model: str, base: float | None) -> tuple[dict[str, Config], list[str]]:
    """Return the RoPE parameters by layer type, and notes about defaults."""
    (key, _), usual = first(config, hf_json.BASES), class_default(model)
    given, defaults = hf_json.rope_dict(config), list[str]()
    own_scaling = usual.get("scaled", {})
    if own_scaling and not given and config.get(hf_json.DICTS[1]) is None:
        words = f"{usual['class']}'s default {json.dumps(own_scaling)}"
        defaults.append(f"{hf_json.DICTS[1]} missing: {words}")
        kept = base is None or "rope_theta" in config  # --base stands before a default
        # a base that is one of these is used whatever rope_theta says beside them
        given = {name: value for name, value in own_scaling.items() if kept or name != "rope_theta"}
    of_code: float | None = of_type(model, "base")  # ChatGLM's times its rope_ratio
    if of_code is not None and (times := of_type(model, "base_times")):
        ratio = config.get(times)
        of_code *= 1.0 if ratio is None else number(times, ratio)
        if of_code <= 0:
            raise BadInput(f"{times} = {shown(ratio)} is not above 0")
    own_keys: Mapping[str, str] = of_type(model, "bases", {})
    layers = hf_json.by_layer(config, given) or dict.fromkeys(own_keys or [_FULL], given)
    own_base = config.get(hf_json.LOCAL_BASE) is not None or is_listed(model, "local_base")
    if _SLIDING not in layers and (own_base or (given and is_listed(model, "sliding_unscaled"))):
        # another base, or the same, and never scaled
        layers[_SLIDING] = {one: given[one] for one in given if one == "rope_theta" and not own_base}
    layers = hf_json.rotating(config, model, layers)
    for layer, rope in layers.items():
        for one in rope:
            hf_json.check_known("RoPE parameter", one, hf_json.INNER | set(of_type(model, "parameters", ())))
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
    rope = _usual_scaling(config, rope, layer, model)
    names = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    named = next((key for key in ("rope_type", "type") if key in rope), "")
    if named and rope[named] is None:  # transformers asks for "type" where there is no "rope_type"
        raise BadInput(f"{named} = null names no scaling; leave it out, or give one of {', '.join(_KINDS)}")
    kinds = [_LEGACY.get(name, name) if isinstance(name, str) else name for name in names]
    for kind in kinds:
        if kind not in _KINDS:
            meant = hf_json.nearest(kind, (*_KINDS, *_LEGACY))
            raise BadInput(f"rope_type = {shown(kind)} is not understood; {meant}")
    if len(set(kinds)) > 1:
        raise BadInput(f"rope_type = {shown(names[0])} and type = {shown(names[1])} differ; keep one")
    kind = str(kinds[0]) if kinds else "default"
    taken = of_type(model, "scalings")
    if taken is not None and kind not in ("default", *taken):
        others = "no scaling that is known here" if not taken else f"no scaling but {', '.join(taken)}"
        raise BadInput(
            f"rope_type = {shown(kind)} is refused by the code of {model}, which loads with {others}"
        )
    key, share = first({**config, **{k: v for k, v in rope.items() if v is not None}}, hf_json.FRACTIONS)
    usual = class_default(model).get("partial_rotary_factor")
    usual = usual if isinstance(usual, float) and config.get("rotary_dim") is None else None
    fraction = usual if share is None else number(key, share)
    head_dim = _head_dim(config, layer, model)
    if kind != "proportional" and not takes_fraction(model):
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
    by_code = of_type(model, "layout") == "interleaved" or is_listed(model, "interleaved")
    interleaved = by_code if declared is None else declared
    softmax = _softmax_scale(config, model, scale)
    layout: Layout = "interleaved" if interleaved else "half"
    try:
        return RopeSetting.of(head_dim, rotary_dim, rope["rope_theta"], layout, softmax, scale)
    except BadShape as error:  # its remedy is an option
        raise BadInput(error.fault) from None


def _usual_scaling(config: Config, rope: Config, layer: str, model: str) -> Config:
    """Convert a type's own RoPE parameters to those of transformers. Raises: BadInput.

    alpha, in a dynamic scaling: the base is base * alpha^(d/(d-2)) at every length, and nothing else of it is
    read. ntk: pair i turns by (base * factor)^(-2i/d) / factor^(2/d).
    Source: transformers 5.23.0, models/hunyuan_v1_dense; modeling_new.py of Alibaba-NLP/new-impl (read).
    """
    kind = next((rope[key] for key in ("rope_type", "type") if rope.get(key) is not None), None)
    own, base = of_type(model, "parameters", ()), rope["rope_theta"]
    if "short_mscale" in own and rope.get("short_mscale") is not None:
        raise Unjudged(f"short_mscale and long_mscale of {model} are not supported; {_ITS_CODE}")
    if kind == "dynamic" and "alpha" in own and rope.get("alpha"):
        alpha, head_dim = number("alpha", rope["alpha"]), _head_dim(config, layer, model)
        if alpha <= 0 or head_dim <= 2:
            raise BadInput(f"alpha = {shown(rope['alpha'])} is not above 0, for heads of more than 2 dims")
        return {"rope_theta": base * alpha ** (head_dim / (head_dim - 2))}
    if kind == "ntk" and "mixed_b" in own:
        if rope.get("mixed_b") is not None:
            raise Unjudged(f"mixed_b in the RoPE parameters is not supported; {_ITS_CODE}")
        factor = number("factor", rope.get("factor"))
        if factor < 1:
            raise BadInput(f"factor = {shown(rope.get('factor'))} is not at least 1")
        stretch = factor ** (2 / _head_dim(config, layer, model))
        return {"rope_theta": base * factor, "rope_type": "linear", "factor": stretch}
    fixed = {} if kind in (None, "default") else of_type(model, "fixed", {})
    if layer in of_type(model, "unscaled", ()):
        return {key: value for key, value in rope.items() if key in ("rope_theta", *hf_json.FRACTIONS)}
    return {**fixed, **rope}


def _head_dim(config: Config, layer: str, model: str) -> int:
    if config.get("qk_nope_head_dim") is not None:  # latent attention
        return needed(config, ["qk_nope_head_dim"]) + needed(config, ["qk_rope_head_dim"])
    own = hf_json.of_layers(config, layer, "head_dim")
    if own is not None:
        return own
    named = {_FULL: "global_head_dim", _SLIDING: "swa_head_dim"}.get(layer, "")
    if config.get(named) is not None or (layer == _FULL and model.startswith("gemma4")):
        return needed(config, [named])
    divided = class_default(model) or is_listed(model, "divided_head_dim")
    if config.get("head_dim") is not None or not (divided or not is_listed(model, "own_head_dim")):
        return needed(config, ["head_dim"])
    width, heads = needed(config, HIDDEN, 2**24), needed(config, HEADS)
    if width % heads:
        said = f"{first(config, HIDDEN)[0]} = {width} is not a multiple of"
        raise BadInput(f"{said} {first(config, HEADS)[0]} = {heads}; give head_dim")
    return (2 * width if is_listed(model, "double_head_dim") else width) // heads


def _rotary_dim(config: Config, head_dim: int, fraction: float | None, model: str) -> int:
    dims = count(config, ["rotary_dim"]) or of_type(model, "rotary_dim")
    if config.get("qk_nope_head_dim") is not None:
        dims, fraction = needed(config, ["qk_rope_head_dim"]), None  # of which the fraction is 1
    fraction = of_type(model, "fraction", fraction)
    if fraction is None and is_listed(model, "rotary_dim_unread"):
        if dims not in (None, head_dim):
            unless, remedy = "", "leave it out"
            if takes_fraction(model):
                unless = " unless the RoPE parameters say partial_rotary_factor"
                remedy = "add it there, or leave rotary_dim out"
            raise BadInput(
                f"rotary_dim = {dims} is not read by the code of {model}, which rotates all {head_dim} dims"
                f"{unless}; {remedy}"
            )
        return head_dim
    if fraction is None:
        return dims or head_dim
    if not 0 < fraction <= 1:
        raise BadInput(f"{hf_json.FRACTIONS[0]} = {shown(fraction)} is not above 0 and at most 1")
    if dims not in (None, int(head_dim * fraction)):
        raise BadInput(
            f"rotary_dim = {dims} is not {shown(fraction)} of head_dim = {head_dim}; keep one of the two"
        )
    return int(head_dim * fraction)


def _softmax_scale(config: Config, model: str, scale: Scaling) -> float | None:
    """Return the softmax scale; None for one over the root of head_dim."""
    if (key := of_type(model, "scale_over_dim")) and config.get(key) is not None:
        return number(key, config[key]) / _head_dim(config, _FULL, model)
    key, value = first(config, ("attention_multiplier", "query_pre_attn_scalar"))
    if is_listed(model, "scale_one"):
        return 1.0
    if is_listed(model, "double_head_dim"):
        return float((_head_dim(config, _FULL, model) / 2) ** -0.5)
    if value is not None:
        multiplier = number(key, value)
        if multiplier <= 0:
            raise BadInput(f"{key} = {shown(value)} is not above 0")
        return multiplier if key == "attention_multiplier" else float(multiplier**-0.5)
    latent = config.get("qk_nope_head_dim") is not None and not is_listed(model, "scale_without_mscale")
    if latent and scale.kind == "yarn" and scale.mscale_all_dim:
        return (
            float(_head_dim(config, _FULL, model) ** -0.5) * mscale(scale.stretch, scale.mscale_all_dim) ** 2
        )
    return None


def _axes(rope: Config, setting: RopeSetting, model: str) -> Axes | None:
    sections, interleaved_key = rope.get("mrope_section"), flag(rope, "mrope_interleaved")
    named = rope.get("rope_type", rope.get("type")) == "mrope"  # which says what the file means
    if sections is None or ("mrope_section" in unread(model) and not named):
        if interleaved_key and sections is None:
            raise BadInput("mrope_section is missing beside mrope_interleaved; add it to the RoPE parameters")
        return None
    fits = isinstance(sections, list) and len(sections) == 3
    if not fits or not all(type(n) is int and 0 <= n <= 2**15 for n in sections):
        example = "three counts of pairs, such as [16, 24, 24]"
        raise BadInput(f"mrope_section = {shown(sections)} is not {example}")
    by_code = is_listed(model, "axes_interleaved")
    if is_listed(model, "axes_otherwise") or (interleaved_key is False and by_code):
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


def _position_keys(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    """Yield the keys of a config that shift positions, and how they do."""
    for key, value in config.items():
        if not isinstance(key, str) or not value:
            continue
        if key in _MOVES or (len(key) <= 40 and key.isprintable() and _NAMED_SO.search(key)):
            yield key, _MOVES.get(key, "by its name it moves positions")
        elif isinstance(value, Mapping) and depth:
            yield from _position_keys(value, depth - 1)


_KINDS = tuple(name for name, rules in KINDS.items() if rules.in_config)
_LEGACY = {"su": "longrope", "mrope": "default"}
_KEYS = {name: key for key, name in HF_NAMES.items()}  # of parameters, as the file calls them
_OUTSIDE = ("maximum", "fraction")  # not read in the RoPE parameters, or not as one of the scaling's own


def _scaling(config: Config, rope: Config, kind: str, fraction: float | None) -> Scaling:
    """Return the scaling of RoPE parameters and of keys outside them. Raises: BadInput.

    fraction: of the dims that are rotated, None if not given.
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
