"""What was read of a config is said by every command that measures with it, in the same words."""

import json

import pytest

from ropeaudit.main import main

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
