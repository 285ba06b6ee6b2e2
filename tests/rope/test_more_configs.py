"""config.json of forty more public models: what transformers computes for them, and what they leave out."""

import importlib
from typing import Any

import pytest
import torch
from real_configs import CLASSES, MORE, MORE_CLASSES, WITHOUT_CLASS, config

from ropeaudit import parse
from ropeaudit.errors import BadInput
from ropeaudit.rope import layers_of_models, scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.hf_json import NotRotated


def their_layout(module: Any) -> str:
    """How a modeling file pairs dims: by what its rotate_half does; Llama 4 turns complex numbers."""
    if not hasattr(module, "rotate_half"):
        return "interleaved"
    turned = module.rotate_half(torch.arange(8.0)).tolist()
    return {-1.0: "interleaved", -4.0: "half"}[turned[0]]


def test_every_config_of_another_family_is_compared() -> None:
    assert set(MORE_CLASSES) | WITHOUT_CLASS == set(MORE)
    assert len({kind for kind, _ in MORE_CLASSES.values()} - {kind for kind, _ in CLASSES.values()}) >= 20


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", MORE_CLASSES)
def test_configs_of_other_families_are_read_as_the_model_in_transformers(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, prefix = MORE_CLASSES[name]
    given = config(name)
    given = {**given.get("text_config", given), "model_type": kind}
    theirs = transformers.AutoConfig.for_model(**given)
    module = importlib.import_module(type(theirs).__module__.replace("configuration_", "modeling_"))
    rotary = getattr(module, f"{prefix}RotaryEmbedding")(theirs)
    with torch.device("meta"):
        attention = getattr(module, f"{prefix}Attention")(theirs, layer_idx=0)
    softmax = getattr(attention, "scaling", getattr(attention, "inv_norm_factor", None))
    read = from_config(config(name), name, "here")
    assert (read.heads, read.declared) == (theirs.num_attention_heads, theirs.max_position_embeddings)
    for setting in read.layers.values():
        result = frequencies(setting, "inverse_power", parse("fp32")).astype(float)
        assert result == pytest.approx(rotary.inv_freq.double().numpy(), rel=60 * 2.0**-24, abs=0)
        assert 2 * len(rotary.inv_freq) == setting.rotary_dim
        assert scaled.attention_factor(setting.scaling) == rotary.attention_scaling
        assert setting.scale == pytest.approx(softmax, rel=1e-15)
        assert setting.layout == their_layout(module)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("name", "still"), [("llama-4-scout", 12), ("smollm3-3b", 9), ("command-r7b", 8), ("exaone-4-32b", 16)]
)
@pytest.mark.parametrize("listed", [True, False])
def test_the_layers_that_do_not_rotate_are_those_of_transformers(name: str, still: int, listed: bool) -> None:
    transformers = pytest.importorskip("transformers")
    given = config(name).get("text_config", config(name))
    if not listed:  # they are left to the class
        left_out = ("no_rope_layers", "layer_types", "sliding_window_pattern")
        given = {k: v for k, v in given.items() if k not in left_out}
    theirs = transformers.AutoConfig.for_model(**given)
    marks = getattr(theirs, "no_rope_layers", None)
    marks = marks or [kind == "sliding_attention" for kind in theirs.layer_types]
    layers = [n for n, mark in enumerate(marks) if not mark]
    words = from_config(given, name, "here").unrotated
    assert len(layers) == still
    named = ", ".join(map(str, layers[:8])) + (f", ... {layers[-1]}" if still > 8 else "")
    assert words.startswith(f"{still} of {len(marks)} layers do not rotate: {named} (")


def test_which_layers_do_not_rotate_is_said_as_far_as_it_is_known() -> None:
    llama4 = config("llama-4-scout")["text_config"]
    for change, words in (
        ({"no_rope_layers": [1] * 48}, ""),
        (
            {"no_rope_layers": [1, 0], "num_hidden_layers": 2},
            "1 of 2 layers does not rotate: 1 (no_rope_layers)",
        ),
        ({"no_rope_layer_interval": 24}, "2 of 48 layers do not rotate: 23, 47 (no_rope_layer_interval)"),
        ({"no_rope_layers": [True, False] * 24 + [0], "no_rope_layer_interval": 0}, "24 of 48 layers do not"),
        ({"num_hidden_layers": None}, "one layer in 4 does not rotate (no_rope_layers is empty: each 4th, "),
    ):
        assert from_config(llama4 | change, "m", "here").unrotated.startswith(words)
        assert bool(words) == bool(from_config(llama4 | change, "m", "here").unrotated)
    exaone = {k: v for k, v in config("exaone-4-32b").items() if k != "layer_types"}
    words = from_config(exaone | {"num_hidden_layers": 6}, "m", "here").unrotated  # LLLGLL, the last a G
    assert words == "2 of 6 layers do not rotate: 3, 5 (full_attention)"
    assert from_config(exaone | {"sliding_window": None}, "m", "here").unrotated == ""
    long = exaone | {"sliding_window_pattern": "L" * 10**6}
    assert from_config(long, "m", "here").unrotated == "1 of 64 layers does not rotate: 63 (full_attention)"
    with pytest.raises(BadInput, match="no_rope_layers = 'x' is not a list of 0 and 1"):
        from_config(llama4 | {"no_rope_layers": "x"}, "m", "here")
    with pytest.raises(
        BadInput, match="no_rope_layers has 2 values for num_hidden_layers = 48; give one for"
    ):
        from_config(llama4 | {"no_rope_layers": [1, 0]}, "m", "here")
    with pytest.raises(BadInput, match="no_rope_layers holds 2; 1 is a layer that rotates, 0 another"):
        from_config(llama4 | {"no_rope_layers": [2] * 48}, "m", "here")
    with pytest.raises(NotRotated, match=r"no layer of 48 rotates \(no_rope_layers\)"):
        from_config(llama4 | {"no_rope_layers": [0] * 48}, "m", "here")
    with pytest.raises(BadInput, match="is empty, and the code of smollm3 reads it for each layer"):
        from_config(config("smollm3-3b") | {"no_rope_layers": []}, "m", "here")
    assert layers_of_models.kinds_of_layers({"layer_types": ["a", None]}, "llama") == ["a", ""]


@pytest.mark.parametrize(
    ("name", "base", "maximum"), [("glm-4-9b-chat", 5e6, 131072), ("chatglm3-6b", 1e4, 8192)]
)
def test_chatglm_turns_half_of_the_dims_by_a_base_times_its_rope_ratio(name, base, maximum) -> None:
    read = from_config(config(name), name, "here")
    (setting,) = read.layers.values()
    assert (read.heads, read.kv_heads, read.maximum) == (32, 2, maximum)
    assert (setting.head_dim, setting.rotary_dim, setting.layout) == (128, 64, "interleaved")
    assert setting.scale == pytest.approx(128**-0.5, rel=1e-15)
    alone = from_config(config(name) | {"multi_query_attention": False}, name, "here")
    assert alone.kv_heads == 32
    plain = 1.0 / (torch.tensor(base, dtype=torch.float64) ** (torch.arange(0, 64, 2) / 64))
    result = frequencies(setting, "inverse_power", parse("fp32")).astype(float)
    assert result == pytest.approx(plain.numpy(), rel=60 * 2.0**-24)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_ratio": 0}, "rope_ratio = 0 is not above 0"),
        ({"rope_ratio": "50"}, "rope_ratio = '50' is not a number"),
        ({"position_encoding_2d": True}, "position_encoding_2d = true .* is not supported"),
    ],
)
def test_what_of_chatglm_is_not_understood(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_config(config("glm-4-9b-chat") | change, "c", "here")


# config, what is changed; the base by layer type, and what is said of it
DEFAULTS: list[tuple[str, dict[str, Any], dict[str, float], list[str]]] = [
    ("llama-2-7b-hf", {}, {"full_attention": 1e4}, ["rope_theta missing: LlamaConfig's default 10000"]),
    ("llama-2-7b-hf", {"rope_theta": 5.0}, {"full_attention": 5.0}, []),
    (
        "falcon-7b-hf",
        {},
        {"full_attention": 1e4},
        [
            "rope_theta missing: FalconConfig's default 10000",
            "max_position_embeddings missing: FalconConfig's default 2048",
        ],
    ),
    (
        "gpt-neox-20b",
        {"rotary_emb_base": None},
        {"full_attention": 1e4},
        ["rope_theta missing: GPTNeoXConfig's default 10000"],
    ),
    (
        "smollm3-3b",
        {"rope_theta": None},
        {"full_attention": 2e6},
        ["rope_theta missing: SmolLM3Config's default 2e+06"],
    ),
    (  # as published, with no size of heads at all
        "gemma-3-4b",
        {},
        {"full_attention": 1e6, "sliding_attention": 1e4},
        [
            "rope_theta missing: Gemma3TextConfig's default 1e+06",
            "rope_local_base_freq missing: Gemma3TextConfig's default 10000",
            "max_position_embeddings missing: Gemma3TextConfig's default 131072",
            "num_attention_heads missing: Gemma3TextConfig's default 8",
            "num_key_value_heads missing: Gemma3TextConfig's default 4",
            "head_dim missing: Gemma3TextConfig's default 256",
        ],
    ),
    (
        "new-gemma-3",
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
        {"full_attention": 1e6, "sliding_attention": 1e4},
        [
            "rope_theta missing: Gemma3TextConfig's default 1e+06",
            "rope_local_base_freq missing: Gemma3TextConfig's default 10000",
        ],
    ),
]


@pytest.mark.parametrize(("name", "change", "bases", "notes"), DEFAULTS)
def test_a_missing_base_is_the_default_of_the_class(name, change, bases, notes) -> None:
    values = {key: value for key, value in (config(name) | change).items() if value is not None}
    read = from_config(values, name, "here")
    assert {layer: setting.base for layer, setting in read.layers.items()} == bases
    assert list(read.defaults) == notes
    if notes and "gemma" not in name:  # what is given by hand stands before it
        (setting,) = from_config(values, name, "here", base=777.0).layers.values()
        assert setting.base == 777.0


def test_what_moves_positions_elsewhere_is_named() -> None:
    assert dict(from_config(config("qwen2.5-7b-1m"), "q", "here").unjudged) == {
        "dual_chunk_attention_config": "positions are counted within chunks"
    }
    assert list(from_config(config("qwen2.5-vl-7b"), "q", "here").unjudged) == [
        "mrope_section",
        "tokens_per_second",
    ]
    moved = config("llama-3.1-8b") | {"position_shift": 3, "offset_of_positions": 2, "position_bias": 1}
    moved |= {"shift_positions": None, "delta_position": 0, "dual_chunk_attention_config": {}}
    assert list(from_config(moved, "l", "here").unjudged) == ["position_shift", "offset_of_positions"]
    assert from_config(config("llama-3.1-8b"), "l", "here").notes == []
