"""Faults planted in loaded models, a row each: verdict, cause, layers; right models get no alarm."""

import functools
import importlib
import shutil
from typing import NamedTuple

import pytest
import small_configs
import torch
from cases import first_fast, table
from command_line import ran
from net.kernel_rows import KERNELS
from safetensors.torch import load_file, save_file
from tiny_models import change_config

from ropeaudit.errors import BadInput
from ropeaudit.features.model.analysis import WRONG
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.report import report
from ropeaudit.recognition.diagnosis import codes

transformers = pytest.importorskip("transformers")
LAYER = 2  # of four


def audited(folder, offset=1000, dtypes="fp32", tokens="24", **options):
    """Return the first result, and the answer with its notes."""
    audit = model_audit(str(folder), offset, dtypes, tokens=tokens, **options)
    shifted = list(audit)
    said = report([audit], None, {}, shifted=shifted)
    return shifted[0], said.answers[0], said.notes


# ------------------------------------------------------------------------------- how faults are planted


def frequencies(model):
    """Return the modules that hold frequencies, each with the name of a buffer."""
    return [
        (module, key)
        for module in model.modules()
        for key in list(module._buffers)
        if key.endswith("inv_freq") and "original" not in key
    ]


def attention(model, number):
    return next(one for one in model.modules() if getattr(one, "layer_idx", None) == number)


def filled(change, begins=""):
    """Return what sets all frequencies, or those whose name begins so, to what `change` makes of them."""

    def plant(model):
        for module, key in frequencies(model):
            if key.startswith(begins):
                module._buffers[key] = change(module._buffers[key])

    return plant


def of_base(base):
    def change(old):
        pairs = old.numel()
        return (base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).to(old.dtype)

    return change


def of_original(model):
    """Build the frequencies of a config with another original length."""
    for module, key in frequencies(model):
        config = type(module.config)(**module.config.to_dict())
        config.rope_parameters = {**config.rope_parameters, "original_max_position_embeddings": 2048}
        module._buffers[key] = type(module)(config)._buffers[key].to(module._buffers[key].dtype)


def no_factor(model):
    for module, _ in frequencies(model):
        module.attention_scaling = 1.0


def zeros(model):
    """Leave buffers as memory that was never written, in Gemma the scale of its embeddings too."""
    for name, buffer in model.named_buffers():
        if "inv_freq" in name or "embed_scale" in name:
            buffer.zero_()


def on_meta(model):
    """Build a model again on `meta`, give it memory and load parameters into it."""
    with torch.device("meta"):
        other = type(model)(model.config)
    other = other.to_empty(device="cpu").to(model.dtype)
    right = dict(model.named_buffers())
    some = torch.Generator().manual_seed(3)
    for name, buffer in other.named_buffers():
        words = torch.randint(-(2**31), 2**31, (2 * buffer.numel(),), generator=some).to(torch.int32)
        memory = words.view(buffer.dtype)[: buffer.numel()].view(buffer.shape)
        buffer.copy_(memory if "inv_freq" in name else right[name])
    other.load_state_dict(model.state_dict())
    return other.eval()


def cast(*dtypes):
    """Return what casts a whole model, but for the float64 run."""

    def plant(model):
        for dtype in dtypes if model.dtype != torch.float64 else ():
            model = model.to(dtype)
        return model

    return plant


def own_module(spoil):
    """Return what gives one layer a rotary module of its own, spoilt."""

    def plant(model):
        module, _ = frequencies(model)[0]
        layer = attention(model, LAYER)
        layer.rotary_emb = type(module)(module.config)
        spoil(layer)

        def other(_, args, kwargs):
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            return args, kwargs | {"position_embeddings": layer.rotary_emb(hidden, model.given)}

        def keep(_, args, kwargs):
            model.given = kwargs["position_ids"]

        model.register_forward_pre_hook(keep, with_kwargs=True)
        layer.register_forward_pre_hook(other, with_kwargs=True)

    return plant


def in_layer(change, number=LAYER):
    """Return what gives one layer other cosines and sines: change(cos, sin, frequencies)."""

    def plant(model):
        module, key = frequencies(model)[0]

        def other(_, args, kwargs):
            found = kwargs["position_embeddings"]
            return args, kwargs | {"position_embeddings": change(*found, module._buffers[key])}

        attention(model, number).register_forward_pre_hook(other, with_kwargs=True)

    return plant


def later(cos, sin, theta):
    """Return cos and sin of the next position."""
    turn = theta if cos.shape[-1] == theta.numel() else torch.cat((theta, theta))
    more_cos, more_sin = turn.cos().to(cos.dtype), turn.sin().to(cos.dtype)
    return cos * more_cos - sin * more_sin, sin * more_cos + cos * more_sin


def swapped(cos, sin, theta):
    return sin, cos


def still(cos, sin, theta):
    return torch.ones_like(cos), torch.zeros_like(sin)


def noisy(cos, sin, theta):
    return cos + torch.rand(cos.shape, generator=torch.Generator().manual_seed(0)), sin


def narrow_positions(model):
    def other(_, args, kwargs):
        args = tuple(x if x.is_floating_point() else x.to(torch.bfloat16) for x in args)
        return args, {k: x.to(torch.bfloat16) if k == "position_ids" else x for k, x in kwargs.items()}

    for module, _ in frequencies(model):
        module.register_forward_pre_hook(other, with_kwargs=True)


def everywhere(change):
    """Return what gives all layers other cosines and sines."""

    def plant(model):
        for number in range(model.config.num_hidden_layers):
            in_layer(change, number)(model)

    return plant


def of_another_base(key, base):
    """Return the frequencies that a class builds for one of its buffers at another base."""

    def changed(values):
        inner = {name: changed(one) if isinstance(one, dict) else one for name, one in values.items()}
        return inner | ({"rope_theta": base} if "rope_theta" in values else {})

    def build(module):
        config = type(module.config)(**module.config.to_dict())
        config.rope_parameters = changed(config.rope_parameters)
        return type(module)(config)._buffers[key]

    return build


def another_base_scaled(model):
    for module, key in frequencies(model):
        module._buffers[key].copy_(of_another_base(key, 5e5)(module))


def two_bases(model):
    """Rotate sliding layers by the base of full ones; without these, each second layer by another base."""
    (module, key), *others = frequencies(model)
    if others:
        filled(lambda old: module._buffers["full_attention_inv_freq"].clone(), "sliding")(model)
        return
    theta, given = of_another_base(key, 5e5)(module).double(), []

    def keep(_, args, kwargs):
        given[:] = (*args, *kwargs.values())[1:2]

    module.register_forward_pre_hook(keep, with_kwargs=True)

    def other(cos, sin, _):
        angles = torch.cat([given[0][..., None].double() * theta] * 2, -1)
        return tuple((module.attention_scaling * one).to(cos.dtype) for one in (angles.cos(), angles.sin()))

    for number in (1, 3):
        in_layer(other, number)(model)


def another_factor(model):
    """Multiply cos and sin by 1, or by 1.1 where 1 is right."""
    for module in dict.fromkeys(module for module, _ in frequencies(model)):
        for name in [name for name in vars(module) if name.endswith("attention_scaling")]:
            setattr(module, name, 1.0 if getattr(module, name) != 1.0 else 1.1)


def calls(change):
    """Return what calls a model with other arguments: change(new tokens, those in the cache, arguments)."""

    def plant(model):
        def other(_, args, kwargs):
            ids, past = kwargs.get("input_ids", args[0] if args else None), kwargs.get("past_key_values")
            before = 0 if past is None else past.get_seq_length()
            return args, kwargs | change(ids.shape[1], before, kwargs)

        model.register_forward_pre_hook(other, with_kwargs=True)

    return plant


def at_chunks(first):
    """Return what gives chunks onto a cache positions from first(length of the cache) on."""

    def change(size, before, _):
        return {"position_ids": first(before) + torch.arange(size)[None]} if before and size > 1 else {}

    return calls(change)


def short_table(model):
    def other(_, args, kwargs):
        args = tuple(x.clamp(max=511) if getattr(x, "dtype", None) == torch.int64 else x for x in args)
        return args, {k: x.clamp(max=511) if k == "position_ids" else x for k, x in kwargs.items()}

    for module, _ in frequencies(model):
        module.register_forward_pre_hook(other, with_kwargs=True)


def larger_scores(model):
    for module in model.modules():
        if hasattr(module, "scaling") and hasattr(module, "layer_idx"):
            module.scaling *= 1.59


def no_growth(model):
    """Leave out by how much queries grow with their position (Llama 4's temperature)."""
    model.config.rope_parameters["llama_4_scaling_beta"] = 0.0


def k_late(own, q, k, cos, sin, *rest, **named):
    """Rotate k as the token before it; in decode, where none is there to tell the angle, as itself."""
    theta = cos[:, -1:] + 1j * sin[:, -1:]
    step = theta / (cos[:, -2:-1] + 1j * sin[:, -2:-1]) if cos.shape[1] > 1 else torch.ones_like(theta)
    late = (cos + 1j * sin) / step
    earlier = own(q, k, late.real.to(cos.dtype), late.imag.to(cos.dtype), *rest, **named)
    return own(q, k, cos, sin, *rest, **named)[0], earlier[1]


def other_pairs(own, q, k, cos, sin, *rest, **named):
    """Rotate pairs of neighbours where halves are right, and halves where neighbours are."""
    half = cos.shape[-1] // 2

    def neighbours(x, back=False):
        order = torch.arange(2 * half).reshape(*((half, 2) if back else (2, half))).T.reshape(-1)
        return x[..., order]

    if own.__name__.endswith("interleave"):
        return own(*(neighbours(x, back=False) for x in (q, k)), cos, sin, *rest, **named)
    turned = own(*(neighbours(x, back=True) for x in (q, k)), cos, sin, *rest, **named)
    return tuple(neighbours(x) for x in turned)


def of_layer(number, **values):
    return lambda model: vars(attention(model, number)).update(values)


def both(*plants):
    def plant(model):
        for one in plants:
            one(model)

    return plant


def another_norm(model):
    """Change weights in float32 alone: memory that is another at each loading."""
    if model.dtype == torch.float32:
        model.model.norm.weight.data *= 1.01


class Fault(NamedTuple):
    """A row of model_faults.toml."""

    model: str
    plant: str
    verdict: str
    code: str
    title: str
    layers: tuple[int, ...] = (0, 1, 2, 3)
    dtypes: str = "fp32"
    offset: int = 1000


LOADED = "wrong_frequencies"
BASE, ONES = filled(of_base(5e5)), filled(torch.ones_like)
HUGE = filled(lambda old: torch.full_like(old, 1.1e24))
NAN = filled(lambda old: torch.full_like(old, float("nan")))
CAST = filled(lambda old: old.bfloat16().to(old.dtype))
HALF, BRAIN = torch.float16, torch.bfloat16
PLANTS = {
    "another base": BASE,
    "huge": HUGE,
    "cast": CAST,
    "zeros": zeros,
    "nan": NAN,
    "ones": ONES,
    "on meta": on_meta,
    "another base of full attention": filled(of_base(1e4), "full"),
    "no factor": no_factor,
    "another original length": of_original,
    "half and back": cast(HALF, torch.float32),
    "brain and back": cast(BRAIN, torch.float32),
    "brain": cast(BRAIN),
    "half": cast(HALF),
    "own module": own_module(BASE),
    "another base, and swapped": both(BASE, in_layer(swapped)),
    "another norm": another_norm,
    "later": in_layer(later),
    "swapped": in_layer(swapped),
    "still": in_layer(still),
    "noisy": in_layer(noisy),
    "narrow positions": narrow_positions,
    "rotates layer 3": of_layer(3, use_rope=1),
    "no window in layer 0": of_layer(0, sliding_window=None),
    "another base, scaled": another_base_scaled,
    "swapped everywhere": everywhere(swapped),
    "decode one more": calls(
        lambda size, before, given: {"position_ids": given["position_ids"] + 1} if size == 1 else {}
    ),
    "another factor": another_factor,
    "chunks restart": at_chunks(lambda before: 0),
    "chunks one more": at_chunks(lambda before: before + 1),
    "no mask": calls(lambda size, before, given: {"attention_mask": None}),
    "short table": short_table,
    "larger scores": larger_scores,
    "no growth": no_growth,
    "two bases": two_bases,
}
ROTATIONS = {"k late": k_late, "other pairs": other_pairs}  # of functions, in place of a plant
TABLE = table(__file__, "model_faults.toml")
FAULTS = [Fault(**row) for row in TABLE["faults"]]
FIRST = list({(one.verdict, one.code): one for one in reversed(FAULTS)}.values())  # of each verdict and code


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=[] if one in FIRST else pytest.mark.slow) for one in FAULTS],
    ids=lambda one: f"{one.model}: {one.code} {one.title}",
)
def test_a_planted_fault_is_named_with_its_layers(fault, built, loads) -> None:
    loads(PLANTS[fault.plant])
    one, told, _ = audited(built(fault.model), fault.offset, fault.dtypes)
    assert (one.verdict, codes(one.diagnosis)) == (fault.verdict, fault.code)
    assert set(one.wrong_layers) == set(fault.layers)
    assert (told.status, told.decides) == ("FAIL", fault.verdict.replace("_", " "))
    assert told.causes[0].title.startswith(fault.title)
    if fault.verdict == LOADED:
        assert all(name in told.causes[0].facts[0] for name in [found.name for found in one.held])
    else:
        assert one.held == ()
        assert one.cause == ("other" if fault.code == "not-a-rotation" else "rounding")


def test_what_is_wrong_at_the_first_positions_alone_is_named(built, loads) -> None:
    """At shifted positions it rotates right."""

    def doubled(size, before, given):
        at = given["position_ids"]
        return {"position_ids": torch.where(at < 900, 2 * at, at)}

    loads(calls(doubled))
    one, told, _ = audited(built("llama"), 1000, "fp32")
    assert (told.status, one.verdict, codes(one.diagnosis)) == ("FAIL", "wrong_rotation", "rotated-twice")


@pytest.mark.slow
@pytest.mark.parametrize("family", TABLE["families"])
def test_fifteen_faults_are_named_in_each_family(family, built, loads, monkeypatch) -> None:
    code, missed = f"transformers.models.{TABLE['families'][family]}.modeling_{TABLE['families'][family]}", []
    home, folder = importlib.import_module(code), built(family)
    for row in TABLE["matrix"]:
        with monkeypatch.context() as patch:
            for name in [name for name in vars(home) if name.startswith("apply_rotary")]:
                if change := ROTATIONS.get(row["plant"]):
                    own = functools.partial(change, getattr(home, name))
                    patch.setattr(home, name, functools.wraps(getattr(home, name))(own))
            loads(PLANTS.get(row["plant"], lambda model: None))
            told = audited(folder)[1]
        first = told.causes[0] if told.causes else None
        if first is None or (told.status, first.code) != ("FAIL", row["code"]):
            missed.append((row["plant"], told.status, told.causes))
        elif not first.title.startswith(row["title"]):
            missed.append((row["plant"], first.title))
    assert missed == []  # of 45, of which 43 have to be named


# ------------------------------------------------------------------------------------------ no faults


def unread(model):
    """Fill a buffer that the model's code does not read."""
    HUGE(model)
    module, _ = frequencies(model)[0]
    right = type(module)(module.config)
    module.forward = lambda x, position_ids: right(x, position_ids)


def computed_again(model):
    other = on_meta(model)
    for module, key in frequencies(other):
        module._buffers[key] = type(module)(module.config)._buffers[key]
    return other


RIGHT = {"unread": unread, "computed again": computed_again, "widened": lambda m: m.double().to(m.dtype)}


@pytest.mark.parametrize("name", RIGHT)
def test_loading_that_changes_nothing_that_is_read_gets_no_alarm(name, built, loads) -> None:
    loads(RIGHT[name])
    one, told, notes = audited(built("llama"), dtypes=("fp32", "bf16", "fp16"))
    assert (one.held, one.diagnosis, one.verdict) == ((), None, "precision")
    assert told.status == "OK"
    note = "model.rotary_emb.inv_freq: not as the config builds it; no logit is seen to depend on it"
    assert (note in notes) == (name == "unread")


def test_experts_that_others_are_sent_to_are_a_note_and_no_fault(built, loads) -> None:
    """One rounding can do that, and logits jump by as much as experts differ."""

    def plant(model):
        if model.dtype == torch.float32:
            for name, values in model.named_parameters():
                if ".gate." in name or "router" in name:
                    values.data = values.data.flip(0)

    loads(plant)
    one, told, notes = audited(built("mixtral"))
    assert (one.verdict, told.status) == ("precision", "OK")
    assert (
        "float32 sends tokens to other experts than float64 does: whether its logits are accurate is not "
        in (" ".join(notes))
    )


def test_frequencies_that_cannot_be_run_are_named(built, loads) -> None:
    """A rank's share of each buffer, as a plan that shards all tensors leaves it."""
    loads(filled(lambda old: old.chunk(2)[0].contiguous()))
    with pytest.raises(BadInput, match=r"^model\.rotary_emb\.inv_freq, not as its config builds it"):
        audited(built("llama"))


# ----------------------------------------------------------------------------- what a model's own code does

CODE = (KERNELS / "called" / "own_modeling.py").read_text()
RIGHT_CODE = "module.inv_freq.copy_(module.built())"
BUFFER, KIND = 'self.register_buffer("inv_freq", self.built(), persistent=False)', "torch.float32"
OWN = {  # what stands in its code instead -> what is found
    "right": ({}, ""),
    "random": (
        {RIGHT_CODE: "module.inv_freq.normal_(generator=torch.Generator().manual_seed(0))"},
        "unexplained",
    ),
    "the usual base": ({RIGHT_CODE: "module.inv_freq.copy_(module.built(1e4))"}, "wrong-base"),
    "of the dtype": ({KIND: "self.config.dtype"}, "narrow-frequencies"),
}


def own(folder, target, changes):
    """Write a model with code of its own, whose config declares bfloat16; return its folder."""
    shutil.copytree(folder, target)
    tensors = {key: value.bfloat16() for key, value in load_file(target / "model.safetensors").items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    code = CODE
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    (target / "modeling_own.py").write_text(code)
    rope = {"rope_type": "default", "rope_theta": 5e5}
    change_config(
        target,
        auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"},
        architectures=["OwnForCausalLM"],
        rope_parameters=rope,
        dtype="bfloat16",
    )
    return target


@pytest.mark.parametrize("name", OWN)
def test_what_a_model_s_own_code_builds_is_compared_with_config_json(
    name, built, tmp_path, monkeypatch
) -> None:
    real = transformers.AutoModelForCausalLM.from_pretrained

    def as_declared(*arguments, **options):
        return real(*arguments, **options | {"dtype": "auto"})

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", as_declared)
    changes, code = OWN[name]
    folder = own(built("llama"), tmp_path / name.replace(" ", "_"), changes)
    one, told, _ = audited(folder, dtypes="bf16", trust_remote_code=True)
    assert codes(one.diagnosis) == code
    assert (one.verdict == LOADED, told.status) == ((True, "FAIL") if code else (False, "OK"))


def test_frequencies_beside_the_buffers_stay_without_memory(built, tmp_path) -> None:
    folder = own(
        built("llama"), tmp_path / "plain", {BUFFER: "self.inv_freq = self.built()", RIGHT_CODE: "pass"}
    )
    with pytest.raises(
        BadInput, match=r"^model\.rotary_emb\.inv_freq: uninitialised, for loading left it on"
    ):
        audited(folder, trust_remote_code=True)


# ------------------------------------------------------------------------------------ what right models get

# How many layers are compared. Slow: partial rotation, fused projections, norms behind them, interleaved
# pairs, scaling by length. Every type of the library is judged by an exhaustive test.
COMPARED = {"llama": 4, "gemma3_text": 4, "gptj": 0}
LATER = dict.fromkeys(["gpt_neox", "glm", "mixtral", "deepseek_v3", "deepseek_v3, yarn", "gpt_oss"], 4)
LATER |= dict.fromkeys(["phi3, longrope", "llama, yarn", "llama, dynamic", "llama, llama3", "falcon"], 4)
LATER |= {"gemma4_text, shared": 4, "smollm3": 2, "flint": 2, "granitemoehybrid, rope": 2, "opt": 0}


@pytest.mark.parametrize(("name", "layers"), first_fast((COMPARED | LATER).items(), len(COMPARED)))
def test_a_right_model_gets_no_alarm(name, layers, built) -> None:
    offsets = (3, 1000) if name in ("gptj", "opt") else (3, 32768)  # tables that end
    dtypes = ("fp32", "bf16", "fp16", "fp64") if name == "llama" else ("fp32", "bf16")
    audit = model_audit(str(built(name)), offsets, dtypes, tokens="24")
    for one in audit:
        assert (one.held, one.diagnosis) == ((), None)
        assert one.verdict not in WRONG
        assert len(one.places) == layers
        assert max((place.excess for place in one.places.values()), default=0.0) < 0.7
        assert one.decoded is None or one.decoded.position is None
    unheard = [
        note for note in audit.folder.notes if note.startswith("no q and k of this model are seen before")
    ]
    assert bool(unheard) == (layers == 0)


@pytest.mark.exhaustive
def test_no_type_of_the_library_is_called_wrong(tmp_path) -> None:
    judged = 0
    for number, name in enumerate(small_configs.types()):
        if small_configs.build(name, tmp_path / str(number)) is None:
            try:
                audit = model_audit(str(tmp_path / str(number)), (3, 1000), ("fp32", "bf16"), tokens="24")
                runs = list(audit)
            except BadInput:  # it does not read positions
                continue
            right = name != "bamba"  # which counts each chunk from 0 where it is not told positions
            assert [(name, one.diagnosis) for one in runs if one.diagnosis and right] == []
            judged += bool(runs[0].places)
    assert judged >= 90


# --------------------------------------------------------------------------- the same by command lines


def test_a_layer_alone_is_named_in_rows_headline_and_csv(built, loads, capsys) -> None:
    loads(in_layer(later))
    arguments = ["model", built("llama"), "--tokens", "24", "--offset", "1000", "--dtype", "bf16"]
    said = ran(capsys, [*arguments, "-f", "json"], 1).json
    assert said["headline"].endswith(": wrong rotation (positions-off)")
    [row] = said["records"]
    assert (row["verdict"], row["diagnosis"], row["resembles"]) == (
        "wrong_rotation",
        "positions-off",
        "layer 2: positions +1",
    )
    assert [one["diagnosis"] for one in said["layers"]] == [None, None, "positions-off", None]
    excess = [one["rotation_excess"] for one in said["layers"]]
    assert max(excess[:2] + excess[3:]) < 1 < excess[2] == row["rotation_excess"]
    seen = ran(capsys, [*arguments, "--by", "layer", "-f", "csv"], 1)
    assert ",positions-off,positions +1" in seen.out
    assert "ropeaudit: failed: wrong_rotation" in seen.err


def test_a_type_that_the_library_does_not_know_is_not_compared_with_config_json(built, tmp_path) -> None:
    """Which dims its pairs have is in its code alone."""
    folder = own(built("llama"), tmp_path / "unknown", {})
    config = "\n\nclass OwnConfig(transformers.LlamaConfig):\n    model_type = 'own'\n\n\n"
    last = "OwnForCausalLM.config_class = OwnConfig\n"
    (folder / "modeling_own.py").write_text("import transformers\n" + CODE + config + last)
    names = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": "OwnForCausalLM"}
    change_config(folder, model_type="own", auto_map={k: f"modeling_own.{v}" for k, v in names.items()})
    one, told, _ = audited(folder, trust_remote_code=True)
    assert (one.places, one.diagnosis, told.status) == ({}, None, "OK")
    assert dict(told.facts)["not checked"].startswith("layers 0 to 3 beside config.json")
