"""A RoPE setting in words, and notes on the models of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ropeaudit.audits.cases import Case
from ropeaudit.reports.numbers import setting as shown
from ropeaudit.rope import scaled
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.scaling import Scaling, Served
from ropeaudit.rope.setting import RopeSetting

if TYPE_CHECKING:
    from ropeaudit.rope.hf_config import ModelRope

_ROTATED = {"half": "dims i and i + {half} a pair", "interleaved": "dims 2i and 2i + 1 a pair"}


def model_notes(cases: Sequence[Case], offsets: Sequence[int] = ()) -> list[str]:
    """Return notes on models: settings of configs, layers left out, offsets past the maximum."""
    groups: dict[tuple[str | None, str | None, str | None], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.model, case.config, case.scaling), []).append(case)
    notes: list[str] = []
    for group in groups.values():
        model = group[0].declared()
        if model is not None:
            notes += _of_model(model, group)
        read = group[0].config is not None and group[0].scaling is None  # a note has the setting
        if group[0].served.disputed and not read:
            notes.append(f"{_name(group[0])} serves {group[0].served.words}")
        notes += _beyond(group, offsets)
    return list(dict.fromkeys(notes))


def notes_beside(case: Case) -> list[str]:
    """Return notes on the model of a case and its range, without the setting.

    Raises: UsageError, UnknownName, BadInput.
    """
    model = case.declared()
    notes = [f"{model.name}: {note}" for note in model.notes] if model else []
    if case.served.disputed:
        notes.append(f"{_name(case)} serves {case.served.words}")
    return notes


def _of_model(model: ModelRope, cases: Sequence[Case]) -> list[str]:
    audited = list(dict.fromkeys(case.layer_type for case in cases))
    notes = []
    if cases[0].config is not None:
        for layer in audited:
            of_type = f" of {layer} layers" if layer != "full_attention" or len(model.layers) > 1 else ""
            words = setting_words(model.layers[layer], model.axes, model.served)
            notes.append(f"{model.name}: read{of_type}: {words}")
    notes += [f"{model.name}: {note}" for note in model.notes]
    left_out = [layer for layer in model.layers if layer not in audited]
    if left_out:
        notes.append(
            f"{model.name}: {' and '.join(left_out)} layers rotate too, and are not audited here; "
            "--layer all audits them"
        )
    return notes


def _name(case: Case) -> str:
    model = case.declared()
    return model.name if model else f"scaling {case.served.scaling.kind}"


def _beyond(cases: Sequence[Case], offsets: Sequence[int]) -> list[str]:
    served, maximum = cases[0].served, cases[0].maximum
    if not maximum or not offsets:
        return []
    length = max(case.outline()[0].seq_len for case in cases)
    beyond = min((offset for offset in offsets if offset + length > maximum), default=None)
    verb = "declares" if maximum == served.declared else "serves"
    text = f"{_name(cases[0])}: offset {beyond} is past the {maximum:,} positions that it {verb}"
    return [] if beyond is None else [text]


def setting_words(setting: RopeSetting, axes: Axes | None, served: Served) -> str:
    """Return a setting in words: "base 500000, head_dim 128, all dims rotated, ..."."""
    dims = "all dims" if setting.rotary_dim == setting.head_dim else f"{setting.rotary_dim} dims"
    parts = [
        f"base {shown(setting.base)}",
        f"head_dim {setting.head_dim}",
        f"{dims} rotated ({_ROTATED[setting.layout].format(half=setting.pairs)})",
        scaling_words(setting.scaling),
        f"softmax scale {shown(setting.scale)}",
        served.words,
    ]
    if axes is not None:
        t, h, w = axes.sections
        parts.insert(4, f"sections of {t} pairs for time, {h} for height, {w} for width ({axes.arrangement})")
    return ", ".join(parts)


def scaling_words(scaling: Scaling) -> str:
    """Return a scaling with its parameters in words, lists by their range."""
    if scaling.kind == "default":
        return "no scaling"
    words = []
    for name, value in scaling.parameters().items():
        text = str(value).lower() if isinstance(value, bool) else shown(value)
        if isinstance(value, tuple):
            text = f"{shown(min(value))} to {shown(max(value))}"
        words.append(f"{name} {text}")
    factor = scaled.attention_factor(scaling)
    times = f"; cos and sin times {shown(factor)}" if factor != 1 else ""
    return f"{scaling.kind} scaling ({', '.join(words)}{times})"
