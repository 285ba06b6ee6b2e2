"""What running RoPE modules showed, for people: a row for each module, way of loading and dtype."""

from __future__ import annotations

import math
from typing import Any

from ropeaudit.features.module.measurement import Measurement
from ropeaudit.features.module.runs import Run
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import table

SCHEMA = 1
_SHOWN = 0.01  # share of what is allowed, above which a part of it is named


def row(one: Run) -> dict[str, Any]:
    """Return the row of a run."""
    return {
        "schema": SCHEMA,
        "module": one.module,
        "kind": one.built.kind,
        "loaded": one.loaded,
        "dtype": one.dtype,
        "device": one.built.device,
        "call": one.built.call,
        "held": one.held,
        "buffer_error": one.buffer_error,
        "against": one.built.against,
        "positions": _of(one, "positions"),
        "distinct_positions": _of(one, "distinct"),
        "cos_error": _of(one, "cos_error"),
        "at_position": _of(one, "worst"),
        "sin_error": _of(one, "sin_error"),
        "allowed_error": _of(one, "allowed"),
        "excess": _of(one, "excess"),
        "drift": _of(one, "drift"),
        "nonfinite": _of(one, "nonfinite"),
        "returns": _of(one, "returns") or "none",
        "returned": _of(one, "returned") or "none",
        "usual": _of(one, "usual") or "none",
        "result": _result(one),
        "diagnosis": codes(one.diagnosis),
        "finding": finding(one),
    }


def _result(one: Run) -> str:
    if one.wrong:
        return "off"
    if one.measured is None:
        return "not run"
    return "rounded" if one.measured.rounded else "within"


def _of(one: Run, name: str) -> object:
    """Return what was measured; None without a run."""
    return getattr(one.measured, name, None)


COLUMNS = table("module-runs")


def finding(one: Run, *, brief: bool = False) -> str:
    """Return what a run showed, in a clause. brief: without what is allowed, and what explains it."""
    seen = one.measured
    if seen is None:
        error = one.buffer_error
        held = f"; its buffers are off by up to {percent(error)}" if error is not None and one.wrong else ""
        begin = "not judged" if one.unfitted and one.unfitted.why == "not seen" else "not run"
        return f"{begin}: {one.reason}{held}"
    lost = "its complex table is real after that cast, so that its imaginary part (sin) is lost; "
    lost = lost if one.imaginary_lost else ""
    if seen.nonfinite:
        others = f"; of the others cos is off by up to {short(seen.cos_error)} (at position {seen.worst})"
        return f"{lost}{seen.nonfinite} values of what it returns are nan or infinite{others}"
    begin, worst = (
        f"{lost}{_rows(seen)}",
        f"cos is off by up to {short(seen.cos_error)} (at position {seen.worst})",
    )
    if one.built.as_built:
        worst = f"{worst}, compared with {one.built.against}"
    if not one.wrong and not seen.rounded:
        return f"{begin}{worst}"
    if not seen.cos_error > seen.allowed:
        worst = f"{worst}, and sin by up to {short(seen.sin_error)}"
    if brief:
        return f"{begin}{worst}"
    if seen.sin_error > seen.allowed or seen.cos_error > seen.allowed:
        text = f"{begin}{worst}, where {explained(seen)} explain {short(seen.allowed)} at most"
    else:
        text = f"{begin}{worst}: at one place {short(seen.excess)} times what {explained(seen)} explain"
    if seen.diagnosis is not None and not seen.rounded:
        text = f"{text}; {wording.sentence(seen.diagnosis)}"
    if seen.rounded:
        return f"{text}; one rounding to {seen.returned}, which it returns now, explains it"
    return text


def _rows(seen: Measurement) -> str:
    """Return how many positions are distinct."""
    if seen.distinct == seen.positions:
        return f"all {seen.positions} positions are distinct, "
    return f"{seen.distinct} of {seen.positions} positions stay distinct, "


def explained(seen: Measurement) -> str:
    """Return what errors are compared with, in words."""
    rounds = seen.returns not in ("angles", "complex")
    as_built = ", which it returns as built," if seen.usual != seen.returned else ""
    angles = "float32 frequencies and angles" if seen.of_frequencies else "float32 angles"
    parts = [angles, *([f"rounding to {seen.usual}{as_built}"] if rounds else [])]
    if seen.uncertain > _SHOWN * seen.allowed:
        parts.append(f"frequencies that are inferred from it (up to {short(seen.uncertain)})")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def badness(one: Run) -> tuple[float, float]:
    """Return what sorts runs: errors of cos, then those of buffers that were not run."""
    if one.measured is None:
        return (-1.0, one.buffer_error or 0.0)
    return (math.inf if one.measured.nonfinite else one.measured.cos_error, 0.0)
