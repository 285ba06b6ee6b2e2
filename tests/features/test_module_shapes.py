"""What RoPE modules return, in other orders and forms; and what cannot be judged."""

import warnings

import pytest
import torch
from test_module import audited

KERNELS = "modules_of_other_forms.py"


def ran(capsys, *arguments, code):
    return audited(capsys, *arguments, "--up-to", "256", code=code)


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        ("SinFirst", "cos and sin"),
        ("Stacked", "both"),
        ("InTurns", "both"),
    ],
)
def test_other_forms_are_run_and_a_cast_shows(name, returns, spec, capsys) -> None:
    built, cast = ran(capsys, spec(name), "--loaded", "built,to", code=1)["records"]
    assert (built["returns"], built["result"], cast["result"]) == (returns, "within", "off")
    theta = 1.0 / 1e4 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
    angles = torch.arange(256.0).double()[:, None]
    error = (angles * theta.bfloat16().double()).cos() - (angles * theta.double()).cos()
    assert cast["cos_error"] == pytest.approx(float(error.abs().max()), rel=1e-3)


def test_a_base_that_was_not_used_is_said(spec, capsys) -> None:
    result = ran(capsys, spec("Axes"), "--loaded", "built", "--base", "500000", code=0)
    (note,) = [note for note in result["notes"] if note.startswith("base 500000 was not used for what Axes")]
    assert "it is compared with base 10000 (guessed)" in note


def test_what_is_allowed_is_that_of_the_module_as_built(spec, capsys) -> None:
    """A table that was rounded once is said to be, whatever is allowed; one that was rounded more is off."""
    result = ran(capsys, spec("Tables"), "--loaded", "built,to", code=0)
    built, cast = result["records"]
    assert built["allowed_error"] == cast["allowed_error"]
    of_rounding = 3 * 2.0**-24 * 255 + 6 * 2.0**-24
    inferred = 1.5 * 6 * 2.0**-24  # of 256 positions, at the last of them: at most
    assert of_rounding < built["allowed_error"] < of_rounding + inferred
    assert [row["result"] for row in (built, cast)] == ["within", "rounded"]
    assert (cast["usual"], cast["returned"]) == ("float32", "bfloat16")
    result = ran(capsys, spec("Tables"), "--loaded", "to", code=0)
    assert result["answer"].startswith("OK")
    assert "4.64e-05 allowed" in result["answer"]
    assert "; one rounding to bfloat16 explains it (Tables after .to" in result["answer"]
    assert [row["result"] for row in ran(capsys, spec("Sum"), "--loaded", "to", code=1)["records"]] == ["off"]


def test_a_lost_imaginary_part_is_a_finding_and_no_raw_warning(spec, capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ran(capsys, spec("Complex"), "--loaded", "to", code=1)
        factory = ran(capsys, spec("Complex").replace(":Complex", ":cast_complex"), code=1)
    assert "its complex table is real after that cast" in result["answer"]
    assert any("torch discards their imaginary part (sin)" in note for note in factory["notes"])


def test_where_nothing_is_judged_it_fails(spec, capsys) -> None:
    for arguments in ((spec("Small"), "--build", "d=1"), (spec("Plain"),)):
        result = ran(capsys, *arguments, code=1)
        assert ": nothing was judged: no RoPE buffer among " in result["headline"]
        assert {row["result"] for row in result["records"]} == {"not run"}
    mixed = ran(capsys, spec("Mixed"), "--loaded", "built", code=0)
    assert mixed["headline"].endswith("1 of 2 runs within float32 rounding")
    assert "(right as built)" in mixed["answer"]
    assert "not checked     what " in mixed["answer"]
