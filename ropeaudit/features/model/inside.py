"""A model that is run in a process of its own: what comes back of each step is the report of all so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropeaudit.door import process
from ropeaudit.door.child import Header
from ropeaudit.door.child import Session as Inside
from ropeaudit.door.messages import Arrays
from ropeaudit.door.process import Session
from ropeaudit.door.values import Values
from ropeaudit.errors import BadInput, ForeignError, did
from ropeaudit.features.model import analysis
from ropeaudit.features.model.report import COLUMNS, report
from ropeaudit.reports import Report
from ropeaudit.reports.answers import Answer, Cause

_HERE = "ropeaudit.features.model.inside"
_NEEDED = (_HERE, "torch", "transformers")
VALUES = Values([Report, Answer, Cause], COLUMNS.values())


@dataclass(frozen=True, slots=True)
class Step:
    """A model in a dtype at an offset. word: its verdict. report: of all steps so far."""

    word: str
    report: Report


@dataclass(frozen=True, slots=True)
class ModelRun:
    """A model in a child, which was read and not run yet."""

    folder: str
    session: Session

    @classmethod
    def of(cls, asked: Mapping[str, Any], columns: Sequence[str], by: str, threshold: float) -> ModelRun:
        """Start the child. asked: arguments of `analysis.model`. Raises: RopeAuditError."""
        folder = str(asked["folder"])
        told = {"asked": dict(asked), "columns": list(columns), "by": by, "threshold": threshold}
        try:
            session = process.alone(_NEEDED)
            session.ask(f"{_HERE}:begin", told)
        except ForeignError as error:
            raise BadInput(f"{folder!r}: loading it {did(error)}") from None
        return cls(folder, session)

    def steps(self, progress: Callable[[float], None]) -> Iterator[Step]:
        """Yield the steps of a run. Raises: RopeAuditError."""
        try:
            while True:
                told, arrays = self.session.ask(f"{_HERE}:step", heard=lambda text: progress(float(text)))
                if told["report"] is None:
                    return
                yield Step(told["word"], VALUES.unpacked(told["report"], dict(arrays)))
        except ForeignError as error:
            raise BadInput(f"{self.folder!r}: running it {did(error)}") from None


def begin(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Read a model in the child."""
    audit = analysis.model(**arguments["asked"])
    run = audit.run(lambda share: session.say(repr(share)))
    session.state.update(audit=audit, run=run, results=[], asked=arguments)
    return {}, {}


def step(session: Inside, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
    """Run it in one dtype at one offset, and return the report of all so far."""
    state, held = session.state, dict[str, Any]()
    asked, results = state["asked"], state["results"]
    one = next(state["run"], None)
    if one is None:
        return {"report": None}, {}
    results.append(one)
    made = report([state["audit"]], asked["columns"], {}, asked["by"], results, asked["threshold"])
    return {"word": one.word, "report": VALUES.packed(made, held)}, held
