"""Did something cast a module's RoPE buffers: which, to what, and what that does to scores.

A cast leaves its mark in the values: float32 numbers all of which are bfloat16 or float16 numbers were
cast and cast back. Whether they are right is the frequency check's to say, against the model's config, or
against a base that is guessed from the values.
Letters: p pairs, n positions; theta in radians per token, D a distance in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.analyses.frequency_check import Diagnosis, check
from ropeaudit.analyses.module_source import Source, kind
from ropeaudit.doubledouble import Array
from ropeaudit.errors import BadInput
from ropeaudit.files.checkpoint import Stored
from ropeaudit.files.tables import Dump
from ropeaudit.formats import parse, round_to
from ropeaudit.reference import distance_table
from ropeaudit.rope.setting import RopeSetting

NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance
_CASTS = ("bfloat16", "float16")
_WIDE = ("float32", "float64", "complex64", "complex128")
_BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 5e6, 8e6, 1e7, 1e8)  # of published models, the usual first
_ROWS = 8192  # of a table that are checked


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer and what is wrong with it.

    what: inv_freq, cos, sin or both. against: the setting it was compared with, none where there was none.
    cast: none, or the format that its values show. how: none, stored (by its dtype) or back (and back again).
    agrees: with the exact values, up to float32 rounding; None where nothing could be compared.
    error: the largest, relative for frequencies, in radians for tables.
    drift_near, drift_far: expected RMS drift of scores, see `drift`; None where it cannot be told.
    """

    stored: Stored
    what: str
    against: str
    cast: str
    how: str
    agrees: bool | None
    error: float | None
    drift_near: float | None
    drift_far: float | None
    finding: str

    @property
    def wrong(self) -> bool:
        """Whether it was cast, or is not what it should be."""
        return self.cast != "none" or self.agrees is False


def run(source: Source) -> Iterator[Buffer]:
    """Yield what is found of every buffer. Raises: BadInput where no buffer fits the config."""
    groups = list(_groups(source.buffers))
    settings = _settings(source)
    if settings and groups and not any(_fits(_dump(parts), one) for parts in groups for _, one in settings):
        held, (label, wanted) = groups[0][0], settings[0]
        raise BadInput(
            f"{source.spec!r}: {held.name} has shape {_shape(held.shape)} and the config ({label}) has "
            f"{wanted.pairs} pairs; give the config that belongs to these tensors with --config"
        )
    for parts in groups:
        yield from _judged(parts, settings)


def _groups(buffers: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Buffers that make one table: cos and its sin, or one alone."""
    sines = {one.name: one for one in buffers if kind(one.name) == "sin"}
    for one in buffers:
        what = kind(one.name)
        head, dot, last = one.name.rpartition(".")
        partner = sines.get(f"{head}{dot}{last.replace('cos', 'sin')}") if what == "cos" else None
        if partner is not None and partner.shape == one.shape:
            sines.pop(partner.name)
            yield [one, partner]
        elif what != "sin":
            yield [one]
    for one in buffers:
        if one.name in sines and not _has_partner(one, buffers):
            yield [one]


def _has_partner(sine: Stored, buffers: Sequence[Stored]) -> bool:
    head, dot, last = sine.name.rpartition(".")
    return any(
        o.name == f"{head}{dot}{last.replace('sin', 'cos')}" and o.shape == sine.shape for o in buffers
    )


def _dump(parts: Sequence[Stored]) -> Dump | None:
    """The table that buffers make; None for cos without sin."""
    first = parts[0]
    if kind(first.name) == "inv_freq":
        return Dump(first.name, "inv_freq", frequencies=first.values.reshape(-1))
    if len(parts) == 2:
        cos, sin = (_plane(one.values) for one in parts)
        return Dump(first.name, "the cos/sin table", cos=cos, sin=sin)
    if kind(first.name) == "both":
        values = first.values.squeeze()
        if np.iscomplexobj(values):
            cos, sin = values.real, values.imag
        elif values.ndim == 3:
            cos, sin = values[..., 0], values[..., 1]
        else:
            cos, sin = np.split(values, 2, axis=-1) if values.shape[-1] % 2 == 0 else (values, values)
        return Dump(first.name, "the cos/sin table", cos=_plane(cos), sin=_plane(sin))
    return None


def _plane(values: Array) -> Array:
    """A table's first rows, (n, c)."""
    return np.ascontiguousarray(values.reshape(-1, values.shape[-1])[:_ROWS])


def _settings(source: Source) -> list[tuple[str, RopeSetting]]:
    """What the config allows: a setting per layer type, and those of long sequences where they differ."""
    if source.model is None:
        return []
    found = []
    for layer, setting in source.model.layers.items():
        label = source.model.name if len(source.model.layers) == 1 else f"{source.model.name}/{layer}"
        found.append((label, setting))
        if setting.scaling.kind == "longrope":
            beyond = int(setting.scaling.original or 0) + 1
            found.append((f"{label} (long)", replace(setting, length=beyond)))
    return [(label, one) for label, one in found if one.pairs]


def _fits(dump: Dump | None, setting: RopeSetting) -> bool:
    if dump is None:
        return True
    try:
        dump.folded(setting.pairs)
    except BadInput:
        return False
    return True


def _judged(parts: Sequence[Stored], settings: Sequence[tuple[str, RopeSetting]]) -> Iterator[Buffer]:
    """Compare the buffers of one table with the setting that fits best, and yield a row each."""
    dump = _dump(parts)
    best: tuple[Diagnosis, str, RopeSetting] | None = None
    if dump is not None:
        fitting = [(label, one) for label, one in settings if _fits(dump, one)]
        tried = [(check(dump, one, label), label, one) for label, one in fitting]
        best = min(
            tried, key=lambda it: (not it[0].agrees, [h.rank for h in it[0].hypotheses[:1]]), default=None
        )
        best = best or _guessed(dump)
    agrees = None if best is None else best[0].agrees
    near, far = (None, None) if best is None or dump is None else _drifts(dump.folded(best[2].pairs), best[2])
    error = None
    if best is not None:
        column = "relative_error" if kind(parts[0].name) == "inv_freq" else "largest_error"
        error = float(np.max(np.abs([row[column] for row in best[0].rows])))
    for one in parts:
        cast, how = _cast(one, agrees)
        finding = best[0].headline if best else _alone(dump, cast)
        yield Buffer(
            one, kind(one.name), best[1] if best else "none", cast, how, agrees, error, near, far, finding
        )


def _alone(dump: Dump | None, cast: str) -> str:
    missing = "its partner of cos and sin is missing" if dump is None else "no base explains its values"
    told = "its values show no cast" if cast == "none" else f"all its values are {cast} numbers"
    return f"{missing}, so that it was compared with nothing; {told}."


def _cast(stored: Stored, agrees: bool | None) -> tuple[str, str]:
    """Return the format that a buffer was cast to, and how that shows; none, none where nothing does."""
    if stored.dtype not in _WIDE:
        return stored.dtype, "stored"
    values = np.concatenate([stored.values.real.ravel(), stored.values.imag.ravel()])
    values = values[np.isfinite(values) & (np.abs(np.frexp(values)[0]) != 0.5) & (values != 0)]
    if agrees or not values.size:  # zero and powers of two, which every format holds, say nothing
        return "none", "none"
    for name in _CASTS:
        if np.array_equal(round_to(values, parse(name)), values):
            return name, "back"
    return "none", "none"


def _guessed(dump: Dump) -> tuple[Diagnosis, str, RopeSetting] | None:
    """Return the diagnosis with a base that the values tell; None where none does up to a cast."""
    columns = (dump.frequencies if dump.frequencies is not None else dump.cos[0]).shape[-1]  # type: ignore[index]
    halves = columns // 2
    repeated = columns % 2 == 0 and _fits(dump, RopeSetting.of(columns)) and halves > 0
    pairs = halves if repeated else columns
    for base in dict.fromkeys((*_fitted(dump, pairs), *_BASES)):
        setting = RopeSetting.of(2 * pairs, base=base)
        found = check(dump, setting)
        cast = found.hypotheses[:1]
        if found.agrees or (cast and cast[0].explains and "cast to" in cast[0].text and _plain(cast[0].text)):
            return found, f"base {base:g} (guessed)", setting
    return None


def _plain(text: str) -> bool:
    """Whether a hypothesis is a cast alone, with nothing expected instead."""
    return "expected" not in text and " and " not in text.replace("cos and sin", "")


def _fitted(dump: Dump, pairs: int) -> list[float]:
    """Bases in few digits that the slower frequencies tell."""
    if dump.frequencies is None or pairs < 2:
        return []
    theta = dump.folded(pairs).frequencies
    assert theta is not None  # noqa: S101
    exponents = 2.0 * np.arange(1, pairs) / (2 * pairs)
    with np.errstate(all="ignore"):
        told = theta[1:] ** (-1 / exponents)
    told = told[np.isfinite(told) & (told > 1) & (told < 1e18)]
    if not told.size:
        return []
    middle = float(np.median(told[-max(1, told.size // 3) :]))
    return [float(f"{middle:.{digits}e}") for digits in (0, 1, 2, 4)]


def _drifts(dump: Dump, setting: RopeSetting) -> tuple[float | None, float | None]:
    """Return `drift` over a causal sequence of `NEAR` tokens, and at a distance of `FAR`."""
    return _sequence(dump, setting), _at(dump, setting, FAR)


def _sequence(dump: Dump, setting: RopeSetting) -> float | None:
    """The mean square over all distances below `NEAR`, each as often as a causal sequence has it."""
    held = NEAR if dump.cos is None else min(NEAR, len(dump.cos))
    if held < 2:
        return None
    if dump.cos is not None:
        turned = _points(dump)[:held]
        exact = _exact(np.arange(held, dtype=np.float64), setting)
        squares = 0.0
        for m in range(held):
            found = turned[m] * np.conj(turned[: m + 1])
            squares += float(np.sum(np.abs(found - exact[m] * np.conj(exact[: m + 1])) ** 2))
        mean = squares / (held * (held + 1) / 2) / setting.pairs
        return _share(mean, setting)
    each = np.array([_at(dump, setting, distance) for distance in range(held)], dtype=np.float64)
    weights = held - np.arange(held)
    return math.sqrt(float(np.sum(weights * each**2)) / float(weights.sum()))


def _at(dump: Dump, setting: RopeSetting, distance: int) -> float | None:
    """Expected RMS drift of scores at a distance, over the RMS of the exact scores.

    For independent Gaussian q and k, a pair turned by D theta' instead of D theta adds |e^(iD theta') -
    e^(iD theta)|² to the mean square, and every other dim nothing. Without rounding of q, k, cos or sin.
    """
    if dump.frequencies is None:  # a table has no further rows
        return None
    exact = _exact(np.array([float(distance)]), setting)[0]
    factor = np.abs(exact)
    with np.errstate(invalid="ignore", over="ignore"):  # what is stored may be inf, and then it is nan
        found = factor * np.exp(1j * np.mod(distance * dump.frequencies, 2 * math.pi))
    return _share(float(np.mean(np.abs(found - exact) ** 2)), setting)


def _share(mean_square: float, setting: RopeSetting) -> float:
    factor = np.abs(_exact(np.zeros(1), setting)[0, 0]) ** 2
    rotated = setting.rotary_dim / setting.head_dim
    whole = factor * rotated + (1 - rotated)
    return math.sqrt(mean_square * rotated / whole)


def _points(dump: Dump) -> Any:
    return (0 if dump.cos is None else dump.cos) + 1j * (0 if dump.sin is None else dump.sin)


def _exact(at: Array, setting: RopeSetting) -> Any:
    """e^(i D theta), times the attention factor. Shapes: (s,) -> (s, p)."""
    cos, sin = distance_table(at, setting)
    return cos[0] + 1j * sin[0]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
