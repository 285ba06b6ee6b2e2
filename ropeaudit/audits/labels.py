"""What to call the RoPE setting of a case, where several stand beside each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ropeaudit.audits.cases import Case
from ropeaudit.rope.scaling_names import short_names
from ropeaudit.rope.setting import RopeSetting

NAMED = ("scaling", "head_dim", "rotary_dim", "base", "clip", "layout")  # fields that a label may name


def settings(cases: Sequence[Case]) -> list[RopeSetting]:
    """Return the settings of cases, each for as many positions as its model is made for."""
    return [case.setting(case.maximum or 0) for case in cases]


def label(
    case: Case, setting: RopeSetting, varying: Collection[str], scalings: Mapping[str, str] | None = None
) -> str:
    """Return the model and the `varying` fields as words; without either, the base.

    scalings: the short name of each scaling.
    """
    words = [] if case.model_name == "none" else [case.model_name]
    for name in NAMED:
        if name in varying or (not words and name == "base"):
            text = _text(getattr(setting, name))
            words.append(f"{name}={(scalings or {}).get(text, text)}")
    return " ".join(words)


def labels(cases: Sequence[Case]) -> list[str]:
    """Return a label for each case, by the fields in which they differ."""
    every = settings(cases)
    varying = [name for name in NAMED if len({str(getattr(one, name)) for one in every}) > 1]
    scalings = short_names(str(one.scaling) for one in every)
    return [label(case, setting, varying, scalings) for case, setting in zip(cases, every, strict=True)]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
