"""What to call the RoPE setting of a case, where several stand beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from ropeaudit.audits.cases import Case
from ropeaudit.rope.scaling_names import short_names
from ropeaudit.rope.setting import RopeSetting

_NAMED = ("scaling", "head_dim", "rotary_dim", "base", "clip", "layout")  # fields that a label may name


def settings(cases: Sequence[Case]) -> list[RopeSetting]:
    """Return the settings of cases, each for as many positions as its model is made for."""
    return [case.setting(case.maximum or 0) for case in cases]


def labels(cases: Sequence[Case]) -> list[str]:
    """Return a label for each case: the model, a scaling that was asked for, and fields in which they differ.

    Without any of them it is the base.
    """
    every, results = settings(cases), list[str]()
    named = [name for name in _NAMED if len({str(getattr(one, name)) for one in every}) > 1]
    named += ["scaling"] if any(case.scaling for case in cases) else []
    scalings = short_names(str(one.scaling) for one in every)
    for case, setting in zip(cases, every, strict=True):
        words = [] if case.model_name == "none" else [case.model_name]
        for name in _NAMED:
            if name in named or (not words and name == "base"):
                value = getattr(setting, name)
                text = f"{value:g}" if isinstance(value, float) else str(value)
                words.append(f"{name}={scalings.get(text, text)}")
        results.append(" ".join(words))
    return results
