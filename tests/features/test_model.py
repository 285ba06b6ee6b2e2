"""A whole model at shifted positions: verdicts, numbers, q and k, what is not seen, bad input."""

import math
import shlex
import shutil
import warnings

import command_line
import numpy as np
import pytest
import torch
from cases import table
from command_line import ran
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file
from tiny_models import add_tokenizer, change_config, split

from ropeaudit.features.model import layers
from ropeaudit.features.model import load as model_load

transformers = pytest.importorskip("transformers")
# Command lines of tests/net run models behind the door, which imports transformers anew for each.
pytestmark = pytest.mark.usefixtures("in_process")
BIG = 2**20
FAST = ["--tokens", "24", "--offset", "1000", "--dtype", "bf16", "-q"]


@pytest.fixture
def llama(trained):
    return trained("llama")


@pytest.fixture
def copied(llama, tmp_path):
    return shutil.copytree(llama, tmp_path / "copy")


def report(capsys, *arguments):
    return ran(capsys, ["model", *arguments, "-f", "json"]).json


def refused(capsys, *arguments):
    return command_line.refused(capsys, ["model", *arguments, "-q"])


CAUSES = {
    "gpt2": ("structure", "learned positions"),
    "ctrl": ("structure", "position table"),
    "beam": ("structure", "query scale"),
    "recurrent_gemma": ("structure", "other"),
    "cohere2, full alone": ("none", "none"),
}


@pytest.mark.parametrize("kind", CAUSES)
def test_what_of_a_model_a_shift_changes(kind, built, capsys) -> None:
    rows = report(capsys, built(kind), *FAST[:2], "--offset", "200", "--dtype", "fp32,bf16")["records"]
    assert [(row["verdict"], row["cause"]) for row in rows] == [CAUSES[kind]] * 2


@pytest.mark.parametrize(
    ("kind", "verdict", "cause"),
    [("llama", "precision", "rounding"), ("dynamic", "structure", "frequencies")],
)
def test_verdicts_and_the_float64_run(kind, verdict, cause, trained, capsys) -> None:
    result = report(
        capsys, trained(kind), "--tokens", "24", "--offset", f"1000,{BIG}", "--dtype", "fp32,bf16"
    )
    assert [(row["verdict"], row["cause"]) for row in result["records"]] == [(verdict, cause)] * 4
    narrow, wide = result["records"][3], result["records"][1]
    if verdict == "precision":
        assert max(row["structural_max"] for row in result["records"]) < 1e-8
        assert narrow["change_rms"] > 10 * wide["change_rms"] > 0
        assert result["headline"].startswith("OK ")
        assert ": shifting the positions by " in result["headline"]
    else:
        assert wide["change_rms"] == pytest.approx(narrow["structural_rms"], rel=0.1)
        assert wide["precision_rms"] < 0.05 * wide["structural_rms"]
        assert result["headline"].endswith(" (structure)")


def test_a_model_in_float64_is_none_and_the_judge_is(llama, capsys) -> None:
    """transformers' own float64 keeps float32 tables: the change that the judge does not have."""
    (row,) = report(capsys, llama, *FAST[:2], "--offset", BIG, "--dtype", "fp64")["records"]
    assert row["structural_max"] < 1e-8 < 1e-6 < row["change_max"]
    assert row["verdict"] == "precision"


def test_numbers_are_those_of_a_plain_run(llama, capsys) -> None:
    """Logits, losses and flips computed with transformers' eager attention, without any of our code."""
    ids = [3, 9, 17, 40, 3, 9, 17, 40, 3, 9, 17]
    (row,) = report(
        capsys, llama, "--tokens", ",".join(map(str, ids)), "--offset", "5000", "--dtype", "bf16"
    )["records"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            llama, dtype=torch.bfloat16, attn_implementation="eager"
        ).eval()
    at = torch.arange(len(ids))[None]
    with torch.no_grad():
        base, moved = (model(torch.tensor([ids]), position_ids=at + p).logits[0].double() for p in (0, 5000))
    assert row["change_max"] == float((moved - base).abs().max())
    assert row["change_rms"] == pytest.approx(float(((moved - base) ** 2).mean().sqrt()), rel=1e-12)
    assert row["top1_flips"] == int((moved.argmax(-1) != base.argmax(-1)).sum())
    p, q = base.numpy(), moved.numpy()
    p, q = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (p, q))
    assert row["kl_mean"] == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-6)
    losses = [-x[np.arange(10), ids[1:]].mean() for x in (p, q)]
    assert row["loss"] == pytest.approx(losses[0])
    assert row["perplexity_change"] == pytest.approx(math.exp(losses[1]) - math.exp(losses[0]), rel=1e-6)


def test_saved_q_and_k_are_those_before_rope(llama, tmp_path, capsys) -> None:
    """Layer 0 written down anew: embedding, RMS norm, projection; then audited by shift."""
    path = tmp_path / "q.safetensors"
    report(capsys, llama, "--tokens", "5,6,7,8,9", "--offset", "9", "--dtype", "fp32", "--save-qk", path)
    saved, weights = load_file(path), load_file(llama / "model.safetensors")
    assert saved["q"].shape == (2, 4, 5, 16)
    assert saved["k"].shape == (2, 2, 5, 16)
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    x = weights["model.embed_tokens.weight"][[5, 6, 7, 8, 9]]
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights["model.layers.0.input_layernorm.weight"]
    for name, heads in (("q", 4), ("k", 2)):
        own = (x @ weights[f"model.layers.0.self_attn.{name}_proj.weight"].T).reshape(5, heads, 16)
        np.testing.assert_allclose(saved[name][0], own.transpose(1, 0, 2), atol=1e-12)
    command = ["shift", "--qk", path, "--config", llama, "--dtype", "bf16", "--recipe", "hf"]
    assert ran(capsys, [*command, "-f", "json", "-q"]).json["records"][0]["heads"] == 8


def test_q_and_k_of_several_layer_types_are_saved_in_a_file_each(built, tmp_path, capsys) -> None:
    """Frequency usage by pair is that of q and k before RoPE, which keeps lengths."""
    files = [tmp_path / f"q-{kind}_attention.safetensors" for kind in ("sliding", "full")]
    options = ["--tokens", "24", "--offset", "9", "--dtype", "fp32", "--save-qk", tmp_path / "q.safetensors"]
    result = report(capsys, built("gemma3_text"), *options, "--by", "pair")
    for file in files:
        [note] = [note for note in result["notes"] if str(file) in note]
        command = shlex.split(note.partition("`")[2].partition("`")[0])
        assert ran(capsys, [*command[1:], "--dtype", "bf16", "--recipe", "hf", "-q", "-f", "json"]).json
        q, numbers = load_file(file)["q"], safe_open(file, "np").metadata()["layers"].split(",")
        usage = np.hypot(*np.split(q, 2, -1)).mean(2)  # layers, heads, pairs
        rows = [row for row in result["records"] if str(row["layer"]) in numbers]
        np.testing.assert_allclose([row["q_norm"] for row in rows], usage.reshape(-1), rtol=1e-3)


def test_dims_that_are_not_rotated_stand_behind_those_that_are(built, tmp_path, capsys) -> None:
    """Latent attention gives a part of each head to the function that rotates, pairs side by side."""
    options = ["--tokens", "24", "--offset", "9", "--dtype", "fp32", "--save-qk", tmp_path / "q.safetensors"]
    rows = report(capsys, built("deepseek_v3"), *options, "--by", "pair")["records"]
    q = load_file(tmp_path / "q.safetensors")["q"]
    pairs = 1 + max(row["pair"] for row in rows)
    rotated, rest = q[..., : 2 * pairs], q[..., 2 * pairs :]
    usage = np.hypot(rotated[..., ::2], rotated[..., 1::2]).mean(2)
    np.testing.assert_allclose([row["q_norm"] for row in rows], usage.reshape(-1), rtol=1e-3)
    assert rest.size > 0
    assert rest.all()


def test_the_first_layer_over_the_threshold(llama, capsys) -> None:
    def first(threshold):
        return report(capsys, llama, *FAST, "--threshold", threshold)["records"][0]["first_layer"]

    layers = report(capsys, llama, *FAST)["layers"]
    sizes = [row["score_drift_max"] for row in layers]
    assert first(0) == 0
    assert first(max(sizes)) is None
    assert first(min(sizes)) == sizes.index(max(sizes))


def test_the_drift_of_scores_and_the_part_of_a_pair() -> None:
    rng, visible = np.random.default_rng(0), np.tri(7, dtype=bool)
    q, k = rng.standard_normal((2, 1, 7, 10))
    later_q, later_k = (x + 1e-3 * rng.standard_normal(x.shape) for x in (q, k))
    base, shifted = (layers.LayerVectors(*both, 0.5, visible) for both in ((q, k), (later_q, later_k)))
    for layout, dims in (("half", [2, 5]), ("interleaved", [2, 3])):
        [head] = layers.drifts(0, base, shifted, layers.RotatedPairs(2, layout, 10.0 ** -np.arange(3)))
        change = later_q[0] @ later_k[0].T - q[0] @ k[0].T
        assert head.largest == pytest.approx(np.abs(np.where(visible, change, 0) * 0.5).max(), rel=1e-9)
        change = later_q[0][:, dims] @ later_k[0][:, dims].T - q[0][:, dims] @ k[0][:, dims].T
        assert head.pairs[3, 0] == pytest.approx(0.5 * np.sqrt(np.mean(change**2)), rel=1e-6)


def test_logits_that_are_not_finite_are_an_overflow(llama, loads, capsys) -> None:
    def plant(model):
        if model.dtype == torch.float16:
            model.lm_head.weight.data *= 1e5

    loads(plant)
    result = report(capsys, llama, *FAST[:4], "--dtype", "fp32,fp16")
    assert [row["verdict"] for row in result["records"]] == ["precision", "overflow"]
    assert result["headline"].endswith(": overflow (overflow)")
    assert [result["records"][1][name] for name in ("change_max", "top1_flips", "loss")] == [None] * 3


UNHEARD = "no q and k of this model are seen before and after rotation"
UNSEEN = "no q and k of this model are seen in attention"
CANNOT = {  # what neither interface nor function shows: notes, layers, layers compared
    "gptj": ([UNSEEN, UNHEARD], 0, 0),
    "falcon": ([UNSEEN], 0, 4),
    "hunyuan_v1_dense": ([UNHEARD], 4, 0),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_is_not_seen_of_q_and_k_is_said(name, built, tmp_path, capsys) -> None:
    notes, rows, compared = CANNOT[name]
    result = report(capsys, built(name), *FAST)
    assert [one for one in (UNSEEN, UNHEARD) if one in " ".join(result["notes"])] == notes
    assert (len(result["layers"]), result["records"][0]["layers_compared"]) == (rows, compared)
    said = ran(capsys, ["model", built(name), *FAST[:-1]]).out
    assert ("not checked     " in said, "  rotation " in said) == (True, bool(compared))
    assert "leave it out" in refused(capsys, built(name), *FAST, "--save-qk", tmp_path / "q.safetensors")


def test_a_text_is_read_and_cut(trained, tmp_path, capsys) -> None:
    folder = shutil.copytree(trained("dynamic"), tmp_path / "with-tokenizer")
    add_tokenizer(folder)
    text = tmp_path / "notes.txt"
    text.write_text("the cat sat on the mat. " * 10)
    seen = ran(capsys, ["model", folder, "--text", text, "--offset", "9", "--dtype", "fp32", "-f", "csv"])
    (row,) = seen.rows
    assert (row["tokens"], row["source"], row["seed"]) == ("128", "notes.txt", "")
    assert "the text was cut to 128 of its 240 tokens (the model's limit)" in seen.err
    arguments = [str(folder), "--text", str(text), "--tokens", "20", "--offset", "9", "--dtype", "fp32"]
    result = report(capsys, *arguments)
    assert result["records"][0]["tokens"] == 20
    assert "(--tokens limit)" in " ".join(result["notes"])
    said = ran(capsys, ["model", *arguments]).out
    assert "perplexity" in said
    assert "read            20 tokens of notes.txt\n" in said


def test_tokens_of_a_text_of_a_seed_and_too_few(copied, tmp_path, capsys) -> None:
    add_tokenizer(copied)
    (tmp_path / "at").write_text("at")
    (tmp_path / "a").write_text("a")
    assert report(capsys, copied, *FAST[2:], "--text", tmp_path / "at")["records"][0]["tokens"] == 2
    assert "gives 1 tokens; give another text" in refused(capsys, copied, "--text", tmp_path / "a")
    one, same, other = (report(capsys, copied, *FAST, "--seed", seed)["records"] for seed in (0, 0, 1))
    assert one == same != other


def test_shards_are_read(copied, capsys) -> None:
    whole = report(capsys, copied, *FAST)["records"]
    split(copied)
    assert report(capsys, copied, *FAST)["records"] == whole


def test_folders_that_are_none(tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    told = {"none": "no such folder", "file": "is not a folder", "empty": "an empty folder"}
    for name, message in told.items():
        assert message in refused(capsys, tmp_path / name)
    assert "no such folder" in refused(capsys, "meta-llama/Llama-3.1-8B")  # nothing is downloaded


def test_encoders_are_refused_before_anything_is_loaded(tmp_path, capsys) -> None:
    told = {"bert": "bert is an encoder", "whisper": "whisper is an encoder with a decoder"}
    told |= {
        "t5": "t5 is an encoder with a decoder",
        "vit": "vit has no causal language model in transformers",
    }
    for kind, message in told.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"model_type": "{kind}", "vocab_size": 64}}')
        (folder / "model.safetensors").write_bytes(b"not read")
        said = refused(capsys, folder)
        assert message in said
        assert f"`ropeaudit check {folder}`" in said
        assert f"`ropeaudit module {folder}`" in said


@pytest.mark.parametrize(
    "name", ["model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"]
)
def test_stored_frequencies_that_are_ignored_are_named(name, copied, capsys) -> None:
    tensors = load_torch(copied / "model.safetensors")
    save_file(tensors | {name: torch.linspace(1, 2, 8)}, copied / "model.safetensors", {"format": "pt"})
    said = ran(capsys, ["model", copied, *FAST[:-1]]).out
    assert said.startswith("OK ")
    assert f"stored          {name}: stored, and ignored by transformers" in said
    save_file(tensors | {name: 1e4 ** (-torch.arange(8) / 8)}, copied / "model.safetensors", {"format": "pt"})
    assert "stored  " not in ran(capsys, ["model", copied, *FAST[:-1]]).out


def test_damaged_checkpoints(copied, capsys) -> None:
    change_config(copied, hidden_size=32)
    assert "config.json does not match the tensors" in refused(capsys, copied, *FAST)
    change_config(copied, hidden_size=64, num_hidden_layers=3)
    assert "config.json does not match the tensors" in refused(capsys, copied, *FAST)
    change_config(copied, num_hidden_layers=2, model_type="no-such-model")
    assert "cannot be loaded" in refused(capsys, copied, *FAST)
    split(copied)[1].unlink()
    assert "1 of 2 shards are missing or empty (model-00002-of-00002.safetensors)" in refused(capsys, copied)


def test_custom_code_is_not_executed(copied, capsys) -> None:
    code = "raise SystemExit('executed')\n"
    (copied / "modeling_mine.py").write_text(code)
    change_config(copied, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    assert "was not executed; transformers' own" in " ".join(report(capsys, copied, *FAST)["notes"])
    change_config(copied, model_type="mine", auto_map={"AutoConfig": "modeling_mine.Config"})
    assert "custom code (auto_map), which was not executed; --trust-remote-code" in refused(
        capsys, copied, *FAST
    )


REFUSED = table(__file__, "model_refused.toml")


@pytest.mark.parametrize("options", REFUSED)
def test_bad_options_get_one_line(options, llama, tmp_path, capsys) -> None:
    (tmp_path / "text").write_text("some words")
    (tmp_path / "empty").write_text(" \n")
    names = {name: tmp_path / name for name in ("text", "empty", "none")}
    assert REFUSED[options] in refused(capsys, llama, *(one.format(**names) for one in options.split()))


def test_positions_end_where_the_model_s_do(trained, capsys) -> None:
    message = refused(capsys, trained("gpt2"), "--tokens", "24", "--offset", "100,233", "--dtype", "fp32")
    assert "cannot be run at offset 233, past the 256 positions that it declares" in message
    assert "for 24 tokens offsets go up to 232" in message


def test_without_transformers_it_says_what_to_install(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(model_load.util, "find_spec", lambda name: None)
    assert "pip install 'ropeaudit[model]'" in refused(capsys, tmp_path)


def test_an_interrupted_run_keeps_what_is_done(llama, monkeypatch, capsys) -> None:
    real, calls = layers.check_layers, []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(layers, "check_layers", broken)
    offsets = ["--offset", "5,6", "--dtype", "fp32", "-f", "csv"]
    seen = ran(capsys, ["model", llama, *FAST[:2], *offsets], 130)
    assert len(seen.rows) == 1
    assert "interrupted: 1 case done" in seen.err


def test_a_model_that_does_not_read_positions_is_refused(tmp_path, capsys) -> None:
    values = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    config = transformers.BartConfig(**values, vocab_size=16, is_decoder=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert "the model does not read position_ids" in refused(capsys, tmp_path)
