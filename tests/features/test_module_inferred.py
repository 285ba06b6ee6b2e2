"""Frequencies of modules that hold none: inferred from 16-bit results finely enough to judge them by."""

import numpy as np
import pytest
import torch
from test_module import audited, refused

from ropeaudit import module
from ropeaudit.recognition.inferred import Inference, usual

KERNELS = "modules_without_frequencies.py"


@pytest.mark.parametrize(
    ("name", "up_to", "error"),
    [("Computed", "32768", 2.0**-9), ("Half", "32768", 2.0**-12), ("Factor", "4096", 2.0**-8)],
)
def test_narrow_results_are_off_by_their_rounding_alone(name, up_to, error, spec, capsys) -> None:
    (row,) = audited(capsys, spec(name), "--up-to", up_to, "--loaded", "built")["records"]
    assert row["cos_error"] == pytest.approx(error, rel=0.01)
    assert (row["result"], row["against"]) == ("within", "base 10000 (guessed)")


def test_frequencies_of_no_usual_base_are_inferred_with_an_uncertainty(spec, capsys) -> None:
    result = audited(capsys, spec("Own"), "--up-to", "32768", "--loaded", "built")
    (row,) = result["records"]
    assert (row["result"], row["against"]) == ("within", "the frequencies that it shows as built")
    assert row["cos_error"] < 1.2 * 2.0**-9
    assert "assumed         the frequencies that it shows as built" in result["answer"]


def test_what_is_off_later_is_off_still(spec, capsys) -> None:
    (row,) = audited(capsys, spec("Late"), "--up-to", "32768", "--loaded", "built", code=1)["records"]
    assert row["cos_error"] == pytest.approx(2 * np.sin(0.5), rel=0.05)


def test_values_that_are_no_numbers_are_counted_and_the_others_compared(spec, capsys) -> None:
    result = audited(capsys, spec("Ends"), "--loaded", "built", code=1)
    (row,) = result["records"]
    assert row["nonfinite"] == 2 * 32 * 95
    assert row["cos_error"] < 3e-4
    assert "6080 values of what it returns are nan or infinite" in result["answer"]


def test_an_uncertainty_holds_and_a_base_agrees_within_it_alone() -> None:
    theta = 1e4 ** (-np.arange(32) / 32)
    points = np.exp(1j * np.arange(4096)[:, None] * theta)
    rng = np.random.default_rng(0)
    unit = 2.0**-8
    noisy = points.real * (1 + unit * rng.uniform(-1, 1, points.shape)) + 1j * points.imag
    seen = Inference.of(noisy, unit)
    assert seen.held.all()
    assert np.all(np.abs(seen.theta - theta) <= seen.uncertain)
    assert np.all(seen.uncertain <= 1.5 * 2 * 2.0**-8 * 1.05 / 4095 + 2.0**-22)
    known = usual(seen.theta, seen.uncertain)
    assert known is not None
    np.testing.assert_allclose(known.theta, theta, rtol=1e-15)
    assert usual(seen.theta * 1.001, seen.uncertain) is None


def test_sizes_that_are_not_those_of_what_is_returned_are_refused(spec, capsys) -> None:
    for options in (("--head-dim", "128"), ("--head-dim", "128", "--base", "1e4"), ("--model", "llama-3-8b")):
        message = refused(capsys, spec("Single"), "--loaded", "built", *options)
        assert "what Single returns is of 32 pairs and" in message
        assert "has 64; give what belongs to it with --config, --model, --head-dim" in message
    assert audited(capsys, spec("Single"), "--loaded", "built", "--head-dim", "64")["records"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("Next", "positions-off"),
        ("Buffered", "positions-off"),
        ("Reversed", "positions-reversed"),
        ("First", "first-position-only"),
    ],
)
def test_rows_of_other_positions_than_were_given_are_off(spec, capsys, name, code) -> None:
    for given in (("--base", "1e4", "--head-dim", "64"), ()):
        if not given and name != "Buffered":  # nothing says the frequencies
            continue
        report = audited(capsys, spec(name), "--loaded", "built", *given, code=1)
        (row,) = report["records"]
        assert (row["result"], row["diagnosis"]) == ("off", code)


def test_what_is_no_cos_of_whole_positions_is_not_taken_for_it(spec, capsys) -> None:
    for name, base in (("Through", "1e4"), ("Next", "5e5")):
        sizes = ("--base", base, "--head-dim", "64")
        report = audited(capsys, spec(name), "--loaded", "built", *sizes, code=1)  # nothing was judged
        assert report["records"][0]["result"] == "not run"


def test_an_argument_that_forward_cannot_use_is_refused(spec, capsys) -> None:
    message = refused(capsys, spec("Sized"), "--build", "dim=abc")
    assert "Sized(dim='abc') was built, and the forward of Sized raised TypeError" in message
    assert message.endswith("give another --build NAME=VALUE\n")


@pytest.mark.parametrize("way", ["built", "built,to"])
def test_a_module_that_was_called_and_not_understood_is_not_judged(way, spec, capsys) -> None:
    """Its buffer is right, and says nothing of what it returns."""
    result = audited(capsys, spec("SinOfOthers"), "--loaded", way, code=1)
    assert result["answer"].startswith("FAIL")
    assert "not checked     what SinOfOthers returns (what it returns is not " in result["answer"]


def test_frequencies_above_half_a_turn_keep_their_sign(spec) -> None:
    """Pixels' frequencies are 1 to 5 half turns: whole positions see some of them step backward."""
    audit = module(spec("Pixels"), loaded="built")
    (run,) = audit.runs
    assert not audit.wrong
    freqs = run.built.module.freqs.detach()
    angles = torch.arange(4096.0)[:, None] * freqs
    exact = torch.arange(4096).double()[:, None] * freqs.double()
    for name in ("cos", "sin"):
        off = (getattr(angles.double(), name)() - getattr(exact, name)()).abs().max()
        assert getattr(run.measured, f"{name}_error") == pytest.approx(float(off))
    assert np.array_equal(run.built.references[0].theta[::2], freqs.double().numpy())
