"""Stored frequencies and tables: the base that they fit, their effect on scores, losses of a conversion.

Facts that a GGUF file cannot hold are not compared: whether YaRN's range is truncated, which layers rotate.
Letters: n positions, p pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.recognition import faults, wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.diagnosis import Diagnosis, Value
from ropeaudit.recognition.faults import spelled
from ropeaudit.recognition.solving import recover_frequencies
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance
_TRIED = 5  # bases that are checked, of either kind
_NEAR = 0.01  # of the frequencies, relative
_SAME = 1e-5  # relative: what float32 metadata and divisors, computed in float32, leave of numbers
# scaling -> where a file says it, if always there
_KEYS = dict.fromkeys(("llama3", "proportional"), "rope_freqs.weight") | {
    "longrope": "rope_factors_short.weight, rope_factors_long.weight"
}
_LEAST, _MOST = 1e-25, 1e4  # sizes of numbers: no model has smaller or larger ones
_SINUSOIDS = 0.01  # of cos and sin: what float16 leaves of them
Guess: TypeAlias = tuple[TableFinding, str, RopeSetting]  # what is found, a scaling in words, for what


def best_guess(dump: Dump, of_base: Callable[[float], RopeSetting]) -> Guess | None:
    """Check a dump with bases fitted to its values; return the best finding, or None.

    A guess tells what the values are, not that they are right. of_base: the setting of a base. A scaling that
    explains the values is named, and the setting is without it.
    """
    any_base = of_base(1e4)
    if not dump.fits(any_base.pairs):
        return None
    one, faulty, scaled = dump.folded(any_base.pairs), list[Guess](), list[Guess]()
    theta = one.frequencies
    if one.cos is not None and one.sin is not None:
        theta = recover_frequencies(one.cos + 1j * one.sin)
    for base in _bases(np.abs(theta), any_base) if theta is not None else ():
        setting = of_base(base)
        finding = check(dump, setting)
        best = finding.best
        if finding.agrees:
            return finding, "", setting
        if best and (best.explains or best.few) and not best.another_setting:
            faulty.append((finding, "", setting))
        elif best and best.explains:
            other = wording.sentence(best.diagnosis)
            if best.setting is not None and best.setting.scaling.kind not in ("default", "explicit"):
                other = f"scaling {faults.spelled(best.setting.scaling)}"
            scaled.append((finding, other, setting))
    return next(iter(faulty + scaled), None)


def _bases(theta: Array, setting: RopeSetting) -> list[float]:
    """Return bases near frequencies (p,): published ones, then fitted ones."""
    exponents = 2.0 * np.arange(setting.pairs) / setting.rotary_dim
    with np.errstate(all="ignore"):
        theta = theta / theta[0] if 1.5 * theta[0] < 1 else theta  # linear scaling divides all of them
        shown = faults.fit_bases(theta, exponents)
    rounded = [float(f"{base:.{digits}e}") for digits in (0, 1, 2, 4, 6) for base in shown]
    usable = (exponents > 0) & (theta > 0)
    logs, weights = np.log(theta[usable]), exponents[usable]
    tried = [base for base in dict.fromkeys((*faults.BASES, *rounded)) if shown and 1 < base < 1e40]
    missed = {base: float(np.median(np.abs(math.log(base) * weights + logs))) for base in tried}
    near = [base for base in tried if missed[base] <= max(_NEAR, 2 * min(missed.values()))]
    fast = [base for base in rounded[1::4] if base > 1 and base not in near]
    return [*near[:_TRIED], *fast[:_TRIED]]  # a scaling leaves the fast ones alone


def sinusoids(dump: Dump) -> bool:
    """Return whether a table holds sinusoidal position embeddings, which are added.

    Their frequencies are 10000^(-i / (p - 1)), which no RoPE has.
    Source: transformers 5.23.0, modeling_whisper.py, sinusoids.
    """
    if dump.cos is None or dump.sin is None or dump.angles or dump.pairs < 2:
        return False
    angles = np.arange(len(dump.cos))[:, None] * 1e4 ** (-np.arange(dump.pairs) / (dump.pairs - 1))
    one = dump.folded(dump.pairs)
    apart = (np.abs(one.cos - np.cos(angles)), np.abs(one.sin - np.sin(angles)))
    return bool(np.max(apart, initial=0.0) <= _SINUSOIDS)


def uninitialised(values: Array) -> Diagnosis | None:
    """Diagnose memory that was never written, by numbers that no model has; else None."""
    sizes = np.abs(values[np.isfinite(values)])
    if sizes.size and not _LEAST <= sizes.max() <= _MOST:
        return Diagnosis("uninitialised", {"value": float(sizes.max())})
    tiny = sizes[(sizes > 0) & (sizes < _LEAST)]
    return Diagnosis("uninitialised", {"value": float(tiny.min())}) if tiny.size else None


def drifts(dump: Dump, setting: RopeSetting, far: int = FAR) -> tuple[float | None, float | None]:
    """Return the drift over `NEAR` causal tokens, and at a distance of `far`; None where there are no rows.

    For independent Gaussian q and k, a pair rotated by the points of a table instead of the exact ones adds
    |their difference|² to the mean square, and every other dim nothing. Without rounding of q, k.
    """
    factor = attention_factor(setting.scaling)  # once in the table of q and once in that of k
    if dump.cos is not None and dump.sin is not None:
        rows = min(NEAR, len(dump.cos))
        at, points = np.arange(rows), (dump.cos + 1j * dump.sin)[:rows]
    else:
        rows, at = NEAR, np.append(np.arange(NEAR), far)
        with np.errstate(invalid="ignore", over="ignore"):
            points = factor * np.exp(1j * np.mod(at[:, None] * np.asarray(dump.frequencies), 2 * np.pi))
    cos, sin = distance_table(at.astype(np.float64), setting)
    exact = cos[0] + 1j * sin[0]

    def squares(row: int, since: int) -> Any:
        """Return the squared errors of the scores of a row with rows before it."""
        pairs = points[row] * np.conj(points[:since]) - exact[row] * np.conj(exact[:since])
        return np.sum(np.abs(pairs) ** 2)

    def drift(total: Any, count: float) -> float:
        """Return the RMS over pairs of rows, relative to that of exact scores, with all dims."""
        share = setting.rotary_dim / setting.head_dim
        mean = total / count / setting.pairs * share
        return float(np.sqrt(mean / (factor**4 * share + (1 - share))))

    near = sum(squares(m, m + 1) for m in range(rows))
    return (
        drift(near, rows * (rows + 1) / 2) if rows > 1 else None,
        drift(squares(NEAR, 1), 1) if at.size > rows else None,
    )


# ---------------------------------------------------------------------------- what a conversion lost


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of a conversion. layer: its layer type. keys: of the file. told: details."""

    layer: str
    diagnosis: Diagnosis
    keys: str
    told: str = ""


def conversion_losses(file: GgufRope, declared: ModelRope) -> list[Loss]:
    """Return the differences of a GGUF file's rotary embedding from a config's."""
    own, found = file.model, list[Loss]()
    for layer, asked in declared.layers.items():
        if layer in own.layers:
            named = layer if len(declared.layers) > 1 else ""
            found += [Loss(named, *one) for one in _layer_differences(file, own.layers[layer], asked)]
    here, there = ("/".join(map(str, one.sections)) if one else "none" for one in (own.axes, declared.axes))
    if declared.axes and here != there:  # M-RoPE's
        told = Diagnosis("other-sections", {"seen": here, "asked": there})
        found.append(Loss("", told, "rope.dimension_sections"))
    ends, served = own.maximum, declared.maximum
    if ends and served and ends < served:
        words = "the file is for fewer positions than config.json serves: convert it again"
        told = Diagnosis("table-ends", {"seen": ends, "asked": served}, certainty="measured")
        found.append(Loss("", told, "context_length", words))
    return found


def not_compared(file: GgufRope, declared: ModelRope) -> list[str]:
    """Return the facts that were not compared, in words."""
    said = [
        f"the file says nothing of {layer} layers (rope.freq_base_swa): not compared"
        for layer in declared.layers
        if layer not in file.model.layers
    ]
    halves = {one.layout for one in declared.layers.values()} == {"half"}
    if file.setting.layout == "interleaved" and halves:
        said.append(
            f"architecture {file.architecture} pairs neighbours and the config pairs halves: conversion "
            "permutes the weights of q and k for that, which is not seen here"
        )
    return said


def _layer_differences(
    file: GgufRope,
    seen: RopeSetting,
    asked: RopeSetting,
) -> Iterator[tuple[Diagnosis, str]]:
    """Yield the differences in a layer type, each with the keys of the file."""
    if not _same_float32(seen.base, asked.base):
        yield Diagnosis("wrong-base", {"base": seen.base, "asked": asked.base}), "rope.freq_base"
    if seen.head_dim != asked.head_dim:
        dims: dict[str, Value] = {"seen": seen.head_dim, "asked": asked.head_dim}
        yield Diagnosis("other-head-dim", dims), "attention.key_length"
    if seen.rotary_dim != asked.rotary_dim:
        dims = {"seen": seen.rotary_dim, "asked": asked.rotary_dim, "head_dim": asked.head_dim}
        yield Diagnosis("partial-rotation", dims), "rope.dimension_count"
        if {seen.scaling.kind, asked.scaling.kind} & {*faults.BY_PAIR}:
            return  # lists for other pairs
    found = _scaling(seen, asked)
    if found is not None:
        keys = "rope_freqs.weight" if "rope_freqs.weight" in file.divisors else "rope.scaling.*"
        yield found, _KEYS.get(asked.scaling.kind, keys)
    factor, usual, right = (
        attention_factor(one)
        for one in (seen.scaling, replace(seen.scaling, attention_factor=None), asked.scaling)
    )
    follows = found and (found.code == "missing-scaling" or _same_float32(factor, usual))  # from that scaling
    if not (follows or _same_float32(factor, right)):
        told = Diagnosis("attention-factor", {"seen": factor, "asked": right})
        yield told, "rope.scaling.attn_factor"


def _scaling(seen: RopeSetting, asked: RopeSetting) -> Diagnosis | None:
    """Diagnose another scaling, with the base set right; None if the frequencies are equal."""
    here, there = seen.scaling, asked.scaling
    if here.kind == "explicit" and not _same_float32(seen.base, asked.base):
        exponents = 2 * np.arange(seen.pairs) / seen.rotary_dim
        listed = np.array(here.frequencies) * (seen.base / asked.base) ** exponents
        here = replace(here, frequencies=tuple(listed.tolist()))
    lengths = sorted({1, *(1 + 2 * int(one.length_before or 0) for one in (here, there))})
    both = [[replace(asked, scaling=one).for_positions(n) for one in (here, there)] for n in lengths]
    dumps = [(Dump("", "rope_freqs", frequencies=faults.theta(own)), right) for own, right in both]
    found = next((one for one in itertools.starmap(check, dumps) if not one.agrees), None)
    if found is None:
        return None
    if here.kind == "default":
        return Diagnosis("missing-scaling", {"asked": spelled(there)})
    if here.kind != "explicit":
        return Diagnosis("other-scaling", {"seen": _words(here), "asked": _words(there)})
    told = found.diagnosis
    if told is not None and told.certainty != "resembles" and told.code != "wrong-base":  # it is right
        return told
    even, theta = faults.theta(replace(asked, scaling=DEFAULT)), faults.theta(asked)
    inverted = np.all(np.abs(np.array(here.frequencies) * theta - even**2) <= _SAME * even**2)
    seen_as = "rope_freqs.weight(inverted)" if inverted else "rope_freqs.weight"
    return Diagnosis("other-scaling", {"seen": seen_as, "asked": spelled(there)})


def _words(scaling: Scaling) -> str:
    """Return a scaling as one word; for longrope its length and the ends of its lists."""
    listed = {"short": scaling.short, "long": scaling.long}
    ends = [f"{name}={value[0]:g}..{value[-1]:g}" for name, value in listed.items() if value]
    return f"{scaling.kind}(original={scaling.original:g} {' '.join(ends)})" if ends else spelled(scaling)


def _same_float32(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=_SAME)
