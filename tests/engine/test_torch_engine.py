"""The torch engine gives what NumPy gives, on the CPU and on a device; where it would not, the run stops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pretended_device
import pytest
import torch
from pretended_device import NAME, PLACE

from ropeaudit import Record, shift
from ropeaudit.arithmetic import doubledouble, tensors
from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import comparison
from ropeaudit.engine import agreement, choice, plan, tile, torch_library
from ropeaudit.errors import EnginesDiffer, OutOfMemory, UnknownName, UsageError
from ropeaudit.main import main
from ropeaudit.recipes import all_recipes
from ropeaudit.subjects import torch_numbers

DTYPES = ("fp64", "fp32", "fp16", "bf16")
OFFSETS = (0, 1000, 32768, 131072, 1000000)
SIZES: dict[str, Any] = {"heads": 2, "seq_len": 64, "head_dim": 64}
RECIPES = [one.name for one in all_recipes() if not one.refused]
MAXIMA, SUMS = 1e-7, 1e-9


def near(name: str, own: Any, other: Any, size: float) -> bool:
    """Whether a column of one engine is that of the other. size: mean absolute drift."""
    if not isinstance(own, float):
        return bool(own == other)
    if math.isnan(own) or math.isnan(other):
        return math.isnan(own) and math.isnan(other)
    allowed = MAXIMA if name.endswith("_max") else SUMS
    return own == other or abs(own - other) <= allowed * (size if name == "drift_bias" else abs(own))


def differences(first: list[Record], second: list[Record]) -> list[str]:
    """Return what differs between rows of NumPy and rows of torch, but for the engine."""
    wrong = []
    for own, other in zip(first, second, strict=True):
        assert (own.engine, other.engine) == ("numpy", "torch")
        assert other.scores > 0
        columns = own.as_dict() | {"engine": "torch", "case": other.case}
        for name, value in other.as_dict().items():
            if not near(name, columns[name], value, own.drift_mean_abs):
                wrong.append(
                    f"{own.implementation} {own.dtype} {own.offset} {name}: {columns[name]!r}, {value!r}"
                )
    return wrong


def both(*arguments: Any, **case: Any) -> tuple[list[Record], list[Record]]:
    """Return the rows of both engines."""
    return list(shift(*arguments, **case)), list(shift(*arguments, **case, engine="torch"))


# On a CPU both have NumPy's products, so that drifts are the same bits whatever the processor and the shapes;
# measured over all of `RECIPES` at four shapes: every maximum is, and RMS values agree to 1.2e-14.
@pytest.mark.parametrize("recipe", ["hf", "uniform"])
def test_engines_agree(recipe) -> None:
    """0.7 s each: all dtypes and offsets."""
    assert differences(*both(OFFSETS, DTYPES, recipe, **SIZES)) == []


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_engines_agree_on_every_recipe(recipe) -> None:
    """All of them together take a minute: the four shapes that docs/real-code.md speaks of."""
    for heads, seq_len, head_dim in ((2, 64, 64), (3, 131, 80), (4, 256, 64), (1, 700, 128)):
        sizes = {"heads": heads, "seq_len": seq_len, "head_dim": head_dim}
        assert differences(*both(OFFSETS, DTYPES, recipe, **sizes)) == []


CASES: dict[str, dict[str, Any]] = {
    "window, several heads of q to one of k": {"mask": "window:24", "kv_heads": 1},
    "full, interleaved, partly rotated": {"mask": "full", "layout": "interleaved", "rotary_dim": 32},
    "not rotated": {"rotary_dim": 0},
    "clipped angles": {"clip": 100.0},
    "frequencies of the length": {"scaling": "dynamic:factor=2,maximum=64", "length": "shifted"},
    "attention factor": {"scaling": "yarn:factor=4,original=1024"},
    "several position axes": {"mrope": "16,8,8", "axis": "hw"},
    "a grid": {"grid": "8x8", "axes": "flux", "head_dim": None, "seq_len": None},
    "narrow accumulator": {"changes": {"accumulate": "bf16"}},
    "8 bits": {"changes": {"output": "fp8_e4m3", "table": "fp8_e5m2", "score": "tf32"}},
    "keys with scales": {"changes": {"output": "e4m3:head"}},
    "rotated in one rounding": {"changes": {"rotation_rounding": "once"}},
    "few positions": {"seq_len": 3},
    "odd sizes": {"heads": 3, "seq_len": 131, "head_dim": 80},
}


@pytest.mark.parametrize("name", CASES)
def test_engines_agree_on_every_kind_of_case(name) -> None:
    case = {key: value for key, value in (SIZES | CASES[name]).items() if value is not None}
    dtypes = ("fp32", "bf16") if "accumulate" in case.get("changes", {}) else DTYPES
    assert differences(*both((0, 1000), dtypes, "hf", **case)) == []


def test_engines_agree_on_code_beside_recipes(tmp_path) -> None:
    """Code rotates NumPy's arrays, as for NumPy; what follows is torch's."""
    file = tmp_path / "own.py"
    file.write_text("import numpy as np\ndef rotate(x, positions):\n    return np.array(x)\n")
    case = {"implementations": f"{file}:rotate", "recipes": "hf"}
    assert differences(*both((0, 1000), "fp32", **case, **SIZES)) == []


def test_engines_agree_on_many_tiles_whatever_the_threads(monkeypatch, pools) -> None:
    monkeypatch.setattr(plan, "PANEL", 32)
    monkeypatch.setattr(tile, "TILE_COLUMNS", 16)
    assert differences(*both((0, 1000), ("fp64", "bf16"), "hf", **SIZES)) == []
    one, three = (list(shift(1000, DTYPES, "hf", engine="torch", threads=n, **SIZES)) for n in (1, 3))
    assert one == three
    assert 3 in pools


def test_what_is_not_finite_is_counted_alike(tmp_path) -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 64, 64))
    q[0, 3, 5], k[1, 7, 2], q[1, 9] = 1e6, 1e39, -3e38
    np.savez(tmp_path / "x.npz", q=q, k=k)
    first, second = both((0, 1000), DTYPES, ("hf", "uniform"), qk=str(tmp_path / "x.npz"))
    assert differences(first, second) == []
    assert len({one.nonfinite for one in second}) > 1


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("carrier", ["float32", "float64"])
def test_rounding_has_the_same_bits(name, carrier) -> None:
    """Midpoints, their neighbours, and sizes from far below the subnormals to far above the largest."""
    rng, fmt = np.random.default_rng(1), parse(name)
    wide = rng.standard_normal(4000) * 10.0 ** rng.uniform(-50, 38, 4000)
    with np.errstate(over="ignore", under="ignore"):
        some = round_to(rng.standard_normal(4000) * 10.0 ** rng.uniform(-9, 5, 4000), parse("fp16"))
        ties = np.concatenate([some * 1.0, some * (1 + 2.0**-12), some * (1 + 2.0**-9), some * 2.0**-8])
        edges = [
            0.0,
            -0.0,
            math.inf,
            -math.inf,
            fmt.largest,
            -fmt.largest * (1 + 2.0**-9),
            fmt.smallest_subnormal,
        ]
        values = np.concatenate([wide, ties, np.nextafter(ties, 9), edges, [math.nan]]).astype(carrier)
        wanted = round_to(values, fmt)
    seen = round_to(torch.from_numpy(values.copy()), fmt).numpy()
    assert (seen.dtype, seen[:-1].tobytes()) == (wanted.dtype, wanted[:-1].tobytes())
    assert math.isnan(seen[-1])
    place = torch.from_numpy(values.copy())
    with np.errstate(over="ignore", under="ignore"):
        tensors.round_in_place(place, fmt)
        assert place.numpy()[:-1].tobytes() == wanted[:-1].astype(carrier).tobytes()
    assert torch.isnan(place[-1])
    every_bit = torch.full((2,), -1, dtype=torch.int64).view(torch.float64)  # as GPUs make nan
    assert torch.isnan(round_to(every_bit, fmt)).all()


def test_scores_that_are_all_nan_stop_no_run() -> None:
    """In the tail of an array torch leaves nans with all bits set, which NumPy rounds too."""
    for seq_len in range(1, 18):
        sizes = {"heads": 1, "seq_len": seq_len, "head_dim": 2}
        for recipe, dtype, offset in (
            ("uniform", "fp16", 65530),
            ("hf", "fp16", 2**31),
            ("uniform", "bf16", 0),
        ):
            own, other = both(offset, dtype, recipe, qk="ones", **sizes)
            assert differences(own, other) == []
            assert (own[0].nonfinite > 0) == (offset == 65530)


# ---------------------------------------------------------------------------- a device


@pytest.fixture
def there(monkeypatch) -> None:
    pretended_device.install(monkeypatch)


@pytest.mark.parametrize("dtype", ["fp64", "fp16"])
def test_a_device_is_given_nothing_that_lies_elsewhere(there, dtype, monkeypatch) -> None:
    """It refuses tensors of the CPU; what comes back is counted. Sums are exact, in whatever order."""
    changes = {"input": "fp8_e4m3", "accumulate": "fp64"}
    case = SIZES | {"heads": 2, "changes": changes, "mask": "window:40"}
    monkeypatch.setattr(plan, "PANEL", 48)
    here = list(shift((0, 1000), dtype, "hf", **case))
    monkeypatch.setattr(torch_library, "DEVICE_TILE", (16, 32))
    monkeypatch.setattr(torch_library, "DEVICE_PANEL", 48)
    fetched: list[tuple[int, ...]] = []
    copy = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: (fetched.append(tuple(x.shape)), copy(x))[1])
    monkeypatch.setattr(agreement, "check", lambda *_: None)
    moved = list(shift((0, 1000), dtype, "hf", device=NAME, **case))
    assert {one.device for one in moved} == {PLACE}
    assert differences(here, [dataclasses.replace(one, device="cpu") for one in moved]) == []
    assert len(fetched) == 2 * (3 + 1 + 1)  # strips of two heads, those of the second panel against both
    assert all(columns == 7 and rows <= 6 * 2 for rows, columns in fetched)


def test_numpy_judges_tiles_of_a_device(there) -> None:
    here, moved = (list(shift(1000, "bf16", "hf", **where, **SIZES)) for where in ({}, {"device": NAME}))
    assert differences(here, [dataclasses.replace(one, device="cpu") for one in moved]) == []
    assert moved[0].engine == "torch"


# ---------------------------------------------------------------------------- engines that differ


def contracted(a: Any, b: Any) -> Any:
    """two_product where the compiler fused a multiplication and a subtraction: the error is lost."""
    return a * b, 0.0 * a


def cut_off(x: torch.Tensor, fmt: Any) -> torch.Tensor:
    """A cast to float16 that cuts bits off where it should round."""
    return (x.to(torch.float32).view(torch.int32) >> 13 << 13).view(torch.float32)


def of_torch(function: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is wrong for tensors alone."""
    return lambda *given: (wrong if isinstance(given[0], torch.Tensor) else function)(*given)


def narrow(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A product of inputs of 11 bits, as tensor cores form it."""
    product = (a.to(torch.float16).to(torch.float64) @ b.to(torch.float16).to(torch.float64)).to(a.dtype)
    return product if out is None else out.copy_(product)


FAULTS = {
    "double-double": ("fp64", doubledouble, "two_product", contracted, "whole rotated vectors"),
    "rounding": ("fp16", tensors, "rounded", cut_off, "rotated vectors of hf in float16"),
    "products": ("fp32", torch_library._Torch, "matmul", lambda _, *ab: narrow(*ab), "sums of products"),
    "exact products": (
        "fp64",
        tensors._Tensors,
        "matmul",
        lambda _, *ab: narrow(*ab),
        "exact part of the ref",
    ),
    "reference": ("fp32", tensors._Tensors, "matmul", lambda _, *ab: narrow(*ab), "the reference's scores"),
    "scores": ("bf16", tensors, "round_in_place", lambda x, fmt: None, "stored scores of hf"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_stops_where_engines_differ(name, monkeypatch) -> None:
    dtype, owner, function, wrong, message = FAULTS[name]
    plain = getattr(owner, function)
    monkeypatch.setattr(owner, function, of_torch(plain, wrong) if owner is doubledouble else wrong)
    with pytest.raises(EnginesDiffer, match=message):
        list(shift(1000, dtype, "hf", engine="torch", **SIZES))


@pytest.mark.parametrize("number", [0, 1, 3, 4, 5, 6])  # 2: of weighted scores alone
def test_a_run_stops_where_statistics_differ(number, monkeypatch) -> None:
    """Each number of a block, one part in a million off; of counts and places one."""
    stack = torch.stack

    def wrong(parts: list[torch.Tensor]) -> torch.Tensor:
        row = stack(parts)
        if row.dim() == 1:
            row[number] = row[number] - 1 if number in (0, 4) else row[number] * (1 + 1e-6)
        return row

    monkeypatch.setattr(torch, "stack", wrong)
    with pytest.raises(EnginesDiffer, match="of the drift of hf in bfloat16 at offset 0"):
        list(shift(1000, "bf16", "hf", engine="torch", **SIZES))


def test_the_command_says_that_engines_differ(capsys, monkeypatch) -> None:
    monkeypatch.setattr(tensors, "rounded", cut_off)
    assert (
        main(["shift", "--engine", "torch", "--heads", "1", "--seq-len", "64", "--dtype", "fp16", "-q"]) == 2
    )
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "differ in rotated vectors of hf in float16 at offset 0 (" in seen.err
    assert "give --engine numpy" in seen.err


# ---------------------------------------------------------------------------- which engine


def test_the_engine_goes_by_the_device(there, monkeypatch) -> None:
    assert choice.chosen(None, None).name == "numpy"
    assert {choice.chosen(None, name).name for name in ("cpu", "cpu:0")} == {"numpy"}
    assert choice.chosen("torch", None).label == "cpu"
    assert (choice.chosen(None, NAME).name, choice.chosen(None, NAME).label) == ("torch", PLACE)
    assert choice.chosen(None, NAME, called=True).name == "numpy"
    assert choice.chosen(None, NAME, "torch").name == "numpy"
    assert choice.chosen("numpy", NAME, called=True).name == "numpy"


def test_a_device_without_float64_is_measured_by_numpy_and_says_so(there, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch_numbers, "_WITHOUT_FLOAT64", (NAME,))
    given = ["shift", "--device", NAME, "--heads", "1", "--seq-len", "4", "--dtype", "bf16", "--recipe", "hf"]
    assert main([*given, "-f", "markdown"]) == 0
    assert (
        f"{PLACE} has no float64, which the reference needs: NumPy measured, on the CPU"
        in capsys.readouterr().out
    )
    (row,) = shift(0, "bf16", "hf", device=NAME, heads=1, seq_len=4)
    assert (row.engine, row.device) == ("numpy", "cpu")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"engine": "jax"}, UnknownName, "unknown engine 'jax'; known: numpy, torch"),
        ({"engine": "torch", "backend": "torch"}, UsageError, "backend torch forms its scores itself"),
        (
            {"engine": "numpy", "device": "cuda"},
            UsageError,
            "device cuda is where torch computes; leave it out",
        ),
        ({"engine": "torch", "attention": True}, UsageError, "attention is measured by NumPy alone"),
        ({"engine": "torch", "sample": 10}, UsageError, "sample is measured by NumPy alone"),
        ({"device": "cuda:77"}, UsageError, "device cuda:77: torch .* sees"),
    ],
)
def test_bad_choices(given, error, message) -> None:
    with pytest.raises(error, match=message):
        list(shift(0, "fp32", heads=1, seq_len=4, **given))


def test_a_full_device_is_named(monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(torch_library._Torch, "matmul", full)
    with pytest.raises(OutOfMemory, match=r"cpu is out of memory: CUDA out of memory.*give engine numpy"):
        list(shift(0, "fp32", "hf", engine="torch", heads=1, seq_len=4))


def test_rows_of_another_engine_are_other_cells(tmp_path, capsys) -> None:
    file = str(tmp_path / "a.jsonl")
    given = ["shift", "--heads", "1", "--seq-len", "8", "--dtype", "bf16", "-q", "-o", file, "--resume"]
    assert main([*given, "-f", "csv"]) == 0
    assert main([*given, "-f", "csv"]) == 0
    assert main([*given, "-f", "csv", "--engine", "torch"]) == 2
    assert "engine" in capsys.readouterr().err
    mine, other = ([one.as_dict() for one in rows] for rows in both(0, "bf16", "hf", **SIZES))
    older = [row | {"engine": None} for row in mine]
    assert [pair.status for pair in comparison.compare(older, mine).pairs] == ["same"]
    assert sorted(pair.status for pair in comparison.compare([*mine], [*other, *mine]).pairs) == [
        "new",
        "same",
    ]


def test_products_of_float32_are_float32s_within_a_run_alone() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with torch_library.on(torch.device("cpu")).running(1):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
