"""Number formats as data.

A `Format` is a row: precision, exponent range, what happens past its largest number. Everything
else is derived.

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

    def __hash__(self) -> int:
        """Return the hash of the name: recipes, which are keys of long searches, hold a dozen formats."""
        return hash(self.name)

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
