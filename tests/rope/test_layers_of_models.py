"""Which layer types rotate, with which base and head_dim, where a config says it in its own way."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ropeaudit.audits.cases import Case
from ropeaudit.errors import BadInput
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.rope.hf_config import from_config
from ropeaudit.rope.hf_json import NotRotated
from ropeaudit.rope.layer_kinds import of_each

BASIC = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 4096}
BASIC |= {"rope_theta": 1e4, "num_key_value_heads": 4}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 8}
TWO_BASES = {FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}


def layers(**values: Any) -> dict[str, float]:
    return {name: one.base for name, one in from_config(BASIC | values, "m", "here").layers.items()}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"model_type": "cohere2", **MIXED}, {SLIDING: 1e4}),
        ({"model_type": "cohere2"}, {SLIDING: 1e4}),  # one in four is full, by default
        ({"model_type": "exaone4", **MIXED}, {SLIDING: 1e4}),
        ({"model_type": "exaone4", "layer_types": [FULL] * 2, "sliding_window": None}, {FULL: 1e4}),
        ({"model_type": "llama", **MIXED}, {FULL: 1e4}),
        ({"model_type": "granite_swa", "layer_rope_theta": [1e6, 0, 1e6]}, {FULL: 1e6}),
        (
            {"model_type": "granite_swa", "layer_rope_theta": [1e4, 1e6], "layer_types": [SLIDING, FULL]},
            {SLIDING: 1e4, FULL: 1e6},
        ),
        (  # more layer types than layers: those beyond the last base say nothing
            {"layer_rope_theta": [1e4, 1e6], "layer_types": [SLIDING, FULL, SLIDING]},
            {SLIDING: 1e4, FULL: 1e6},
        ),
        ({"rope_parameters": TWO_BASES, "layer_types": [FULL, FULL]}, {FULL: 1e6}),
    ],
)
def test_the_layer_types_that_rotate(values, expected) -> None:
    assert layers(**values) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "cohere2", "layer_types": [FULL] * 2},
        {"model_type": "jamba"},
        {"model_type": "zamba2", "use_mem_rope": False},
        {"model_type": "granitemoehybrid", "position_embedding_type": None},
        {"model_type": "mpt", "rope_theta": None},
    ],
)
def test_what_does_not_rotate_is_said_to(values) -> None:
    with pytest.raises(NotRotated, match="does not encode positions by rotation"):
        layers(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model_type": "minimax", "rotary_dim": 8},
            "code of minimax, which rotates all .* dims; leave it out$",
        ),
        ({"layer_rope_theta": [1e4, 1e6], "layer_types": [FULL, FULL]}, "several bases to full_attention"),
        ({"layer_rope_theta": 3}, "layer_rope_theta = 3 is not a list"),
        ({"encoder_config": {}, "global_config": {}}, "several parts that rotate"),
    ],
)
def test_what_is_not_supported_is_named(values, message) -> None:
    with pytest.raises(BadInput, match=message):
        layers(**values)


def test_head_dims_by_layer_and_the_scale_of_wide_heads() -> None:
    own = {"per_layer_config": {"01": {"head_dim": 32}}, "rope_parameters": TWO_BASES}
    model = from_config(BASIC | MIXED | own | {"model_type": "gemma4"}, "m", "here")
    assert [model.layers[name].head_dim for name in (FULL, SLIDING)] == [32, 16]
    wide = {"model_type": "zamba2", "use_mem_rope": True, "attention_head_dim": 32}
    assert from_config(BASIC | wide, "m", "here").layers[FULL].scale == 0.25


def test_notes_on_a_config(tmp_path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(BASIC | MIXED | {"model_type": "llama", "rope_parameters": TWO_BASES}))
    read, left_out, beyond = model_notes([Case(config=str(path), seq_len=16)], [0, 4080, 4081])
    words = (
        "base 1000000, head_dim 16, all dims rotated (dims i and i + 8 a pair), no scaling, softmax scale "
        "0.25, 4,096 positions"
    )
    assert read == f"m: read of full_attention layers: {words}"
    assert left_out.startswith("m: sliding_attention layers rotate too, and are not audited here")
    assert beyond == "m: offset 4081 is past the 4,096 positions that it declares"
    path.write_text(json.dumps(BASIC | MIXED | {"model_type": "cohere2"}))
    assert Case(config=str(path)).layer_type == SLIDING
    assert Case(config=str(path)).setting(16).base == 1e4
    assert model_notes([Case()], [10**9]) == []


def test_a_type_of_a_layer_that_is_no_text_is_that_of_no_layer() -> None:
    values = {"layer_types": [SLIDING, [FULL], None, FULL]}
    assert of_each(values, SimpleNamespace(layers={SLIDING: 1, FULL: 2})) == {0: SLIDING, 3: FULL}
