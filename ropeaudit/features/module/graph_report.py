"""What is said of the constants of a graph: which node uses them, and what they do at every offset."""

from __future__ import annotations

from collections.abc import Sequence

from ropeaudit.features.module.buffers import Buffer
from ropeaudit.features.module.drift import NEAR
from ropeaudit.features.module.grouping import FREQUENCIES
from ropeaudit.reports.numbers import short

LEGEND = "times float32: drift 256 over that of the same frequencies rounded once to float32."
_COMPUTES = ("Mul", "Multiply", "MatMul", "Einsum", "Gemm")  # yield the dtype of what they take


def used(one: Buffer) -> str:
    """Return which node uses a constant, for the end of a sentence."""
    use = one.stored.use
    if use is None or not use.nodes:
        return "; no node of the graph that was followed uses it"
    return f"; it is used by {use.words}"


def notes(results: Sequence[Buffer]) -> list[str]:
    """Return notes on constants that were cast, each said of the first that it is true of."""
    cast = [one for one in results if one.stored.use is not None and one.cast != "none"]
    said = [*map(_everywhere, cast)][:1] + [*filter(None, map(_conversion, cast))][:1]
    mixed = [one for one in results if one.stored.use is not None and one.stored.use.mixed]
    said += [
        f"{one.stored.name} reaches its nodes in several dtypes, and was compared as it is stored"
        for one in mixed[:1]
    ]
    return [text for text in said if text]


def _everywhere(one: Buffer) -> str:
    if one.drift_near is None or not one.times_float32:
        return ""
    return (
        f"{one.stored.name} moves scores by as much at every offset, for the distance alone counts: no "
        "comparison of scores before and after a shift of positions shows it. The same frequencies in "
        f"float32 move them by {short(one.drift_near / one.times_float32)} of their RMS within {NEAR} "
        f"tokens: these by {_count(one.times_float32)} times as much"
    )


def _conversion(one: Buffer) -> str:
    """Return what the graph converts a narrow constant to, or that it computes with it as it is."""
    use, name = one.stored.use, one.stored.name
    if use is None or not use.nodes:
        return ""
    if one.how == "graph":
        return f"{name} is stored in {one.stored.dtype}: leave out its conversion before {use.nodes[0]}"
    if one.how != "stored":
        return ""
    if use.converted:
        source = ", marked as decompression, as compress_to_fp16 leaves it" if use.decompression else ""
        return (
            f"{name} is stored in {one.cast} and converted to {use.converted} before {use.nodes[0]}{source}: "
            "that does not restore what was rounded away; keep this constant in float32"
        )
    if one.what in FREQUENCIES and use.nodes[0].partition(" ")[0] in _COMPUTES:
        return (
            f"{use.nodes[0]} takes {name} in {one.cast} and yields {one.cast}: what it rounds is not in "
            "these figures; compute angles in float32"
        )
    return ""


def _count(times: float) -> str:
    return f"{float(f'{times:.2g}'):,.0f}" if times >= 10 else f"{times:.2g}"
