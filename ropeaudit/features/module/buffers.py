"""RoPE buffers: which were cast, to what, and whether they are what is expected.

A cast leaves its mark in the values: float32 numbers all of which are bfloat16 or float16 numbers were
cast and cast back. Whether they are right is the frequency check's to say, against what is expected; where
nothing is, a base that is guessed from the values says what they are, and not whether they should be.
Letters: p pairs, n positions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput
from ropeaudit.features.module.source import Expected, RopeBuffer, Source
from ropeaudit.recognition import wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.diagnosis import Diagnosis, kinds
from ropeaudit.recognition.faults import BY_PAIR
from ropeaudit.recognition.stored_values import Guess, drifts, guessed
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import digests
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files.checkpoints import StoredTensor
from ropeaudit.tensor_files.rope_values import Dump

FREQUENCIES = ("inv_freq", "periods")
CASTS = ("bfloat16", "float16")
_WIDE = ("float32", "float64", "complex64", "complex128")
_AGREES = "within float32 rounding"
_TURNED = ("pairs", "positions")
_SAME = 2.0**-20  # relative, or radians per token: what float32 arithmetic on another road leaves
_NAMES = {"angles": "the angle table", "periods": "the table of periods"}


@dataclass(frozen=True, slots=True)
class Buffer(RopeBuffer):
    """A buffer and what is wrong with it.

    cast: none, or the format that its values show. how: none, stored (by its dtype), graph (by conversions
    of a graph) or back (and back again). nonfinite: how many of its values are nan or infinite. lone:
    whether it is a cos or a sin without the other. spared: whether all that is wrong with the table is in
    the other.
    table: its table pair by pair, and what explains the values; None where there was nothing to compare it
    with. label, setting, guessed: what it was compared with. error: the largest, relative for frequencies, in
    radians for tables. drift_near: expected RMS drift of scores within a short sequence, over the scores'
    RMS; drift_far: at a long distance, None of tables, which end before. from_built: how far its values are
    from those as built, relative for frequencies; None of a file, and as built.
    """

    cast: str = "none"
    how: str = "none"
    nonfinite: int = 0
    lone: bool = False
    spared: bool = False
    table: TableFinding | None = None
    label: str = "none"
    setting: RopeSetting | None = None
    guessed: bool = False
    error: float | None = None
    drift_near: float | None = None
    drift_far: float | None = None
    from_built: float | None = None

    def _case(self) -> tuple[bool | None, Diagnosis | None, str]:
        """Return whether it is what is expected, what explains its values, and that in a sentence."""
        table = self.table
        cast = None if self.cast == "none" else Diagnosis("buffer-cast", {"format": self.cast})
        if self.nonfinite:
            said = f"{self.nonfinite} of {self.stored.values.size} values are nan or infinite."
            return False, Diagnosis("nonfinite"), said
        if self.imaginary_lost:
            narrow = self.stored.dtype
            said = f"it is complex as built and {narrow} now: its imaginary part (sin) is lost."
            return False, Diagnosis("buffer-cast", {"format": narrow}), said
        if self.transposed:
            beside = None if table is None or self.spared else table.diagnosis_of(self.what)
            also = () if beside is None else (beside,)
            found = Diagnosis("axes-order", {"order": _TURNED}, also=also)
            said = f"{wording.sentence(found)}: it has columns where its positions should be rows."
            return False, found, said
        if table is None:  # what nothing is expected of is off where it is no longer what it is as built
            positions = 1 if self.what in FREQUENCIES else max(self.stored.shape)
            moved = self.from_built is not None and not self.from_built <= _SAME * positions
            return False if moved else None, cast, self._of_no_table()
        if self.spared:
            said = f"its values agree {_AGREES}, and those of its partner do not."
            return None if self.guessed else True, cast, said
        if table.agrees:
            return None if self.guessed else True, cast, wording.of_table(table)
        if self.guessed and table.best and table.best.another_setting:
            return None, cast, f"{table.name} is that of {self.label}."
        own = table.diagnosis_of(self.what)
        said = wording.of_table(table)
        if own is not table.diagnosis:  # the rest is in its partner
            said = f"{wording.sentence(own)}."
        return False, own or cast, said

    @property
    def agrees(self) -> bool | None:
        """Whether it is what is expected, up to float32 rounding; None where nothing says what that is."""
        return self._case()[0]

    @property
    def finding(self) -> str:
        """What explains its values, in a sentence."""
        return self._case()[2]

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What explains that it is wrong; None where it is not, and where nothing that was tried does."""
        return self._case()[1] if self.wrong else None

    @property
    def wrong(self) -> bool:
        """Whether it was cast, or is not what it should be."""
        return self.cast != "none" or self.agrees is False

    @property
    def judged(self) -> bool:
        """Whether anything says that it is right or wrong: what is expected, or a base that fits all rows.

        A base that fits the rows of other positions, or turned the other way, says no more than that.
        """
        if self.wrong or self.agrees is not None or self.table is None:
            return self.wrong or self.agrees is not None
        best = self.table.best
        parts = () if best is None or best.diagnosis is None else best.diagnosis.parts()
        return not any(kinds()[one.code].group == "positions" for one in parts)

    @property
    def against(self) -> str:
        """What it was compared with, and whether that was guessed."""
        return f"{self.label} (guessed)" if self.guessed else self.label

    @property
    def measured(self) -> str:
        """How many pairs are off and by how much, where a diagnosis says the rest; else empty."""
        table = self.table
        if table is None or table.diagnosis is None or table.nonfinite or self.agrees is not False:
            return ""
        return wording.off_by(table)

    def _of_no_table(self) -> str:
        """Return what is known of values that nothing explains."""
        missing = "its partner of cos and sin is missing" if self.lone else "no base explains its values"
        against = "nothing" if self.from_built is None else "those as built alone"
        cast = "its values show no cast" if self.cast == "none" else f"all its values are {self.cast} numbers"
        return f"{missing}, so that it was compared with {against}; {cast}."

    def drift_at(self, distance: int) -> float | None:
        """Return what `drift_far` is, at another distance."""
        if self.drift_far is None or self.setting is None:
            return None
        dump = dump_of([self])
        return drifts(dump.folded(self.setting.pairs), self.setting, distance)[1] if dump else None

    def remedy(self, expected: Expected) -> str:
        """Return what to do where a checkpoint stores a table of another setting than its config's; else "".

        transformers drops stored ones: 5.23.0, modeling_utils.py, _adjust_missing_and_unexpected_keys (read).
        """
        parts = [] if self.diagnosis is None else list(self.diagnosis.parts())
        known = [kinds()[one.code].group == "setting" and one.certainty != "resembles" for one in parts]
        by_options = expected.base is not None or expected.scaling is not None
        if expected.model is None or by_options or self.guessed or self.cast != "none":
            return ""
        if not known or not all(known):
            return ""
        builds = "code that computes the values from config.json does not use it"
        if self.stored.name.endswith("rotary_emb.inv_freq"):
            builds = "transformers computes inv_freq from config.json and drops stored ones"
        return (
            f"either config.json or the stored tensor is wrong: {builds}, and code that loads the tensor "
            "rotates by it"
        )


def run(source: Source) -> Iterator[Buffer]:
    """Yield the audited buffers. Raises: BadInput where none fits what is expected."""
    groups = list(grouped(source.buffers))
    dumps = [dump_of(parts) for parts in groups]
    if source.kind == "dump" and None in dumps:
        lone = groups[dumps.index(None)][0].stored
        raise BadInput(
            f"{source.spec!r}: {lone.name} of shape {lone.shape} has no partner of that shape; "
            "give cos and sin"
        )
    expected, tables = source.expected, [dump for dump in dumps if dump is not None]
    misfit = bool(tables and expected.pairs()) and not any(
        dump.fits(pairs) for dump in tables for _, pairs in expected.pairs()
    )
    known = source.kind == "gguf" or source.own  # a config of its own that does not fit says nothing
    if misfit and not known and not any(_of_other_dims(one, expected) for one in tables):
        first, (label, pairs) = groups[0][0].stored, expected.pairs()[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        raise BadInput(
            f"{source.spec!r}: {first.name} has shape {shape} and {label} has {pairs} pairs; "
            "give what belongs to these tensors with --config, --model, --head-dim or --rotary-dim"
        )
    compared: dict[tuple[str, str], Buffer] = {}  # layers, and loading modes, share their tables
    as_built: dict[str, Buffer] = {}  # which comes first
    for parts, dump in zip(groups, dumps, strict=True):
        comparison, name = Buffer(parts[0].stored, parts[0].what), parts[0].stored.name
        if dump is not None:
            arrays = [array for array in (dump.frequencies, dump.cos, dump.sin) if array is not None]
            like = as_built.get(name, comparison)
            key = digests.of_arrays(arrays), like.against
            if key not in compared:
                compared[key] = _compared(comparison, dump, expected, misfit and not source.own, like)
            comparison = compared[key]
            as_built.setdefault(name, comparison)
        yield from (_judged(buffer, len(parts) == 1, comparison) for buffer in parts)


def _compared(buffer: Buffer, dump: Dump, expected: Expected, misfit: bool, like: Buffer) -> Buffer:
    """Return a buffer, its table compared with the setting that fits best, or a guess.

    like: the same as built; what was guessed of that is expected of this one.
    """
    found = _of_other_dims(dump, expected) if misfit else None
    if found is None:
        fitting = [named for named in expected.settings(dump.pairs) if dump.fits(named[1].pairs)]
        tried = [(check(dump, setting, label), label, setting) for label, setting in fitting]
        found = min(tried, key=lambda one: one[0].preference, default=None)
    chosen = found
    if found is None and like.setting is not None and dump.fits(like.setting.pairs):
        chosen = check(dump, like.setting), like.label, like.setting
    elif found is None and (guess := guessed(dump, functools.partial(expected.plain, dump.pairs))):
        table, other, setting = guess
        words = [expected.words(f"base {setting.base:.8g}"), other]
        chosen = table, ", ".join(filter(None, words)), setting
    if chosen is None:
        return buffer
    table, label, setting = chosen
    one = replace(buffer, table=table, label=label, setting=setting, guessed=found is None)
    if table.other_dims:
        return one
    if (best := table.best) and one.guessed and best.another_setting:
        return replace(one, error=best.residual_max)  # the setting was guessed too: what it leaves
    near, far = drifts(dump.folded(setting.pairs), setting)
    return replace(one, error=abs(table.worst[table.size]), drift_near=near, drift_far=far)


def _of_other_dims(dump: Dump, expected: Expected) -> Guess | None:
    """Return a table of another rotary_dim, where only part of a head rotates."""
    dims = 2 * dump.pairs
    for label, asked in expected.settings(None):
        if asked.rotary_dim < asked.head_dim >= dims and asked.scaling.kind not in BY_PAIR:
            setting = replace(asked, rotary_dim=dims)
            found = check(dump, setting, label)
            if found.agrees or (found.best is not None and found.best.explains):
                values = {"seen": dims, "asked": asked.rotary_dim, "head_dim": asked.head_dim}
                beside = () if found.diagnosis is None else (found.diagnosis,)
                diagnosis = Diagnosis("partial-rotation", values, also=beside)
                return replace(found, agrees=False, diagnosis=diagnosis), label, setting
    return None


def _judged(buffer: RopeBuffer, alone: bool, comparison: Buffer) -> Buffer:
    """Return what is wrong with a buffer. alone: whether it is the whole of its table."""
    values, table = buffer.values, comparison.table
    spared = not alone and table is not None and table.side not in ("", buffer.what)
    cast, how = _cast(buffer.stored, spared or (table is not None and table.agrees))
    if spared:
        comparison = replace(comparison, error=None, drift_near=None, drift_far=None)
    return replace(
        comparison,
        **{field.name: getattr(buffer, field.name) for field in fields(RopeBuffer)},
        cast=cast,
        how=how,
        nonfinite=values.size - int(np.count_nonzero(np.isfinite(values))),
        lone=alone and buffer.what in ("cos", "sin"),
        spared=spared,
        from_built=_from_built(buffer),
    )


def _from_built(buffer: RopeBuffer) -> float | None:
    """Return how far values are from those as built at most: relative for frequencies."""
    now, was = buffer.stored, buffer.as_built
    if was is None or now.shape != was.shape:
        return None
    with np.errstate(all="ignore"):
        off = np.abs(now.values - was.values)
        if buffer.what in FREQUENCIES:
            off = off / np.where(was.values == 0, 1.0, np.abs(was.values))
    return float(np.max(off, initial=0.0))


def _cast(tensor: StoredTensor, agrees: bool) -> tuple[str, str]:
    """Return the format that a buffer was cast to, and how that shows; else none, none."""
    if tensor.dtype not in _WIDE:
        return tensor.dtype, "stored"
    values = np.ascontiguousarray(tensor.values).view(np.float64).ravel()
    values = values[np.isfinite(values) & (np.abs(np.frexp(values)[0]) != 0.5) & (values != 0)]
    if agrees or not values.size:  # zero and powers of two, which every format holds, say nothing
        return "none", "none"
    for name in CASTS:
        if np.array_equal(round_to(values, parse(name)), values):
            return name, "graph" if tensor.use is not None and name in tensor.use.through else "back"
    return "none", "none"


def grouped(buffers: Sequence[RopeBuffer]) -> Iterator[list[RopeBuffer]]:
    """Yield buffers that make one table: cos and its sin, or one alone."""
    left = {id(buffer): buffer for buffer in buffers}
    for buffer in [one for one in buffers if one.what == "cos"]:
        partner = _partner(buffer, [one for one in left.values() if one.what == "sin"])
        if partner is not None:
            del left[id(buffer)], left[id(partner)]
            yield [buffer, partner]
    yield from ([buffer] for buffer in left.values())


def _partner(cos: RopeBuffer, sines: Sequence[RopeBuffer]) -> RopeBuffer | None:
    """Return the sin of a cos: beside it, by its name or else by its values."""
    prefix, _, last = cos.stored.name.rpartition(".")

    def likeness(sine: RopeBuffer) -> float:
        beside, _, name = sine.stored.name.rpartition(".")
        if (sine.loaded, sine.stored.shape, beside) != (cos.loaded, cos.stored.shape, prefix):
            return 0.0
        if name == last.replace("cos", "sin"):
            return 2.0
        return rope_values.partners(cos.values, sine.values)

    best = max(sines, key=likeness, default=None)
    return best if best is not None and likeness(best) else None


def dump_of(parts: Sequence[RopeBuffer]) -> Dump | None:
    """Return the table that buffers make; None for cos or sin alone. Periods and angles are converted."""
    what, values, name = parts[0].what, parts[0].values, parts[0].stored.name
    if parts[0].imaginary_lost:
        return None
    if what in FREQUENCIES:
        with np.errstate(all="ignore"):
            theta = values.reshape(-1) if what == "inv_freq" else 1 / values.reshape(-1)
        return Dump(name, _NAMES.get(what, "inv_freq"), frequencies=theta, inverse=what == "periods")
    if len(parts) == 2:
        cos, sin = values, parts[1].values
    elif what == "angles":
        with np.errstate(invalid="ignore"):
            cos, sin = np.cos(values), np.sin(values)
    elif what == "both":
        some = rope_values.halves(values.squeeze())[:1]
        if not some:
            return None
        cos, sin = rope_values.both(values) or some[0]
    else:
        return None
    called, angles = _NAMES.get(what, "the cos/sin table"), what == "angles"
    cos, sin = (np.ascontiguousarray(x.reshape(-1, x.shape[-1])) for x in (cos, sin))
    return Dump(name, called, cos=cos, sin=sin, angles=angles)
