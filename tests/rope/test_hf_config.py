"""config.json of public models, old and new, and a hundred that are damaged or hostile."""

import importlib
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from real_configs import CLASSES, FACTORS, OTHERS, TEXTS, config

from ropeaudit import Case, parse
from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope import hf_config, hf_json, presets, scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import from_config


@pytest.mark.parametrize("name", TEXTS)
def test_a_config_and_the_named_model_say_the_same(name: str) -> None:
    result, stored = from_config(config(name), name, "config.json"), presets.named(name)
    assert (result.heads, result.kv_heads, result.maximum) == (stored.heads, stored.kv_heads, stored.maximum)
    assert dict(result.layers) == dict(stored.layers)
    assert result.axes is None


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CLASSES)
def test_frequencies_and_scales_are_those_of_the_model_in_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, prefix = CLASSES[name]
    given = config(name)
    given = {**given, **given.get("text_config", {}), "model_type": kind}
    given |= {"num_hidden_layers": len(given["layer_types"])} if "layer_types" in given else {}
    theirs = transformers.AutoConfig.for_model(**given)
    module = importlib.import_module(type(theirs).__module__.replace("configuration_", "modeling_"))
    rotary = getattr(module, f"{prefix}RotaryEmbedding")(theirs)
    with torch.device("meta"):
        softmax = getattr(module, f"{prefix}Attention")(theirs, layer_idx=0).scaling
    for layer, setting in from_config(config(name), name, "here").layers.items():
        at = f"{layer}_" if hasattr(rotary, f"{layer}_inv_freq") else ""
        result = frequencies(setting, "inverse_power", parse("fp32")).astype(float)
        expected = getattr(rotary, f"{at}inv_freq").double().numpy()
        assert result == pytest.approx(expected, rel=60 * 2.0**-24, abs=0)
        assert scaled.attention_factor(setting.scaling) == getattr(rotary, f"{at}attention_scaling")
        assert setting.scale == pytest.approx(softmax, rel=1e-15)


def test_longrope_takes_the_original_length_from_outside() -> None:
    setting = from_config(config("phi-3.5"), "phi", "here").layers["full_attention"]
    assert (setting.head_dim, setting.scaling.kind, setting.scaling.stretch) == (96, "longrope", 32.0)
    assert setting.scaling.original == 4096
    assert setting.scaling.long == tuple(FACTORS["long"])
    legacy = config("phi-3.5")
    legacy["rope_scaling"]["type"] = "su"
    assert from_config(legacy, "phi", "here").layers["full_attention"] == setting


def test_axes_of_images() -> None:
    split, woven = (from_config(config(name), name, "here") for name in ("qwen2-vl", "qwen3-vl"))
    assert str(split.axes) == "split 16/24/24 shifted thw"
    assert str(woven.axes) == "interleaved 24/20/20 shifted thw"
    assert woven.layers["full_attention"].base == 5e6
    assert split.layers["full_attention"].scaling.kind == "default"


def test_settings_per_layer_type() -> None:
    layers = from_config(config("new-gemma-3"), "g", "here").layers
    assert {name: (s.base, s.scaling.kind) for name, s in layers.items()} == {
        "full_attention": (1e6, "linear"),
        "sliding_attention": (1e4, "default"),
    }
    full, sliding = from_config(config("gemma-4"), "g", "here").layers.values()
    assert (full.head_dim, full.rotary_dim, full.scaling.fraction, full.scale) == (512, 512, 0.25, 1.0)
    assert (sliding.head_dim, sliding.rotary_dim, sliding.scaling.kind) == (256, 256, "default")


def test_layers_that_would_not_be_scaled_are_no_type_of_their_own_where_none_is() -> None:
    assert list(from_config(config("olmo-3-7b"), "o", "here").layers) == [
        "full_attention",
        "sliding_attention",
    ]
    plain = {key: value for key, value in config("olmo-3-7b").items() if key != "rope_scaling"}
    assert list(from_config(plain, "o", "here").layers) == ["full_attention"]


def test_a_layer_type_that_does_not_rotate_is_left_out() -> None:
    values = config("new-gemma-3") | {"model_type": "cohere2"}
    values["rope_parameters"]["full_attention"] = None
    assert list(from_config(values, "c", "here").layers) == ["sliding_attention"]
    assert from_config(values, "c", "here").layers["sliding_attention"].layout == "interleaved"


def test_softmax_scales() -> None:
    assert from_config(config("granite"), "g", "here").layers["full_attention"].scale == 0.0078125
    v3 = from_config(config("deepseek-v3"), "d", "here").layers["full_attention"]
    assert v3.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2, rel=1e-15)
    assert (v3.head_dim, v3.rotary_dim, v3.layout) == (192, 64, "interleaved")


def test_dynamic_and_yarn_take_the_declared_maximum() -> None:
    values = config("qwen2.5-7b") | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    assert from_config(values, "q", "here").layers["full_attention"].scaling.maximum == 131072
    values["rope_scaling"] = {"type": "yarn", "factor": None, "original_max_position_embeddings": 32768}
    assert from_config(values, "q", "here").layers["full_attention"].scaling.stretch == 4.0
    values["rope_scaling"] = {"type": "yarn", "factor": 4.0, "finetuned": True}
    scale = from_config(values, "q", "here").layers["full_attention"].scaling
    assert (scale.original, scale.maximum) == (131072, None)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_new_and_old_spellings_are_one(key: str) -> None:
    old = config("llama-3.1-8b")
    new = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_scaling")}
    new[key] = {"rope_theta": 500000.0, **old["rope_scaling"]}
    assert from_config(new, "l", "here") == from_config(old, "l", "here")


def test_a_base_can_be_given_where_there_is_none() -> None:
    values = config("falcon-7b")
    del values["rope_theta"]
    assert from_config(values, "f", "here", base=12345.0).layers["full_attention"].base == 12345.0
    assert (
        from_config(config("falcon-7b"), "f", "here", base=12345.0).layers["full_attention"].base == 10000.0
    )


def test_a_kind_of_model_that_adds_positions_may_rotate_them_where_its_config_says_so() -> None:
    values = config("llama-3.1-8b") | {"model_type": "bert", "rope_scaling": None}
    assert from_config(values, "b", "here").layers["full_attention"].base == 500000.0


def test_the_text_part_stands_three_levels_deep_at_most() -> None:
    values = config("llama-3.1-8b")
    inner = {"thinker_config": {"text_config": {"text_config": values}}}
    assert from_config(inner, "l", "here").layers == from_config(values, "l", "here").layers
    with pytest.raises(BadInput, match="holds a text_config within a text_config"):
        from_config({"text_config": inner}, "l", "here")


def test_position_axes_by_hand_stand_before_those_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("qwen2-vl")))
    own = Case(config=str(tmp_path), seq_len=4)
    assert str(own.position_axes(own.setting(4))).startswith("split 16/24/24")
    given = Case(config=str(tmp_path), seq_len=4, mrope="20,22,22")
    assert str(given.position_axes(given.setting(4))).startswith("split 20/22/22")


def test_a_fraction_of_dims_is_rounded_down_where_both_are_told() -> None:
    values = config("llama-3.1-8b") | {"hidden_size": 96 * 32, "partial_rotary_factor": 0.4, "rotary_dim": 38}
    values |= {"model_type": "nemotron"}
    (layer,) = from_config(values, "f", "here").layers.values()
    assert (layer.head_dim, layer.rotary_dim) == (96, 38)


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3.1-8B"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(TEXTS["llama-3.1-8b"])
    for path in (folder, file):
        result = hf_config.read(str(path))
        assert (result.name, result.source) == ("Llama-3.1-8B", repr(str(path)))
    other = file.rename(folder / "mine.json")
    assert hf_config.read(str(other)).name == "mine"


Change = dict[str, Any]
REFUSED: list[tuple[str, Change, str]] = [
    ("llama-3.1-8b", {"rope_theta": None, "model_type": "unknown"}, "rope_theta is missing; give base"),
    ("llama-3.1-8b", {"rope_theta": None, "model_type": None}, "rope_theta is missing; give base"),
    (
        "gpt-oss-20b",
        {"rope_theta": None},
        "= null is not a number; without the key it is GptOssConfig's 150000$",
    ),
    ("gpt-neox-20b", {"rotary_pct": None}, "partial_rotary_factor is missing"),
    (
        "qwen3-vl",
        {"text_config": {**config("qwen3-vl")["text_config"], "head_dim": None}},
        "head_dim = null is not a number; without the key it is Qwen3VLTextConfig's 128$",
    ),
    (
        "gemma-3-27b",
        {"text_config": {"model_type": "gemma3_other", "rope_theta": 1e6, "rope_local_base_freq": 1e4}},
        "head_dim is missing",
    ),
    (
        "gemma-3-27b",
        {"text_config": {"model_type": "gemma3_other", "rope_theta": 1e6}},
        "rope_local_base_freq is",
    ),
    (
        "llama-3.1-8b",
        {"num_attention_heads": None, "head_dim": 128},
        "num_attention_heads = null is not a number; without the key it is LlamaConfig's 32$",
    ),
    (
        "llama-3.1-8b",
        {"rope_theta": None},
        "= null is not a number; without the key it is LlamaConfig's 10000$",
    ),
    ("llama-3.1-8b", {"max_position_embeddings": None}, "max_position_embeddings = null is not a number"),
    (
        "llama-3.1-8b",
        {"hidden_size": 4100},
        "hidden_size = 4100 is not a multiple of num_attention_heads = 32; give head_dim$",
    ),
    (
        "llama-3.1-8b",
        {"model_type": "bert", "rope_theta": None, "rope_scaling": None},
        "not encode .*type = bert",
    ),
    ("falcon-7b", {"alibi": True}, r"by rotation \(alibi = true\)"),
    ("gpt-j-6b", {"rotary": False}, r"by rotation \(rotary = false\)"),
    ("granite", {"position_embedding_type": "nope"}, "by rotation .*nope"),
    ("llama-3.1-8b", {"rope_ratio": 50}, "key 'rope_ratio' is not understood"),
    ("llama-3.1-8b", {"rotary_new": 50}, "key 'rotary_new' is not understood"),
    ("llama-3.1-8b", {"my_rope_base": 50}, "key 'my_rope_base' is not understood"),
    ("qwen2.5-7b", {"use_dynamic_ntk": True}, "key 'use_dynamic_ntk' is not understood"),
    (
        "qwen2.5-7b",
        {"rope_scaling": {"type": "ntk-aware", "factor": 2}},
        "'ntk-aware' is not understood; known: default",
    ),
    (
        "qwen2.5-7b",
        {"rope_scaling": {"type": "linear", "alpha": 2}},
        "RoPE parameter 'alpha' is not understood",
    ),
    (
        "qwen2.5-7b",
        {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}},
        "differ; keep one",
    ),
    ("qwen2.5-7b", {"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3}}, "takes no beta_fast"),
    ("qwen2.5-7b", {"rope_scaling": {"type": "linear"}}, "linear needs factor"),
    ("qwen2.5-7b", {"rope_scaling": {"a_layer": {"factor": 2}}}, "layer type 'a_layer' is not understood"),
    ("qwen2.5-7b", {"rope_scaling": {"full_attention": None}}, "every layer type .* is null"),
    (
        "qwen2.5-7b",
        {"rope_parameters": {"factor": 2}, "rope_scaling": {"factor": 3}},
        "both given and differ",
    ),
    ("phi-3.5", {"num_attention_heads": 16}, "48 elements and there are 96 pairs"),
    ("qwen2-vl", {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24]}}, "not three counts"),
    (
        "qwen2-vl",
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 25]}},
        "65 pairs and there are 64",
    ),
    ("qwen2-vl", {"rope_scaling": {"type": "mrope", "mrope_interleaved": True}}, "mrope_section is missing"),
    ("qwen2-vl", {"model_type": "ernie4_5_vl_moe", "head_dim": 128}, "way that is not understood"),
    ("minimax-text-01", {"partial_rotary_factor": 0.25}, "rotary_dim = 64 is not 0.25 of head_dim"),
    ("minimax-text-01", {"rotary_dim": 63}, "rotary_dim 63 is not an even number from 2 to 65536$"),
    ("falcon-7b", {"multi_query": "yes"}, "multi_query = \"?'yes'\"? is not true or false"),
    ("llama-3.1-8b", {"num_key_value_heads": 7}, "^.*num_key_value_heads = 7 does not divide"),
    ("granite", {"attention_multiplier": 0}, "is not above 0"),
    ("llama-3.1-8b", {"rope_theta": 1}, "rope_theta = 1 is not a finite number above 1$"),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_what_is_not_understood_is_named(name: str, change: Change, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        from_config(config(name) | change, name, "config.json")
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# RoPE parameters, and all that is said of them: in the words of config.json, without numbers to copy
SCALINGS = [
    (
        LLAMA3,
        "rope_type is missing, so rope_scaling is read as default, which takes no factor, "
        "original_max_position_embeddings, low_freq_factor, high_freq_factor; "
        'add "rope_type": "llama3"',
    ),
    (
        {"factor": 8.0},
        "rope_type is missing, so rope_scaling is read as default, which takes no factor; add "
        '"rope_type": "linear" or "rope_type": "dynamic" or "rope_type": "proportional" or '
        '"rope_type": "yarn", whichever is meant',
    ),
    (
        {"low_freq_factor": 1.0, "beta_fast": 32.0},
        "rope_type is missing, so rope_scaling is read as default, which takes no low_freq_factor, "
        "beta_fast; no type takes all of them",
    ),
    (
        {"factor": 8.0, "low_freq_factor": 1.0},
        "rope_type is missing, so rope_scaling is read as default, which takes no factor, low_freq_factor; "
        'add "rope_type": "llama3"',
    ),
    (
        {"rope_type": "llama3", "factor": 8.0},
        "rope_type llama3 needs low_freq_factor, high_freq_factor, original_max_position_embeddings; "
        "add them to rope_scaling",
    ),
    ({"type": "linear"}, "rope_type linear needs factor; add it to rope_scaling"),
    (
        {"type": "yarn", "original_max_position_embeddings": 4096},
        "rope_type yarn needs factor; add it to rope_scaling",
    ),
    (
        {**LLAMA3, "rope_type": "llama3", "original_max_position_embeddings": 8192.5},
        "original_max_position_embeddings = 8192.5 is not a number of positions from 2 up",
    ),
    (
        {"rope_type": "longrope", "short_factor": [1.0], "original_max_position_embeddings": 4096},
        "rope_type longrope needs long_factor; add it to rope_scaling",
    ),
    (
        {"rope_type": "linear", "factor": 2, "high_freq_factor": 3, "attention_factor": 1.5},
        "rope_type linear takes no high_freq_factor, attention_factor; it takes factor, "
        "original_max_position_embeddings",
    ),
    ({"rope_type": "default", "factor": 2}, "rope_type default takes no factor; it takes nothing"),
    (
        {**LLAMA3, "rope_type": "llama3", "original_max_position_embeddings": 1},
        "original_max_position_embeddings = 1.0 is not a number of positions from 2 up",
    ),
    (
        {"rope_type": "linear", "factor": 0.5},
        "factor = 0.5 is below 1, which would shorten the context",
    ),
    (
        {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 63 + [0.0]}
        | {"factor": 2.0, "original_max_position_embeddings": 4096},
        "long_factor[63] = 0.0 is not a number above 0 that a model could have",
    ),
    (
        {"rope_type": "longrope", "short_factor": [1], "long_factor": [1], "factor": 2.0}
        | {"original_max_position_embeddings": 4096},
        "short_factor has 1 elements and there are 64 pairs; give one per pair",
    ),
]


@pytest.mark.parametrize(("scaling", "message"), SCALINGS)
def test_errors_of_a_scaling_speak_of_the_keys_of_the_file(scaling: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        from_config(config("llama-3.1-8b") | {"rope_scaling": scaling}, "name", "config.json")
    assert caught.value.typed == f"config.json: {message}"


def test_a_length_that_a_scaling_needs_stands_outside_its_parameters() -> None:
    bare = {key: value for key, value in config("llama-3.1-8b").items() if key not in hf_json.POSITIONS}
    bare |= {"model_type": "unknown", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    with pytest.raises(BadInput, match=r"dynamic needs max_position_embeddings; add it to the config$"):
        from_config(bare, "name", "config.json")


# Texts that no configuration should have, written to a file as they are.
WHOLE: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \n\t ",
    "null": b"null",
    "number": b"12",
    "list": b"[]",
    "text": b'"config"',
    "empty object": b"{}",
    "cut short": b'{"rope_theta": 1000',
    "two objects": b"{}{}",
    "comment": b'{"a": 1} // no',
    "single quotes": b"{'a': 1}",
    "trailing comma": b'{"a": 1,}',
    "a list in depth": b"[" * 200_000,
    "objects in depth": b'{"a":' * 100_000,
    "text_config in depth": b'{"text_config":' * 50 + b"{}" + b"}" * 50,
    "latin-1": '{"a": "\xe9"}'.encode("latin-1"),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "zeros": bytes(1000),
    "a cut character": b'{"a": "\xf0\x9f"}',
    "random": random.Random(1).randbytes(5000),
    "pickle": b"\x80\x04K\x01.",
    "5000 digits": b'{"rope_theta": ' + b"9" * 5000 + b"}",
    "twice": b'{"rope_theta": 1e4, "rope_theta": 1e6}',
    "twice inside": b'{"rope_scaling": {"factor": 1, "factor": 2}}',
    "lone surrogate": b'{"rope_\\ud800": 3}',
    "line breaks in a key": b'{"rope_\\n\\u001b[31m": 3}',
    "a million keys": b"{" + b",".join(b'"%d":0' % i for i in range(300_000)) + b"}",
    "a long key": b'{"rope_' + b"x" * 2_000_000 + b'": 1}',
    "17 MiB": b'{"a": "' + b"x" * (17 * 2**20) + b'"}',
}
VALUES = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "9" * 1000,
    "-1",
    "0",
    "-0.0",
    "1e-400",
    "true",
    '"8"',
    '""',
]
VALUES += [
    "[]",
    "[1]",
    "{}",
    '{"a": {}}',
    "[" * 300 + "]" * 300,
    "1e308",
    "0.3",
    '"' + "x" * 10**6 + '"',
    "[null]",
]
VALUES += [
    f"[{','.join(['1'] * 100_000)}]",
    "9007199254740993",
    "5e-324",
    '"\\ud800"',
    '"NaN"',
    "[1, 2, 3]",
    "false",
]
TOP = ["rope_theta", "num_attention_heads", "num_key_value_heads", "hidden_size", "max_position_embeddings"]
TOP += [
    "rope_scaling",
    "model_type",
    "head_dim",
    "text_config",
    "partial_rotary_factor",
    "rotary_dim",
    "rope_parameters",
]
TOP += [
    "original_max_position_embeddings",
    "rope_local_base_freq",
    "query_pre_attn_scalar",
    "qk_nope_head_dim",
]
TOP += ["rope_interleave", "attention_multiplier", "layer_types", "position_embedding_type", "rotary"]


def damaged(seed: int) -> bytes:
    """A real config with one to three values replaced, at any level, or with bytes changed."""
    rng = random.Random(seed)
    name = rng.choice([*TEXTS, *OTHERS])
    values = config(name)
    target = values.get("text_config", values)
    marks = {}
    for n in range(rng.choice([1, 1, 2, 3])):
        place: Any = target
        if isinstance(target.get("rope_scaling"), dict) and rng.random() < 0.6:
            place = target["rope_scaling"]
        mark = f"@{n}@"
        marks[f'"{mark}"'] = rng.choice(VALUES)
        place[rng.choice(list(place) if place is not target else [*TOP, *target])] = mark
    text = json.dumps(values)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    data = text.encode()
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(30) :]
    return data


def outcome(path: Path) -> str:
    """The message of the refusal, or "" where the file was read; nothing else may come out, nor late.

    By processor time, which other work on the machine does not take: a pass over some part of the file for
    each of its keys would need minutes.
    """
    start = time.process_time()
    try:
        result = hf_config.read(str(path))
    except RopeAuditError as error:
        message = str(error)
        assert "\n" not in message
        assert message.isprintable()
        assert len(message) < 1000 + len(str(path))
    else:
        message = ""
        for setting in result.layers.values():
            assert math.isfinite(setting.scale)
            assert math.isfinite(setting.base)
            assert 0 <= setting.rotary_dim <= setting.head_dim < 2**18
    assert time.process_time() - start < 5.0
    return message


@pytest.mark.parametrize("kind", WHOLE)
def test_a_hostile_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(WHOLE[kind])
    assert outcome(file)


def test_a_byte_order_mark_is_refused_as_transformers_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(TEXTS["llama-3.1-8b"], encoding="utf-8-sig")
    with pytest.raises(OSError, match="is not a valid JSON file"):
        transformers.AutoConfig.from_pretrained(str(tmp_path))
    assert outcome(file).endswith(
        ": begins with a byte-order mark, with which transformers does not load it; save it as UTF-8 without "
        "one"
    )


@pytest.mark.parametrize("content", [b"{'single': 1}", b"", b'{"a": 1', b'{"name": "caf\xe9"}'])
def test_what_is_no_json_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert "is not JSON in UTF-8: " in outcome(file)
    assert "; give a config.json" in outcome(file)


def test_a_hundred_damaged_configs(tmp_path: Path) -> None:
    refused, seed = 0, 0
    while refused < 150:  # some changes leave a file that says something sensible
        file = tmp_path / f"{seed}.json"
        file.write_bytes(damaged(seed))
        refused += bool(outcome(file))
        seed += 1
    assert seed < 400


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["rope_theta", "num_attention_heads", "hidden_size", "rope_scaling"])
def test_a_needed_value_of_nonsense(key: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    values = config("llama-3.1-8b") | {key: "@"}
    file.write_text(json.dumps(values).replace('"@"', value))
    sensible = {"rope_theta": ("1e308", "9007199254740993"), "rope_scaling": ("{}",)}
    if value not in sensible.get(key, ()) or value == "1e308":
        assert outcome(file)


@pytest.mark.parametrize(
    "key", ["factor", "low_freq_factor", "original_max_position_embeddings", "rope_type"]
)
@pytest.mark.parametrize("value", [v for v in VALUES if v not in ("0.3", "9007199254740993", "5e-324")])
def test_a_rope_parameter_of_nonsense(key: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    values = config("llama-3.1-8b")
    values["rope_scaling"][key] = "@"
    file.write_text(json.dumps(values).replace('"@"', value))
    assert outcome(file)


def test_paths_that_hold_no_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    for path in (
        tmp_path,
        tmp_path / "none.json",
        tmp_path / "a\0b",
        tmp_path / ("x" * 5000),
        Path("/dev/null"),
    ):
        with pytest.raises(BadInput) as caught:
            hf_config.read(str(path))
        assert "\n" not in str(caught.value)


def test_python_values_that_json_has_not() -> None:
    values: list[Any] = [None, 3, [], {1: 2}, {"rope_theta": 10**5000}, {"model_type": object()}]
    values += [
        {"rope_theta": complex(1)},
        {"rope_theta": 1e4, "num_attention_heads": 10**5000, "hidden_size": 64},
    ]
    for one in values:
        with pytest.raises(BadInput):
            from_config(one, "x", "here")
