"""Code that is called on a device: nothing of another device reaches it, and rows say where it was called."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import command_line
import kernels_on_devices as kernels
import numpy as np
import pretended_device
import pytest
import tiny_models
import torch
from cases import first_fast
from pretended_device import NAME, PLACE, alone, only_here

from ropeaudit import RopeSetting, parse
from ropeaudit.audits.records import case_digest
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.environments import stateless
from ropeaudit.errors import UsageError
from ropeaudit.features.check import config_target
from ropeaudit.main import main
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import environments
from ropeaudit.testing import assert_shift_invariant

FILE = str(Path(kernels.__file__))
CALLED = Path(kernels.__file__).parent
SMALL = ["--heads", "1", "--seq-len", "8", "--head-dim", "64"]
TWO = ["--offset", "0,100", "--dtype", "bf16"]


@pytest.fixture(autouse=True)
def _pretended(monkeypatch, in_process):
    pretended_device.install(monkeypatch)


def own(name: str) -> str:
    return f"{FILE}:{name}"


def rows(capsys, *arguments: str) -> list[dict[str, object]]:
    """Return the records of a command."""
    assert main([*arguments, "-f", "json", "-q"]) in (0, 1)
    return json.loads(capsys.readouterr().out)["records"]


def refused(capsys, *arguments: str) -> str:
    return command_line.refused(capsys, [*arguments, "-q"])


# ---------------------------------------------------------------------------- the device itself


@pytest.mark.slow  # processes
@alone
def test_the_pretended_device_refuses_other_tensors_and_all_checks_run_on_it(capsys) -> None:
    """Gradients, strides and checks of modules with caches among them. In one child, for it takes seconds."""
    x = torch.arange(6.0).to(NAME)
    assert str(x.device) == PLACE
    assert torch.equal((x * 2).view(2, 3).mT.contiguous().cpu(), torch.arange(0, 12, 2.0).view(2, 3).mT)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(6)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(6)[torch.arange(2, device=NAME)]
    leaf = x.clone().requires_grad_()
    (leaf * leaf).sum().backward()
    assert torch.equal(leaf.grad.cpu(), torch.arange(0, 12, 2.0))
    with pytest.raises(AssertionError):
        only_here()
    arguments = ["--head-dim", "16", "--up-to", "64", "--dtype", "bf16", "--under", "none"]
    results = rows(capsys, "check", own("Cached"), "--device", NAME, *arguments)
    assert {row["device"] for row in results} == {PLACE}
    others = {row["check"]: row["status"] for row in results if row["status"] != "pass"}
    short = {"torch.compile", "score-error-long", "score-error-growth", "positions-per-row"}
    assert others == dict.fromkeys(short, "not applicable") | {"torch.compile": "not checked"}
    assert only_here() > 60


# ---------------------------------------------------------------------------- own functions


@pytest.mark.parametrize(
    "names", first_fast([["both", "Cached"], ["rotate", "tables", "complex_table", "in_place"]])
)
def test_own_code_gets_nothing_of_another_device(names, capsys) -> None:
    results = rows(capsys, "shift", "--impl", ",".join(map(own, names)), "--device", NAME, *SMALL, *TWO)
    assert only_here() > 10 * len(names)
    seen = [(one["implementation"], one["device"], one["verdict"], one["backend"]) for one in results]
    assert seen == [(own(name), PLACE, "sound", "torch") for name in names for _ in range(2)]


def test_what_comes_back_elsewhere_is_noted(capsys) -> None:
    assert main(["shift", "--impl", own("returns_elsewhere"), "--device", NAME, *SMALL, *TWO]) == 0
    seen = capsys.readouterr()
    assert only_here()
    assert f"returns a tensor on cpu for one on {PLACE}." in seen.out
    assert (
        f"called as f(x, positions) with torch tensors bhsd on {PLACE}, half-split pairs (detected)."
        in seen.out
    )
    assert PLACE in seen.out


@pytest.mark.parametrize("name", first_fast(["operator", "packet", "compiled"]))
def test_operators_and_compiled_functions_are_called_as_they_are(capsys, name) -> None:
    """An operator's schema names its arguments, here in an unusual order. No call falls back to eager."""
    results = rows(capsys, "shift", "--impl", own(name), *SMALL, *TWO)
    seen = [(one["device"], one["verdict"], one["refused"]) for one in results]
    assert seen == [("cpu", "sound", None)] * 2
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "command"),
    first_fast(
        [
            ("table_left_behind", "shift --impl"),
            ("table_left_behind", "check"),
            ("TableIsNoBuffer", "explain"),
        ]
    ),
)
def test_a_call_that_mixes_devices_is_refused(capsys, name, command) -> None:
    message = refused(capsys, *command.split(), own(name), "--device", NAME, "--head-dim", "64")
    assert "RuntimeError: Expected all tensors to be on the same device" in message
    assert f"it was given tensors on {PLACE}, and holds or makes others elsewhere" in message
    assert message.rstrip().endswith("make them on the device of x, or give --device cpu")


def test_code_for_a_gpu_alone_says_so_on_the_cpu(capsys) -> None:
    message = refused(capsys, "shift", "--impl", own("rotate"), "--order", "bhsd")
    assert "RuntimeError: Pointer argument cannot be accessed from Triton" in message
    assert "if it computes on another device than the CPU" in message
    assert message.rstrip().endswith("such as --device cuda")


REFUSED = [
    (["shift", "--impl", own("plain"), "--device", "tpu"], "--device 'tpu' is not cpu, cuda"),
    (
        ["shift", "--impl", own("CannotMove"), "--device", NAME],
        "cannot be moved there: NotImplementedError",
    ),
]


def test_devices_that_say_nothing_are_refused(capsys) -> None:
    seen = [(message, refused(capsys, *arguments)) for arguments, message in REFUSED]
    assert [(message, said) for message, said in seen if message not in said] == []


def test_numpy_code_and_adapters_without_torch_stay_on_the_cpu(capsys, tmp_path) -> None:
    file = tmp_path / "own.py"
    file.write_text("import numpy as np\ndef rotate(x, positions):\n    return np.array(x)\n")
    message = refused(capsys, "shift", "--impl", f"{file}:rotate", "--device", NAME)
    assert "takes NumPy arrays, which lie on the CPU; leave it out" in message
    pytest.importorskip("onnxruntime")
    message = refused(capsys, "shift", "--impl", "onnxruntime", "--device", NAME)
    assert "onnxruntime is called on the CPU alone; leave it out" in message
    assert factories.implementation("onnxruntime", device="cpu").device == environments.CPU


# ---------------------------------------------------------------------------- every command


def test_recipes_beside_code_stay_emulated(capsys) -> None:
    arguments = ["--impl", own("rotate"), "--recipe", "hf", "--device", NAME, *SMALL, *TWO]
    results = rows(capsys, "shift", *arguments)
    assert [(one["implementation"], one["device"]) for one in results] == [("hf", "cpu")] * 2 + [
        (own("rotate"), PLACE)
    ] * 2
    assert only_here()


def test_parity(capsys) -> None:
    two = ["parity", own("both"), "hf", "--device", NAME, *SMALL, *TWO]
    assert [(row["a_device"], row["b_device"]) for row in rows(capsys, *two)] == [(PLACE, "cpu")] * 2
    assert only_here()


def test_state() -> None:
    for name, status in (("CacheByDtype", "fail"), ("Cached", "pass")):
        code = factories.implementation(own(name), device=NAME)
        [finding] = stateless(CodeUnderTest(code, RopeSetting.of(16), parse("fp32"), 64))
        assert finding.status == status
    assert only_here() > 20


def test_explain_logs_the_same_stages_as_on_the_cpu(capsys) -> None:
    arguments = ["explain", own("plain"), "--head-dim", "16", "--offset", "0", *SMALL[:4]]
    there, here = (rows(capsys, *arguments, "--device", place) for place in (NAME, "cpu"))
    assert {row["device"] for row in there} == {PLACE}
    assert [{**row, "device": "cpu"} for row in there] == here
    assert len(here) == 7


@pytest.mark.slow
def test_model(capsys, tmp_path) -> None:
    """The model, the float64 run beside it and the tokens lie there; its numbers are those of the CPU.

    longrope makes its factors there, from numbers.
    """
    folder = tiny_models.make("longrope", tmp_path / "model", 1)
    arguments = ["model", str(folder), "--tokens", "8", "--offset", "64", "--dtype", "bf16"]
    there = rows(capsys, *arguments, "--device", NAME)
    assert pretended_device.operations
    here = rows(capsys, *arguments)
    assert [row["device"] for row in there] == [PLACE]
    assert [{**row, "device": "cpu"} for row in there] == here


@pytest.mark.slow
def test_check_runs_a_model_there(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        config_target, "checks", lambda *arguments: iter(())
    )  # of its config, which take long
    folder = tiny_models.make("llama", tmp_path / "model", 1)
    runs = ["check", str(folder), "--tokens", "8", "--dtype", "bf16", "--device", NAME]
    places = {row["check"]: row["device"] for row in rows(capsys, *runs)}
    assert (places["model structure"], places["model rounding"]) == (PLACE, PLACE)
    assert set(places.values()) == {PLACE, "none"}


_MOVED = ["transformers-llama", "transformers-llama4", "x-transformers", "diffusers-flux"]
_MOVED += ["mistral-inference"]


@pytest.mark.parametrize(
    "names", [[own("plain"), "rotary-embedding-torch"], pytest.param(_MOVED, marks=pytest.mark.slow)]
)
def test_numbers_are_those_of_the_cpu(capsys, names) -> None:
    given = ["shift", "--impl", ",".join(names), *SMALL, *TWO]
    there, here = (rows(capsys, *given, "--device", place) for place in (NAME, "cpu"))
    assert pretended_device.operations
    assert {one["device"] for one in there} == {PLACE}
    assert "refused" not in {one["verdict"] for one in there}
    plain = [[{**one, "device": "", "case": ""} for one in both] for both in (there, here)]
    assert plain[0] == plain[1]


# ---------------------------------------------------------------------------- the pytest helper

_HELPED = {"head_dim": 64, "heads": 2, "seq_len": 16, "offsets": (0, 100)}


def test_the_helper_calls_on_a_device() -> None:
    assert_shift_invariant(kernels.rotate, device=NAME, **_HELPED)
    assert_shift_invariant(kernels.Cached, device=NAME, **_HELPED)
    assert_shift_invariant(scores=kernels.scores, device=NAME, **_HELPED)
    assert only_here() > 20
    with pytest.raises(AssertionError, match="in bfloat16 at offset"):
        assert_shift_invariant(kernels.rounds_positions, device=NAME, **{**_HELPED, "offsets": (0, 1000)})
    with pytest.raises(UsageError, match="holds or makes others elsewhere"):
        assert_shift_invariant(kernels.table_left_behind, device=NAME, **_HELPED)


def test_the_helper_moves_a_copy_and_calls_a_module_where_it_lies() -> None:
    module = kernels.Cached(64)
    assert_shift_invariant(module, device=NAME, **_HELPED)
    assert (module.inv_freq.device.type, len(module.cos)) == ("cpu", 0)
    module.to(NAME)
    assert_shift_invariant(module, **_HELPED)
    assert len(module.cos) >= 116  # it is the instance that was called
    assert_shift_invariant(module, device=NAME, **_HELPED)
    assert only_here()


# ---------------------------------------------------------------------------- files that tell devices apart


def test_reports_tell_devices_apart(capsys, tmp_path) -> None:
    files = [tmp_path / name for name in ("there.csv", "here.csv", "there.html")]
    common = ["shift", "--impl", own("rounds_positions"), *SMALL, "--offset", "1000", "--dtype", "bf16", "-q"]
    assert main([*common, "--device", NAME, "-o", str(files[0]), "-o", str(files[2])]) == 0
    assert main([*common, "-o", str(files[1])]) == 0
    with files[0].open(newline="") as file:
        assert [row["device"] for row in csv.DictReader(file)] == [PLACE]
    assert PLACE in files[2].read_text()
    capsys.readouterr()
    assert main(["report", str(files[0]), "--against", str(files[1])]) == 2
    message = f"no case in common: device is cpu in the earlier and {PLACE} in the later one"
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_ticket_names_the_device(tmp_path) -> None:
    ticket = tmp_path / "ticket.md"
    common = ["shift", "--impl", own("rounds_positions"), *SMALL, "--offset", "1000", "--dtype", "bf16", "-q"]
    assert main([*common, "--device", NAME, "--ticket", str(ticket)]) == 0
    text = ticket.read_text()
    assert f"on {PLACE}; scores were formed from it in float64." in text
    assert f"| {PLACE} |" in text


def test_tables_show_devices_that_are_not_the_cpu(capsys, tmp_path) -> None:
    """Those of `report --against`, where one report has rows of both, among them."""
    first, second = (tmp_path / name for name in ("first.csv", "second.csv"))
    common = ["shift", "--impl", own("plain"), *SMALL, "--offset", "100", "--dtype", "bf16", "-q"]
    assert main([*common, "-o", str(first), "--device", NAME]) == 0
    assert "   device        " in capsys.readouterr().out
    names, row = first.read_text().splitlines()
    columns = zip(names.split(","), row.split(","), strict=True)
    changed = ",".join("0.5" if name == "drift_rms" else cell for name, cell in columns)
    second.write_text(f"{names}\n{changed}\n")
    assert main(["report", str(second), "--against", str(first)]) == 0
    assert f"   {PLACE}   " in capsys.readouterr().out


def test_resume_tells_devices_apart(capsys, tmp_path) -> None:
    """A row that was measured on another device is none of the sweep, and is refused."""
    stored = tmp_path / "rows.jsonl"
    common = ["shift", "--impl", own("rotate"), "--device", NAME, *SMALL, "--dtype", "bf16"]
    common += ["-o", str(stored), "--columns", "all"]
    assert main([*common, "--offset", "0", "-q"]) == 0
    first = only_here()
    assert main([*common, "--offset", "0", "--resume", "-q"]) == 0
    again = only_here() - first
    capsys.readouterr()
    row = json.loads(stored.read_text()) | {"device": "cpu"}
    stored.write_text(json.dumps(row | {"case": case_digest(row)}) + "\n")
    assert main([*common, "--offset", "0", "--resume"]) == 2
    assert (
        "with device cpu and not pretended:0; ask for them too, or give another -o" in capsys.readouterr().err
    )
    assert again < first


# ---------------------------------------------------------------------------- jax, Triton


def test_jax_gets_its_own_arrays(capsys) -> None:
    pytest.importorskip("jax")
    file = CALLED / "jax_kernel.py"
    called = ["shift", "--impl", f"{file}:eager", *SMALL, "--offset", "100", "--dtype"]
    results = rows(capsys, *called, "bf16,fp32,fp64")
    assert [(one["backend"], one["device"]) for one in results] == [("jax", "cpu")] * 3
    assert [one["verdict"] for one in results][::2] == ["sound", "refused"]
    assert results[2]["refused"] == "jax makes float32 arrays of float64 ones; set JAX_ENABLE_X64=1"
    far = rows(capsys, *called[:-3], "--offset", str(2**31), "--dtype", "fp32")
    assert "jax has no positions from 2^31 on" in str(far[0]["refused"])
    assert "jax has no such device" in refused(capsys, *called, "fp32", "--device", "cuda:7")


@pytest.mark.slow
def test_a_triton_kernel_in_tritons_interpreter() -> None:
    """float32 and float16 alone: the interpreter cuts bfloat16 off where it should round."""
    pytest.importorskip("triton")
    kernel = CALLED / "triton_kernel.py"
    run = subprocess.run(  # the interpreter is chosen when triton is imported
        [
            *(sys.executable, "-m", "ropeaudit", "shift", "--impl", f"{kernel}:rotate", *SMALL),
            *("--offset", "0,100", "--dtype", "fp32,fp16", "-f", "json", "-q"),
        ],
        env={"TRITON_INTERPRET": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(run.stdout)["records"]
    assert [(one["dtype"], one["verdict"]) for one in results] == [("float32", "sound")] * 2 + [
        ("float16", "sound")
    ] * 2


def test_positions_that_jax_would_cut_off_are_refused(monkeypatch) -> None:
    config = SimpleNamespace(jax_enable_x64=False)
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(config=config, device_put=lambda x, _: x))
    put = environments.Device(of_jax=object()).put
    assert put(np.array([2**31 - 1])) == 2**31 - 1
    with pytest.raises(OverflowError, match="JAX_ENABLE_X64=1"):
        put(np.array([2**31]))
