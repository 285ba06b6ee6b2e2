"""The report of RoPE buffers: the answer, the rows and the ticket; of code, from a process of its own."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits import records
from ropeaudit.door import process
from ropeaudit.door.child import Header
from ropeaudit.door.child import Session as Inside
from ropeaudit.door.messages import Arrays, Values
from ropeaudit.errors import BadInput, ForeignError, did
from ropeaudit.features.module import analysis, built
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.buffers import FREQUENCIES, Buffer
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.recognition.stored_values import FAR, NEAR
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name
from ropeaudit.runtime.columns import table
from ropeaudit.runtime.paths import shown_path
from ropeaudit.subjects.calling.environments import ENVIRONMENTS
from ropeaudit.subjects.calling.signatures import place

SCHEMA = 1
COLUMNS = table("module")
_POSITIONS = 4096  # that a remedy is written for
_HOW = {  # how a buffer came to hold narrow numbers
    "stored": "stored in {}, which no later conversion restores",
    "graph": "converted to {} by the graph: leave out that conversion",
    "back": "its values are {} numbers: cast and cast back, which restores nothing",
    "none": "",
}
_TO_GIVE = {  # kind of a source that stores nothing -> what to give instead
    "graph": "give the module that was exported (file.py:function)",
    "checkpoint": "frequencies are computed on loading: give the function that loads it, "
    "such as FILE.py:load",
}
_EXPECTED = (
    "The values should be those of {}, up to the rounding of float32; no cast back restores what was "
    "rounded away."
)


def report(
    results: Sequence[ModuleAudit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    audit = only(results)
    rows = [_row(one) for one in audit.buffers]
    return tabulated(
        *(COLUMNS, SCHEMA, rows, COLUMNS.screen(rows) if rows else [], columns, metadata),
        answers=[Answer(*_decided(audit), _causes(audit), _facts(audit))],
        brief=not columns,
        notes=list(audit.notes),
        further=_of_pairs(audit.buffers) if audit.kind == "dump" else {},
    )


def _row(one: Buffer) -> dict[str, Any]:
    """Return the row of a buffer."""
    alike = ("what", "loaded", "against", "cast", "how", "from_built", "finding")
    return {
        "schema": SCHEMA,
        "buffer": one.stored.name,
        "dtype": one.stored.dtype,
        "shape": "x".join(map(str, one.stored.shape)),
        **{name: getattr(one, name) for name in alike},
        "agrees": {None: "unknown", True: "yes", False: "no"}[one.agrees],
        "largest_error": one.error,
        "drift_256": one.drift_near,
        "drift_131072": one.drift_far,
        "used_by": "none" if one.stored.use is None else one.stored.use.words,
        "diagnosis": codes(one.diagnosis),
    }


def _of_pairs(buffers: Sequence[Buffer]) -> dict[str, Report]:
    """Return the tables of pairs and of hypotheses; none where nothing was compared."""
    pairs, hypotheses = list[dict[str, Any]](), list[dict[str, Any]]()
    told = set[int]()
    for one in buffers:
        if one.table is None or id(one.table) in told:  # it is shared by cos and its sin
            continue
        told.add(id(one.table))
        name = {"buffer": one.stored.name}
        pairs += [{**name, **each, "setting": one.against} for each in one.table.rows]
        for each in one.table.hypotheses:
            found = wording.sentence(each.diagnosis) or "what is expected"
            row = {**name, "diagnosis": codes(each.diagnosis), "text": found, "explains": each.explains}
            row |= {"residual": each.residual, "residual_max": each.residual_max}
            hypotheses.append({**row, "strays": " ".join(map(str, each.strays))})
    if not pairs:
        return {}
    known = list(dict.fromkeys(name for each in pairs for name in each))
    hidden = {"setting", "tolerance", *(["buffer"] if len(told) == 1 else [])}
    return {
        "pairs": Report(
            [{name: each.get(name) for name in known} for each in pairs],
            known,
            [name for name in known if name not in hidden],
            headline="Pair by pair:",
            declared={"tolerance": records.COLUMNS["tolerance"]},  # shown as it was given
        ),
        "hypotheses": Report(hypotheses, list(hypotheses[0]) if hypotheses else [], []),
    }


def _decided(audit: ModuleAudit) -> tuple[Status, str, str]:
    """Return the status, the source, and what it rests on: what was not judged is no pass."""
    buffers = audit.buffers
    status: Status = "FAIL"
    total = counted(len(buffers), f"RoPE {audit.noun}")
    none = f"no RoPE {audit.noun} among {counted(audit.tensors, 'tensor')}"
    if audit.lost:
        decides = f"{counted(len(audit.lost), 'setting')} lost in conversion"
    elif audit.wrong:
        decides = _wrong(audit)
    elif audit.judged and all(one.agrees for one in buffers):
        status, decides = "OK", f"{len(buffers)} of {total} within float32 rounding"
    elif audit.judged:
        status, decides = "WARN", f"no cast shows in {total}; nothing says which values are right"
    elif audit.found:
        some = audit.kind != "gguf" and any(one.judged for one in buffers)
        decides = "not all was judged" if some else "nothing was judged"
    elif audit.module is None:
        decides = f"nothing was judged: {none}"
    else:
        decides = f"nothing is stored: {none}; {_check(audit)} calls it"
    return status, audit.spec, decides


def _check(audit: ModuleAudit) -> str:
    """Return the command that calls a module, under the loading modes that it knows."""
    under = ",".join(mode for mode in audit.modes if mode in ENVIRONMENTS)
    return f"`ropeaudit check {audit.spec}{under and f' --under {under}'}`"


def _wrong(audit: ModuleAudit) -> str:
    """Return how many buffers were cast and are off, and in which loading modes."""
    several, modes = len(audit.modes) > 1, dict[str, list[str]]()
    for mode in dict.fromkeys(one.loaded for one in audit.buffers if one.wrong):
        own = [one for one in audit.buffers if one.loaded == mode]
        of = f"of {counted(len(own), f'RoPE {audit.noun}')}"
        cast = sum(one.cast != "none" for one in own)
        counts = {"cast": cast, "off": sum(one.wrong for one in own) - cast}
        words = " and ".join(f"{count} {of} {word}" for word, count in counts.items() if count)
        told = f" {built.in_words(mode)}" if several else _mode(own[0])
        modes.setdefault(words, []).append(told)
    return ", ".join(f"{words}{' and'.join(some)}" for words, some in modes.items())


def _mode(one: Buffer) -> str:
    """Return how its module was loaded, as a suffix; empty as built and of a file."""
    return "" if one.as_built is None else f" {built.in_words(one.loaded)}"


def _causes(audit: ModuleAudit) -> list[Cause]:
    """Return a cause for each setting that was lost, or else for each code of buffers."""
    causes, groups = list[Cause](), dict[str, list[Buffer]]()
    for lost in audit.lost:
        title = (f"{lost.layer} layers: " if lost.layer else "") + wording.sentence(lost.diagnosis)
        effect = "" if causes or not audit.buffers else _effect(max(audit.buffers, key=_size))
        facts = [f"{lost.keys} is not what config.json says", *filter(None, [effect])]
        causes.append(Cause(lost.diagnosis.code, title, facts=facts))
    for one in audit.buffers if not causes else ():
        if one.wrong:
            code = one.diagnosis.code if one.diagnosis else one.stored.name.rpartition(".")[2]
            groups.setdefault(code, []).append(one)
    return causes + [_cause(audit, code, some) for code, some in groups.items()]


def _cause(audit: ModuleAudit, code: str, some: Sequence[Buffer]) -> Cause:
    """Return what all buffers of one code have in common; the worst stands for all."""
    first, *rest = sorted(some, key=_size, reverse=True)
    title, fix, cast = _title(first), _remedy(audit, first), _HOW[first.how].format(first.cast)
    measured = first.measured if first.measured not in title else ""
    more = f" and {len(rest)} more" if rest else ""
    used = f"; used by {first.stored.use.words}" if first.stored.use is not None else ""
    file, line = "", 0
    if audit.module is not None:
        holder = audit.module.get_submodule(first.stored.name.rpartition(".")[0])
        file, line = place(type(holder))
    facts = [
        f"{first.stored.name}{more}{_mode(first)}: {cast or measured or 'off'}{used}",
        "; ".join(filter(None, [measured if cast else "", _effect(first)])),
        *[f"{one.stored.name}: {_title(one)}" for one in rest if _title(one) != title][:1],
        f"fix: {fix}" if fix else "",
    ]
    source = linecache.getline(file, line).strip()
    return Cause(code, title, file and shown_path(file), line, source, list(filter(None, facts)))


def _remedy(audit: ModuleAudit, one: Buffer) -> str:
    """Return what to do about a wrong buffer; empty where nothing is known."""
    own = one.remedy(audit.expected) if audit.kind == "checkpoint" else ""
    return own or wording.remedy(one.diagnosis, FP32, _POSITIONS)


def _title(one: Buffer) -> str:
    """Return what explains that a buffer is wrong, or that nothing known does."""
    known = one.diagnosis is not None and one.diagnosis.certainty != "resembles" and not one.imaginary_lost
    return wording.sentence(one.diagnosis) if known else one.finding.rstrip(".")


def _size(one: Buffer) -> tuple[float, float]:
    """Return what sorts buffers: what they do to scores, then their largest error."""
    return one.drift_near or 0.0, one.error or 0.0


def _effect(one: Buffer) -> str:
    """Return what the values of a buffer by themselves do to scores."""
    if one.drift_near is None:
        return ""
    far = "" if one.drift_far is None else f", {percent(one.drift_far)} at distance {FAR:,}"
    return f"these values alone put scores {percent(one.drift_near)} off within {NEAR} tokens{far}"


def _facts(audit: ModuleAudit) -> list[tuple[str, str]]:
    """Return what was measured, against what, what was not checked, and what to type."""
    buffers, facts = audit.buffers, dict[str, str]()
    if audit.module is not None:
        off = {one.loaded for one in buffers if one.wrong}
        held = dict.fromkeys(one.loaded for one in buffers if one.loaded not in off)
        facts["nothing off" if off else "loaded"] = ", ".join(map(built.in_words, held))
    errors = [one for one in buffers if one.error is not None]
    if errors and not audit.wrong:
        largest = max(errors, key=lambda one: one.error or 0.0)
        unit = "relative" if largest.what in FREQUENCIES else "rad"
        facts["largest error"] = f"{largest.error:.2g} {unit} ({largest.stored.name})"
    given = {one.label: one.guessed for one in buffers if one.table is not None}
    facts["compared with"] = " and ".join(name for name, guessed in given.items() if not guessed)
    if assumed := " and ".join(name for name, guessed in given.items() if guessed):
        facts["assumed"] = f"{assumed}, from the values (--config, --model or --base says what is right)"
    if audit.gguf is not None and not audit.explicit:
        rope = audit.gguf
        facts["read"] = setting_words(rope.setting, rope.model.axes, rope.model.served)
    facts["not checked"] = "; ".join(_unchecked(audit))
    if audit.kind == "gguf" and not audit.explicit and not audit.wrong:
        facts["next"] = "put its config.json beside it, or give --config"
    elif not buffers:
        facts["next"] = _TO_GIVE.get(audit.kind, "")
    else:
        rows = f"{'pair by pair' if audit.kind == 'dump' else 'all rows'}: -v"
        facts["next"] = f"{rows}    bug report: --ticket FILE" if audit.wrong else rows
    return [fact for fact in facts.items() if fact[1]]


def _unchecked(audit: ModuleAudit) -> list[str]:
    """Return what was not checked, and what the source does not show."""
    parts = list[str]()
    for one in audit.buffers:
        if one.table is None and not one.nonfinite:
            parts.append(f"{one.stored.name} ({one.finding.rstrip('.')})")
        if one.stored.use is not None and one.stored.use.mixed:
            parts.append(f"{one.stored.name} as converted, which differs by node")
    if audit.module is None:
        return [*parts[:3], "positions and the code that rotates (check FILE:NAME)"]
    tried = {mode.partition(":")[0] for mode in audit.modes}
    left = ", ".join(mode for mode in built.MODES if mode not in tried)
    others = [f"other loading modes: {left} (--loaded)"] if left else []
    called = f"forward, which was not called: {_check(audit)} calls it"
    return [called, *dict.fromkeys(parts[:3]), *others]


def _ticket(audit: ModuleAudit, said: Report) -> Ticket:
    """Return the ticket of the buffer that moves scores most, or of a source in which none is wrong."""
    alone = Reproduction(missing="a module has to be built and loaded as it is")
    wrong = [one for one in audit.buffers if one.wrong]
    if not wrong:
        title = f"RoPE of {file_name(audit.spec)}: {said.answers[0].decides}"
        facts = {"source": audit.spec, "buffers": len(audit.buffers)}
        return Ticket(title, said, facts, "", alone)
    one = max(wrong, key=_size)
    held = "is not what it should be" if one.cast == "none" else f"is {one.cast}"
    name = f"RoPE {audit.noun} {one.stored.name} {held}{_mode(one)}"
    remedy = _remedy(audit, one)
    expected = _EXPECTED.format(one.against) + (f" {remedy[:1].upper()}{remedy[1:]}." if remedy else "")
    said = replace(said, headline=f"{one.stored.name}{_mode(one)}: {one.finding}")
    return Ticket(f"{name}{by_code(codes(one.diagnosis))}", said, _row(one), expected, alone)


_HERE = "ropeaudit.features.module.report"
_VALUES = Values([Report, Answer, Cause, Ticket, Reproduction], [COLUMNS, records.COLUMNS["tolerance"]])


def run(asked: Mapping[str, Any], columns: Sequence[str] | None) -> tuple[bool, Report, Ticket]:
    """Audit a source, code in a child: return whether it fails, its report and its ticket.

    asked: for `analysis.module`. Raises: RopeAuditError.
    """
    spec, arrays = str(asked["source"]), dict[str, Any]()
    given = {"asked": _VALUES.packed([dict(asked), columns], arrays)}
    try:
        alone = (_HERE, "torch", "transformers")
        session = process.alone(alone) if built.is_code(spec) else process.within(None, {}).session()
        told, held = session.ask(f"{_HERE}:answered", given, arrays)
    except ForeignError as error:
        raise BadInput(f"{spec!r}: {did(error)}") from None
    broken, made, ticket = _VALUES.unpacked(told, dict(held))
    return broken, made, ticket


def answered(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Any, Arrays]:
    """Return the same in the child."""
    asked, columns = _VALUES.unpacked(arguments["asked"], dict(arrays))
    audit, held = analysis.module(**asked), dict[str, Any]()
    broken = audit.wrong or not audit.judged
    ticket = _ticket(audit, report([audit], None, {}))
    return _VALUES.packed([broken, report([audit], columns, {}), ticket], held), held
