"""What to change, where what code behaves like is known: a narrow stage, or a usual fault."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse

_STAGES = ("positions", "frequencies", "angles", "table", "rotation")  # of `placement.likeness.words`
_LATER = ("table", "rotation")  # they may be as narrow as the dtype
_FORMATS = "bfloat16|float16|tf32|float8_e4m3|float8_e5m2"
_BUFFER = " (inv_freq; casting a module casts its buffers)"

# what `placement.naming` and `conformance.gradient` say, anywhere in a sentence -> what to do about it
_FAULTS = {
    "rotated forward, not back": "negate sin in the backward pass",
    "the gradient is off by what roundings": "compute the backward pass in the dtype of the output",
    "then rotated": "rotate q and k in the dtype in which they come, or in a wider one",
    "is off by what roundings": "keep what is computed, and what is returned, in the dtype of the input",
    "the gradient is passed on": "rotate the upstream gradient back: negate sin",
    "positions from 0": "add the offset to the positions",
    "every position taken for the first": "give each token a position of its own",
    "positions held in int": "hold positions in 32 bits or more",
    "positions that wrap at": "let positions grow past that number: hold them in 32 bits or more, and do not "
    "take them modulo the length of a table",
    "a table that ends at position": "make the table longer, or compute cos and sin at the positions given",
    "positions that restart every": "count on from block to block",
    "positions that stop after": "count on to the last token of the call",
    "positions in reverse order": "rotate each token by its own position",
    "positions one too": "rotate the first token by position 0, or by the position that is given",
    "the other direction": "negate sin",
    "no rotation": "rotate by the positions that are given",
    "rotated twice": "rotate once: it may get what is rotated already",
    "interleaved pairs": "pair dims i and i + d/2, or check it with --layout interleaved",
    "half pairs": "pair dims 2i and 2i + 1, or check it with --layout half",
    "2i/(d-2)": "divide by the number of rotated dims in the exponent",
    "are right, from ": "see what changes at that position: another table, another branch, a limit",
    "times as long": "leave vectors as long as they are; the setting's attention factor is accounted for",
    "base ": "use the base that is asked for, or give its own with --base",
    "q and k swapped": "return q and k in the order in which they come",
    "state that an earlier call left": "compute a stored table anew where dtype, length or positions change",
}


def remedy(resembles: str, dtype: Format, up_to: int) -> str:
    """Return what to change in code that behaves as `resembles` says; empty where that is not known.

    up_to: number of positions that it must hold.
    """
    for words, what in _FAULTS.items():
        if words in resembles:
            return what
    if dtype is FP64 and re.search(r"\brotation\b", resembles):
        return "compute positions, frequencies, angles, cos and sin and the rotation in float64"
    wide = FP64 if up_to > FP32.first_inexact_integer else FP32
    narrow = [stage for stage in _STAGES if _narrow(resembles, stage, dtype if stage in _LATER else wide)]
    names = [stage + (_BUFFER if stage == "frequencies" else "") for stage in narrow]
    return f"keep {_joined(names)} in {wide}" if names else ""


def _narrow(resembles: str, stage: str, wide: Format) -> bool:
    """Return whether a sentence names a stage in a format that is narrower than another."""
    computed = f"|frequencies computed in ({_FORMATS})" if stage == "frequencies" else ""
    result = re.search(rf"\b({_FORMATS}) {stage}\b{computed}", resembles)
    name = next((group for group in result.groups() if group), "") if result else ""
    return bool(name) and parse(name).precision < min(wide.precision, FP32.precision)


def _joined(names: Sequence[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]])
