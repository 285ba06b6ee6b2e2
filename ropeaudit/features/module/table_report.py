"""What is said of a dumped table beside its buffers: every pair, and the hypotheses that explain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.reports import Report
from ropeaudit.reports.numbers import short

_LEGEND = "off: beyond what float32 arithmetic accounts for. relative error: of the frequency{}."
_OF_TABLES = "; largest error: radians"


def notes(results: Sequence[Buffer]) -> list[str]:
    """Return a line for each hypothesis, of each table the best first."""
    return [
        f"hypothesis {number}: {_line(hypothesis)}"
        for one in _tables(results)
        if one.diagnosis is not None
        for number, hypothesis in enumerate(one.diagnosis.hypotheses, 1)
    ]


def further(results: Sequence[Buffer]) -> Mapping[str, Report]:
    """Return the tables of pairs and of hypotheses; none where nothing was compared."""
    pairs: list[dict[str, Any]] = []
    hypotheses: list[dict[str, Any]] = []
    for one in _tables(results):
        if one.diagnosis is None:
            continue
        name = one.stored.name
        pairs += [{"buffer": name, **row, "setting": one.against} for row in one.diagnosis.rows]
        hypotheses += [{"buffer": name, **_row(each)} for each in one.diagnosis.hypotheses]
    if not pairs:
        return {}
    known = list(dict.fromkeys(name for row in pairs for name in row))
    hidden = {"setting", "tolerance"}
    if len({row["buffer"] for row in pairs}) == 1:
        hidden.add("buffer")
    of_tables = _OF_TABLES if "largest_error" in known else ""
    return {
        "pairs": Report(
            [{name: row.get(name) for name in known} for row in pairs],
            known,
            [name for name in known if name not in hidden],
            headline="Pair by pair:",
            legend=_LEGEND.format(of_tables),
            declared={"tolerance": records.COLUMNS["tolerance"]},  # shown as it was given
        ),
        "hypotheses": Report(hypotheses, list(hypotheses[0]) if hypotheses else [], []),
    }


def _tables(results: Sequence[Buffer]) -> list[Buffer]:
    """Return one buffer a table: a cos and its sin share theirs."""
    return list({id(one.diagnosis): one for one in reversed(results)}.values())[::-1]


def _row(one: Hypothesis) -> dict[str, Any]:
    return {
        "text": one.text,
        "explains": one.explains,
        "residual": one.residual,
        "residual_max": one.residual_max,
        "meant": one.meant,
        "strays": " ".join(map(str, one.strays)),
    }


def _line(one: Hypothesis) -> str:
    left = f"leaves {short(one.residual)} RMS, {short(one.residual_max)} at most"
    count = len(one.strays)
    few = f"explains all but {count} pair{'s' if count > 1 else ''}" if one.few else "does not explain it"
    return f"{one.text} ({'explains every pair' if one.explains else few}; {left})"
