"""What was read of the models of an audit, and what of them was not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeaudit.audits.cases import Case
from ropeaudit.reports.setting_words import setting_words

if TYPE_CHECKING:
    from ropeaudit.rope.hf_config import ModelRope


def model_notes(cases: Sequence[Case], offsets: Sequence[int] = ()) -> list[str]:
    """Return notes on the models of some cases: what a config says, layer types left out, its end passed."""
    by_model: dict[tuple[str | None, str | None], list[Case]] = {}
    for case in cases:
        by_model.setdefault((case.model, case.config), []).append(case)
    notes: list[str] = []
    for group in by_model.values():
        model = group[0].declared()
        if model is not None:
            notes += _of_model(model, group, offsets)
    return notes


def _of_model(model: ModelRope, cases: Sequence[Case], offsets: Sequence[int]) -> list[str]:
    audited = list(dict.fromkeys(case.layer_type for case in cases))
    notes = []
    if cases[0].config is not None:
        for layer in audited:
            of_type = f" of {layer} layers" if layer != "full_attention" or len(model.layers) > 1 else ""
            words = setting_words(model.layers[layer], model.axes, model.maximum)
            notes.append(f"{model.name}: read{of_type}: {words}")
    left_out = [layer for layer in model.layers if layer not in audited]
    if left_out:
        notes.append(
            f"{model.name}: {' and '.join(left_out)} layers rotate too, and are not audited here; "
            "--layer all audits them"
        )
    length = max(case.outline()[0].seq_len for case in cases)
    beyond = [offset for offset in offsets if model.maximum and offset + length > model.maximum]
    if beyond:
        notes.append(
            f"{model.name}: offset {min(beyond)} is past the {model.maximum:,} positions that it declares"
        )
    return notes
