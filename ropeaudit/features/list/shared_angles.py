"""The first positions that a number format merges with the next one: of positions, and of their angles.

Letters: P a position in tokens; theta in radians per token, angles in radians.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

from ropeaudit.arithmetic.formats import Format


def first_shared_position(fmt: Format) -> int:
    """Return the smallest P >= 0 with round(P) = round(P + 1) in a format: what the position stage merges.

    Units: tokens. >>> from ropeaudit.arithmetic.formats import parse; first_shared_position(parse("bf16"))
    256
    """
    return first_shared_angle(Decimal(1), fmt)


def first_shared_angle(theta: Decimal, fmt: Format) -> int:
    """Return the smallest P >= 0 with round(P * theta) = round((P + 1) * theta) in a format.

    P, theta and the products are exact and rounded once, ties to even: it is what the format of the angle
    does, whatever that of position and frequency. Not every later position shares its angle. Products that
    both overflow share one too. theta 0: 0. Units: radians per token -> tokens.

    Numbers are 2^(e-p+1) apart from 2^e to 2^(e+1), e >= emin, and as far below 2^emin. Where they are less
    than theta apart nothing coincides; where they are 2 theta apart something must, so that few e are looked
    at. In each the products go round a circle of two rounding cells, an even and an odd one, and the
    first that falls far enough from its cell's end is found by Euclid's algorithm, not by trying.
    """
    if theta == 0:
        return 0
    exact = Fraction(theta)
    lowest = fmt.emin - fmt.precision + 1
    exponent = max(_ceil_log2(exact), lowest)
    spacing = Fraction(2) ** exponent
    start = Fraction(0) if exponent == lowest else spacing * 2 ** (fmt.precision - 1)
    past = _first_overflow(exact, fmt)
    while True:
        first, end = math.ceil(start / exact), spacing * 2**fmt.precision
        if first > past:
            return past
        if first and _step(exact * (first - 1), spacing, start) == _step(exact * first, spacing, start):
            return min(first - 1, past)
        count = math.floor(end / exact) - first  # pairs of neighbours that lie in [start, end]
        first_pair = _first_in_cell(exact / spacing, first)
        if count > 0 and first_pair is not None and first_pair < first + count:
            return min(first_pair, past)
        spacing, start = 2 * spacing, end


def _ceil_log2(value: Fraction) -> int:
    """Return the smallest e with 2^e >= value."""
    e = value.numerator.bit_length() - value.denominator.bit_length() - 1
    while Fraction(2) ** e < value:
        e += 1
    return e


def _step(value: Fraction, spacing: Fraction, start: Fraction) -> Fraction:
    """Round to the grid of `spacing`, or below `start` to the finer one: round() is to even."""
    grid = spacing if value >= start else spacing / 2
    return round(value / grid) * grid


def _first_overflow(theta: Fraction, fmt: Format) -> int:
    """Return the smallest P such that P * theta rounds beyond the largest number."""
    spacing = Fraction(2) ** (fmt.emax - fmt.precision + 1)
    steps = Fraction(fmt.largest) / spacing
    limit = (steps + Fraction(1, 2)) * spacing / theta
    return math.ceil(limit) if steps % 2 else math.floor(limit) + 1


def _first_in_cell(step: Fraction, first: int) -> int | None:
    """Return the smallest P >= first with round(P * step) = round((P + 1) * step), ties to even.

    With step = a/m the number (2aP + m) mod 4m tells the cell of P * step: even cells are [0, 2m], odd ones
    the open interval (2m, 4m); the neighbour lies 2a further.
    """
    a, m = step.numerator, step.denominator
    at = (2 * a * first + m) % (4 * m)
    candidates = []
    for low, high in ((0, 2 * m - 2 * a), (2 * m + 1, 4 * m - 2 * a - 1)):
        if low <= high:
            more = _first_residue(2 * a, 4 * m, (low - at) % (4 * m), high - low)
            candidates += [] if more is None else [first + more]
    return min(candidates, default=None)


def _first_residue(a: int, m: int, low: int, width: int) -> int | None:
    """Return the smallest x >= 0 with (a * x - low) mod m <= width, or None; Euclid's algorithm."""
    if low == 0 or low + width >= m:  # the range holds 0, or m, which is 0 again
        return 0
    a %= m
    if 2 * a > m:
        a, low = m - a, m - low - width
    if a == 0:
        return None
    x = -(-low // a)
    if a * x <= low + width:
        return x
    rotations = _first_residue(-m % a, a, low % a, width)
    return None if rotations is None else -(-(low + m * rotations) // a)
