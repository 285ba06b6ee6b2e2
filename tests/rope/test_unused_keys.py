"""Keys of a config.json that change nothing: none in real configs, and planted ones are named."""

import pytest
from real_configs import config, said_of

from ropeaudit.errors import BadInput, BadShape
from ropeaudit.rope import hf_json
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.rope.unused_keys import about_rope, idle_scalings, unused_keys


def test_what_is_not_used_is_named() -> None:
    for name, added, named in said_of("unused"):
        assert [str(key) for key in unused_keys({**config(name), **added})] == named, (name, added)


LENGTH = "original_max_position_embeddings"


def test_a_scaling_within_the_softmax_scale_changes_it() -> None:
    """YaRN that extends from where even the slowest pair has turned often changes no frequency."""
    rope = {**config("deepseek-v3")["rope_scaling"], "mscale": 1.0, LENGTH: 10**9, "factor": 2.0}
    long = {**config("deepseek-v3"), "max_position_embeddings": 2 * 10**9}
    for more, idle in (
        ({"mscale_all_dim": 1.0}, False),
        ({"mscale_all_dim": 0.0, "attention_factor": 1.0}, True),
    ):
        model = from_config({**long, "rope_scaling": {**rope, **more}}, "long", "here")
        assert bool(idle_scalings(model)) is idle


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


def test_layers_with_and_without() -> None:
    for name, added, words in said_of("layers"):
        assert from_config({**config(name), **added}, name, "here").layer_words == words
