"""A value as text: for files without loss, for people as short as it may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ropeaudit.errors import UnknownName

if TYPE_CHECKING:
    from ropeaudit.runtime.columns import Style


def exact(value: Any) -> str:
    """Return text that reads back as the same value; nothing for what does not apply, "nan" for no number.

    >>> exact(0.1), exact(None), exact(math.nan), exact(3)
    ('0.1', '', 'nan', '3')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(float(value))
    return str(value)


def short(value: Any) -> str:
    """Return text for a screen: floats with three significant digits.

    >>> short(0.00052341), short(0.0689), short(2.0), short(1234.5), short(math.nan), short(None)
    ('5.23e-04', '0.0689', '2.00', '1.23e+03', 'nan', '')
    """
    if value is None:
        return ""
    if not isinstance(value, float):
        return printable(str(value))
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    return f"{value:#.3g}".rstrip(".") if 1e-3 <= abs(value) < 1e3 else f"{value:.2e}"


def times(ratio: float) -> str:
    """Return a ratio as text in a sentence: three digits, whole from a thousand on.

    >>> times(6.5312), times(198.3), times(2341.7), times(5.12e8)
    ('6.53', '198', '2,342', '5.1e+08')
    """
    if 1e3 <= ratio < 1e6:
        return f"{ratio:,.0f}"
    return f"{ratio:.3g}" if ratio < 1e3 else f"{ratio:.2g}"


def counted(number: int, noun: str) -> str:
    """Return a number of things as text.

    >>> counted(1, "row"), counted(1234, "row")
    ('1 row', '1,234 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    r"""Return text with all written out that could steer a terminal, or a runner of GitHub that reads a log.

    >>> printable("a\x1b[31m"), printable("::error::x"), printable("a ##[error]")
    ('a\\x1b[31m', '\\::error::x', 'a #\\#[error]')
    """
    plain = text
    if not text.isprintable():
        plain = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if plain.lstrip().startswith("::"):
        plain = f"\\{plain.lstrip()}"
    return plain.replace("##[", "#\\#[")


def printable_json(line: str) -> str:
    r"""Return a line of JSON with what `printable` writes out, as JSON writes it: it stays what it was.

    >>> printable_json('"a\x9b\u00a0 ##[error]"')
    '"a\\u009b\\u00a0 #\\u0023[error]"'
    """
    plain = "".join(
        c if c.isprintable() else re.sub("....", r"\\u\g<0>", c.encode("utf-16-be", "surrogatepass").hex())
        for c in line
    )
    return plain.replace("##[", "#\\u0023[")


def setting(value: Any) -> str:
    """Return text for a number that somebody chose, such as a base: as it was typed.

    >>> setting(10000.0), setting(0.08838834764831845), setting(128)
    ('10000', '0.0883883', '128')
    """
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e12 else f"{value:.6g}"
    return short(value)


def percent(share: float) -> str:
    """Return a share as text.

    >>> percent(0.0689), percent(1.02), percent(2.5e-15), percent(0.0)
    ('6.9 %', '102 %', '2.5e-13 %', '0 %')
    """
    if math.isnan(share):
        return "nan"
    value = 100 * share
    if value == 0:
        return "0 %"
    if value >= 99.5:
        return f"{value:.0f} %"
    return f"{value:.2g} %" if value >= 0.01 else f"{value:.1e} %"


def limit_percent(share: float) -> str:
    """Return a tolerance as text, with all the digits that were given.

    >>> limit_percent(0.01), limit_percent(0.004522), limit_percent(1e-6)
    ('1 %', '0.4522 %', '0.0001 %')
    """
    return f"{100 * share:.12g} %"


def part(share: float) -> str:
    """Return a share of a whole as text; others may make it negative.

    >>> part(0.611), part(-0.00002), part(0.9998), part(0.99999), part(math.nan)
    ('61.1 %', '0.0 %', '99.98 %', '100.0 %', 'nan')
    """
    if not math.isfinite(share):
        return str(share)
    value = round(100 * share, 2 if 0.999 <= share < 0.99995 else 1) + 0.0
    return f"{value} %"


@lru_cache(maxsize=64)
def short_format(name: Any) -> str:
    """Return the name of a number format as it is typed, any other as it is.

    >>> short_format("bfloat16"), short_format("spam")
    ('bf16', 'spam')
    """
    from ropeaudit.arithmetic.formats import parse  # in-function: --help loads no NumPy

    try:
        return parse(str(name)).short
    except UnknownName:
        return printable(str(name))


_STYLES: dict[Style, Callable[[Any], str]] = {
    "short": lambda value: f"{value:,}" if type(value) is int else short(value),
    "times": lambda ratio: f"{ratio:.1f}x" if ratio < 9.95 else f"{times(ratio)}x",
    "setting": setting,
    "percent": percent,
    "part": part,
    "short or empty": short,
    "part or empty": part,
    "format": short_format,
}


def styled(value: Any, style: Style) -> str:
    """Return a value as a screen shows it, in the style that its column declares.

    >>> styled(0.25, "percent"), styled(10000.0, "setting"), styled(0.25, "short"), styled(131072, "short")
    ('25 %', '10000', '0.250', '131,072')
    >>> styled(math.nan, "short"), styled(math.nan, "short or empty"), styled(0.25, "part or empty")
    ('nan', '', '25.0 %')
    >>> styled(1.0, "times"), styled(198.3, "times"), styled(math.nan, "times")
    ('1.0x', '198x', '')
    """
    if style in ("times", "short or empty", "part or empty") and (value is None or value != value):
        return ""  # where a row has no number
    return _STYLES[style](value)
