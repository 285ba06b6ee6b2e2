"""The report of a module's RoPE buffers and of its runs: the answer, and the rows of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.features.module import run_report
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.answer import answer
from ropeaudit.features.module.buffers import Buffer
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports import Report, only, tabulated
from ropeaudit.reports.answers import headline
from ropeaudit.runtime.columns import Columns, table

SCHEMA = 1
COLUMNS = table("module-buffers")


def row(one: Buffer) -> dict[str, Any]:
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


def columns_of(audit: ModuleAudit) -> tuple[Columns, str]:
    """Return the columns of an audit's rows, and what they are of, for a message."""
    return (run_report.COLUMNS, "(of runs)") if audit.ways else (COLUMNS, "(of buffers)")


def report(
    results: Sequence[ModuleAudit], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    Its rows are buffers, or runs where loading modes were requested; the others are a further table.
    """
    audit, further = only(results), dict[str, Report]()
    rows = {
        "buffers": [row(one) for one in audit.buffers],
        "runs": [run_report.row(one) for one in audit.runs],
    }
    tables = {"buffers": COLUMNS, "runs": run_report.COLUMNS}
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
        constant=() if columns or not audit.ways else ("module", "dtype", "held", "against"),
        headline=headline(told),
        answers=told,
        brief=not columns,
        notes=list(audit.source.notes),
        further=further | (_of_pairs(audit.buffers) if audit.source.dumped else {}),
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
