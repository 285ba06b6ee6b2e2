"""Number formats as data, and one correct rounding into any of them.

A `Format` is a row: precision, exponent range, what happens past its largest number. Everything
else is derived. `round_to` rounds a float64 or float32 array ONCE, to nearest, ties to even,
subnormals included; it never goes through a third format on the way, which is where library casts
go wrong (float64 -> bfloat16 by way of float32 rounds twice).

Values of a format are carried in the narrowest NumPy dtype that holds them all: float64 for
float64, float32 for the rest (`Format.carrier`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import UnknownName

FloatArray: TypeAlias = NDArray[np.floating[Any]]
Overflow: TypeAlias = Literal["inf", "nan", "saturate"]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    precision: significant bits, the implicit one included.
    emin, emax: exponents of the smallest normal number and of the largest binade.
    overflow: what a value beyond `largest` becomes.
    top: the largest number where it is not the usual (2 - 2^(1-precision)) * 2^emax.
    """

    name: str
    aliases: tuple[str, ...]
    precision: int
    emin: int
    emax: int
    overflow: Overflow = "inf"
    top: float | None = None

    @property
    def short(self) -> str:
        """The alias that people type: fp16 for float16."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def largest(self) -> float:
        """The largest finite number."""
        if self.top is not None:
            return self.top
        return float((2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax)

    @property
    def smallest_normal(self) -> float:
        """The smallest number that has full precision."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """The spacing of the numbers below `smallest_normal`."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def unit_roundoff(self) -> float:
        """u: the largest relative error of one rounding, 2^-precision."""
        return 2.0**-self.precision

    @property
    def first_inexact_integer(self) -> int:
        """The smallest positive integer that the format cannot hold, 2^precision + 1 at most."""
        return int(min(2**self.precision, self.largest)) + 1

    @property
    def storage_bits(self) -> int:
        """How many bits a number takes in memory: 8, 16, 32 (tf32 too) or 64."""
        exponents = self.emax - self.emin + (3 if self.overflow == "inf" else 2)  # 0 and infinity with them
        bits = self.precision + (exponents - 1).bit_length()
        return next(size for size in (8, 16, 32, 64) if bits <= size)

    @property
    def carrier(self) -> np.dtype[Any]:
        """The narrowest NumPy dtype that holds every value of the format."""
        return np.dtype(np.float64 if self.precision > 24 else np.float32)

    def __str__(self) -> str:
        return self.name


FORMATS: tuple[Format, ...] = (
    Format("float64", ("fp64", "f64", "double"), 53, -1022, 1023),
    Format("float32", ("fp32", "f32", "single", "float"), 24, -126, 127),
    Format("tf32", ("tensorfloat32",), 11, -126, 127),
    Format("float16", ("fp16", "f16", "half"), 11, -14, 15),
    Format("bfloat16", ("bf16",), 8, -126, 127),
    # OCP FP8, non-saturating: E4M3 has no infinity and keeps one code for nan, so 448 is its top.
    Format("float8_e4m3", ("fp8_e4m3", "e4m3", "float8_e4m3fn"), 4, -6, 8, "nan", 448.0),
    Format("float8_e5m2", ("fp8_e5m2", "e5m2"), 3, -14, 15),
)

_BLOCK = 131072  # elements rounded at once: they stay in a core's cache

_BY_NAME = {name: fmt for fmt in FORMATS for name in (fmt.name, *fmt.aliases)}
FP64, FP32 = _BY_NAME["fp64"], _BY_NAME["fp32"]


def parse(name: str) -> Format:
    """Return the format called `name`; aliases and any case are accepted.

    Raises: UnknownName.

    >>> parse("half").name
    'float16'
    """
    fmt = _BY_NAME.get(name.strip().lower().removeprefix("torch."))
    if fmt is None:
        raise UnknownName("number format", name, _BY_NAME)
    return fmt


def round_to(values: FloatArray, fmt: Format) -> FloatArray:
    """Round every value once to `fmt`: to nearest, ties to even; the result is a new array.

    Takes float64 or float32 (exact as given) and returns `fmt.carrier`. nan stays nan; an
    infinity stays one unless the format has none.
    Source: IEEE 754-2019, section 4.3.1; OCP 8-bit floating point specification 1.0.

    >>> round_to(np.array([1 + 2**-11 + 2**-40]), parse("fp16")).tolist()
    [1.0009765625]
    """
    return round_own(np.array(values, order="C"), fmt)


def round_own(values: FloatArray, fmt: Format) -> FloatArray:
    """Round as `round_to` does an array that nobody else holds: it may be overwritten and returned."""
    if fmt.precision >= FP32.precision:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # signalling nans
            return values.astype(fmt.carrier, copy=False)  # one IEEE conversion
    if values.size and np.isnan(values.max()):
        values[np.isnan(values)] = np.nan
    round_in_place(values, fmt)
    return values.astype(np.float32, copy=False)  # exact: every value of these formats is a float32


def round_in_place(x: FloatArray, fmt: Format, scratch: FloatArray | None = None) -> None:
    """Round a contiguous float64 or float32 array to `fmt` where it lies.

    nans are those that arithmetic makes (payload 0). `scratch`: an array like x, overwritten.
    """
    if fmt.precision > np.finfo(x.dtype).nmant:
        return
    flat = x.reshape(-1)
    spare = np.empty_like(flat[:_BLOCK]) if scratch is None else scratch.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        _round_block(block, fmt, spare[: block.size])


def _round_block(x: FloatArray, fmt: Format, spare: FloatArray) -> None:
    """Round on the bit pattern: a carry into the exponent is rounding up to a power of two.

    Where the array's own dtype has the exponent range of the format, its subnormals and its overflow to
    infinity are the format's. Elsewhere what lies below the smallest normal number is rounded on
    a fixed grid instead, and what lies beyond the largest one is replaced.
    """
    info = np.finfo(x.dtype)
    narrow = fmt.emin > info.minexp or fmt.emax < info.maxexp - 1 or fmt.overflow != "inf"
    if narrow:
        sizes = np.abs(x, out=spare)
        over = not float(sizes.max()) <= fmt.largest  # nan hides larger ones; the largest itself stays
        small = np.flatnonzero(sizes < fmt.smallest_normal)
        below = x[small]
    unsigned, drop = (np.uint64 if x.itemsize == 8 else np.uint32), info.nmant + 1 - fmt.precision
    bits, last = x.view(unsigned), spare.view(unsigned)
    np.right_shift(bits, unsigned(drop), out=last)
    np.bitwise_and(last, unsigned(1), out=last)
    np.add(last, unsigned((1 << (drop - 1)) - 1), out=last)
    np.add(bits, last, out=bits)
    np.bitwise_and(bits, unsigned(~((1 << drop) - 1) & np.iinfo(unsigned).max), out=bits)
    if narrow:
        x[small] = _on_grid(below, fmt.smallest_subnormal, info.nmant + 1)
        if over:
            _overflow(x, fmt)


def _on_grid(values: FloatArray, spacing: float, carried: int) -> FloatArray:
    """Round to multiples of `spacing`, ties to even; the sign of a zero is kept."""
    magic = values.dtype.type(1.5 * 2.0 ** (carried - 1) * spacing)
    return np.copysign((values + magic) - magic, values)


def _overflow(flat: FloatArray, fmt: Format) -> None:
    """Replace what lies beyond the largest number of `fmt` by what the format says."""
    become = {"inf": np.inf, "nan": np.nan, "saturate": fmt.largest}[fmt.overflow]
    over = np.abs(flat) > fmt.largest
    np.copyto(flat, np.copysign(flat.dtype.type(become), flat), where=over)
