"""Frequencies that may have been meant instead: another base, scaling, ramp, list, form or format.

Letters: p pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, parse
from ropeaudit.errors import UsageError
from ropeaudit.recognition.diagnosis import Diagnosis, Value
from ropeaudit.rope import scaled
from ropeaudit.rope.frequencies import FrequencyForm, frequencies
from ropeaudit.rope.scaled import effective_base
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting

CASTS = tuple(parse(name) for name in ("fp16", "bf16", "tf32", "e4m3", "e5m2"))
# Bases of published models (rope theta), the usual first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 5e6, 8e6, 1e7, 1e8)
FORMS: tuple[FrequencyForm, ...] = ("inverse_power", "power", "step_power", "exp", "exp2")
_DIMS = (128, 64, 96, 256)  # that code has in the place of the number of rotated dims
_SAME = 1e-5  # bases nearer than this cannot be distinguished by float32 frequencies


@dataclass(frozen=True, slots=True)
class Variant:
    """Frequencies (p,) that may have been meant, what they are, and how far-fetched that is.

    diagnosis: None for those that are expected. setting: one that has these frequencies. computed: whether
    they were rounded on the way, so that they are no setting's.
    """

    theta: Array
    diagnosis: Diagnosis | None = None
    setting: RopeSetting | None = None
    cost: float = 1.0
    computed: bool = False


def variants(setting: RopeSetting, exact: Array, stored: Array) -> Iterator[Variant]:
    """Yield wrong settings, some fitted to `stored`. Shapes: exact, stored (p,)."""
    right, seen = exact.astype(np.float32).tobytes(), set[tuple[bytes, str]]()
    with np.errstate(all="ignore"):
        for variant in itertools.chain(
            _ramps(setting),
            _scalings(setting, stored),
            _exponents(setting),
            _bases(setting, stored),
            _otherwise(setting, exact),
        ):
            same = variant.theta.astype(np.float32).tobytes()
            key = same, variant.diagnosis.code if variant.diagnosis else ""
            if same != right and key not in seen and np.isfinite(variant.theta).all():
                seen.add(key)
                yield variant


def _theta(setting: RopeSetting) -> Array:
    """Return the float64 frequencies, exact enough for a hypothesis."""
    return np.asarray(scaled.scaled(_plain(setting), setting, FP64), dtype=np.float64)


def _plain(setting: RopeSetting, dims: int | None = None) -> Array:
    """Return unscaled frequencies. dims: in exponents, by default the rotary dims."""
    x = 2.0 * np.arange(setting.pairs) / (dims or setting.rotary_dim)
    return np.asarray(effective_base(setting) ** -x)


def of_other(setting: RopeSetting, other: RopeSetting, cost: float) -> Variant:
    """Return the frequencies of another scaling, or of another length in the same one."""
    asked: dict[str, Value] = {"asked": called(setting.scaling)}
    if other.scaling == DEFAULT:
        return Variant(_theta(other), Diagnosis("missing-scaling", asked), other, cost)
    values: dict[str, Value] = {"seen": called(other.scaling), **asked}
    if other.scaling == setting.scaling:
        both = {"seen": other, "asked": setting}  # which of longrope's lists each has
        long = {name: one.length > (one.scaling.original or 0) for name, one in both.items()}
        values |= {f"{name}_divisors": "long" if is_long else "short" for name, is_long in long.items()}
    return Variant(_theta(other), Diagnosis("other-scaling", values), other, cost)


def called(scaling: Scaling) -> str:
    """Return a scaling as `--scaling` takes it, or its kind where it has lists."""
    listed = any(isinstance(value, tuple) for value in scaling.parameters().values())
    return scaling.kind if listed else str(scaling)


def _explicit(setting: RopeSetting, theta: Array, code: str, cost: float = 1.0, **values: str) -> Variant:
    """Return frequencies that no parameters of a setting give."""
    try:
        return Variant(theta, Diagnosis(code, values), of_frequencies(setting, theta), cost)
    except UsageError:  # numbers that no model has
        return Variant(theta, Diagnosis(code, values), cost=cost)


def of_frequencies(setting: RopeSetting, theta: Array) -> RopeSetting:
    """Return a setting with these frequencies and the attention factor of another."""
    factor = scaled.attention_factor(setting.scaling)
    listed = tuple(theta.tolist())
    return replace(setting, scaling=Scaling("explicit", frequencies=listed, attention_factor=factor))


def over(setting: RopeSetting, dims: int) -> RopeSetting:
    """Return a setting with other dims in its exponents and the same scaling."""
    return of_frequencies(setting, _plain(setting, dims) * (_theta(setting) / _plain(setting)))


def _ramps(setting: RopeSetting) -> Iterator[Variant]:
    """Yield other YaRN ramps, such as inverted, truncated or short ones."""
    scaling = setting.scaling
    if scaling.kind != "yarn":
        return
    plain, right = _plain(setting), scaling.truncate is not False
    for truncate in (right, not right):
        other = replace(setting, scaling=replace(scaling, truncate=truncate))
        theta = _theta(other)
        if truncate is not right:
            yield of_other(setting, other, 0.9)
        inverted = plain + plain / scaling.stretch - theta
        values = {"seen": str(other.scaling), "seen_ramp": "inverted", "asked": called(scaling)}
        yield _explicit(setting, inverted, "other-scaling", 1.0 if truncate is right else 1.5, **values)
        if (short := _short_ramp(other, plain)) is not None:
            values |= {"seen_ramp": "short"}
            yield _explicit(setting, short, "other-scaling", 1.0 if truncate is right else 1.5, **values)
    fast, slow = scaling.beta_fast or 32.0, scaling.beta_slow or 1.0
    for beta_fast, beta_slow in ((32.0, 1.0), (slow, fast)):
        other = replace(setting, scaling=replace(scaling, beta_fast=beta_fast, beta_slow=beta_slow))
        yield of_other(setting, other, 1.0)


def _short_ramp(setting: RopeSetting, plain: Array) -> Array | None:
    """Return YaRN's frequencies with the end of its ramp held to the number of pairs, not of dims.

    None where that changes nothing. Shapes: plain (p,) -> (p,).
    """
    (low, high), last = scaled.yarn_range(setting), setting.pairs - 1
    if high <= last or low >= last:
        return None
    ramp = np.clip((np.arange(setting.pairs) - low) / (last - low), 0.0, 1.0)
    return np.asarray(plain / setting.scaling.stretch * ramp + plain * (1 - ramp))


def _scalings(setting: RopeSetting, stored: Array) -> Iterator[Variant]:
    """Yield other scalings: longrope's lists, none, known ones, or other numbers."""
    if setting.scaling.kind == "longrope":
        for length in (0, int(setting.scaling.original or 0) + 1):
            yield of_other(setting, replace(setting, length=length), 0.94)
    plain = replace(setting, scaling=DEFAULT)
    theta, rotating = _plain(plain), int(np.count_nonzero(stored))
    if setting.scaling != DEFAULT:
        yield of_other(setting, plain, 0.95)
    ratios = [float(np.median(theta / stored)), float(theta[-1] / stored[-1])]
    factors = [setting.scaling.stretch, *(float(f"{r:.{k}g}") for r in ratios for k in (1, 2, 3, 4))]
    known = [setting.scaling.original, setting.scaling.maximum, *(2048.0 * 2**k for k in range(7))]
    part = rotating / setting.pairs
    tried = [Scaling("proportional", fraction=part)] if 0 < part < 1 else []
    for factor in dict.fromkeys(factor for factor in factors if 1 < factor < 1e6):
        tried.append(Scaling("linear", factor=factor))
        for original in dict.fromkeys(length for length in known if length):
            if setting.scaling.kind in ("yarn", "llama3"):
                tried.append(replace(setting.scaling, factor=factor, original=original))
            tried.append(Scaling("yarn", factor=factor, original=original))
            tried.append(Scaling("yarn", factor=factor, original=original, truncate=False))
            tried.append(Scaling("llama3", factor=factor, low=1.0, high=4.0, original=original))
    for number, scaling in enumerate(tried):
        yield of_other(setting, replace(plain, scaling=scaling), 1.0 + 1e-4 * number)


def _bases(setting: RopeSetting, stored: Array) -> Iterator[Variant]:
    """Yield well-known bases and those that the frequencies show."""
    if setting.scaling.kind == "explicit":
        return
    stretch, current, fitted = effective_base(setting) / setting.base, setting, []
    x = 2.0 * np.arange(1, setting.pairs) / setting.rotary_dim
    for _ in range(4):  # the ramps of a scaling move with the base
        bent = _theta(current)[1:] / _plain(current)[1:] * stretch**-x  # what the scaling makes of them
        fitted = bases_shown(stored[1:] / bent, x)
        if not fitted:
            break
        current = replace(setting, base=fitted[0])
    tried = dict.fromkeys(BASES, 1.0)
    for digits in range(1, 8):
        for base in (float(f"{value:.{digits - 1}e}") for value in fitted):
            if all(abs(base / other - 1) > _SAME for other in (setting.base, *tried)):
                tried[base] = 1.0 + 0.02 * digits
    for base, cost in tried.items():
        if 1.0 < base < 1e18:
            told, other = of_base(setting, base)
            yield Variant(_theta(other), told, other, cost)


def bases_shown(theta: Array, exponents: Array) -> list[float]:
    """Return the base whose powers frequencies are: by all, the fast third, the slow third, the slowest.

    Frequencies that show no base do not count; nothing where none does. Shapes: theta, exponents (p,).
    """
    shows = np.flatnonzero((exponents > 0) & (theta > 0) & (theta < 1))
    third = -(-shows.size // 3)
    parts = (shows, shows[:third], shows[-third:], shows[-1:]) if shows.size else ()
    return [math.exp(solved_base(theta[part], exponents[part], theta[part])[0]) for part in parts]


def solved_base(theta: Array, exponents: Array, uncertain: Array) -> tuple[float, float]:
    """Return the logarithm of the base whose powers most frequencies are, and how uncertain it is.

    It is the median of what each shows, weighted by how closely it does: few that are wrong move it little.
    theta: from 0 to 1. uncertain: how far off each may be, radians per token. Shapes: (p,), p > 0.
    """
    logs, weights = -np.log(theta) / exponents, exponents * theta / uncertain
    order = np.argsort(logs)
    share = np.cumsum(weights[order])
    middle = logs[order][np.searchsorted(share, share[-1] / 2)]
    return float(middle), float(1 / np.sqrt((weights**2).sum()))


def other_factors(asked: Scaling) -> tuple[float, ...]:
    """Return the attention factors that code usually has in the place of a scaling's.

    None at all, that one twice, and where the setting gives its own, or the weights of YaRN's formula, that
    of the kind without them.
    """
    factor = scaled.attention_factor(asked)
    plain = replace(asked, attention_factor=None, mscale=None, mscale_all_dim=None)
    return tuple(
        dict.fromkeys(one for one in (1.0, factor**2, scaled.attention_factor(plain)) if one != factor)
    )


def of_base(setting: RopeSetting, base: float) -> tuple[Diagnosis, RopeSetting]:
    """Return that the base is another, and the setting that has it."""
    return Diagnosis("wrong-base", {"base": base, "asked": setting.base}), replace(setting, base=base)


def _exponents(setting: RopeSetting) -> Iterator[Variant]:
    """Yield exponents 2i/n over another number of dims than are rotated."""
    rotated = setting.rotary_dim
    for dims in dict.fromkeys((setting.head_dim, rotated - 2, *_DIMS)):
        if dims not in (rotated, 0):
            other = replace(setting, base=setting.base ** (rotated / dims))
            told = Diagnosis("exponent-denominator", {"dims": dims, "asked": rotated})
            yield Variant(_theta(other), told, other, 0.98)


def _otherwise(setting: RopeSetting, exact: Array) -> Iterator[Variant]:
    """Yield the frequencies in other units, order or narrower arithmetic."""
    yield _explicit(setting, 1 / exact, "inverse-frequencies")
    yield _explicit(setting, exact / (2 * math.pi), "turns-per-token")
    yield _explicit(setting, exact[::-1], "pair-order")
    for fmt in CASTS[:2]:
        for number, form in enumerate(FORMS):
            theta = frequencies(setting, form, fmt).astype(np.float64)
            values: dict[str, Value] = {"frequency": str(fmt), "computed": str(fmt), "form": form}
            what = Diagnosis("narrow-frequencies", values | {"recipes": ()})
            yield Variant(theta, what, cost=1.5 + 0.01 * number, computed=True)
