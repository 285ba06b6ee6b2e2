"""How exact scores, RoFormer's bound and the sum of Men et al. change with distance, at every distance.

    score(m)   = scale * (R(m) q)·(R(0) k), of every query with every key of its head
    bound(m)   = (1/p) sum_{j=1}^{p} |sum_{i<j} e^{i m theta_i}|
    men_sum(m) = sum_i cos(m theta_i)

An attention factor multiplies the scores alone. With clipped angles m is the query's position.
Letters: h heads, s distances, d head_dim, p rotary_dim/2 pairs, t = 2p + 1 terms of a score.
Sources: RoFormer, arXiv 2104.09864, section 3.4.3; Men et al., arXiv 2405.14591; Barbero et al., 2410.06205.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array, two_product
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import DTYPES, Names, OnProgress, RopeArguments, as_list
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.engine import kernel
from ropeaudit.errors import BadShape, UsageError
from ropeaudit.inputs import qk as inputs
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.reference import exact_frequencies, exact_scores
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.answers import Answer
from ropeaudit.reports.numbers import percent, short
from ropeaudit.reports.settings import labels
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import table
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

USUAL, LARGEST = 2**16, 2**24  # largest distance: where nothing says another, and at all
_MOST_ROWS = 200_000
_WIDE = 20  # largest over smallest from which on distances are logarithmic
_BLOCK = 2048  # distances computed at once
_ROUNDING = 1e-9  # of the bound: less is no rise
SCHEMA = 2
COLUMNS = table("decay")
_OF_SETTING = ("head_dim", "rotary_dim", "base", "clip", "layout", "scale")
_NUMBERS = (
    *("score_mean", "score_rms", "bound", "men_sum", "subject_mean", "subject_rms", "drift_rms"),
    *("mean_relative", "rms_relative", "drift_relative"),
)

Units = NDArray[np.complex128]  # e^{i m theta_i}: pairs by distances


@dataclass(frozen=True, slots=True)
class DecayCurves(Result):
    """The rows of the requested distances, and findings at all distances, in one setting.

    rows: by q and k, recipe, distance. levels: of q and k the RMS score from distance `half` on, over that at
    0. low, top: where the bound's largest rise begins and ends. failing: first with a negative sum.
    """

    report_module: ClassVar[str] = __name__
    case: Case
    setting: RopeSetting
    rows: Sequence[Mapping[str, Any]]
    half: int
    levels: Mapping[str, float]
    low: tuple[int, float]
    top: tuple[int, float]
    failing: int | None


def round_values(first: int, last: int) -> list[int]:
    """Return a few round distances from `first` to `last`, both included.

    1, 2, 5, 10, ... over a wide range, 17 evenly spaced ones over a narrow one.
    >>> round_values(0, 50)
    [0, 1, 2, 5, 10, 20, 50]
    """
    if last >= _WIDE * max(first, 1):
        steps = [digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5)]
        values = [first, *(step for step in steps if first < step < last), last]
    else:
        values = [first + round((last - first) * part / 16) for part in range(17)]
    return list(dict.fromkeys(values))


@arguments.public
def decay(
    distances: int | Iterable[int] | None = None,
    qk: Names = ("ones", "gaussian"),
    dtypes: Names = (),
    recipes: Names = (),
    *,
    vectors: int = 64,
    seed: int = 0,
    changes: Mapping[str, str] | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[RopeArguments],
) -> Iterator[DecayCurves]:
    """Measure how scores change with the distance between query and key.

    Yields DecayCurves setting by setting.
    distances: positions of the query, the key stands at 0; by default a few up to the model's maximum.
    qk: "ones", "gaussian", ..., or files with captured q and k. vectors: queries and keys of a head, at most.
    dtypes, recipes, changes: whose scores are compared; none by default, and all that are not given where one
    is. All else is as in `ropeaudit.shift`; q and k of cases are not looked at.
    Raises: UsageError, UnknownName, BadShape, BadInput.

    >>> [ones] = decay([0, 1707], "ones", head_dim=128)
    >>> ones.failing
    1707
    """
    compared, kinds = requested(recipes, dtypes, changes), as_list(qk)
    given = arguments.cases_from(cases, case)
    files = {name: inputs.from_file(name) for name in kinds if inputs.is_file(name)}
    for name in kinds:
        if name not in files:
            inputs.check_kind(name, inputs.WHOLE)
    for captured in list(files.values())[:1]:  # its head_dim is the default
        size = captured.q.shape[2]
        alone = [(one.head_dim, one.model, one.config) == (None, None, None) for one in given]
        given = [replace(one, head_dim=size) if own else one for one, own in zip(given, alone, strict=True)]
    longest = max((one.maximum for one in given if one.maximum is not None), default=USUAL)
    asked = round_values(0, longest) if distances is None else arguments.integers(distances)
    if not asked:
        raise UsageError("there are no distances; try --distance 0-50000")
    for distance in asked:
        if not 0 <= distance <= LARGEST:
            raise UsageError(f"--distance {distance} is not a distance from 0 to {LARGEST}; try 0-50000")
    count = len(given) * len(kinds) * len(compared)
    if count * len(asked) > _MOST_ROWS:
        raise UsageError(
            f"these lists make {count} cases of {len(asked)} distances; at most {_MOST_ROWS} rows are "
            "allowed: shorten one"
        )
    for one, step in zip(
        given, arguments.equal_parts(on_progress or arguments.ignore_progress, len(given)), strict=True
    ):
        setting, exact = one.setting(one.maximum or 0), list[_Scores]()
        for name in kinds:
            size = vectors if name == "gaussian" else 1
            made = files.get(name) or inputs.make(name, 1, 1, size, setting, seed)
            exact.append(_Scores(setting, _sampled(made, vectors, setting)))
        yield _measured(one, exact, asked, compared, step)


def requested(
    recipes: Names,
    dtypes: Names,
    changes: Mapping[str, str] | None,
) -> Sequence[Resolved | None]:
    """Return every recipe in every dtype, usual ones by default; none if all are left out."""
    if not (as_list(recipes) or as_list(dtypes) or changes):
        return [None]
    return arguments.resolve_recipes(as_list(recipes) or DEFAULT, as_list(dtypes) or DTYPES, changes)


def _sampled(inputs: Inputs, most: int, setting: RopeSetting) -> Inputs:
    """Return at most `most` vectors of every head, evenly spaced. Raises: BadShape."""
    size = inputs.q.shape[2]
    if size != setting.head_dim:
        raise BadShape(
            f"q and k of {inputs.source!r} have head_dim {size} and the setting {setting.head_dim}; give "
            f"--head-dim {size}"
        )
    rows = np.unique(np.linspace(0, inputs.seq_len - 1, min(most, inputs.seq_len)).round().astype(int))
    return replace(inputs, q=inputs.q[:, rows], k=inputs.k[:, rows])


class _Scores:
    """Exact scores of every query with every key of its head: forms in the cos and sin of pairs, and 1.

    mean: coefficients of their mean, (t,). square: of their mean square, (t, t).
    """

    def __init__(self, setting: RopeSetting, inputs: Inputs) -> None:
        self.setting, self.inputs = setting, inputs
        terms, count = 2 * setting.pairs + 1, inputs.heads * inputs.seq_len**2
        self.mean, self.square = np.zeros(terms), np.zeros((terms, terms))
        factor = float(exact_frequencies.attention_factor(setting.scaling)) ** 2
        for head, queries in enumerate(inputs.q.astype(np.float64)):
            keys = inputs.k[head // inputs.group].astype(np.float64)
            first, second = split_pairs(keys, setting)
            for query in queries:
                a, b = split_pairs(query, setting)
                rotated = factor * (a * first + b * second), factor * (a * second - b * first)
                still = keys[:, setting.rotary_dim :] @ query[setting.rotary_dim :]
                each = setting.scale * np.concatenate([*rotated, still[:, None]], axis=1)
                self.mean += each.sum(axis=0) / count
                self.square += each.T @ each / count
        _, [self.start] = self.at(_units(setting, np.zeros(1)))

    def at(self, units: Units) -> tuple[Array, Array]:
        """Return their mean and RMS. Shapes: (p, s) -> two of (s,)."""
        terms = _terms(units)
        mean, square = self.mean @ terms, np.einsum("ts,ts->s", terms, self.square @ terms)
        return mean, np.sqrt(np.maximum(square, mean * mean))


def _terms(units: Units) -> Array:
    return np.concatenate([units.real, units.imag, np.ones((1, units.shape[1]))])


def _units(setting: RopeSetting, distances: Array) -> Units:
    """Return e^{i m theta_i}, of angles that are reduced before rounding. Shapes: (s,) -> (p, s)."""
    high, middle, _ = (word[:, None] for word in exact_scores.rotations_per_token(setting))
    turns, rest = two_product(distances, high)
    units: Units = np.exp(2j * np.pi * (turns - np.rint(turns) + (rest + distances * middle)))
    if setting.clipped:
        units[2 * np.pi * turns > setting.clip] = np.exp(1j * setting.clip)
    return units


def _bound_and_sum(units: Units) -> tuple[Array, Array]:
    """Return RoFormer's bound and the sum of Men et al. Shapes: (p, s) -> two of (s,)."""
    total = np.zeros(units.shape[1], complex)
    bound = np.full(total.size, 0.0 if len(units) else math.nan)
    for unit in units:
        total += unit
        bound += np.sqrt(total.real**2 + total.imag**2) / len(units)
    return bound, total.real


def _measured(
    case: Case,
    exact: Sequence[_Scores],
    asked: Sequence[int],
    compared: Sequence[Resolved | None],
    on_progress: OnProgress,
) -> DecayCurves:
    """Measure one setting: rows for inputs and recipes, and findings at all distances, in blocks.

    The units of a block are those of its first distance times those of 0, 1, ...: one more rounding.
    """
    setting, first, last = exact[0].setting, min(asked), max(asked)
    half, run = (first + last + 1) // 2, np.arange(float(_BLOCK))
    shared, gram, failing = _units(setting, run), np.zeros_like(exact[0].square), None
    low = top = (first, math.nan)
    places, heights, rise = np.zeros(0), np.zeros(0), -1.0  # of the bound: its least so far, then a block
    through, *steps = arguments.equal_parts(on_progress, 1 + len(exact) * len(compared))
    for start in range(0, last + 1, _BLOCK):
        at = start + run[: last + 1 - start]
        units = _units(setting, at[:1]) * shared[:, : at.size]
        if setting.clipped:  # angles do not add up
            units = _units(setting, at)
        bound, sums = _bound_and_sum(units)
        if failing is None and (sums < 0.0).any():
            failing = start + int(np.argmax(sums < 0.0))
        far = _terms(units[:, at >= half])
        gram += far @ far.T / (last + 1 - half)
        places = np.append(places, at[at >= first])
        heights = np.append(heights, bound[at >= first])
        if heights.size:
            rises = heights - np.minimum.accumulate(heights)
            end = int(np.argmax(rises))
            if rises[end] > rise:
                begin, rise = int(np.argmin(heights[: end + 1])), rises[end]
                low, top = ((int(places[one]), float(heights[one])) for one in (begin, end))
            least = slice(int(np.argmin(heights)), None)
            places, heights = places[least][:1], heights[least][:1]
        through((start + at.size) / (last + 1))
    levels, rows = dict[str, float](), list[dict[str, Any]]()
    for one in exact:
        with np.errstate(invalid="ignore", divide="ignore"):
            level = np.sqrt(max((one.square * gram).sum(), 0.0)) / one.start
        levels[one.inputs.source] = float(level)
        for recipe in compared:
            rows += _rows(one, asked, recipe)
            steps.pop(0)(1.0)
    return DecayCurves(case, setting, rows, half, levels, low, top, failing)


def _rows(
    exact: _Scores,
    asked: Sequence[int],
    recipe: Resolved | None,
) -> Iterator[dict[str, Any]]:
    """Yield a row per distance; q and k are first rounded to a recipe's input."""
    setting, some = exact.setting, exact.inputs
    about: dict[str, Any] = {name: getattr(setting, name) for name in _OF_SETTING}
    about |= {"scaling": str(setting.scaling), "source": some.source, "seed": some.seed}
    about |= {"heads": some.heads, "vectors": some.seq_len, "implementation": None, "dtype": None}
    if recipe is not None:
        about |= {"implementation": recipe.recipe.name, "dtype": recipe.dtype.name}
        q, k = (round_to(x, recipe.input) for x in (some.q, some.k))
        some = replace(some, q=q, k=k)  # type: ignore[arg-type]  # in the format's carrier
        exact = _Scores(setting, some)
    for start in range(0, len(asked), _BLOCK):
        block = asked[start : start + _BLOCK]
        at, own = np.array(block, float), np.full((3, len(block)), math.nan)
        if recipe is not None:
            own = _own_scores(setting, some, recipe, at.astype(np.int64))
        units = _units(setting, at)
        mean, rms = exact.at(units)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = mean / exact.start, rms / exact.start, own[2] / rms
        each = np.stack([mean, rms, *_bound_and_sum(units), *own, *relative], axis=1).tolist()
        for distance, values in zip(block, each, strict=True):
            yield {**about, "distance": distance, **dict(zip(_NUMBERS, values, strict=True))}


def _own_scores(
    setting: RopeSetting,
    inputs: Inputs,
    recipe: Resolved,
    distances: Positions,
) -> Array:
    """Return mean and RMS of a recipe's scores, and RMS of their drift. Shapes: (s,) -> (3, s)."""
    subject, origin = Emulated(recipe, setting), np.zeros(inputs.seq_len, np.int64)
    precision: exact_scores.Precision = "extended" if recipe.narrowest > FP32.precision else "double"
    at_q, at_k = (subject.table(x, 0) for x in (distances, origin))
    exact_at_q, exact_at_k = (
        exact_scores.distance_table(x.astype(np.float64), setting) for x in (distances, origin)
    )
    sums = np.zeros((3, distances.size))
    for head, queries in enumerate(inputs.q):
        keys = inputs.k[head // inputs.group]
        exact_k = kernel.rotate_exactly(keys, exact_at_k, setting, precision)
        own_k = kernel.operand(kernel.rotate(subject, "k", keys, at_k), subject).T
        for query in queries:
            same = np.broadcast_to(query, (distances.size, query.size))
            exact_q = kernel.rotate_exactly(same, exact_at_q, setting, precision, setting.scale)
            own_q = kernel.operand(kernel.rotate(subject, "q", same, at_q), subject)
            with np.errstate(invalid="ignore", over="ignore"):
                own = kernel.formed(own_q, own_k, subject, setting.scale)
                drift = kernel.minus_exact(own, exact_scores.product(exact_q, exact_k))
                sums += [own.sum(axis=1), (own * own).sum(axis=1), (drift * drift).sum(axis=1)]
    mean, square, drift_square = sums / (inputs.heads * inputs.seq_len**2)
    return np.array([mean, np.sqrt(square), np.sqrt(drift_square)])


def report(
    results: Sequence[DecayCurves],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    names = labels([curves.case for curves in results])
    rows = [
        {"setting": name, **row, "first_failing": curves.failing}
        for name, curves in zip(names, results, strict=True)
        for row in curves.rows
    ]
    varying = [name for name in ("setting", "source") if len({row[name] for row in rows}) > 1]
    shown = [name for name in COLUMNS.screen(rows) if name != "first_failing" or len(results) > 1]
    some = [answer(name, curves) for name, curves in zip(names, results, strict=True)]
    screen = [*varying, *shown]
    return tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata, some)


def answer(name: str, curves: DecayCurves) -> Answer:
    """Return the answer about one setting at all distances."""
    last, maximum = max(row["distance"] for row in curves.rows), curves.case.maximum
    within = curves.failing is not None and maximum is not None and curves.failing < maximum
    decides = f"the sum of Men et al. is not negative to distance {last:,}"
    if curves.failing is not None:
        decides = f"the sum of Men et al. is first negative at {curves.failing:,}"
        side = "within" if within else "past"
        decides += f", {side} its {maximum:,} positions" if maximum is not None else ""
    levels = ", ".join(f"{source} {percent(level)}" for source, level in curves.levels.items())
    (low, least), (top, most) = curves.low, curves.top
    bound = f"does not rise to distance {last:,}" if curves.setting.pairs else "nothing is rotated"
    if most - least > _ROUNDING * most:
        bound = f"not monotone: largest rise from {short(least)} at {low:,} to {short(most)} at {top:,}"
    facts = [
        ("scores", f"from distance {curves.half:,} on, RMS relative to distance 0: {levels}"),
        ("RoFormer bound", bound),
    ]
    drifting, lost = [row for row in curves.rows if row["implementation"] is not None], False
    if drifting:
        undefined = [row for row in drifting if math.isnan(row["drift_relative"])]
        lost = bool(undefined)
        worst = undefined[0] if lost else max(drifting, key=lambda row: row["drift_relative"])
        size = percent(worst["drift_relative"])
        who = f"{worst['implementation']} in {worst['dtype']} at {worst['distance']:,}"
        facts.append(("drift", f"of these rows the most is {size} ({who})"))
    return Answer("WARN" if within or lost else "OK", name, decides, facts=facts)
