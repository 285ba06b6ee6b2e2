"""Why scores drift: each stage's share, where the drift sits, and the smallest remedy.

Code is traced first (`tracing`), then explained by way of the recipe that it is like.
Letters: n sampled positions, d head_dim, p pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias, Unpack

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments, variants
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress, chosen, loaded, steps
from ropeaudit.audits.cases import Case, fits
from ropeaudit.audits.results import Result
from ropeaudit.audits.variants import Bench, Sample
from ropeaudit.engine.statistics import Statistics
from ropeaudit.errors import ForeignError, UsageError, one_line
from ropeaudit.features.explain import blames, tracing
from ropeaudit.features.explain.blames import Blame, Design, DriftTolerance, NonfiniteScores, Remedy
from ropeaudit.features.explain.tracing import Trace
from ropeaudit.inputs import masks
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import DEFAULT, Resolved
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup
from ropeaudit.recognition.rotation import explaining_recipe
from ropeaudit.reference import exact_scores
from ropeaudit.reference.exact_scores import Factor
from ropeaudit.reports import verdicts
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing
from ropeaudit.runtime.threads import mapping
from ropeaudit.subjects.calling.code import Called
from ropeaudit.subjects.factories import SubjectFactory


def gather(bench: Bench, recipe: Resolved, count: int) -> tuple[dict[str, Array], float]:
    """Return the pairs' parts in a recipe's drift, by column, and the RMS of the sums of |terms| of a score.

    With q̂ = q* + δq of a pair and k̂ alike, its part is scale·(δq·k* + q̂·δk), and its share of the drift
    Σ part·drift / Σ drift². Columns are (p + 1,): the last is what is of no pair. nan wherever a score is not
    finite. count: scores of the sampled heads.
    """
    setting, table, size = bench.setting, bench.table(recipe), bench.sample.positions.size
    squares, products = np.zeros((2, setting.pairs + 1))
    norms = np.full((2, setting.pairs + 1), np.nan)
    norms[:, :-1] = whole = terms = 0.0
    with mapping(1), np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for head, exact in bench.exact.items():
            given = (split_pairs(x.astype(np.float64), setting) for x in (exact.q, exact.k))
            norms[:, :-1] += [np.hypot(*pairs).sum(axis=0) for pairs in given]
            q, k = (bench.rotated(side, head, table, recipe).astype(np.float64) for side in ("q", "k"))
            absolute = masks.hide(setting.scale * (np.abs(q) @ np.abs(k).T), exact.block.hidden)
            terms += float(np.vdot(absolute, absolute))
            drift = bench.drift(head, bench.formed(q, k, recipe))
            whole, rest = whole + float(np.vdot(drift, drift)), drift.copy()
            exact_q, exact_k = bench.factors(exact.q, exact.k, 1.0)
            sides = _error(q, exact_q), q, exact_k.whole, _error(k, exact_k)
            factors = np.stack([np.stack(split_pairs(x, setting)) for x in sides]).reshape(2, 4, size, -1)
            for i, (left, right) in enumerate(np.moveaxis(factors, 3, 0)):  # of a pair: (4, n) each
                part = masks.hide(setting.scale * (left.T @ right), exact.block.hidden)
                rest -= part
                squares[i] += np.vdot(part, part)
                products[i] += np.vdot(part, drift)
            squares[-1] += np.vdot(rest, rest)
            products[-1] += np.vdot(rest, drift)
    with np.errstate(divide="ignore"):  # inf where a pair is not rotated
        wavelength = np.append(1.0 / exact_scores.rotations_per_token(setting)[0], math.nan)
    share = products / (whole if whole and math.isfinite(whole) else math.nan)
    q_norm, k_norm = norms / (len(bench.exact) * size)
    part = {"wavelength": wavelength, "part_rms": np.sqrt(squares / count), "share": share}
    return part | {"q_norm": q_norm, "k_norm": k_norm}, math.sqrt(terms / count)


def _error(x: Array, exact: Factor) -> Array:
    """Return x minus the exact vector, with its bits beyond float64."""
    if exact.head is None or exact.rest is None:
        return np.asarray(x - exact.whole)
    return np.asarray((x - exact.head) - exact.rest)


USUAL_OFFSET = 1000
USUAL = DEFAULT[:1]  # recipes where nothing is named
NAMING = "name some, such as rope.py:apply_rope"  # how code is named
_SHARE_OF_WORK = 0.8  # of the time that the shares take
_Vectors: TypeAlias = tuple[Case, Inputs, RopeSetting]  # q and k of a case, and how they are rotated


@dataclass(frozen=True, slots=True)
class Explanation(Result):
    """Why one recipe drifts at one offset.

    blames: every stage, the worst first. pairs: columns of `--by pair`. cancelling: RMS of the summed
    |terms| of a score over the RMS score. code: what was called, where the recipe is what it resembles.
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
        """The recipe's name with its changes, of code behind its own."""
        name = self.recipe.recipe.name
        return f"{self.code} (as {name})" if self.code else name

    @property
    def remedy(self) -> Remedy | None:
        """The smallest set of stages that meets the tolerance."""
        return next((remedy for remedy in self.remedies if remedy.meets), None)


@dataclass(frozen=True, slots=True)
class CodeExplanation(Result):
    """What one implementation does in a dtype and environment, and why it drifts.

    explanations: by offset, of the recipe that it resembles there. unexplained: offset -> why there is none.
    findings: what was found out of how it is called.
    """

    report_module: ClassVar[str] = Explanation.report_module
    trace: Trace
    explanations: tuple[Explanation, ...] = ()
    unexplained: Mapping[int, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()


@arguments.checked
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
    offsets: 1000 by default; code is compared with known recipes at 0 and these, by default at 0, 1024,
    32768 and 131072, of a model those within the positions that it serves and the last. recipes: "hf" unless
    implementations are given.
    tolerance: what a remedy must reach, "drift_rms=1e-3" or ("drift_rms", 1e-3); by default a tenth of the
    RMS drift. under: environments in which code is explained too. device: where code is called.
    dtypes, implementations, changes, order, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> [explanation] = explain(1000, "fp32", changes={"table": "fp16"}, heads=1, seq_len=32)
    >>> explanation.blames[0].stage, {stage: fmt.name for stage, fmt in explanation.remedy.widths.items()}
    ('table', {'table': 'float32'})
    """
    some = chosen(recipes, implementations, dtypes, changes, USUAL, device, order, under, naming=NAMING)
    bound = None if tolerance is None else blames.tolerance(tolerance)
    numbers = None if offsets is None else arguments.numbers(offsets)
    return run(arguments.cases_of(cases, case), some, numbers, bound, on_progress or arguments.silent)


def run(
    cases: Sequence[Case],
    some: Sequence[SubjectFactory],
    offsets: Sequence[int] | None = None,
    tolerance: DriftTolerance | None = None,
    on_progress: OnProgress = arguments.silent,
) -> Iterator[Explanation | CodeExplanation]:
    """Check the arguments, and yield what `explain` does, case by case."""
    shifts = (USUAL_OFFSET,) if offsets is None else offsets
    fits(max(case.check(shifts) for case in cases))
    jobs = sum(len(shifts) if one.recipe else 1 for one in some)
    work = steps(on_progress, len(cases) * jobs)

    def explained() -> Iterator[Explanation | CodeExplanation]:
        for case, inputs, setting, part in loaded(cases, some, shifts):
            vectors = case, inputs, setting
            for subject, shift in itertools.product(part, shifts):
                if subject.recipe is not None:
                    yield _explanation(vectors, subject.recipe, int(shift), tolerance)
                elif shift == shifts[0]:
                    compared = tracing.usual_offsets(case) if offsets is None else offsets
                    yield _of_code(vectors, subject, shifts, compared, tolerance)

    return doing.each(explained(), lambda: doing.told(next(work, arguments.silent)))


def _of_code(
    vectors: _Vectors,
    factory: SubjectFactory,
    offsets: Sequence[int],
    compared: Sequence[int],
    tolerance: DriftTolerance | None,
) -> CodeExplanation:
    """Return the trace of code, compared at `compared`, and why it drifts at `offsets`."""
    if factory.code is None:
        raise TypeError(f"{factory.name} is not called")
    case, inputs, setting = vectors
    with doing.unheard():
        traced = tracing.trace(factory.code, factory.dtype, case, compared)
    if traced.setting.layout != setting.layout:  # the model's is another than that of the code
        case = replace(case, layout=traced.setting.layout)
        inputs, setting = case.load()
    name = " ".join([factory.name, *verdicts.under(traced.environment)])
    explanations, unexplained = [], dict[int, str]()
    for number, offset in enumerate(() if traced.refused else offsets):
        try:
            group = _recipe_of(factory, (case, inputs, setting), int(offset))
        except UsageError as error:
            unexplained[int(offset)] = str(error)
            continue
        with doing.within(number / len(offsets), (number + 1) / len(offsets)):
            one = _explanation((case, inputs, setting), group.resolved, int(offset), tolerance)
        explanations.append(replace(one, code=name))
    return CodeExplanation(traced, tuple(explanations), unexplained, tuple(factory.findings))


_MOST_HEADS, _MOST_POSITIONS = 64, 256  # of q and k that code is called with at most


def _recipe_of(code: SubjectFactory, vectors: _Vectors, offset: int) -> RecipeGroup:
    """Return the recipe that gives what code returns to within its own roundings.

    It is called with all heads, as the trace is not, at the last positions of q and k.
    Raises: UsageError where code cannot be called, or does what no known recipe does.
    """
    case, inputs, setting = vectors
    subject = code.make(setting, case.position_axes(setting))
    where = f"in {code.dtype} at offset {offset}"
    if reason := subject.refusal(inputs.seq_len, offset):
        raise UsageError(f"{code.name} cannot be called {where}: {reason}")
    if not isinstance(subject, Called):
        raise TypeError(f"{code.name} is not called")
    at = np.arange(max(0, inputs.seq_len - _MOST_POSITIONS), inputs.seq_len, dtype=np.int64)
    q, k = (
        round_to(x[None, :_MOST_HEADS, at], subject.dtype).astype(subject.dtype.carrier, copy=False)
        for x in (inputs.q, inputs.k)
    )
    try:
        block = CalledBlock(at + offset, (q, k), subject.rotator().rotate_both(q, k, at + offset))
        group = explaining_recipe(block, subject.setting, subject.dtype)
    except ForeignError as error:
        raise UsageError(f"{code.name} cannot be called {where}: {one_line(error)}") from None
    if group is None:
        raise UsageError(f"{code.name} {where} does what no known recipe does")
    return group


def _explanation(
    vectors: _Vectors,
    recipe: Resolved,
    offset: int,
    tolerance: DriftTolerance | None,
) -> Explanation:
    """Return everything there is to say of a recipe at an offset."""
    case, inputs, setting = vectors
    axes = case.position_axes(setting)
    rounded = blames.subsets(recipe, np.arange(inputs.seq_len, dtype=np.int64) + offset)
    sample = variants.sample(inputs, setting, list(rounded.values()))
    bench = Bench(inputs, setting, case.mask, axes, offset, sample, recipe)
    (drift,) = bench.drifts([recipe])
    usual = ("", math.nan) if drift.nonfinite else ("drift_rms", blames.USUAL_SHARE * drift.rms)
    accepted = tolerance or DriftTolerance(*usual, given=False)
    with doing.within(0.0, _SHARE_OF_WORK):
        drifts = bench.drifts(rounded.values(), doing.step, accepted.moments)
    positions = inputs.seq_len + max(0, offset)
    design = Design(recipe, bench, dict(zip(rounded, drifts, strict=True)), accepted, positions)
    remedies, reference = design.remedies(), bench.reference
    pairs, terms = gather(bench, recipe, max(drift.count, 1))
    doing.step(1.0)
    cancelling = terms / reference.rms if reference.rms else math.inf
    return Explanation(
        case=case,
        setting=setting,
        inputs=inputs,
        recipe=recipe,
        offset=offset,
        sample=sample,
        drift=drift,
        reference=reference,
        error=bench.error,
        blames=design.blames(cancelling),
        nonfinite=design.nonfinite(),
        tolerance=accepted,
        remedies=tuple(remedies),
        pairs=pairs,
        cancelling=cancelling,
    )
