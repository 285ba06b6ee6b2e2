"""What a configuration class takes where a config.json gives nothing is what that of transformers takes.

python tests/rope/test_model_types.py     writes ropeaudit/data/model_types.toml anew
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rotary_code

from ropeaudit import data
from ropeaudit.arithmetic.formats import FP64
from ropeaudit.errors import BadInput
from ropeaudit.rope import model_types
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.model_types import SIZES
from ropeaudit.rope.unused_keys import unused_keys

VERSION = "5.23.0"
FILE = Path(data.__file__).parent / "model_types.toml"
HEADER = f"""\
# What the configuration classes of transformers {VERSION} say, and whether their code rotates. Written by
# tests/rope/test_model_types.py. Model type, or the class where it has none ->
# class; positions: what its code has where it does not rotate q and k; parts: the types that it gives to what
# stands in it without a model_type; flat: keys of the text's config are read beside its parts too.
# Of types that rotate: the base (rope_theta), or one by layer type where these differ; length and sizes;
# partial_rotary_factor = false where the code, without a scaling, rotates all dims whatever that says;
# scaled: the RoPE parameters, where they ask for a scaling. What is not here is computed from others, or is
# none of the class.

"""

# What reading the code does not tell; None: it rotates q and k.
POSITIONS: dict[str, str | None] = {
    **dict.fromkeys(("glm5_next_text", "kimi_linear", "moshi_depth"), "no positions"),
    **dict.fromkeys(("inkling_text", "inkling2_text"), "relative biases"),
    "gemma4_unified_vision": "learned positions",
    **dict.fromkeys(("mimi", "pocket_tts_audio_tokenizer")),  # by models whose configs they make themselves
    "musicflamingo": "",  # its parts'; it turns what it hears by time, not q and k
    "whisper": "sinusoidal positions",  # which fill an embedding
    "zamba": "no positions",
}
# Types that rotate by rows and columns, or by points, without a rope_type "axial".
AXIAL = {
    *("EsmFold2AtomEncoderConfig", "dinov3_vit", "efficientloftr", "eomt_dinov3", "lightglue"),
    *("llama4_vision_model", "sapiens2", "vjepa2"),
}
_OWN_SIZES = (*SIZES, "hidden_size", "num_hidden_layers")


def of_transformers() -> dict[str, dict[str, Any]]:
    """Return what the classes of the installed transformers say, type by type."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity(50)
    found: dict[str, dict[str, Any]] = {}
    todo = {name: CONFIG_MAPPING[name] for name in CONFIG_MAPPING}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while todo:
            name, kind = todo.popitem()
            found[name] = _row(name, kind)
            todo |= {key: part for key, part in _parts_of(kind).values() if key not in found}
    return found


@functools.cache
def _parts_of(kind: Any) -> dict[str, tuple[str, Any]]:
    """Return the type, and the class, that a class gives to each of its parts without a model_type."""
    found = {}
    for key, spec in kind.sub_configs_defaults.items():
        part = getattr(_made(kind, **{key: {}}), key, None)
        with contextlib.suppress(ValueError):  # a type that is not there
            named = type(part) if hasattr(part, "model_type") else spec.get_config_class(spec.model_type)
            found[key] = (named.model_type or named.__name__, named)
    return found


def _made(kind: Any, **given: Any) -> Any:
    """Return a config of a class, or None where it cannot be made so."""
    try:
        return kind(**given)
    except Exception:  # of whatever kind; the file is compared with what remains
        return None


def _row(name: str, kind: Any) -> dict[str, Any]:
    """Return what is known of a type."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    parts, model = _parts_of(kind), MODEL_MAPPING_NAMES.get(name, "")
    words = rotary_code.reached(kind.__name__, _classes(parts), model if isinstance(model, str) else model[0])
    has = None if rotary_code.rotates(words) else rotary_code.instead(words)
    of_parts = parts and (has == "no rotary code" or not any(one.endswith("Attention") for one in words))
    positions = POSITIONS.get(name, None if of_parts else has)
    row: dict[str, Any] = {"class": kind.__name__} | ({"positions": positions} if positions else {})
    row |= {"parts": {key: one for key, (one, _) in parts.items()}} if parts else {}
    row |= {"flat": True} if parts and _is_flat(kind) else {}
    return row if positions is not None else row | _rotation(kind, name, bool(of_parts and has))


def _classes(parts: dict[str, tuple[str, Any]]) -> set[str]:
    """Return the names of the classes of parts, and of theirs."""
    inner = [_classes(_parts_of(one)) for _, one in parts.values()]
    return {one.__name__ for _, one in parts.values()}.union(*inner)


def _is_flat(kind: Any) -> bool:
    """Return whether a size of the text that stands beside the parts is read."""
    config = _made(kind, max_position_embeddings=7777)
    text = None if config is None else config.get_text_config(decoder=True)
    own = text is None or text.model_type == kind.model_type
    return not own and getattr(text, "max_position_embeddings", None) == 7777


def _rotation(kind: Any, name: str, by_parts: bool) -> dict[str, Any]:
    """Return what a class says of its rotation."""
    parameters = getattr(_made(kind), "rope_parameters", None) or {}
    axial = {"axial": True} if name in AXIAL else {}
    if not parameters:
        return {} if by_parts else axial | _sizes(kind)
    if any(one.get("rope_type") == "axial" for one in _parts(parameters)):
        return {"axial": True, **_bases(parameters), **_sizes(kind)}
    default = _scaled(kind, parameters)
    bases = _bases(parameters) or _bases(kind(rope_parameters={"rope_type": "default"}).rope_parameters)
    values = {**axial, **bases, **_sizes(kind)}
    values |= {"partial_rotary_factor": False} if _rotates_all(kind) else {}
    return values | ({"scaled": default} if default else {})


def _scaled(kind: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a class's RoPE parameters where they ask for a scaling, without a base that rope_theta sets."""
    if not _asks_for_scaling(parameters):
        return {}
    free = kind(rope_theta=777.0).rope_parameters.get("rope_theta") == 777.0
    return {key: value for key, value in parameters.items() if not (free and key == "rope_theta")}


def _asks_for_scaling(parameters: dict[str, Any]) -> bool:
    return any(one.get("rope_type", "default") != "default" for one in _parts(parameters))


def _parts(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [value for value in parameters.values() if isinstance(value, dict)] or [parameters]


def _rotates_all(kind: Any) -> bool:
    """Return whether its code has as many frequencies for half of the dims as for all; False if unknown."""
    whole, half = (_frequencies(kind, fraction) for fraction in (1.0, 0.5))
    return bool(whole) and whole == half


def _frequencies(kind: Any, fraction: float) -> list[int]:
    """Return how many frequencies the rotary embeddings of a class's text have without a scaling."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    config = kind()
    for one in _parts(config.rope_parameters):
        one |= {"rope_type": "default", "partial_rotary_factor": fraction}
        one.setdefault("rope_theta", 1e4)
    try:
        module = importlib.import_module(kind.__module__.replace("configuration", "modeling"))
    except ModuleNotFoundError:  # its code is another type's
        module = importlib.import_module(MODEL_MAPPING[kind].__module__)
    counts: list[int] = []
    for name, rotary in sorted(vars(module).items()):
        if name.endswith("RotaryEmbedding") and "Vision" not in name and rotary.__module__ == module.__name__:
            with contextlib.suppress(
                AttributeError, KeyError, TypeError, ValueError
            ):  # one of images or sound
                buffers = dict(rotary(config=config).named_buffers())
                counts += [len(held) for key, held in buffers.items() if key.endswith("inv_freq")]
    return counts


def _sizes(kind: Any) -> dict[str, int]:
    """Return the sizes that a class declares; those that it computes of others are no default of its own."""
    declared = {field.name: field.default for field in dataclasses.fields(kind)}
    sizes = {key: declared.get(key, declared.get(kind.attribute_map.get(key))) for key in _OWN_SIZES}
    return {key: value for key, value in sizes.items() if isinstance(value, int)}


def _bases(parameters: dict[str, Any]) -> dict[str, float]:
    """Return the base, or the bases by layer type; none where a scaling goes with them."""
    nested = {key: value for key, value in parameters.items() if isinstance(value, dict)}
    if _asks_for_scaling(parameters):
        return {}
    bases = {key: float(one["rope_theta"]) for key, one in sorted(nested.items())}
    if len(set(bases.values())) > 1:
        return bases
    theta = next(iter(bases.values()), parameters.get("rope_theta"))
    return {} if theta is None else {"rope_theta": float(theta)}


def written(found: dict[str, dict[str, Any]]) -> str:
    """Return the file's text."""
    lines = []
    for name, values in sorted(found.items()):
        key = name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)
        lines.append(f"{key} = {_toml(values)}\n")
    return HEADER + "".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(inner)}' for key, inner in value.items())} }}"
    return json.dumps(value) if isinstance(value, (str, bool)) else repr(value)


def of_version() -> Any:
    """Return transformers, or skip a test where it is not of the file's version."""
    transformers = pytest.importorskip("transformers")
    if importlib.metadata.version("transformers") != VERSION:
        pytest.skip(f"the file is of transformers {VERSION}")
    return transformers


def test_the_file_is_what_the_classes_say() -> None:
    of_version()
    text = FILE.read_text(encoding="utf-8")
    assert text == written(of_transformers())
    assert len(tomllib.loads(text)) > 100


@pytest.mark.filterwarnings("ignore")
def test_sizes_that_a_config_leaves_out_are_those_that_the_class_takes() -> None:
    of_version()
    models = sorted(set(tomllib.loads(FILE.read_text(encoding="utf-8"))) - {"blt"})  # whose parts have sizes
    found = {model: _other_sizes(model) for model in models}
    assert {model: wrong for model, wrong in found.items() if wrong} == {}


def _other_sizes(model: str) -> list[str]:
    """Return which sizes are read of a config without any that are not those of its class."""
    known = importlib.import_module("transformers").CONFIG_MAPPING
    name = next(one for one in (f"{model}_text", model) if one in known)
    heads = model_types.class_default(model).get("num_attention_heads", 32)
    theirs = known[name](hidden_size=192 * heads)
    theirs.allow_global_per_layer_attribute_access = True
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    given = {"model_type": name, "hidden_size": theirs.hidden_size, "rope_parameters": rope}
    given |= model_types.of_type(model, "rotates_if", {})
    if model.startswith(("gemma4", "diffusion_gemma")):
        given["global_head_dim"] = theirs.head_dim
    if model == "jetmoe":  # computes it of the heads of k
        given["num_attention_heads"] = theirs.num_attention_heads
    read = from_config(given, "name", "config.json")
    latent = getattr(theirs, "qk_nope_head_dim", None)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    kv_heads = getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads
    wanted = {
        "heads": (read.heads, theirs.num_attention_heads),
        "kv_heads": (read.kv_heads, kv_heads if model != "dbrx" else read.heads),  # in its attn_config
        "head_dim": (
            {one.head_dim for one in read.layers.values()},
            {latent + theirs.qk_rope_head_dim if latent else head_dim},
        ),
    }
    if not latent:
        share = 0.5 if model_types.takes_fraction(model) else 1.0
        rotated = {one.rotary_dim for one in read.layers.values()}
        wanted["rotary_dim"] = (rotated, {int(head_dim * share)})
    return [f"{what}: {seen}, not {right}" for what, (seen, right) in wanted.items() if seen != right]


def _theirs(name: str, given: dict[str, Any]) -> Any:
    """Return the parameters and frequencies by layer type that transformers makes of a config."""
    config = importlib.import_module("transformers").CONFIG_MAPPING[name].from_dict(copy.deepcopy(given))
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    [rotary] = [kind for key, kind in vars(module).items() if key.endswith("RotaryEmbedding")]
    buffers = dict(rotary(config=config).named_buffers())
    named = {key: key.removesuffix("inv_freq").strip("_") or "full_attention" for key in buffers}
    return {named[key]: held.tolist() for key, held in buffers.items() if "original" not in key}


BARE = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
READ: list[tuple[str, dict[str, Any]]] = [
    *(
        (model, {})
        for model in ("gpt_oss", "apertus", "cwm", "ministral3", "modernbert", "modernbert-decoder")
    ),
    *((model, {"rope_theta": 5e4}) for model in ("gpt_oss", "apertus", "cwm", "ministral3", "modernbert")),
    *(("gpt_oss", {key: {}}) for key in ("rope_scaling", "rope_parameters")),
    ("apertus", {"rope_scaling": None}),
    ("apertus", {"rope_theta": 5e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("apertus", {"rope_parameters": {"rope_type": "default"}}),
    ("modernbert", {"global_rope_theta": 8e4, "local_rope_theta": 2e4}),
    ("modernbert", {"local_rope_theta": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    ("llama", {"rope_scaling": {**YARN, "truncate": None}}),
    ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 1.0}}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("nemotron", {"partial_rotary_factor": 0.25}),
]


@pytest.mark.filterwarnings("ignore")
def test_frequencies_are_those_of_transformers() -> None:
    of_version().logging.set_verbosity(50)
    for model, added in READ:
        given = {"model_type": model, **BARE, **added}
        theirs, read = _theirs(model, given), from_config(given, "name", "config.json")
        assert theirs.keys() == read.layers.keys(), (model, added)
        for layer, setting in read.layers.items():
            seen = frequencies(setting, "inverse_power", FP64)
            np.testing.assert_allclose(seen, theirs[layer], rtol=2e-6, err_msg=f"{model} {added}")


NULL_LENGTH = {"original_max_position_embeddings": None}
NULL_BASE = {"rope_type": "linear", "factor": 2.0, "rope_theta": None}
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_scaling": {**YARN, **NULL_LENGTH}}),
    ("llama", {**NULL_LENGTH, "rope_scaling": YARN}),
    ("llama", {"rope_theta": 5e4, "rope_scaling": NULL_BASE}),
    ("llama", {"rope_scaling": {"type": None}}),
    ("llama", {"rope_scaling": {"rope_type": None, "type": "yarn"}}),
    ("phi3", {"rope_scaling": YARN}),
    ("phimoe", {"rope_scaling": YARN}),
]


@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_transformers_cannot_compute() -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity(50)
    for model, added in REFUSED:
        given = {"model_type": model, **BARE, **added}
        with pytest.raises(BadInput):
            from_config(given, "name", "config.json")
        with pytest.raises(Exception, match=r"None|longrope|short_factor|short_mscale"):
            _theirs(model, given)


def test_what_a_class_takes_where_a_scaling_is_missing_is_said() -> None:
    read = from_config({"model_type": "gpt_oss", **BARE}, "name", "config.json")
    said = 'rope_parameters missing: GptOssConfig\'s default {"rope_type": "yarn", "factor": 32.0, '
    assert any(note.startswith(said) for note in read.notes)
    given = {"model_type": "apertus", **BARE, "rope_theta": 5e4}
    assert "rope_theta = 50000.0 (1.2e+07 is used)" in list(map(str, unused_keys(given)))


def test_a_default_that_does_not_fit_is_said_to_be_one() -> None:
    config = {"model_type": "qwen3", "hidden_size": 256, "num_attention_heads": 4, "rope_theta": 1e6}
    missing = "num_key_value_heads missing: Qwen3Config's default 32, which does not divide"
    with pytest.raises(BadInput, match=f"{missing} num_attention_heads = 4; give num_key_value_heads that"):
        from_config(config, "small", "small")


if __name__ == "__main__":
    FILE.write_text(written(of_transformers()), encoding="utf-8")
