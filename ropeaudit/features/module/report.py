"""The report of RoPE buffers: the answer and the rows.

A module that is code is built in a process of its own, from which the report comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.door import process
from ropeaudit.door.child import Header
from ropeaudit.door.child import Session as Inside
from ropeaudit.door.messages import Arrays
from ropeaudit.door.values import Values
from ropeaudit.errors import BadInput, ForeignError, did
from ropeaudit.features.module import analysis, built
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.answer import answer, mode_of, remedy_of, size
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import Answer, Cause
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name
from ropeaudit.runtime.columns import table

SCHEMA = 1
COLUMNS = table("module")
_COMMAND_ALONE = Reproduction(missing="a module has to be built and loaded as it is")
_EXPECTED = (
    "The values should be those of {}, up to the rounding of float32: keep what positions are multiplied by "
    "out of casts, for no cast back restores what was rounded away. The exact values follow from the base "
    "and the dims alone."
)


def row_of(one: Buffer) -> dict[str, Any]:
    """Return the row of a buffer."""
    return {
        "schema": SCHEMA,
        "buffer": one.stored.name,
        "loaded": one.loaded,
        "what": one.what,
        "dtype": one.stored.dtype,
        "shape": "x".join(map(str, one.stored.shape)),
        "against": one.against,
        "cast": one.cast,
        "how": one.how,
        "agrees": "unknown" if one.agrees is None else "yes" if one.agrees else "no",
        "largest_error": one.error,
        "from_built": one.from_built,
        "drift_256": one.drift_near,
        "drift_131072": one.drift_far,
        "used_by": "none" if one.stored.use is None else one.stored.use.words,
        "diagnosis": codes(one.diagnosis),
        "finding": one.finding,
    }


def report(
    results: Sequence[ModuleAudit],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written."""
    audit = only(results)
    rows = [row_of(one) for one in audit.buffers]
    return tabulated(
        COLUMNS,
        SCHEMA,
        rows,
        COLUMNS.screen(rows) if rows else [],
        columns,
        metadata,
        [answer(audit)],
        brief=not columns,
        notes=list(audit.source.notes),
        further=_of_pairs(audit.buffers) if audit.source.kind == "dump" else {},
    )


def _of_pairs(buffers: Sequence[Buffer]) -> dict[str, Report]:
    """Return the tables of pairs and of hypotheses; none where nothing was compared."""
    pairs, hypotheses = list[dict[str, Any]](), list[dict[str, Any]]()
    tables = set[int]()
    for one in buffers:
        if one.table is None or id(one.table) in tables:  # it is shared by cos and its sin
            continue
        tables.add(id(one.table))
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
    hidden = {"setting", "tolerance", *(["buffer"] if len(tables) == 1 else [])}
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


def ticket_of(audit: ModuleAudit) -> Ticket:
    """Return the ticket of the buffer that moves scores most, or of a source in which none is wrong."""
    said, wrong = report([audit], None, {}), [one for one in audit.buffers if one.wrong]
    if not wrong:
        title = f"RoPE of {file_name(audit.source.spec)}: {said.answers[0].decides}"
        facts = {"source": audit.source.spec, "buffers": len(audit.buffers)}
        return Ticket(title, said, facts, "", _COMMAND_ALONE)
    one = max(wrong, key=size)
    held = "is not what it should be" if one.cast == "none" else f"is {one.cast}"
    name = f"RoPE {audit.source.noun} {one.stored.name} {held}{mode_of(one)}"
    remedy = remedy_of(audit, one)
    expected = _EXPECTED.format(one.against) + (f" {remedy[:1].upper()}{remedy[1:]}." if remedy else "")
    said = replace(said, headline=f"{one.stored.name}{mode_of(one)}: {one.finding}")
    return Ticket(f"{name}{by_code(codes(one.diagnosis))}", said, row_of(one), expected, _COMMAND_ALONE)


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
        session = process.alone(alone) if built.is_code(spec) else process.here()
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
    return _VALUES.packed([broken, report([audit], columns, {}), ticket_of(audit)], held), held
