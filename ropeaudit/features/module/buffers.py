"""RoPE buffers: which were cast, to what, and whether they are what is expected.

A cast leaves its mark in the values: float32 numbers all of which are bfloat16 or float16 numbers were
cast and cast back. Whether they are right is the frequency check's to say, against what is expected; where
nothing is, a base that is guessed from the values says what they are, and not whether they should be.
Letters: p pairs, n positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput
from ropeaudit.features.module import drift
from ropeaudit.features.module.expected import Expected, fits, guessed, pairs_of
from ropeaudit.features.module.grouping import FREQUENCIES, ROWS, dump_of, grouped
from ropeaudit.features.module.source import RopeBuffer, Source
from ropeaudit.recognition.check import Diagnosis, check
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.checkpoints import StoredTensor
from ropeaudit.tensor_files.tables import Dump

_CASTS = ("bfloat16", "float16")
_WIDE = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer and what is wrong with it.

    what: inv_freq, periods, angles, cos, sin or both. against: the setting it was compared with, none where
    there was none. guessed: whether that was guessed from its values.
    cast: none, or the format that its values show. how: none, stored (by its dtype), graph (by conversions
    of a graph) or back (and back again).
    agrees: with what is expected, up to float32 rounding; None where nothing says what that is.
    error: the largest, relative for frequencies, in radians for tables.
    drift_near, drift_far: expected RMS drift of scores, see `drift`; None where it is unknown.
    unseen: rows of a table that were not compared. setting: the one it was compared with.
    device: where it lies in a module; none in a file. times_float32: of frequencies of a graph, drift_near
    over that of the same rounded once to float32. diagnosis: pair by pair, and what explains the values.
    """

    stored: StoredTensor
    what: str
    against: str
    guessed: bool
    cast: str
    how: str
    agrees: bool | None
    error: float | None
    drift_near: float | None
    drift_far: float | None
    unseen: int
    finding: str
    setting: RopeSetting | None = None
    device: str = "none"
    times_float32: float | None = None
    diagnosis: Diagnosis | None = None

    @property
    def wrong(self) -> bool:
        """Whether it was cast, or is not what it should be."""
        return self.cast != "none" or self.agrees is False


@dataclass(frozen=True, slots=True)
class _ComparedTable:
    """A diagnosis, what it was made against, and whether that was guessed."""

    diagnosis: Diagnosis
    label: str
    setting: RopeSetting
    guessed: bool

    @property
    def agrees(self) -> bool | None:
        """Whether the values are right; None where they are those of a setting that was only guessed."""
        best = self.diagnosis.best
        if not self.guessed:
            return self.diagnosis.agrees
        return None if self.diagnosis.agrees or (best and best.meant) else False


def audited(opened: Source) -> list[Buffer]:
    """Return the buffers; where a module's own config is about something else, compared without it."""
    try:
        return list(run(opened))
    except BadInput:
        if not opened.own:
            raise
        opened.notes.append("its config has other sizes than its buffers, which were compared without it")
        return list(run(replace(opened, expected=replace(opened.expected, model=None))))


def run(source: Source) -> Iterator[Buffer]:
    """Yield every buffer and what is wrong with it. Raises: BadInput where none fits what is expected."""
    groups = list(grouped(source.buffers))
    rows = ROWS if source.built else None
    dumps = [dump_of(parts, rows) for parts in groups]
    if source.dumped and None in dumps:
        lone = groups[dumps.index(None)][0].stored
        raise BadInput(
            f"{source.spec!r}: {lone.name} of shape {lone.shape} has no partner of that shape; "
            "give cos and sin"
        )
    expected_pairs, tables = source.expected.pairs(), [dump for dump in dumps if dump is not None]
    if (
        expected_pairs
        and tables
        and not any(fits(dump, pairs) for dump in tables for _, pairs in expected_pairs)
    ):
        first, (label, pairs) = groups[0][0].stored, expected_pairs[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        raise BadInput(
            f"{source.spec!r}: {first.name} has shape {shape} and {label} has {pairs} pairs; "
            "give what belongs to these tensors with --config, --model, --head-dim or --rotary-dim"
        )
    known: dict[bytes, _ComparedTable | None] = {}
    for parts, dump in zip(groups, dumps, strict=True):
        yield from _buffers(
            parts, dump, None if dump is None else _compare(dump, source.expected, known), rows
        )


def _compare(
    dump: Dump, expected: Expected, known: dict[bytes, _ComparedTable | None]
) -> _ComparedTable | None:
    """Return a table compared with the expected setting that fits best, else with a guess.

    known: the same of tables that were compared already, for layers share theirs.
    """
    parts = [part for part in (dump.frequencies, dump.cos, dump.sin) if part is not None]
    key = b"".join(str(part.shape).encode() + part.tobytes() for part in parts)
    if key not in known:
        fitting = [named for named in expected.settings(pairs_of(dump)) if fits(dump, named[1].pairs)]
        tried = [
            _ComparedTable(check(dump, setting, label), label, setting, False) for label, setting in fitting
        ]
        best = min(tried, key=lambda table: table.diagnosis.preference, default=None)
        guess = guessed(dump, expected) if best is None else None
        known[key] = best or (guess and _ComparedTable(*guess, True)) or None
    return known[key]


def _buffers(
    parts: Sequence[RopeBuffer], dump: Dump | None, table: _ComparedTable | None, most: int | None
) -> Iterator[Buffer]:
    """Yield a row for each buffer of a table. most: the rows that are compared, all if None."""
    agrees = table.agrees if table else None
    error, near, far = None, None, None
    if table is not None and dump is not None:
        column = "relative_error" if dump.cos is None else "largest_error"
        error = float(np.max(np.abs([row[column] for row in table.diagnosis.rows])))
        if (best := table.diagnosis.best) and table.guessed and best.meant:
            error = best.residual_max  # the scaling was guessed too: what it leaves
        else:
            near, far = drift.drifts(dump.folded(table.setting.pairs), table.setting)
    for buffer in parts:
        bad = buffer.stored.values.size - np.count_nonzero(np.isfinite(buffer.stored.values))
        cast, how = _cast(buffer.stored, bool(table and table.diagnosis.agrees))
        finding = table.diagnosis.headline if table else _alone(dump, cast)
        if bad:
            agrees, finding = False, f"{bad} of {buffer.stored.values.size} values are nan or infinite."
        rows = buffer.stored.values.squeeze().shape[0] if buffer.what not in FREQUENCIES else 0
        label, guess = (table.label, table.guessed) if table else ("none", False)
        unseen = 0 if most is None else max(0, rows - most)
        yield Buffer(
            buffer.stored,
            buffer.what,
            label,
            guess,
            cast,
            how,
            agrees,
            error,
            near,
            far,
            unseen,
            finding,
            table.setting if table else None,
            buffer.device,
            _times_float32(buffer, near, table),
            table.diagnosis if table else None,
        )


def _times_float32(buffer: RopeBuffer, near: float | None, table: _ComparedTable | None) -> float | None:
    if buffer.stored.use is None or buffer.what not in FREQUENCIES or near is None or table is None:
        return None
    return near / least if (least := drift.of_float32(table.setting)) else None


def _alone(dump: Dump | None, cast: str) -> str:
    missing = "its partner of cos and sin is missing" if dump is None else "no base explains its values"
    shown = "its values show no cast" if cast == "none" else f"all its values are {cast} numbers"
    return f"{missing}, so that it was compared with nothing; {shown}."


def _cast(tensor: StoredTensor, agrees: bool) -> tuple[str, str]:
    """Return the format that a buffer was cast to, and how that shows; none, none where nothing does."""
    if tensor.dtype not in _WIDE:
        return tensor.dtype, "stored"
    values = np.concatenate([tensor.values.real.ravel(), tensor.values.imag.ravel()])
    values = values[np.isfinite(values) & (np.abs(np.frexp(values)[0]) != 0.5) & (values != 0)]
    if agrees or not values.size:  # zero and powers of two, which every format holds, say nothing
        return "none", "none"
    for name in _CASTS:
        if np.array_equal(round_to(values, parse(name)), values):
            return name, "graph" if tensor.use is not None and name in tensor.use.through else "back"
    return "none", "none"
