"""The report of a module's RoPE buffers and of its runs: the answer, and the rows of each.

A module that is code is built and run in a process of its own, from which the report comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits import records
from ropeaudit.door import process
from ropeaudit.door.child import Header
from ropeaudit.door.child import Session as Inside
from ropeaudit.door.messages import Arrays
from ropeaudit.door.values import Values
from ropeaudit.errors import BadInput, ForeignError, did
from ropeaudit.features.module import analysis
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.answer import answer, badness, finding
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.features.module.measurement import UP_TO
from ropeaudit.features.module.runs import Run
from ropeaudit.features.module.source import is_code
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import Answer, Cause, headline
from ropeaudit.reports.tickets.ticket import Reproduction, Ticket, by_code, file_name
from ropeaudit.runtime.columns import table

SCHEMA = 1
COLUMNS = table("module-buffers")
RUNS = table("module-runs")
# column of a run -> what of a measurement it holds
_MEASURED = {
    "positions": "positions",
    "distinct_positions": "distinct",
    "cos_error": "cos_error",
    "at_position": "worst",
    "sin_error": "sin_error",
    "allowed_error": "allowed",
    "excess": "excess",
    "drift": "drift",
    "nonfinite": "nonfinite",
}
_COMMAND_ALONE = Reproduction(missing="a module has to be built and loaded as it is")
_EXPECTED = (
    "The values should be those of {}, up to the rounding of float32: compute positions, frequencies and "
    "angles in float32 whatever the module's dtype, and keep what they are computed from out of casts, for "
    "no cast back restores what was rounded away. The exact values follow from the base and the dims alone."
)


def buffer_row(one: Buffer) -> dict[str, Any]:
    """Return the row of a buffer."""
    return {
        "schema": SCHEMA,
        "buffer": one.stored.name,
        "what": one.what,
        "dtype": one.stored.dtype,
        "device": one.device,
        "shape": "x".join(map(str, one.stored.shape)),
        "against": one.against,
        "cast": one.cast,
        "how": one.how,
        "agrees": "unknown" if one.agrees is None else "yes" if one.agrees else "no",
        "largest_error": one.error,
        "drift_256": one.drift_near,
        "drift_131072": one.drift_far,
        "times_float32": one.times_float32,
        "used_by": "none" if one.stored.use is None else one.stored.use.words,
        "diagnosis": codes(one.diagnosis),
        "finding": one.finding,
    }


def run_row(one: Run) -> dict[str, Any]:
    """Return the row of a run; what was measured is None without a run."""
    seen = one.measured
    result = "off" if one.wrong else "not run" if seen is None else "rounded" if seen.rounded else "within"
    measured = {name: getattr(seen, field, None) for name, field in _MEASURED.items()}
    return {
        "schema": SCHEMA,
        "module": one.module,
        "kind": one.built.kind,
        "loaded": one.loaded,
        "dtype": one.dtype,
        "device": one.built.device,
        "call": one.built.call,
        "held": one.held,
        "buffer_error": one.buffer_error,
        "against": one.built.against,
        **measured,
        **{name: getattr(seen, name, "") or "none" for name in ("returns", "returned", "usual")},
        "result": result,
        "diagnosis": codes(one.diagnosis),
        "finding": finding(one),
    }


def report(
    results: Sequence[ModuleAudit], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    Its rows are buffers, or runs where loading modes were requested; the others are a further table.
    """
    audit, further = only(results), dict[str, Report]()
    rows = {
        "buffers": [buffer_row(one) for one in audit.buffers],
        "runs": [run_row(one) for one in audit.runs],
    }
    tables = {"buffers": COLUMNS, "runs": RUNS}
    main, other = ("runs", "buffers") if audit.ways else ("buffers", "runs")
    for name, chosen in ((main, columns), (other, None)):
        screen = tables[name].screen(rows[name])
        made = tabulated(tables[name], SCHEMA, rows[name], screen, chosen, metadata)
        further[name] = (
            replace(made, headline=f"{name.capitalize()}:") if rows[name] else replace(made, screen=[])
        )
    told = [answer(audit)]
    return replace(
        further.pop(main),
        headline=headline(told),
        answers=told,
        brief=not columns,
        notes=list(audit.source.notes),
        further=further | (_of_pairs(audit.buffers) if audit.source.kind == "dump" else {}),
    )


def _of_pairs(buffers: Sequence[Buffer]) -> dict[str, Report]:
    """Return the tables of pairs and of hypotheses; none where nothing was compared."""
    pairs, hypotheses = list[dict[str, Any]](), list[dict[str, Any]]()
    shared = {id(one.table): one for one in reversed(buffers) if one.table is not None}  # by cos and its sin
    for one in reversed(shared.values()):
        name, table = one.stored.name, one.table
        assert table is not None  # noqa: S101
        pairs += [{"buffer": name, **each, "setting": one.against} for each in table.rows]
        hypotheses += [
            {
                "buffer": name,
                "diagnosis": codes(each.diagnosis),
                "text": wording.sentence(each.diagnosis) or "what is expected",
                "explains": each.explains,
                "residual": each.residual,
                "residual_max": each.residual_max,
                "strays": " ".join(map(str, each.strays)),
            }
            for each in table.hypotheses
        ]
    if not pairs:
        return {}
    known = list(dict.fromkeys(name for each in pairs for name in each))
    hidden = {"setting", "tolerance", *(["buffer"] if len(shared) == 1 else [])}
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


def module_ticket(audit: ModuleAudit) -> Ticket:
    """Return the ticket of the worst run or of the buffer that moves scores most, or of a pass.

    Runs come first where ways of loading were requested.
    """
    said, buffers = report([audit], None, {}), audit.buffers
    off = max((one for one in audit.runs if one.wrong), key=badness, default=None)
    wrong = [buffer for buffer in buffers if buffer.wrong]
    if off is None and not wrong:
        verdict = "nothing is wrong" if audit.judged else "not judged"
        facts = {"source": audit.source.spec, "buffers": len(buffers), "runs": len(audit.runs)}
        expected = _EXPECTED.format(buffers[0].against) if buffers else "Nothing says what is right."
        return Ticket(
            f"RoPE of {file_name(audit.source.spec)}: {verdict}", said, facts, expected, _COMMAND_ALONE
        )
    remedy = ""
    if off is not None and (audit.ways or not wrong):
        title = f"{off.module} {off.way}: {finding(off, brief=True)}"
        seen = f"{off.module} {off.way}, in eval mode, called as {off.built.call}: {finding(off)}."
        facts, against, diagnosis = run_row(off), off.built.against, off.diagnosis
    else:
        one = max(wrong, key=lambda one: (one.drift_near or 0.0, one.error or 0.0))
        cast = "is not what it should be" if one.cast == "none" else f"was cast to {one.cast}"
        title = f"RoPE {audit.source.noun} {one.stored.name} {cast}"
        seen = f"{one.stored.name}: {one.finding}"
        facts, against, diagnosis = buffer_row(one), one.against, one.diagnosis
        remedy = one.remedy(audit.source.expected) if audit.source.kind == "checkpoint" else ""
    remedy = remedy or wording.remedy(diagnosis, FP32, UP_TO)
    expected = _EXPECTED.format(against) + (f" {remedy[:1].upper()}{remedy[1:]}." if remedy else "")
    said = replace(said, headline=seen)
    return Ticket(f"{title}{by_code(codes(diagnosis))}", said, facts, expected, _COMMAND_ALONE)


_HERE = "ropeaudit.features.module.report"
VALUES = Values([Report, Answer, Cause, Ticket, Reproduction], [COLUMNS, RUNS, records.COLUMNS["tolerance"]])


class ModuleRun:
    """The audit of a module in a child: if it fails, if `ways` were asked for, and its report."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Build and run the module. asked: for `analysis.module`. Raises: RopeAuditError."""
        spec, arrays = str(asked["source"]), dict[str, Any]()
        given = {"asked": VALUES.packed(dict(asked), arrays)}
        try:
            self.session = (
                process.alone((_HERE, "torch", "transformers")) if is_code(spec) else process.here()
            )
            told, _ = self.session.ask(f"{_HERE}:begin", given, arrays)
        except ForeignError as error:
            raise BadInput(f"{spec!r}: {did(error)}") from None
        self.broken, self.ways = bool(told["broken"]), bool(told["ways"])

    def report(self, columns: Sequence[str] | None) -> Report:
        """Return the report; `columns` chooses and orders what is shown and written."""
        made: Report = self._made("report", columns)
        return made

    def ticket(self) -> Ticket:
        """Return the ticket of what is furthest off, or of a pass."""
        made: Ticket = self._made("ticket", None)
        return made

    def _made(self, what: str, columns: Sequence[str] | None) -> Any:
        told, arrays = self.session.ask(f"{_HERE}:made", {"what": what, "columns": columns})
        return VALUES.unpacked(told, dict(arrays))


def begin(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Build and run a module in the child."""
    audit = analysis.module(**VALUES.unpacked(arguments["asked"], dict(arrays)))
    session.state["audit"] = audit
    return {"broken": audit.wrong or not audit.judged, "ways": audit.ways}, {}


def made(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Any, Arrays]:
    """Return its report or its ticket."""
    audit, held = session.state["audit"], dict[str, Any]()
    ticket = arguments["what"] == "ticket"
    result = module_ticket(audit) if ticket else report([audit], arguments["columns"], {})
    return VALUES.packed(result, held), held
