"""Buffers that make one table: a cos and its sin, or one alone; and the table that they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.features.module.source import RopeBuffer
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files.tables import Dump

ROWS = 8192  # of a table that are compared
FREQUENCIES = ("inv_freq", "periods")
_NAMES = {"angles": "the angle table", "periods": "the table of periods"}


def grouped(buffers: Sequence[RopeBuffer]) -> Iterator[list[RopeBuffer]]:
    """Yield buffers that make one table: cos and its sin, or one alone."""
    sines = {buffer.stored.name: buffer for buffer in buffers if buffer.what == "sin"}
    taken: set[str] = set()
    for buffer in buffers:
        if buffer.what != "cos":
            continue
        partner = _partner(buffer, [sine for name, sine in sines.items() if name not in taken])
        if partner is not None:
            taken |= {buffer.stored.name, partner.stored.name}
            yield [buffer, partner]
    for buffer in buffers:
        if buffer.stored.name not in taken:
            yield [buffer]


def _partner(cos: RopeBuffer, sines: Sequence[RopeBuffer]) -> RopeBuffer | None:
    """Return the sin of a cos: beside it, by its name or else by its values."""
    head, _, last = cos.stored.name.rpartition(".")
    beside = [
        sine
        for sine in sines
        if sine.stored.shape == cos.stored.shape and sine.stored.name.rpartition(".")[0] == head
    ]
    named = [sine for sine in beside if sine.stored.name.rpartition(".")[2] == last.replace("cos", "sin")]
    alike = [sine for sine in beside if rope_values.partners(cos.stored.values, sine.stored.values)]
    return next(iter(named or alike), None)


def dump_of(parts: Sequence[RopeBuffer], rows: int | None = ROWS) -> Dump | None:
    """Return the table that buffers make; None for cos or sin alone. Periods and angles are converted.

    rows: how many of them, all if None.
    """
    what, values, name = parts[0].what, parts[0].stored.values, parts[0].stored.name
    if what in FREQUENCIES:
        with np.errstate(all="ignore"):
            theta = values.reshape(-1) if what == "inv_freq" else 1 / values.reshape(-1)
        return Dump(name, _NAMES.get(what, "inv_freq"), frequencies=theta, inverse=what == "periods")
    if len(parts) == 2:
        cos, sin = values, parts[1].stored.values
    elif what == "angles":
        with np.errstate(invalid="ignore"):
            cos, sin = np.cos(values), np.sin(values)
    elif what == "both":
        cos, sin = rope_values.both(values) or _side_by_side(values.squeeze())
    else:
        return None
    return Dump(name, _NAMES.get(what, "the cos/sin table"), cos=_plane(cos, rows), sin=_plane(sin, rows))


def _side_by_side(values: Array) -> tuple[Array, Array]:
    """Return cos and sin of a table that is known by its name alone."""
    if np.iscomplexobj(values):
        return values.real, values.imag
    if values.ndim == 3:
        return values[..., 0], values[..., 1]
    return tuple(np.split(values, 2, axis=-1)) if values.shape[-1] % 2 == 0 else (values, values)  # type: ignore[return-value]


def _plane(values: Array, rows: int | None) -> Array:
    """Return a table's first rows, (n, c)."""
    return np.ascontiguousarray(values.reshape(-1, values.shape[-1])[:rows])
