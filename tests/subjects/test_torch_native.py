"""Recipes in torch's own arithmetic: against the emulation, plain torch code, and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch

from ropeaudit import RopeSetting, parse, recipes, round_to, shift
from ropeaudit.arithmetic.formats import FP32, FP64
from ropeaudit.errors import NotEmulated, OutOfMemory, UnknownName, UsageError
from ropeaudit.main import main
from ropeaudit.rope import axes, scaling
from ropeaudit.rope.frequencies import FORMS, unscaled
from ropeaudit.subjects import torch_arrays, torch_native
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.torch_native import Numbers, TorchNative, memory, plain

CPU = torch.device("cpu")
POSITIONS = np.array([0, 1, 7, 1000, 131071, -3])
SMALL = {"heads": 2, "seq_len": 128}
SUBSET = ["uniform", "hf", "meta", "hf-tf32-matmul", "llamacpp-cpu", "xformers-f64", "gpt-neox-te"]
NAMED = [recipe.name for recipe in recipes.all_recipes() if not recipe.refused]


def resolved(recipe: str, dtype: str, **changes: str) -> recipes.Resolved:
    return recipes.named(recipe).changed(changes).resolve(parse(dtype))


def native(recipe: str, dtype: str, setting: RopeSetting | None = None, **changes: str) -> TorchNative:
    return TorchNative(resolved(recipe, dtype, **changes), setting or RopeSetting.of(), None, CPU)


def plotted(rows: int, dtype: str, seed: int = 0) -> np.ndarray:
    return round_to(np.random.default_rng(seed).standard_normal((rows, 128)), parse(dtype))


def disagreements(names: list[str], **case: int) -> list[str]:
    """Cells in which torch and the emulation differ by more than 2 % RMS or 10 % of the largest drift."""
    given, wrong = {"recipes": names, "offsets": [0, 1000, 131072], **case}, []
    for ours, theirs in zip(shift(**given), shift(**given, backend="torch"), strict=True):
        cell = f"{ours.implementation} {ours.dtype} {ours.offset}"
        assert (theirs.implementation, theirs.dtype, theirs.offset) == (
            ours.implementation,
            ours.dtype,
            ours.offset,
        )
        assert (theirs.backend, theirs.version, theirs.device) == ("torch", torch.__version__, "cpu")
        assert theirs.distinct_positions == ours.distinct_positions, cell
        assert theirs.nonfinite == ours.nonfinite, cell
        assert repr(theirs.predicted_rms) == repr(ours.predicted_rms), cell
        if ours.nonfinite:
            continue
        assert theirs.drift_max <= theirs.bound_max, cell
        rms, top = theirs.drift_rms / ours.drift_rms - 1, theirs.drift_max / ours.drift_max - 1
        if abs(rms) > 0.02 or abs(top) > 0.10:
            wrong.append(f"{cell}: rms {rms:+.2%}, max {top:+.2%}")
    return wrong


def test_torch_drifts_as_the_emulation_says() -> None:
    assert disagreements(SUBSET, **SMALL) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_recipe_drifts_in_torch_as_the_emulation_says(seed: int) -> None:
    """Measured over seeds 0 to 3: at most 1.3 % and 6.6 %, both of mlx-fallback, whose exp is torch's."""
    assert disagreements(NAMED, seed=seed) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_hugging_face_bit_for_bit(dtype: str) -> None:
    fmt = parse(dtype)
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    module = llama.LlamaRotaryEmbedding(
        llama.LlamaConfig(hidden_size=1024, num_attention_heads=8, head_dim=128)
    )
    x = plotted(POSITIONS.size, dtype)
    q = torch.from_numpy(x).to(torch_arrays.dtype(fmt))[None, None]
    cos, sin = module(q, torch.from_numpy(POSITIONS + 5)[None])
    expected, _ = llama.apply_rotary_pos_emb(q, q, cos, sin)
    subject = native("hf", dtype)
    table = subject.table(POSITIONS, 5)
    assert torch.equal(table[0], cos[0, :, :64])
    assert np.array_equal(subject.rotate(x, table), torch_arrays.to_numpy(expected[0, 0]))


def test_operands_wider_than_their_stage_are_not_rounded_first() -> None:
    """float64 numbers turned in float32: each product is rounded once."""
    x, subject = plotted(POSITIONS.size, "fp64"), native("meta", "fp64", output="fp32")
    theirs = Emulated(subject.recipe, subject.setting)
    table = theirs.table(POSITIONS, 0)
    tensors = tuple(torch.from_numpy(part) for part in table)
    assert np.array_equal(subject.rotate(x, tensors), theirs.rotate(x, table))


def test_every_form_of_the_frequencies_is_an_ulp_or_two_off_at_most() -> None:
    for form, dtype in itertools.product(FORMS, ("fp64", "fp32")):
        fmt = parse(dtype)
        result = plain(10000.0, 128, form, fmt, Numbers(CPU)).numpy().astype(np.float64)
        exact = unscaled(10000.0, 128, form, fmt).astype(np.float64)
        assert np.max(np.abs(result / exact - 1)) < 4 * fmt.unit_roundoff, form


def test_the_base_is_cast_as_torch_casts_it() -> None:
    """torch.pow(10000., x) is 9984^x in bfloat16, and 500000 is infinite in float16."""
    x = torch.arange(0, 128, 2).to(torch.bfloat16) / 128
    seen = plain(10000.0, 128, "inverse_power", parse("bf16"), Numbers(CPU))
    assert torch.equal(seen, 1.0 / 10000.0**x)
    assert not np.array_equal(
        torch_arrays.to_numpy(seen), unscaled(10000.0, 128, "inverse_power", parse("bf16"))
    )
    assert plain(5e5, 128, "inverse_power", parse("fp16"), Numbers(CPU))[1:].eq(0).all()


@pytest.mark.parametrize("fmt", ["tf32", "fp8_e4m3", "fp8_e5m2"])
def test_formats_without_arithmetic_are_carried_in_float32(fmt: str) -> None:
    subject = native("uniform", "fp32", rotation=fmt, table=fmt, angle=fmt, output=fmt)
    angles, (cos, _) = subject.angles(POSITIONS), subject.table(POSITIONS, 0)
    rotated = subject.rotate(plotted(POSITIONS.size, "fp32"), (cos, cos))
    for seen in (angles.numpy(), cos.numpy(), rotated):
        assert seen.dtype == np.float32
        assert np.array_equal(seen, round_to(seen, parse(fmt)), equal_nan=True)
    assert not np.array_equal(rotated, round_to(rotated, parse("bf16"))) or fmt != "tf32"


SETTINGS = {
    "partial interleaved": RopeSetting.of(128, 64, layout="interleaved"),
    "none turned": RopeSetting.of(128, 0),
    "clipped": RopeSetting.of(clip=2.5),
    "yarn": RopeSetting.of(scaling=scaling.parse("yarn:factor=4,original=4096")),
    "dynamic": RopeSetting.of(scaling=scaling.parse("dynamic:factor=2,maximum=64"), length=4096),
    "p-RoPE": RopeSetting.of(scaling=scaling.parse("proportional:fraction=0.5")),
}


def test_settings_are_those_of_the_emulation() -> None:
    """Tables agree up to the float32 angle's error at 1007 radians, and a rotation of ones with them."""
    place, ones, wrong = np.array([0, 3, 1007]), np.ones((3, 128), np.float32), []
    for recipe in ("fp64-angles", "llamacpp-cpu", "llamacpp-cuda", "maxtext", "mlx-fallback"):
        for which, setting in SETTINGS.items():
            wide = resolved(recipe, "fp32")
            pair = TorchNative(wide, setting, None, CPU), Emulated(wide, setting)
            tables = [subject.table(place, 0) for subject in pair]
            rotated = [subject.rotate(ones, table) for subject, table in zip(pair, tables, strict=True)]
            alike = np.allclose(tables[0][0].numpy(), tables[1][0], atol=1e-3, rtol=0)
            if not (alike and np.allclose(*rotated, atol=2e-3, rtol=0)):
                wrong.append((recipe, which))
    assert wrong == []


def test_only_the_shifted_axes_move() -> None:
    three = axes.parse("16,24,24", "h")
    moved, still = (
        TorchNative(resolved("hf", "fp32"), RopeSetting.of(), three, CPU).table(POSITIONS, by)
        for by in (1000, 0)
    )
    same = (moved[0] == still[0]).all(dim=0)
    assert same[:16].all()
    assert not same[16:40].any()
    assert same[40:].all()


def test_rounding_once_is_exact_until_the_cast() -> None:
    x, place = plotted(POSITIONS.size, "bf16"), RopeSetting.of()
    once = native("hf", "bf16", rotation_rounding="once")
    theirs = Emulated(once.recipe, place)
    table = theirs.table(POSITIONS, 0)
    tensors = tuple(torch.from_numpy(part).bfloat16() for part in table)
    assert np.mean(once.rotate(x, tensors) != theirs.rotate(x, table)) < 0.001


def test_every_pass_goes_through_torch() -> None:
    """A sample, and rows after softmax in a window: the figures of the emulation, in the bits of torch."""
    given = {**SMALL, "offsets": [0, 1000], "dtypes": ["fp32", "bf16"], "recipes": "hf"}
    for case in ({"sample": 2000}, {"attention": True, "mask": "window:40"}):
        for ours, theirs in zip(shift(**given, **case), shift(**given, **case, backend="torch"), strict=True):
            assert theirs.drift_rms == pytest.approx(ours.drift_rms, rel=0.02)
            if "attention" in case:
                assert theirs.attention_tv_mean == pytest.approx(ours.attention_tv_mean, rel=0.02)


def test_threads_change_no_bit(pools: list[int]) -> None:
    given = {**SMALL, "offsets": [0, 1000], "recipes": ["hf", "vllm-cuda"], "backend": "torch"}
    assert list(map(repr, shift(**given, threads=1))) == list(map(repr, shift(**given, threads=3)))


FULL = [torch.cuda.OutOfMemoryError("CUDA out of memory."), RuntimeError("MPS backend out of memory (9 GiB)")]


def test_too_little_memory_is_an_error_and_no_crash(monkeypatch, capsys) -> None:
    """Of the table as of the rotation; other faults are not taken for it."""
    arguments = ["shift", "--backend", "torch", "--dtype", "bf16", "--heads", "1", "--seq-len", "64"]
    raised = iter([*FULL, RuntimeError("size mismatch")])

    def full(*operands: object) -> torch.Tensor:
        raise next(raised)

    for error, operation in zip(FULL, ("cos", "sub"), strict=True):
        with monkeypatch.context() as patch:
            patch.setattr(torch, operation, full)
            assert main(arguments) == 2
        message = capsys.readouterr().err
        assert f"out of memory on the device: {error}" in message
        assert "give --device cpu" in message
    with pytest.raises(OutOfMemory), memory():
        torch.empty(2**60)
    with pytest.raises(RuntimeError, match="size mismatch"), memory():
        full()


def test_unknown_devices() -> None:
    for name in ("tpu", "", "cpu:2", "cuda:-1", "meta"):
        with pytest.raises(UsageError) as error:
            torch_native.device(name)
        text = f"--device {name!r} is not cpu, cuda, cuda:N or mps; try --device cpu"
        assert error.value.typed.startswith(text)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"device cuda: torch .* sees no CUDA device; give device cpu"):
        torch_native.device("cuda")
    with pytest.raises(UsageError, match=r"device mps: torch .*; give device cpu"):
        torch_native.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert torch_native.device("CUDA:0") == torch.device("cuda:0")
    with pytest.raises(UsageError, match=r"sees 1 CUDA device; give device cuda:0"):
        torch_native.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    assert Numbers(torch.device("cuda:0")).label == "cuda:0 (H200)"


def test_float64_is_computed_on_the_cpu_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's device "meta" holds no data, but tensors say that they are on it."""
    monkeypatch.setattr(torch_native, "_WITHOUT_FLOAT64", ("meta",))
    meta = Numbers(torch.device("meta"))
    x = meta.of(np.ones(3), FP64)
    assert x.device == CPU
    assert meta.apply(torch.cos, FP64, x).device == CPU
    assert meta.keep(x, FP32).device.type == "meta"
    labels = {
        recipe: TorchNative(resolved(recipe, "fp32"), RopeSetting.of(), None, torch.device("meta")).device
        for recipe in ("hf", "fp64-angles")
    }
    assert labels == {"hf": "meta", "fp64-angles": "meta (float64 on cpu)"}


BAD = [
    ({"backend": "jax"}, UnknownName, "unknown backend 'jax'; known: numpy, torch"),
    ({"device": "cuda"}, UsageError, "device cuda is where code is called or torch computes"),
    ({"backend": "torch", "recipes": "mlx-metal"}, NotEmulated, "Metal fast-math"),
    ({"backend": "torch", "implementations": "transformers-llama"}, UsageError, "add recipes"),
]


def test_bad_choices() -> None:
    for given, error, text in BAD:
        with pytest.raises(error, match=text):
            shift(0, "fp32", heads=1, seq_len=4, **given)


def test_an_overflow_in_float16_is_a_finding() -> None:
    (record,) = shift(131072, "fp16", "uniform", backend="torch", heads=1, seq_len=16)
    assert record.verdict == "overflow"
    assert math.isnan(record.drift_rms)
