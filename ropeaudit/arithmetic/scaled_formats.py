"""Codes of eight bits with a scale: how caches hold keys.

A scale, a float32, takes the largest absolute value of a group to the largest number of the format. Values
are divided by it in float32, clamped to that number, rounded to codes, to nearest and ties to even, and
multiplied by it again in float32. int8 has codes from -127 to 127.

Letters: s positions, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from ropeaudit.arithmetic import formats
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import UnknownName, UsageError

Group: TypeAlias = Literal["tensor", "head", "token", "channel"]
GROUPS: tuple[Group, ...] = get_args(Group)
_INT8 = "int8"
SCALED_ALONE = (_INT8,)  # formats of which nothing is known without a scale
_LARGEST_INT8 = 127.0
_NAMES = (_INT8, *(fmt.short for fmt in formats.FORMATS if fmt.storage_bits == 8))


@dataclass(frozen=True, slots=True)
class ScaledFormat:
    """Codes of a format, or of int8 where that is None, and which values share a scale.

    group: all of k; a head; a token of a head; a channel, which is a dim of a head over all tokens.
    """

    codes: Format | None
    group: Group

    def __str__(self) -> str:
        return f"{self.codes.name if self.codes else _INT8}:{self.group}"

    def stored(self, x: FloatArray, largest: FloatArray) -> FloatArray:
        """Return x as read again. largest: absolute value of each group; broadcast to x.

        A group of zeros stays zero (int8 has no -0). Where a group is not finite, nothing of it is.

        >>> parse("int8:tensor").stored(np.array([254.0, 3.1]), np.array(254.0)).tolist()
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


def parse(text: str) -> ScaledFormat:
    """Return what FORMAT:GROUP says. Raises: UnknownName, UsageError.

    >>> str(parse("e4m3:head"))
    'float8_e4m3:head'
    """
    name, _, group = (part.strip().lower() for part in text.partition(":"))
    if group not in GROUPS:
        raise UnknownName("group of keys that share a scale", group, GROUPS)
    codes = None if name == _INT8 else formats.parse(name)
    if codes is not None and codes.storage_bits != 8:
        raise UsageError(f"{text!r}: keys are stored with scales in {', '.join(_NAMES)}")
    return ScaledFormat(codes, group)
