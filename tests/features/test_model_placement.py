"""How each layer rotates, beside its config: right models of many types, faults, what is not seen."""

import json
from dataclasses import replace
from types import SimpleNamespace

import architectures
import numpy as np
import pytest
import torch
from tiny_models import make

from ropeaudit.features.model import load as model_load
from ropeaudit.features.model import rotation_check
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.provenance import before, following
from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.rope.setting import RopeSetting

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
H, S, D = 3, 5, 4

# Layer types, partial rotation, fused projections, norms behind them, interleaved pairs, scaling by length.
RIGHT = ["llama", "qwen3", "gemma3_text", "olmo2", "phi3", "gpt_neox", "glm", "cohere", "gptj", "stablelm"]
RIGHT += ["phi3, longrope", "llama, yarn", "llama, dynamic", "persimmon", "qwen2_moe", "falcon", "smollm3"]
RIGHT += ["deepseek_v3", "flint", "granitemoehybrid, rope"]
UNSEEN = ["opt", "jamba"]  # no rotation
TWO = ["smollm3", "flint", "granitemoehybrid, rope"]
COMPARED = dict.fromkeys(RIGHT, 4) | dict.fromkeys(TWO, 2) | dict.fromkeys(UNSEEN, 0)  # layers


def audited(folder, offsets=(3, 32768), dtypes=("fp32", "bf16"), tokens="24"):
    return list(model_audit(str(folder), offsets, dtypes, tokens=tokens))


@pytest.mark.parametrize("name", COMPARED)
def test_a_right_model_gets_no_diagnosis(name, tmp_path) -> None:
    assert architectures.build(name, tmp_path) is None
    offsets = (3, 1000) if name in ("gptj", "opt") else (3, 32768)  # tables that end
    for one in audited(tmp_path, offsets, ("fp32", "bf16", "fp16", "fp64")):
        assert one.diagnosis is None
        assert len(one.places) == COMPARED[name]
        assert max((place.excess for place in one.places.values()), default=0.0) < 0.7


@pytest.mark.slow
def test_no_type_of_the_library_is_called_wrong(tmp_path) -> None:
    judged = 0
    for number, name in enumerate(architectures.types()):
        if architectures.build(name, tmp_path / str(number)) is None:
            try:
                runs = audited(tmp_path / str(number), (3, 1000), ("fp32", "bf16"))
            except model_load.BadInput:  # it does not read positions
                continue
            assert [(name, one.diagnosis) for one in runs if one.diagnosis] == []
            judged += bool(runs[0].places)
    assert judged >= 90


PLANTED = {
    "positions-off": lambda rotary, at: rotary(at + 1),
    "wrong-direction": lambda rotary, at: (rotary(at)[0], -rotary(at)[1]),
    "narrow-positions": lambda rotary, at: rotary(at.to(torch.bfloat16).float()),
    "cos-sin-swapped": lambda rotary, at: rotary(at)[::-1],
}


def plant(monkeypatch, folder, changed) -> None:
    """Change the tables of a model's rotary class: changed(rotary, positions) -> cos, sin."""
    modules = transformers.AutoModelForCausalLM.from_pretrained(folder).modules()
    [kind] = {type(one) for one in modules if type(one).__name__.endswith("RotaryEmbedding")}
    old = kind.forward

    def forward(self, x, position_ids):
        return changed(lambda at: old(self, x, at), position_ids)

    monkeypatch.setattr(kind, "forward", forward)


@pytest.mark.parametrize("code", PLANTED)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "phi3"])
def test_a_fault_in_the_library_s_code_is_named(name, code, tmp_path, monkeypatch) -> None:
    assert architectures.build(name, tmp_path) is None
    plant(monkeypatch, tmp_path, PLANTED[code])
    [one] = audited(tmp_path, 1000, "bf16", "32")
    assert one.diagnosis.code == code
    assert one.diagnosis.where.layers == (0, 1, 2, 3)


def test_a_layer_alone_is_named_in_rows_headline_and_csv(tmp_path, capsys, monkeypatch) -> None:
    make("llama", tmp_path, steps=1)
    load = model_load.load

    def planted(*arguments):
        found = load(*arguments)
        layer = found.model.layers[1].self_attn

        def late(module, args, kwargs):
            at = torch.arange(24)[None] + 1000 + 1
            return args, kwargs | {"position_embeddings": found.model.rotary_emb(kwargs["hidden_states"], at)}

        layer.register_forward_pre_hook(late, with_kwargs=True)
        return found

    monkeypatch.setattr(model_load, "load", planted)
    arguments = ["model", str(tmp_path), "--tokens", "24", "--offset", "1000", "--dtype", "bf16"]
    assert main([*arguments, "-f", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    begin = "Wrong rotation in bfloat16 at offset 1000, layer 1: positions +1. "
    assert said["headline"].startswith(begin)
    [row] = said["records"]
    assert (row["diagnosis"], row["resembles"]) == ("positions-off", "layer 1: positions +1")
    assert row["verdict"] == "wrong_rotation"
    assert [(one["diagnosis"], one["resembles"]) for one in said["layers"]] == [
        (None, None),
        ("positions-off", "positions +1"),
    ]
    first, second = (one["rotation_excess"] for one in said["layers"])
    assert first < 1 < second == row["rotation_excess"]
    assert main([*arguments, "--by", "layer", "-f", "csv", "-q"]) == 1
    assert ",positions-off,positions +1" in capsys.readouterr().out


def test_what_nothing_explains_is_looked_for_in_two_layers(tmp_path, monkeypatch) -> None:
    assert architectures.build("llama", tmp_path) is None
    noise = torch.rand(24, 16, generator=torch.Generator().manual_seed(0))
    plant(monkeypatch, tmp_path, lambda rotary, at: (rotary(at)[0] + noise, rotary(at)[1]))
    [one] = audited(tmp_path, 1000, "fp32")
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


# ---------------------------------------------------------------------------- what is followed to attention


class Layer(torch.nn.Module):
    """q and k of projections, a step between, a rotation; `end` is done with q and k then."""

    def __init__(self, step=lambda x: x, end=lambda q, k: (q, k), heads=H) -> None:
        super().__init__()
        self.q_proj, self.k_proj = (torch.nn.Linear(6, heads * D) for _ in "qk")
        self.norm = torch.nn.LayerNorm(D)
        self.step, self.end, self.heads = step, end, heads
        self.given, self.found = (), None

    def forward(self, x):
        table = torch.rand(1, 1, S, D, generator=torch.Generator().manual_seed(1))
        q, k = (each(x).view(1, S, self.heads, D).transpose(1, 2) for each in (self.q_proj, self.k_proj))
        self.given = q, k = self.step(q), self.step(k)
        q, k = (x * table + torch.cat((-x[..., 2:], x[..., :2]), -1) * table for x in (q, k))
        self.found = before(*self.end(q, k))


def followed(**given):
    layer = Layer(**given)
    with torch.no_grad(), following(layer, S):
        layer(torch.rand(1, S, 6))
    return layer


def test_q_and_k_are_followed_from_their_projections() -> None:
    layer = followed()
    for given, found in zip(layer.given, layer.found, strict=True):
        np.testing.assert_array_equal(found, given[0].double().numpy())
    assert not layer.q_proj._forward_hooks


def test_a_cast_and_a_joined_half_are_followed_too() -> None:
    layer = followed(end=lambda q, k: (torch.cat((q[..., :2], q[..., 2:]), -1).double().contiguous(), k))
    np.testing.assert_array_equal(layer.found[0], layer.given[0][0].double().numpy())


def test_what_is_rounded_to_the_dtype_first_is_rotated_so() -> None:
    layer = followed(step=lambda x: x.bfloat16(), end=lambda q, k: (q.bfloat16(), k.bfloat16()))
    np.testing.assert_array_equal(layer.found[1], layer.given[1][0].double().numpy())


def test_q_and_k_that_are_exchanged_are_those_of_their_names() -> None:
    layer = followed(end=lambda q, k: (k, q))
    np.testing.assert_array_equal(layer.found[0], layer.given[0][0].double().numpy())


def test_what_is_written_into_a_new_tensor_is_followed() -> None:
    def written(q, k):
        out = torch.empty_like(q)
        out[..., :2], out[..., 2:] = q[..., :2], q[..., 2:]
        return out, k

    layer = followed(end=written)
    np.testing.assert_array_equal(layer.found[0], layer.given[0][0].double().numpy())


NORM = torch.nn.functional.layer_norm


@pytest.mark.parametrize(
    "given",
    [
        {"step": lambda x: x.clamp(-1, 1)},
        {"step": lambda x: x * 0.5},
        {"step": lambda x: x / x.norm(dim=-1, keepdim=True)},
        {"end": lambda q, k: (q * 2.0, k)},
        {"end": lambda q, k: (NORM(q, (D,)), k)},
        {"end": lambda q, k: (q * torch.rand(1, 1, S, 1), k)},
        {"end": lambda q, k: (q * torch.rand(D), k)},
        {"end": lambda q, k: (q * torch.rand(1, H, 1, D), k)},
        {"end": lambda q, k: (q + torch.rand(1, 1, S, D), k)},
        {"end": lambda q, k: (q + k, k)},
        {"end": lambda q, k: (q.clamp_(-1, 1), k)},
        {"heads": S},
    ],
)
def test_where_something_else_is_done_nothing_is_known(given) -> None:
    assert followed(**given).found is None


def test_a_norm_behind_the_rotation_is_not_what_was_rotated() -> None:
    layer = Layer()
    layer.end = lambda q, k: (layer.norm(q), k)
    with torch.no_grad(), following(layer, S):
        layer(torch.rand(1, S, 6))
    assert layer.found is None


def test_what_is_overwritten_before_it_is_read_is_not_known() -> None:
    def spoilt(q, k):
        layer.given[0].add_(1)
        return q, k

    layer = Layer()
    layer.end = spoilt
    with torch.no_grad(), following(layer, S):
        layer(torch.rand(1, S, 6))
    assert layer.found is None


def test_q_and_k_that_nothing_rotates_are_not_compared() -> None:
    layer = Layer()
    layer.end = lambda q, k: layer.given
    with torch.no_grad(), following(layer, S):
        layer(torch.rand(1, S, 6))
    assert layer.found is None
