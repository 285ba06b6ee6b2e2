"""Faults planted in loaded models: each is named, with its layer where it is one; right models stay right."""

import json
import math
import shutil
import sys

import pytest
import torch
from command_line import ran

from ropeaudit.features.model import held
from ropeaudit.features.model import load as model_load
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.report import report
from ropeaudit.main import main
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
LAYER = 2  # of four
PLAIN = ["llama", "deepseek_v3", "gpt_neox", "phi3"]  # as most, latent attention, partial, fused projections


def audited(loads, folder, plant, *, dtypes="bf16", offset=1000):
    """Return the audit of a model that is spoilt after each loading, and what is said of it."""
    loads(plant)
    audit = model_audit(str(folder), offset, dtypes, tokens="24")
    shifted = list(audit)
    return shifted[0], report([audit], None, {}, shifted=shifted)


def failed(said):
    [told] = said.answers
    assert told.status == "FAIL"
    return told.decides, told.causes[0].code, told.causes[0].title


def warned(said):
    """Return what to beware of in decode."""
    [told] = said.answers
    assert (told.status, told.causes[-1].code) == ("WARN", "decode")
    return told.causes[-1].title


def wrong_layers(one):
    return {layer for layer, places in one.places.items() if places.diagnosis is not None}


# -------------------------------------------------------------------------- what loading leaves behind


def frequencies(model):
    for module in held.rotaries(model).values():
        for key in list(module._buffers):
            if key.endswith("inv_freq") and "original" not in key:
                yield module, key


def filled(change):
    """Return what sets all frequencies to those that `change` makes of them."""

    def plant(model):
        for module, key in frequencies(model):
            module._buffers[key] = change(module._buffers[key])

    return plant


def of_base(base):
    def change(old):
        pairs = old.numel()
        return (base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).to(old.dtype)

    return change


def of_original(length):
    """Return what builds the frequencies of a config with another original length."""

    def plant(model):
        for module, key in frequencies(model):
            config = type(module.config)(**module.config.to_dict())
            config.rope_parameters = {**config.rope_parameters, "original_max_position_embeddings": length}
            module._buffers[key] = type(module)(config)._buffers[key].to(module._buffers[key].dtype)

    return plant


def no_factor(model):
    for module, _ in frequencies(model):
        module.attention_scaling = 1.0


LOADED = {
    "wrong-base": filled(of_base(5e5)),
    "uninitialised": filled(lambda old: torch.full_like(old, 1.1e24)),
    "narrow-frequencies": filled(lambda old: old.bfloat16().to(old.dtype)),
}


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("llama", "wrong-base", "base 500000 instead of 10000"),
        ("deepseek_v3", "uninitialised", "uninitialised: 1.1e+24"),
        ("gpt_neox", "narrow-frequencies", "bfloat16 frequencies"),
        ("phi3", "wrong-base", "base 500000 instead of 10000"),
    ],
)
def test_frequencies_that_loading_spoilt_are_the_first_line(name, code, told, built, loads) -> None:
    one, said = audited(loads, built(name), LOADED[code], dtypes="fp32")
    assert (one.word, codes(one.diagnosis)) == ("wrong_frequencies", code)
    assert wrong_layers(one) == {0, 1, 2, 3}
    assert failed(said) == ("wrong frequencies", code, told)
    assert one.held[0].name.endswith("rotary_emb.inv_freq")


def test_a_buffer_that_nothing_reads_is_a_note(built, loads) -> None:
    """A model's own code may compute its frequencies at each call, beside those that its class holds."""

    def plant(model):
        LOADED["uninitialised"](model)
        module, _ = next(frequencies(model))
        right = type(module)(module.config)
        module.forward = lambda x, position_ids: right(x, position_ids)

    one, said = audited(loads, built("llama"), plant, dtypes="fp32")
    assert (one.word, one.held, one.diagnosis) == ("precision", (), None)
    note = "model.rotary_emb.inv_freq: not as the config builds it; no logit is seen to depend on it"
    assert note in said.notes


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_numbers_that_no_model_has_are_named_so(value, built, loads) -> None:
    plant = filled(lambda old: torch.full_like(old, value))
    one, _ = audited(loads, built("llama"), plant, dtypes="fp32")
    expected = "uninitialised" if abs(value) < 1 else "nonfinite"
    assert (one.word, codes(one.diagnosis)) == ("wrong_frequencies", expected)


def test_each_of_two_tables_is_compared_with_its_own(built, loads) -> None:
    """Gemma 3 holds a table for each kind of layer; the global one is set to the local base."""

    def plant(model):
        for module, key in frequencies(model):
            if key.startswith("full"):
                module._buffers[key] = of_base(1e4)(module._buffers[key])

    one, _ = audited(loads, built("gemma3_text"), plant, dtypes="fp32")
    assert [found.name for found in one.held] == ["model.rotary_emb.full_attention_inv_freq"]
    assert wording.sentence(one.diagnosis) == "base 10000 instead of 1000000"
    kinds = transformers.AutoConfig.from_pretrained(built("gemma3_text")).layer_types
    assert wrong_layers(one) == {n for n, kind in enumerate(kinds) if kind == "full_attention"}


@pytest.mark.parametrize("name", ["llama, yarn", "phi3, longrope"])
def test_a_factor_that_loading_dropped(name, built, loads) -> None:
    one, said = audited(loads, built(name), no_factor, dtypes="fp32")
    assert (one.word, codes(one.diagnosis)) == ("wrong_frequencies", "attention-factor")
    assert one.diagnosis.values["seen"] == 1.0
    assert failed(said)[:2] == ("wrong frequencies", "attention-factor")


@pytest.mark.parametrize("name", ["deepseek_v3, yarn", "llama, llama3"])
def test_a_scaling_of_another_original_length(name, built, loads) -> None:
    one, _ = audited(loads, built(name), of_original(2048), dtypes="fp32")
    assert one.word == "wrong_frequencies"
    assert "other-scaling" in codes(one.diagnosis)
    assert wrong_layers(one) == {0, 1, 2, 3}


def test_the_model_s_own_module_of_one_layer(built, loads) -> None:
    """A layer that has a rotary module of its own, with frequencies of another base."""
    plant = own_module(LOADED["wrong-base"])
    for name in PLAIN[::2]:
        one, said = audited(loads, built(name), plant, dtypes="fp32")
        assert (one.word, codes(one.diagnosis)) == ("wrong_frequencies", "wrong-base")
        assert one.diagnosis.where.layers == (LAYER,)
        assert wrong_layers(one) == {LAYER}
        assert failed(said)[2] == f"layer {LAYER}: base 500000 instead of 10000"


def test_what_the_float64_run_holds_is_what_was_loaded(built) -> None:
    folder = model_load.open_folder(str(built("llama")), False)
    from ropeaudit.arithmetic.formats import parse
    from ropeaudit.features.model.forward_pass import Runner

    loaded = model_load.load(folder, parse("fp64"))
    LOADED["wrong-base"](loaded)
    no_factor(loaded)
    rotary = next(iter(held.rotaries(Runner(loaded, wide=True).model).values()))
    assert rotary.inv_freq[1].item() == pytest.approx(5e5 ** (-1 / 8))
    assert rotary.attention_scaling == 1.0


def test_float32_that_is_not_the_float64_run_fails(built, loads) -> None:
    """A buffer that is other memory at each loading: here the weights of a norm in float32 alone."""

    def plant(model):
        if next(model.parameters()).dtype == torch.float32:
            model.model.norm.weight.data *= 1.01

    one, said = audited(loads, built("llama"), plant, dtypes="fp32")
    assert (one.word, one.diagnosis) == ("inaccurate", None)
    assert failed(said)[:2] == ("inaccurate", "inaccurate")


# -------------------------------------------------------------------------- positions and the rotation


def attention(model, number):
    return next(one for one in model.modules() if getattr(one, "layer_idx", None) == number)


def in_layer(change, number=LAYER):
    """Return what gives one layer other cosines and sines: change(cos, sin, frequencies)."""

    def plant(model):
        module, key = next(frequencies(model))

        def other(_, args, kwargs):
            found = kwargs["position_embeddings"]
            return args, kwargs | {"position_embeddings": change(*found, module._buffers[key])}

        attention(model, number).register_forward_pre_hook(other, with_kwargs=True)

    return plant


def own_module(spoil):
    """Return what gives one layer a rotary module of its own, spoilt."""

    def plant(model):
        module, _ = next(frequencies(model))
        layer = attention(model, LAYER)
        layer.rotary_emb = type(module)(module.config)
        spoil(layer)

        def other(_, args, kwargs):
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            at = model.given
            return args, kwargs | {"position_embeddings": layer.rotary_emb(hidden, at)}

        def keep(_, args, kwargs):
            model.given = kwargs["position_ids"]

        model.register_forward_pre_hook(keep, with_kwargs=True)
        layer.register_forward_pre_hook(other, with_kwargs=True)

    return plant


def later(cos, sin, theta):
    """Return cos and sin of the next position."""
    turn = theta if cos.shape[-1] == theta.numel() else torch.cat((theta, theta))
    more_cos, more_sin = turn.cos().to(cos.dtype), turn.sin().to(cos.dtype)
    return cos * more_cos - sin * more_sin, sin * more_cos + cos * more_sin


def cast_positions(model):
    def cast(_, args, kwargs):
        args = tuple(x if x.is_floating_point() else x.to(torch.bfloat16) for x in args)
        return args, {k: x.to(torch.bfloat16) if k == "position_ids" else x for k, x in kwargs.items()}

    for module in held.rotaries(model).values():
        module.register_forward_pre_hook(cast, with_kwargs=True)


ROTATED = {
    "positions-off": in_layer(later),
    "cos-sin-swapped": in_layer(lambda cos, sin, theta: (sin, cos)),
    "no-rotation": in_layer(lambda cos, sin, theta: (torch.ones_like(cos), torch.zeros_like(sin))),
}


@pytest.mark.parametrize(("name", "code"), [*zip(PLAIN, ROTATED, strict=False), ("phi3", "positions-off")])
def test_a_layer_that_rotates_otherwise_is_named(name, code, built, loads) -> None:
    one, said = audited(loads, built(name), ROTATED[code])
    assert (one.word, codes(one.diagnosis)) == ("wrong_rotation", code)
    assert one.diagnosis.where.layers == (LAYER,)
    assert wrong_layers(one) == {LAYER}
    assert failed(said)[:2] == ("wrong rotation", code)
    assert f"layer {LAYER}" in failed(said)[2]


@pytest.mark.parametrize(("name", "offset"), [("deepseek_v3", 1000), ("gpt_neox", 32768)])
def test_positions_cast_in_the_model_are_precision_with_their_code(name, offset, built, loads) -> None:
    one, said = audited(loads, built(name), cast_positions, offset=offset)
    assert (one.word, codes(one.diagnosis)) == ("wrong_rotation", "narrow-positions")
    assert one.cause == "rounding"
    assert one.change.structural_largest < 1e-8
    assert wrong_layers(one) == {0, 1, 2, 3}
    assert failed(said)[:2] == ("wrong rotation", "narrow-positions")


def test_a_fault_of_a_layer_beside_one_of_loading(built, loads) -> None:
    def plant(model):
        LOADED["wrong-base"](model)
        ROTATED["cos-sin-swapped"](model)

    one, said = audited(loads, built("llama"), plant)
    assert one.word == "wrong_frequencies"
    assert wrong_layers(one) == {0, 1, 2, 3}
    assert failed(said)[2].startswith("base 500000")


UNASKED = {  # type -> what lets a layer of its code rotate, and what keeps it
    "smollm3": ({"use_rope": 1}, {"use_rope": 0}),
    "cohere2": ({"sliding_window": 8}, {"sliding_window": None}),
    "exaone4": ({"is_sliding": True}, {"is_sliding": False}),
    "flint": ({"sliding_window": 8}, {"sliding_window": None}),
}


def first_layer(folder, *, rotates):
    config = transformers.AutoConfig.from_pretrained(folder)
    if config.model_type == "smollm3":
        return config.no_rope_layers.index(int(rotates))  # 1 for a layer that rotates
    return config.layer_types.index("sliding_attention" if rotates else "full_attention")


@pytest.mark.parametrize(("name", "asked"), list(zip(UNASKED, (False, True, False, True), strict=True)))
def test_a_layer_that_rotates_unasked_or_does_not(name, asked, built, loads) -> None:
    layer, values = first_layer(built(name), rotates=asked), UNASKED[name][asked]
    one, _ = audited(loads, built(name), lambda model: vars(attention(model, layer)).update(values))
    code = "no-rotation" if asked else "rotation-unasked"
    assert (one.word, codes(one.diagnosis)) == ("wrong_rotation", code)
    assert wrong_layers(one) == {layer}
    assert wording.sentence(one.diagnosis).startswith(f"layer {layer}: ")


# ---------------------------------------------------------------------------- positions of decode


def given_positions(change):
    """Return what changes the positions that the whole model is given: change(positions, ids, mask)."""

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


DECODED = {  # what is wrong -> how, by how many tokens, in which row
    "decode off by one": (one_more, 1, "with a cache"),
    "a batch off by one": (one_less_in_batches, -1, "in a batch"),
}
MOVED = {"left padding ignored": without_padding, "positions of the first row": first_row}


@pytest.mark.parametrize(("name", "fault"), list(zip(["deepseek_v3", "phi3"], DECODED, strict=True)))
def test_positions_of_decode_are_compared_with_one_pass(name, fault, built, loads) -> None:
    change, by, way = DECODED[fault]
    one, said = audited(loads, built(name), given_positions(change), dtypes="fp32")
    assert (one.word, codes(one.diagnosis)) == ("wrong_decode", "positions-off")
    assert (one.decoded.way, one.decoded.layer) == (way, 0)
    assert one.diagnosis.values["by"] == by
    assert failed(said) == ("wrong decode", "positions-off", f"layer 0: positions {by:+d}")


@pytest.mark.parametrize(("name", "fault"), list(zip(["llama", "gpt_neox"], MOVED, strict=True)))
def test_a_row_that_is_moved_as_a_whole_is_named_and_does_not_fail(name, fault, built, loads) -> None:
    """Scores depend on distances: no logit changes, whatever the padding is taken for."""
    one, said = audited(loads, built(name), given_positions(MOVED[fault]), dtypes="fp32")
    assert (one.word, one.diagnosis) == ("precision", None)
    assert (one.decoded.way, one.decoded.layer, one.decoded.differs) == ("padded on the left", 0, False)
    assert (
        "decode of a row padded on the left rotates otherwise than one pass over its tokens, layer 0: "
        "positions +5; scores depend on distances, and float64 logits stay"
    ) in said.notes


@pytest.fixture
def rotates(monkeypatch):
    """Return what lets a model rotate otherwise: change(plain, further, q, k, cos, sin, layer)."""

    def patched(folder, change):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        module, key = next(frequencies(model))
        home, running = sys.modules[type(attention(model, LAYER)).__module__], []

        def further(cos, sin, by):
            angles = by * torch.cat([module._buffers[key]] * 2).to(cos.dtype)[: cos.shape[-1]]
            c, s = angles.cos(), angles.sin()
            return cos * c - sin * s, sin * c + cos * s

        def turning(apply):
            def turned(q, k, cos, sin, *rest, **named):
                def plain(q, k, cos, sin):
                    return apply(q, k, cos, sin, *rest, **named)

                return change(plain, further, q, k, cos, sin, running[-1])

            return turned

        for function in {one for one in vars(home) if one.startswith("apply_rotary_pos_emb")}:
            monkeypatch.setattr(home, function, turning(getattr(home, function)))
        kind = type(attention(model, LAYER))
        forward = kind.forward

        def noted(self, *args, **kwargs):
            running.append(self.layer_idx)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(kind, "forward", noted)

    return patched


def reported(folder):
    audit = model_audit(str(folder), 1, "fp32", tokens="24")
    [one] = audit
    return one, report([audit], None, {}, shifted=[one])


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


SAID = {
    "both further": (in_decode(1, 2), "layer 0, q: positions +1; layer 0, k: positions +2"),
    "q alone": (in_decode(1, 0), "layer 0, q alone: positions +1"),
    "twice": (twice, "layer 0: rotated twice"),
    "k unrotated": (k_unrotated, "layer 0, k alone: no rotation"),
    "k backwards": (k_backwards, "layer 0, k alone: the other direction"),
    "q, and k larger": (
        q_moved_and_k_larger,
        "layer 0, q: positions +1; layer 0, k: nothing known explains it",
    ),
    "one layer": (in_decode(0, 3, [2]), "layer 2, k alone: positions +3"),
}


@pytest.mark.parametrize("fault", SAID)
def test_what_rotates_q_and_k_of_decode_otherwise_is_named(fault, built, rotates) -> None:
    """All steps count: rotated twice is another number of positions at each."""
    change, sentence = SAID[fault]
    rotates(built("llama"), change)
    one, said = reported(built("llama"))
    assert failed(said)[::2] == ("wrong decode", sentence)
    assert one.decoded.position == 20


def test_one_step_alone_is_told_as_its_position(built, rotates) -> None:
    def change(plain, further, q, k, cos, sin, layer):
        there = q.shape[-2] == 1 and abs(cos[0, 0, 0] - math.cos(21)) < 1e-6
        return plain(q, k, cos, sin)[0], plain(q, k, *further(cos, sin, 5 if there else 0))[1]

    rotates(built("llama"), change)
    _, said = reported(built("llama"))
    assert failed(said)[2] == "layer 0, k alone: position 21 rotated as 26"


def test_a_harmless_move_takes_no_blame(built, rotates) -> None:
    """A layer whose q and k are moved alike throughout keeps its scores: another layer is wrong."""

    def change(plain, further, q, k, cos, sin, layer):
        if layer == 1 and q.shape[-2] in (1, 20):  # of decode: one pass has 24 or 19 tokens
            return plain(q, k, *further(cos, sin, 1))
        return in_decode(0, 1, [3])(plain, further, q, k, cos, sin, layer)

    rotates(built("llama"), change)
    one, said = reported(built("llama"))
    assert failed(said)[2] == "layer 3, k alone: positions +1"
    assert (one.decoded.position, one.decoded.layer) == (20, 3)


def values(monkeypatch, change):
    """Let caches keep other values: change(v, is_decode, layer)."""
    from transformers.cache_utils import Cache

    update = Cache.update

    def other(self, k, v, layer, *args, **named):
        return update(self, k, change(v, k.shape[-2] == 1, layer), layer, *args, **named)

    monkeypatch.setattr(Cache, "update", other)


def test_a_harmless_move_of_a_row_is_no_cause_of_its_logits(built, loads, monkeypatch) -> None:
    """Left padding ignored explains nothing where v of the padded row is wrong."""

    def change(v, is_decode, layer):
        return torch.cat([v[:-1], 1.5 * v[-1:]]) if is_decode and layer == 3 and len(v) == 2 else v

    values(monkeypatch, change)
    one, said = audited(loads, built("llama"), given_positions(without_padding), dtypes="fp32")
    assert (one.word, one.decoded.wrong, one.decoded.differs) == ("precision", None, True)
    assert warned(said).startswith("decode of a row padded on the left is not one pass over its tokens: ")
    assert (one.decoded.position, one.decoded.layer) == (15, None)


@pytest.mark.parametrize(("value", "row"), [("nan", "all"), ("inf", "padded")])
def test_decode_that_is_nan_is_not_one_pass(value, row, built, monkeypatch) -> None:
    def change(v, is_decode, layer):
        if not is_decode or layer != 3 or (row == "padded" and len(v) == 1):
            return v
        kept = v[:-1] if row == "padded" else v[:0]
        return torch.cat([kept, v[len(kept) :] * float(value)])

    values(monkeypatch, change)
    one, said = reported(built("llama"))
    way = "with a cache" if row == "all" else "padded on the left"
    assert (one.decoded.way, one.decoded.differs, one.decoded.layer) == (way, True, None)
    begin = (
        f"decode of a row {way} is not one pass over its tokens: float64 logits are nan or infinite in part"
    )
    assert warned(said).startswith(begin)
    assert one.decoded.position == (20 if row == "all" else 15)


GENERATES = {
    "beams": {"num_beams": 4},
    "ends": {"eos_token_id": [*range(64)]},
    "time": {"max_time": 1e-9},
    "static": {"cache_implementation": "static"},
    "guided": {"guidance_scale": 1.5},
    "in chunks": {"prefill_chunk_size": 4},
    "several": {"num_return_sequences": 2, "do_sample": True},
    "looks up": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize(("name", "fault"), [(name, n % 2) for n, name in enumerate(GENERATES)])
def test_what_a_checkpoint_asks_of_generate_is_not_in_the_way(name, fault, built, tmp_path, rotates) -> None:
    """Beams were taken for rows; an end token, a time and two calls a step let nothing be compared."""
    folder = shutil.copytree(built("llama"), tmp_path / "copied")
    (folder / "generation_config.json").write_text(json.dumps(GENERATES[name]))
    rotates(folder, in_decode(0, fault))
    one, _ = reported(folder)
    assert one.decoded.size > 0  # something was compared
    assert bool(one.decoded.wrong) == bool(fault)
    assert one.word == ("wrong_decode" if fault else "precision")


def test_generation_that_stops_early_is_not_compared(built, loads) -> None:
    def plant(model):
        generate = model.generate

        def short(*args, generation_config, **kwargs):
            generation_config.max_new_tokens = 2
            return generate(*args, generation_config=generation_config, **kwargs)

        model.generate = short

    one, said = audited(loads, built("llama"), plant, dtypes="fp32")
    assert one.decoded is None
    told = dict(said.answers[0].facts)["not checked"]
    assert told == "decode with a cache (`generate` stopped after 2 of 4 tokens)"


def test_decode_that_is_another_without_other_positions_is_a_warning(built, loads) -> None:
    """Nobody takes "precision, not structure" for the whole answer."""

    def plant(model):
        def larger(_, args, output):
            return (output[0] * (1.5 if output[0].shape[1] == 1 else 1.0), *output[1:])

        attention(model, LAYER).register_forward_hook(larger)

    one, said = audited(loads, built("llama"), plant, dtypes="fp32")
    assert (one.decoded.differs, one.decoded.wrong) == (True, None)
    assert warned(said).startswith(
        "decode of a row with a cache is not one pass over its tokens: float64 logits "
    )
    assert warned(said).endswith(f"first seen in q or k of layer {LAYER + 1}")


def test_what_generates_nothing_is_said(built, loads) -> None:
    def plant(model):
        def generate(*_, **__):
            raise RuntimeError("not for this model")

        model.generate = generate

    one, said = audited(loads, built("llama"), plant, dtypes="fp32")
    assert one.decoded is None
    assert (
        "decode with a cache was not compared: `generate` raised RuntimeError: not for this model"
        in said.notes
    )


def test_decode_of_too_few_tokens_is_said_not_to_be_compared(built) -> None:
    audit = model_audit(str(built("llama")), 3, "fp32", tokens="11")
    said = report([audit], None, {}, shifted=list(audit))
    assert "decode with a cache was not compared: it takes 12 tokens; give --tokens 12 or more" in said.notes


def test_decode_of_a_model_whose_tokens_see_those_behind_them_is_not_compared(built) -> None:
    """One pass over a longer text is another for its first tokens too."""
    audit = model_audit(str(built("bert")), 3, "fp32", tokens="24")
    [one] = audit
    assert (one.decoded, one.diagnosis) == (None, None)
    said = report([audit], None, {}, shifted=[one])
    assert "decode with a cache was not compared: in one pass tokens see those behind them" in said.notes


# --------------------------------------------------------------------------------- the same by `check`


def checked(folder, capsys):
    code = main(["check", str(folder), "--tokens", "24", "--dtype", "fp32", "--up-to", "64", "-f", "json"])
    rows = json.loads(capsys.readouterr().out)["records"]
    return code, {row["check"]: row for row in rows if row["check"].startswith("model ")}


def test_check_fails_what_model_fails(built, loads, capsys) -> None:
    """It saw the change of a shift alone, and passed frequencies and layers that a shift does not see."""
    code, rows = checked(built("llama"), capsys)
    assert code == 0
    assert {row["status"] for row in rows.values()} == {"pass", "info"}
    loads(LOADED["wrong-base"])
    code, rows = checked(built("llama"), capsys)
    assert (code, rows["model rotation"]["status"]) == (1, "fail")
    assert rows["model rotation"]["diagnosis"] == "wrong-base"
    assert rows["model rotation"]["where"] == "model.rotary_emb.inv_freq"
    assert rows["model decode"]["status"] == "pass"


def test_check_fails_decode_at_other_positions(built, loads, capsys) -> None:
    loads(given_positions(one_more))
    code, rows = checked(built("llama"), capsys)
    assert (code, rows["model decode"]["status"]) == (1, "fail")
    assert (rows["model decode"]["diagnosis"], rows["model decode"]["where"]) == ("positions-off", "layer 0")
    assert rows["model rotation"]["status"] == "pass"


def test_check_notes_decode_that_is_another_without_other_positions(built, monkeypatch, capsys) -> None:
    values(monkeypatch, lambda v, is_decode, layer: 1.5 * v if is_decode and layer == 3 else v)
    code, rows = checked(built("llama"), capsys)
    assert (code, rows["model decode"]["status"]) == (0, "info")
    assert rows["model decode"]["detail"].startswith("decode of a row with a cache is not one pass over its ")
    assert rows["model decode"]["measured"] > rows["model decode"]["allowed"]


def test_the_exit_code_and_stderr_say_it(built, loads, capsys) -> None:
    arguments = ["model", str(built("llama")), "--tokens", "24", "--offset", "1000", "--dtype", "fp32", "-f"]
    ran(capsys, [*arguments, "json"])
    loads(LOADED["wrong-base"])
    out, error = ran(capsys, [*arguments, "json"], 1)
    [row] = json.loads(out)["records"]
    assert (row["verdict"], row["diagnosis"], row["held"]) == (
        "wrong_frequencies",
        "wrong-base",
        "model.rotary_emb.inv_freq",
    )
    assert "ropeaudit: failed: wrong_frequencies" in error


# ------------------------------------------------------------------------------------- held, by itself


class Rotary(torch.nn.Module):
    """A rotary module of a model's own, whose constructor takes more than a config."""

    def __init__(self, dims, base):
        super().__init__()
        exponents = torch.arange(0, dims, 2, dtype=torch.float32) / dims
        self.register_buffer("inv_freq", base**-exponents, persistent=False)


def of_own_code(tmp_path, base):
    values = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "rope_theta": 5e5}
    config = transformers.LlamaConfig(**values)
    config.save_pretrained(tmp_path)
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Identity(), Rotary(16, base)])})
    model.config = config
    written = json.loads((tmp_path / "config.json").read_text())
    return held.compare(model, model_load.Folder(tmp_path, written, [], True))


def test_a_module_that_cannot_be_built_is_compared_with_the_config(tmp_path) -> None:
    assert of_own_code(tmp_path, 5e5) == ()
    [one] = of_own_code(tmp_path, 1e4)
    assert (one.name, one.layer, one.diagnosis.code) == ("layers.1.inv_freq", 1, "wrong-base")
    assert held.together([(one.layer, one.diagnosis)]).where.layers == (1,)
