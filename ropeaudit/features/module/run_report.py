"""What running RoPE modules showed, for people: a row for each module, way of loading and dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropeaudit.audits import records
from ropeaudit.features.module.measurement import LAST, Measurement
from ropeaudit.features.module.runs import Run
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import codes
from ropeaudit.reports.numbers import percent, short
from ropeaudit.runtime.columns import Declare
from ropeaudit.subjects.calling.forwards import NotFitted

SCHEMA = 1
_SHOWN = 0.01  # share of what is allowed, above which a part of it is named
of = Declare[Run]()


def _ran(one: Run) -> bool:
    return one.measured is not None


class RunColumns:
    """The columns of what `ropeaudit module` runs."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    module: str = of("place of the module in what was built, else its class", shown=True)
    kind: str = of("its class", lambda one: one.built.kind)
    loaded: str = of("way of loading: built, to, default-dtype, from-pretrained", shown=True)
    dtype: str = of("dtype of that way", shown=True)
    device: str = of(
        "device on which it was run",
        lambda one: one.built.device,
        shown=lambda one: one.built.device != "cpu",
        leaves=4,
    )
    call: str = of("how forward was called; none where it was not", lambda one: one.built.call)
    held: str = of("dtypes of its buffers that hold frequencies, angles, cos or sin", shown=True, leaves=3)
    buffer_error: float | None = of("largest error of their frequencies against those as built, relative")
    against: str = of(
        "what it was compared with: what was given, frequencies of a buffer, those of a usual base that "
        "agrees with all that it shows as built (guessed), or else those that it shows as built",
        lambda one: one.built.against,
        shown=_ran,
        shown_after="result",
        leaves=5,
    )
    positions: int | None = of(
        "positions that it was run at, from 0",
        lambda one: _of(one, "positions"),
    )
    distinct_positions: int | None = of(
        "how many of them give different rows", lambda one: _of(one, "distinct"), shown=_ran
    )
    cos_error: float | None = of(
        "largest error of cos, against cos in float64 of whole positions times frequencies",
        lambda one: _of(one, "cos_error"),
        shown=_ran,
    )
    at_position: int | None = of(
        "position of the largest error of cos", lambda one: _of(one, "worst"), shown=_ran, leaves=2
    )
    sin_error: float | None = of("the same of sin", lambda one: _of(one, "sin_error"))
    allowed_error: float | None = of(
        "what float32 angles at the last position (and float32 frequencies, where it was compared with a "
        "setting's), rounding to the dtype that it returns as built for the same inputs, and the uncertainty "
        "of frequencies that are inferred from what it returns, explain at most",
        lambda one: _of(one, "allowed"),
        shown=_ran,
        leaves=1,
    )
    excess: float | None = of(
        "largest error over what is allowed at its position; above 1 it is off",
        lambda one: _of(one, "excess"),
    )
    drift: float | None = of(
        f"RMS drift of scores of the last {LAST} positions that these cos and sin cause by themselves, over "
        "the scores' RMS, for independent Gaussian q and k",
        lambda one: _of(one, "drift"),
        shown=_ran,
    )
    nonfinite: int | None = of("values that are nan or infinite", lambda one: _of(one, "nonfinite"))
    returns: str = of(
        "what it returns: cos and sin, both in one tensor, complex, or angles; none where it was not run",
        lambda one: _of(one, "returns") or "none",
    )
    returned: str = of("the dtype of that", lambda one: _of(one, "returned") or "none")
    usual: str = of(
        "the dtype that it returns as built for the same inputs, whose rounding is allowed",
        lambda one: _of(one, "usual") or "none",
    )
    result: str = of(
        "off: beyond what is allowed, or without a run, buffers that are not those as built; rounded: beyond "
        "it, but one rounding to the narrower dtype that it returns now explains that; within; not run",
        lambda one: _result(one),
        shown=True,
    )
    diagnosis: str = of(
        "codes of what explains that it is off (`list diagnoses`); empty where nothing that was tried does",
        lambda one: codes(one.diagnosis),
    )
    finding: str = of("the same in words", lambda one: finding(one))


def _result(one: Run) -> str:
    if one.wrong:
        return "off"
    if one.measured is None:
        return "not run"
    return "rounded" if one.measured.rounded else "within"


def _of(one: Run, name: str) -> object:
    """Return what was measured; None without a run."""
    return getattr(one.measured, name, None)


COLUMNS = of.columns(RunColumns)
LEGEND = (
    "distinct positions: different rows, of all from 0; cos error: against float64; allowed error: what\n"
    "float32 angles at the last position, and rounding to the dtype as built, explain; drift: of scores\n"
    f"of the last {LAST} positions, by these cos and sin alone, over their RMS (independent Gaussian q, k);\n"
    "against: whose frequencies, in float64, cos and sin are held to."
)


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


def unjudged(why: NotFitted) -> str:
    """Return in a clause that a module was not run, or that it was called, and not understood."""
    return f"was {'called, and' if why.why == 'not seen' else 'not run:'} {why.reason}"


def headline(runs: Sequence[Run]) -> str:
    """Return the finding in a sentence: in how many ways it is off, and what the worst of them does."""
    off = [one for one in runs if one.wrong]
    ran = [one for one in runs if one.measured is not None]
    if off:
        worst = max(off, key=badness)
        if len(runs) == 1:
            return f"Off: {worst.module} {worst.way}: {finding(worst)}."
        listed = ", ".join(dict.fromkeys(one.loaded for one in off))
        count = f"{len(off)} of {len(runs)} rows ({listed})"
        return f"Off in {count}: {worst.module} {worst.way}: {finding(worst)}."
    if not ran:
        return f"{runs[0].module} was not run ({runs[0].reason}), and no buffer of it changed."
    silent = list(dict.fromkeys(one.module for one in runs if one.measured is None))
    rest = f"; not judged by a run: {', '.join(silent)}" if silent else ""
    rounded = [one for one in ran if one.measured is not None and one.measured.rounded]
    worst = max(rounded or ran, key=badness)
    if rounded:
        count = (
            f"{len(rounded)} of {len(runs)} rows ({', '.join(dict.fromkeys(one.loaded for one in rounded))})"
        )
        begin = f"Beyond what is allowed, by one rounding, in {count}{rest}"
        return f"{begin}: {worst.module} {worst.way}: {finding(worst)}."
    many = f"in {len(ran)} of {len(runs)} rows" if len(runs) > 1 else worst.way
    return (
        f"Within what float32 angles and rounding of the result explain {many}{rest}; furthest off is "
        f"{worst.module} {worst.way}: {finding(worst)}."
    )


def badness(one: Run) -> tuple[float, float]:
    """Return what sorts runs: errors of cos, then those of buffers that were not run."""
    if one.measured is None:
        return (-1.0, one.buffer_error or 0.0)
    return (math.inf if one.measured.nonfinite else one.measured.cos_error, 0.0)
