"""Frequencies that may have been meant instead: another base, scaling, ramp, list, form or format.

Letters: p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, parse
from ropeaudit.rope import scaled
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.scaled import effective_base
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting

CASTS = tuple(parse(name) for name in ("fp16", "bf16", "tf32", "e4m3", "e5m2"))
# Bases of published models (rope theta).
_BASES = (1e4, 1e5, 1.5e5, 1.6e5, 5e5, 1e6, 5e6, 8e6, 1e7, 1e8)
_SAME = 2e-6  # bases nearer than this cannot be distinguished by float32 frequencies


@dataclass(frozen=True, slots=True)
class Variant:
    """Frequencies (p,) that may have been meant, in words, and how far-fetched they are."""

    theta: Array
    seen: str = ""
    expected: str = ""
    cost: float = 1.0
    computed: bool = False  # in a format of its own

    def text(self, name: str, cast: str, *, explains: bool) -> str:
        """Return the hypothesis as a sentence, with the format that the whole was cast to, if any."""
        if not self.seen:
            return f"{name} was cast to {cast}" if cast else ""
        if self.computed:
            table = f", and the table cast to {cast}" if cast else ""
            return f"inv_freq was computed in {self.seen}{table}"
        words = " explains it; expected " if explains else " instead of "
        return f"{self.seen}{f', cast to {cast},' if cast else ''}{words}{self.expected}"


def variants(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield wrong settings, some fitted to the stored frequencies. Shapes: exact, stored (p,)."""
    seen = {exact.astype(np.float32).tobytes()}
    with np.errstate(all="ignore"):
        for make in (_ramps, _lists, _scalings, _bases, _transforms, _computed):
            for variant in make(setting, exact, stored):
                key = variant.theta.astype(np.float32).tobytes()
                if key not in seen and np.isfinite(variant.theta).all():
                    seen.add(key)
                    yield variant


def _theta(setting: RopeSetting) -> Array:
    """Return the frequencies in float64, as code would compute them: close enough for a hypothesis."""
    return np.asarray(scaled.scaled(_plain(setting), setting, FP64), dtype=np.float64)


def _plain(setting: RopeSetting) -> Array:
    x = 2.0 * np.arange(setting.pairs) / setting.rotary_dim
    return np.asarray(effective_base(setting) ** -x)


def _ramps(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield YaRN's ramp the other way round, truncated or not, with its usual borders."""
    scaling = setting.scaling
    if scaling.kind != "yarn":
        return
    plain, right = _plain(setting), scaling.truncate is not False
    for truncate in (right, not right):
        theta = _theta(replace(setting, scaling=replace(scaling, truncate=truncate)))
        words = f"truncate = {str(truncate).lower()}"
        if truncate is not right:
            yield Variant(theta, f"a YaRN ramp with {words}", f"truncate = {str(right).lower()}", 0.9)
        more = "" if truncate is right else f" and {words}"
        yield Variant(
            plain + plain / scaling.stretch - theta,
            f"an inverted YaRN ramp{more} (fast pairs interpolated, slow ones kept)",
            "fast pairs kept, slow ones interpolated",
            1.0 if truncate is right else 1.5,
        )
    fast, slow = scaling.beta_fast or 32.0, scaling.beta_slow or 1.0
    for beta_fast, beta_slow in ((32.0, 1.0), (slow, fast)):
        other = replace(scaling, beta_fast=beta_fast, beta_slow=beta_slow)
        words = f"beta_fast = {beta_fast:g}, beta_slow = {beta_slow:g}"
        yield Variant(_theta(replace(setting, scaling=other)), words, f"{fast:g} and {slow:g}", 1.0)


def _lists(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield the frequencies of another length, where they depend on it."""
    original = setting.scaling.original or setting.scaling.maximum or 0
    for length in (0, int(original) + 1):
        if setting.scaling.kind == "longrope":
            which = ("long", "short") if length > original else ("short", "long")
            words = (f"the list of {which[0]} divisors", f"the {which[1]} ones")
            yield Variant(_theta(replace(setting, length=length)), *words)
    if setting.scaling.kind == "dynamic":
        words = ("dynamic scaling for a length up to its maximum", f"for length {setting.length}")
        yield Variant(_theta(replace(setting, length=0)), *words)


def _scalings(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield no scaling, the known ones, and the expected one with other numbers."""
    expected = _words(setting.scaling)
    plain = replace(setting, scaling=DEFAULT)
    theta, rotator = _plain(plain), int(np.count_nonzero(stored))
    yield Variant(theta, "no scaling", expected, 0.95)
    ratios = [float(np.median(theta / stored)), float(theta[-1] / stored[-1])]
    factors = [setting.scaling.stretch, *(float(f"{r:.{k}g}") for r in ratios for k in (1, 2, 3, 4))]
    known = [setting.scaling.original, setting.scaling.maximum, *(2048.0 * 2**k for k in range(7))]
    tried = [Scaling("proportional", fraction=rotator / setting.pairs)]
    for factor in dict.fromkeys(factor for factor in factors if 1 < factor < 1e6):
        tried.append(Scaling("linear", factor=factor))
        for original in dict.fromkeys(length for length in known if length):
            if setting.scaling.kind in ("yarn", "llama3"):
                tried.append(replace(setting.scaling, factor=factor, original=original))
            tried.append(Scaling("yarn", factor=factor, original=original))
            tried.append(Scaling("yarn", factor=factor, original=original, truncate=False))
            tried.append(Scaling("llama3", factor=factor, low=1.0, high=4.0, original=original))
    for number, scaling in enumerate(tried):
        other = replace(plain, scaling=scaling)
        yield Variant(_theta(other), _words(scaling), expected, 1.0 + 1e-4 * number)


def _words(scaling: Scaling) -> str:
    given = {name: value for name, value in scaling.parameters().items() if not isinstance(value, tuple)}
    inner = ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else f'{v:.6g}'}" for k, v in given.items())
    return "no scaling" if scaling.kind == "default" else f"scaling {scaling.kind}:{inner}".rstrip(":")


def _bases(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield other bases: well-known ones, and those that the frequencies show, in few digits."""
    if setting.scaling.kind == "explicit":
        return
    stretch, current, fitted = effective_base(setting) / setting.base, setting, []
    x = 2.0 * np.arange(1, setting.pairs) / setting.rotary_dim
    for _ in range(4):  # the ramps of a scaling move with the base
        bases = (stored / (_theta(current) / _plain(current)))[1:] ** (-1 / x) / stretch
        bases = bases[np.isfinite(bases) & (bases > 1.0)]
        if not bases.size:
            break
        fitted = [
            float(np.median(bases)),
            float(np.median(bases[: -(-bases.size // 3)])),
            float(bases[-1]),
        ]
        current = replace(setting, base=fitted[0])
    tried = dict.fromkeys(_BASES, 1.0)
    for digits in range(1, 8):
        for base in (float(f"{value:.{digits - 1}e}") for value in fitted):
            if all(abs(base / other - 1) > _SAME for other in (setting.base, *tried)):
                tried[base] = 1.0 + 0.02 * digits
    for base, cost in tried.items():
        if 1.0 < base < 1e18:
            other = replace(setting, base=base)
            yield Variant(_theta(other), f"base {base:.10g}", f"{setting.base:.10g}", cost)


def _transforms(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield the expected frequencies in another unit or order, or over another number of dims."""
    if setting.head_dim != setting.rotary_dim:
        x = 2.0 * np.arange(setting.pairs) / setting.head_dim
        words = (f"exponents over head_dim = {setting.head_dim}", f"rotary_dim = {setting.rotary_dim}")
        yield Variant(setting.base**-x, *words)
    yield Variant(1 / exact, "a table of inverses (tokens per radian)", "radians per token")
    yield Variant(exact / (2 * math.pi), "turns per token", "radians per token")
    yield Variant(exact[::-1], "the reverse order of pairs", "the fastest first")


def _computed(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield the formulas in arithmetic of a narrower format, form by form."""
    for fmt in CASTS[:2]:
        for cost, form in enumerate(("inverse_power", "power", "step_power", "exp", "exp2")):
            theta = frequencies(setting, form, fmt).astype(np.float64)
            yield Variant(theta, f"{fmt.name}, as {form}", "", 1.5 + 0.01 * cost, computed=True)
