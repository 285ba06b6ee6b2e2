"""Curves of several settings, q and k, and recipes: what `ropeaudit decay` shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Unpack

from ropeaudit.audits import arguments
from ropeaudit.audits import labels as naming
from ropeaudit.audits.arguments import Names, OnProgress, RopeArguments
from ropeaudit.audits.audit import DTYPES
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.errors import UsageError
from ropeaudit.features.decay import analysis, cosine_sum
from ropeaudit.features.decay.analysis import Decay
from ropeaudit.inputs import qk as inputs
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.reports.charts.axes import dense, round_values
from ropeaudit.rope.setting import RopeSetting

LARGEST = 65536  # distance where nothing says another
VECTORS = 64
_MOST_CASES, MOST_VECTORS, _MOST_ROWS = 1000, 1024, 200_000


@dataclass(frozen=True, slots=True)
class DecayCurves(Result):
    """The curves of a case. shape: the exact ones on dense distances, the same for every recipe."""

    report_module: ClassVar[str] = "ropeaudit.features.decay.report"
    curves: Decay
    shape: Decay


@dataclass(frozen=True, slots=True)
class DecayPlan:
    """Settings x q and k x recipes, checked. sources: name -> captured q and k, None for synthetic ones."""

    cases: Sequence[Case]
    labels: Sequence[str]
    sources: Mapping[str, Inputs | None]
    recipes: Sequence[Resolved | None]
    distances: Sequence[int]
    vectors: int
    seed: int

    def __post_init__(self) -> None:
        analysis.check(self.distances)
        if not 1 <= self.vectors <= MOST_VECTORS:
            raise UsageError(f"vectors {self.vectors} is not a number from 1 to {MOST_VECTORS}")
        rows = len(self) * len(self.distances)
        if len(self) > _MOST_CASES or rows > _MOST_ROWS:
            raise UsageError(
                f"these lists make {len(self)} cases of {len(self.distances)} distances; at most "
                f"{_MOST_CASES} cases and {_MOST_ROWS} rows are allowed: shorten one"
            )

    def __len__(self) -> int:
        return len(self.cases) * len(self.sources) * len(self.recipes)

    def run(self, on_progress: OnProgress = lambda share: None) -> Iterator[DecayCurves]:
        """Yield the curves setting by setting, by q and k, by recipe and dtype."""
        settings, done = naming.settings(self.cases), 0
        last = max(self.distances)
        finer = dense(min(self.distances), last)
        shapes: dict[tuple[str, RopeSetting, str], Decay] = {}
        for case, label, setting in zip(self.cases, self.labels, settings, strict=True):
            for source in self.sources:
                for recipe in self.recipes:
                    sample = analysis.sample(self._inputs(source, setting), self.vectors)
                    about, key = (label, case.maximum), (label, setting, source)
                    if key not in shapes:
                        first = cosine_sum.first_failing(setting, last)
                        at = finer if first is None else sorted({*finer, max(0, first - 1), first})
                        shapes[key] = analysis.decay(setting, sample, at, None, *about)
                    curves = analysis.decay(setting, sample, self.distances, recipe, *about)
                    yield DecayCurves(curves, shapes[key])
                    done += 1
                    on_progress(done / len(self))

    def _inputs(self, source: str, setting: RopeSetting) -> Inputs:
        """Return captured q and k, or one head of synthetic ones; of constant ones a vector says all."""
        vectors = self.vectors if source == "gaussian" else 1
        return self.sources[source] or inputs.make(source, 1, 1, vectors, setting, self.seed)


@arguments.checked
def decay(
    distances: int | Iterable[int] | None = None,
    qk: Names = ("ones", "gaussian"),
    dtypes: Names = (),
    recipes: Names = (),
    *,
    vectors: int = VECTORS,
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
    seed: of gaussian q and k. dtypes, recipes, changes: in which the same curves are computed too; none by
    default, and all that are not given where one is.
    cases, on_progress, case: as in `ropeaudit.shift`; q and k of cases are not looked at.
    Raises: UsageError, UnknownName, BadShape, BadInput.

    >>> [ones] = decay([0, 1707], "ones", head_dim=128)
    >>> ones.curves.first
    1707
    """
    sources = captured(qk)
    chosen = fitted(arguments.cases_of(cases, case), sources)
    at = usual_distances(chosen) if distances is None else arguments.numbers(distances)
    resolved = requested(recipes, dtypes, changes or {})
    plan = DecayPlan(
        cases=chosen,
        labels=naming.labels(chosen),
        sources=sources,
        recipes=resolved,
        distances=at,
        vectors=vectors,
        seed=seed,
    )
    return plan.run(on_progress or arguments.silent)


def captured(qk: Names) -> dict[str, Inputs | None]:
    """Return source -> captured q and k, None where they are synthetic. Raises: BadInput, UnknownName."""
    results: dict[str, Inputs | None] = {}
    for name in arguments.listed(qk):
        if not inputs.is_file(name):
            inputs.check_kind(name)
        results[name] = inputs.from_file(name) if inputs.is_file(name) else None
    return results


def fitted(cases: Sequence[Case], sources: Mapping[str, Inputs | None]) -> list[Case]:
    """Return cases with the head_dim of captured q and k, where nothing else says it."""
    files = [one for one in sources.values() if one is not None]
    own = [(case.head_dim, case.model, case.config) == (None, None, None) for case in cases]
    return [
        replace(case, head_dim=files[0].q.shape[2]) if files and alone else case
        for case, alone in zip(cases, own, strict=True)
    ]


def usual_distances(cases: Sequence[Case]) -> list[int]:
    """Return a few round distances up to the largest maximum of the models."""
    known = [case.maximum for case in cases if case.maximum is not None]
    return round_values(0, max(known, default=LARGEST))


def requested(recipes: Names, dtypes: Names, changes: Mapping[str, str]) -> list[Resolved | None]:
    """Return every recipe in every dtype, the usual ones where one is left out, and none where all are.

    Raises: UsageError, UnknownName, BadInput, NotEmulated.
    """
    names, formats = arguments.listed(recipes), arguments.listed(dtypes)
    if not (names or formats or changes):
        return [None]
    return list(arguments.resolved(names or DEFAULT, formats or DTYPES, changes))
