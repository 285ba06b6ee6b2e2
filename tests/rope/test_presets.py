"""Named models: their sources, and their frequencies against transformers' own code."""

import tomllib
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch

from ropeaudit import RopeSetting, parse
from ropeaudit.errors import UnknownName
from ropeaudit.main import main
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope import presets, scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.scaling import HF_NAMES

FP32 = parse("fp32")
U = 2.0**-24
TABLES = tomllib.loads(resources.files("ropeaudit.data").joinpath("models.toml").read_text(encoding="utf-8"))
HF = {short: name for name, short in HF_NAMES.items()}


def theirs(setting: RopeSetting, maximum: int, length: int) -> tuple[np.ndarray, float]:
    """Inverse frequencies and attention factor of transformers; the rotary dims are a whole head there."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    values = {HF[k]: list(v) if isinstance(v, tuple) else v for k, v in setting.scaling.parameters().items()}
    values.pop("max_position_embeddings", None)
    values |= {"rope_type": setting.scaling.kind, "rope_theta": setting.base}
    if setting.scaling.kind == "yarn":
        values["original_max_position_embeddings"] = int(values["original_max_position_embeddings"])
    config = llama.LlamaConfig(
        hidden_size=setting.rotary_dim, num_attention_heads=1, head_dim=setting.rotary_dim
    )
    config.max_position_embeddings = maximum
    config.rope_parameters = values
    if setting.scaling.kind == "default":
        result, factor = llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        result, factor = llama.ROPE_INIT_FUNCTIONS[setting.scaling.kind](
            config, torch.device("cpu"), seq_len=length
        )
    return result.double().numpy(), float(factor)


def check(setting: RopeSetting, maximum: int, length: int = 16) -> None:
    expected, factor = theirs(setting, maximum, length)
    code = frequencies(setting, "inverse_power", FP32).astype(np.float64)
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    # As in test_scaling: a power off by ln(base) u, the operations of the ramps, their cancellation.
    tolerance = (np.log(scaled.effective_base(setting)) + 40) * U * np.abs(exact) + 1e-12 * exact.max()
    assert np.all(np.abs(code - expected) <= tolerance)
    assert np.all(np.abs(exact - expected) <= tolerance)
    assert scaled.attention_factor(setting.scaling) == pytest.approx(factor, rel=1e-15)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_every_model_agrees_with_transformers() -> None:
    for model in presets.all_presets():
        for layer, setting in model.layers.items():
            print(model.name, layer)  # shown where it fails
            check(setting, model.maximum or 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["phi-3.5-mini", "phi-3-vision-128k"])
def test_long_factors_agree_past_the_original_length(name: str) -> None:
    model = presets.named(name)
    check(replace(model.layers["full_attention"], length=5000), model.maximum or 0, 5000)


def test_every_model_has_a_source() -> None:
    assert len(TABLES) == len(presets.all_presets()) == 58
    for name, table in TABLES.items():
        assert len(table["source"]) > 10, name
        assert table["verified"].startswith("source"), name
        assert presets.named(name).source == table["source"]


def test_every_key_of_the_table_is_used() -> None:
    used = {
        "base",
        "head_dim",
        "rotary_dim",
        "layout",
        "heads",
        "kv_heads",
        "maximum",
        "scaling",
        "sliding_base",
    }
    used |= {"scale", "source", "verified", "note", "unrotated"}
    assert {key for table in TABLES.values() for key in table} == used


def test_heads_are_groups() -> None:
    for model in presets.all_presets():
        assert model.heads % model.kv_heads == 0, model.name
        assert model.maximum, model.name
        assert set(model.layers) <= {"full_attention", "sliding_attention"}


def test_an_unknown_model() -> None:
    with pytest.raises(UnknownName, match=r"unknown model 'llama-3\.1-8'; did you mean llama-3\.1-8b"):
        presets.named("llama-3.1-8")


def test_every_model_works_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    from ropeaudit.main import main

    layers = sum(len(model.layers) for model in presets.all_presets())
    pairs = sum(setting.pairs for model in presets.all_presets() for setting in model.layers.values())
    small = ["--model", "all", "--layer", "all", "-f", "csv", "--no-header", "-q"]
    assert (
        main(
            [
                "shift",
                *small,
                "--heads",
                "1",
                "--seq-len",
                "32",
                "--offset",
                "128k",
                "--dtype",
                "bf16",
                "--recipe",
                "uniform",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.count("\n") == layers
    assert main(["list", "frequencies", *small[:-2]]) == 0
    assert capsys.readouterr().out.count("\n") == pairs + 1
    assert main(["decay", *small, "--distance", "0,1,100", "--qk", "ones"]) == 0
    assert capsys.readouterr().out.count("\n") == 3 * layers


def test_usual_is_ten_models_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["list", "frequencies", "-f", "csv", "--dtype", "bf16", "--model"]
    assert main([*line, "usual,mistral-7b-v0.3"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    models = dict.fromkeys(row.partition(",")[0].partition("/")[0] for row in rows)
    assert list(models) == [*presets.USUAL, "mistral-7b-v0.3"]
    assert len(presets.USUAL) == 10
