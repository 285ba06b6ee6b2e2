"""What each way of loading does to buffers: a right load gets no alarm, the first line names a spoilt one."""

import shlex
import shutil

import pytest
import torch
from command_line import ran
from net.kernel_rows import KERNELS
from safetensors.torch import load_file, save_file
from tiny_models import change_config

from ropeaudit.errors import BadInput
from ropeaudit.features.model import held
from ropeaudit.features.model.analysis import WRONG
from ropeaudit.features.model.analysis import model as model_audit
from ropeaudit.features.model.report import report
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
TYPES = ["llama", "deepseek_v3", "gpt_neox", "gemma3_text", "llama, yarn"]
TWO = ["gemma3_text", "llama, yarn"]


def audited(folder, *, dtypes="fp32", trusted=False):
    audit = model_audit(str(folder), 1000, dtypes, tokens="24", trust_remote_code=trusted)
    shifted = list(audit)
    return shifted[0], report([audit], None, {}, shifted=shifted)


def frequencies(model):
    return [
        (module, key)
        for module in held.rotaries(model).values()
        for key in list(module._buffers)
        if "inv_freq" in key
    ]


def assert_right(one, said) -> None:
    assert (one.held, one.diagnosis) == ((), None)
    assert one.word not in WRONG
    assert said.answers[0].status == "OK"


def assert_named(one, said, code) -> None:
    assert (one.word, codes(one.diagnosis)) == ("wrong_frequencies", code)
    name, sentence = one.held[0].name, wording.sentence(one.diagnosis)
    assert "inv_freq" in name
    assert (said.answers[0].status, said.answers[0].causes[0].title) == ("FAIL", sentence)
    assert name in said.answers[0].causes[0].facts[0]


# --------------------------------------------------------------- on `meta`, and memory that was never written


def zeros(buffer):
    buffer.zero_()


def memory(buffer):
    """Fill a buffer with the bits that memory may hold."""
    some = torch.Generator().manual_seed(3)
    words = torch.randint(-(2**31), 2**31, (2 * buffer.numel(),), generator=some).to(torch.int32)
    buffer.copy_(words.view(buffer.dtype)[: buffer.numel()].view(buffer.shape))


def on_meta(fill, *, anew):
    """Return what builds a model again on `meta`, gives it memory and loads parameters into it.

    fill: what memory holds. anew: whether buffers that are in no file are computed again.
    """

    def change(model):
        with torch.device("meta"):
            other = type(model)(model.config)
        other = other.to_empty(device="cpu").to(model.dtype)
        rotary = {id(module._buffers[key]) for module, key in frequencies(other)}
        right = dict(model.named_buffers())
        for name, buffer in other.named_buffers():
            fill(buffer) if id(buffer) in rotary else buffer.copy_(right[name])
        other.load_state_dict(model.state_dict())
        if anew:
            for module, key in frequencies(other):
                module._buffers[key] = type(module)(module.config)._buffers[key]
        return other.eval()

    return change


@pytest.mark.parametrize(("name", "fill"), list(zip(TYPES, [zeros, memory, zeros, memory], strict=False)))
def test_memory_that_was_never_written(name, fill, built, loads) -> None:
    loads(on_meta(fill, anew=False))
    assert_named(*audited(built(name)), "uninitialised")


@pytest.mark.parametrize("name", TWO)
def test_buffers_that_are_computed_after_that(name, built, loads) -> None:
    loads(on_meta(zeros, anew=True))
    assert_right(*audited(built(name)))


def test_embeddings_of_zeros_hide_no_frequencies_that_were_never_written(built, loads) -> None:
    """Gemma holds the scale of its embeddings in a buffer too: q and k are 0 at all positions."""

    def change(model):
        for name, buffer in model.named_buffers():
            if "inv_freq" in name or "embed_scale" in name:
                buffer.zero_()

    loads(change)
    assert_named(*audited(built("gemma3_text")), "uninitialised")


# ----------------------------------------------------------------------------- what a model's own code does

CODE = (KERNELS / "called" / "own_modeling.py").read_text()
KIND, BUFFER = "torch.float32", 'self.register_buffer("inv_freq", self.built(), persistent=False)'
RIGHT = "module.inv_freq.copy_(module.built())"


def own(folder, target, *, keep=BUFFER, kind=KIND, initialise=RIGHT):
    """Write a model with code of its own; return its folder."""
    shutil.copytree(folder, target)
    code = CODE.replace(BUFFER, keep).replace(KIND, kind).replace(RIGHT, initialise)
    (target / "modeling_own.py").write_text(code)
    own_code = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}
    rope = {"rope_type": "default", "rope_theta": 5e5}
    change_config(target, **own_code, architectures=["OwnForCausalLM"], rope_parameters=rope)
    return target


INITIALISED = {
    "all buffers random": (
        "module.inv_freq.normal_(generator=torch.Generator().manual_seed(0))",
        "unexplained",
    ),
    "all buffers of ones": ("module.inv_freq.fill_(1.0)", "unexplained"),
    "the usual base": ("module.inv_freq.copy_(module.built(1e4))", "wrong-base"),
    "a cast": ("module.inv_freq.copy_(module.built().bfloat16())", "narrow-frequencies"),
}


def test_what_init_weights_computes_right(built, tmp_path) -> None:
    assert_right(*audited(own(built("llama"), tmp_path / "initialised_right"), trusted=True))


@pytest.mark.parametrize("fault", INITIALISED)
def test_what_init_weights_spoils(fault, built, tmp_path) -> None:
    initialise, code = INITIALISED[fault]
    folder = own(built("llama"), tmp_path / f"initialised_{fault.replace(' ', '_')}", initialise=initialise)
    assert_named(*audited(folder, trusted=True), code)


def test_frequencies_beside_the_buffers_stay_without_memory(built, tmp_path) -> None:
    folder = own(built("llama"), tmp_path / "plain", keep="self.inv_freq = self.built()", initialise="pass")
    with pytest.raises(
        BadInput, match=r"^model\.rotary_emb\.inv_freq: uninitialised, for loading left it on"
    ):
        audited(folder, trusted=True)


# ------------------------------------------------------------------------------------ dtypes of loading


CASTS = {
    "half and back": (lambda model: model.half().to(torch.float32), "fp32"),
    "bfloat16 and back": (lambda model: model.to(torch.bfloat16).to(torch.float32), "fp32"),
    "bfloat16": (lambda model: model.to(torch.bfloat16), "bf16"),
    "half": (lambda model: model.half(), "fp16"),
}


@pytest.mark.parametrize(("name", "cast"), list(zip(TYPES, CASTS, strict=False)))
def test_a_cast_of_the_whole_model(name, cast, built, loads) -> None:
    change, dtype = CASTS[cast]
    loads(lambda model: model if model.dtype == torch.float64 else change(model))
    assert_named(*audited(built(name), dtypes=dtype), "narrow-frequencies")


@pytest.mark.parametrize("name", TWO)
def test_a_model_that_is_loaded_in_a_dtype_or_widened(name, built, loads) -> None:
    assert_right(*audited(built(name), dtypes=("bf16", "fp16")))

    def widened(model):
        before = model.dtype
        return model.to(torch.float64).to(before)

    loads(widened)
    assert_right(*audited(built(name)))


def auto(monkeypatch):
    """Let models be loaded in the dtype that their config declares, as by torch_dtype="auto"."""
    real = transformers.AutoModelForCausalLM.from_pretrained

    def from_pretrained(*arguments, **options):
        return real(*arguments, **options | {"dtype": "auto"})

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)


def declared(folder, target):
    """Write a model whose config declares bfloat16."""
    shutil.copytree(folder, target)
    tensors = {key: value.bfloat16() for key, value in load_file(target / "model.safetensors").items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    change_config(target, dtype="bfloat16")
    return target


@pytest.mark.parametrize("name", TWO)
def test_the_dtype_of_the_config(name, built, tmp_path, monkeypatch) -> None:
    folder = declared(built(name), tmp_path / "declared")
    assert_right(*audited(folder))
    auto(monkeypatch)
    assert_right(*audited(folder, dtypes="bf16"))


@pytest.mark.parametrize("right", [True, False])
def test_frequencies_in_the_dtype_of_the_config(right, built, tmp_path, monkeypatch) -> None:
    """Code that computes them in the dtype of its weights, beside code that asks for float32."""
    auto(monkeypatch)
    kind = "torch.float32" if right else "self.config.dtype"
    folder = own(declared(built("llama"), tmp_path / "declared"), tmp_path / f"of_dtype_{right}", kind=kind)
    one, said = audited(folder, dtypes="bf16", trusted=True)
    assert_right(one, said) if right else assert_named(one, said, "narrow-frequencies")


# ------------------------------------------------------------------------------- tensor-parallel plans


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_share_of_the_frequencies_cannot_be_run_and_is_named(name, built, loads) -> None:
    """A rank's share of each buffer, as a plan that shards all tensors leaves it."""

    def plan(model):
        for module, key in frequencies(model):
            module._buffers[key] = module._buffers[key].chunk(2)[0].contiguous()

    loads(plan)
    with pytest.raises(BadInput, match=r"^model\.rotary_emb\.\w*inv_freq, not as its config builds it"):
        audited(built(name))


@pytest.mark.slow  # models are loaded
def test_stored_frequencies_that_loading_drops_are_noted(built, tmp_path, capsys) -> None:
    """Those of old checkpoints: the model is right, and what is stored is for `check`."""
    from ropeaudit.main import main

    folder = shutil.copytree(built("llama"), tmp_path / "old model")
    stored = load_file(folder / "model.safetensors")
    wrong = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(8) for n in range(4)}
    save_file(stored | wrong, folder / "model.safetensors", metadata={"format": "pt"})
    one, said = audited(folder)
    assert_right(one, said)
    [note] = [note for note in said.notes if note.startswith("stored frequencies are not loaded")]
    assert "(model.layers.0.self_attn.rotary_emb.inv_freq, 4 in all)" in note
    command = shlex.split(note.partition("`")[2].partition("`")[0])
    assert command == ["ropeaudit", "check", str(folder)]
    assert "self_attn.rotary_emb.inv_freq" in ran(capsys, command[1:], 1).out
    assert main([*command[1:], "--tokens", "24", "--dtype", "fp32", "--up-to", "64"]) == 1
    assert "are not loaded, for" not in capsys.readouterr().err, "it is judged here"
    assert not [note for note in audited(built("llama"))[1].notes if "stored" in note]
