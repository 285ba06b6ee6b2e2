"""A whole model at shifted positions: verdicts, the float64 judge, what is captured, bad input."""

import json
import math
import shutil
import warnings
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
import torch
from command_line import ran
from safetensors.numpy import load_file
from tiny_models import CONFIGS, add_tokenizer, change_config, split

from ropeaudit.arithmetic.formats import parse
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.features.model import held, load
from ropeaudit.features.model import layers as model_layers
from ropeaudit.features.model import load as model_load
from ropeaudit.features.model.analysis import UNSEEN, ModelAudit, verdict_of
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.forward_pass import Change, Lookup, Lookups, check_reach, compare
from ropeaudit.features.model.layers import NO_PAIRS, LayerVectors, RotatedPairs, longer_queries
from ropeaudit.features.model.report import COLUMNS, answer
from ropeaudit.main import main

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
BIG = 2**20
FAST = ["--tokens", "24", "--offset", "1000", "--dtype", "bf16", "-q"]


@pytest.fixture
def built(trained):
    return trained


@pytest.fixture
def copied(built, tmp_path):
    return shutil.copytree(built("llama"), tmp_path / "copy")


def report(capsys, *arguments):
    return ran(capsys, ["model", *arguments, "-f", "json"]).json


@pytest.mark.parametrize(
    ("kind", "verdict", "cause"),
    [
        ("llama", "precision", "rounding"),
        ("dynamic", "structure", "frequencies"),
        ("longrope", "structure", "frequencies"),
    ],
)
def test_verdicts_and_the_float64_run(kind, verdict, cause, built, capsys) -> None:
    result = report(capsys, built(kind), "--tokens", "24", "--offset", f"1000,{BIG}", "--dtype", "fp32,bf16")
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


def test_the_judge_has_the_frequencies_of_the_loaded_model(built) -> None:
    """Bit for bit, and the config's within float32: for Llama, and for GPT-NeoX's quarter of the dims."""
    from ropeaudit.features.model.forward_pass import Runner

    for kind, dims in (("llama", 16), ("neox", 4)):
        folder = model_load.open_folder(str(built(kind)), False)
        held = model_layers.tables(model_load.load(folder, parse("fp32")))[0][0]
        judge_ = Runner(model_load.load(folder, parse("fp64")), wide=True)
        assert model_layers.tables(judge_.model)[0][0].tolist() == held.tolist()
        exact = 1e4 ** (-np.arange(0, dims, 2) / dims)
        np.testing.assert_allclose(held, exact, rtol=2**-22)
        assert not judge_.narrow


def test_learned_positions_are_structure(built, capsys) -> None:
    result = report(capsys, built("gpt2"), *FAST[:2], "--offset", "200", "--dtype", "fp32,bf16")
    assert [(row["verdict"], row["cause"]) for row in result["records"]] == [
        ("structure", "learned positions")
    ] * 2
    assert result["headline"].startswith("WARN ")


def test_a_model_in_float64_is_none_and_the_judge_is(built, capsys) -> None:
    """transformers' own float64 keeps float32 tables: the change that the judge does not have."""
    (row,) = report(capsys, built("llama"), *FAST[:2], "--offset", BIG, "--dtype", "fp64")["records"]
    assert row["structural_max"] < 1e-8 < 1e-6 < row["change_max"]
    assert row["verdict"] == "precision"


def test_numbers_are_those_of_a_plain_run(built, capsys) -> None:
    """Logits, losses and flips computed with transformers' eager attention, without any of our code."""
    ids = [3, 9, 17, 40, 3, 9, 17, 40, 3, 9, 17]
    (row,) = report(
        capsys, built("llama"), "--tokens", ",".join(map(str, ids)), "--offset", "5000", "--dtype", "bf16"
    )["records"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            built("llama"), dtype=torch.bfloat16, attn_implementation="eager"
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


def test_saved_q_and_k_are_those_before_rope(built, tmp_path, capsys) -> None:
    """Layer 0 written down anew: embedding, RMS norm, projection; then audited by shift."""
    path = tmp_path / "q.safetensors"
    report(
        capsys, built("llama"), "--tokens", "5,6,7,8,9", "--offset", "9", "--dtype", "fp32", "--save-qk", path
    )
    saved, weights = load_file(path), load_file(built("llama") / "model.safetensors")
    assert saved["q"].shape == (2, 4, 5, 16)
    assert saved["k"].shape == (2, 2, 5, 16)
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    x = weights["model.embed_tokens.weight"][[5, 6, 7, 8, 9]]
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weights["model.layers.0.input_layernorm.weight"]
    for name, heads in (("q", 4), ("k", 2)):
        own = (x @ weights[f"model.layers.0.self_attn.{name}_proj.weight"].T).reshape(5, heads, 16)
        np.testing.assert_allclose(saved[name][0], own.transpose(1, 0, 2), atol=1e-12)
    command = ["shift", "--qk", str(path), "--config", str(built("llama"))]
    assert main([*command, *["--dtype", "bf16", "--recipe", "hf", "-f", "json", "-q"]]) == 0
    assert json.loads(capsys.readouterr().out)["records"][0]["heads"] == 8


def test_layers_and_pairs(built, capsys) -> None:
    result = report(capsys, built("neox"), *FAST, "--by", "pair")
    pairs, layers = result["records"], result["layers"]
    assert [list(rows[0]) for rows in (pairs, layers)] == [list(COLUMNS[k]) for k in ("pair", "layer")]
    assert [len(rows) for rows in (pairs, layers)] == [2 * 4 * 2, 2]  # a quarter of 16 dims
    assert pairs[1]["wavelength"] == pytest.approx(2 * math.pi * 100, rel=1e-6)
    whole = math.sqrt(sum(row["score_drift_rms"] ** 2 for row in layers) / 2)
    assert result["summary"][0]["score_drift_rms"] == pytest.approx(whole)


def test_the_first_layer_over_the_threshold(built, capsys) -> None:
    def first(threshold):
        return report(capsys, built("llama"), *FAST, "--threshold", threshold)["records"][0]["first_layer"]

    layers = report(capsys, built("llama"), *FAST)["layers"]
    sizes = [row["score_drift_max"] for row in layers]
    assert first(0) == 0
    assert first(max(sizes)) is None
    assert first(min(sizes)) == sizes.index(max(sizes))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turning_back_and_the_part_of_a_pair(layout) -> None:
    rng, n, p = np.random.default_rng(0), 7, 3
    pairs = RotatedPairs(2, layout, 10.0 ** -np.arange(p), 1.2)
    x = rng.standard_normal((2, n, 10))
    a, b = pairs.split(x)
    z = (a + 1j * b) * 1.2 * np.exp(1j * np.arange(n)[:, None] * pairs.frequencies)
    rotated = x.copy()
    first, second = pairs.split(rotated)
    first[...], second[...] = z.real, z.imag
    np.testing.assert_allclose(pairs.rotated(rotated, -np.arange(n), 1.2), x, atol=1e-14)
    q, k = x
    q2, k2 = q + 1e-3 * rng.standard_normal(q.shape), k + 1e-3 * rng.standard_normal(k.shape)
    result = model_layers._by_pair(q, k, q2, k2, pairs)
    for i in range(p):
        dims = [2 + i, 2 + i + p] if layout == "half" else [2 + 2 * i, 3 + 2 * i]
        change = q2[:, dims] @ k2[:, dims].T - q[:, dims] @ k[:, dims].T
        assert result[i] == pytest.approx(np.sqrt(np.mean(change**2)), rel=1e-6)


def test_a_drift_is_the_change_of_the_score_though_it_is_summed_from_its_causes() -> None:
    rng, pairs = np.random.default_rng(0), RotatedPairs(0, "half", 10.0 ** -np.arange(4), 1.0)
    (q, k), visible = rng.standard_normal((2, 1, 6, 8)), np.tri(6, dtype=bool)
    q2, k2 = q + 1e-3 * rng.standard_normal(q.shape), k + 1e-3 * rng.standard_normal(k.shape)
    base, shifted = (SimpleNamespace(q=a, k=b, visible=visible, scale=0.5) for a, b in ((q, k), (q2, k2)))
    (result,) = model_layers.drifts(0, base, shifted, pairs)
    change = np.where(visible, q2[0] @ k2[0].T - q[0] @ k[0].T, 0) * 0.5
    assert result.largest == pytest.approx(np.abs(change).max(), rel=1e-9)


def test_the_judge_notices_narrow_numbers_and_widens_what_asks_for_float32() -> None:
    x = torch.ones(3, dtype=torch.float64) / 3
    with held.wide() as mode:
        for y in (
            x.float(),
            x.to(torch.float32),
            torch.softmax(x, 0, dtype=torch.float32),
            torch.tensor([0.1]),
        ):
            assert y.dtype == torch.float64
        assert torch.tensor([0.1], dtype=torch.float32).tolist() == [0.1]
        assert torch.arange(3, dtype=torch.float).dtype == torch.float64
        for narrow in (x.half(), x.bfloat16(), torch.arange(300, 301).to(torch.bfloat16)):
            assert narrow.dtype == torch.float64  # positions that the model casts stay as they are
        assert torch.arange(257, 258).to(torch.bfloat16).tolist() == [257.0]
        assert not mode.narrow
        torch.ones(1, dtype=torch.complex64).real.clone()
    assert mode.narrow
    assert torch.tensor(0.1).dtype == torch.float32  # the world outside is as before


def test_logits_that_are_not_finite_are_an_overflow() -> None:
    good, bad = torch.zeros(3, 4), torch.tensor([[math.inf, 0, 0, 0]] * 3)
    assert verdict_of(compare(good, bad, good.double(), good.double(), [0, 1, 2]), 5) == "overflow"
    assert verdict_of(compare(good, good, good.double(), good.double(), [0, 1, 2]), 5) == "none"
    assert verdict_of(Change(structural_largest=2e-8, largest=1.0), BIG) == "structure"
    assert verdict_of(Change(structural_largest=2e-8, largest=1.0), 4 * BIG) == "precision"


def test_a_text_is_read_and_cut(built, tmp_path, capsys) -> None:
    folder = shutil.copytree(built("dynamic"), tmp_path / "with-tokenizer")
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


def test_a_text_has_two_tokens_at_least(copied, tmp_path) -> None:
    add_tokenizer(copied)
    folder, text = model_load.open_folder(str(copied), False), tmp_path / "short.txt"
    for content in ("at", "cat", "a"):
        text.write_text(content)
        if len(content) > 1:
            assert len(load.read_tokens(folder, str(text), None, 0).ids) == len(content)
    with pytest.raises(BadInput, match="gives 1 tokens; give another text"):
        load.read_tokens(folder, str(text), None, 0)


def test_tokens_follow_the_seed(built) -> None:
    folder = model_load.open_folder(str(built("llama")), False)
    one, same, other = (load.read_tokens(folder, None, "50", seed).ids for seed in (0, 0, 1))
    assert one == same != other
    assert len(one) == 50


def test_a_model_that_refuses_the_interface_has_rows_by_layer(copied, monkeypatch, tmp_path) -> None:
    """As transformers words it: the name that is not supported, and no word of attention."""
    make_, tried = transformers.AutoModelForCausalLM.from_pretrained, []
    (by_interface,) = model_audit(str(copied), 1000, "fp32", tokens="24")

    def make(path, **given):
        tried.append("attn_implementation" in given)
        if tried[-1]:
            raise ValueError(f"Specified {given['attn_implementation']!r} is not supported for text_config.")
        return make_(path, **given)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", make)
    (alone,) = model_audit(str(copied), 1000, "fp32", tokens="24", save_qk=str(tmp_path / "q.safetensors"))
    assert tried == [True, False] * 2
    assert [one.squares for one in alone.heads] == pytest.approx(
        [one.squares for one in by_interface.heads], rel=0.2
    )
    assert load_file(tmp_path / "q.safetensors")["q"].shape == (2, 4, 24, 16)


def test_where_q_and_k_are_not_seen_that_is_said(copied, monkeypatch, tmp_path) -> None:
    from ropeaudit.features.model import forward_pass

    monkeypatch.setattr(forward_pass.Capture, "_keep", lambda *given: None)
    monkeypatch.setattr(model_load, "listen", lambda attention: None)
    monkeypatch.setattr(model_load, "ATTENTION", "sdpa")
    audit = model_audit(str(copied), 1000, "fp32", tokens="24")
    [shifted] = audit
    assert not shifted.heads
    assert UNSEEN in audit.folder.notes
    with pytest.raises(BadInput, match="q and k are not seen; leave it out"):
        list(model_audit(str(copied), 1000, "fp32", save_qk=str(tmp_path / "q.safetensors")))


def test_shards_are_read(copied, capsys) -> None:
    whole = report(capsys, copied, *FAST)["records"]
    split(copied)
    assert report(capsys, copied, *FAST)["records"] == whole


def refused(capsys, *arguments):
    return command_line.refused(capsys, ["model", *arguments, "-q"])


def test_folders_that_are_none(tmp_path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert "no such folder" in refused(capsys, tmp_path / "none")
    assert "is not a folder" in refused(capsys, tmp_path / "file")
    assert "an empty folder" in refused(capsys, tmp_path / "empty")
    assert "no such folder" in refused(capsys, "meta-llama/Llama-3.1-8B")  # nothing is downloaded


def test_damaged_checkpoints(copied, built, capsys) -> None:
    change_config(copied, hidden_size=32)
    assert "config.json does not match the tensors" in refused(capsys, copied, *FAST)
    change_config(copied, hidden_size=64, num_hidden_layers=3)
    assert "config.json does not match the tensors" in refused(capsys, copied, *FAST)
    change_config(copied, num_hidden_layers=2, model_type="no-such-model")
    assert "cannot be loaded" in refused(capsys, copied, *FAST)
    split(copied)[1].unlink()
    assert "1 of 2 shards are missing or empty (model-00002-of-00002.safetensors)" in refused(capsys, copied)
    (copied / "config.json").unlink()
    (copied / "model.safetensors.index.json").write_text("{}")
    assert "no weight_map" in refused(capsys, copied)
    (copied / "model.safetensors.index.json").unlink()
    assert "1 of 2 shards" in refused(capsys, copied)  # the names say how many there are


def test_custom_code_is_not_executed(copied, capsys) -> None:
    code = "raise SystemExit('executed')\n"
    (copied / "modeling_mine.py").write_text(code)
    change_config(copied, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    assert "was not executed; transformers' own" in " ".join(report(capsys, copied, *FAST)["notes"])
    change_config(copied, model_type="mine", auto_map={"AutoConfig": "modeling_mine.Config"})
    assert "custom code (auto_map), which was not executed; --trust-remote-code" in refused(
        capsys, copied, *FAST
    )


@pytest.mark.parametrize(
    ("options", "error_line"),
    [
        (["--text", "{text}"], "there is no tokenizer"),
        (["--text", "{empty}"], "the file is empty"),
        (["--text", "{none}"], "No such file"),
        (["--text", "{text}", "--tokens", "1,2"], "both say what to read"),
        (["--tokens", "1"], "is not a count from 2"),
        (["--tokens", "x"], "is not a count or a list"),
        (["--tokens", "3,64"], "64 is not a token id below the vocabulary of 64"),
        (["--offset", "-1"], "--offset -1 is not a number from 0"),
        (["--dtype", "e4m3"], "models run in float64, float32, float16, bfloat16"),
        (["--dtype", "fp17"], "unknown number format"),
        (["--save-qk", "{none}/q.safetensors"], "is not a file in a folder"),
        (["--save-qk", "q.npz"], "is not a file in a folder"),
    ],
)
def test_bad_options_get_one_line(options, error_line, built, tmp_path, capsys) -> None:
    (tmp_path / "text").write_text("some words")
    (tmp_path / "empty").write_text(" \n")
    names = {name: tmp_path / name for name in ("text", "empty", "none")}
    assert error_line in refused(capsys, built("llama"), *(one.format(**names) for one in options))


def test_positions_end_where_they_are_learned(built, capsys) -> None:
    message = refused(capsys, built("gpt2"), "--tokens", "24", "--offset", "100,233", "--dtype", "fp32")
    assert "--offset 233: positions are learned (transformer.wpe)" in message
    assert "up to 232" in message


def test_an_embedding_of_kinds_is_none_of_positions() -> None:
    kinds = {"kinds": Lookup(torch.zeros(1, 5, dtype=torch.long), 2, True)}
    check_reach(kinds, [3, 1, 4, 1, 5], [10**6])
    for learned, words in ((True, "positions are learned"), (False, "positions stand in a table")):
        with pytest.raises(UsageError, match=words):
            check_reach({"at": Lookup(torch.arange(5)[None], 9, learned)}, [3, 1, 4, 1, 5], [10**6])
    check_reach({"at": Lookup(torch.arange(5)[None], 9, True)}, [3, 1, 4, 1, 5], [4])


def test_what_is_done_with_positions_is_heard() -> None:
    model, positions = torch.nn.ModuleDict({"at": torch.nn.Embedding(8, 4)}), torch.arange(3)[None]
    with Lookups(model, positions) as listening:
        model["at"](torch.arange(3))
        assert positions.shape == (1, 3)
        assert not listening.reads  # an equal tensor, or its shape, is not the positions
        model["at"](positions)
        assert listening.reads
    [(name, one)] = listening.rows.items()
    assert (name, one.rows, one.learned, one.indices.tolist()) == ("at", 8, True, [[0, 1, 2]])


def test_without_transformers_it_says_what_to_install(monkeypatch, in_process, tmp_path, capsys) -> None:
    monkeypatch.setattr(model_load.util, "find_spec", lambda name: None)
    assert "pip install 'ropeaudit[model]'" in refused(capsys, tmp_path)


def test_an_interrupted_run_keeps_what_is_done(built, monkeypatch, in_process, capsys) -> None:
    from ropeaudit.features.model import rotation_check

    real, calls = rotation_check.check_layers, []

    def broken(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(rotation_check, "check_layers", broken)
    offsets = ["--offset", "5,6", "--dtype", "fp32", "-f", "csv"]
    seen = ran(capsys, ["model", built("llama"), *FAST[:2], *offsets], 130)
    assert len(seen.rows) == 1
    assert "interrupted: 1 case done" in seen.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_the_captured_attention_is_the_eager_one(kind, built) -> None:
    """Bit for bit: what is audited is the model that everybody runs."""
    from ropeaudit.features.model.forward_pass import Runner

    folder = model_load.open_folder(str(built(kind)), False)
    ids = list(range(20))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        own = Runner(model_load.load(folder, parse(name)), wide=False).run(ids, 0)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=dtype, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            assert torch.equal(model(torch.tensor([ids])).logits[0], own.logits)
        assert len(own.layers) == 2


def summary_row(**values) -> dict:
    sizes = dict.fromkeys(("change_rms", "structural_rms", "precision_rms", "logits_rms"), 0.0)
    usual_none = dict.fromkeys(("resembles", "first_layer", "rotation_excess"))
    usual = {"dtype": "bf16", "offset": 1000, "verdict": "none", "cause": "none", "source": "random"}
    counts = {"tokens": 24, "score_drift_max": 1.0, "top1_flips": 0, "layers_compared": 0}
    return usual | sizes | usual_none | counts | values


def test_the_headline_of_a_model_where_numbers_overflow_and_where_nothing_changes() -> None:
    folder, tokens = (
        SimpleNamespace(name="m", notes=[]),
        SimpleNamespace(source="random", ids=[1] * 24, seed=0),
    )
    audit = SimpleNamespace(decoded=None, folder=folder, tokens=tokens, pairs={})
    one = SimpleNamespace(heads=[], places={}, wrong_layers=[], diagnosis=None)
    assert answer(audit, [], []).headline == "WARN m: nothing was run"
    overflow = answer(
        audit, [one] * 2, [summary_row(), summary_row(verdict="overflow", dtype="fp16", offset=7)]
    )
    assert (overflow.status, overflow.decides) == ("FAIL", "overflow")
    assert overflow.causes[0].title == "some logits are nan or infinite in fp16 at offset 7"
    same = answer(audit, [one], [summary_row()])
    assert same.headline == "OK m: shifting the positions by 1,000 changes the logits by 0 (float64: 0)"


@pytest.mark.parametrize(
    "done",
    [
        RotatedPairs(0, "half", np.array([1.0, 0.1])),
        RotatedPairs(0, "interleaved", np.array([1.0, 0.1])),
        RotatedPairs(4, "half", np.array([1.0, 0.1])),
        RotatedPairs(4, "interleaved", np.array([1.0, 0.1]), swapped=True),
        NO_PAIRS,
    ],
    ids=lambda one: f"{one.start} {one.layout} {one.swapped} {one.frequencies.size}",
)
def test_how_a_layer_rotates_is_seen_in_two_runs(done) -> None:
    generator = np.random.default_rng(0)
    q, k, visible = generator.normal(size=(2, 3, 8)), generator.normal(size=(1, 3, 8)), np.ones((3, 3), bool)
    base, later = ({5: LayerVectors(done.rotated(q, n), done.rotated(k, n), 1.0, visible)} for n in (0, 64))
    tables = [(np.array([1.0, 0.01]), 1.0), (np.array([1.0, 0.1]), 1.5)]
    one = model_layers.rotated_pairs(base, later, 64, tables)[5]
    assert (one.start, one.layout, one.swapped) == (done.start, done.layout, done.swapped)
    assert one.frequencies.tolist() == done.frequencies.tolist()
    strange = {5: LayerVectors(q, k[..., ::-1], 1.0, visible)}
    assert model_layers.rotated_pairs(base, strange, 64, tables) == {}


def test_rotated_dims_come_first_and_scores_stay() -> None:
    generator = np.random.default_rng(0)
    q, k = generator.normal(size=(2, 3, 8)), generator.normal(size=(2, 3, 8))
    pairs = RotatedPairs(4, "half", np.ones(2))
    for layout, order in (("interleaved", [4, 6, 5, 7, 0, 1, 2, 3]), ("half", [4, 5, 6, 7, 0, 1, 2, 3])):
        assert pairs.arranged(np.arange(8.0)[None], layout).tolist() == [[float(n) for n in order]]
        scores = (pairs.arranged(x, layout) for x in (q, k))
        np.testing.assert_allclose(np.einsum("hsd,htd->hst", *scores), np.einsum("hsd,htd->hst", q, k))


def test_queries_that_grow_with_their_position_are_no_rotation() -> None:
    x, visible = np.ones((1, 2, 4)), np.ones((2, 2), bool)
    base, scaled, both = (LayerVectors(q, k, 1.0, visible) for q, k in ((x, x), (2 * x, x), (2 * x, 2 * x)))
    assert longer_queries([(base, base), (base, scaled)])
    assert not longer_queries([(base, both), (base, scaled)])
    assert not longer_queries([(base, base)])


def test_a_model_that_does_not_read_positions_is_refused(tmp_path, capsys) -> None:
    values = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    config = transformers.BartConfig(**values, vocab_size=16, is_decoder=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    capsys.readouterr()
    assert "the model does not read position_ids" in refused(capsys, tmp_path)


def test_the_largest_offset_that_the_message_names_is_the_largest() -> None:
    folder, tokens = SimpleNamespace(files=[], text={}, path="."), SimpleNamespace(ids=[1])
    ModelAudit(folder, tokens, [], [2**40]).check()
    with pytest.raises(UsageError, match=r"not a number from 0 to 2\^40"):
        ModelAudit(folder, tokens, [], [2**40 + 1]).check()
