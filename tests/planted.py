"""An implementation for tests alone: a right rotation of NumPy, registered as adapters are."""

import sys
import types

import numpy as np

from ropeaudit import RopeSetting, parse
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.subjects import factories, third_party
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.foreign import in_process
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.third_party import Entry
from ropeaudit.subjects.third_party.adapter import Adapter


def rotated(x: np.ndarray, positions: np.ndarray, setting: RopeSetting) -> np.ndarray:
    """RoPE in float64, as RoFormer writes it: pairs are complex numbers. Shapes: (h, s, d)."""
    d, half = setting.rotary_dim, setting.layout == "half"
    first, second = (slice(0, d // 2), slice(d // 2, d)) if half else (slice(0, d, 2), slice(1, d, 2))
    factor = setting.scaling.factor or 1
    angles = positions[:, None] * setting.base ** (-2.0 * np.arange(d // 2) / d) / factor
    result = x.astype(float)
    pairs = (result[..., first] + 1j * result[..., second]) * np.exp(1j * angles)
    result[..., first], result[..., second] = pairs.real, pairs.imag
    return result


class Planted(Adapter):
    """A right rotation of half-split pairs that says that it is interleaved."""

    def instance(self, setting, dtype):
        half = RopeSetting.of(setting.head_dim)
        return lambda x, positions: rotated(x, positions, half).astype(np.float32)


def under_test(
    code,
    dtype="bf16",
    up_to=20000,
    head_dim=32,
    layout="half",
    **more,
) -> CodeUnderTest:
    """Return code as checks get it: what a spec names, a function, or what was loaded."""
    if isinstance(code, str):
        code = factories.implementation(code)
    elif not isinstance(code, Code):
        code = in_process(OwnCode(getattr(code, "__name__", "an instance"), code))
    return CodeUnderTest(code, RopeSetting.of(head_dim, layout=layout), parse(dtype), up_to, **more)


def plant(monkeypatch, kind, name="planted", **entry) -> None:
    """Register an implementation under a name."""
    monkeypatch.setenv("ROPEAUDIT_DOOR", "in-process")  # no other knows it
    module = types.ModuleType("ropeaudit.subjects.third_party.planted_rope")
    module.adapter = kind
    monkeypatch.setitem(sys.modules, module.__name__, module)
    given = {"needs": ("numpy",), "layouts": ("interleaved",), "dtypes": ("float32", "bfloat16")} | entry
    given = {"engine": "numpy", "package": "numpy", "extra": "planted", "calls": "nothing"} | given
    built = Entry(name, "planted_rope", **given)
    monkeypatch.setitem(third_party.ENTRIES, name, built)
