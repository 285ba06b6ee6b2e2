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
    x = np.asarray(values)
    if fmt.precision == FP32.precision:
        with np.errstate(over="ignore", under="ignore"):
            return x.astype(np.float32)  # one IEEE conversion
    if fmt.precision == FP64.precision:
        return x.astype(np.float64)
    rounded = np.array(x, dtype=x.dtype, order="C")
    round_in_place(rounded, fmt)
    return rounded.astype(np.float32)  # exact: every value of these formats is a float32


def round_in_place(x: FloatArray, fmt: Format, scratch: NDArray[Any] | None = None) -> None:
    """Round a contiguous float64 or float32 array to `fmt` where it lies.

    The mantissa is rounded on its bit pattern; a carry into the exponent is what rounding up
    to a power of two is. What lies below the smallest normal number is rounded on a fixed grid
    by adding and subtracting a constant whose ulp is that grid. `scratch` is an unsigned array of
    the same shape and item size, to save an allocation.
    """
    carried = np.finfo(x.dtype).nmant + 1
    if fmt.precision >= carried:
        return
    small = np.flatnonzero(np.abs(x) < fmt.smallest_normal)
    below = x.reshape(-1)[small]
    unsigned = np.uint64 if x.dtype == np.float64 else np.uint32
    bits, drop = x.view(unsigned), carried - fmt.precision
    nans = np.flatnonzero(np.isnan(x))
    last = np.right_shift(bits, unsigned(drop), out=scratch)
    np.bitwise_and(last, unsigned(1), out=last)
    np.add(last, unsigned((1 << (drop - 1)) - 1), out=last)
    np.add(bits, last, out=bits)
    np.bitwise_and(bits, unsigned(~((1 << drop) - 1) & np.iinfo(unsigned).max), out=bits)
    flat = x.reshape(-1)
    if small.size:
        flat[small] = _on_grid(below, fmt.smallest_subnormal, carried)
    if nans.size:
        flat[nans] = np.nan
    _overflow(flat, fmt)


def _on_grid(values: FloatArray, spacing: float, carried: int) -> FloatArray:
    """Round to multiples of `spacing`, ties to even; the sign of a zero is kept."""
    magic = values.dtype.type(1.5 * 2.0 ** (carried - 1) * spacing)
    return np.copysign((values + magic) - magic, values)


def _overflow(flat: FloatArray, fmt: Format) -> None:
    """Replace what lies beyond the largest number of `fmt` by what the format says."""
    highest = max(np.max(flat, initial=0.0), -np.min(flat, initial=0.0))
    if highest <= fmt.largest:
        return
    over = np.flatnonzero(np.abs(flat) > fmt.largest)
    become = {"inf": np.inf, "nan": np.nan, "saturate": fmt.largest}[fmt.overflow]
    flat[over] = np.copysign(flat.dtype.type(become), flat[over])
