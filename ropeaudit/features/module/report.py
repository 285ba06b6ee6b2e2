"""The report of `module`: answer, rows and ticket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.module.buffers import FREQUENCIES, Buffer
from ropeaudit.features.module.judging import ModuleAudit, remedy, rows_in_words
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.recognition.stored_values import FAR, NEAR
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name
from ropeaudit.runtime.columns import table

SCHEMA = 1
COLUMNS = table("module")
_HOW = {  # how a buffer came to hold narrow numbers
    "stored": "stored in {}, which no later conversion restores",
    "graph": "converted to {} by the graph: leave out that conversion",
    "back": "its values are {} numbers: cast and cast back, which restores nothing",
    "none": "",
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
    rows = [_row(buffer) for buffer in audit.buffers]
    return tabulated(
        *(COLUMNS, SCHEMA, rows, COLUMNS.screen(rows) if rows else [], columns, metadata),
        answers=[Answer(*_status_and_reason(audit), _causes(audit), _facts(audit))],
        brief=not columns,
        notes=list(audit.notes),
        further=_pair_tables(audit.buffers) if audit.kind == "dump" else {},
    )


def _row(buffer: Buffer) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "buffer": buffer.stored.name,
        "dtype": buffer.stored.dtype,
        "shape": "x".join(map(str, buffer.stored.shape)),
        **{name: getattr(buffer, name) for name in ("what", "against", "cast", "how", "finding")},
        "agrees": {None: "unknown", True: "yes", False: "no"}[buffer.agrees],
        "largest_error": buffer.error,
        "drift_256": buffer.drift_near,
        "drift_131072": buffer.drift_far,
        "used_by": "none" if buffer.stored.use is None else buffer.stored.use.words,
        "diagnosis": codes(buffer.diagnosis),
    }


def _pair_tables(buffers: Sequence[Buffer]) -> dict[str, Report]:
    pairs, hypotheses = list[dict[str, Any]](), list[dict[str, Any]]()
    told = set[int]()
    for buffer in buffers:
        if buffer.table is None or id(buffer.table) in told:  # it is shared by cos and its sin
            continue
        told.add(id(buffer.table))
        name = {"buffer": buffer.stored.name}
        pairs += [{**name, **each, "setting": buffer.against} for each in buffer.table.rows]
        for each in buffer.table.hypotheses:
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


def _status_and_reason(audit: ModuleAudit) -> tuple[Status, str, str]:
    """Return status, source and the reason; a source that was not judged does not pass."""
    buffers = audit.buffers
    status: Status = "FAIL"
    total = counted(len(buffers), f"RoPE {audit.noun}")
    none = f"no RoPE {audit.noun} among {counted(audit.tensors, 'tensor')}"
    if audit.unrotated:
        status, decides = "OK", f"nothing to check: {audit.unrotated}"
    elif audit.lost:
        decides = f"{counted(len(audit.lost), 'setting')} lost in conversion"
    elif audit.wrong:
        cast = sum(buffer.cast != "none" for buffer in buffers)
        counts = {"cast": cast, "off": sum(buffer.wrong for buffer in buffers) - cast}
        decides = " and ".join(f"{count} of {total} {word}" for word, count in counts.items() if count)
    elif buffers and audit.judged and all(buffer.agrees for buffer in buffers):
        status, decides = "OK", f"{len(buffers)} of {total} within float32 rounding"
    elif buffers and audit.judged:
        status, decides = "WARN", f"no cast shows in {total}; nothing says which values are right"
    elif audit.found:
        some = audit.kind != "gguf" and any(buffer.judged for buffer in buffers)
        decides = "not all was judged" if some else "nothing was judged"
    elif audit.judged:
        by_class = audit.config and not audit.own_code
        computes = "transformers" if by_class else "the code that loads it"
        status, decides = "OK", f"nothing stored: {none}; {computes} computes them at load"
    else:
        decides = f"nothing was judged: {none}"
    return status, audit.spec, decides


def _causes(audit: ModuleAudit) -> list[Cause]:
    """Return a cause for each lost setting, else for each code."""
    causes, groups = list[Cause](), dict[str, list[Buffer]]()
    for lost in audit.lost:
        title = (f"{lost.layer} layers: " if lost.layer else "") + wording.sentence(lost.diagnosis)
        effect = "" if causes or not audit.buffers else _score_effect(max(audit.buffers, key=_sort_key))
        facts = [lost.told or f"{lost.keys} is not what config.json says", *filter(None, [effect])]
        causes.append(Cause(lost.diagnosis.code, title, facts=facts))
    for buffer in audit.buffers if not causes else ():
        if buffer.wrong:
            code = buffer.diagnosis.code if buffer.diagnosis else buffer.stored.name.rpartition(".")[2]
            groups.setdefault(code, []).append(buffer)
    return causes + [_cause(audit, code, some) for code, some in groups.items()]


def _cause(audit: ModuleAudit, code: str, some: Sequence[Buffer]) -> Cause:
    first, *rest = sorted(some, key=_sort_key, reverse=True)
    title, cast = _title(first), _HOW[first.how].format(first.cast)
    seen = first.measured if first.measured not in title else ""
    ended = rows_in_words(first) if first.ends else ""
    measured = "; ".join(filter(None, [seen, ended]))
    seen = "off" if first.finding.rstrip(".") == title else first.finding.rstrip(".")
    more = f" and {len(rest)} more" if rest else ""
    used = f"; used by {first.stored.use.words}" if first.stored.use is not None else ""
    fix = remedy(first, audit)
    facts = [
        f"{first.stored.name}{more}: {cast or measured or seen}{used}",
        "; ".join(filter(None, [measured if cast else "", _score_effect(first)])),
        *[f"{buffer.stored.name}: {_title(buffer)}" for buffer in rest if _title(buffer) != title][:1],
        f"fix: {fix}" if fix else "",
    ]
    return Cause(code, title, facts=list(filter(None, facts)))


def _title(buffer: Buffer) -> str:
    known = buffer.diagnosis is not None and buffer.diagnosis.certainty != "resembles"
    return wording.sentence(buffer.diagnosis) if known else buffer.finding.rstrip(".")


def _sort_key(buffer: Buffer) -> tuple[float, float]:
    """Sort by drift of scores, then by the largest error."""
    return buffer.drift_near or 0.0, buffer.error or 0.0


def _score_effect(buffer: Buffer) -> str:
    if buffer.drift_near is None or buffer.nonfinite or (buffer.table is not None and buffer.table.agrees):
        return ""
    far = "" if buffer.drift_far is None else f", {percent(buffer.drift_far)} at distance {FAR:,}"
    return f"these values alone put scores {percent(buffer.drift_near)} off within {NEAR} tokens{far}"


def _facts(audit: ModuleAudit) -> list[tuple[str, str]]:
    buffers, facts = audit.buffers, dict[str, str]()
    if audit.unrotated:
        return []
    errors = [buffer for buffer in buffers if buffer.error is not None]
    if errors and not audit.wrong:
        largest = max(errors, key=lambda buffer: buffer.error or 0.0)
        unit = "relative" if largest.what in FREQUENCIES else "rad"
        facts["largest error"] = f"{largest.error:.2g} {unit} ({largest.stored.name})"
    given = {buffer.label: buffer.guessed for buffer in buffers if buffer.table is not None}
    facts["compared with"] = " and ".join(name for name, guessed in given.items() if not guessed)
    if assumed := " and ".join(name for name, guessed in given.items() if guessed):
        facts["assumed"] = f"{assumed}, from the values (--config, --model or --base says what is right)"
    if audit.gguf is not None and not audit.explicit:
        rope = audit.gguf
        facts["read"] = setting_words(rope.setting, rope.model.axes, rope.model.served)
    parts = list[str]()
    for buffer in buffers:
        if buffer.table is None and not buffer.wrong:
            parts.append(f"{buffer.stored.name} ({buffer.finding.rstrip('.')})")
        if buffer.stored.use is not None and buffer.stored.use.mixed:
            parts.append(f"{buffer.stored.name} as converted, which differs by node")
    rest = "positions, the order of pairs in tables, and the code that rotates (check FILE:NAME)"
    facts["not checked"] = "; ".join([*parts[:3], rest])
    if audit.kind == "gguf" and not audit.explicit and not audit.wrong:
        facts["next"] = "put its config.json beside it, or give --config"
    elif not buffers:
        facts["next"] = "check the code that was exported: `ropeaudit check FILE.py:NAME`"
        if audit.kind != "graph":
            folder = audit.spec if audit.config else "FOLDER"
            facts["next"] = f"`ropeaudit check {folder}` judges those, by config.json"
    else:
        rows = f"{'pair by pair' if audit.kind == 'dump' else 'all rows'}: -v"
        facts["next"] = f"{rows}    bug report: --ticket FILE" if audit.wrong else rows
    return [fact for fact in facts.items() if fact[1]]


def ticket(audit: ModuleAudit) -> Ticket:
    """Return the ticket about the worst buffer, or about a source without a wrong one."""
    said = report([audit], None, {})
    alone = Reproduction(missing="files are read, and no code is called")
    wrong = [buffer for buffer in audit.buffers if buffer.wrong]
    if not wrong:
        title = f"RoPE of {file_name(audit.spec)}: {said.answers[0].decides}"
        facts = {"source": audit.spec, "buffers": len(audit.buffers)}
        return Ticket(title, said, facts, "", alone)
    buffer = max(wrong, key=_sort_key)
    held = "is not what it should be" if buffer.cast == "none" else f"is {buffer.cast}"
    name = f"RoPE {audit.noun} {buffer.stored.name} {held}"
    fix = remedy(buffer, audit)
    expected = _EXPECTED.format(buffer.against) + (f" {fix[:1].upper()}{fix[1:]}." if fix else "")
    said = replace(said, headline=f"{buffer.stored.name}: {buffer.finding}")
    return Ticket(f"{name}{by_code(codes(buffer.diagnosis))}", said, _row(buffer), expected, alone)
