"""Frequencies, and tables of cos and sin, as code dumps them: right ones, and with stages rounded."""

import numpy as np

from ropeaudit import RopeSetting, parse
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.rope.frequencies import frequencies

FP32, BF16, FP16 = parse("fp32"), parse("bf16"), parse("fp16")
PLAIN = RopeSetting.of(128, base=1e6)


def inv(setting: RopeSetting, fmt: Format = FP32, form: str = "inverse_power") -> np.ndarray:
    return frequencies(setting, form, fmt).astype(np.float64)


def cast(values: np.ndarray, name: str) -> np.ndarray:
    return round_to(values, parse(name)).astype(np.float64)


def table(
    theta: np.ndarray,
    n: int = 2000,
    factor: float = 1.0,
    angle: Format = FP32,
    stored: str = "fp32",
    position: Format = FP32,
) -> tuple[np.ndarray, np.ndarray]:
    positions = round_to(np.arange(n, dtype=np.float64)[:, None], position).astype(np.float64)
    angles = round_to(positions * theta, angle).astype(np.float64)
    return cast(factor * np.cos(angles), stored), cast(factor * np.sin(angles), stored)


def npz(path: str, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return path


RIGHT = inv(PLAIN)
BASE = inv(RopeSetting.of(128, base=5e5))
