"""The columns that say what was measured: model, RoPE setting, q and k; the same in every report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ropeaudit.audits import records
from ropeaudit.audits.cases import Case
from ropeaudit.audits.recording import setting_columns
from ropeaudit.inputs.qk import Inputs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import Together

NAMES = records.COLUMNS.having("setting")
_IMPLIED = ("length", "heads", "kv_heads")  # they go with the model, and say little by themselves


class WithSetting(Protocol):
    """A result, as far as it says of which q and k and under which setting it is."""

    @property
    def case(self) -> Case:
        """The case without its subject and offset."""

    @property
    def setting(self) -> RopeSetting:
        """The RoPE setting."""

    @property
    def inputs(self) -> Inputs:
        """q and k."""


COLUMNS = Together[WithSetting](
    [records.COLUMNS[name] for name in NAMES],
    lambda result: setting_columns(result.case, result.inputs, result.setting),
)


def varying(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the setting columns that differ from row to row: a reader must see these."""
    telling = [name for name in NAMES if name not in _IMPLIED]
    return [name for name in telling if len({repr(row[name]) for row in rows}) > 1]


def independent(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the setting columns that differ and do not follow from the model."""
    full = [{name: one.get(name) for name in NAMES} for one in rows]
    models = {repr(one["model"]) for one in full}
    of_one = [varying([one for one in full if repr(one["model"]) == name]) for name in models]
    own = {name for some in of_one for name in some}
    return [name for name in varying(full) if name in own or name == "model"]
