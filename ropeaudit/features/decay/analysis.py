"""How exact scores, RoFormer's bound and the sum of Men et al. change with distance, at every distance.

    score(m)   = scale * (R(m) q)·(R(0) k), of every query with every key of its head
    bound(m)   = (1/p) sum_{j=1}^{p} |sum_{i<j} e^{i m theta_i}|
    men_sum(m) = sum_i cos(m theta_i)

An attention factor multiplies the scores alone. With clipped angles m is the query's position.
Letters: h heads, s distances, d head_dim, p rotary_dim/2 pairs, n vectors of a head. Distances in tokens.
Sources: RoFormer, arXiv 2104.09864, section 3.4.3; Men et al., arXiv 2405.14591; Barbero et al., 2410.06205.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments, labels
from ropeaudit.audits.arguments import Names, OnProgress, RopeArguments
from ropeaudit.audits.audit import DTYPES
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.engine import kernel, scores
from ropeaudit.errors import BadShape, UsageError
from ropeaudit.inputs import qk as inputs
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.reference import exact_frequencies, exact_scores
from ropeaudit.reports.charts.axes import dense, round_values
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.emulated import Emulated

USUAL, LARGEST = 2**16, 2**24  # largest distance: where nothing says another, and at all
_MOST_VECTORS, _MOST_ROWS = 1024, 200_000
_BLOCK = 2048  # distances computed at once
_NUMBERS = (
    *("score_mean", "score_rms", "bound", "men_sum", "subject_mean", "subject_rms", "drift_rms"),
    *("mean_relative", "rms_relative", "drift_relative"),
)


@dataclass(frozen=True, slots=True)
class DecayCurves(Result):
    """Rows of one setting, q and k, and perhaps recipe, and what holds of every distance up to the largest.

    curve: exact rows enough to draw. level: RMS score at distances from `half` on, over that at 0. low, top:
    where the bound's largest rise begins and ends. failing: first distance with a negative sum.
    """

    report_module: ClassVar[str] = "ropeaudit.features.decay.report"
    setting: RopeSetting
    rows: Sequence[Mapping[str, Any]]
    curve: Sequence[Mapping[str, Any]]
    half: int
    level: float
    low: tuple[int, float]
    top: tuple[int, float]
    failing: int | None
    maximum: int | None


@arguments.checked
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

    Yields DecayCurves setting by setting, by q and k, by recipe and dtype.
    distances: positions of the query, the key stands at 0; by default a few up to the model's maximum.
    qk: "ones", "gaussian", ..., or files with captured q and k. vectors: queries and keys of a head, at most.
    seed: of gaussian q and k. dtypes, recipes, changes: whose scores are compared; none by default, and all
    that are not given where one is.
    cases, on_progress, case: as in `ropeaudit.shift`; q and k of cases are not looked at.
    Raises: UsageError, UnknownName, BadShape, BadInput.

    >>> [ones] = decay([0, 1707], "ones", head_dim=128)
    >>> ones.failing
    1707
    """
    given, compared = arguments.cases_of(cases, case), requested(recipes, dtypes, changes or {})
    at = None if distances is None else arguments.numbers(distances)
    return run(given, at, arguments.listed(qk), compared, vectors, seed, on_progress or arguments.silent)


def run(
    cases: Sequence[Case],
    distances: Sequence[int] | None,
    qk: Sequence[str],
    compared: Sequence[Resolved | None],
    vectors: int,
    seed: int,
    on_progress: OnProgress,
    labelled: Callable[[Sequence[Case]], Sequence[str]] = labels.labels,
) -> Iterator[DecayCurves]:
    """Yield what `decay` does. labelled: from cases to what their settings are called."""
    files = {name: inputs.from_file(name) for name in qk if inputs.is_file(name)}
    for name in qk:
        if name not in files:
            inputs.check_kind(name, inputs.WHOLE)
    for captured in files.values():  # its head_dim counts where nothing else says one
        alone = [(case.head_dim, case.model, case.config) == (None, None, None) for case in cases]
        size = captured.q.shape[2]
        cases = [
            replace(case, head_dim=size) if one else case for case, one in zip(cases, alone, strict=True)
        ]
    longest = max((case.maximum for case in cases if case.maximum is not None), default=USUAL)
    at = round_values(0, longest) if distances is None else distances
    check(at, len(cases) * len(qk) * len(compared))
    work = arguments.steps(on_progress, len(cases) * len(qk) * len(compared))
    for case, label, setting in zip(cases, labelled(cases), labels.settings(cases), strict=True):
        for name in qk:
            count = vectors if name == "gaussian" else 1
            made = files.get(name) or inputs.make(name, 1, 1, count, setting, seed)
            exact = Exact(setting, _sampled(made, vectors, setting), max(at))
            for result in _of_vectors(label, case.maximum, exact, at, compared):
                yield result
                next(work)(1.0)


def requested(recipes: Names, dtypes: Names, changes: Mapping[str, str]) -> list[Resolved | None]:
    """Return every recipe in every dtype, the usual ones where one is left out, and none where all are.

    Raises: UsageError, UnknownName, BadInput, NotEmulated.
    """
    names, formats = arguments.listed(recipes), arguments.listed(dtypes)
    if not (names or formats or changes):
        return [None]
    return list(arguments.resolved(names or DEFAULT, formats or DTYPES, changes))


def check(distances: Sequence[int], cases: int = 1) -> None:
    """Raise UsageError unless there are distances, from 0 to the largest, and not too many rows of them."""
    if not distances:
        raise UsageError("there are no distances; try --distance 0-50000")
    for distance in distances:
        if not 0 <= distance <= LARGEST:
            raise UsageError(f"--distance {distance} is not a distance from 0 to {LARGEST}; try 0-50000")
    if cases * len(distances) > _MOST_ROWS:
        raise UsageError(
            f"these lists make {cases} cases of {len(distances)} distances; at most {_MOST_ROWS} rows are "
            "allowed: shorten one"
        )


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


class Exact:
    """The exact curves of a setting and of some q and k, at distances up to `last`.

    Angles are reduced in double-double at every 2048th distance and at the first 2048, and added:
    cos(M + r) = cos M cos r - sin M sin r, within 8 roundings. Scores are a linear form in the cos and sin of
    the pairs, and their squares a quadratic one, summed here over every query with every key of its head.
    """

    def __init__(self, setting: RopeSetting, inputs: Inputs, last: int) -> None:
        """Take vectors (h, n, d)."""
        self.setting, self.inputs = setting, inputs
        self.plain = without_factor(replace(setting, clip=math.inf))
        self.steps = self.turned(np.arange(_BLOCK, dtype=np.int64))
        self.origins = self.turned(np.arange(0, last + 1, _BLOCK, dtype=np.int64))
        terms, count = 2 * setting.pairs + 1, inputs.heads * inputs.seq_len**2
        self.mean, self.square = np.zeros(terms), np.zeros((terms, terms))
        factor = float(exact_frequencies.attention_factor(setting.scaling)) ** 2
        for head, queries in enumerate(inputs.q.astype(np.float64)):
            keys = inputs.k[head // inputs.group].astype(np.float64)
            first, second = split_pairs(keys, setting)
            for query in queries:
                a, b = split_pairs(query, setting)
                of_pairs = factor * np.concatenate([a * first + b * second, a * second - b * first], axis=1)
                unrotated = keys[:, setting.rotary_dim :] @ query[setting.rotary_dim :]
                each = setting.scale * np.concatenate([of_pairs, unrotated[:, None]], axis=1)
                self.mean += each.sum(axis=0) / count
                self.square += each.T @ each / count
        self.start = float(self.at([0])[1, 0])

    def turned(self, distances: Positions) -> tuple[Array, Array]:
        """Return cos and sin of unclipped angles, correct to a bit. Shapes: (s,) -> two of (p, s)."""
        (cos, _), (sin, _) = exact_scores.distance_table(distances.astype(np.float64), self.plain)
        return np.ascontiguousarray(cos.T), np.ascontiguousarray(sin.T)

    def at(self, distances: Sequence[int]) -> Array:
        """Return mean and RMS of the scores, bound and sum. Shapes: (s,) -> (4, s)."""
        return np.concatenate([self._block(one) for one in _blocks(distances)], axis=1)

    def _block(self, distances: Positions) -> Array:
        (cos_m, sin_m), (cos_r, sin_r) = (
            (cos[:, at], sin[:, at])
            for (cos, sin), at in ((self.origins, distances // _BLOCK), (self.steps, distances % _BLOCK))
        )
        cos, sin = cos_m * cos_r - sin_m * sin_r, sin_m * cos_r + cos_m * sin_r
        if self.setting.clipped:
            angles = 2 * np.pi * exact_scores.rotations_per_token(self.setting)[0][:, None] * distances
            beyond, clip = np.abs(angles) > self.setting.clip, self.setting.clip
            cos = np.where(beyond, math.cos(clip), cos)
            sin = np.where(beyond, np.sign(angles) * math.sin(clip), sin)
        across, up, bound = np.full((3, distances.size), 0.0 if len(cos) else np.nan)
        for one_cos, one_sin in zip(cos, sin, strict=True):
            across += one_cos
            up += one_sin
            bound += np.sqrt(across * across + up * up)
        x = np.concatenate([cos, sin, np.ones((1, distances.size))])
        mean, square = self.mean @ x, np.einsum("ts,ts->s", x, self.square @ x)
        return np.array([mean, np.sqrt(np.maximum(square, mean * mean)), bound / max(len(cos), 1), across])

    def first_failing(self, sums: Array) -> int | None:
        """Return the first distance whose sum is negative; what float64 cannot tell is summed exactly.

        Shapes: sums (s,) of the distances from 0.
        """
        doubt = 4.0 * (self.setting.pairs + 8) * self.setting.pairs * 2.0**-53
        plain = without_factor(self.setting)
        for distance in np.flatnonzero(sums < doubt).tolist():
            cos, _ = exact_scores.distance_table(np.array([float(distance)]), plain)
            if sums[distance] < -doubt or math.fsum(np.concatenate(cos, axis=1)[0]) < 0.0:
                return int(distance)
        return None


def without_factor(setting: RopeSetting) -> RopeSetting:
    """Return the same angles without an attention factor."""
    if exact_frequencies.attention_factor(setting.scaling) == 1:
        return setting
    return replace(setting, scaling=replace(setting.scaling, attention_factor=1.0))


def _of_vectors(
    label: str, maximum: int | None, exact: Exact, asked: Sequence[int], compared: Sequence[Resolved | None]
) -> Iterator[DecayCurves]:
    """Yield the rows asked for, with each recipe's scores, and what holds of every distance."""
    first, last = min(asked), max(asked)
    half = (first + last + 1) // 2
    _, rms, bound, sums = exact.at(range(last + 1))
    failing = exact.first_failing(sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        level = float(np.sqrt(np.mean(rms[half:] ** 2)) / np.float64(exact.start))
    top = first + int(np.argmax(bound[first:] - np.minimum.accumulate(bound[first:])))
    low = first + int(np.argmin(bound[first : top + 1]))
    beside = () if failing is None else (failing - 1, failing)
    common = {"setting": label, "first_failing": failing}
    curve = _rows(common, exact, sorted({*dense(first, last), low, top, *beside}), None)
    for recipe in compared:
        yield DecayCurves(
            setting=exact.setting,
            rows=_rows(common, exact, asked, recipe),
            curve=curve,
            half=half,
            level=level,
            low=(low, float(bound[low])),
            top=(top, float(bound[top])),
            failing=failing,
            maximum=maximum,
        )


def _rows(
    common: Mapping[str, Any], exact: Exact, distances: Sequence[int], recipe: Resolved | None
) -> list[dict[str, Any]]:
    """Return the row of every distance; q and k are rounded to a recipe's input format first."""
    setting, some, own = exact.setting, exact.inputs, np.full((3, len(distances)), np.nan)
    if recipe is not None:
        q, k = (round_to(x, recipe.input) for x in (some.q, some.k))
        some = replace(some, q=q, k=k)  # type: ignore[arg-type]  # in the format's carrier
        exact = Exact(setting, some, max(distances))
        own = np.concatenate([own_scores(one, setting, some, recipe) for one in _blocks(distances)], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = exact.at(distances)
        relative = [*(values[:2] / np.float64(exact.start)), own[2] / values[1]]
    about = {
        **{name: getattr(setting, name) for name in ("head_dim", "rotary_dim", "base", "clip", "layout")},
        "scaling": str(setting.scaling),
        "scale": setting.scale,
        "source": some.source,
        "seed": some.seed,
        "heads": some.heads,
        "vectors": some.seq_len,
        "implementation": recipe.recipe.name if recipe else None,
        "dtype": recipe.dtype.name if recipe else None,
    }
    return [
        {**common, **about, "distance": distance, **dict(zip(_NUMBERS, row, strict=True))}
        for distance, row in zip(distances, np.concatenate([values, own, relative]).T.tolist(), strict=True)
    ]


def _blocks(distances: Sequence[int]) -> list[Positions]:
    every = np.array(distances, np.int64)
    return np.array_split(every, every.size // _BLOCK + 1)


def own_scores(distances: Positions, setting: RopeSetting, inputs: Inputs, recipe: Resolved) -> Array:
    """Return mean and RMS of a recipe's scores of rounded q and k, and the RMS of their drift.

    Shapes: (s,), inputs (h, n, d) -> (3, s).
    """
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
        own_k = scores.operand(kernel.rotate(subject, "k", keys, at_k), subject).T
        for query in queries:
            same = np.broadcast_to(query, (distances.size, query.size))
            exact_q = kernel.rotate_exactly(same, exact_at_q, setting, precision, setting.scale)
            own_q = scores.operand(kernel.rotate(subject, "q", same, at_q), subject)
            with np.errstate(invalid="ignore", over="ignore"):
                own = scores.formed(own_q, own_k, subject, setting.scale)
                drift = kernel.minus_exact(own, exact_scores.product(exact_q, exact_k))
                sums += [own.sum(axis=1), (own * own).sum(axis=1), (drift * drift).sum(axis=1)]
    mean, square, drift_square = sums / (inputs.heads * inputs.seq_len**2)
    return np.array([mean, np.sqrt(square), np.sqrt(drift_square)])
