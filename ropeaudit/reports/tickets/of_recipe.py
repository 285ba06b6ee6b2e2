"""The snippet of a recipe: its stages, one after the other, in torch alone.

Each operation is done in float64 and rounded once to the stage's dtype, by `to`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ropeaudit.arithmetic.formats import FP32, FP64, Format, parse
from ropeaudit.recipes import Resolved
from ropeaudit.reports.tickets.inputs import DTYPES, Setup
from ropeaudit.reports.tickets.reproduction import NoSnippet
from ropeaudit.rope.scaled import effective_base


def lines(setup: Setup, recipe: Resolved) -> list[str]:
    """Return the lines between q and k and the scores, which are in `rotated(q)`. Raises: NoSnippet."""
    form = recipe.recipe.frequency_form
    (computed, stored), (product, angle) = recipe.frequency, recipe.angle
    return [
        f"theta = {_rounded(_frequencies(setup, form, computed), stored)}",
        f"angle = {_rounded(_angles(setup, recipe, product), angle)}",
        f"cos, sin = {_trig(setup, recipe, 'cos')}, {_trig(setup, recipe, 'sin')}",
        f"def rotated(y, a, b): return {_rotated(setup, recipe)}",
    ]


def scores(setup: Setup, recipe: Resolved) -> str:
    """Return the recipe's scores: an expression. Raises: NoSnippet."""
    sums, d = recipe.accumulate, setup.setting
    if sums not in (FP32, FP64):
        raise NoSnippet(f"torch cannot be told to sum in {sums}")
    q, k = (f"rotated({y}, *{setup.pairs(f'{y}.double()')})" for y in "qk")
    wide = "" if sums is FP64 else ".float()"
    dot = f"({q}{wide} @ {k}{wide}.mT)" + ("" if sums is FP64 else ".double()")
    if d.scale == 1.0:
        return _rounded(dot, recipe.score)
    if recipe.recipe.scale_after_store:
        dot = _rounded(dot, recipe.score)
    return _rounded(
        f"{setup.scale()}{dot}", recipe.score if recipe.score.precision < sums.precision else FP64
    )


def imported(lines: Sequence[str]) -> str:
    """Return the line that imports the dtypes of other lines."""
    text = " ".join(lines)
    names = [f"{name} as {own}" for name, own in DTYPES.items() if re.search(rf"\b{own}\)", text)]
    return f"from torch import {', '.join(names)}"


TO = "def to(y, dtype): return y.to(dtype).double()  # rounds once"


def _rounded(expression: str, fmt: Format) -> str:
    """Return an expression rounded to a format, unless it is already."""
    if fmt is FP64:
        return expression
    if fmt.name not in DTYPES:
        raise NoSnippet(f"torch has no {fmt}")
    name = DTYPES[fmt.name]
    done = expression.endswith(f", {name})") and _whole(expression)
    return expression if done else f"to({expression}, {name})"


def _whole(expression: str) -> bool:
    """Return whether an expression is a single call of `to`."""
    depth = 0
    for place, letter in enumerate(expression):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter == ")":
            return expression.startswith("to(") and place == len(expression) - 1
    return False


def _frequencies(setup: Setup, form: str, fmt: Format) -> str:
    """Return the numbers that a form stores: an expression of x."""
    base = repr(effective_base(setup.setting))
    x = _rounded("x", fmt)
    powers = {"inverse_power": f"{base} ** {x}", "divide": f"{base} ** {x}", "power": f"{base} ** -{x}"}
    if form not in powers or (form == "divide" and setup.setting.scaling.rules.rescales):
        raise NoSnippet(f"frequencies of the form {form} take more than a few lines")
    power = _rounded(powers[form], fmt)
    if form == "inverse_power":
        power = _rounded(f"1 / {power}", fmt)
    return _rounded(f"scaled({power})", fmt) if setup.setting.scaling.rules.rescales else power


def _angles(setup: Setup, recipe: Resolved, fmt: Format) -> str:
    at = _rounded(f"({setup.shifted}).double()", recipe.position)
    sign = "/" if recipe.recipe.frequency_form == "divide" else "*"
    return _rounded(f"{at}[:, None] {sign} theta", fmt)


def _trig(setup: Setup, recipe: Resolved, name: str) -> str:
    value = _rounded(f"angle.{name}()", recipe.trig)
    if setup.factor:
        value = _rounded(f"{setup.factor}{value}", recipe.trig)
    return _rounded(value, recipe.table) if recipe.table else value


def _rotated(setup: Setup, recipe: Resolved) -> str:
    """Return y rotated, from the two halves of its pairs: an expression."""
    fmt, once = recipe.rotation, recipe.recipe.rotation_rounding == "once"

    def combined(left: str, right: str, sign: str) -> str:
        products = (left, right) if once else (_rounded(left, fmt), _rounded(right, fmt))
        return _rounded(f"{products[0]} {sign} {products[1]}", fmt)

    d = setup.setting
    parts = f"{combined('a * cos', 'b * sin', '-')}, {combined('b * cos', 'a * sin', '+')}"
    rest = f", y[..., {d.rotary_dim}:].double()" if d.rotary_dim < d.head_dim else ""
    if recipe.input.precision < _precision(setup):
        raise NoSnippet("its input stage is narrower than q and k")
    cat = f"torch.cat([{parts}{rest}], -1)"
    return cat if recipe.output.precision >= fmt.precision else _rounded(cat, recipe.output)


def _precision(setup: Setup) -> int:
    """Return the precision in bits of q and k as the snippet makes them."""
    return parse(setup.dtype).precision
