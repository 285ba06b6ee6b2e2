"""What was read of a config is said by every command that measures with it, in the same words."""

import json

import pytest

from ropeaudit.audits.cases import Case
from ropeaudit.main import main
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.rope.hf_config import from_config

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
WORDS = (
    "base 10000, head_dim 16, all dims rotated (dims i and i + 8 a pair), linear scaling "
    "(factor 4), softmax scale 0.25, 1,024 positions"
)


@pytest.mark.parametrize(
    "words",
    [
        ["shift", "--recipe", "hf", "--offset", "2000"],
        ["explain", "--recipe", "hf", "--offset", "2000"],
        ["parity", "hf", "uniform", "--offset", "2000", "-v"],
        ["plot", "--kind", "heatmap", "--offset", "2000", "-o", "p.svg"],
    ],
    ids=lambda words: words[0],
)
def test_what_was_read_of_a_config_is_said(words, tmp_path, monkeypatch, capsys) -> None:
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(json.dumps(CONFIG))
    assert main([*words, "--config", "m.json", "--dtype", "fp16", "--heads", "1", "--seq-len", "8"]) == 0
    notes = "".join(capsys.readouterr())
    assert notes.count(WORDS) == 1
    assert "offset 2000 is past the 1,024 positions" in notes


BASIC = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 4096}
BASIC |= {"rope_theta": 1e4, "num_key_value_heads": 4}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = {"layer_types": [SLIDING, FULL], "sliding_window": 8}
TWO_BASES = {FULL: {"rope_theta": 1e6}, SLIDING: {"rope_theta": 1e4}}


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
    values = {"layer_types": [SLIDING, [FULL], None, FULL], "rope_parameters": TWO_BASES}
    assert from_config(BASIC | values, "m", "here").kinds_of_layers == {0: SLIDING, 3: FULL}
