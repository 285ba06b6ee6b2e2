"""`--scaling explicit`: frequencies given by hand; exact scores with such are those of mpmath (net/trust)."""

import pytest

from ropeaudit import Record, shift
from ropeaudit.rope import scaling

SPEC = "explicit:frequencies=1;0.1;0.01;0.001"  # those of base 10,000
FIGURES = ("drift_rms", "drift_max", "drift_bias", "change_rms", "reference_rms")


def rows(spec: str, **more: object) -> list[Record]:
    sizes = {"heads": 1, "seq_len": 6, "head_dim": 8, "mask": "full", "scaling": spec}
    return list(shift((0, 5000, -70000), "fp32", "uniform", **sizes, **more))


def test_frequencies_of_a_base_given_by_hand_give_the_figures_of_that_base() -> None:
    for given, plain in zip(rows(SPEC), rows("default"), strict=True):
        wanted = [getattr(plain, name) for name in FIGURES]
        assert [getattr(given, name) for name in FIGURES] == pytest.approx(wanted, rel=1e-6)
        assert scaling.parse(given.scaling) == scaling.parse(SPEC)


def test_the_attention_factor_multiplies_q_and_k() -> None:
    spec = f"{SPEC},attention_factor=1.5"
    for longer, plain in zip(rows(spec), rows(SPEC), strict=True):
        assert longer.reference_rms == pytest.approx(1.5**2 * plain.reference_rms, rel=1e-12)
        assert longer.drift_rms < 3 * plain.drift_rms
        assert scaling.parse(longer.scaling) == scaling.parse(spec)


def test_frequencies_in_the_dtype_are_rounded_to_it() -> None:
    """bfloat16 has no 0.1: rounded frequencies are wrong at offset 0 already."""
    narrow, plain = (rows(SPEC, changes=changes)[0] for changes in ({"frequency": "bf16"}, {}))
    assert narrow.drift_rms > 100 * plain.drift_rms
