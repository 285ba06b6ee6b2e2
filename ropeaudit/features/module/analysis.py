"""Did something cast a module's RoPE buffers: which, to what, and what that does to scores.

A cast leaves its mark in the values: float32 numbers all of which are bfloat16 or float16 numbers were
cast and cast back. Whether they are right is the frequency check's to say, against what is expected; where
nothing is, a base that is guessed from the values says what they are, and not whether they should be.
Letters: p pairs, n positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.features.module import drift
from ropeaudit.features.module import runs as runner
from ropeaudit.features.module.expected import Expected, fits, guessed, pairs_of
from ropeaudit.features.module.grouping import FREQUENCIES, ROWS, dump_of, grouped
from ropeaudit.features.module.known import known
from ropeaudit.features.module.running import UP_TO as UP_TO
from ropeaudit.features.module.runs import Run
from ropeaudit.features.module.source import RopeBuffer, Source, load
from ropeaudit.features.module.ways import WAYS
from ropeaudit.recognition.check import Diagnosis, check
from ropeaudit.rope import hf_config, presets
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.forwards import NO_FORWARD, PROBE
from ropeaudit.tensor_files.checkpoints import StoredTensor
from ropeaudit.tensor_files.tables import Dump

_CASTS = ("bfloat16", "float16")
_LOADED = ("bfloat16", "float16", "float32", "float64")
_WIDE = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer and what is wrong with it.

    what: inv_freq, periods, angles, cos, sin or both. against: the setting it was compared with, none where
    there was none. guessed: whether that was guessed from its values.
    cast: none, or the format that its values show. how: none, stored (by its dtype) or back (and back again).
    agrees: with what is expected, up to float32 rounding; None where nothing says what that is.
    error: the largest, relative for frequencies, in radians for tables.
    drift_near, drift_far: expected RMS drift of scores, see `drift`; None where it is unknown.
    unseen: rows of a table that were not compared. setting: the one it was compared with.
    device: where it lies in a module; none in a file.
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


@dataclass(frozen=True, slots=True)
class ModuleAudit:
    """Where RoPE buffers are from, what was found of each of them, and what running the modules showed.

    ways: whether several ways of loading were requested, so that these runs are what is reported first.
    """

    source: Source
    buffers: Sequence[Buffer]
    runs: Sequence[Run] = ()
    ways: bool = False

    @property
    def wrong(self) -> bool:
        """Whether any buffer, or anything that a module returned, is wrong."""
        return any(buffer.wrong for buffer in self.buffers) or any(one.wrong for one in self.runs)


@arguments.checked
def module(
    source: str,
    *,
    config: str | None = None,
    model: str | None = None,
    base: float | None = None,
    scaling: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    loaded: Names | None = None,
    dtypes: Names = ("bf16",),
    up_to: int = UP_TO,
    build: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> ModuleAudit:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    source: a checkpoint (a folder, a .safetensors or .pt file), whose code is never executed, or a function
    that returns a module, "file.py:function" or "package.module:function", which is called, or the class
    of one, which is built from its default config or usual sizes, with the arguments in `build`.
    RoPE modules among them are run at positions 0 to up_to - 1 in each way of `loaded` (`ways.WAYS`; without
    any, of a class all that it has and else as built), to each of `dtypes`.
    What the frequencies should be: those of a config.json or its folder, of a named model, or with this
    base, scaling and dims; without any, of a config beside the source, and else a base is guessed.
    device: where a module is moved once it was made; where it lies by default.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    if config is not None and model is not None:
        raise UsageError("--model and --config both name a model; give one of them")
    options = _options(loaded, dtypes, up_to, build)
    named = None if model is None else presets.named(model)
    if config is not None:
        named = hf_config.read(config, base)
    given = None if scaling is None else scalings.parse(scaling)
    expected = Expected(named, base, given, head_dim, rotary_dim)
    expected.plain(None, 10000.0 if base is None else base)  # what is no setting is refused before any work
    opened = load(source, expected, options.arguments, up_to, device)
    buffers = _audited(opened)
    if opened.builder is None:
        if loaded is not None or build:
            flag = "--loaded" if loaded is not None else "--build"
            raise UsageError(
                f"{flag} says how a module is built, and {source!r} is a checkpoint; leave it out"
            )
        return ModuleAudit(opened, buffers)
    notes: list[str] = []
    runs = runner.run(opened.builder, opened.module, known(buffers), options, opened.place, notes)
    ways = bool(runs) and (options.loaded is not None or opened.builder.cls is not None)
    if not ways:  # buffers as built are reported anyway
        silent = [
            one for one in runs if one.measured is None and one.held != "none" and one.reason != NO_FORWARD
        ]
        notes += [f"{one.kind} was not run: {one.reason}" for one in silent]
        runs = [one for one in runs if one.measured is not None]
    opened.notes.extend(dict.fromkeys(notes))
    return ModuleAudit(opened, buffers, runs, ways)


def _options(
    loaded: Names | None, dtypes: Names, up_to: int, build: Mapping[str, Any] | None
) -> runner.Options:
    """Return how modules are run. Raises: UnknownName, UsageError."""
    names = None if loaded is None else (loaded,) if isinstance(loaded, str) else tuple(loaded)
    for name in names or ():
        if name not in WAYS:
            raise UnknownName("way of loading", name, WAYS)
    formats = tuple(parse(name) for name in ((dtypes,) if isinstance(dtypes, str) else dtypes))
    for fmt in formats:
        if fmt.name not in _LOADED:
            raise UnknownName("dtype of a module", fmt.name, _LOADED)
    if up_to < PROBE:
        raise UsageError(f"--up-to {up_to}: a module is known by {PROBE} positions; try --up-to {UP_TO}")
    return runner.Options(names, formats, up_to, build or {})


def _audited(opened: Source) -> list[Buffer]:
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
    dumps = [dump_of(parts) for parts in groups]
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
        yield from _buffers(parts, dump, None if dump is None else _compare(dump, source.expected, known))


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
    parts: Sequence[RopeBuffer], dump: Dump | None, table: _ComparedTable | None
) -> Iterator[Buffer]:
    """Yield a row for each buffer of a table."""
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
        unseen = max(0, rows - ROWS)
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
        )


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
            return name, "back"
    return "none", "none"
