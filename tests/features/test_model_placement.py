"""How each layer rotates, beside its config: right models of many types, faults, what is not seen."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small_configs
import torch
from cases import first_fast
from command_line import ran

from ropeaudit.features.model import load as model_load
from ropeaudit.features.model import rotation_check
from ropeaudit.features.model.analysis import WRONG
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.rope.setting import RopeSetting

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

# Layer types, partial rotation, fused projections, norms behind them, interleaved pairs, scaling by length.
RIGHT = ["llama", "qwen3", "gemma3_text", "olmo2", "phi3", "gpt_neox", "glm", "cohere", "stablelm"]
RIGHT += ["phi3, longrope", "llama, yarn", "llama, dynamic", "persimmon", "qwen2_moe", "falcon", "smollm3"]
RIGHT += ["deepseek_v3", "flint", "granitemoehybrid, rope"]
RIGHT += ["llama, llama3", "deepseek_v3, yarn", "mixtral", "cohere2"]
UNSEEN = ["opt", "jamba", "gptj"]  # no rotation; q and k rotated in a call each
TWO = ["smollm3", "flint", "granitemoehybrid, rope", "cohere2"]
DTYPES = ("fp32", "bf16")
COMPARED = dict.fromkeys(RIGHT, 4) | dict.fromkeys(TWO, 2) | dict.fromkeys(UNSEEN, 0)  # layers


def audited(folder, offsets=(3, 32768), dtypes=DTYPES, tokens="24"):
    return list(model_audit(str(folder), offsets, dtypes, tokens=tokens))


@pytest.mark.parametrize("name", first_fast(COMPARED, 8))
def test_a_right_model_gets_no_alarm(name, built) -> None:
    offsets = (3, 1000) if name in ("gptj", "opt") else (3, 32768)  # tables that end
    for one in audited(built(name), offsets, ("fp32", "bf16", "fp16", "fp64") if name == "llama" else DTYPES):
        assert (one.held, one.diagnosis) == ((), None)
        assert one.word not in WRONG
        assert len(one.places) == COMPARED[name]
        assert max((place.excess for place in one.places.values()), default=0.0) < 0.7
        assert one.decoded is None or one.decoded.way == ""
        if one.dtype.name == "float32" and not one.rerouted:
            change = one.change
            size = change.rms(change.reference_squares)
            assert change.rms(change.base_error_squares) < 1e-5 * size
            assert change.rms(change.error_squares) < 1e-3 * size  # angles at 32768 are off by 2^-9


@pytest.mark.exhaustive
def test_no_type_of_the_library_is_called_wrong(tmp_path) -> None:
    judged = 0
    for number, name in enumerate(small_configs.types()):
        if small_configs.build(name, tmp_path / str(number)) is None:
            try:
                runs = audited(tmp_path / str(number), (3, 1000), ("fp32", "bf16"))
            except model_load.BadInput:  # it does not read positions
                continue
            assert [(name, one.diagnosis) for one in runs if one.diagnosis] == []
            judged += bool(runs[0].places)
    assert judged >= 90


def plant(monkeypatch, folder, changed) -> None:
    """Change the tables of a model's rotary class: changed(rotary, positions) -> cos, sin."""
    modules = transformers.AutoModelForCausalLM.from_pretrained(folder).modules()
    [kind] = {type(one) for one in modules if type(one).__name__.endswith("RotaryEmbedding")}
    old = kind.forward

    def forward(self, x, position_ids):
        return changed(lambda at: old(self, x, at), position_ids)

    monkeypatch.setattr(kind, "forward", forward)


def test_a_layer_alone_is_named_in_rows_headline_and_csv(built, capsys, loads) -> None:
    def plant_late(model):
        def late(module, args, kwargs):
            at = torch.arange(24)[None] + 1000 + 1
            return args, kwargs | {"position_embeddings": model.model.rotary_emb(kwargs["hidden_states"], at)}

        model.model.layers[1].self_attn.register_forward_pre_hook(late, with_kwargs=True)

    loads(plant_late)
    arguments = ["model", str(built("llama")), "--tokens", "24", "--offset", "1000", "--dtype", "bf16"]
    said = ran(capsys, [*arguments, "-f", "json"], 1).json
    assert said["headline"].endswith(": wrong rotation (positions-off)")
    [row] = said["records"]
    assert (row["diagnosis"], row["resembles"]) == ("positions-off", "layer 1: positions +1")
    assert row["verdict"] == "wrong_rotation"
    assert [(one["diagnosis"], one["resembles"]) for one in said["layers"]] == [
        (None, None),
        ("positions-off", "positions +1"),
        (None, None),
        (None, None),
    ]
    first, second, *others = (one["rotation_excess"] for one in said["layers"])
    assert max(first, *others) < 1 < second == row["rotation_excess"]
    assert main([*arguments, "--by", "layer", "-f", "csv", "-q"]) == 1
    assert ",positions-off,positions +1" in capsys.readouterr().out


def test_what_nothing_explains_is_looked_for_in_two_layers(built, monkeypatch) -> None:
    noise = torch.rand(24, 16, generator=torch.Generator().manual_seed(0))
    plant(monkeypatch, built("llama"), lambda rotary, at: (rotary(at)[0] + noise, rotary(at)[1]))
    [one] = audited(built("llama"), 1000, "fp32")
    assert one.diagnosis.code == "not-a-rotation"
    assert list(one.places) == [0, 1]


def test_a_later_layer_is_wrong_as_the_first_is_where_that_explains_as_much() -> None:
    first, other = Diagnosis("wrap", {"length": 512}), Diagnosis("table-ends", {"last": 511})
    assert rotation_check._same(first, replace(other, alternatives=(first,)))
    assert not rotation_check._same(first, other)
    assert not rotation_check._same(first, replace(first, where=Where(sides=("k",))))


def test_of_a_type_that_the_library_does_not_know_no_layout_is_known(tmp_path) -> None:
    """Which dims its pairs have is in its code alone."""
    config = transformers.LlamaConfig(hidden_size=16, num_attention_heads=4).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    folder = model_load.Folder(tmp_path, config, [], True)
    assert list(rotation_check._settings(folder, [0, 5])) == [0, 5]
    folder.config["model_type"] = "own"
    assert rotation_check._settings(folder, [0, 5]) == {}


def test_a_model_that_may_not_run_again_is_not_run() -> None:
    runner = SimpleNamespace(run=lambda *_, **__: pytest.fail("it was run"))
    rotator = rotation_check._LayerRotator(0, RopeSetting.of(8), runner, [1, 2], None, again=False)
    x = np.ones((1, 2, 2, 8))
    with pytest.raises(rotation_check._Unanswered):
        rotator.rotate_both(x, x, np.arange(2))
