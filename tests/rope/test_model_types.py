"""What a configuration class takes where a config.json gives nothing is what that of transformers takes.

python tests/rope/test_model_types.py     writes ropeaudit/data/model_types.toml anew
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import rotary_code
from their_code import built, differences

from ropeaudit import data
from ropeaudit.errors import BadInput
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.model_types import OPTIONAL, SIZES
from ropeaudit.rope.unused_keys import unused_keys

VERSION = "5.23.0"
FILE = Path(data.__file__).parent / "model_types.toml"
HEADER = f"""\
# What the configuration classes of transformers {VERSION} say, and whether their code rotates. Written by
# tests/rope/test_model_types.py. Model type, or the class where it has none ->
# class; positions: what its code has where it does not rotate q and k; parts: the types that it gives to what
# stands in it without a model_type; flat: keys of the text's config are read beside its parts too.
# Of types that rotate: the base (rope_theta), or one by layer type where these differ; length and sizes;
# partial_rotary_factor: the share where none is given; false where the code, without a scaling, rotates all
# dims whatever that says; reads: those of the keys that few types read which stand in its source;
# scaled: the RoPE parameters, where they ask for a scaling. What is not here is computed from others, or is
# none of the class.

"""

# What reading the code does not tell; None: it rotates q and k.
POSITIONS: dict[str, str | None] = {
    **dict.fromkeys(("glm5_next_text", "kimi_linear", "moonshine_streaming_encoder"), "no positions"),
    **dict.fromkeys(("moshi_depth", "zamba"), "no positions"),
    **dict.fromkeys(("inkling_text", "inkling2_text"), "relative biases"),
    **dict.fromkeys(("layoutxlm", "pp_chart2table_vision"), "relative biases"),  # LayoutLMv2, GOT-OCR 2
    **dict.fromkeys(("aimv2_vision_model", "distilbert", "trocr"), "learned positions"),  # by default
    **dict.fromkeys(("clvp_decoder", "gemma4_unified_vision"), "learned positions"),
    **dict.fromkeys(("canary_decoder", "ctrl", "fun_asr_nano_encoder", "timesfm"), "sinusoidal positions"),
    **dict.fromkeys(("mimi", "pocket_tts_audio_tokenizer")),  # by models whose configs they make themselves
    "esmfold2": "",  # its parts'
    "musicflamingo": "",  # its parts'; it turns what it hears by time, not q and k
    "whisper": "sinusoidal positions",  # which fill an embedding
}
# Types that rotate by rows and columns, or by points, without a rope_type "axial".
AXIAL = {
    *("EsmFold2AtomEncoderConfig", "dinov3_vit", "efficientloftr", "eomt_dinov3", "lightglue"),
    *("llama4_vision_model", "sapiens2", "vjepa2"),
}
_OWN_SIZES = (*SIZES, "num_hidden_layers")


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
        base = _declared(kind).get("rotary_embedding_base")
        own = axial | ({"rope_theta": float(base)} if base else {}) | _sizes(kind) | _reads(kind)
        return {} if by_parts else own
    if any(one.get("rope_type") == "axial" for one in _parts(parameters)):
        return {"axial": True, **_bases(parameters), **_sizes(kind)}
    default = _scaled(kind, parameters)
    bases = _bases(parameters) or _bases(kind(rope_parameters={"rope_type": "default"}).rope_parameters)
    values = {**axial, **bases, **_sizes(kind), **_reads(kind)}
    shares = {one.get("partial_rotary_factor", 1.0) for one in _parts(parameters)}
    if _rotates_all(kind):
        values["partial_rotary_factor"] = False
    elif len(shares) == 1 and shares != {1.0} and not default:
        values["partial_rotary_factor"] = float(shares.pop())
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


def _reads(kind: Any) -> dict[str, list[str]]:
    """Return which of the keys that few types read stand in the source of a class, or of its code."""
    names = [kind.__module__, kind.__module__.replace("configuration", "modeling")]
    paths = [importlib.util.find_spec(name) for name in names]
    text = "".join(Path(one.origin).read_text(encoding="utf-8") for one in paths if one and one.origin)
    return {"reads": [key for key in OPTIONAL if re.search(rf"\b{key}\b", text)]}


def _sizes(kind: Any) -> dict[str, float]:
    """Return the sizes that a class declares; those that it computes of others are no default of its own."""
    declared = _declared(kind)
    sizes = {key: declared.get(key, declared.get(kind.attribute_map.get(key))) for key in _OWN_SIZES}
    return {key: value for key, value in sizes.items() if isinstance(value, (int, float))}


def _declared(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


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


@pytest.mark.slow
def test_the_file_is_what_the_classes_say() -> None:
    of_version()
    text = FILE.read_text(encoding="utf-8")
    assert text == written(of_transformers())
    assert len(tomllib.loads(text)) > 100


def _theirs(name: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model, and the configuration, that transformers makes of a config."""
    config = importlib.import_module("transformers").CONFIG_MAPPING[name].from_dict(copy.deepcopy(given))
    return built(name, config), config


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
    ("nemotron", {"partial_rotary_factor": 0.25, "num_key_value_heads": 8}),
]


@pytest.mark.filterwarnings("ignore")
def test_what_is_read_of_a_few_keys_is_what_transformers_computes() -> None:
    of_version().logging.set_verbosity(50)
    wrong = {}
    for model, added in READ:
        given = {"model_type": model, **BARE, **added}
        read = from_config(given, "name", "config.json")
        if told := list(differences(read, *_theirs(model, given))):
            wrong[f"{model} {added}"] = told
    assert wrong == {}


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
