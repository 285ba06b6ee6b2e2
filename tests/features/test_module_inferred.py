"""Frequencies of modules that hold none: inferred from 16-bit results finely enough to judge them by."""

import numpy as np
import pytest
import torch
from test_module import audited, refused

from ropeaudit import module
from ropeaudit.recognition.inferred import Inference, usual

KERNELS = "modules_without_frequencies.py"


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


def test_an_argument_that_forward_cannot_use_is_refused(spec, capsys) -> None:
    message = refused(capsys, spec("Sized"), "--build", "dim=abc")
    assert "Sized(dim='abc') was built, and the forward of Sized raised TypeError" in message
    assert message.endswith("give another --build NAME=VALUE\n")


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
