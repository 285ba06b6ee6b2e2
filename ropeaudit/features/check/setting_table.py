"""What was read of models and configs: a table beneath the checks, a row a layer type."""

from __future__ import annotations

from collections.abc import Sequence

from ropeaudit.audits import records
from ropeaudit.features.check.checked import Checked
from ropeaudit.reports import Report
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import Declare

of = Declare[Checked]()


def _of(one: Checked) -> RopeSetting:
    return one.setting or RopeSetting()


class SettingColumns:
    """The columns of what was read."""

    target: str = of("what was read", shown=True)
    layer: str = of("layer type", shown=True)
    base: float = of("theta of the frequencies", lambda one: _of(one).base, style="setting", shown=True)
    head_dim = of.like(records.COLUMNS["head_dim"], lambda one: _of(one).head_dim, shown=True)
    rotary_dim = of.like(records.COLUMNS["rotary_dim"], lambda one: _of(one).rotary_dim, shown=True)
    layout = of.like(records.COLUMNS["layout"], lambda one: _of(one).layout, shown=True)
    scaling: str = of("kind of scaling", lambda one: _of(one).scaling.kind, shown=True)
    softmax_scale: float = of("multiplies q·k", lambda one: _of(one).scale, style="setting", shown=True)
    maximum: int | None = of(
        "positions that it declares", lambda one: one.up_to or None, unit="tokens", shown=True
    )


_NAMES = ("target", "layer")
COLUMNS = of.columns(SettingColumns)


def settings(results: Sequence[Checked]) -> dict[str, Report]:
    """Return the table by name, nothing where no target is a model or a config that could be read."""
    read = [one for one in results if one.finding.check == "config" and one.setting is not None]
    if not read:
        return {}
    rows = [COLUMNS.row(one) for one in read]
    varying = {name for name in _NAMES if len({row[name] for row in rows}) > 1}
    return {
        "settings": Report(
            rows=rows,
            columns=list(COLUMNS),
            screen=[name for name in COLUMNS.screen(read) if name not in _NAMES or name in varying],
            headline="What was read:",
            declared=COLUMNS,
        )
    }
