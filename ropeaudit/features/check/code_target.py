"""The checks of code, dtype by dtype, and a wrapper to edit where it is not understood how code is called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits import arguments
from ropeaudit.audits.cases import FULL, Case
from ropeaudit.conformance import code_checks, every_position
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable, noted
from ropeaudit.errors import BadOutput, ForeignError, RopeAuditError, UsageError, did
from ropeaudit.features.check.checked import Checked, CheckOptions, Note, Progress, interrupted
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.reports.model_notes import notes_beside
from ropeaudit.rope import grids
from ropeaudit.rope.scaled import effective_base
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import atomic_files
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import environments
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.foreign import ForeignOwn
from ropeaudit.subjects.calling.own_code import NOT_CHECKED, OWN_TABLES
from ropeaudit.subjects.calling.signatures import WRAP, NotUnderstood

DTYPES, UP_TO = ("bf16",), 2**17
_PADDED = 1024  # positions of code that is told where sequences begin, and no positions
_MOST = 2**21  # positions: of a table that is built from 0, see `third_party.adapter.LONGEST_TABLE`
_FLAG = "--write-wrapper"
_VIDEO = (48, 20, 32)  # tokens on the axes of M-RoPE, the last ones up to --up-to
_LARGEST = 2**24  # positions that are checked without --up-to, whatever a setting serves


def check_options(options: CheckOptions) -> None:
    """Raise UsageError for what code cannot be checked with."""
    if options.up_to is not None and not 1 <= options.up_to <= _MOST:
        raise UsageError(f"--up-to {options.up_to} is not a number of positions from 1 to {_MOST}; try 128k")
    environments.chosen(options.environments)
    if (path := options.write_wrapper) is not None:
        if not path.endswith(".py") or not Path(path).stem.isidentifier():
            raise UsageError(f"{_FLAG} {path!r} is not the name of a Python file; try rope_wrapper.py")
        if os.path.lexists(path):
            raise UsageError(f"{_FLAG} {path!r} is there already and stays as it is; give another name")


def checks(
    target: str, case: Case, options: CheckOptions, progress: Progress, note: Note
) -> Iterator[Checked]:
    """Yield the checks of code. note gets how it is called. Raises: see `analysis.check`.

    Where it is not understood how it is called, a wrapper to edit is written, if one is requested.
    """
    try:
        code = factories.implementation(
            target, options.order, device=options.device, arguments=options.arguments
        )
    except RopeAuditError as error:  # messages about it speak of a target, and of no --impl
        error.args = (message := error.typed.replace("--impl ", ""),)
        if isinstance(error, ImportError):  # whose text is not in its arguments
            error.msg = message
        raise
    told = code.layered if isinstance(code, ForeignOwn) else ""
    kinds = case.layers() if case.layer == FULL else ()
    if len(kinds) < 2 or not told or told in options.arguments:
        left = [kind for kind in kinds if kind != case.layer_type]
        note(
            [
                f"{target}: {NOT_CHECKED}{kind} layers, which rotate otherwise: --layer {kind}."
                for kind in left
            ]
        )
        if len(case.layers()) > 1:
            code.layers = _of_layers(case, options)
        yield from of_code(code, target, case, options, progress, note)
        return
    for kind, on_progress in zip(kinds, arguments.steps(progress, len(kinds)), strict=True):
        given = {**options.arguments, told: kind}
        code = factories.implementation(target, options.order, device=options.device, arguments=given)
        code.layers = _of_layers(case, options)
        for one in of_code(code, target, replace(case, layer=kind), options, on_progress, note):
            where = f"{one.finding.where}, {kind} layers" if one.finding.failed else one.finding.where
            yield replace(one, layer=kind, finding=replace(one.finding, where=where))


def _of_layers(case: Case, options: CheckOptions) -> dict[str, RopeSetting]:
    """Return the setting of each layer type of a config."""
    return {one: replace(case, layer=one).setting(options.up_to or UP_TO) for one in case.layers()}


def of_code(
    code: Code,
    target: str,
    case: Case,
    options: CheckOptions,
    progress: Progress,
    note: Note,
) -> Iterator[Checked]:
    """Yield the same of code that was loaded; target: its name."""
    note(notes_beside(case))
    if options.thorough and isinstance(code, ForeignOwn):
        code.eager = False
    up_to = options.up_to or min(case.maximum or UP_TO, _LARGEST)
    if code.own and case.maximum and up_to <= case.maximum:
        model = case.declared()
        code.declared, code.served = model.declared if model else None, case.maximum
    if options.up_to is None and case.maximum and case.maximum > up_to:
        note([f"checked up to {up_to:,} of the {case.maximum:,} positions that it serves"])
    try:
        fit = code.fit(_on_axes(case, case.setting(up_to), up_to)[0])
        if options.up_to is None and fit and fit.convention.padded:
            up_to = min(up_to, _PADDED)
            why = "its sequences begin at 0, and are padded up to what is asked of it"
            note([f"checked up to {up_to:,}: {why}"])
        setting, up_to = _on_axes(case, case.setting(up_to), up_to)
        if (case.layout, case.model, case.config, case.axes) == (None,) * 4:
            setting = replace(setting, layout=code.layout(setting))
        code.fit(setting)
    except NotUnderstood as error:
        if options.write_wrapper is None:
            raise
        said = error.typed.removesuffix(WRAP).rstrip()
        needed = code.needed if isinstance(code, ForeignOwn) else {}
        raise UsageError(f"{said} {_write_wrapper(options.write_wrapper, target, needed, said)}") from None
    if options.write_wrapper is not None:
        note([f"{target} is understood without a wrapper; {_FLAG} writes none"])
    dtypes = options.dtypes or tuple(map(parse, DTYPES))
    tested = CodeUnderTest(
        *(code, setting, dtypes[0], up_to),
        seed=options.seed,
        thorough=options.thorough,
        sizes=options.head_dims,
        environments=options.environments,
    )
    each_call = every_position.followed(tested)
    note(_held_to(setting, up_to, each_call))
    for later, (dtype, on_progress) in enumerate(
        zip(dtypes, arguments.steps(progress, len(dtypes)), strict=True), 1
    ):
        asked = replace(tested, dtype=dtype, each_call=each_call)
        for finding in _findings(asked, options.recipe, on_progress):
            finding = interrupted(finding, [one.name for one in dtypes[later:]], "dtype")
            own = code.device.label
            yield Checked(target, "code", code.version, dtype.name, setting, up_to, finding, device=own)
    if fit and fit.convention.signature.tables:
        yield from _of_tables(code, target, fit, case, options, note)
        return
    if options.table is not None:
        raise UsageError(f"--table {options.table}: {target} takes no cos and sin; leave it out")
    note(code.findings)


def _of_tables(
    code: Code, target: str, fit: Fit, case: Case, options: CheckOptions, note: Note
) -> Iterator[Checked]:
    """Yield the checks of code that makes the tables that a target takes, and whether they fit it.

    What cannot be called is a note, unless it was named.
    """
    file, missing = target.rpartition(":")[0], f"{target}: {NOT_CHECKED}"
    builders = code.builders if isinstance(code, ForeignOwn) else ()
    makers = [options.table] if options.table else [f"{file}:{name}" for name in builders]
    told = [text for text in code.findings if not makers or OWN_TABLES not in text]
    if len(makers) > 1:
        named = ", ".join(builders)
        told.append(f"{missing}which of {named} makes its tables: --table FILE.py:NAME says it.")
    if len(makers) != 1:
        note(told)
        return
    [maker] = makers
    try:
        other = factories.implementation(maker, device=options.device)
        own = other.fit(case.setting(options.up_to or UP_TO))
    except (RopeAuditError, ForeignError) as error:
        if options.table is not None:
            raise
        reason = error.typed if isinstance(error, RopeAuditError) else did(error)
        note([f"{missing}{maker}, which makes its tables: {reason}.", *told])
        return
    if own and not own.sure and options.table is None:  # it may be meant for another setting, or no table
        note([f"{missing}{maker}, whose tables are others than these: --table {maker} says how.", *told])
        return
    alone = replace(options, table=None, order=None, write_wrapper=None, arguments={})
    checked = list[Checked]()
    for one in of_code(other, maker, case, alone, lambda share: None, note):
        checked.append(one)
        yield one
    status = "FAIL" if any(one.finding.failed for one in checked) else "PASS"
    place, _, name = maker.rpartition(":")
    name = f"{name} in the same file" if place == file else maker
    finding = noted("tables", f"cos and sin are exact ones of ropeaudit; {name}: {status}")
    width = own.convention.width if own else ""
    if {fit.convention.width, width} == {"half", "interleaved"}:
        text = f"{name} makes tables for {width} pairs"
        finding = Finding("tables", "fail", text, diagnosis=Diagnosis("wrong-layout", {"layout": width}))
    yield replace(checked[0], target=target, finding=finding)
    note(told)


def _on_axes(case: Case, setting: RopeSetting, up_to: int) -> tuple[RopeSetting, int]:
    """Return the setting and how many positions: those of a grid, if positions have several axes."""
    if case.mrope is not None and (axes := case.position_axes(setting)):
        setting = grids.of_sections(axes, setting, "x".join(map(str, _VIDEO)), max(0, up_to - max(_VIDEO)))
    return setting, up_to if setting.grid is None else setting.grid.count


def _held_to(setting: RopeSetting, up_to: int, each_call: bool) -> list[str]:
    """Return in a sentence which frequencies calls are held to, if length changes them."""
    if not setting.scaling.depends_on_length:
        return []
    depends = f"scaling {setting.scaling.kind} depends on the length;"
    if each_call:
        own = "and each call is held to those of its own: its largest position + 1"
        return [f"{depends} its frequencies follow each call's length, {own}"]
    is_plain = setting.scaling.kind == "dynamic" and effective_base(setting) == setting.base
    plain = ", which are those without it" * is_plain
    return [f"{depends} every call is held to the frequencies for {up_to} positions (--up-to){plain}"]


def _findings(asked: CodeUnderTest, recipe: str | None, progress: Progress) -> Iterator[Finding]:
    """Yield the checks in one dtype; of code that does not take it, that it does not."""
    code, setting = asked.tested, asked.setting
    if reason := code.refusal(setting, asked.dtype):
        yield not_applicable("rotation", reason)
        return
    fit = code.fit(setting)
    if asked.dtype is FP32 and fit and fit.unfit:
        no_call = f"in {fit.dtype} {fit.convention} fits, in float32 no call: {fit.unfit}"
        yield Finding("call", "fail", no_call)
        return
    if recipe:
        asked = replace(asked, claimed=recipes.load(recipe).resolve(asked.dtype))
    for finding in code_checks.findings(asked, progress):
        if finding.check == "rotation" and finding.failed and fit is not None and not fit.sure:
            nearest = f"the nearest way to call it is {fit.convention}, layout {fit.layout}"
            finding = replace(finding, detail=f"{finding.detail}; {nearest}")
        yield finding


def _write_wrapper(path: str, target: str, needed: Mapping[str, str], why: str) -> str:
    """Write a wrapper of a target that keeps what is known of its arguments, and return how to use it.

    needed: its arguments and what they are, empty where that is not known. Raises: BadOutput where the file
    cannot be written.
    """
    place, _, name = target.rpartition(":")
    root = name.partition(".")[0]
    found = f"from {place} import {root}"
    if place.endswith(".py"):
        folder = os.path.relpath(Path(place).resolve().parent, Path(path).resolve().parent)
        lies = f"# where {Path(place).name} lies"
        found = (
            f"import sys\nfrom pathlib import Path\n\n"
            f"sys.path.insert(0, str(Path(__file__).parent / {folder!r}))  {lies}\n"
            f"from {Path(place).stem} import {root}  # noqa: E402"
        )

    def call(x: str) -> str:
        given = {"q": "q", "k": "k", "positions": "positions", "x": x}
        told = [f"{one}={given.get(role, '...')}" for one, role in needed.items()]
        return f"{name}({', '.join(told) or '...'})"

    calls = f"{call('q')}, {call('k')}" if "x" in needed.values() else call("q")
    text = _WRAPPER.format(file=Path(path).name, name=name, imports=found, why=why, calls=calls)
    try:
        atomic_files.write(Path(path), text.encode())
    except OSError as error:
        raise BadOutput(f"{_FLAG} {path!r} cannot be written: {error.strerror}; give another place") from None
    return f"{path} holds a wrapper to edit: finish its call, then type `ropeaudit check {path}:rotate`"


_WRAPPER = '''"""A wrapper of {name} for `ropeaudit check {file}:rotate`."""

{imports}


def rotate(q, k, positions):
    """Return q and k rotated by their positions.

    q is (batch, heads, tokens, head_dim), k the same with as many heads or fewer; positions,
    int64, are (tokens,) or (batch, tokens): any positions, one token or many. What comes back has
    the shape and the dtype of what is given.
    """
    # {why}
    raise NotImplementedError("say what {name} is given where ... stands, and remove this line")
    return {calls}
'''
