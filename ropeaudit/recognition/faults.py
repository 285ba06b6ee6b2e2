"""Known ways to be wrong: another setting, other positions, other operands, and what they make of a pair.

Letters: b batch elements, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, Format, parse
from ropeaudit.recognition import known_recipes
from ropeaudit.recognition.diagnosis import Diagnosis, Value
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.recognition.variants import BASES, called, other_factors, over
from ropeaudit.rope.scaled import attention_factor, rotator_pairs
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Positions

Complex: TypeAlias = NDArray[np.complex128]
Seen: TypeAlias = Callable[[Positions, int], Positions]  # positions (b, s), head -> those that it takes
Turn: TypeAlias = Callable[[Complex, Complex], Complex]  # pairs (s, p), their rotations (s, p) -> what comes

BY_PAIR = ("longrope", "explicit", "proportional")  # scalings with a number for each pair
NARROW = (FP32, parse("tf32"), parse("fp16"), parse("bf16"))  # formats that vectors are rounded to
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0)
SETTING, POSITIONS, OPERANDS, ROUNDINGS = "setting", "positions", "operands", "roundings"


@dataclass(frozen=True, slots=True)
class Fault:
    """A known way to be wrong. What it leaves as it should be is None.

    change: the setting that stands in the place of another. seen: the positions that it takes. turn: what it
    makes of pairs and of the factors that rotate them. recipe: what rounds on the way. crossed: whether q is
    taken for k. rounded: the format to which vectors are rounded before. coarse: the format whose roundings
    they may have. times: by what vectors are multiplied, dims that are not rotated too, it may
    be. fitted: it was solved for, and is no usual value. mixes: it turns pairs by the angles of others.
    """

    diagnosis: Diagnosis
    change: Callable[[RopeSetting], RopeSetting] | None = None
    seen: Seen | None = None
    turn: Turn | None = None
    recipe: RecipeGroup | None = None
    crossed: bool = False
    rounded: Format | None = None
    coarse: Format | None = None
    times: float = 1.0
    fitted: bool = False
    mixes: bool = False

    @property
    def group(self) -> str:
        """What it changes first: the setting, positions, operands, or roundings."""
        if self.change or self.seen:
            return SETTING if self.change else POSITIONS
        return OPERANDS if self.turn or self.crossed else ROUNDINGS

    def setting(self, asked: RopeSetting) -> RopeSetting:
        """Return the setting that it rotates by."""
        return self.change(asked) if self.change else asked

    def positions(self, rows: Positions, head: int = 0) -> Positions:
        """Return the positions that it takes for those given. Shapes: (b, s) -> (b, s)."""
        return self.seen(rows, head) if self.seen else rows

    def turned(self, pairs: Complex, rotations: Complex) -> Complex:
        """Return what it makes of pairs. Shapes: (s, p) twice -> (s, p)."""
        return self.turn(pairs, rotations) if self.turn else pairs * rotations

    def beside(self, other: Fault) -> Fault:
        """Return both together; this one changes the setting, or sees positions, first."""

        def change(asked: RopeSetting) -> RopeSetting:
            return other.setting(self.setting(asked))

        def seen(rows: Positions, head: int) -> Positions:
            return other.positions(self.positions(rows, head), head)

        either: dict[str, Any] = {
            name: getattr(self, name) or getattr(other, name)
            for name in ("turn", "recipe", "crossed", "rounded", "coarse", "fitted", "mixes")
        }
        return Fault(
            diagnosis=replace(self.diagnosis, also=(*self.diagnosis.also, other.diagnosis)),
            change=change if self.change or other.change else None,
            seen=seen if self.seen or other.seen else None,
            times=self.times * other.times,
            **either,
        )


def faults(setting: RopeSetting, first: int | None = None, position: int | None = None) -> Iterator[Fault]:
    """Yield the known faults.

    first: the first of the given positions from which on it is wrong, counted. position: which one that is.
    """
    yield from of_settings(setting)
    yield from of_positions(first, position, attention_factor(setting.scaling))
    yield from of_operands(setting)


def of_settings(asked: RopeSetting) -> Iterator[Fault]:
    """Yield the settings that code often has instead of the one asked for."""
    layout: Layout = "interleaved" if asked.layout == "half" else "half"
    yield Fault(Diagnosis("wrong-layout", {"layout": layout}), functools.partial(replace, layout=layout))
    factor = attention_factor(asked.scaling)
    if asked.scaling.kind not in ("default", "explicit"):
        told = Diagnosis("missing-scaling", {"asked": called(asked.scaling)})
        yield from _with_and_without(
            factor, Fault(told, functools.partial(replace, scaling=DEFAULT)), DEFAULT
        )
    d = asked.head_dim
    for dims in dict.fromkeys((asked.head_dim, asked.rotary_dim - 2, 128, 64)):
        if dims not in (asked.rotary_dim, 0):
            told = Diagnosis("exponent-denominator", {"dims": dims, "asked": asked.rotary_dim})
            yield Fault(told, functools.partial(_over, dims))
            if asked.scaling.kind == "yarn":  # whose ramp may be that of the dims that are asked for
                yield Fault(told, functools.partial(instead, over(asked, dims)))
    for base in BASES:
        if base != asked.base:
            told = Diagnosis("wrong-base", {"base": base, "asked": asked.base})
            yield Fault(told, functools.partial(replace, base=base))
    for dims in dict.fromkeys((d, d // 2, d // 4, 3 * d // 4)):
        possible = dims % 2 == 0 and dims > (2 if asked.scaling.kind == "dynamic" else 0)
        if possible and dims != asked.rotary_dim and asked.scaling.kind not in BY_PAIR:
            values = {"seen": dims, "asked": asked.rotary_dim, "head_dim": d}
            yield Fault(Diagnosis("partial-rotation", values), functools.partial(replace, rotary_dim=dims))
    yield from _of_first_dims(asked)
    for scaling in dict.fromkeys(_other_scalings(asked.scaling)):
        if scaling != asked.scaling:
            told = Diagnosis("other-scaling", {"seen": called(scaling), "asked": called(asked.scaling)})
            other = Fault(told, functools.partial(replace, scaling=scaling))
            yield from _with_and_without(factor, other, scaling)
    for seen in other_factors(asked.scaling):
        told = Diagnosis("attention-factor", {"seen": seen, "asked": factor})
        yield Fault(told, turn=functools.partial(lengthened, seen / factor))


def _of_first_dims(asked: RopeSetting) -> Iterator[Fault]:
    """Yield p-RoPE with its pairs in the first dims, and its frequencies or theirs."""
    pairs = rotator_pairs(asked)
    if asked.scaling.kind != "proportional" or asked.layout != "half" or not 0 < pairs < asked.pairs:
        return
    dims, stretch = 2 * pairs, asked.scaling.stretch
    told = Diagnosis("pairs-in-block", {"dims": dims, "half": pairs, "asked": asked.pairs})
    over_them = Diagnosis("exponent-denominator", {"dims": dims, "asked": asked.rotary_dim})
    kept = tuple(asked.base ** (-2 * i / asked.rotary_dim) / stretch for i in range(pairs))
    own = Scaling("linear", factor=stretch) if asked.scaling.factor else DEFAULT
    change = functools.partial(replace, rotary_dim=dims)
    yield Fault(told, functools.partial(change, scaling=Scaling("explicit", frequencies=kept)))
    yield Fault(replace(told, also=(over_them,)), functools.partial(change, scaling=own))


def _with_and_without(factor: float, fault: Fault, scaling: Scaling) -> Iterator[Fault]:
    """Yield a fault; if its attention factor differs, also with the asked one."""
    yield fault
    if (own := attention_factor(scaling)) != factor:
        yield replace(fault, turn=functools.partial(lengthened, factor / own))


def _other_scalings(asked: Scaling) -> Iterator[Scaling]:
    """Yield scalings with other numbers; if none is asked for, some published ones."""
    if asked == DEFAULT:
        yield from (Scaling("linear", factor=factor) for factor in (2.0, 4.0, 8.0))
        for factor in (8.0, 32.0):
            yield Scaling("llama3", factor=factor, low=1.0, high=4.0, original=8192.0)
        yield Scaling("yarn", factor=4.0, original=32768.0)
    if asked.factor is not None and asked.kind in ("linear", "llama3", "yarn"):
        yield from (replace(asked, factor=factor) for factor in _FACTORS)
    if asked.original is not None and asked.kind in ("llama3", "yarn"):
        lengths = [asked.maximum, *(2048.0 * 2**power for power in range(8))]
        lengths += [asked.original * 2.0**power for power in range(-4, 4)] + [asked.original * asked.stretch]
        yield from (replace(asked, original=length) for length in lengths if length)
    if asked.kind == "yarn":
        yield replace(asked, truncate=asked.truncate is False)


def instead(other: RopeSetting, one: RopeSetting) -> RopeSetting:
    """Return the frequencies of another setting in the layout and the dims of one."""
    return replace(other, layout=one.layout, rotary_dim=one.rotary_dim)


def _over(dims: int, one: RopeSetting) -> RopeSetting:
    return replace(one, base=one.base ** (one.rotary_dim / dims))


def lengthened(factor: float, pairs: Complex, rotations: Complex) -> Complex:
    """Return rotated pairs, multiplied by a factor."""
    return factor * pairs * rotations


def of_positions(
    first: int | None = None, position: int | None = None, factor: float = 1.0
) -> Iterator[Fault]:
    """Yield other positions. first, position: as in `faults`. factor: on cos and sin."""

    def fault(code: str, seen: Callable[[Positions], Positions], **values: float) -> Fault:
        return Fault(Diagnosis(code, values), seen=lambda rows, head: seen(rows))

    told = Diagnosis("no-rotation")  # without the attention factor too
    yield Fault(told, seen=lambda rows, head: np.zeros_like(rows), turn=lambda z, turns: z)
    yield off_by(1)
    yield off_by(-1)
    yield fault("wrong-direction", lambda at: -at)
    twice = fault("rotated-twice", lambda at: 2 * at)
    yield twice
    if factor != 1:
        yield replace(twice, turn=functools.partial(lengthened, factor))
    yield fault("positions-reversed", lambda at: at[..., ::-1])
    yield fault("positions-from-0", lambda at: at - at[..., :1])
    yield fault("first-position-only", lambda at: np.broadcast_to(at[..., :1], at.shape))
    yield fault("positions-counted", lambda at: at[..., :1] + np.arange(at.shape[-1]))
    yield fault(
        "positions-of-another-row", lambda at: np.broadcast_to(at[:1], at.shape) if at.ndim > 1 else at, row=0
    )
    yield Fault(Diagnosis("rotated-by-head"), seen=lambda rows, head: np.full_like(rows, head))
    for bits in (8, 16):
        yield fault("integer-width", functools.partial(_signed, 2**bits), bits=bits)
    for power in range(4, 21):
        size = 2**power
        yield wrap(size)
        yield table_ends(size - 1)
        yield wrap(size, restarts=True)
    if position is not None and position > 1:
        yield table_ends(position - 1)
    if first is not None and first > 1:
        yield wrap(first, restarts=True)
        yield fault("positions-stop", lambda at: np.minimum(at, at[..., :1] + first - 1), count=first)


def off_by(step: int) -> Fault:
    """Return positions that are all off by a step."""
    return Fault(Diagnosis("positions-off", {"by": step}), seen=lambda rows, head: rows + step)


def table_ends(last: int) -> Fault:
    """Return that positions from the last of a table on are taken for that."""
    return Fault(Diagnosis("table-ends", {"last": last}), seen=lambda rows, head: np.minimum(rows, last))


def wrap(size: int, *, restarts: bool = False) -> Fault:
    """Return positions modulo a size, or those of a call that restart every so many."""

    def seen(rows: Positions, head: int) -> Positions:
        start = rows[..., :1] if restarts else 0
        return np.asarray(start + (rows - start) % size)

    return Fault(Diagnosis("restart" if restarts else "wrap", {"size": size}), seen=seen)


def _signed(size: int, at: Positions) -> Positions:
    return (at + size // 2) % size - size // 2


def of_roundings(dtype: Format) -> Iterator[Fault]:
    """Yield inputs that are rounded first, and recipes with a narrow stage."""
    for fmt in NARROW:
        if fmt.precision < dtype.precision:
            yield Fault(Diagnosis("narrow-input", {"formats": str(fmt)}), rounded=fmt)
    for group in known_recipes.variants(dtype):
        told = group.diagnosis()
        if told.code != "known-recipe":
            yield Fault(told, recipe=group)


def coarse(dtype: Format) -> Iterator[Fault]:
    """Yield results with the roundings of a narrower format, wherever those are made."""
    for fmt in NARROW:
        if fmt.unit_roundoff > dtype.unit_roundoff:
            yield Fault(Diagnosis("narrow-output", {"format": str(fmt)}), coarse=fmt)


def of_operands(setting: RopeSetting) -> Iterator[Fault]:
    """Yield what is made of pairs and of cos and sin otherwise than a rotation."""
    yield Fault(Diagnosis("q-k-swapped"), crossed=True)
    yield Fault(Diagnosis("cos-sin-swapped"), turn=lambda z, turns: z * 1j * np.conj(turns))
    yield Fault(Diagnosis("halves-swapped"), turn=lambda z, turns: 1j * np.conj(z * turns))
    other = "interleaved" if setting.layout == "half" else "half"
    values: dict[str, Value] = {"table": other, "rotation": setting.layout}
    yield Fault(Diagnosis("mixed-layout", values), turn=functools.partial(_mixed, setting.layout), mixes=True)


def _mixed(layout: Layout, pairs: Complex, turns: Complex) -> Complex:
    """Rotate with a table whose columns are in the order of the other layout."""
    p = pairs.shape[-1]
    i = np.arange(p)
    first, second = (i // 2, (i + p) // 2) if layout == "half" else (2 * i % p, (2 * i + 1) % p)
    a, b, one, two = pairs.real, pairs.imag, turns[..., first], turns[..., second]
    return np.asarray(a * one.real - b * one.imag + 1j * (b * two.real + a * two.imag))
