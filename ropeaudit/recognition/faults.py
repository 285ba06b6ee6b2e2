"""Known faults: another setting, other positions, other operands, roundings.

The faults that are tried for rotated vectors, tables of cos and sin, lists of frequencies and divisors are
enumerated here and nowhere else. `solving` finds numbers that no list holds.
Letters: b batch elements, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit import data
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP64, Format, parse
from ropeaudit.recognition import known_recipes
from ropeaudit.recognition.diagnosis import STAGE_CODES, Diagnosis, Value, kinds
from ropeaudit.recognition.known_recipes import RecipeGroup
from ropeaudit.rope import scaled
from ropeaudit.rope.scaled import attention_factor, effective_base, rotator_pairs
from ropeaudit.rope.scaling import DEFAULT, Scaling
from ropeaudit.rope.scaling import parse as parse_scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions

Complex: TypeAlias = NDArray[np.complex128]
PositionMap: TypeAlias = Callable[
    [Positions, int], Positions
]  # positions (b, s), head -> those that it takes
Turn: TypeAlias = Callable[[Complex, Complex], Complex]  # pairs (s, p), their rotations (s, p) -> what comes

ROWS = data.table("candidates.toml")
_SETTINGS, _FORMATS = ROWS["settings"], ROWS["formats"]
_POSITIONS, _OPERANDS = ROWS["positions"], ROWS["operands"]
BASES: Sequence[float] = _SETTINGS["bases"]
NARROW, CASTS = (tuple(map(parse, _FORMATS[name])) for name in ("vectors", "stored"))
_PUBLISHED = tuple(map(parse_scaling, _SETTINGS["published"]))
BY_PAIR = ("longrope", "explicit", "proportional")  # scalings with a number for each pair
_OTHER_LAYOUT = {"half": "interleaved", "interleaved": "half"}
_SAME = 1e-5  # bases nearer than this cannot be distinguished by float32 frequencies
STEPS = ("position", "frequency", "angle")
SETTING, POSITIONS, OPERANDS, ROUNDINGS = "setting", "positions", "operands", "roundings"


@dataclass(frozen=True, slots=True)
class Power:
    """The lengths of xPos: ζ ** ((position - centre) / base), where ζ_i = (x_i + γ) / (1 + γ), x_i = 2i/d.

    base: positions to a power of 1; below 0 vectors are divided. Source: arXiv:2212.10554, γ of torchscale.
    """

    base: float
    centre: int = 0

    def logs(self, setting: RopeSetting) -> Array:
        """Return the logarithms of ζ. Shapes: -> (p,)."""
        x, gamma = 2.0 * np.arange(setting.pairs) / setting.rotary_dim, _OPERANDS["xpos"]["gamma"]
        return np.asarray(np.log((x + gamma) / (1 + gamma)))

    def lengths(self, setting: RopeSetting, at: Positions) -> Array:
        """Return the lengths of pairs. Shapes: (s,) -> (s, p)."""
        return np.asarray(np.exp((at[:, None] - self.centre) / self.base * self.logs(setting)))


@dataclass(frozen=True, slots=True)
class Fault:
    """A known way to be wrong. A field is None where the fault changes nothing.

    change: maps the expected setting to the wrong one. move: maps positions to the wrong ones. turn: computes
    rotated pairs from pairs and their factors. longer: the factor on rotated pairs; times: that on dims which
    are not rotated. recipe: the arithmetic that rounds. crossed: whether q and k are swapped. rounded: the
    format to which vectors are rounded first. fitted: whether its number was fitted to the vectors. mixes:
    whether pairs turn by the angles of other pairs. grows: the power of the position by which pairs are
    longer. stored: the format to which a table was cast at the end. cost: how far-fetched it is.
    """

    diagnosis: Diagnosis
    change: Callable[[RopeSetting], RopeSetting] | None = None
    move: PositionMap | None = None
    turn: Turn | None = None
    longer: float = 1.0
    times: float = 1.0
    recipe: RecipeGroup | None = None
    crossed: bool = False
    rounded: Format | None = None
    fitted: bool = False
    mixes: bool = False
    grows: Power | None = None
    stored: Format | None = None
    cost: float = 1.0

    @property
    def bends(self) -> bool:
        """Whether it does more to pairs than rotate them."""
        return self.turn is not None or self.longer != 1 or self.grows is not None

    @property
    def group(self) -> str:
        """What it changes first: setting, positions, operands or roundings."""
        if self.change or self.move:
            return SETTING if self.change else POSITIONS
        return OPERANDS if self.bends or self.crossed else ROUNDINGS

    def setting(self, asked: RopeSetting) -> RopeSetting:
        """Return the setting by which the faulty code rotates."""
        return self.change(asked) if self.change else asked

    def positions(self, rows: Positions, head: int = 0) -> Positions:
        """Return the positions by which the faulty code rotates. Shapes: (b, s) -> (b, s)."""
        return self.move(rows, head) if self.move else rows

    def turned(self, pairs: Complex, rotations: Complex) -> Complex:
        """Return pairs as the faulty code rotates them. Shapes: (s, p) twice -> (s, p)."""
        return self.longer * (self.turn(pairs, rotations) if self.turn else pairs * rotations)

    def combined(self, other: Fault) -> Fault:
        """Return both faults as one; this one changes the setting and positions first."""

        def change(asked: RopeSetting) -> RopeSetting:
            return other.setting(self.setting(asked))

        def move(rows: Positions, head: int) -> Positions:
            return other.positions(self.positions(rows, head), head)

        either: dict[str, Any] = {name: getattr(self, name) or getattr(other, name) for name in _OF_EITHER}
        return Fault(
            join(self.diagnosis, other.diagnosis),
            change=change if self.change or other.change else None,
            move=move if self.move or other.move else None,
            longer=self.longer * other.longer,
            times=self.times * other.times,
            cost=self.cost + other.cost,
            **either,
        )


_OF_EITHER = ("turn", "recipe", "crossed", "rounded", "fitted", "mixes", "grows", "stored")
RIGHT = Fault(Diagnosis("unexplained"), cost=0.0)  # what changes nothing


def join(*some: Diagnosis) -> Diagnosis:
    """Join diagnoses in one, all roundings as the last part; drop those without a cause."""
    parts = [replace(part, also=()) for one in some for part in one.parts() if part.explains]
    rounded = [part for part in parts if part.arithmetic]
    if len(rounded) > 1:
        values = {name: value for one in reversed(rounded) for name, value in one.values.items()}
        rounded = [narrow(values, values["form"])]
    first, *rest = [part for part in parts if not part.arithmetic] + rounded or some[:1]
    return replace(first, also=tuple(rest))


def narrow(stages: Mapping[str, Value | Format], form: Value = "inverse_power") -> Diagnosis:
    """Return the diagnosis of stages rounded to formats, by the first of them."""
    named: dict[str, Value] = {stage: str(stages[stage]) for stage in STAGE_CODES if stage in stages}
    return Diagnosis(STAGE_CODES[next(iter(named))], {**named, "form": form, "recipes": ()})


# ---------------------------------------------------------------------------- other settings


def of_settings(asked: RopeSetting, shown: Array | None = None) -> Iterator[Fault]:
    """Yield the wrong settings that code often has.

    shown: measured frequencies (p,), to which further bases and scalings are fitted, yielded as `fitted`.
    """
    layout = _OTHER_LAYOUT[asked.layout]
    yield _changed(Diagnosis("wrong-layout", {"layout": layout}), layout=layout)
    if asked.scaling != DEFAULT:
        yield from _of_scaling(asked, DEFAULT, cost=0.95)
    yield from _exponents(asked)
    yield from _bases(asked, shown)
    yield from _other_dims(asked)
    yield from _ramps(asked)
    if asked.scaling.kind == "longrope":
        for length in (0, int(asked.scaling.original or 0) + 1):
            other = replace(asked, length=length)
            yield frequencies_of(other, other_scaling(asked, other), 0.94)
    usual = dict.fromkeys(_other_scalings(asked.scaling))
    fitted = dict.fromkeys(_fitted_scalings(asked, shown) if shown is not None else ())
    for number, scaling in enumerate(usual | fitted):
        if scaling != asked.scaling:
            yield from _of_scaling(asked, scaling, 1.0 + 1e-4 * number, fitted=scaling not in usual)
    right = theta(asked)
    with np.errstate(divide="ignore"):
        otherwise = {"inverse-frequencies": 1 / right, "turns-per-token": right / (2 * math.pi)}
    for code, listed in (otherwise | {"pair-order": right[::-1]}).items():
        if listed.max() <= 1e18:  # numbers that a model may have
            yield frequencies_of(of_frequencies(asked, listed), Diagnosis(code))
    factor = attention_factor(asked.scaling)
    for seen in other_factors(asked.scaling):
        told = Diagnosis("attention-factor", {"seen": seen, "asked": factor})
        yield Fault(told, longer=seen / factor)
    if shown is not None:
        yield from _faster_positions(asked, shown)


def of_rounded_pi(asked: RopeSetting) -> Iterator[Fault]:
    """Yield angles that are reduced by a rounded π, which acts like other frequencies."""
    for pi in _SETTINGS["pis"]:
        reduced = of_frequencies(asked, theta(asked) * (math.pi / pi))
        yield replace(frequencies_of(reduced, Diagnosis("rounded-pi", {"pi": pi})), fitted=False)


def frequency_lists(asked: RopeSetting, shown: Array) -> Iterator[Fault]:
    """Yield wrong settings with the same number of pairs, each once. Shapes: shown (p,)."""
    seen = {(theta(asked).astype(np.float32).tobytes(), code) for code in kinds()}
    for fault in of_settings(asked, shown):
        if not fault.change or fault.bends or fault.setting(asked).pairs != asked.pairs:
            continue
        listed = theta(fault.setting(asked))
        key = listed.astype(np.float32).tobytes(), fault.diagnosis.code
        if key not in seen and np.isfinite(listed).all():
            seen.add(key)
            yield fault


def _changed(told: Diagnosis, cost: float = 1.0, **values: Any) -> Fault:
    """Return a fault by which fields of the setting have other values."""
    return Fault(told, functools.partial(replace, **values), cost=cost)


def frequencies_of(other: RopeSetting, told: Diagnosis, cost: float = 1.0) -> Fault:
    """Return the fault of rotating by another setting's frequencies."""
    return Fault(told, functools.partial(with_frequencies_of, other), fitted=True, cost=cost)


def _of_scaling(
    asked: RopeSetting, scaling: Scaling, cost: float, *, fitted: bool = False
) -> Iterator[Fault]:
    """Yield another scaling; if its attention factor differs, also with the expected factor."""
    told = other_scaling(asked, replace(asked, scaling=scaling))
    fault = replace(_changed(told, cost, scaling=scaling), fitted=fitted)
    yield fault
    factor, own = attention_factor(asked.scaling), attention_factor(scaling)
    if own != factor:
        yield replace(fault, longer=factor / own)


def _exponents(asked: RopeSetting) -> Iterator[Fault]:
    """Yield exponents 2i/n with another n than the number of rotated dims."""
    for dims in dict.fromkeys((asked.head_dim, asked.rotary_dim - 2, *_SETTINGS["dims"])):
        if dims not in (asked.rotary_dim, 0):
            told = Diagnosis("exponent-denominator", {"dims": dims, "asked": asked.rotary_dim})
            yield Fault(told, functools.partial(_with_dims, dims), cost=0.98)
            if asked.scaling.kind == "yarn":  # whose ramp may be that of the dims that are asked for
                kept = of_frequencies(asked, _plain(asked, dims) * (theta(asked) / _plain(asked)))
                yield replace(frequencies_of(kept, told, 0.98), fitted=False)


def _with_dims(dims: int, one: RopeSetting) -> RopeSetting:
    return replace(one, base=one.base ** (one.rotary_dim / dims))


def _bases(asked: RopeSetting, shown: Array | None) -> Iterator[Fault]:
    """Yield well-known bases and those fitted to frequencies, rounded to 1 to 7 digits."""
    if asked.scaling.kind == "explicit":
        return
    tried = dict.fromkeys(BASES, 1.0)
    for digits, base in itertools.product(range(1, 8), _fitted_bases(asked, shown)):
        rounded = float(f"{base:.{digits - 1}e}")
        if all(abs(rounded / other - 1) > _SAME for other in (asked.base, *tried)):
            tried[rounded] = 1.0 + 0.02 * digits
    for base, cost in tried.items():
        if base != asked.base and 1.0 < base < 1e18:
            yield replace(of_base(asked, base, cost), fitted=base not in BASES)


def of_base(asked: RopeSetting, base: float, cost: float = 1.0) -> Fault:
    """Return the fault of another base."""
    return _changed(Diagnosis("wrong-base", {"base": base, "asked": asked.base}), cost, base=base)


def _fitted_bases(asked: RopeSetting, shown: Array | None) -> list[float]:
    """Return the bases fitted to measured frequencies, given the expected scaling."""
    current, fitted, stretch = asked, list[float](), effective_base(asked) / asked.base
    x = 2.0 * np.arange(1, asked.pairs) / asked.rotary_dim
    for _ in range(4 if shown is not None else 0):  # the ramps of a scaling move with the base
        bent = theta(current)[1:] / _plain(current)[1:] * stretch**-x
        fitted = fit_bases(shown[1:] / bent, x)  # type: ignore[index]
        if not fitted:
            break
        current = replace(asked, base=fitted[0])
    return fitted


def fit_bases(theta: Array, exponents: Array) -> list[float]:
    """Fit bases to frequencies: to all, the fast third, the slow third, the slowest.

    Frequencies that determine no base are left out. Shapes: theta, exponents (p,).
    """
    shows = np.flatnonzero((exponents > 0) & (theta > 0) & (theta < 1))
    third = -(-shows.size // 3)
    parts = (shows, shows[:third], shows[-third:], shows[-1:]) if shows.size else ()
    return [math.exp(solved_base(theta[part], exponents[part], theta[part])[0]) for part in parts]


def solved_base(theta: Array, exponents: Array, uncertain: Array) -> tuple[float, float]:
    """Return the logarithm of the base that fits most frequencies, and its uncertainty.

    It is the median of each pair's value, weighted by its precision, so that a few wrong pairs matter little.
    theta: from 0 to 1. uncertain: the error of each, radians per token. Shapes: (p,), p > 0.
    """
    logs, weights = -np.log(theta) / exponents, exponents * theta / uncertain
    order = np.argsort(logs)
    share = np.cumsum(weights[order])
    middle = logs[order][np.searchsorted(share, share[-1] / 2)]
    return float(middle), float(1 / np.sqrt((weights**2).sum()))


def _other_dims(asked: RopeSetting) -> Iterator[Fault]:
    """Yield other numbers of rotated dims; for p-RoPE, its pairs in the first dims."""
    d, scaling, pairs = asked.head_dim, asked.scaling, rotator_pairs(asked)
    parts = () if scaling.kind in BY_PAIR else _SETTINGS["parts"]
    for dims in dict.fromkeys(int(d * part) for part in parts):
        if dims % 2 == 0 and dims > 2 * (scaling.kind == "dynamic") and dims != asked.rotary_dim:
            values = {"seen": dims, "asked": asked.rotary_dim, "head_dim": d}
            yield _changed(Diagnosis("partial-rotation", values), rotary_dim=dims)
    if scaling.kind == "proportional" and asked.layout == "half" and 0 < pairs < asked.pairs:
        told = Diagnosis("pairs-in-block", {"dims": 2 * pairs, "half": pairs, "asked": asked.pairs})
        over = Diagnosis("exponent-denominator", {"dims": 2 * pairs, "asked": asked.rotary_dim})
        kept = tuple(asked.base ** (-2 * i / asked.rotary_dim) / scaling.stretch for i in range(pairs))
        own = Scaling("linear", factor=scaling.stretch) if scaling.factor else DEFAULT
        listed = Scaling("explicit", frequencies=kept)
        yield _changed(told, rotary_dim=2 * pairs, scaling=listed)
        yield _changed(replace(told, also=(over,)), rotary_dim=2 * pairs, scaling=own)


def _other_scalings(asked: Scaling) -> Iterator[Scaling]:
    """Yield the expected scaling with other parameters; published ones if there is none."""
    if asked == DEFAULT:
        yield from _PUBLISHED
    if asked.factor is not None and asked.kind in ("linear", "llama3", "yarn"):
        yield from (replace(asked, factor=factor) for factor in _SETTINGS["factors"])
    if asked.original is not None and asked.kind in ("llama3", "yarn"):
        times = (*(2.0**power for power in range(-4, 4)), asked.stretch)
        lengths = (asked.maximum, *_SETTINGS["lengths"], *(asked.original * one for one in times))
        yield from (
            replace(asked, original=length)
            for length in lengths
            if length and length >= 2 and length == int(length)
        )
    if asked.kind == "yarn":
        yield replace(asked, truncate=asked.truncate is False)


def _fitted_scalings(asked: RopeSetting, shown: Array) -> Iterator[Scaling]:
    """Yield scalings with factors fitted to measured frequencies. Shapes: shown (p,)."""
    scaling, plain = asked.scaling, _plain(replace(asked, scaling=DEFAULT))
    with np.errstate(all="ignore"):
        ratios = [float(np.median(plain / shown)), float(plain[-1] / shown[-1])]
    factors = [scaling.stretch, *(float(f"{r:.{k}g}") for r in ratios for k in (1, 2, 3, 4))]
    known = [scaling.original, scaling.maximum, *_SETTINGS["lengths"][:-1]]
    if 0 < (part := int(np.count_nonzero(shown)) / asked.pairs) < 1:
        yield Scaling("proportional", fraction=part)
    for factor in dict.fromkeys(factor for factor in factors if 1 < factor < 1e6):
        yield Scaling("linear", factor=factor)
        for original in dict.fromkeys(length for length in known if length):
            if scaling.kind in ("yarn", "llama3"):
                yield replace(scaling, factor=factor, original=original)
            yield Scaling("yarn", factor=factor, original=original)
            yield Scaling("yarn", factor=factor, original=original, truncate=False)
            yield Scaling("llama3", factor=factor, low=1.0, high=4.0, original=original)
    yield from (Scaling("linear", factor=float(f"{ratio:.6g}")) for ratio in ratios if 1 < ratio < 1e6)


def _faster_positions(asked: RopeSetting, shown: Array) -> Iterator[Fault]:
    """Yield positions multiplied by a factor above 1, where no linear scaling says the same.

    Below 1.001 other faults of angles are meant, such as a rounded π.
    """
    if asked.scaling.kind == "linear":
        return
    right = theta(asked)
    with np.errstate(all="ignore"):
        times = float(np.median((shown / right)[right > 0]))
    for factor in dict.fromkeys(float(f"{times:.{digits}g}") for digits in (2, 3, 4, 6)):
        if 1.001 <= factor < 1e6:
            told = Diagnosis("positions-scaled", {"factor": factor})
            yield frequencies_of(of_frequencies(asked, factor * right), told, 1.2)


def _ramps(asked: RopeSetting) -> Iterator[Fault]:
    """Yield YaRN's ramps inverted, ended at the last pair, or with other ends."""
    scaling = asked.scaling
    if scaling.kind != "yarn":
        return
    plain, right = _plain(asked), scaling.truncate is not False
    for truncate in (right, not right):
        other = replace(asked, scaling=replace(scaling, truncate=truncate))
        ramps = {"inverted": plain + plain / scaling.stretch - theta(other)}
        (low, high), last = scaled.yarn_range(other), asked.pairs - 1
        if low < last < high:  # its end is held to the number of pairs, not of dims
            ramp = np.clip((np.arange(asked.pairs) - low) / (last - low), 0.0, 1.0)
            ramps["short"] = plain / scaling.stretch * ramp + plain * (1 - ramp)
        for name, listed in ramps.items():
            values = {"seen": str(other.scaling), "asked": spelled(scaling), "seen_ramp": name}
            told = Diagnosis("other-scaling", values)
            cost = 1.0 if truncate is right else 1.5
            yield frequencies_of(of_frequencies(asked, listed), told, cost)
    fast, slow = scaling.beta_fast or 32.0, scaling.beta_slow or 1.0
    for beta_fast, beta_slow in ((32.0, 1.0), (slow, fast)):
        other = replace(asked, scaling=replace(scaling, beta_fast=beta_fast, beta_slow=beta_slow))
        if other != asked:
            yield frequencies_of(other, other_scaling(asked, other))


@functools.lru_cache(maxsize=1024)
def theta(setting: RopeSetting) -> Array:
    """Return the float64 frequencies, exact enough for a hypothesis. Shapes: -> (p,)."""
    return np.asarray(scaled.scaled(_plain(setting), setting, FP64), dtype=np.float64)


def _plain(setting: RopeSetting, dims: int | None = None) -> Array:
    """Return unscaled frequencies. dims: in exponents, by default the rotary dims."""
    x = 2.0 * np.arange(setting.pairs) / (dims or setting.rotary_dim)
    return np.asarray(effective_base(setting) ** -x)


def of_frequencies(setting: RopeSetting, theta: Array) -> RopeSetting:
    """Return a setting with listed frequencies, its attention factor kept."""
    factor = attention_factor(setting.scaling)
    listed = tuple(theta.tolist())
    return replace(setting, scaling=Scaling("explicit", frequencies=listed, attention_factor=factor))


def with_frequencies_of(other: RopeSetting, one: RopeSetting) -> RopeSetting:
    """Return another setting with the layout and rotary_dim of `one`."""
    return replace(other, layout=one.layout, rotary_dim=one.rotary_dim)


def other_scaling(asked: RopeSetting, other: RopeSetting) -> Diagnosis:
    """Return the diagnosis of a missing scaling, another one, or one for another length."""
    values: dict[str, Value] = {"asked": spelled(asked.scaling)}
    if other.scaling == DEFAULT:
        return Diagnosis("missing-scaling", values)
    values = {"seen": spelled(other.scaling), **values}
    if other.scaling == asked.scaling:
        for name, one in (("seen", other), ("asked", asked)):  # which of longrope's lists each has
            values[f"{name}_divisors"] = "long" if one.length > (one.scaling.original or 0) else "short"
    return Diagnosis("other-scaling", values)


def spelled(scaling: Scaling) -> str:
    """Return a scaling as `--scaling` takes it; only the kind where it has lists."""
    listed = any(isinstance(value, tuple) for value in scaling.parameters().values())
    return scaling.kind if listed else str(scaling)


def other_factors(asked: Scaling) -> tuple[float, ...]:
    """Return attention factors that code often has instead of a scaling's.

    1, its square, and, where the setting gives its own factor or YaRN's weights, that without them.
    """
    factor = attention_factor(asked)
    plain = replace(asked, attention_factor=None, mscale=None, mscale_all_dim=None)
    return tuple(one for one in dict.fromkeys((1.0, factor**2, attention_factor(plain))) if one != factor)


# ---------------------------------------------------------------------------- other positions

MAPS: Mapping[str, Callable[[Positions, int, int], Positions]] = {  # of positions (b, s), a number, the head
    "plus": lambda at, by, head: at + by,
    "times": lambda at, by, head: at * by,
    "modulo": lambda at, size, head: at % size,
    "at most": lambda at, last, head: np.minimum(at, last),
    "signed": lambda at, bits, head: (at + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1),
    "reversed": lambda at, _, head: at[..., ::-1],
    "the first": lambda at, _, head: np.broadcast_to(at[..., :1], at.shape),
    "from the first": lambda at, _, head: at - at[..., :1],
    "counted": lambda at, _, head: at[..., :1] + np.arange(at.shape[-1]),
    "restart": lambda at, size, head: at[..., :1] + (at - at[..., :1]) % size,
    "stop": lambda at, count, head: np.minimum(at, at[..., :1] + count - 1),
    "row": lambda at, row, head: np.broadcast_to(at[row], at.shape),
    "head": lambda at, _, head: np.full_like(at, head),
}


def position_fault(code: str, number: int | None = None) -> Fault:
    """Return the fault of wrong positions, by the map in a row of candidates.toml."""
    row = _POSITIONS[code]
    by = row.get("number", 0) if number is None else number
    told = Diagnosis(code, {row["value"]: by} if "value" in row else {})
    return Fault(told, move=lambda rows, head: MAPS[row["map"]](rows, by, head))


def of_positions(
    first: int | None = None, position: int | None = None, factor: float = 1.0
) -> Iterator[Fault]:
    """Yield faults of positions. factor: on cos and sin.

    first: the number of the first wrong token in the call; position: its position.
    """
    told = Diagnosis("no-rotation")  # without the attention factor too
    yield Fault(told, move=lambda rows, head: np.zeros_like(rows), turn=lambda z, turns: z)
    for code, row in _POSITIONS.items():
        for number in row.get("tried", [] if "value" in row else [None]):
            yield position_fault(code, number)
        if code == "rotated-twice" and factor != 1:
            yield replace(position_fault(code), longer=factor)
    for size in _SETTINGS["sizes"]:
        yield from (
            position_fault("wrap", size),
            position_fault("table-ends", size - 1),
            position_fault("restart", size),
        )
    if position is not None and position > 1:
        yield position_fault("table-ends", position - 1)
    if first is not None and first > 1:
        yield from (position_fault("restart", first), position_fault("positions-stop", first))


# ---------------------------------------------------------------------------- roundings, other operands


def of_roundings(dtype: Format) -> Iterator[Fault]:
    """Yield inputs rounded to a narrow format, and recipes with a narrow stage."""
    for fmt in NARROW:
        if fmt.precision < dtype.precision:
            yield Fault(Diagnosis("narrow-input", {"formats": str(fmt)}), rounded=fmt)
    for group in known_recipes.candidate_groups(dtype):
        told = group.diagnosis()
        if told.code != "known-recipe":
            yield Fault(told, recipe=group)


def of_stages(fmt: Format, *, integers: bool) -> Iterator[Fault]:
    """Yield tables with rounded stages. integers: whether the format holds their positions."""
    for steps in itertools.chain(*(itertools.combinations(STEPS, count) for count in (1, 2, 3))):
        if integers and "position" in steps:  # which its rounding leaves as they are
            continue
        stages = dict.fromkeys(STEPS if integers and len(steps) == 2 else steps, fmt)
        yield of_table(stages, 1.1 + 0.001 * CASTS.index(fmt) + 0.05 * (len(steps) - 1))


def of_computed(*steps: str) -> Iterator[Fault]:
    """Yield frequencies computed in a narrow format, steps rounded to it."""
    formats, forms = map(parse, _FORMATS["computed"]), enumerate(_FORMATS["forms"])
    for fmt, (number, form) in itertools.product(formats, forms):
        yield of_table(dict.fromkeys((*steps, "computed"), fmt), 1.5 + 0.01 * number, form)


def of_table(stages: Mapping[str, Format], cost: float, form: str = "inverse_power") -> Fault:
    """Return a table, or a list, whose stages are rounded."""
    formats = {stage: str(fmt) for stage, fmt in stages.items()}
    return Fault(narrow(stages, form), recipe=known_recipes.table_recipe(form, **formats), cost=cost)


def of_cast(stage: str, fmt: Format | None) -> Fault:
    """Return the fault of a stage that was cast before it was stored; `RIGHT` without a format."""
    return Fault(narrow({stage: fmt}), stored=fmt, cost=1.0 + 0.01 * CASTS.index(fmt)) if fmt else RIGHT


def of_operands(setting: RopeSetting) -> Iterator[Fault]:
    """Yield faults in the use of pairs, cos and sin."""
    yield Fault(Diagnosis("q-k-swapped"), crossed=True)
    yield Fault(Diagnosis("cos-sin-swapped"), turn=lambda z, turns: z * 1j * np.conj(turns))
    yield Fault(Diagnosis("halves-swapped"), turn=lambda z, turns: 1j * np.conj(z * turns))
    values: dict[str, Value] = {"table": _OTHER_LAYOUT[setting.layout], "rotation": setting.layout}
    turn = functools.partial(_mixed, setting.layout == "half")
    yield Fault(Diagnosis("mixed-layout", values), turn=turn, mixes=True)


def of_coarse_tables() -> Iterator[Fault]:
    """Yield cos and sin from the nearest entry of a table of few angles."""
    for entries in _OPERANDS["tables"]:
        told = Diagnosis("coarse-table", {"entries": entries})
        yield Fault(told, turn=functools.partial(_from_entries, entries))


def _from_entries(entries: int, pairs: Complex, turns: Complex) -> Complex:
    """Rotate by the nearest of the angles of a table, equally far apart."""
    step = 2 * math.pi / entries
    return np.asarray(pairs * np.abs(turns) * np.exp(1j * step * np.round(np.angle(turns) / step)))


def _mixed(half: bool, pairs: Complex, turns: Complex) -> Complex:
    """Rotate with a table whose columns are in the order of the other layout."""
    p = pairs.shape[-1]
    i = np.arange(p)
    first, second = (i // 2, (i + p) // 2) if half else (2 * i % p, (2 * i + 1) % p)
    a, b, one, two = pairs.real, pairs.imag, turns[..., first], turns[..., second]
    return np.asarray(a * one.real - b * one.imag + 1j * (b * two.real + a * two.imag))
