"""One correct rounding into any number format, and codes with a scale.

`round_to` rounds a float64 or float32 array ONCE, to nearest, ties to even, subnormals included;
it never goes through a third format on the way, which is where library casts go wrong
(float64 -> bfloat16 by way of float32 rounds twice).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic import formats
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.errors import UnknownName, UsageError

_BLOCK = 3 * 2**17  # bytes rounded at once: they stay in a core's cache


def round_to(values: FloatArray, fmt: Format) -> FloatArray:
    """Round every value once to `fmt`: to nearest, ties to even; the result is a new array.

    Takes float64 or float32 (exact as given) and returns `fmt.carrier`. nan stays nan; an
    infinity stays one unless the format has none.
    Source: IEEE 754-2019, section 4.3.1; OCP 8-bit floating point specification 1.0.

    >>> from ropeaudit.arithmetic.formats import parse
    >>> round_to(np.array([1 + 2**-11 + 2**-40]), parse("fp16")).tolist()
    [1.0009765625]
    """
    return round_own(np.array(values, order="C"), fmt)


def round_own(values: FloatArray, fmt: Format) -> FloatArray:
    """Round as `round_to` does; the array may be overwritten and returned."""
    if fmt.precision >= FP32.precision:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # signalling nans
            return values.astype(fmt.carrier, copy=False)  # one IEEE conversion
    round_in_place(values, fmt)
    return values.astype(np.float32, copy=False)  # exact: every value of these formats is a float32


def round_nearest(
    values: FloatArray, exactly: Callable[[NDArray[np.intp]], FloatArray], fmt: Format
) -> FloatArray:
    """Round exact numbers once to `fmt`, given the nearest float64 ones, overwritten.

    Both lie on one side of every midpoint of `fmt`, unless the nearest is a midpoint.
    exactly: given flat indices of such places, returns the exact numbers there, rounded to odd.
    """
    flat = values.reshape(-1)
    bits, drop = flat.view(np.int64), FP64.precision - fmt.precision
    uncertain = np.bitwise_and(bits, (1 << drop) - 1) == 1 << (drop - 1)
    uncertain |= (np.abs(flat) < fmt.smallest_normal) & (bits != 0)  # the midpoints there are others
    where = np.flatnonzero(uncertain)
    if where.size:
        flat[where] = exactly(where)
    return round_own(values, fmt)


def round_in_place(x: FloatArray, fmt: Format, scratch: FloatArray | None = None) -> None:
    """Round a contiguous float64 or float32 array to `fmt` where it lies; nan stays nan.

    `scratch`: an array like x, overwritten.
    """
    if fmt.precision > (FP64 if x.itemsize == 8 else FP32).precision - 1:
        return
    flat, length = x.reshape(-1), _BLOCK // x.itemsize
    bitwise = _bitwise(x.dtype, fmt)
    spare = np.empty_like(flat[:length]) if scratch is None else scratch.reshape(-1)
    with np.errstate(invalid="ignore"):  # signalling nans
        for start in range(0, flat.size, length):
            block = flat[start : start + length]
            _round_block(block, fmt, bitwise, spare[: block.size])


def _round_block(x: FloatArray, fmt: Format, bitwise: _Bitwise, spare: FloatArray) -> None:
    """Round on the bit pattern: a carry into the exponent is rounding up to a power of two.

    What is added is half of the last kept bit, less one where that bit is 0: ties go to even.
    Where the array's dtype has another exponent range than the format, what lies below the smallest normal
    number is rounded on a fixed grid, and what lies beyond the largest one replaced. Nans stay.
    """
    if bitwise.narrow:
        sizes = np.abs(x, out=spare)
        largest = float(sizes.max())
        small = np.flatnonzero(sizes < bitwise.smallest_normal)
        below = x[small]
    bits, added = x.view(bitwise.dtype), spare.view(bitwise.dtype)
    np.left_shift(bits, bitwise.left, out=added)  # the last kept bit is the sign
    if not bitwise.narrow:
        largest = float(x[x.argmax()])  # here, where x is in the cache
    added.clip(bitwise.odd, bitwise.even, out=added)  # where less is added, it carries from beyond the tie
    nans = np.flatnonzero(np.isnan(x)) if largest != largest else None
    np.subtract(bits, added, out=bits)
    np.bitwise_and(bits, bitwise.kept, out=bits)
    if bitwise.narrow:
        if small.size:
            magic = x.dtype.type(1.5 * 2.0 ** (bitwise.carried - 1) * bitwise.spacing)
            x[small] = np.copysign((below + magic) - magic, below)  # the sign of a zero is kept
        if not largest <= bitwise.largest:  # nan hides larger ones; the largest itself stays
            become = {"inf": np.inf, "nan": np.nan, "saturate": fmt.largest}[fmt.overflow]
            np.copyto(x, np.copysign(x.dtype.type(become), x), where=np.abs(x) > fmt.largest)
    if nans is not None:
        x[nans] = np.nan


class _Bitwise(NamedTuple):
    """The constants for rounding on a dtype's bits; integers as arrays, which is fastest.

    narrow: whether its exponents are not the dtype's. left: how far the last kept bit is from the sign's.
    odd, even: what is subtracted where it is 1 or 0. kept: the bits that are.
    """

    dtype: Any
    narrow: bool
    largest: float
    smallest_normal: float
    spacing: float
    carried: int
    left: Any
    odd: Any
    even: Any
    kept: Any


@functools.cache
def _bitwise(dtype: np.dtype[Any], fmt: Format) -> _Bitwise:
    info = np.finfo(dtype)
    signed, drop = (np.int64 if dtype.itemsize == 8 else np.int32), info.nmant + 1 - fmt.precision
    return _Bitwise(
        dtype=signed,
        narrow=bool(fmt.emin > info.minexp or fmt.emax < info.maxexp - 1 or fmt.overflow != "inf"),
        largest=fmt.largest,
        smallest_normal=fmt.smallest_normal,
        spacing=fmt.smallest_subnormal,
        carried=info.nmant + 1,
        left=np.array(info.bits - 1 - drop, signed),
        odd=np.array(-1 << (drop - 1), signed),
        even=np.array(1 - (1 << (drop - 1)), signed),
        kept=np.array(-1 << drop, signed),
    )


def bits_differ(y: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where two NumPy arrays differ in bits; all nans are alike. Shapes: alike."""
    alike = ((y == other) & (np.signbit(y) == np.signbit(other))) | (np.isnan(y) & np.isnan(other))
    differ: NDArray[np.bool_] = ~alike
    return differ


Group: TypeAlias = Literal["tensor", "head", "token", "channel"]
GROUPS: tuple[Group, ...] = get_args(Group)
_INT8 = "int8"
SCALED_ALONE = (_INT8,)  # formats of which nothing is known without a scale
_LARGEST_INT8 = 127.0
_NAMES = (_INT8, *(fmt.short for fmt in formats.FORMATS if fmt.storage_bits == 8))


@dataclass(frozen=True, slots=True)
class ScaledFormat:
    """Codes of a format, or of int8 where that is None, and which values share a scale: how caches hold keys.

    A scale, a float32, takes the largest absolute value of a group to the largest number of the format.
    Values are divided by it in float32, clamped to that number, rounded to codes, to nearest and ties to
    even, and multiplied by it again in float32. int8 has codes from -127 to 127.

    group: all of k; a head; a token of a head; a channel, which is a dim of a head over all tokens.
    """

    codes: Format | None
    group: Group

    def __str__(self) -> str:
        return f"{self.codes.name if self.codes else _INT8}:{self.group}"

    def stored(self, x: FloatArray, largest: FloatArray) -> FloatArray:
        """Return x as read again. largest: absolute value of each group; broadcast to x.

        A group of zeros stays zero (int8 has no -0). Where a group is not finite, nothing of it is.

        >>> parse_scaled("int8:tensor").stored(np.array([254.0, 3.1]), np.array(254.0)).tolist()
        [254.0, 4.0]
        """
        top = np.float32(self.codes.largest if self.codes else _LARGEST_INT8)
        with np.errstate(all="ignore"):
            scale = largest.astype(np.float32) / top
            quotient = x.astype(np.float32) / np.where(scale == 0, np.float32(1), scale)
            quotient = np.clip(quotient, -top, top)  # a tiny scale is rounded coarsely itself
            # of int8 no -0
            codes = round_to(quotient, self.codes) if self.codes else np.rint(quotient) + np.float32(0)
            result: FloatArray = codes * scale
        return result


def parse_scaled(text: str) -> ScaledFormat:
    """Parse FORMAT:GROUP. Raises: UnknownName, UsageError.

    >>> str(parse_scaled("e4m3:head"))
    'float8_e4m3:head'
    """
    name, _, group = (part.strip().lower() for part in text.partition(":"))
    if group not in GROUPS:
        raise UnknownName("group of keys that share a scale", group, GROUPS)
    codes = None if name == _INT8 else formats.parse(name)
    if codes is not None and codes.storage_bits != 8:
        raise UsageError(f"{text!r}: keys are stored with scales in {', '.join(_NAMES)}")
    return ScaledFormat(codes, group)
