"""The ticket of a parity: the case in which the two are farthest apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropeaudit.audits.judging import TOLERANCE
from ropeaudit.features.parity import sides
from ropeaudit.features.parity.analysis import Parity
from ropeaudit.features.parity.report import COLUMNS, parity_report
from ropeaudit.features.parity.sides import Compared
from ropeaudit.reports.tickets import of_pair
from ropeaudit.reports.tickets.inputs import Setup
from ropeaudit.reports.tickets.of_pair import Pair
from ropeaudit.reports.tickets.ticket import Ticket
from ropeaudit.runtime.run_metadata import command_line


def parity_ticket(results: Sequence[Parity], pair: tuple[Compared, Compared]) -> Ticket | None:
    """Return the ticket of two subjects; None where they are within the tolerance of each other."""

    def relative(one: Parity) -> float:
        value = float(COLUMNS.row(one)["parity_relative"])
        return value if math.isfinite(value) and not one.refused else 0.0

    worst = max(results, key=relative, default=None)
    if worst is None or relative(worst) <= TOLERANCE:
        return None
    row, setting = COLUMNS.row(worst), worst.setting
    setup = Setup(
        setting,
        worst.inputs.heads,
        worst.inputs.kv_heads,
        worst.inputs.seq_len,
        worst.case.mask,
        worst.inputs.source,
        worst.inputs.seed,
        worst.dtype.name,
        worst.offset,
    )
    layouts = [dict(worst.permuted).get(name, setting.layout) for name in worst.names]
    axes = worst.case.position_axes(setting)
    subjects = [sides.factory(one, worst.dtype).make(setting, axes) for one in pair]
    compared = Pair(
        setup,
        worst.names,
        (subjects[0], subjects[1]),
        (layouts[0], layouts[1]),
        row["parity_rms"],
        row["parity_relative"],
        (row["a_drift_rms"], row["b_drift_rms"]),
        str(row["nearer"]),
        row["reference_error"],
    )
    return of_pair.ticket(compared, parity_report(results, (), {}), command_line())
