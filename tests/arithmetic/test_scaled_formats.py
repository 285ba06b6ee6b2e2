"""Codes with scales against torch's own arithmetic, and against what a scale promises."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays

from ropeaudit.arithmetic import rounding

NUMBERS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e4, 1e4, width=32))
LARGEST = {"int8": 127.0, "e4m3": 448.0, "e5m2": 57344.0}


def in_torch(name: str, x: np.ndarray) -> np.ndarray:
    """As quantisers write it: a float32 scale, a division, codes, a product."""
    values = torch.from_numpy(x)
    scale = values.abs().max() / torch.tensor(LARGEST[name])
    quotient = values / (scale if scale else torch.tensor(1.0))
    if name == "int8":
        return (quotient.round().clamp(-127, 127).to(torch.int8).float() * scale).numpy()
    dtype = torch.float8_e4m3fn if name == "e4m3" else torch.float8_e5m2
    return (quotient.clamp(-LARGEST[name], LARGEST[name]).to(dtype).float() * scale).numpy()


@pytest.mark.parametrize("name", LARGEST)
@given(x=NUMBERS)
def test_every_bit_is_torchs(name: str, x: np.ndarray) -> None:
    stored = rounding.parse_scaled(f"{name}:tensor").stored(x, np.abs(x).max())
    assert stored.dtype == np.float32
    assert stored.tobytes() == in_torch(name, x).tobytes()


@given(x=NUMBERS)
def test_int8_is_within_half_a_step(x: np.ndarray) -> None:
    largest = np.abs(x).max()
    stored = rounding.parse_scaled("int8:tensor").stored(x, largest).astype(np.float64)
    # half a step, and four float32 roundings: of scale, quotient (up to 127 steps), product
    room = float(largest) / 254 + 4 * 2.0**-24 * float(largest) + 2.0**-149 * 128
    assert np.abs(stored - x).max() <= room


def test_what_is_not_finite_is_not_hidden() -> None:
    x = np.array([1.0, np.inf], np.float32)
    for name in LARGEST:
        stored = rounding.parse_scaled(f"{name}:token").stored(x, np.abs(x).max())
        assert not np.isfinite(stored).any() or not np.isfinite(stored[1])
