"""`parity`: differences between the scores of two subjects on the same q and k."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.case_run import setting_columns
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case, check_memory, check_positions
from ropeaudit.audits.judging import TOLERANCE, ratio
from ropeaudit.audits.results import Result
from ropeaudit.engine.measure import PairStatistics, compare
from ropeaudit.engine.plan import Plan
from ropeaudit.errors import ForeignError, MissingPackage, UnknownName, UsageError, one_line
from ropeaudit.inputs.qk import Inputs
from ropeaudit.reports import Report, settings, tabulated
from ropeaudit.reports.answers import Answer, Cause
from ropeaudit.reports.model_notes import model_notes
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing
from ropeaudit.runtime.columns import table
from ropeaudit.subjects import Subject, emulated, factories, third_party
from ropeaudit.subjects.calling.code import Called
from ropeaudit.subjects.exact_rotation import half_split
from ropeaudit.subjects.factories import SubjectFactory

SCHEMA = 2  # 2: bits_differing, refused
COLUMNS = table("parity")


@dataclass(frozen=True, slots=True)
class Parity(Result):
    """Two subjects in one case, dtype and offset.

    refused: why they could not be compared; empty if they were. findings: how code was called.
    differences: other differences than those of their rotations, a sentence each. backward: whether each
    rotates by the negative angle.
    """

    report_module: ClassVar[str] = __name__
    case: Case
    setting: RopeSetting
    inputs: Inputs
    names: tuple[str, str]
    dtype: Format
    offset: int
    statistics: PairStatistics
    refused: str = ""
    findings: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cpu")
    backward: tuple[bool, ...] = (False, False)


@arguments.public
def parity(
    a: str,
    b: str,
    offsets: int | Iterable[int] | None = None,
    dtypes: Names = "bf16",
    *,
    changes: Mapping[str, str] | None = None,
    device: str | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[Parity]:
    """Compare the scores of two subjects, such as a trainer's and a server's, on the same q and k.

    Yields one Parity per dtype and offset, in that order.
    a, b: a recipe or a recipe file, changed in brackets as in "hf[angle=fp64]"; or code that is called: a
    name of `list implementations`, or your own as "file.py:name". Code gets q and k in the layout that it
    has, and its scores are formed in float64.
    offsets: by default 0 and the last that the model serves, 131072 without one. device: where code is
    called. dtypes, changes, cases, on_progress, case: as in `ropeaudit.shift`.
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, MissingPackage.

    >>> [result] = parity("hf", "meta", 1000, "bf16", heads=1, seq_len=16)
    >>> result.names, result.offset
    (('hf', 'meta'), 1000)
    """
    pairs = make_pairs(a, b, arguments.formats(dtypes), changes or {}, device)
    some = None if offsets is None else arguments.integers(offsets)
    return run(arguments.cases_from(cases, case), pairs, some, on_progress or arguments.ignore_progress)


def make_pairs(
    a: str,
    b: str,
    dtypes: Sequence[Format],
    changes: Mapping[str, str],
    device: str | None = None,
) -> list[list[SubjectFactory]]:
    """Return the factories of two subjects in each dtype, named as typed if their names are equal.

    changes: of both recipes, before those in brackets. device: where code is called.
    Raises: UnknownName, BadInput, UsageError, NotEmulated, MissingPackage.
    """
    specs = [a.strip(), b.strip()]
    own = [factories.is_own(spec.partition("[")[0]) for spec in specs]
    coded = [
        is_own or third_party.is_known(spec.partition("[")[0])
        for is_own, spec in zip(own, specs, strict=True)
    ]
    if device is not None and not any(coded):
        raise UsageError(f"--device {device} is where code is called, and neither {a} nor {b} is code")
    if changes and all(coded) and not any(own):
        raise UsageError(f"--set {next(iter(changes))} changes recipes, and neither {a} nor {b} is one")
    made = [
        _code(spec, changes if is_own else {}, all(coded), device) if is_code else _recipe(spec, changes)
        for spec, is_own, is_code in zip(specs, own, coded, strict=True)
    ]
    names = [name for name, _ in made]
    names = specs if names[0] == names[1] and specs[0] != specs[1] else names
    return [
        [replace(make(fmt), name=name) for name, (_, make) in zip(names, made, strict=True)] for fmt in dtypes
    ]


Made = tuple[str, Callable[[Format], SubjectFactory]]  # a name, and what it is in a dtype


def _code(spec: str, changes: Mapping[str, str], alone: bool, device: str | None) -> Made:
    """Return the maker of code. alone: whether no recipe takes the changes."""
    name, bracket, _ = spec.partition("[")
    if bracket:
        raise UsageError(f"{spec!r}: {name} computes as it does, so no stage can be changed; try {name}")
    try:
        code = factories.implementation(name, changes=changes, alone=alone, device=device)
    except MissingPackage as error:
        known = {recipe.name for recipe in recipes.all_recipes()} - third_party.ENTRIES.keys()
        near = " or ".join(sorted(recipe for recipe in known if recipe.startswith(f"{name}-")))
        raise MissingPackage(error.typed, near and f"or give the recipe {near}") from error
    return code.name, functools.partial(factories.called, code)


def _recipe(spec: str, changes: Mapping[str, str]) -> Made:
    """Return the maker of a recipe with changes in brackets: hf[angle=fp64,table=fp32]."""
    name, bracket, inner = spec.partition("[")
    if bracket and not (name and inner.endswith("]") and inner[:-1].strip()):
        raise UsageError(f"implementation {spec!r} is not NAME[STAGE=FORMAT]; try hf[angle=fp64]")
    known = [recipe.name for recipe in recipes.all_recipes()]
    if not name.endswith(".toml") and name not in known:
        hint = "(or a path that ends in .toml, or FILE.py:NAME)"
        raise UnknownName("recipe or implementation", name, [*sorted(known), *third_party.ENTRIES], hint)
    own = recipes.parse_changes([inner[:-1]]) if bracket else {}
    recipe = recipes.load(name).changed({**changes, **own})
    return recipe.name, lambda dtype: factories.of_recipe(recipe.resolve(dtype, stores_keys=True))


def run(
    cases: Sequence[Case],
    pairs: Sequence[Sequence[SubjectFactory]],
    offsets: Sequence[int] | None,
    on_progress: OnProgress = arguments.ignore_progress,
) -> Iterator[Parity]:
    """Check the arguments; yield comparisons by case, dtype and offset.

    pairs: as `make_pairs` returns them. offsets: tokens, added to every position; None for the usual ones.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    wanted = [_default_offsets(case) if offsets is None else offsets for case in cases]
    check_memory(max(case.check(some) for case, some in zip(cases, wanted, strict=True)))
    work = arguments.equal_parts(on_progress, len(pairs) * sum(map(len, wanted)))
    laid_out = [next(arguments.split_by_layout(case, pairs[0]))[0] for case in cases]

    def compared() -> Iterator[Parity]:
        for requested, case, some in zip(cases, laid_out, wanted, strict=True):
            inputs, setting = case.load()
            check_positions(some, inputs.seq_len)
            own = [setting if requested.layout else _setting_in_code_layout(one, setting) for one in pairs[0]]
            for pair, offset in itertools.product(pairs, some):
                yield _compare_pair(case, inputs, setting, own, pair, offset)

    return doing.each(compared(), lambda: doing.reporting_to(next(work, arguments.ignore_progress)))


def _default_offsets(case: Case) -> list[int]:
    """Return 0 and the offset of the last served positions."""
    last = USUAL_MAXIMUM
    if case.maximum is not None:
        last = max(0, case.maximum - case.outline()[0].seq_len)
    return list(dict.fromkeys((0, last)))


def _setting_in_code_layout(factory: SubjectFactory, setting: RopeSetting) -> RopeSetting:
    if factory.code is None or (factory.code.fit(setting) is None and setting.layout in factory.code.layouts):
        return setting
    return replace(setting, layout=factory.code.layout(setting))


def _compare_pair(
    case: Case,
    inputs: Inputs,
    setting: RopeSetting,
    own: Sequence[RopeSetting],
    pair: Sequence[SubjectFactory],
    offset: int,
) -> Parity:
    axes, statistics = case.position_axes(setting), PairStatistics()
    subjects = [factory.make(at, axes) for factory, at in zip(pair, own, strict=True)]
    reasons = [subject.refusal(inputs.seq_len, offset) for subject in subjects]
    told = (f"{one.name} refuses: {why}" for one, why in zip(pair, reasons, strict=True) if why)
    refused, placed = next(told, ""), [_in_case_layout(subject, inputs, setting) for subject in subjects]
    wide = max(subject.narrowest for subject in subjects) > FP32.precision
    origin = offset if setting.clipped else 0
    plan = Plan(
        *(placed, [[offset], [offset]], inputs, setting, case.mask, origin),
        precision="extended" if wide else "double",
    )
    if not refused:
        try:
            statistics = compare(plan, subjects[0].dtype)
        except ForeignError as error:
            refused = f"a call fails: {one_line(error)}"
    names = pair[0].name, pair[1].name
    found = [factory.code.fit(at) if factory.code else None for factory, at in zip(pair, own, strict=True)]
    return Parity(
        *(case, setting, inputs, names, subjects[0].dtype, offset, statistics, refused),
        findings=tuple(dict.fromkeys(text for factory in pair for text in factory.findings)),
        differences=tuple(_difference_notes(names, subjects, own, plan)),
        devices=tuple(subject.device for subject in subjects),
        backward=tuple(fit is not None and fit.backward for fit in found),
    )


def _in_case_layout(subject: Subject, inputs: Inputs, setting: RopeSetting) -> Subject:
    """Let a subject take q and k in the layout of the case."""
    if not isinstance(subject, Called):
        return emulated.stored(subject, inputs)
    own, to_half = subject.setting.layout, half_split(setting.rotary_dim, setting.head_dim)
    if own != setting.layout:
        order = {"half": to_half, "interleaved": np.argsort(to_half)}
        subject.into, subject.back = order[own], order[setting.layout]
    subject.together(inputs.q, inputs.k)
    return subject


def _difference_notes(
    names: Sequence[str],
    pair: Sequence[Subject],
    own: Sequence[RopeSetting],
    plan: Plan[Inputs],
) -> Iterator[str]:
    """Yield sentences on differences beside rotation. own: the settings of both."""
    (a, b), (first, second), layout = names, pair, plan.setting.layout
    for name, at in zip(names, own, strict=True):
        if at.layout != layout:
            yield (
                f"{name} pairs dims in the layout {at.layout}, q and k are {layout}: their dims are "
                "permuted for it and back, as conversions of weights do; --layout gives both the same ones."
            )
    formed = [" and ".join(dict.fromkeys((subject.accumulate.name, subject.score.name))) for subject in pair]
    if isinstance(first, Called) != isinstance(second, Called) and formed[0] != formed[1]:
        yield (
            f"{first.dtype}: scores of {a} are formed in {formed[0]}, those of {b} in {formed[1]}: parity "
            "holds that too, bits differing does not; --set accumulate=fp64,score=fp64 makes them alike."
        )
    references = plan.keys()
    if len({key.input for key in references}) > 1:
        yield (
            f"{first.dtype}: {a} rounds q and k to {first.input}, {b} to {second.input}: each has its own "
            "reference, and parity holds that rounding too; --set input=FORMAT makes them alike."
        )


def row(result: Parity) -> dict[str, Any]:
    """Return the row of two implementations in a case."""
    statistics, difference = result.statistics, result.statistics.difference
    winner = None if result.refused else statistics.winner()
    place = difference.place if difference.place and not difference.nonfinite else (None, None, None)
    values: dict[str, Any] = setting_columns(result.case, result.inputs, result.setting) | {
        "schema": SCHEMA,
        "dtype": result.dtype.name,
        "offset": result.offset,
        "scores": difference.count,
        "reference_rms": statistics.references[0].rms,
        "reference_error": statistics.error,
        "parity_max": difference.max,
        "parity_rms": difference.rms,
        "parity_bias": difference.mean,
        "parity_relative": ratio(difference.rms, statistics.references[0].rms),
        "nearer": None if winner is None else "equal" if winner < 0 else result.names[winner],
        "bits_differing": ratio(statistics.differing, statistics.elements),
        "refused": result.refused or "none",
        **dict(zip(("worst_head", "worst_query", "worst_key"), place, strict=True)),
    }
    for index, side in enumerate("ab"):
        drift = statistics.drifts[index]
        values |= {
            side: result.names[index],
            f"{side}_device": result.devices[index],
            f"{side}_nonfinite": drift.nonfinite,
            f"{side}_drift_max": drift.max,
            f"{side}_drift_rms": drift.rms,
            f"{side}_nearer": ratio(statistics.nearer[index], difference.count),
        }
    return values


def report(
    results: Sequence[Parity],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    rows = [row(result) for result in results]
    a, b, dtype, offset, *others = COLUMNS.screen(rows)
    screen = settings.screen(rows, [a, b, dtype, offset], others)
    some = [_answer(results, rows)] if results else []
    notes = model_notes([result.case for result in results], [result.offset for result in results])
    for one in results:
        refused = f"{one.dtype} at offset {one.offset}: {one.refused}."
        notes = [*notes, *one.findings, *([refused] if one.refused else one.differences)]
    notes = list(dict.fromkeys(notes))
    shown = (COLUMNS, SCHEMA, rows, screen, columns, metadata, some)
    return tabulated(*shown, notes=notes, brief=not columns)


def _answer(results: Sequence[Parity], rows: Sequence[Mapping[str, Any]]) -> Answer:
    shared, own = settings.shared_and_own(rows, ("model", "dtype", "offset"))
    every = sorted(zip(rows, own, strict=True), key=lambda one: _distance(one[0]), reverse=True)
    worst, name = every[0]
    agree = all(_distance(row) <= TOLERANCE for row in rows)
    causes = _direction_causes(results[0]) if agree else []
    alike = all(row["parity_max"] == row["bits_differing"] == 0 for row in rows)
    decides, facts = f"the same bits in {counted(len(rows), 'case')}", list[tuple[str, str]]()
    if not alike:
        decides = _difference_words(worst, f" ({name})" if name else "")
    if len(rows) > 1 and not alike:
        facts += settings.listed([(label, _case_line(row)) for row, label in every])
    elif math.isfinite(_distance(worst)) and not alike:
        facts += zip(("off by", "bits"), _error_words(worst), strict=True)
    findings = dict.fromkeys(text for result in results for text in result.findings if ": called as " in text)
    facts += [("called as", text.replace(": called as ", ": ")) for text in findings]
    facts += settings.facts(rows)
    rest = "; other calls, such as one token: ropeaudit check" if findings else ""
    farthest = max(result.inputs.seq_len for result in results) - 1
    lost = worst["a_nonfinite"] or worst["b_nonfinite"]
    facts += [
        ("percentages", "root mean squares over that of the exact scores"),
        ("not checked", f"other offsets; distances over {farthest} (--seq-len); other q and k{rest}"),
        ("next", f"{'which stage overflows: ropeaudit explain;  ' if lost else ''}all columns: -v"),
    ]
    target = ", ".join(filter(None, [f"{worst['a']} and {worst['b']}", shared]))
    good = _distance(worst) <= TOLERANCE and not causes
    decides = f"mirrored, {decides}" if causes else decides
    return Answer("OK" if good else "WARN", target, decides, causes, facts)


def _direction_causes(result: Parity) -> list[Cause]:
    if result.backward[0] == result.backward[1]:
        return []
    back, forward = (_file_name(result.names[result.backward.index(which)]) for which in (True, False))
    title = f"{forward} rotates q and k by theta, {back} by -theta"
    facts = [
        f"{back} gets and gives q and k mirrored here, the second dim of each pair negated: scores agree so",
        "a checkpoint of one, or a cache of its keys, does not fit the other unless it is mirrored too",
    ]
    return [Cause("wrong-direction", title, facts=facts, warning=True)]


def _distance(row: Mapping[str, Any]) -> float:
    """Return the difference over the scores' RMS; inf if not comparable."""
    relative, lost = float(row["parity_relative"]), row["a_nonfinite"] + row["b_nonfinite"]
    if row["parity_max"] == 0:
        return 0.0
    return math.inf if lost or row["refused"] != "none" or math.isnan(relative) else relative


def _difference_words(row: Mapping[str, Any], where: str = "") -> str:
    """Return the difference, and which is closer to exact."""
    if row["refused"] != "none":
        return f"{row['refused']}{where}"
    for side in "ab":
        if count := row[f"{side}_nonfinite"]:
            return f"{count:,} of {row['scores']:,} scores of {row[side]} are nan or infinite{where}"
    if row["parity_max"] == 0:
        return f"the same scores{where}"
    closer = (
        "both are equally close" if row["nearer"] == "equal" else f"{_file_name(row['nearer'])} is closer"
    )
    return f"scores {percent(row['parity_relative'])} apart{where}; {closer} to the exact result"


def _case_line(row: Mapping[str, Any]) -> str:
    if not math.isfinite(_distance(row)):
        return _difference_words(row)
    drifts, bits = _error_words(row)
    return f"{percent(row['parity_relative'])} apart; off by: {drifts}; {bits}"


def _error_words(row: Mapping[str, Any]) -> tuple[str, str]:
    sizes = [
        f"{_file_name(row[side])} {percent(ratio(row[f'{side}_drift_rms'], row['reference_rms']))}"
        for side in "ab"
    ]
    return ", ".join(sizes), f"{percent(row['bits_differing'])} of elements differ in bits"


def _file_name(name: str) -> str:
    return name.rpartition("/")[2]
