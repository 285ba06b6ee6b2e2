"""Keys of a config.json that change nothing: none in real configs, and planted ones are named."""

from typing import Any

import pytest
from real_configs import config

from ropeaudit.errors import BadInput, BadShape
from ropeaudit.rope import hf_json
from ropeaudit.rope.hf_config import from_config, layer_words
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.rope.unused_keys import about_rope, idle_scalings, unused_keys

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


# config, what is added, what is said of it
PLANTED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("llama-3.1-8b", {"rotary_emb_base": 10000}, ["rotary_emb_base = 10000 (500000 is used)"]),
    ("llama-3.1-8b", {"rotary_emb_base": 500000}, []),
    ("llama-3.1-8b", {"qk_rope_head_dim": 64}, ["qk_rope_head_dim = 64"]),
    ("gpt-neox-20b", {"partial_rotary_factor": 0.25, "rotary_pct": 0.5}, ["rotary_pct = 0.5 (0.25 is used)"]),
    ("gemma-3-27b", {"vision_config": {"rope_theta": 100.0}}, ["vision_config.rope_theta = 100.0"]),
    (
        "llama-3.1-8b",
        {"rope_scaling": {**YARN, "finetuned": True}},
        [
            "rope_scaling.finetuned = true (whether weights were trained with the scaling; that changes no "
            "number)"
        ],
    ),
    (
        "llama-3.1-8b",
        {"rope_scaling": YARN, "original_max_position_embeddings": 4096},
        ["rope_scaling.original_max_position_embeddings = 32768 (4096 is used)"],
    ),
]


def test_what_is_not_used_is_named() -> None:
    for name, added, named in PLANTED:
        assert [str(key) for key in unused_keys({**config(name), **added})] == named, (name, added)


LENGTH = "original_max_position_embeddings"


def test_a_scaling_within_the_softmax_scale_changes_it() -> None:
    """YaRN that extends from where even the slowest pair has turned often changes no frequency."""
    rope = {**config("deepseek-v3")["rope_scaling"], "mscale": 1.0, LENGTH: 10**9, "factor": 2.0}
    long = {**config("deepseek-v3"), "max_position_embeddings": 2 * 10**9}
    assert not idle_scalings({**long, "rope_scaling": {**rope, "mscale_all_dim": 1.0}})
    assert idle_scalings({**long, "rope_scaling": {**rope, "mscale_all_dim": 0.0, "attention_factor": 1.0}})


def test_every_key_that_the_reader_knows_is_looked_at() -> None:
    known = (*hf_json.DICTS, *hf_json.BASES, *hf_json.FRACTIONS, hf_json.LOCAL_BASE, "rotary_dim", "rotary")
    assert all(map(about_rope, known))


def test_a_misspelt_key_is_one_about_rope_and_another_name_is_not() -> None:
    assert about_rope("hed_dim")
    assert about_rope("max_position_embedings")
    assert not about_rope("v_head_dim")
    assert not about_rope("hidden_size")
    [key] = unused_keys({**config("llama-3.1-8b"), "max_position_embedings": 4096})
    assert str(key) == "max_position_embedings = 4096"


def test_a_key_that_is_not_understood_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"rope_thetas\W* is not understood; did you mean rope_theta\?"):
        unused_keys({**config("llama-3.1-8b"), "rope_thetas": 1e4})


def test_an_odd_dim_is_answered_with_one_that_fits() -> None:
    for value, near in ((19, 18), (0, 128), (10**9, 128)):
        with pytest.raises(BadShape, match=f"try head_dim {near}$"):
            RopeSetting.of(value)


# config, what is added, what is said of its layers
LAYERS: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.1-8b", {}, ""),
    ("llama-3.1-8b", {"num_hidden_layers": 32}, "32 layers"),
    ("gemma-3-27b", {}, "one in 6 full_attention"),
    (
        "llama-3.1-8b",
        {"no_rope_layer_interval": 4},
        "one layer in 4 does not rotate (no_rope_layer_interval)",
    ),
    (
        "new-gemma-3",
        {"model_type": "cohere2"},
        "1 sliding_attention, 1 full_attention layers; 1 of 2 layers does not rotate: 1 (full_attention)",
    ),
]


def test_layers_with_and_without() -> None:
    for name, added, words in LAYERS:
        values = {**config(name), **added}
        assert layer_words(values, from_config(values, name, "here")) == words
