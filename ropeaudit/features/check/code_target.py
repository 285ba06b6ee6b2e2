"""The checks of code in each dtype, and a wrapper to edit if its call is not understood."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case
from ropeaudit.conformance import code_checks, every_position, xpos
from ropeaudit.conformance.code_under_test import CodeUnderTest, calls_from, some_offsets
from ropeaudit.conformance.finding import Finding, judged, not_applicable, noted
from ropeaudit.errors import BadOutput, ForeignError, RopeAuditError, UsageError, did
from ropeaudit.features.check.checked import Checked, CheckOptions, Target
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes, kinds
from ropeaudit.recognition.verification import Places
from ropeaudit.reports import templates
from ropeaudit.reports.model_notes import notes_beside
from ropeaudit.reports.numbers import counted
from ropeaudit.rope import grids
from ropeaudit.rope.setting import PAIRS, RopeSetting
from ropeaudit.runtime import atomic_files, doing
from ropeaudit.runtime.paths import shown_path
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import environments
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.own_code import NOT_CHECKED, OWN_TABLES
from ropeaudit.subjects.calling.signatures import NotUnderstood

DTYPES = ("bf16",)
_PADDED = 1024  # positions of code that takes the starts of sequences instead of positions
_MOST_POSITIONS = 2**21  # positions: of a table that is built from 0, see `third_party.adapter.LONGEST_TABLE`
_FLAG = "--write-wrapper"
_GRID_OF_MROPE = (48, 20, 32)  # tokens on the axes of M-RoPE, the last ones up to --up-to
_LIBRARIES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
_CONFIGS = ("config", "rope_parameters")  # roles that give a class the whole setting
_OF_A_TYPE, _CALLS = 64, 3  # tokens of calls for a layer type, and calls
_TELL_TYPE = "give each layer the frequencies of its type; of code for one type alone: --layer TYPE"
_LARGEST = 2**24  # positions that are checked without --up-to at most


def refuse_bad_options(options: CheckOptions) -> None:
    """Raise UsageError for options that code cannot be checked with."""
    if options.up_to is not None and not 1 <= options.up_to <= _MOST_POSITIONS:
        raise UsageError(
            f"--up-to {options.up_to} is not a number of positions from 1 to {_MOST_POSITIONS}; try 128k"
        )
    environments.chosen(options.environments)
    if (path := options.write_wrapper) is not None:
        if not path.endswith(".py") or not Path(path).stem.isidentifier():
            raise UsageError(f"{_FLAG} {path!r} is not the name of a Python file; try rope_wrapper.py")
        if os.path.lexists(path):
            raise UsageError(f"{_FLAG} {path!r} is there already and stays as it is; give another name")


def checks(target: Target) -> Iterator[Checked]:
    """Yield the checks of code, by layer type if it takes one. Raises: see `analysis.check`."""
    code = _load_code(target)
    case, options = target.case, target.options
    argument = code.layered
    if options.one_layer or len(case.layers()) < 2 or not argument or argument in options.arguments:
        yield from checks_of_code(code, target)
        return

    def of_layers(kind: str) -> Iterator[Checked]:
        layer_options = replace(options, arguments={**options.arguments, argument: kind}, one_layer=True)
        own = replace(target, case=replace(case, layer=kind), options=layer_options)
        for checked in checks_of_code(_load_code(own), own):
            finding = checked.finding
            where = f"{finding.where}, {kind} layers" if finding.failed else finding.where
            yield replace(checked, layer=kind, finding=replace(finding, where=where))

    yield from doing.in_parts(list(map(of_layers, case.layers())))


def _load_code(target: Target) -> Code:
    case, options = target.case, target.options
    code = factories.implementation(
        target.name, options.order, device=options.device, arguments=options.arguments
    )
    if len(kinds := case.layers()) > 1:
        up_to = options.up_to or USUAL_MAXIMUM
        code.layers = {kind: replace(case, layer=kind).setting(up_to) for kind in kinds}
    return code


def checks_of_code(code: Code, target: Target) -> Iterator[Checked]:
    """Yield the checks of loaded code; write a wrapper if its call is unclear."""
    case, options, note = target.case, target.options, target.note
    note(notes_beside(case))
    if options.thorough:
        code.eager = False
    up_to = options.up_to or min(case.maximum or USUAL_MAXIMUM, _LARGEST)
    if code.own and case.maximum and up_to <= case.maximum:
        model = case.declared()
        code.declared, code.served = model.declared if model else None, case.maximum
    if options.up_to is None and case.maximum and case.maximum > up_to:
        note([f"checked up to {up_to:,} of the {case.maximum:,} positions that it serves"])
    try:
        fit = code.fit(_with_grid(case, case.setting(up_to), up_to)[0])
        if options.up_to is None and fit and fit.convention.padded:
            up_to = min(up_to, _PADDED)
            why = "its sequences begin at 0, and are padded up to what is asked of it"
            note([f"checked up to {up_to:,}: {why}"])
        setting, up_to = _with_grid(case, case.setting(up_to), up_to)
        if (case.layout, case.model, case.config, case.axes) == (None,) * 4:
            setting = replace(setting, layout=code.layout(setting))
        code.fit(setting)
    except NotUnderstood as error:
        fault, *facts = error.lines
        if code.place[1]:
            in_own_code = error.place[1] and not error.place[0].startswith(_LIBRARIES)
            file, line = error.place if in_own_code else code.place
            source = linecache.getline(file, line).strip()
            facts.insert(0, f"  --> {shown_path(Path(file))}:{line}   {source}")
        if options.write_wrapper is not None:
            written = _write_wrapper(options.write_wrapper, target.name, code.needed, fault)
            facts[-1] = f"   = {written}"
        raise NotUnderstood("\n".join((fault, *facts))) from None
    if options.write_wrapper is not None:
        note([f"{target.name} is understood without a wrapper; {_FLAG} writes none"])
    dtypes = options.dtypes or tuple(map(parse, DTYPES))
    tested = CodeUnderTest(
        *(code, setting, dtypes[0], up_to),
        seed=options.seed,
        thorough=options.thorough,
        sizes=options.head_dims,
        negative=options.negative,
        environments=options.environments,
    )
    if options.xpos:
        if power := xpos.power(tested):
            code.after = partial(xpos.without_lengths, power[0])
            moving = ", whose centre moves with the length of a call: a cache mixes several" * power[1]
            note([f"{target.name}: {NOT_CHECKED}the lengths of xPos, of scale base {power[0]:g}{moving}"])
        else:
            note([f"{target.name}: its lengths are judged: q is not multiplied and k divided, as by xPos"])
    each_call = every_position.follows_length(tested)
    if setting.scaling.depends_on_length:
        held = f"every call is held to the frequencies for {up_to} positions (--up-to)"
        if each_call:
            own = "and each call is held to those of its own: its largest position + 1"
            held = f"its frequencies follow each call's length, {own}"
        note([f"scaling {setting.scaling.kind} depends on the length; {held}"])
    about: dict[str, Any] = {"version": code.version, "device": code.device.label, "up_to": up_to}
    file, line = code.place
    if file.startswith(_LIBRARIES):
        file, line = "", 0  # readers do not have the file of a library
    every = [replace(tested, dtype=dtype, each_call=each_call) for dtype in dtypes]
    found = doing.in_parts([_findings_at_own_setting(each, case, options.recipe) for each in every])
    for judged_code, finding in found:
        placed = finding if finding.line else replace(finding, file=file, line=line)
        yield target.checked(placed, judged_code.dtype.name, setting=judged_code.setting, **about)
    findings = list(code.findings)  # of its own setting
    if not options.one_layer and len(case.layers()) > 1:
        finding = replace(_layer_types_finding(every[0], case), file=file, line=line)
        yield target.checked(finding, every[0].dtype.name, setting=setting, **about)
    if fit and fit.convention.tables:
        yield from _table_checks(code, target, fit)
        return
    if options.table is not None:
        raise UsageError(f"--table {options.table}: {target.name} takes no cos and sin; leave it out")
    note(findings)


def _layer_types_finding(asked: CodeUnderTest, case: Case) -> Finding:
    model, said, wrong = case.declared(), list[str](), list[Places]()
    counts = Counter(model.kinds_of_layers.values() if model else ())
    for kind in case.layers():
        setting = replace(case, layer=kind).setting(asked.up_to)
        own = replace(asked, setting=replace(setting, layout=asked.setting.layout))
        layers = f"{kind} ({counted(counts[kind], 'layer')})" if counts[kind] else kind
        try:
            length = min(_OF_A_TYPE, own.up_to)
            calls = calls_from(own.batched_vectors(length), some_offsets(own, length, _CALLS))
            places, off = own.judge_until_wrong(own.rotator(), calls)
        except (RopeAuditError, ForeignError) as error:
            said.append(f"not known for {layers}: it {did(error)}")
            continue
        wrong += [places] * bool(off)
        said.append(f"{codes(places.diagnosis) or 'wrong' if off else 'right'} for {layers}")
    if not wrong:
        return judged("layer types", True, ", ".join(said))
    more = {"where": wrong[0].words, "diagnosis": wrong[0].diagnosis, "remedy": _TELL_TYPE}
    return judged("layer types", False, ", ".join(said), **more)


def _table_checks(code: Code, target: Target, fit: Fit) -> Iterator[Checked]:
    """Yield the checks of the code that makes a target's tables, and whether both fit together.

    Code that cannot be called is a note, unless --table named it.
    """
    options, file = target.options, target.name.rpartition(":")[0]
    makers = [options.table] if options.table else [f"{file}:{name}" for name in code.builders]
    notes = [text for text in code.findings if not makers or OWN_TABLES not in text]
    missing = f"{target.name}: {NOT_CHECKED}"
    if len(makers) != 1:
        which = f"which of {', '.join(code.builders)} makes its tables: --table FILE.py:NAME says it."
        target.note([*notes, f"{missing}{which}"] if makers else notes)
        return
    [maker] = makers
    try:
        other = factories.implementation(maker, device=options.device)
        own = other.fit(target.case.setting(options.up_to or USUAL_MAXIMUM))
    except (RopeAuditError, ForeignError) as error:
        if options.table is not None:
            raise
        why = error.in_line if isinstance(error, RopeAuditError) else did(error)
        target.note([f"{missing}{maker}, which makes its tables: {why}.", *notes])
        return
    if own and not own.convention.composed and options.table is None:  # it makes the function that rotates
        target.note(code.findings)
        return
    alone = replace(options, table=None, order=None, write_wrapper=None, arguments={})
    alone = replace(alone, xpos=False, negative=False)  # for code that rotates
    results = doing.each(checks_of_code(other, replace(target, name=maker, options=alone)), doing.silently)
    checked = list[Checked]()
    for check in results:
        checked.append(check)
        if check.finding.check == "rotation":
            break
    last = checked[-1]
    own = other.fit(last.setting) if last.setting else own
    roles = own.convention.roles if own else ()
    told_base = other.own and "base" in (*other.told, *roles)
    sure = fit.sure and _is_setting_independent(last.finding, told_base)
    if last.finding.failed and options.table is None and not sure:
        others = f"whose tables are others than these: --table {maker} says how."
        target.note([f"{missing}{maker}, {others}", *notes])
        return
    yield from checked
    for check in results:
        checked.append(check)
        yield check
    status = "FAIL" if any(one.finding.failed for one in checked) else "PASS"
    place, _, name = maker.rpartition(":")
    name = f"{name} in the same file" if place == file else maker
    finding = noted("tables", f"cos and sin are exact ones of ropeaudit; {name}: {status}")
    width = own.convention.width if own and own.sure else ""
    if {fit.convention.width, width} == {"half", "interleaved"}:
        text = f"{name} makes tables for {width} pairs"
        finding = Finding("tables", "fail", text, diagnosis=Diagnosis("wrong-layout", {"layout": width}))
    yield replace(checked[0], target=target.name, finding=finding)
    target.note(notes)


def _is_setting_independent(finding: Finding, told_base: bool) -> bool:
    """Return whether a wrong table is a fault at any setting, such as a wrong exponent.

    told_base: whether the code that makes it takes the base.
    """
    found = finding.diagnosis
    if found is None or not found.explains or found.certainty == "resembles":
        return False
    parts = (part for one in (found, *found.alternatives) for part in one.parts())
    faults = {"exponent-denominator", *(["wrong-base"] if told_base else [])}
    return all(kinds()[part.code].group != "setting" or part.code in faults for part in parts)


def _with_grid(case: Case, setting: RopeSetting, up_to: int) -> tuple[RopeSetting, int]:
    """Return setting and number of positions, those of a grid for M-RoPE."""
    if case.mrope is not None and (axes := case.position_axes(setting)):
        if setting.scaling.kind != "default":
            raise UsageError(f"--mrope is checked without a scaling; leave out {setting.scaling.kind}")
        video = "x".join(map(str, _GRID_OF_MROPE)), max(0, up_to - max(_GRID_OF_MROPE))
        grid = grids.of_sections(axes, setting.base, setting.head_dim, setting.layout, *video)
        setting = replace(setting, grid=grid)
    return setting, up_to if setting.grid is None else setting.grid.count


def _findings_at_own_setting(
    asked: CodeUnderTest, case: Case, recipe: str | None
) -> Iterator[tuple[CodeUnderTest, Finding]]:
    """Yield the findings in one dtype, each with the code at the setting by which it is judged.

    That has the code's own base and rotary_dim where the user requested none.
    """
    before = list[str]()
    for finding in _dtype_findings(asked, recipe):
        unasked = _unrequested_setting(finding, case, asked)
        if not unasked:
            before.append(finding.check)
            yield asked, finding
            continue
        setting = asked.setting
        for part in unasked:
            if part.code == "wrong-base":
                setting = replace(setting, base=float(f"{part.values['base']:.10g}"))
            else:
                setting = replace(setting, rotary_dim=int(float(str(part.values["seen"]))))
        found = replace(unasked[0], also=tuple(unasked[1:]))
        held = f"if that is meant, give {wording.option(found)}: everything else is judged with it"
        asked = replace(asked, setting=setting)
        yield asked, noted("setting", held, diagnosis=found)
        yield from ((asked, one) for one in _dtype_findings(asked, recipe) if one.check not in before)
        return


def _unrequested_setting(finding: Finding, case: Case, asked: CodeUnderTest) -> list[Diagnosis]:
    """Return the base and rotary_dim that a failed rotation shows, where the user requested none.

    Only of code that takes neither, and if they are usual: see `_is_usual_value`.
    """
    found = finding.diagnosis if finding.check == "rotation" and finding.failed else None
    if found is None or found.alternatives or found.certainty == "resembles":
        return []
    called, own = asked.convention, asked.own
    whole = (case.model, case.config, case.scaling, asked.setting.grid) == (None,) * 4
    if not whole or own is None or called is None or called.tables:
        return []
    told = {*own.told, *called.roles}
    free = {
        "wrong-base": case.base is None and told.isdisjoint(("base", *_CONFIGS)),
        "partial-rotation": case.rotary_dim is None and told.isdisjoint(("dim", "fraction", *_CONFIGS)),
    }
    parts = (replace(one, also=()) for one in found.parts() if one.where == Where())
    return [one for one in parts if free.get(one.code) and _is_usual_value(one.values)]


def _is_usual_value(values: Mapping[str, Any]) -> bool:
    """Return whether a base has two digits and is at least 1000, as in all published models.

    Others come from wrong exponents. Of dims: whether a quarter, half or three quarters of them rotate.
    """
    if "base" in values:
        return values["base"] >= 1000 and float(f"{values['base']:.1e}") == float(f"{values['base']:.10g}")
    return 4 * values["seen"] / values["head_dim"] in (1, 2, 3)


def _dtype_findings(asked: CodeUnderTest, recipe: str | None) -> Iterator[Finding]:
    """Yield the findings in one dtype, or that it is refused."""
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
    for finding in code_checks.findings(asked):
        if finding.check == "rotation" and finding.failed and fit is not None and not fit.sure:
            nearest = f"the best match is {fit.convention}, {PAIRS[fit.layout]}"
            finding = replace(finding, detail=f"{finding.detail}; {nearest}")
        yield finding


def _write_wrapper(path: str, target: str, needed: Mapping[str, str], why: str) -> str:
    """Write a wrapper with the known arguments of a target; return how to use it.

    needed: argument -> role, empty if unknown. Raises: BadOutput.
    """
    place, _, name = target.rpartition(":")

    def call(x: str) -> str:
        given = {"q": "q", "k": "k", "positions": "positions", "x": x}
        told = [f"{one}={given.get(role, '...')}" for one, role in needed.items()]
        return f"{name}({', '.join(told) or '...'})"

    folder = os.path.relpath(Path(place).resolve().parent, Path(path).resolve().parent)
    text = templates.render(
        "wrapper.py.j2",
        file=Path(path).name,
        folder=repr(folder) if place.endswith(".py") else "",
        place=place,
        name=name,
        why=why,
        calls=f"{call('q')}, {call('k')}" if "x" in needed.values() else call("q"),
    )
    try:
        atomic_files.write({Path(path): text.encode()})
    except OSError as error:
        raise BadOutput(f"{_FLAG} {path!r} cannot be written: {error.strerror}; give another place") from None
    return f"{path} holds a wrapper to edit: finish its call, then type `ropeaudit check {path}:rotate`"
