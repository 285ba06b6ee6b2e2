"""What is read of configs against what transformers computes of them."""

import numpy as np
import pytest
from cases import first_fast
from net.settings import names
from real_configs import CLASSES, MORE, MORE_CLASSES, OTHERS, TEXTS, config
from their_code import built, differences

from ropeaudit import parse
from ropeaudit.rope import presets
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.hf_config import from_config

QUIET = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


def test_a_config_and_the_named_model_say_the_same() -> None:
    for name in TEXTS:
        result, stored = from_config(config(name), name, "config.json"), presets.named(name)
        heads = (result.heads, result.kv_heads, result.maximum)
        assert heads == (stored.heads, stored.kv_heads, stored.maximum), name
        assert dict(result.layers) == dict(stored.layers), name
        assert result.axes is None, name


def wrongly_read(name: str, kind: str) -> list[str]:
    """Return what of a config is not read as its code in transformers has it."""
    transformers = pytest.importorskip("transformers")
    whole = config(name)
    given = {**({} if name in MORE else whole), **whole.get("text_config", whole), "model_type": kind}
    if name in CLASSES and "layer_types" in given:
        given["num_hidden_layers"] = len(given["layer_types"])
    theirs = transformers.AutoConfig.for_model(**given)
    return list(differences(from_config(whole, name, "here"), built(kind, theirs), theirs))


def test_every_config_is_here_and_of_many_types() -> None:
    assert {*TEXTS, *OTHERS, *MORE} == {name[5:] for name in names() if name.startswith("real/")}
    assert len({kind for kind, _ in MORE_CLASSES.values()} - {kind for kind, _ in CLASSES.values()}) >= 20


@QUIET
@pytest.mark.parametrize("classes", first_fast([CLASSES, MORE_CLASSES]), ids=["common", "more"])
def test_configs_are_read_as_the_model_in_transformers(classes: dict[str, tuple[str, str]]) -> None:
    found = {name: wrongly_read(name, kind) for name, (kind, _) in classes.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@QUIET
@pytest.mark.parametrize("listed", [True, False])
def test_the_layers_that_do_not_rotate_are_those_of_transformers(listed: bool) -> None:
    transformers = pytest.importorskip("transformers")
    for name, still in (
        ("llama-4-scout", 12),
        ("smollm3-3b", 9),
        ("command-r7b", 8),
        ("exaone-4-32b", 16),
    ):
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
        assert words.startswith(f"{still} of {len(marks)} layers do not rotate: {named} ("), name


def test_chatglm_turns_half_of_the_dims_by_a_base_times_its_rope_ratio() -> None:
    for name, base in (("glm-4-9b-chat", 5e6), ("chatglm3-6b", 1e4)):
        (setting,) = from_config(config(name), name, "here").layers.values()
        seen = frequencies(setting, "inverse_power", parse("fp32")).astype(float)
        plain = base ** (-np.arange(0, 64, 2) / 64)
        np.testing.assert_allclose(seen, plain, rtol=2e-6, err_msg=name)


def test_what_moves_positions_elsewhere_is_named() -> None:
    assert dict(from_config(config("qwen2.5-7b-1m"), "q", "here").unjudged) == {
        "dual_chunk_attention_config": "positions are counted within chunks"
    }
    moved = config("llama-3.1-8b") | {"position_shift": 3, "offset_of_positions": 2, "position_bias": 1}
    moved |= {"shift_positions": None, "delta_position": 0, "dual_chunk_attention_config": {}}
    assert list(from_config(moved, "l", "here").unjudged) == ["position_shift", "offset_of_positions"]


def test_layers_that_do_not_rotate_are_said_in_words() -> None:
    llama4 = config("llama-4-scout")["text_config"]
    for change, words in (
        ({"no_rope_layers": [1] * 48}, ""),
        ({"no_rope_layer_interval": 24}, "2 of 48 layers do not rotate: 23, 47 (no_rope_layer_interval)"),
        ({"num_hidden_layers": None}, "one layer in 4 does not rotate (no_rope_layers is empty: each 4th, "),
    ):
        seen = from_config(llama4 | change, "m", "here").unrotated
        assert seen.startswith(words)
        assert bool(words) == bool(seen)


def test_what_a_class_takes_for_a_key_that_is_missing_is_said() -> None:
    values = config("falcon-7b-hf")
    assert list(from_config(values, "f", "here").defaults) == [
        "rope_theta missing: FalconConfig's default 10000",
        "max_position_embeddings missing: FalconConfig's default 2048",
    ]
    (setting,) = from_config(values, "f", "here", base=777.0).layers.values()
    assert setting.base == 777.0  # what is given by hand stands before it
