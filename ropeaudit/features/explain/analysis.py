"""Why scores drift: each stage's share, where the drift sits, and the smallest remedy.

`shares` says what is compared, `variants` measures it, `parts` splits the drift by pair, position and head,
`remedies` searches for what to widen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits import arguments, sampling
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import LIMIT, Case, fits, positions_fit
from ropeaudit.audits.sampling import Sample
from ropeaudit.audits.variants import Bench, Scene
from ropeaudit.engine.statistics import Spread
from ropeaudit.errors import UsageError
from ropeaudit.features.explain import causes, parts, remedies, shares
from ropeaudit.features.explain.parts import Parts
from ropeaudit.features.explain.remedies import Remedy, Search, Tolerance
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.rope.setting import RopeSetting

Progress = Callable[[float], None]

REST = "float64"  # what float64 in every stage leaves
_REST_SHOWN = 1e-6  # of the mean square
_DIGITS = 3  # of a share, by which stages are ranked
_SHARE_OF_WORK = 0.8  # of the time that the shares take


@dataclass(frozen=True, slots=True)
class Blame:
    """A stage and its part in the drift.

    alone: RMS drift with only this stage rounded; without: with only this one in float64; removed:
    1 - without / drift; share: Shapley value of the mean square drift over it. nan: not defined.
    """

    stage: str
    format: str
    alone: float
    without: float
    removed: float
    share: float
    cause: str


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Scores that are not finite: the stage that makes them, and those any of which repairs them all."""

    first: str
    repaired_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one recipe drifts at one offset.

    blames: every stage, the worst first. wavelengths: tokens, one a pair. cancelling: RMS of the summed
    |terms| of a score over the RMS score.
    """

    case: Case
    setting: RopeSetting
    inputs: Inputs
    recipe: Resolved
    offset: int
    sample: Sample
    drift: Spread
    reference: Spread
    error: float
    blames: tuple[Blame, ...]
    nonfinite: NonFinite | None
    tolerance: Tolerance
    remedies: tuple[Remedy, ...]
    parts: Parts
    wavelengths: Array
    cancelling: float

    @property
    def subject(self) -> str:
        """The recipe's name, with the changes made to it."""
        return self.recipe.recipe.name

    @property
    def remedy(self) -> Remedy | None:
        """The smallest set of stages that meets the tolerance."""
        return next((result for result in self.remedies if result.meets), None)


@arguments.checked
def explain(
    offsets: int | Iterable[int] = 1000,
    dtypes: Names = "bf16",
    recipes: Names = DEFAULT[0],
    *,
    tolerance: str | tuple[str, float] | None = None,
    changes: Mapping[str, str] | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Explanation]:
    """Say which stages of a recipe are to blame for its drift, where it sits, and what removes it.

    Yields one Explanation per recipe, dtype and offset, in that order.
    tolerance: what a remedy must reach, "drift_rms=1e-3" or ("drift_rms", 1e-3); by default a tenth of the
    RMS drift.
    offsets, dtypes, recipes, changes, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated.

    >>> [found] = explain(1000, "fp32", changes={"table": "fp16"}, heads=1, seq_len=32)
    >>> found.blames[0].stage, {stage: fmt.name for stage, fmt in found.remedy.widths.items()}
    ('table', {'table': 'float32'})
    """
    resolved = arguments.resolved(recipes, dtypes, changes)
    bound = remedies.parse(tolerance) if isinstance(tolerance, str) else None
    if isinstance(tolerance, tuple):
        bound = remedies.tolerance(*tolerance)
    numbers = arguments.numbers(offsets)
    return run(arguments.cases_of(cases, case), resolved, numbers, bound, on_progress or arguments.unheard)


def run(
    cases: Sequence[Case],
    chosen: Sequence[Resolved],
    offsets: Sequence[int],
    tolerance: Tolerance | None = None,
    progress: Progress = lambda share: None,
) -> Iterator[Explanation]:
    """Yield an explanation per case, recipe and offset, in that order.

    progress gets the share that is done, from 0 to 1. Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    for offset in offsets:
        if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)) or abs(offset) >= LIMIT:
            raise UsageError(f"offset {offset!r} is not a whole number of tokens below 2^53")
    fits(max(case.check(offsets) for case in cases))
    total, done = len(cases) * len(chosen) * len(offsets), 0
    for case in cases:
        inputs, setting = case.load()
        positions_fit(offsets, inputs.q.shape[1])
        for recipe in chosen:
            for offset in offsets:

                def part(share: float, start: int = done) -> None:
                    progress((start + share) / total)

                yield _One(case, inputs, setting, recipe, int(offset), part).explained(tolerance)
                done += 1


class _One:
    """One recipe at one offset."""

    def __init__(
        self,
        case: Case,
        inputs: Inputs,
        setting: RopeSetting,
        recipe: Resolved,
        offset: int,
        progress: Progress,
    ) -> None:
        self.case, self.inputs, self.setting = case, inputs, setting
        self.recipe, self.offset, self.progress = recipe, offset, progress
        every = np.arange(inputs.q.shape[1], dtype=np.int64)
        self.names = shares.players(recipe, every + offset)
        self.coalitions = list(shares.coalitions(self.names))
        sample = sampling.sample(
            inputs, setting, [shares.alone(recipe, self.names, some) for some in self.coalitions]
        )
        wide = recipe.narrowest > FP32.precision
        scene = Scene(
            inputs,
            setting,
            case.mask,
            case.position_axes(setting),
            offset,
            sample,
            "extended" if wide else "double",
        )
        self.bench = Bench(scene, recipe)
        (self.drift,) = self.bench.drifts([recipe])

    def explained(self, tolerance: Tolerance | None) -> Explanation:
        """Measure everything there is to say."""
        nonfinite = self._nonfinite() if self.drift.nonfinite else None
        values = self._values() if nonfinite is None else {}
        gathered = parts.gather(self.bench, self.recipe)
        terms = math.sqrt(gathered.terms / max(self.drift.count, 1))
        cancelling = terms / self.bench.reference.rms if self.bench.reference.rms else math.inf
        requested = tolerance or remedies.usual(self.drift)
        table = self.inputs.q.shape[1] + max(0, self.offset)
        names = [] if self.bench.reference.nonfinite else self.names
        search = Search(self.bench, self.recipe, names, requested, table)
        result = search.run(lambda share: self.progress(_SHARE_OF_WORK))
        self.progress(1.0)
        return Explanation(
            self.case,
            self.setting,
            self.inputs,
            self.recipe,
            self.offset,
            self.bench.scene.sample,
            self.drift,
            self.bench.reference,
            self.bench.error,
            self._blames(values, nonfinite, cancelling),
            nonfinite,
            requested,
            tuple(result),
            gathered,
            parts.wavelengths(self.bench),
            cancelling,
        )

    def _values(self) -> dict[shares.Coalition, float]:
        """Return the mean square drift of every coalition of stages, nan where a score is not finite."""
        some = [shares.alone(self.recipe, self.names, names) for names in self.coalitions]
        drifts = self.bench.drifts(some, lambda share: self.progress(_SHARE_OF_WORK * share))
        return {c: drift.rms**2 for c, drift in zip(self.coalitions, drifts, strict=True)}

    def _nonfinite(self) -> NonFinite:
        """Let stage after stage round: the first with which a score is not finite is to blame."""
        order = [stage for stage in recipes.STAGES if stage in self.names]
        prefixes = [order[:count] for count in range(len(order) + 1)]
        drifts = self.bench.drifts(shares.alone(self.recipe, self.names, some) for some in prefixes)
        first = next(count for count, drift in enumerate(drifts) if drift.nonfinite)
        repaired = self.bench.drifts(shares.without(self.recipe, [stage]) for stage in order)
        good = (stage for stage, drift in zip(order, repaired, strict=True) if not drift.nonfinite)
        return NonFinite(order[first - 1] if first else "input", tuple(good))

    def _blames(
        self, values: Mapping[shares.Coalition, float], nonfinite: NonFinite | None, cancelling: float
    ) -> tuple[Blame, ...]:
        whole, results, nobody = self.drift.rms, dict[str, float](), frozenset[str]()
        if values and whole:
            results = {stage: value / whole**2 for stage, value in shares.shapley(values).items()}
        stages, blames = self.recipe.stages(), []
        for stage in shares.SHARED:
            drifts = self.bench.drifts(
                [
                    shares.alone(self.recipe, self.names, [stage]),
                    shares.without(self.recipe, {stage} & set(self.names)),
                ]
            )
            left = drifts[1].rms
            share = results.get(stage, math.nan if nonfinite or not whole else 0.0)
            removed = 1.0 - left / whole if whole else math.nan
            first = nonfinite is not None and stage in (nonfinite.first, *nonfinite.repaired_by)
            overflows = first or (nonfinite is not None and drifts[0].nonfinite > 0)
            cause = causes.cause(stage, overflows, cancelling, self.setting.head_dim)
            blames.append(Blame(stage, stages[stage], drifts[0].rms, left, removed, share, cause))
        if nonfinite and nonfinite.first == "input":
            blames.append(Blame("input", stages["input"], math.nan, math.nan, math.nan, math.nan, "overflow"))
        blames.sort(key=lambda one: _badness(one, nonfinite))
        rest = values[nobody] / whole**2 if values and whole else math.nan
        if rest >= _REST_SHOWN:
            left = math.sqrt(values[nobody])
            blames.append(Blame(REST, "float64", left, math.nan, math.nan, rest, "none"))
        return tuple(blames)


def _badness(one: Blame, nonfinite: NonFinite | None) -> tuple[bool, float]:
    """Sort key: the stage that loses scores first, then by share; equals stay in the order of stages."""
    share = 0.0 if math.isnan(one.share) else round(one.share, _DIGITS)
    return not (nonfinite and nonfinite.first == one.stage), -share
