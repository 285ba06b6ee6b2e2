"""`explain`: each stage's share of the drift, the pairs that drift, and the smallest remedy.

Code is traced first (`tracing`), then explained by the recipe that it resembles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias, Unpack

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments, variants
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress, equal_parts, load_cases, subjects
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case, check_memory
from ropeaudit.audits.results import Result
from ropeaudit.audits.variants import Bench, Sample
from ropeaudit.engine import measure
from ropeaudit.engine.plan import CellStatistics, Plan
from ropeaudit.engine.statistics import Statistics
from ropeaudit.errors import ForeignError, UsageError, one_line
from ropeaudit.features.explain import pairs, remedies, tracing
from ropeaudit.features.explain.remedies import DriftTolerance, Remedy, Search
from ropeaudit.features.explain.shares import Blame, Design, NonfiniteScores
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup
from ropeaudit.recognition.rotation import explaining_recipe
from ropeaudit.reports import verdicts
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing, run_metadata, threads
from ropeaudit.subjects.calling.code import Called
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.factories import SubjectFactory

USUAL = DEFAULT[:1]  # recipes where nothing is named
NAMING = "name some, such as rope.py:apply_rope"  # how code is named
_Vectors: TypeAlias = tuple[Case, Inputs, RopeSetting]  # q and k of a case, and how they are rotated


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """Why one recipe drifts at one offset.

    drift, reference, error: of all scores, as `shift` measures them.
    sample: the q and k of the shares.
    blames: every stage, the worst first.
    pairs: columns of `--by pair`.
    cancelling: RMS of the summed |terms| of a score over the RMS score.
    code: what was called, where the recipe is what it resembles.
    """

    report_module: ClassVar[str] = "ropeaudit.features.explain.report"
    case: Case
    setting: RopeSetting
    inputs: Inputs
    recipe: Resolved
    offset: int
    sample: Sample
    drift: Statistics
    reference: Statistics
    error: float
    blames: tuple[Blame, ...]
    nonfinite: NonfiniteScores | None
    tolerance: DriftTolerance
    remedies: tuple[Remedy, ...]
    pairs: Mapping[str, Array]
    cancelling: float
    code: str = ""

    @property
    def implementation(self) -> str:
        """The name of the recipe, with its changes; of code that of the code before it."""
        name = self.recipe.recipe.name
        return f"{self.code} (as {name})" if self.code else name

    @property
    def remedy(self) -> Remedy | None:
        """The smallest set of stages that meets the tolerance."""
        return next((remedy for remedy in self.remedies if remedy.meets), None)

    @property
    def good(self) -> bool:
        """Whether the drift is within the tolerance, so that nothing needs to change."""
        return self.remedy is not None and not self.remedy.widths


@dataclass(frozen=True, slots=True)
class CodeExplanation(Result):
    """The trace of an implementation in a dtype and environment, and why it drifts.

    explanations: by offset, of the recipe that it resembles. unexplained: offset -> why there is none.
    findings: how it is called.
    """

    report_module: ClassVar[str] = Explanation.report_module
    trace: Trace
    explanations: tuple[Explanation, ...] = ()
    unexplained: Mapping[int, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


@arguments.public
def explain(
    offsets: int | Iterable[int] | None = None,
    dtypes: Names = "bf16",
    recipes: Names | None = None,
    *,
    implementations: Names = (),
    tolerance: str | tuple[str, float] | None = None,
    changes: Mapping[str, str] | None = None,
    order: str | None = None,
    device: str | None = None,
    under: Names = (),
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Explanation | CodeExplanation]:
    """Return which stages are to blame for the drift of recipes or code, where it sits, and what removes it.

    Yields one Explanation per recipe, dtype and offset, then one CodeExplanation per implementation,
    environment and dtype: its dtypes by stage and the closest known implementations, and an Explanation of
    the recipe that its numbers resemble at each offset, where they resemble one.
    offsets: 0 and the number of positions that the model serves by default, 131072 without one; for code the
    last at which a model serves all of q and k. Code is compared with known recipes at 0 and these, by
    default at 0, 1024, 32768 and 131072, of a model those within the positions that it serves and the last.
    recipes: "hf" unless implementations are given.
    tolerance: what a remedy must reach, "drift_rms=1e-3" or ("drift_rms", 1e-3); 0.01 of drift_relative by
    default. under: environments in which code is explained too. device: where code is called.
    dtypes, implementations, changes, order, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> tight = {"tolerance": ("drift_rms", 1e-5), "heads": 1, "seq_len": 32}
    >>> [explanation] = explain(1000, "fp32", changes={"table": "fp16"}, **tight)
    >>> explanation.blames[0].stage, {stage: fmt.name for stage, fmt in explanation.remedy.widths.items()}
    ('table', {'table': 'float32'})
    """
    factories = subjects(
        recipes, implementations, dtypes, changes, USUAL, device, order, under, naming=NAMING
    )
    bound = None if tolerance is None else remedies.tolerance(tolerance)
    numbers = None if offsets is None else arguments.integers(offsets)
    return run(
        arguments.cases_from(cases, case), factories, numbers, bound, on_progress or arguments.ignore_progress
    )


def run(
    cases: Sequence[Case],
    some: Sequence[SubjectFactory],
    offsets: Sequence[int] | None = None,
    tolerance: DriftTolerance | None = None,
    on_progress: OnProgress = arguments.ignore_progress,
) -> Iterator[Explanation | CodeExplanation]:
    """Check the arguments; yield the results of `explain`, case by case."""
    check_memory(max(case.check(_offsets_of(case, offsets)) for case in cases))
    accepted = tolerance or DriftTolerance()
    counts = [len(_offsets_of(case, offsets)) for case in cases]
    jobs = [count if one.recipe else 1 for count in counts for one in some]
    work = equal_parts(on_progress, sum(jobs))

    def explained() -> Iterator[Explanation | CodeExplanation]:
        for case, inputs, setting, part in load_cases(cases, some, offsets or ()):
            vectors = case, inputs, setting
            for subject in part:
                if subject.recipe is None:
                    yield _explain_code(vectors, subject, offsets, accepted)
                else:
                    for offset in _offsets_of(case, offsets):
                        yield _explain_recipe(vectors, subject.recipe, int(offset), accepted)

    return doing.each(explained(), lambda: doing.reporting_to(next(work, arguments.ignore_progress)))


def _offsets_of(case: Case, offsets: Sequence[int] | None) -> Sequence[int]:
    """Return the offsets, by default 0 and the maximum."""
    return (0, case.maximum or USUAL_MAXIMUM) if offsets is None else offsets


def _explain_code(
    vectors: _Vectors,
    factory: SubjectFactory,
    offsets: Sequence[int] | None,
    accepted: DriftTolerance,
) -> CodeExplanation:
    if factory.code is None:
        raise TypeError(f"{factory.name} is not called")
    case, inputs, setting = vectors
    compared = tracing.usual_offsets(case) if offsets is None else offsets
    last = USUAL_MAXIMUM
    if case.maximum:  # a table may end there
        last = max(0, case.maximum - inputs.seq_len)
    with doing.silently():
        traced = tracing.trace(factory.code, factory.dtype, case, compared)
    if traced.setting.layout != setting.layout:  # the layout of the code counts
        case = replace(case, layout=traced.setting.layout)
        inputs, setting = case.load()
    name = " ".join([factory.name, *verdicts.under(traced.environment)])
    explanations, unexplained = [], dict[int, str]()
    asked = (0, last) if offsets is None else map(int, offsets)
    some = () if traced.refused else dict.fromkeys(asked)
    for number, offset in enumerate(some):
        try:
            group = _matching_recipe(factory, (case, inputs, setting), offset)
        except UsageError as error:
            unexplained[offset] = str(error)
            continue
        with doing.within(number / len(some), (number + 1) / len(some)):
            one = _explain_recipe((case, inputs, setting), group.resolved, offset, accepted)
        explanations.append(replace(one, code=name))
    return CodeExplanation(traced, tuple(explanations), unexplained, tuple(factory.findings))


_MOST_HEADS, _MOST_POSITIONS = 64, 256  # of q and k that code is called with at most


def _matching_recipe(code: SubjectFactory, vectors: _Vectors, offset: int) -> RecipeGroup:
    """Return the recipe that reproduces the results of code within its own roundings.

    Code is called with all heads at the last positions of q and k.
    Raises: UsageError if code cannot be called, or no known recipe matches.
    """
    case, inputs, setting = vectors
    subject = code.make(setting, case.position_axes(setting))
    where = f"in {code.dtype} at offset {offset}"
    if reason := subject.refusal(inputs.seq_len, offset):
        raise UsageError(f"{code.name} cannot be called {where}: {reason}")
    if not isinstance(subject, Called):
        raise TypeError(f"{code.name} is not called")
    at = np.arange(max(0, inputs.seq_len - _MOST_POSITIONS), inputs.seq_len, dtype=np.int64)
    some = (x[None, :_MOST_HEADS, at] for x in (inputs.q, inputs.k))
    q, k = (round_to(x, subject.dtype).astype(subject.dtype.carrier, copy=False) for x in some)
    try:
        block = CalledBlock(at + offset, (q, k), subject.rotator().rotate_both(q, k, at + offset))
        group = explaining_recipe(block, subject.setting, subject.dtype)
    except ForeignError as error:
        raise UsageError(f"{code.name} cannot be called {where}: {one_line(error)}") from None
    if group is None:
        raise UsageError(f"{code.name} {where} does what no known recipe does")
    return group


def _explain_recipe(
    vectors: _Vectors, recipe: Resolved, offset: int, accepted: DriftTolerance
) -> Explanation:
    case, inputs, unshifted = vectors
    setting = case.setting_at(unshifted, inputs.seq_len, offset)
    axes = case.position_axes(setting)

    def measured(variants: Sequence[Resolved]) -> list[CellStatistics]:
        """Measure variants on all of q and k, as `shift` does."""
        subjects = [Emulated(one, setting, axes) for one in variants]
        origin = offset if setting.clipped else 0
        plan = Plan(subjects, [[offset]] * len(subjects), inputs, setting, case.mask, origin)
        cells = measure.measure(plan, threads.useful_threads(run_metadata.threads(), inputs.seq_len))
        return [cells[number, offset] for number in range(len(subjects))]

    with doing.within(0.0, 0.5):
        (before,) = measured([recipe])
    sample = variants.sample(inputs)
    bench = Bench(inputs, setting, case.mask, axes, offset, sample, recipe)
    design = Design(recipe, bench)
    columns, terms = pairs.parts(bench, recipe)
    cancelling = terms / bench.reference.rms if bench.reference.rms else math.inf
    last = inputs.seq_len + max(0, offset)
    search = Search(design, accepted, sample.covers(inputs), measured, last)
    with doing.silently():
        found = search.remedies(before)
    doing.step(1.0)
    return Explanation(
        case=case,
        setting=setting,
        inputs=inputs,
        recipe=recipe,
        offset=offset,
        sample=sample,
        drift=before.drift,
        reference=before.reference,
        error=before.error,
        blames=design.blames(cancelling),
        nonfinite=design.nonfinite(),
        tolerance=accepted,
        remedies=found,
        pairs=columns,
        cancelling=cancelling,
    )
