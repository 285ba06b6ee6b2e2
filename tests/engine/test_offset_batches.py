"""Batches of offsets on tensors give what records hold, on the CPU and on a device; else the run stops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pretended_device
import pytest
import torch
from numpy.typing import NDArray
from pretended_device import NAME, PLACE

from ropeaudit import Record, limit, recipes, shift
from ropeaudit.arithmetic import tensors
from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.arguments import cases_of
from ropeaudit.engine import offset_batches, torch_library
from ropeaudit.engine.offset_batches import MEASURED, OffsetBatches
from ropeaudit.errors import EnginesDiffer, OutOfMemory, UsageError
from ropeaudit.features.limit import analysis
from ropeaudit.features.limit.limit_result import Limit
from ropeaudit.main import main
from ropeaudit.subjects.emulated import Emulated

DTYPES = ("fp64", "fp32", "fp16", "bf16")
RUN = (0, 1, 2, 3, 4)  # offsets behind each other, whose positions are computed once
APART = (5, 100, 2048, 65504, 70000, 1000000)
SIZES: dict[str, Any] = {"heads": 4, "kv_heads": 2, "seq_len": 48, "head_dim": 32}
RECIPES = [one.name for one in recipes.all_recipes() if not (one.refused or one.keys)]
SUMS = 1e-13  # of means: on a CPU both have the same scores, and sums of 9,000 of them in two orders


def measured(recipe: str, dtype: str, offsets: tuple[int, ...], **case: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of offsets, measured in batches on the CPU."""
    changes = case.pop("changes", {})
    (one,) = cases_of(None, case)
    inputs, setting = one.load()
    resolved = recipes.load(recipe).changed(changes).resolve(parse(dtype))
    library = torch_library.on(torch.device("cpu"))
    subject = Emulated(resolved, setting, one.position_axes(setting))
    assert offset_batches.possible(subject, inputs)
    with library.running(1):
        parts = list(OffsetBatches(subject, inputs, setting, one.mask, library).measure(offsets))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def differences(columns: dict[str, NDArray[Any]], rows: list[Record]) -> list[str]:
    """Return what is not as in the records: counts and maxima to the bit, means but for their order."""
    wrong = []
    for name in MEASURED:
        for seen, row in zip(columns[name].tolist(), rows, strict=True):
            own = float(getattr(row, name))
            size = row.drift_mean_abs if name == "drift_bias" else abs(own)
            exact = name.endswith("_max") or name in ("nonfinite", "distinct_positions")
            near = abs(seen - own) <= (0.0 if exact else SUMS * size)
            if not (near or (math.isnan(seen) and math.isnan(own))):
                wrong.append(f"{row.implementation} {row.dtype} {row.offset} {name}: {own!r}, {seen!r}")
    return wrong


def check(recipe: str, offsets: tuple[int, ...], dtypes: tuple[str, ...] = DTYPES, **case: Any) -> None:
    for dtype in dtypes:
        columns = measured(recipe, dtype, offsets, **case)
        assert columns["offset"].tolist() == list(offsets)
        assert differences(columns, list(shift(offsets, dtype, recipe, **case))) == []


@pytest.mark.parametrize("recipe", ["hf", "uniform", "recurrence", "divide"])
def test_batches_give_what_records_hold(recipe) -> None:
    check(recipe if recipe in RECIPES else "hf", (*RUN, *APART), **SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_batches_give_what_records_hold_of_every_recipe(recipe) -> None:
    check(recipe, (*RUN, *APART), **SIZES)
    check(recipe, RUN, heads=1, seq_len=131, head_dim=80)


CASES: dict[str, dict[str, Any]] = {
    "a window": {"mask": "window:20"},
    "full, interleaved, partly rotated": {"mask": "full", "layout": "interleaved", "rotary_dim": 16},
    "not rotated": {"rotary_dim": 0},
    "attention factor": {"scaling": "yarn:factor=4,original=1024"},
    "axes that stay": {"mrope": "8,4,4", "axis": "hw"},
    "narrow accumulator": {"changes": {"accumulate": "bf16"}},
    "8 bits": {"changes": {"output": "fp8_e4m3", "table": "fp8_e5m2", "score": "tf32"}},
    "rotated in one rounding": {"changes": {"rotation_rounding": "once"}},
    "positions in 16 bits": {"changes": {"position": "fp16"}},
    "one position": {"seq_len": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_batches_give_what_records_hold_of_every_kind_of_case(name, monkeypatch) -> None:
    """The offsets are cut in batches of three, of which some are a run and some are not."""
    case = SIZES | CASES[name]
    monkeypatch.setattr(offset_batches, "_AT_ONCE_ON_CPU", 3 * case["seq_len"] ** 2)
    check("hf", (*RUN, *APART), ("fp32", "bf16"), **case)


def test_what_is_not_finite_is_counted(tmp_path) -> None:
    q, k = np.random.default_rng(0).standard_normal((2, 2, 48, 32))
    q[0, 3, 5], k[1, 7, 2], q[1, 9] = 1e6, 1e39, -3e38
    np.savez(tmp_path / "x.npz", q=q, k=k)
    check("uniform", (*RUN, *APART), qk=str(tmp_path / "x.npz"))


# ---------------------------------------------------------------------------- limits


SMALL: dict[str, Any] = {"heads": 2, "seq_len": 16, "head_dim": 16}


def known(limits: list[Limit]) -> list[tuple[Any, ...]]:
    """Return what is claimed; more offsets than these may have been measured, past a failure."""
    return [
        (one.proved_up_to, one.proof, one.measured_up_to, one.boundary.held, one.first_failure, one.standing)
        for one in limits
    ]


@pytest.fixture
def there(monkeypatch) -> None:
    pretended_device.install(monkeypatch)
    monkeypatch.setattr(offset_batches, "_AT_ONCE", 64 * 16**2)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"up_to": 200},
    "one by one": {"clip": 100.0, "up_to": 90},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_device_measures_every_offset_as_numpy_would(there, name) -> None:
    tolerances = ["drift_relative=0.006", "distinct_positions=12", "change_max=0.01", "drift_bias=1e-4"]
    case = SMALL | KINDS[name]
    numpy = list(limit(tolerances, ("bf16", "fp16"), "uniform", budget=9000, **case))
    device = list(limit(tolerances, ("bf16", "fp16"), "uniform", budget=9000, device=NAME, **case))
    assert known(numpy) == known(device)
    assert {one.at_zero.device for one in device} == {PLACE}
    assert {one.at_zero.engine for one in device} == {"torch"}
    assert all(one.boundary.exhaustive for one in device)
    assert all((one.in_batches > 0) == (name == "plain") for one in device)


def test_long_sequences_are_measured_offset_by_offset() -> None:
    """Their exact scores are not held whole: memory does not grow with the square of the tokens."""
    for seq_len, wanted in ((2048, True), (2049, False)):
        (case,) = cases_of(None, {"heads": 1, "seq_len": seq_len, "head_dim": 16})
        inputs, setting = case.load()
        subject = Emulated(recipes.named("hf").resolve(parse("bf16")), setting)
        assert offset_batches.possible(subject, inputs) == wanted


def test_every_offset_up_to_a_million_is_the_default_on_a_device() -> None:
    (case,) = cases_of(None, {})
    inputs, setting = case.load()
    assert analysis.most(case, inputs, setting, in_batches=True) > 2**20
    assert analysis.most(case, inputs, setting) == 208


def test_a_device_measures_ranges_with_frequencies_of_their_own(there) -> None:
    case = SMALL | {"model": "phi-3-vision-128k", "length": "shifted", "head_dim": None}
    case |= {"up_to": 4096 + 60, "budget": 9000}
    given = "drift_relative=0.004", "fp16", "uniform"
    (numpy,), (device,) = list(limit(*given, **case)), list(limit(*given, device=NAME, **case))
    assert device.changing
    assert known([numpy]) == known([device])


def test_every_offset_within_a_models_maximum_is_measured_where_that_is_affordable(there) -> None:
    given, case = (
        ("drift_relative=0.05", "bf16", "hf"),
        SMALL | {"model": "pythia-1.4b", "head_dim": None, "up_to": 2**20},
    )
    (one,) = limit(*given, device=NAME, budget=2500, **case)
    assert (one.standing, one.proof) == ("holds", "exhaustive")
    assert one.proved_up_to >= 2048 - 16


def test_figures_a_rounding_away_from_a_tolerance_are_left_to_records(monkeypatch) -> None:
    """Tolerances that are the very figures of offsets, and batches whose sums are off by a few ulps."""
    plain = OffsetBatches._columns
    rows = list(shift(tuple(range(200)), "bf16", "hf", **SMALL))
    for factor in (1 - 1e-14, 1 + 1e-14):

        def off(self: OffsetBatches, *given: Any, factor: float = factor) -> dict[str, NDArray[Any]]:
            columns = plain(self, *given)
            return {name: x * factor if x.dtype == float else x for name, x in columns.items()}

        monkeypatch.setattr(OffsetBatches, "_columns", off)
        for name in ("drift_rms", "drift_mean_abs", "drift_bias"):
            for value in sorted({abs(getattr(one, name)) for one in rows})[-40::8]:
                accepted = f"{name}={value!r}"
                both = [
                    *limit(accepted, "bf16", "hf", up_to=199, budget=400, engine="numpy", **SMALL),
                    *limit(accepted, "bf16", "hf", up_to=199, budget=400, engine="torch", **SMALL),
                ]
                assert known(both[:1]) == known(both[1:]), accepted


def test_what_an_offset_that_holds_after_all_hid_is_still_looked_for(monkeypatch) -> None:
    """Figures that are wrong by far: the first that fails has its own record, and so have the others then."""
    plain = OffsetBatches._columns

    def off(self: OffsetBatches, *given: Any) -> dict[str, NDArray[Any]]:
        columns = plain(self, *given)
        columns["drift_max"] = np.where(columns["offset"] % 7 == 3, 9.0, columns["drift_max"])
        return columns

    monkeypatch.setattr(OffsetBatches, "_columns", off)
    rows = list(shift(tuple(range(200)), "bf16", "hf", **SMALL))
    accepted = f"drift_max={sorted(one.drift_max for one in rows)[-2]!r}"
    (one,) = limit(accepted, "bf16", "hf", up_to=199, budget=400, engine="torch", **SMALL)
    (other,) = limit(accepted, "bf16", "hf", up_to=199, budget=400, **SMALL)
    assert known([one]) == known([other])


def test_offsets_in_any_order_are_those_in_order() -> None:
    ordered, mixed = (
        measured("hf", "bf16", some, **SIZES) for some in ((0, 3, 5, 6, 110), (5, 0, 6, 110, 3))
    )
    for name in MEASURED:
        assert mixed[name].tolist() == [
            ordered[name][(0, 3, 5, 6, 110).index(one)] for one in (5, 0, 6, 110, 3)
        ]


# ---------------------------------------------------------------------------- devices that are wrong


def cut_off(x: torch.Tensor, fmt: Any) -> torch.Tensor:
    """A cast to bfloat16 that cuts bits off where it should round."""
    return (x.to(torch.float32).view(torch.int32) >> 16 << 16).view(torch.float32)


def late(self: OffsetBatches, offsets: NDArray[np.int64]) -> Any:
    """Tables of which the last positions stay behind by one."""
    return PLAIN_TABLES(self, offsets - (offsets > 0))


PLAIN_TABLES = OffsetBatches._tables
PLAIN_GATHERED = offset_batches._gathered


def without(number: int, means: bool) -> Any:
    """Return statistics of which one is off by a part in a million, of drift or of change from offset 0."""

    def gathered(values: torch.Tensor, of_drift: bool) -> torch.Tensor:
        numbers = PLAIN_GATHERED(values, of_drift).clone()
        if of_drift == means:
            numbers[number] = numbers[number] - 1 if number == 0 else numbers[number] * (1 + 1e-6)
        return numbers

    return lambda values, means: gathered(values, means)


def of_batches(function: str, wrong: Any) -> Any:
    """Return an operation that is wrong for what has a batch of offsets alone."""
    plain = getattr(torch_library._Torch, function)

    def called(self: Any, x: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return wrong(plain, self, x, *rest) if x.dim() == 3 else plain(self, x, *rest, **named)

    return called


def nothing_hidden(plain: Any, library: Any, x: torch.Tensor, hidden: Any, value: float = 0.0) -> None:
    pass


NUMBERS = ["nonfinite", r"sum \(squares\)", "largest", r"sum \(total\)", r"sum \(absolute\)"]
LIBRARY = torch_library._Torch
FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "rounding": (tensors, "rounded", cut_off, "rotated vectors of uniform"),
    "scores": (tensors, "round_in_place", lambda x, fmt: None, "stored scores of uniform"),
    "scores of batches": (LIBRARY, "round", of_batches("round", lambda *_: None), "stored scores of a batch"),
    "positions": (OffsetBatches, "_tables", late, "rotated vectors of uniform in bfloat16 at offset"),
    "products": (
        LIBRARY,
        "matmul",
        lambda _, a, b, out: out.copy_(a.to(torch.bfloat16) @ b.to(torch.bfloat16)).mul_(1.001),
        "sums of products of uniform",
    ),
    "differences": (
        LIBRARY,
        "subtract",
        of_batches("subtract", lambda plain, self, a, b, *out: plain(self, a, b, *out).mul_(0.5)),
        r"of the drift of uniform in bfloat16 at offset",
    ),
    "masks": (LIBRARY, "hide", of_batches("hide", nothing_hidden), "of the drift of uniform"),
    "heads": (offset_batches, "_merged", lambda parts: parts[0], "statistics of all heads of uniform"),
    **{
        f"{name} of {of}": (offset_batches, "_gathered", without(number, means), f"{name} of the {of} of")
        for of, means, names in (("drift", True, 5), ("change from offset 0", False, 3))
        for number, name in enumerate(NUMBERS[:names])
    },
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_stops_where_a_batch_differs_from_numpy(name, monkeypatch) -> None:
    owner, function, wrong, message = FAULTS[name]
    monkeypatch.setattr(owner, function, wrong)
    with pytest.raises(EnginesDiffer, match=f"differ in .*{message}"):
        measured("uniform", "bf16", (1, 2, 3), **SIZES)


def test_a_full_device_is_named(monkeypatch, there) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(torch_library._Torch, "matmul", full)
    with pytest.raises(OutOfMemory, match="is out of memory: CUDA out of memory"):
        list(limit("nonfinite=0", "bf16", "uniform", device=NAME, up_to=10, **SMALL))


# ---------------------------------------------------------------------------- the command


def test_the_command_says_who_measured(there, capsys) -> None:
    sizes = ["--heads", "2", "--seq-len", "16", "--head-dim", "16", "--up-to", "300"]
    given = ["limit", *sizes, "--dtype", "bf16", "--recipe", "hf", "--tolerance", "drift_relative=0.05"]
    assert main([*given, "--device", NAME, "-f", "markdown"]) == 0
    seen = " ".join(capsys.readouterr().out.split())
    assert f"measured up to 300 offsets a row in batches on {PLACE}" in seen
    assert main([*given, "--engine", "numpy", "-f", "markdown"]) == 0
    assert "in batches" not in capsys.readouterr().out
    assert main([*given, "--engine", "numpy", "--device", NAME]) == 2
    assert "leave out --engine numpy" in capsys.readouterr().err


def test_a_device_alone_needs_no_code() -> None:
    with pytest.raises(UsageError, match=r"device cuda:77: torch .* sees"):
        list(limit("nonfinite=0", "bf16", "uniform", device="cuda:77", **SMALL))
