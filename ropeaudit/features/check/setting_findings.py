"""What follows from a RoPE setting without a measurement."""

from __future__ import annotations

from dataclasses import replace

from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.conformance.finding import Finding, not_applicable, noted
from ropeaudit.features.module.drift import NEAR, drifts
from ropeaudit.reports.numbers import percent
from ropeaudit.rope.frequencies import frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.tables import Dump

CAST_RECIPE = "hf-model-cast"  # frequencies in the dtype, everything else as `hf`


def cast_finding(setting: RopeSetting, dtype: Format, maximum: int | None) -> Finding:
    """Return what a module does whose frequencies were cast to a dtype: no fault of a config."""
    far = (maximum or NEAR) - 1
    distant = drifts(_cast(setting, dtype), setting, far)[1]
    first = replace(setting, length=setting.scaling.length_for(NEAR))
    near = drifts(_cast(first, dtype), first)[0]
    effect = f"{percent(near or 0.0)} of the scores' RMS within {NEAR} tokens"
    if distant is not None and far >= NEAR:
        effect += f" and {percent(distant)} at a distance of {far:,}"
    return noted(
        "cast module",
        f".to({dtype.name}) would round inv_freq too ({CAST_RECIPE}): expected drift {effect}, for "
        "independent Gaussian q and k; load it in the dtype, or cast the weights alone",
        measured=distant if distant is not None else float("nan"),
        unit="of the scores' RMS",
        where=f"distance {far:,}",
    )


def _cast(setting: RopeSetting, dtype: Format) -> Dump:
    cast = round_to(frequencies(setting, "inverse_power", FP32), dtype).astype("float64")
    return Dump("", "inv_freq", frequencies=cast)


def switch_finding(setting: RopeSetting) -> Finding:
    """Return at which number of positions the frequencies become others."""
    scaling = setting.scaling
    if not scaling.depends_on_length:
        return not_applicable("frequency switch", "its frequencies do not depend on the number of positions")
    border = int((scaling.original if scaling.kind == "longrope" else scaling.maximum) or 0)
    before, after = (replace(setting, length=scaling.length_for(n)) for n in (border, border + 1))
    largest = max(
        abs(b - a) / a
        for a, b in zip(
            *(frequencies(one, "inverse_power", FP32).tolist() for one in (before, after)), strict=True
        )
        if a
    )
    then = "the long divisors" if scaling.kind == "longrope" else "others with each further position"
    return noted(
        "frequency switch",
        f"up to {border:,} positions it has one set of frequencies and from {border + 1:,} on {then} (there "
        f"by up to {percent(largest)}); keys that were rotated before do not fit those rotated after",
        measured=float(border),
        unit="positions",
        where=f"from {border + 1:,} positions on",
    )
