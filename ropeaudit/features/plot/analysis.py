"""Pictures from Python, on axes of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ropeaudit.audits import arguments
from ropeaudit.audits.records import Record
from ropeaudit.errors import UsageError
from ropeaudit.reports import needed
from ropeaudit.rope.scaling_names import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@arguments.checked
def plot(results: Iterable[Record], *, ax: Axes | None = None) -> Axes:
    """Draw drift against the offset, a line per implementation and dtype; return the axes.

    results: of `ropeaudit.shift`. ax: axes of matplotlib that it is drawn on, with a legend in them; by
    default those of a new figure, whose title is the finding. Drift in score units, offsets in tokens.
    `ropeaudit plot` draws other reports too. Raises: UsageError, MissingPackage.
    """
    needed("matplotlib", "a picture", "plot")
    from ropeaudit.reports.charts import drift  # in-function: it loads matplotlib

    listed: list[Any] = list(results)
    if not listed or not all(isinstance(one, Record) for one in listed):
        raise UsageError("plot draws what ropeaudit.shift returns; give such results")
    rows = shortened([one.as_dict() for one in listed])
    if ax is not None:
        return drift.on(ax, rows)
    axes: Axes = drift.draw(rows).figure.axes[0]
    return axes
