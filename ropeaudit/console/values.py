"""Parsers of option values: lists, ranges, numbers with a suffix, tolerances, masks."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import TypeVar

from ropeaudit.errors import UsageError

T = TypeVar("T")

_SUFFIXES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_SCALAR = re.compile(rf"(?P<sign>[+-]?)(?P<digits>{_DIGITS}(?:\.[0-9]*)?(?:e\+?[0-9]+)?)(?P<suffix>[kmg]?)")
_POWER = re.compile(r"(?P<sign>[+-]?)2(?:\^|\*\*)(?P<exponent>[0-9]{1,3})")
_RANGE = re.compile(r"(?P<first>[+-]?[^-+*]+)-(?P<last>[+-]?[^-+*]+)(?P<how>[*+])(?P<step>[^-+*]+)")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+")  # 1,000, which is no list of 1 and 000
_SPAN = re.compile(r"(?P<first>[^-+*]+)-(?P<last>[^-+*]+)")
_MOST = 100_000
_LARGEST = 10**20  # every 64-bit seed is below it, and Decimal holds it with a fraction


def integer(text: str, flag: str) -> int:
    """Read one whole number: 1000, -5, 16k (16 * 1024), 1m (1024²), 1e6, 2^20.

    Raises: UsageError. >>> integer("16k", "--offset")  ->  16384
    """
    word = text.strip().lower()
    match = _POWER.fullmatch(word) or _SCALAR.fullmatch(word)
    if not match:
        raise UsageError(
            f"{flag} {text.strip()!r} is not a whole number; try 1000, 16k, 1m, 2^20, or a range such "
            "as 1k-64k*2"
        )
    from decimal import Decimal

    typed, size = match.groupdict(), Decimal("inf")
    with contextlib.suppress(ArithmeticError):  # an exponent that Decimal itself cannot hold
        if "exponent" in typed:
            size = Decimal(2) ** int(typed["exponent"])
        else:
            size = Decimal(typed["digits"].replace("_", "").rstrip(".")) * _SUFFIXES[typed["suffix"]]
    if size > _LARGEST:
        raise UsageError(f"{flag} {text.strip()!r} is out of range; whole numbers go up to 1e20")
    if size != size.to_integral_value():
        raise UsageError(f"{flag} {text.strip()!r} is a fraction; give a whole number, such as 1000")
    return int(-size if typed["sign"] == "-" else size)


def integers(text: str, flag: str) -> list[int]:
    """Read lists and ranges: 0,1000,16k; 1k-1m*2 multiplies, 0-4096+256 adds. Raises: UsageError."""
    if _THOUSANDS.fullmatch(text.strip()) and ",0" in text:
        plain = text.strip().replace(",", "")
        raise UsageError(f"{flag} {text.strip()!r}: commas stand between numbers; for one number try {plain}")
    return _listed(text, flag, lambda word: _integer_or_range(word, flag))


def number(text: str, flag: str, example: str) -> float:
    """Read one real number: 0.125, 5e5. Raises: UsageError."""
    try:
        if text.isascii():
            return float(text)
    except ValueError:
        pass
    raise UsageError(f"{flag} {text.strip()!r} is not a number; try {flag} {example}")


def numbers(text: str, flag: str) -> list[float]:
    """Read a list of real numbers: 10000,5e5. Raises: UsageError."""
    return _listed(text, flag, lambda word: [number(word, flag, "10000")])


def tolerance(text: str, flag: str) -> tuple[str, float]:
    """Read COLUMN=X, or X alone for drift_relative; 1% is 0.01. Raises: UsageError.

    >>> tolerance("1%", "--tolerance")
    ('drift_relative', 0.01)
    """
    column, equals, typed = (part.strip() for part in text.rpartition("="))
    try:
        value = float(typed.removesuffix("%"))
    except ValueError:
        value = math.nan
    if bool(equals) != bool(column) or not (math.isfinite(value) and value >= 0):
        raise UsageError(
            f"{flag} {text!r}: {typed!r} is not a number from 0 up; try 1%, which is drift_relative=0.01, or "
            "drift_rms=1e-3"
        )
    return column or "drift_relative", value / 100 if typed.endswith("%") else value


def names(text: str, flag: str) -> list[str]:
    """Read a list of names: hf,uniform. Raises: UsageError."""
    return _listed(text, flag, lambda word: [word.strip()])


def masks(text: str, flag: str) -> list[str]:
    """Read a list of masks; a window's width may be written as 4k. Raises: UsageError."""

    def mask(word: str) -> list[str]:
        kind, _, width = word.strip().lower().partition(":")
        sized = kind == "window" and _SCALAR.fullmatch(width)
        return [f"window:{integer(width, flag)}" if sized else word.strip()]

    return _listed(text, flag, mask)


def _listed(text: str, flag: str, read: Callable[[str], list[T]]) -> list[T]:
    """Read a list separated by commas, each value once. read: from an element its values."""
    results: list[T] = []
    for word in text.split(","):
        if not word.strip():
            raise UsageError(f"{flag} {text!r} has an empty element; leave it out or give a value")
        results += read(word)
    return list(dict.fromkeys(results))


def _integer_or_range(text: str, flag: str) -> list[int]:
    match = _RANGE.fullmatch(text.strip().lower().replace("**", "^"))
    if not match or _POWER.fullmatch(text.strip().lower()):
        _refuse_span(text.strip(), flag)
        return [integer(text, flag)]
    first, last = integer(match["first"], flag), integer(match["last"], flag)
    step = integer(match["step"], flag)
    if match["how"] == "*" and first == 0 < last and step > 1:
        raise UsageError(f"{flag} {text!r}: 0 times {step} stays 0; type 0,1-{match['last']}*{step}")
    if first > last or step < 1 or (match["how"] == "*" and (step < 2 or first < 1)):
        raise UsageError(f"{flag} {text.strip()!r} does not count upwards; try 1k-1m*2 or 0-4096+256")
    if match["how"] == "*":
        results = [first]
        while results[-1] * step <= last:
            results.append(results[-1] * step)
        return results
    count = (last - first) // step + 1
    if count > _MOST:
        raise UsageError(f"{flag} {first}-{last}+{step} has {count} values; at most {_MOST} are allowed")
    return list(range(first, last + 1, step))


def _refuse_span(text: str, flag: str) -> None:
    """Raise UsageError if a text is a range without a step, and suggest steps."""
    span = _SPAN.fullmatch(text.lower())
    ends = [_SCALAR.fullmatch(end) for end in span.groups()] if span else [None]
    if all(ends):
        first, last = (integer(str(end and end[0]), flag) for end in ends)
        if first > last:
            raise UsageError(f"{flag} {text!r} does not count upwards; try {last}-{first}+1")
        step = max(1, (last - first) // 10)
        times = f", or {text}*2 to multiply by 2" if first > 0 else ""
        raise UsageError(f"{flag} {text!r} is a range without a step; try {text}+{step} to add {step}{times}")
