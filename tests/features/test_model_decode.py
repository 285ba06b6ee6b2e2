"""Decode with a cache beside one pass: what rotates it by other positions is named, the rest is a warning."""

import functools
import json
import math
import shutil
import sys

import pytest
import test_model_faults
import torch
from cases import first_fast
from command_line import ran

from ropeaudit.recognition.diagnosis import codes

transformers = pytest.importorskip("transformers")
LAYER = 2  # of four
ROW = "decode of a row"


audited = functools.partial(test_model_faults.audited, offset=1)


def warned(told):
    """Return what to beware of in decode."""
    assert (told.status, told.causes[-1].code) == ("WARN", "decode")
    return told.causes[-1].title


# ------------------------------------------------------------------- positions that the whole model is given


def given_positions(change):
    """Return what changes the positions that a model is given: change(positions, ids, mask)."""

    def plant(model):
        def other(_, args, kwargs):
            ids = kwargs.get("input_ids", args[0] if args else None)
            at, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
            return args, kwargs | {"position_ids": change(at, ids, mask)}

        model.register_forward_pre_hook(other, with_kwargs=True)

    return plant


def one_more(at, ids, mask):
    return at + 1 if ids.shape[1] == 1 else at


def one_less_in_batches(at, ids, mask):
    return at - 1 if len(ids) > 1 and ids.shape[1] == 1 else at


def without_padding(at, ids, mask):
    """Count from the first column of a batch, padding or not."""
    if len(ids) == 1:
        return at
    return (torch.arange(ids.shape[1]) + mask.shape[-1] - ids.shape[1]).expand(len(ids), -1)


def first_row(at, ids, mask):
    return at[:1].expand(len(ids), -1)


@pytest.mark.parametrize(
    ("name", "change", "by", "way"),
    [
        ("deepseek_v3", one_more, 1, "with a cache"),
        ("mixtral", one_more, 1, "with a cache"),
        ("phi3", one_less_in_batches, -1, "with a cache"),
    ],
)
def test_positions_of_decode_are_compared_with_one_pass(
    name,
    change,
    by,
    way,
    built,
    loads,
) -> None:
    loads(given_positions(change))
    one, told, _ = audited(built(name))
    assert (one.verdict, codes(one.diagnosis)) == ("wrong_decode", "positions-off")
    assert (one.decoded.way, one.decoded.layer, one.diagnosis.values["by"]) == (f"{ROW} {way}", 0, by)
    assert (told.status, told.decides) == ("FAIL", "wrong decode")
    assert told.causes[0].title == f"layer 0: positions {by:+d}"


@pytest.mark.parametrize(("name", "change"), [("llama", without_padding), ("gpt_neox", first_row)])
def test_a_row_that_is_moved_as_a_whole_is_named_and_does_not_fail(name, change, built, loads) -> None:
    """Scores depend on distances: no logit changes, whatever the padding is taken for."""
    loads(given_positions(change))
    one, told, _ = audited(built(name))
    assert (one.verdict, one.diagnosis, told.status) == ("precision", None, "WARN")
    assert (one.decoded.way, one.decoded.layer, one.decoded.differs) == (
        f"{ROW} padded on the left",
        0,
        False,
    )
    assert (told.causes[-1].code, told.causes[-1].title) == (
        "padding-counted",
        f"{ROW} padded on the left rotates otherwise than one pass over its tokens, layer 0: padding counted "
        "as tokens, as where the argument that tells it is ignored; scores depend on distances, and float64 "
        "logits stay",
    )


# -------------------------------------------------------------------------- the function that rotates q and k


@pytest.fixture
def rotates(monkeypatch):
    """Return what lets a Llama rotate otherwise: change(plain, further, q, k, cos, sin, layer)."""

    def patched(folder, change):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        kind, running = type(model.model.layers[0].self_attn), []
        home, theta = sys.modules[kind.__module__], model.model.rotary_emb.inv_freq
        apply, forward = home.apply_rotary_pos_emb, kind.forward

        def further(cos, sin, by):
            angles = by * torch.cat([theta] * 2).to(cos.dtype)
            c, s = angles.cos(), angles.sin()
            return cos * c - sin * s, sin * c + cos * s

        def turned(q, k, cos, sin, *rest, **named):
            return change(apply, further, q, k, cos, sin, running[-1])

        def noted(self, *args, **kwargs):
            running.append(self.layer_idx)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(home, "apply_rotary_pos_emb", turned)
        monkeypatch.setattr(kind, "forward", noted)

    return patched


def in_decode(q_by, k_by, layers=range(99)):
    """Return what rotates q and k of new tokens further, in some layers."""

    def change(plain, further, q, k, cos, sin, layer):
        if q.shape[-2] > 1 or layer not in layers:
            return plain(q, k, cos, sin)
        return plain(q, k, *further(cos, sin, q_by))[0], plain(q, k, *further(cos, sin, k_by))[1]

    return change


def twice(plain, further, q, k, cos, sin, layer):
    return plain(*plain(q, k, cos, sin), cos, sin) if q.shape[-2] == 1 else plain(q, k, cos, sin)


def k_unrotated(plain, further, q, k, cos, sin, layer):
    q_after, k_after = plain(q, k, cos, sin)
    return q_after, k if q.shape[-2] == 1 else k_after


def k_backwards(plain, further, q, k, cos, sin, layer):
    q_after, k_after = plain(q, k, cos, sin)
    return q_after, plain(q, k, cos, -sin)[1] if q.shape[-2] == 1 else k_after


def q_moved_and_k_larger(plain, further, q, k, cos, sin, layer):
    if q.shape[-2] > 1:
        return plain(q, k, cos, sin)
    return plain(q, k, *further(cos, sin, 1))[0], 1.5 * plain(q, k, cos, sin)[1]


def k_of_one_step(plain, further, q, k, cos, sin, layer):
    there = q.shape[-2] == 1 and abs(cos[0, 0, 0] - math.cos(21)) < 1e-6
    return plain(q, k, cos, sin)[0], plain(q, k, *further(cos, sin, 5 if there else 0))[1]


def one_layer_beside_a_harmless_one(plain, further, q, k, cos, sin, layer):
    """Move q and k of layer 1 alike throughout, which keeps its scores; k of layer 3 alone."""
    if layer == 1 and q.shape[-2] in (1, 20):  # of decode: one pass has 24 or 19 tokens
        return plain(q, k, *further(cos, sin, 1))
    return in_decode(0, 1, [3])(plain, further, q, k, cos, sin, layer)


SAID = [
    (in_decode(1, 2), "layer 0, q: positions +1; layer 0, k: positions +2"),
    (in_decode(1, 0), "layer 0, q alone: positions +1"),
    (in_decode(0, 3, [2]), "layer 2, k alone: positions +3"),
    (twice, "layer 0: rotated twice"),
    (k_unrotated, "layer 0, k alone: no rotation"),
    (k_backwards, "layer 0, k alone: the other direction"),
    (q_moved_and_k_larger, "layer 0, q: positions +1; layer 0, k: nothing known explains it"),
    (k_of_one_step, "layer 0, k alone: position 21 rotated as 26"),
    (one_layer_beside_a_harmless_one, "layer 3, k alone: positions +1"),
]


@pytest.mark.parametrize(("change", "sentence"), first_fast(SAID, 4), ids=[said for _, said in SAID])
def test_what_rotates_q_and_k_of_decode_otherwise_is_named(change, sentence, built, rotates) -> None:
    """All steps count: rotated twice is another number of positions at each."""
    rotates(built("llama"), change)
    one, told, _ = audited(built("llama"))
    assert (told.decides, told.causes[0].title) == ("wrong decode", sentence)
    assert one.decoded.position == (21 if "21" in sentence else 20)


GENERATES = {
    "beams": {"num_beams": 4},
    "ends": {"eos_token_id": [*range(64)]},
    "time": {"max_time": 1e-9},
    "static": {"cache_implementation": "static"},
    "in chunks": {"prefill_chunk_size": 4},
    "several": {"num_return_sequences": 2, "do_sample": True},
}


@pytest.mark.parametrize(("name", "fault"), first_fast([(one, n % 2) for n, one in enumerate(GENERATES)], 2))
def test_what_a_checkpoint_asks_of_generate_is_not_in_the_way(
    name,
    fault,
    built,
    tmp_path,
    rotates,
) -> None:
    """Beams were taken for rows; an end token, a time and two calls a step let nothing be compared."""
    folder = shutil.copytree(built("llama"), tmp_path / "copied")
    (folder / "generation_config.json").write_text(json.dumps(GENERATES[name]))
    rotates(folder, in_decode(0, fault))
    one, _, _ = audited(folder)
    assert one.decoded.size > 0  # something was compared
    assert one.verdict == ("wrong_decode" if fault else "precision")


# ------------------------------------------------------------------------------- other than its positions


def kept_values(factor, row):
    """Return what lets caches keep other values of new tokens in layer 3, of all rows or a padded one."""

    def plant(monkeypatch):
        from transformers.cache_utils import Cache

        update = Cache.update

        def other(self, k, v, layer, *args, **named):
            first = 0 if row == "all" else 1
            if k.shape[-2] == 1 and layer == 3:
                v = torch.cat([v[:first], factor * v[first:]])
            return update(self, k, v, layer, *args, **named)

        monkeypatch.setattr(Cache, "update", other)

    return plant


@pytest.mark.parametrize(
    ("factor", "row", "change"),
    [
        (1.5, "padded", without_padding),  # a harmless move of a row is no cause of its logits
        (math.nan, "all", None),
        (math.inf, "padded", None),
    ],
)
def test_other_values_in_a_cache_are_a_warning(factor, row, change, built, loads, monkeypatch) -> None:
    kept_values(factor, row)(monkeypatch)
    loads(given_positions(change) if change else lambda model: None)
    one, told, _ = audited(built("llama"))
    way = "with a cache" if row == "all" else "padded on the left"
    begin = f"decode of a row {way} is not one pass over its tokens: float64 logits are off by up to "
    assert warned(told).startswith(begin + ("" if math.isfinite(factor) else "inf"))
    assert (one.decoded.differs, one.decoded.wrong, one.decoded.layer) == (True, None, None)
    assert one.decoded.position == (20 if row == "all" else 15)


def test_the_first_layer_in_which_it_is_seen_is_told(built, loads) -> None:
    def plant(model):
        def larger(_, args, output):
            return (output[0] * (1.5 if output[0].shape[1] == 1 else 1.0), *output[1:])

        model.model.layers[LAYER].self_attn.register_forward_hook(larger)

    loads(plant)
    assert warned(audited(built("llama"))[1]).endswith(f"first seen in q or k of layer {LAYER + 1}")


# ----------------------------------------------------------------------------------- what is not compared


def stops_early(model):
    generate = model.generate

    def short(*args, generation_config, **kwargs):
        generation_config.max_new_tokens = 2
        return generate(*args, generation_config=generation_config, **kwargs)

    model.generate = short


def raises(model):
    def generate(*_, **__):
        raise RuntimeError("not for this model")

    model.generate = generate


def reads_ahead(model):
    model.model.embed_tokens.register_forward_hook(lambda *call: call[-1] + call[-1].mean(1, keepdim=True))


def without_cache(model):
    def forget(_, args, kwargs, output):
        if "attention_mask" not in kwargs:  # not in `generate`
            output.past_key_values = None

    model.register_forward_hook(forget, with_kwargs=True)


CALLS = ["decode with a cache", "prefill in chunks"]


@pytest.mark.parametrize(
    ("plant", "tokens", "ways", "reason"),
    [
        (stops_early, "24", CALLS[:1], "`generate` stopped after 2 of 4 tokens"),
        (raises, "24", CALLS[:1], "`generate` raised RuntimeError: not for this model"),
        (without_cache, "24", CALLS[1:], "the model returns no cache"),
        (lambda model: None, "11", CALLS, "it takes 12 tokens; give --tokens 12 or more"),
        (reads_ahead, "24", CALLS, "in one pass tokens see those behind them"),
    ],
)
def test_what_is_not_compared_is_said_with_its_reason(plant, tokens, ways, reason, built, loads) -> None:
    loads(plant)
    one, told, _ = audited(built("llama"), tokens=tokens)
    assert (one.diagnosis, told.status) == (None, "WARN")
    said = "; ".join(f"{way} ({reason})" for way in ways)
    assert dict(told.facts)["not checked"] == said
    compared = " and ".join(way for way in CALLS if way not in ways)
    assert dict(told.facts).get("cache", "").startswith(compared)


# --------------------------------------------------------------------------------- the same by `check`


def other_base(model):
    theta = model.model.rotary_emb.inv_freq
    theta.copy_(theta ** (math.log(5e5) / math.log(1e4)))


def checked(folder, capsys, code):
    command = ["check", folder, "--tokens", "24", "--dtype", "fp32", "--up-to", "64", "-f", "json"]
    rows = ran(capsys, command, code).json["records"]
    return {row["check"]: row for row in rows if row["check"].startswith("model ")}


@pytest.mark.parametrize(
    ("plant", "check", "found"),
    [
        (other_base, "model rotation", ("wrong-base", "model.rotary_emb.inv_freq")),
        (given_positions(one_more), "model decode", ("positions-off", "layer 0")),
    ],
)
def test_check_fails_what_model_fails(
    plant,
    check,
    found,
    built,
    loads,
    capsys,
) -> None:
    loads(plant)
    rows = checked(built("llama"), capsys, 1)
    assert [name for name, row in rows.items() if row["status"] == "fail"] == [check]
    assert (rows[check]["diagnosis"], rows[check]["where"]) == found


def test_check_notes_the_rest(built, in_process, monkeypatch, capsys) -> None:
    assert {row["status"] for row in checked(built("llama"), capsys, 0).values()} == {"pass", "info"}
    kept_values(1.5, "all")(monkeypatch)
    decode = checked(built("llama"), capsys, 0)["model decode"]
    assert decode["status"] == "info"
    assert decode["measured"] > decode["allowed"]
    assert decode["detail"].startswith("decode of a row with a cache is not one pass over its ")
