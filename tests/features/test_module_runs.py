"""RoPE modules that are run in each way of loading: what they return, and that correct ones are silent."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_module import audited, refused

from ropeaudit import module
from ropeaudit.features.module import runs
from ropeaudit.features.module.answer import explained
from ropeaudit.features.module.references import places
from ropeaudit.features.module.report import RUNS
from ropeaudit.main import main

KERNELS = "rope_modules.py"


def rows(capsys, *arguments, code=0):
    return audited(capsys, *arguments, code=code)["records"]


def held(dim=64):
    """Frequencies as the classes compute them, in float32."""
    return 1.0 / 1e4 ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def exact(n, dim=64):
    """Positions times the exact frequencies, which no float32 number is."""
    return torch.arange(n).double()[:, None] * 1e4 ** -(torch.arange(0, dim, 2).double() / dim)


def test_positions_in_the_dtype_of_the_frequencies(spec, capsys) -> None:
    """The errors are those of the class's own arithmetic in torch, written down once more."""
    results = rows(capsys, spec("Aliasing"), "--dtype", "bf16,fp16", code=1)
    assert list(results[0]) == list(RUNS)
    by_way = {(row["loaded"], row["dtype"]): row for row in results}
    assert {way for way, _ in by_way} == {"built", "to", "default-dtype"}
    for name, distinct in (("bfloat16", 769), ("float16", 3073)):
        dtype = getattr(torch, name)
        theta = held().to(dtype)
        angles = torch.outer(torch.arange(4096, dtype=dtype), theta).double()
        row = by_way["to", name]
        assert row["distinct_positions"] == distinct == len(angles.unique(dim=0))
        assert row["cos_error"] == pytest.approx(float((angles.cos() - exact(4096).cos()).abs().max()))
        assert row["sin_error"] == pytest.approx(float((angles.sin() - exact(4096).sin()).abs().max()))
        assert (row["held"], row["result"], row["returns"]) == (name, "off", "angles")
        assert by_way["default-dtype", name]["result"] == "within"
    assert by_way["built", "float32"]["result"] == "within"
    assert by_way["built", "float32"]["positions"] == 4096


def test_the_drift_is_that_of_random_scores(spec, capsys) -> None:
    (row,) = rows(capsys, spec("Llama"), "--loaded", "to", code=1)
    theta = held().bfloat16().double()
    at = torch.arange(3840, 4096).double()[:, None]
    seen = torch.polar(torch.ones(1).double(), at * theta).to(torch.complex128)
    seen = torch.complex(seen.real.bfloat16().double(), seen.imag.bfloat16().double())
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.complex(*torch.randn((2, 64, 256, 32), generator=generator, dtype=torch.float64)) for _ in "qk"
    )
    right = torch.polar(torch.ones(1).double(), at * exact(2)[1])

    def scores(points):
        return ((q * points) @ (k * points).conj().transpose(1, 2)).real

    drift = (scores(seen) - scores(right)).square().mean().sqrt() / scores(right).square().mean().sqrt()
    assert row["drift"] == pytest.approx(float(drift), rel=0.05)


def test_an_angle_table_ends_and_is_judged_as_far_as_it_goes(spec, capsys) -> None:
    result = audited(capsys, spec("Angles"), "--loaded", "built,to", code=1)
    built, cast = result["records"]
    assert (built["positions"], built["result"], built["held"]) == (1024, "within", "float32")
    angles = torch.outer(torch.arange(1024.0), exact(2)[1].float()).bfloat16()
    error = (angles.cos().double() - exact(1024).cos()).abs().max()
    assert cast["cos_error"] == pytest.approx(float(error))
    assert "holds 1024 positions; it was run at those, and not up to 4096" in " ".join(result["notes"])


@pytest.mark.parametrize("name", ["Computed", "Augmented"])
def test_of_a_module_that_trains_otherwise_it_is_said(name, spec, capsys) -> None:
    result = audited(capsys, spec(name), "--loaded", "built")
    assert result["answer"].startswith("OK")
    notes = " ".join(result.get("notes", ()))
    assert ("in eval mode, without what training adds" in notes) == (name == "Augmented")


def test_a_factory_is_run_as_built(spec, capsys) -> None:
    result = audited(capsys, spec("plain"))
    assert [row["buffer"] for row in result["records"]] == ["inv_freq"]
    assert result["headline"].endswith("1 of 1 run within float32 rounding")
    assert result["runs"][0]["loaded"] == "built"
    assert [row["loaded"] for row in rows(capsys, spec("plain"), "--loaded", "to", code=1)] == ["to"]


def test_a_module_that_is_wrong_as_built(spec, capsys) -> None:
    result = audited(capsys, spec("wrong"), code=1)
    assert result["headline"].endswith("1 of 1 run off (narrow-positions)")
    assert "; Wrong as built: 769 of 4096 positions stay distinct, cos is off" in result["answer"]


def test_a_model_that_was_cast_is_compared_with_what_was_meant(spec, capsys) -> None:
    result = audited(capsys, spec("cast_model"), code=1)
    assert result["headline"].endswith("3 of 3 RoPE buffers cast, 1 of 1 run off (narrow-frequencies)")
    (run,) = result["runs"]
    assert (run["module"], run["dtype"], run["result"]) == ("layers.0", "float32", "off")
    assert run["cos_error"] > 1.5
    assert "3 modules Llama hold the same values: the first stands for all" in result["notes"]


def test_refusals(spec, tmp_path, capsys) -> None:
    assert "needs the arguments dim, secret" in refused(capsys, spec("Needs"))
    assert "unexpected keyword" in refused(capsys, spec("Llama"), "--build", "no=1")
    torch.save({"inv_freq": torch.ones(4)}, tmp_path / "a.pt")
    for flag in (("--loaded", "to"), ("--build", "a=1")):
        assert "is a checkpoint; leave it out" in refused(capsys, tmp_path / "a.pt", *flag)
    assert "unknown column 'buffer'; did you mean buffer_error? (of runs)" in refused(
        capsys, spec("Llama"), "--columns", "buffer"
    )


def test_arguments_reach_classes_and_functions(spec, capsys) -> None:
    (row,) = rows(capsys, spec("Needs"), "--build", "secret=2", "--build", "dim=16", "--loaded", "built")
    assert row["module"] == "rope"
    result = audited(capsys, spec("plain"), "--build", "dim=32")
    assert result["records"][0]["shape"] == "16"


def test_torch_is_afterwards_as_it_was(spec) -> None:
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    module(spec("Llama"), loaded="default-dtype", up_to=100)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


def test_the_table_of_runs_and_its_ticket(spec, tmp_path, monkeypatch, capsys, snapshot) -> None:
    monkeypatch.chdir(tmp_path)
    ticket = tmp_path / "ticket.md"
    assert main(["module", spec("Aliasing"), "--ticket", str(ticket)]) == 1
    assert capsys.readouterr().out.replace(spec("").removesuffix("rope_modules.py:"), "") == snapshot
    text = ticket.read_text()
    assert "# Aliasing after .to(torch.bfloat16): 769 of 4096 positions stay distinct" in text
    assert "| distinct positions | 769 |" in text


def test_values_that_are_no_rotation_are_not_taken_for_one() -> None:
    generator = torch.Generator().manual_seed(0)
    assert places(torch.randn(67, 64, generator=generator), 67) is None
    assert places(torch.ones(67, 64), 67) is None
    assert places((torch.arange(67.0)[:, None], 3, None), 67) is None
    angles = exact(67).numpy()
    for returned in (
        torch.from_numpy(np.exp(1j * angles)),
        (torch.from_numpy(np.cos(angles))[None], torch.from_numpy(np.sin(angles))[None]),
        torch.from_numpy(np.stack([np.sin(angles), np.cos(angles)])),
    ):
        found = places(returned, 67)
        assert np.allclose(found.points(found.planes(returned, 67)), np.exp(1j * angles))


def test_dynamic_scaling_goes_by_the_positions_of_the_call(spec, capsys) -> None:
    """Beyond the maximum a plain module is off, and one that follows the length is not."""
    case = ("--loaded", "built", "--base", "10000", "--scaling", "dynamic:factor=8,maximum=256", "--up-to")
    assert audited(capsys, spec("Dynamic"), *case, "1024")["records"][0]["result"] == "within"
    plain = audited(capsys, spec("Llama"), *case, "1024", code=1)
    (row,) = plain["records"]
    assert (row["result"], row["diagnosis"]) == ("off", "missing-scaling")
    assert any(
        "held to what scaling dynamic makes of a call with 1024 positions" in one for one in plain["notes"]
    )
    assert audited(capsys, spec("Llama"), *case, "256")["records"][0]["result"] == "within"


class _Saved:
    """A stand-in for a class of diffusers: what is loaded tells how."""

    __module__ = "diffusers.models.own"

    def save_pretrained(self, folder):
        self.folder = folder

    @classmethod
    def from_pretrained(cls, folder, **options):
        result = cls()
        result.options, result.held, result.eval = options, "the module", lambda: result
        return result


def test_a_module_that_is_no_model_is_loaded_within_one_and_taken_out(monkeypatch) -> None:
    dtype = torch.bfloat16
    alone = SimpleNamespace(spec="own", build=_Saved)
    model, place = runs.loaded_by(alone, "from-pretrained", dtype)
    assert (place, model.options) == ("", {"torch_dtype": dtype, "low_cpu_mem_usage": False})
    part = type("Part", (), {"__module__": "diffusers.models.own"})
    monkeypatch.setattr(runs, "_of_diffusers", lambda builder: _Saved())
    held = SimpleNamespace(spec="part", build=part)
    assert runs.loaded_by(held, "from-pretrained", dtype) == ("the module", runs.HELD)


def test_errors_of_inferred_frequencies_are_named_where_they_count() -> None:
    seen = SimpleNamespace(
        returns="angles",
        usual="float32",
        returned="float32",
        of_frequencies=False,
        allowed=1e-3,
        uncertain=1e-4,
    )
    assert explained(seen) == "float32 angles and frequencies that are inferred from it (up to 1.00e-04)"
    seen.uncertain = 1e-6
    assert explained(seen) == "float32 angles"
