"""`list frequencies`: frequency and wavelength of each pair, and where number formats merge positions.

Exact values are decimals of 60 digits; stored ones are computed as the recipe does.
Letters: p pairs, i a pair, P a position in tokens; theta in radians per token, angles in radians.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar, Unpack

import numpy as np

from ropeaudit.arithmetic.doubledouble import PI, Array, precise
from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, RopeArguments
from ropeaudit.audits.cases import LIMIT, USUAL_MAXIMUM, Case
from ropeaudit.audits.results import Result
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.recipes import Recipe, Resolved, load
from ropeaudit.reference import exact_frequencies
from ropeaudit.reports import Report, settings
from ropeaudit.rope.frequencies import effect
from ropeaudit.rope.frequencies import frequencies as computed_frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import table

Row = dict[str, Any]
COLUMNS = table("list-frequencies")
DTYPES = ("fp32", "fp16", "bf16")
LEGEND = (
    "shared FORMAT: first position whose exact angle, rounded to FORMAT, is the next position's too."
    "\nwavelength in tokens, angle at the maximum position in radians."
)


@dataclass(frozen=True, slots=True)
class FrequencyTable(Result):
    """The pairs of a setting. formats: those of angles. rows: one a pair, see `rows`."""

    report_module: ClassVar[str] = __name__
    label: str
    setting: RopeSetting
    formats: Sequence[Format]
    rows: Sequence[Row]


@arguments.public
def frequencies(
    dtypes: Names = DTYPES,
    recipes: Names = (),
    max_position: int | None = None,
    *,
    cases: Case | Iterable[Case] | None = None,
    labels: Sequence[str] | None = None,
    **case: Unpack[RopeArguments],
) -> Iterator[FrequencyTable]:
    """Yield every pair's frequency, wavelength and the positions that number formats merge, case by case.

    dtypes: formats of the angles, and of the model for recipes.
    recipes: whose stored numbers are shown beside the exact ones.
    max_position: where angles are shown; by default the model's maximum, or 131072.
    labels: what to call each case.
    cases, case: as in `ropeaudit.shift`; q and k are not looked at.
    Raises: UsageError, UnknownName, BadInput, NotEmulated.

    >>> [table] = frequencies("bf16", head_dim=4)
    >>> [row["wavelength"] for row in table.rows]
    [6.283185307179586, 628.3185307179587]
    """
    if max_position is not None and not 1 <= max_position <= LIMIT:
        raise UsageError(f"--max-position {max_position} is not a position from 1 to 2^53; try 131072")
    formats, chosen = arguments.formats(dtypes), arguments.cases_from(cases, case)
    loaded = [load(name) for name in arguments.as_list(recipes)]
    for one, label in zip(chosen, labels or settings.labels(chosen), strict=True):
        setting, maximum = one.setting(one.maximum or 0), max_position or one.maximum or USUAL_MAXIMUM
        yield FrequencyTable(label, setting, formats, rows(label, setting, maximum, formats, loaded))


def rows(
    label: str,
    setting: RopeSetting,
    maximum: int,
    formats: Sequence[Format],
    recipes: Sequence[Recipe] = (),
) -> list[Row]:
    """Return a row a pair: columns of its own, two for each format, two for each recipe.

    shared_FORMAT: first position whose angle, rounded to the format, is the next position's too.
    shared_position_FORMAT: the same of the position itself. RECIPE: the number that it stores: theta, its
    inverse, or the ratio of neighbours. RECIPE_error: relative error of the frequency that this stands for.
    A recipe that stores others for other formats has columns for each: hf_bf16. Raises: NotEmulated.
    """
    stored: dict[str, tuple[Array, list[Decimal]]] = {}  # numbers, and the frequencies that they represent
    for recipe in recipes:
        resolved = [(fmt, recipe.resolve(fmt)) for fmt in formats]
        same = len({resolved_recipe.frequency for _, resolved_recipe in resolved}) == 1
        for fmt, resolved_recipe in resolved[: 1 if same else None]:
            computed, stored_in = resolved_recipe.frequency
            ideal = computed_frequencies(setting, recipe.frequency_form, computed)
            values = round_to(ideal, stored_in).astype(np.float64)
            name = recipe.name if same else f"{recipe.name}_{fmt.short}"
            stored[name] = values, _frequencies_of_stored(values, resolved_recipe, setting)
    positions = {f"shared_position_{fmt.short}": first_shared_angle(Decimal(1), fmt) for fmt in formats}
    results = []
    for pair, exact in enumerate(exact_frequencies.frequencies(setting)):
        with precise():
            wavelength = float(2 * PI / exact) if exact else math.inf
            angle = float(min(exact * maximum, Decimal(setting.clip)))
        row = {
            "setting": label,
            "pair": pair,
            "theta": float(exact),
            "wavelength": wavelength,
            "maximum": maximum,
            "angle_at_maximum": angle,
            **{f"shared_{fmt.short}": first_shared_angle(exact, fmt) for fmt in formats},
            **positions,
        }
        for name, (numbers, meant) in stored.items():
            row |= {name: float(numbers[pair]), f"{name}_error": _relative(meant[pair], exact)}
        results.append(row)
    return results


def headline(table: Sequence[Row], formats: Sequence[Format]) -> str:
    """Return how many pairs never complete a turn, and where angles first coincide."""
    if not table:
        return "No pair is rotated."
    unfinished = sum(row["wavelength"] > row["maximum"] for row in table)
    first = {fmt.short: min(row[f"shared_{fmt.short}"] for row in table) for fmt in formats}
    places = ", ".join(f"{position} in {name}" for name, position in first.items())
    text = f"{unfinished} of {len(table)} pairs turn less than once up to the maximum position"
    return f"{text}; neighbouring positions first share an angle at {places}." if places else f"{text}."


def report(
    results: Sequence[FrequencyTable],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` are those to show and write. Raises: UnknownName."""
    rows = [row for table in results for row in table.rows]
    formats = results[0].formats if results else []
    known = list(rows[0]) if rows else list(COLUMNS)
    for name in columns or ():
        if name not in known:
            raise UnknownName("column", name, known)
    hidden = {"maximum", *(name for name in known if name.startswith("shared_position_"))}
    if len(results) < 2:
        hidden.add("setting")
    merged = ", ".join(f"{first_shared_angle(Decimal(1), fmt)} in {fmt.short}" for fmt in formats)
    return Report(
        rows,
        columns or known,
        columns or [name for name in known if name not in hidden],
        () if columns else [*(f"shared_{fmt.short}" for fmt in formats), "angle_at_maximum"],
        headline=headline(rows, formats),
        notes=[f"{table.label}: no pair is rotated" for table in results if not table.setting.pairs],
        legend=f"{LEGEND}\nPositions themselves are first merged with the next one at {merged}.",
        metadata=metadata,
    )


def _frequencies_of_stored(values: Array, recipe: Resolved, setting: RopeSetting) -> list[Decimal]:
    """Return the frequencies that stored numbers represent. Shapes: (p,) -> (p,)."""
    form, decimals = recipe.recipe.frequency_form, [Decimal(value) for value in values.tolist()]
    with precise():
        if form == "divide":
            return [1 / value if value else Decimal("inf") for value in decimals]
        if form == "recurrence":
            weights = effect(setting, recipe.frequency[1]).tolist()
            return [value**i * Decimal(w) for i, (value, w) in enumerate(zip(decimals, weights, strict=True))]
    return decimals


def _relative(value: Decimal, theta: Decimal) -> float:
    if theta == 0 or not value.is_finite():
        return 0.0 if value == theta else math.inf
    with precise():
        return float((value - theta) / theta)


def first_shared_angle(theta: Decimal, fmt: Format) -> int:
    """Return the smallest P >= 0 with round(P * theta) = round((P + 1) * theta) in a format.

    P, theta and the products are exact and rounded once, ties to even. Products that both overflow are the
    same too. theta 0: 0. Units: radians per token -> tokens.

    Positions themselves, as theta 1 has them:
    >>> from ropeaudit.arithmetic.formats import parse; first_shared_angle(Decimal(1), parse("bf16"))
    256
    """
    if theta == 0:
        return 0
    exact, ulp = Fraction(theta), Fraction(2) ** (fmt.emax - fmt.precision + 1)
    steps = Fraction(fmt.largest) / ulp
    limit = (steps + Fraction(1, 2)) * ulp / exact  # products overflow from here on
    past = math.ceil(limit) if steps % 2 else math.floor(limit) + 1
    lowest = fmt.emin - fmt.precision + 1
    exponent = max(exact.numerator.bit_length() - exact.denominator.bit_length() - 1, lowest)
    spacing = Fraction(2) ** exponent  # below theta nothing coincides
    start = Fraction(0) if exponent == lowest else spacing * 2 ** (fmt.precision - 1)
    while spacing < exact:
        spacing, start = 2 * spacing, spacing * 2**fmt.precision

    def held(position: int) -> Fraction:
        """Round half to even on the grid of `spacing`, finer below `start`."""
        value = position * exact
        grid = spacing if value >= start else spacing / 2
        return round(value / grid) * grid

    while (first := math.ceil(start / exact)) <= past:
        end = spacing * 2**fmt.precision
        for position in _candidates(exact / spacing, first):
            if 0 <= position < math.floor(end / exact) and held(position) == held(position + 1):
                return min(position, past)
        spacing, start = 2 * spacing, end
    return past


def _candidates(step: Fraction, first: int) -> Iterator[int]:
    """Yield, in order, where P * step may first round as (P + 1) * step does, from P = first - 1 on.

    With each step a product stands 1 - step earlier in its cell of the grid. Ends of cells change P by one.
    """
    yield first - 1
    earlier = 1 - step
    for start in (first, first + 1) if earlier else ():
        position = start + math.floor((start * step + Fraction(1, 2)) % 1 / earlier)
        yield from (position - 1, position)
