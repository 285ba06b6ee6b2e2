"""Read the rotary embedding out of a Hugging Face config.json, in its old and new spellings.

A key about RoPE that is not understood is named and refused, never ignored. What a file leaves to the
defaults of a configuration class is refused too, for these differ from the checkpoints.
Source of names, defaults and exceptions: configurations and modelings of transformers 5.23.0 (read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope import scaling
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.hf_json import Config, count, first, flag, load, needed, number, numbers, shown
from ropeaudit.rope.scaled import mscale
from ropeaudit.rope.scaling import HF_NAMES, Scaling
from ropeaudit.rope.setting import RopeSetting

_PARTS_OF_MODELS = ("thinker_config", "text_config", "llm_config", "language_config")
_HEADS, _HIDDEN = ("num_attention_heads", "n_head"), ("hidden_size", "n_embd")
_KV_HEADS, _POSITIONS = ("num_key_value_heads", "num_kv_heads"), ("max_position_embeddings", "n_positions")
_BASES = ("rope_theta", "rotary_emb_base")
_FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rope_pct")
_DICTS = ("rope_scaling", "rope_parameters")
_LOCAL_BASE, _LOCAL = "rope_local_base_freq", "sliding_attention"
_LAYER_TYPES = ("full_attention", _LOCAL, "chunked_attention")
_LEGACY = {"su": "longrope", "mrope": "default"}
_TOP = {*_DICTS, *_BASES, *_FRACTIONS, _LOCAL_BASE, "rotary", "rotary_dim", "rope_interleave", "qk_rope_head_dim"}
_TOP |= {"no_rope_layers", "no_rope_layer_interval"}  # which layers do not rotate; those that do are audited
_INNER = {*HF_NAMES, "rope_theta", "rope_type", "type", "mrope_section", "mrope_interleaved"}
_INNER |= {"finetuned"}  # whether weights were trained with the scaling: changes no number
_INNER -= {"max_position_embeddings"}  # stands outside

# Facts of model types, named without the ending "_text". Their code pairs dims 2i and 2i + 1:
_INTERLEAVED = """axk1 axk2 bailing_hybrid codegen cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 deepseek_v32
dots3_note ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite glm4v glm_moe_dsa glm_ocr gptj helium kimi_k2 llama4
longcat_flash mistral4 mistral_large4 youtu""".split()
# Beginnings of those whose code does not compute a missing head_dim, or takes another share of it than all:
_OWN_HEAD_DIM = """afmoe bailing cohere2_moe cwm ernie4_5 gemma glm gpt_oss helium hy_v internlm3 laguna llama4 mellum
mimo minimax_m ministral3 molmo2 nemotron_h paddleocr qwen3 seed_oss solar_open step3 t5gemma vaultgemma""".split()
_OWN_FRACTION = """codegen dots3_note fuyu glm glm4 glm4_moe glm4v_moe gpt_neox gptj minimax minimax_m2 nemotron
persimmon phi qwen3_5 qwen3_5_moe qwen3_next recurrent_gemma stablelm stablelm_epoch""".split()
_BASE_IN_CODE = {"gptj": 10000.0, "codegen": 10000.0}
_SCALE_ONE = ("gemma3n", "gemma4", "diffusion_gemma")
_AXES_INTERLEAVED, _AXES_OTHERWISE = ("qwen3_vl", "qwen3_5", "qwen3_omni"), ("ernie4_5_vl", "hunyuan_vl", "neomme")
_NO_ROPE = """albert bart bert bloom deberta deberta-v2 distilbert electra gpt2 gpt_bigcode gpt_neo mamba mamba2 mt5
opt roberta rwkv t5 whisper xlm-roberta xlnet""".split()
_NOT_ROTATING = ("alibi", "mla_use_nope")
_REFUSED = ("use_dynamic_ntk", "attention_head_dim")  # would change frequencies or heads by rules not known here


@dataclass(frozen=True, slots=True)
class ModelRope:
    """What a model says about its rotary embedding.

    layers: layer type -> its setting; a model with one kind has only "full_attention".
    maximum: positions that the model declares. axes: of M-RoPE. source: where this was read.
    """

    name: str
    source: str
    heads: int
    kv_heads: int
    maximum: int | None
    layers: Mapping[str, RopeSetting]
    axes: Axes | None = None


def read(path: str, base: float | None = None) -> ModelRope:
    """Read a config.json, or the one in a folder; `base` is used where it gives none. Raises: BadInput."""
    config = load(path)
    full = Path(path).absolute()
    name = full.name if full.is_dir() else full.parent.name if full.name == "config.json" else full.stem
    return from_config(config, name if name.isprintable() else repr(name)[1:-1], repr(path), base)


def from_config(config: Config, name: str, source: str, base: float | None = None) -> ModelRope:
    """Return what a config says; `base` is used where it gives none. Raises: BadInput."""
    try:
        part = _text_part(config)
        model = _model_type(part)
        _check_keys(part)
        ropes = _ropes(part, model, base)
        layers = {layer: _setting(part, rope, layer, model) for layer, rope in ropes.items()}
        axes = [_axes(rope, layers[layer], model) for layer, rope in ropes.items()]
        heads = needed(part, _HEADS)
        maximum = count(part, _POSITIONS, 2**53)
        return ModelRope(name, source, heads, _kv_heads(part, heads), maximum, layers, next(filter(None, axes), None))
    except RopeAuditError as error:
        raise BadInput(f"{source}: {error}") from None


def _text_part(config: Any) -> Config:
    """The part about text of a model that also sees or hears."""
    for _ in range(4):
        if not isinstance(config, Mapping):
            raise BadInput(f"holds {shown(config)} where an object {{...}} belongs; give the config.json of a model")
        inner = first(config, _PARTS_OF_MODELS)[1]
        if inner is None:
            return config
        config = inner
    raise BadInput("holds a text_config in a text_config in a text_config; give the config.json of a model")


def _model_type(config: Config) -> str:
    model = config.get("model_type") or ""
    if not isinstance(model, str):
        raise BadInput(f"model_type = {shown(model)} is not text")
    return model.removesuffix("_text")


def _check_keys(config: Config) -> None:
    for key, value in config.items():
        if not isinstance(key, str):
            raise BadInput(f"the key {shown(key)} is not text")
        about = key.startswith(("rope", "rotary")) or "rope_" in key or (key in _REFUSED and value is not False)
        if about and value is not None and key not in _TOP:
            raise BadInput(f"the key {shown(key)} is not understood; understood are {', '.join(sorted(_TOP))}")


def _kv_heads(config: Config, heads: int) -> int:
    found = count(config, _KV_HEADS) or heads
    if flag(config, "multi_query") and not flag(config, "new_decoder_architecture"):  # Falcon
        found = 1
    if heads % found:
        raise BadInput(f"num_key_value_heads = {found} does not divide num_attention_heads = {heads}")
    return found


def _ropes(config: Config, model: str, base: float | None) -> dict[str, Config]:
    """Layer type -> its dict of RoPE parameters, each with its rope_theta."""
    given = _rope_dict(config)
    key, theta = first(config, _BASES)
    local = config.get(_LOCAL_BASE)
    layers = {k: v for k, v in given.items() if isinstance(v, Mapping)}
    _check_rotates(config, model, rotates=bool(given) or theta is not None)
    if layers:
        known = (*_LAYER_TYPES, *_texts(config.get("layer_types")))
        unknown = next((name for name in layers if name not in known), None)
        if unknown is not None:
            raise BadInput(f"the layer type {shown(unknown)} is not understood; known: {', '.join(_LAYER_TYPES)}")
        absent = [name for name, value in given.items() if value is None and name in known]  # not rotated
        shared = {k: v for k, v in given.items() if k not in layers and k not in absent}
        layers = {name: {**shared, **rope} for name, rope in layers.items()}
    else:
        layers = {_LAYER_TYPES[0]: given}
        if local is not None or (model == "olmo3" and given):
            layers[_LOCAL] = {}  # neither Gemma 3 nor OLMo 3 scales its sliding layers
        elif model.startswith("gemma3"):
            raise BadInput(f"{_LOCAL_BASE} is missing, and its default is not in the file; add it there")
    for name, rope in layers.items():
        _check_inner(rope)
        own = rope.get("rope_theta")
        own = local if own is None and name == _LOCAL else own
        own = next((one for one in (own, theta, _BASE_IN_CODE.get(model), base) if one is not None), None)
        if own is None:
            raise BadInput(f"{key} is missing; give --base")
        layers[name] = {**rope, "rope_theta": number(key, own)}
    return layers


def _rope_dict(config: Config) -> Config:
    found: list[Config] = []
    for key in _DICTS:
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise BadInput(f"{key} = {shown(value)} is not an object {{...}} or null")
        found += [value] if value else []
    if len(found) == 2 and found[0] != found[1]:
        raise BadInput("rope_scaling and rope_parameters are both given and differ; keep one")
    return found[0] if found else {}


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _check_rotates(config: Config, model: str, rotates: bool) -> None:
    kind = config.get("position_embedding_type")
    told = next((key for key in _NOT_ROTATING if flag(config, key)), None)
    if flag(config, "rotary") is False:
        told = "rotary = false"
    elif kind in ("nope", "alibi") or (kind == "absolute" and not rotates):
        told = f"position_embedding_type = {kind}"
    elif model in _NO_ROPE and not rotates:
        told = f"model_type = {model}"
    if told:
        raise BadInput(f"the model does not encode positions by rotation ({told}); there is no RoPE to audit")


def _check_inner(rope: Config) -> None:
    for key in rope:
        if key not in _INNER:
            known = ", ".join(sorted(_INNER))
            raise BadInput(f"the key {shown(key)} of the RoPE parameters is not understood; understood are {known}")


def _kind(rope: Config) -> str:
    names = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    kinds = [_LEGACY.get(name, name) if isinstance(name, str) else name for name in names]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in scaling.KINDS or kind == "explicit":
            known = ", ".join([*(k for k in scaling.KINDS if k != "explicit"), *_LEGACY])
            raise BadInput(f"rope_type = {shown(kind)} is not understood; known: {known}")
    if len(set(kinds)) > 1:
        raise BadInput(f"rope_type = {shown(names[0])} and type = {shown(names[1])} differ; keep one")
    return kinds[0] if kinds else "default"


def _setting(config: Config, rope: Config, layer: str, model: str) -> RopeSetting:
    kind = _kind(rope)
    head_dim, rotary_dim, fraction = _dims(config, rope, layer, model, kind)
    scale = _scaling(config, rope, kind, fraction)
    interleave = flag(config, "rope_interleave")
    interleaved = model in _INTERLEAVED if interleave is None else interleave
    return RopeSetting.of(
        head_dim,
        rotary_dim,
        rope["rope_theta"],
        "interleaved" if interleaved else "half",
        _softmax_scale(config, model, head_dim, scale),
        scale,
    )
