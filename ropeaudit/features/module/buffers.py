"""RoPE buffers: which tensors are some, which were cast, and whether they are right.

They are known by their values, else by usual names; of a dump the names tell first. Numbers all of which a
narrower format holds were cast. A guessed base says what values are, and not what they should be.
Letters: p pairs, n positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput
from ropeaudit.recognition import wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.diagnosis import Diagnosis, kinds
from ropeaudit.recognition.faults import BY_PAIR
from ropeaudit.recognition.stored_values import Guess, drifts, guessed
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import digests
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files.rope_values import Dump
from ropeaudit.tensor_files.tensors import StoredTensor

if TYPE_CHECKING:
    from ropeaudit.features.module.analysis import Expected, ModuleAudit

FREQUENCIES = ("inv_freq", "periods")
CASTS = ("bfloat16", "float16")
_WIDE = ("float32", "float64", "complex64", "complex128")
_AGREES = "within float32 rounding"
_SAME = 2.0**-20  # relative, or radians per token: what float32 leaves
_CALLED = {"inv_freq": "inv_freq", "angles": "the angle table", "periods": "the table of periods"}
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
# last part of a name -> what the buffer holds
_KINDS: dict[str, str] = {
    **dict.fromkeys(("inv_freqs", "freqs", "frequencies"), "inv_freq"),
    **dict.fromkeys(_COS, "cos"),
    **{name.replace("cos", "sin"): "sin" for name in _COS},
    **dict.fromkeys(("freqs_cis", "freqs_complex", "cos_sin_cache", "cos_sin"), "both"),
}
_AXES = {"": (), "inv_freq": (0, 1), "both": (2, 3)}  # that are longer than 1; 2 of cos and sin


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor, what it holds (inv_freq, periods, angles, cos, sin, or both), and what is wrong with it.

    transposed: whether its columns are positions; `values` has these in rows. loaded: the loading mode of its
    module. as_built: the same tensor as built, where that is another mode.
    cast: none, or the format that its values show. how: none, stored (by its dtype), graph (by conversions
    of a graph) or back (and back again). nonfinite: how many values are. lone: whether the other one of cos
    and sin is missing. spared: whether all that is wrong with the table is in that.
    table: its table pair by pair, compared; None without anything to compare it with. label, setting,
    guessed: what that is. error: the largest, relative for frequencies, radians for tables. drift_near:
    expected RMS drift of scores within a short sequence, over the scores' RMS; drift_far: at a long distance,
    None of tables. from_built: how far its values are from those as built.
    agrees: whether it is what is expected; None where nothing says what that is. diagnosis: what explains
    that it is wrong, if that is known. finding: a sentence.
    """

    stored: StoredTensor
    what: str
    transposed: bool = False
    loaded: str = "none"
    as_built: StoredTensor | None = None
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
    agrees: bool | None = None
    diagnosis: Diagnosis | None = None
    finding: str = ""

    @property
    def values(self) -> NDArray[Any]:
        """Its values, a table's positions first."""
        return self.stored.values.squeeze().T if self.transposed else self.stored.values

    @property
    def imaginary_lost(self) -> bool:
        """Whether it is complex as built and real now, so that sin is lost."""
        was = self.as_built
        return was is not None and np.iscomplexobj(was.values) and not np.iscomplexobj(self.stored.values)

    @property
    def wrong(self) -> bool:
        """Whether it was cast, or is not what it should be."""
        return self.cast != "none" or self.agrees is False

    @property
    def judged(self) -> bool:
        """Whether anything says that it is right or wrong: a base that fits all rows, too."""
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

    def drift_at(self, distance: int) -> float | None:
        """Return what `drift_far` is, at another distance."""
        if self.drift_far is None or self.setting is None:
            return None
        dump = dump_of([self])
        return drifts(dump.folded(self.setting.pairs), self.setting, distance)[1] if dump else None

    def remedy(self, expected: Expected) -> str:
        """Return what to do where a checkpoint stores a table of another setting than its config's; else "".

        Source: transformers 5.23.0, modeling_utils.py, _adjust_missing_and_unexpected_keys (read).
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


def may_be_buffer(name: str, shape: tuple[int, ...], head: Callable[[], NDArray[Any]]) -> bool:
    """Return whether a tensor may be a RoPE buffer, by its name or by its first rows."""
    return bool(kind_by_name(name, shape)) or (
        rope_values.may_hold(shape) and bool(rope_values.known(head()))
    )


def recognised(
    tensors: Iterable[StoredTensor], dumped: bool = False, lone: bool = False, loaded: str = "none"
) -> list[Buffer]:
    """Return tensors with what they hold: as their values say, else as their names do.

    dumped: whether somebody wrote them to look at them. lone: whether there is but one.
    """
    buffers = []
    for tensor in tensors:
        if not tensor.values.size:
            continue
        by_name = (tensor.use and tensor.use.operand) or kind_by_name(tensor.name, tensor.shape)
        if dumped and by_name in ("inv_freq", "both") and by_name != _kind_by_shape(tensor.values):
            by_name = ""
        by_value = rope_values.known(tensor.values)
        turned = "" if by_value or not by_name else rope_values.known(tensor.values.squeeze().T)
        transposed = turned in ("cos", "sin") and not (tensor.use and tensor.use.transposed)
        by_value = turned if transposed else by_value
        named_first = dumped or {by_name, by_value} == {"cos", "sin"}  # swapped: a fault, not another name
        what = (by_name or by_value) if named_first else (by_value or by_name)
        if what := what or (_kind_by_shape(tensor.values) if lone else ""):
            buffers.append(Buffer(tensor, what, transposed, loaded))
    return buffers


def kind_by_name(name: str, shape: tuple[int, ...]) -> str:
    """Return what a name says: (p,) frequencies, (n, p) tables, else ""."""
    last = name.rpartition(".")[2].lower()
    kind = "inv_freq" if last.endswith("inv_freq") else _KINDS.get(last, "")
    return kind if sum(size != 1 for size in shape) in _AXES.get(kind, (2,)) else ""


def _kind_by_shape(values: NDArray[Any]) -> str:
    """Return what a shape says: frequencies on one axis, else cos and sin."""
    sizes, is_complex = np.squeeze(values).shape, np.iscomplexobj(values)
    if len(sizes) < 2:
        return "" if is_complex else "inv_freq"
    halves = is_complex or sizes[-1] % 2 == 0
    return "both" if halves and (len(sizes) == 2 or (len(sizes) == 3 and sizes[-1] == 2)) else ""


def grouped(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Yield buffers that make one table: cos and its sin, by its name or its values, or one alone."""

    def likeness(cos: Buffer, sine: Buffer) -> float:
        (prefix, _, last), (beside, _, name) = (one.stored.name.rpartition(".") for one in (cos, sine))
        if (sine.loaded, sine.stored.shape, beside) != (cos.loaded, cos.stored.shape, prefix):
            return 0.0
        return 2.0 if name == last.replace("cos", "sin") else rope_values.partners(cos.values, sine.values)

    left = {id(buffer): buffer for buffer in buffers}
    for buffer in [one for one in buffers if one.what == "cos"]:
        likely = {key: likeness(buffer, one) for key, one in left.items() if one.what == "sin"}
        best = max(likely, key=likely.__getitem__, default=None)
        if best is not None and likely[best]:
            del left[id(buffer)]
            yield [buffer, left.pop(best)]
    yield from ([buffer] for buffer in left.values())


def dump_of(parts: Sequence[Buffer]) -> Dump | None:
    """Return the table that buffers make, converted; None for cos or sin alone."""
    what, values, name = parts[0].what, parts[0].values, parts[0].stored.name
    called = _CALLED.get(what, "the cos/sin table")
    if parts[0].imaginary_lost:
        return None
    with np.errstate(all="ignore"):
        if what in FREQUENCIES:
            theta = values.reshape(-1) if what == "inv_freq" else 1 / values.reshape(-1)
            return Dump(name, called, frequencies=theta, inverse=what == "periods")
        both = (np.cos(values), np.sin(values)) if what == "angles" else None
    if len(parts) == 2:
        both = values, parts[1].values
    elif what == "both":
        both = rope_values.both(values) or next(iter(rope_values.halves(values.squeeze())), None)
    if both is None:
        return None
    cos, sin = (np.ascontiguousarray(x.reshape(-1, x.shape[-1])) for x in both)
    return Dump(name, called, cos=cos, sin=sin, angles=what == "angles")


_Compared: TypeAlias = Mapping[str, Any]  # fields of `Buffer` that a table has


def run(audit: ModuleAudit) -> Iterator[Buffer]:
    """Yield the audited buffers. Raises: BadInput where none fits what is expected."""
    groups = list(grouped(audit.found))
    dumps = [dump_of(parts) for parts in groups]
    if audit.kind == "dump" and None in dumps:
        lone = groups[dumps.index(None)][0].stored
        raise BadInput(
            f"{audit.spec!r}: {lone.name} of shape {lone.shape} has no partner of that shape; "
            "give cos and sin"
        )
    expected, tables = audit.expected, [dump for dump in dumps if dump is not None]
    misfit = bool(tables and expected.pairs()) and not any(
        dump.fits(pairs) for dump in tables for _, pairs in expected.pairs()
    )
    known = audit.kind == "gguf" or audit.own  # its own config says nothing then
    if misfit and not known and not any(_of_other_dims(one, expected) for one in tables):
        first, (label, pairs) = groups[0][0].stored, expected.pairs()[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        raise BadInput(
            f"{audit.spec!r}: {first.name} has shape {shape} and {label} has {pairs} pairs; "
            "give what belongs to these tensors with --config, --model, --head-dim or --rotary-dim"
        )
    compared: dict[tuple[object, ...], _Compared] = {}  # layers, and loading modes, share their tables
    as_built: dict[str, _Compared] = {}  # which comes first
    for parts, dump in zip(groups, dumps, strict=True):
        found, name = dict[str, Any](), parts[0].stored.name
        if dump is not None:
            like = as_built.get(name, {})
            key = digests.of_arrays(dump.arrays.values()), like.get("label"), like.get("guessed")
            if key not in compared:
                compared[key] = _compared(dump, expected, misfit and not audit.own, like)
            found |= compared[key]
            as_built.setdefault(name, found)
        yield from (_judged(buffer, len(parts) == 1, found) for buffer in parts)


def _compared(dump: Dump, expected: Expected, misfit: bool, like: _Compared) -> _Compared:
    """Return how a table compares with the setting that fits best, or a guess; nothing without either.

    like: the same as built; what was guessed of that is expected of this one.
    """
    found = _of_other_dims(dump, expected) if misfit else None
    if found is None:
        fitting = [named for named in expected.settings(dump.pairs) if dump.fits(named[1].pairs)]
        tried = [(check(dump, setting, label), label, setting) for label, setting in fitting]
        found = min(tried, key=lambda one: one[0].preference, default=None)
    chosen = found
    if found is None and like and dump.fits(like["setting"].pairs):
        chosen = check(dump, like["setting"]), like["label"], like["setting"]
    elif found is None and (guess := guessed(dump, functools.partial(expected.plain, dump.pairs))):
        table, other, setting = guess
        words = [expected.words(f"base {setting.base:.8g}"), other]
        chosen = table, ", ".join(filter(None, words)), setting
    if chosen is None:
        return {}
    table, label, setting = chosen
    one = {"table": table, "label": label, "setting": setting, "guessed": found is None}
    if table.other_dims:
        return one
    if (best := table.best) and found is None and best.another_setting:
        return one | {"error": best.residual_max}  # the setting was guessed too: what it leaves
    near, far = drifts(dump.folded(setting.pairs), setting)
    return one | {"error": abs(table.worst[table.size]), "drift_near": near, "drift_far": far}


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


def _judged(buffer: Buffer, alone: bool, compared: _Compared) -> Buffer:
    """Return what is wrong with a buffer. alone: whether it is the whole of its table."""
    values, table, was, from_built = buffer.values, compared.get("table"), buffer.as_built, None
    if was is not None and buffer.stored.shape == was.shape:
        with np.errstate(all="ignore"):
            off = np.abs(buffer.stored.values - was.values)
            if buffer.what in FREQUENCIES:
                off = off / np.where(was.values == 0, 1.0, np.abs(was.values))
        from_built = float(np.max(off, initial=0.0))
    spared = not alone and table is not None and table.side not in ("", buffer.what)
    cast, how = _cast(buffer.stored, spared or (table is not None and table.agrees))
    if spared:
        compared = {**compared, "error": None, "drift_near": None, "drift_far": None}
    one = replace(
        buffer,
        **compared,
        cast=cast,
        how=how,
        nonfinite=values.size - int(np.count_nonzero(np.isfinite(values))),
        lone=alone and buffer.what in ("cos", "sin"),
        spared=spared,
        from_built=from_built,
    )
    agrees, diagnosis, said = _explained(one)
    one = replace(one, agrees=agrees, finding=said)
    return replace(one, diagnosis=diagnosis) if one.wrong else one


def _explained(one: Buffer) -> tuple[bool | None, Diagnosis | None, str]:
    """Return whether it is what is expected, what explains its values, and a sentence."""
    table, narrow = one.table, one.stored.dtype
    cast = None if one.cast == "none" else Diagnosis("buffer-cast", {"format": one.cast})
    if one.nonfinite:
        said = f"{one.nonfinite} of {one.stored.values.size} values are nan or infinite."
        return False, Diagnosis("nonfinite"), said
    if one.imaginary_lost:
        said = f"it is complex as built and {narrow} now: its imaginary part (sin) is lost."
        return False, Diagnosis("buffer-cast", {"format": narrow}), said
    if one.transposed:
        beside = None if table is None or one.spared else table.diagnosis_of(one.what)
        also = () if beside is None else (beside,)
        found = Diagnosis("axes-order", {"order": ("pairs", "positions")}, also=also)
        said = f"{wording.sentence(found)}: it has columns where its positions should be rows."
        return False, found, said
    if table is None:  # off where it is no longer what it is as built
        positions = 1 if one.what in FREQUENCIES else max(one.stored.shape)
        moved = one.from_built is not None and not one.from_built <= _SAME * positions
        missing = "its partner of cos and sin is missing" if one.lone else "no base explains its values"
        against = "nothing" if one.from_built is None else "those as built alone"
        shown = f"all its values are {one.cast} numbers" if cast else "its values show no cast"
        said = f"{missing}, so that it was compared with {against}; {shown}."
        return False if moved else None, cast, said
    if one.spared or table.agrees:
        said = f"its values agree {_AGREES}, and those of its partner do not."
        return None if one.guessed else True, cast, said if one.spared else wording.of_table(table)
    if one.guessed and table.best and table.best.another_setting:
        return None, cast, f"{table.name} is that of {one.label}."
    own, said = table.diagnosis_of(one.what), wording.of_table(table)
    if own is not table.diagnosis:  # the rest is in its partner
        said = f"{wording.sentence(own)}."
    return False, own or cast, said


def _cast(tensor: StoredTensor, agrees: bool) -> tuple[str, str]:
    """Return the format that a buffer was cast to, and how that shows; else none, none."""
    if tensor.dtype not in _WIDE:
        return tensor.dtype, "stored"
    values = np.ascontiguousarray(tensor.values).view(np.float64).ravel()
    values = values[np.isfinite(values) & (np.abs(np.frexp(values)[0]) != 0.5) & (values != 0)]
    if agrees or not values.size:  # zero and powers of two say nothing
        return "none", "none"
    for name in CASTS:
        if np.array_equal(round_to(values, parse(name)), values):
            return name, "graph" if tensor.use is not None and name in tensor.use.through else "back"
    return "none", "none"
