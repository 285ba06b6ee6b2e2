"""Decode with each cache of transformers beside one pass over the same tokens, on twelve architectures."""

import pytest
import torch

from ropeaudit.errors import UnknownName
from ropeaudit.features.model import decode
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.load import CACHES
from ropeaudit.features.model.report import report
from ropeaudit.main import main

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
FULL = ["llama", "qwen2", "qwen3_moe", "phi3, longrope", "gpt_neox", "gptj", "olmo2", "deepseek_v3"]
SLIDING = ["mistral", "gemma2", "gemma3_text", "cohere2"]
FIRST = ("llama", "gemma3_text")  # the others take half a minute


def audited(folder, caches=CACHES):
    """Return the audit of a model with some caches, and what is said of it."""
    audit = model_audit(str(folder), 1, "fp64", tokens="24", caches=caches)
    return audit, report([audit], None, {}, "cache", list(audit))


def results(said):
    return {row["cache"]: row["result"] for row in said.rows}


def some(names):
    return [pytest.param(name, marks=[] if name in FIRST else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", some(FULL))
def test_decode_with_each_cache_is_one_pass(name, built) -> None:
    audit, said = audited(built(name))
    assert results(said) == dict.fromkeys(CACHES, "same")
    for row in said.rows:
        assert row["layers_compared"] == (0 if name == "gptj" else len(audit.pairs))  # it attends by itself
        assert row["decode_max"] <= 1e-14
        assert (row["dtype"], row["offset"], row["way"], row["reason"]) == ("float64", 0, None, None)
        assert (row["storage_max"] is not None) == (row["cache"] == "quantized")
    assert said.rows[-1]["storage_max"] > 1e-4  # it did round
    assert said.headline == (
        "In float64, decode is one pass over the same tokens with dynamic, static, offloaded, "
        "offloaded_static, quantized."
    )


@pytest.mark.parametrize("name", some(SLIDING))
def test_layers_with_a_window_too_as_far_as_a_cache_takes_them(name, built) -> None:
    """A quantized cache refuses windows; an offloaded static one raises where each layer has one: mistral."""
    _, said = audited(built(name))
    alone = name == "mistral"
    expected = dict.fromkeys(CACHES, "same") | {"quantized": "not_run"}
    assert results(said) == expected | ({"offloaded_static": "not_run"} if alone else {})
    assert "only supported for models with only full attention" in said.rows[-1]["reason"]
    assert any(note.startswith("decode with the quantized cache was not compared: ") for note in said.notes)
    if alone:
        assert said.rows[3]["reason"] == "`generate` raised ValueError: True is not in list"


def test_a_model_whose_mask_has_no_window_and_whose_cache_has_one(built) -> None:
    audit, said = audited(built("moshi"), ("dynamic", "static"))
    assert results(said) == {"dynamic": "differs", "static": "differs"}
    assert {row["way"] for row in said.rows} == {"with a cache"}
    assert said.headline.startswith(
        "In float64, decode is not one pass over the same tokens with dynamic, static. Logits are off by "
    )
    assert audit.decoded.wrong is None  # no position is wrong


def test_a_short_convolution_that_reads_the_padding(built, loads) -> None:
    """recurrent_gemma's: without it the padded row is one pass."""
    _, said = audited(built("recurrent_gemma"), "dynamic")
    assert [(row["result"], row["way"]) for row in said.rows] == [("differs", "padded on the left")]

    def plant(model):
        def silent(_, args, out):
            return out if out.shape[:2] != (2, 20) else torch.cat([out[:1], padded(out[1:])])

        def padded(out):
            return torch.cat([torch.zeros_like(out[:, : decode.PADDED]), out[:, decode.PADDED :]], 1)

        for name, module in model.named_modules():
            if name.endswith("linear_x"):
                module.register_forward_hook(silent)

    loads(plant)
    _, said = audited(built("recurrent_gemma"), "dynamic")
    assert results(said) == {"dynamic": "same"}


def test_a_cache_at_other_positions_fails_the_model(built, loads, capsys) -> None:
    """Static caches alone are read one token further on: the others are right, and that one is named."""

    def plant(model):
        def later(_, args, kwargs):
            cache, at = kwargs.get("past_key_values"), kwargs["position_ids"]
            static = type(cache).__name__ == "StaticCache" and at.shape[1] == 1
            return args, kwargs | {"position_ids": at + 1 if static else at}

        model.model.register_forward_pre_hook(later, with_kwargs=True)

    loads(plant)
    arguments = ["--tokens", "24", "--dtype", "fp32", "--offset", "1", "--by", "cache"]
    assert main(["model", str(built("llama")), *arguments]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("Wrong positions in decode, layer 0: positions +1; logits are off by ")
    assert "not one pass over the same tokens with static, offloaded_static." in said.out
    assert "one pass over the same tokens with dynamic, offloaded, quantized; " in said.out
    assert "decode of a row with a cache (the static cache) is not one pass over its tokens" in said.err
    assert "offloaded caches copy nothing on cpu; --device cuda lets them" in said.err


def test_what_was_not_run_is_said_once(built) -> None:
    folder = str(built("llama"))
    audit = model_audit(folder, 1, "fp64", tokens="8", caches=CACHES)
    said = report([audit], None, {}, "cache", list(audit))
    assert said.headline == f"Not run: {', '.join(CACHES)}."
    assert (
        f"decode with caches ({', '.join(CACHES)}) was not compared: it takes 12 tokens; give --tokens 12 or "
        "more"
    ) in said.notes
    with pytest.raises(UnknownName, match="unknown cache 'statics'; did you mean static"):
        model_audit(folder, caches="statics")


def test_rounding_by_intent_is_no_narrow_judge(built) -> None:
    audit, _ = audited(built("llama"), "quantized")
    assert audit.narrow == []


def test_offsets_that_a_model_does_not_reach_are_not_in_its_way(built, capsys) -> None:
    """Decode is not shifted: a table of learned positions ends before the offsets of other rows."""
    arguments = ["model", str(built("gpt2")), "--tokens", "24", "--dtype", "fp32"]
    assert main(arguments) == 2
    assert "--offset 32768: positions are learned" in capsys.readouterr().err
    assert main([*arguments, "--by", "cache"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("In float64, decode is one pass over the same tokens with dynamic, static, ")
    assert "way: `generate` decodes 4 tokens of two rows" in said


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_k_that_a_full_window_writes_over_is_that_of_its_step(name, built) -> None:
    """Tokens that repeat have k alike but for positions: k of a later step is not that of an earlier one."""
    audit = model_audit(
        str(built(name)), 1, "fp64", tokens=",".join(["7"] * 24), caches=("dynamic", "static")
    )
    said = report([audit], None, {}, "cache", list(audit))
    assert results(said) == {"dynamic": "same", "static": "same"}


def test_a_model_that_reads_no_positions_decodes_all_the_same(built, capsys) -> None:
    arguments = ["model", str(built("mpt")), "--tokens", "24", "--dtype", "fp32"]
    assert main(arguments) == 2
    assert "there is nothing to shift" in capsys.readouterr().err
    assert main([*arguments, "--by", "cache"]) == 0
    assert capsys.readouterr().out.startswith(
        "In float64, decode is one pass over the same tokens with dynamic"
    )
