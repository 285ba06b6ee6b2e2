"""One implementation, looked at from all sides: drift, likeness, environments, a cast of its class."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import replace

from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.audit import Audit
from ropeaudit.audits.cases import Case
from ropeaudit.audits.records import Record
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.explain.tracing import trace
from ropeaudit.features.module.analysis import module
from ropeaudit.features.survey.surveyed import Cast, Cell, Options, Surveyed
from ropeaudit.rope.setting import Layout
from ropeaudit.subjects import factories, third_party
from ropeaudit.subjects.calling import exposure, implementation
from ropeaudit.subjects.calling.implementation import Implementation, one_line
from ropeaudit.subjects.placement import likeness

_TRACED = (0, 1024)  # offsets at which recipes are compared
_CAREFUL = "hf"


def examined(name: str, options: Options) -> Surveyed:
    """Return what is known of an implementation, by its name; why where that is nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of theirs
            return _examined(name, options)
    except RopeAuditError as error:
        return Surveyed(name, refused=error.typed)
    except Exception as error:  # whatever other people's code raises
        return Surveyed(name, refused=one_line(error))


def _examined(name: str, options: Options) -> Surveyed:
    code = factories.implementation(name)
    results: list[Record] = []
    for head_dim in options.head_dims:
        results = _rows(name, head_dim, options)
        if any(one.verdict != "refused" for one in results):
            break
    taken = [one for one in results if one.verdict != "refused"]
    if not taken:
        return Surveyed(name, code.version, refused=results[0].refused or "refused" if results else "no rows")
    head_dim = taken[0].head_dim
    layout: Layout = "interleaved" if taken[0].layout == "interleaved" else "half"
    cells = tuple(_cell(one, head_dim, layout, options) for one in results)
    case = Case(head_dim=head_dim, layout=layout, seq_len=options.seq_len, heads=options.heads)
    surveyed = Surveyed(name, code.version, head_dim, layout, cells=cells)
    surveyed = _with_likeness(surveyed, code, case)
    surveyed = replace(surveyed, causes=_causes(surveyed, code, case, options))
    return _with_casts(surveyed, options)


def _rows(name: str, head_dim: int, options: Options) -> list[Record]:
    case = Case(head_dim=head_dim, seq_len=options.seq_len, heads=options.heads)
    audit = Audit(
        (case,),
        recipes=(),
        dtypes=options.dtypes,
        offsets=options.offsets,
        implementations=(name,),
        environments=options.under,
    )
    return list(audit.run())


@functools.cache
def _careful(head_dim: int, layout: Layout, options: Options) -> dict[tuple[str, int], float]:
    """Return the RMS drift of recipe hf by dtype and offset, on the same q and k."""
    case = Case(head_dim=head_dim, layout=layout, seq_len=options.seq_len, heads=options.heads)
    audit = Audit((case,), recipes=(_CAREFUL,), dtypes=options.dtypes, offsets=options.offsets)
    return {(one.dtype, one.offset): one.drift_rms for one in audit.run()}


def _cell(one: Record, head_dim: int, layout: Layout, options: Options) -> Cell:
    careful = _careful(head_dim, layout, options).get((one.dtype, one.offset), math.nan)
    return Cell(
        one.dtype,
        one.offset,
        str(one.environment),
        one.drift_relative,
        one.drift_rms / careful if careful else math.nan,
        one.verdict,
        str(one.within_tolerance),
        one.distinct_positions,
        one.resembles or "",
        one.refused or "",
    )


def _with_likeness(surveyed: Surveyed, code: Implementation, case: Case) -> Surveyed:
    """Return it with its stages and the nearest recipe, in the narrowest dtype that it takes."""
    taken = [cell.dtype for cell in surveyed.clean if cell.verdict != "refused"]
    dtype = min(taken, key=lambda name: parse(name).precision)
    traced = trace(code, parse(dtype), case, _TRACED)
    best = traced.nearest()
    stages = {
        one.name: " ".join([" -> ".join(one.dtypes), *one.operations]) for one in traced.stages if one.dtypes
    }
    behaves = likeness.words(best[0].group.resolved) if best else traced.fault
    recipes = tuple(name for one in best for name in one.group.names)
    return replace(surveyed, behaves=behaves, recipes=recipes, stages=stages)


def _causes(surveyed: Surveyed, code: Implementation, case: Case, options: Options) -> dict[str, str]:
    """Return why it is worse in environments, as far as torch's operations show it."""
    causes = {}
    placed = factories.in_environments(code, options.under) if surveyed.exposures else []
    by_environment = {implementation.environment_of(one): one for one in placed}
    for cell in surveyed.exposures:
        one, setting = by_environment[cell.environment], case.setting(options.seq_len)
        causes[cell.environment] = exposure.cause(one, setting, parse(cell.dtype))
    return causes


def _with_casts(surveyed: Surveyed, options: Options) -> Surveyed:
    """Return it with what its class returns after casts; as it is where it is no class."""
    spec = "" if factories.is_own(surveyed.name) else third_party.entry_of(surveyed.name).target
    if not spec or not options.casts:
        return surveyed
    try:
        audit = module(spec, loaded=("built", "to"), dtypes=options.casts, up_to=1000 + options.seq_len)
    except RopeAuditError as error:
        return replace(surveyed, cast_refused=error.typed)
    casts = [
        Cast(
            one.way,
            one.measured.cos_error,
            one.measured.distinct,
            one.measured.positions,
            one.wrong,
            one.held,
        )
        for one in audit.runs
        if one.measured
    ]
    reasons = [one.reason for one in audit.runs if one.reason]
    return replace(surveyed, casts=casts, cast_refused="" if casts else "; ".join(dict.fromkeys(reasons)))
