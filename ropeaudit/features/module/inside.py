"""A module that is built and run in a process of its own: what comes back is its report, and its ticket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.door import process
from ropeaudit.door.child import Header
from ropeaudit.door.child import Session as Inside
from ropeaudit.door.messages import Arrays
from ropeaudit.door.values import Values
from ropeaudit.errors import BadInput, ForeignError, did
from ropeaudit.features.module import analysis
from ropeaudit.features.module.report import COLUMNS, RUNS, columns_of, module_ticket, report
from ropeaudit.features.module.source import is_code
from ropeaudit.reports import Report
from ropeaudit.reports.answers import Answer, Cause
from ropeaudit.reports.tickets.ticket import Reproduction, Ticket
from ropeaudit.runtime.columns import Columns

_HERE = "ropeaudit.features.module.inside"
_NEEDED = (_HERE, "torch", "transformers")
VALUES = Values([Report, Answer, Cause, Ticket, Reproduction], [COLUMNS, RUNS, records.COLUMNS["tolerance"]])


class ModuleRun:
    """The audit of a module in a child: whether it fails, and what is reported of it."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Build and run the module. asked: arguments of `analysis.module`. Raises: RopeAuditError."""
        self.spec, arrays = str(asked["source"]), dict[str, Any]()
        try:
            self.session = process.alone(_NEEDED) if is_code(self.spec) else process.here()
            told, _ = self.session.ask(
                f"{_HERE}:begin", {"asked": VALUES.packed(dict(asked), arrays)}, arrays
            )
        except ForeignError as error:
            raise BadInput(f"{self.spec!r}: {did(error)}") from None
        self.broken, self.ways = bool(told["broken"]), bool(told["ways"])

    @property
    def columns(self) -> tuple[Columns, str]:
        """The columns of its rows, and what they are of, for a message."""
        return columns_of(self.ways)

    def _made(self, what: str, columns: Sequence[str] | None) -> Any:
        told, arrays = self.session.ask(f"{_HERE}:made", {"what": what, "columns": columns})
        return VALUES.unpacked(told, dict(arrays))

    def report(self, columns: Sequence[str] | None) -> Report:
        """Return the report; `columns` chooses and orders what is shown and written."""
        made: Report = self._made("report", columns)
        return made

    def ticket(self) -> Ticket:
        """Return the ticket of what is furthest off, or of a pass."""
        made: Ticket = self._made("ticket", None)
        return made


def begin(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Build and run a module in the child."""
    audit = analysis.module(**VALUES.unpacked(arguments["asked"], dict(arrays)))
    session.state["audit"] = audit
    return {"broken": audit.wrong or not audit.judged, "ways": audit.ways}, {}


def made(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Any, Arrays]:
    """Return its report or its ticket."""
    audit, held = session.state["audit"], dict[str, Any]()
    make: dict[str, Callable[[], Any]] = {
        "report": lambda: report([audit], arguments["columns"], {}),
        "ticket": lambda: module_ticket(audit),
    }
    return VALUES.packed(make[arguments["what"]](), held), held
