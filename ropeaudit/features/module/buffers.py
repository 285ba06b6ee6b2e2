"""RoPE buffers: how they are recognised among tensors, and grouped into tables.

Values decide, else usual names; in a dump names come first.
Letters: p pairs, n positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.recognition import wording
from ropeaudit.recognition.check import TableFinding
from ropeaudit.recognition.diagnosis import Diagnosis, kinds
from ropeaudit.recognition.stored_values import drifts
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files.rope_values import Dump
from ropeaudit.tensor_files.tensors import StoredTensor

FREQUENCIES = ("inv_freq", "periods")
_CALLED = {"inv_freq": "inv_freq", "angles": "the angle table", "periods": "the table of periods"}
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
# last part of a name -> what the buffer holds
_KINDS: dict[str, str] = {
    **dict.fromkeys(("inv_freqs", "freqs", "frequencies"), "inv_freq"),
    **dict.fromkeys(_COS, "cos"),
    **{name.replace("cos", "sin"): "sin" for name in _COS},
    **dict.fromkeys(("freqs_cis", "freqs_complex", "cos_sin_cache", "cos_sin"), "both"),
}
_ABOUT = re.compile("rope|rot|freq|emb|cos|sin|pos|theta|angle|period|scale")  # in names of buffers
_AXES = {"": (), "inv_freq": (0, 1), "both": (2, 3)}  # that are longer than 1; 2 of cos and sin


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor of RoPE, its content (inv_freq, periods, angles, cos, sin, or both), and its judgement.

    transposed: whether its columns are positions; `values` has these in rows.
    cast: none, or the format to which its values were cast.
    how: evidence of the cast: none, stored (its dtype), graph (conversions in a graph) or back (cast back).
    nonfinite: number of such values. lone: whether its partner of cos and sin is missing.
    spared: whether only its partner is wrong.
    table: comparison of its table by pair; None if there is nothing to compare with.
    label, setting, guessed: the setting of that comparison.
    error: the largest, relative for frequencies, in radians for tables.
    drift_near: RMS drift of scores within a short sequence, over the scores' RMS.
    drift_far: that at a long distance, None for tables.
    serves: positions that its table needs, None if unknown; range: source of that.
    agrees: whether it has the expected values; None if these are unknown.
    diagnosis: the explanation of wrong values, if there is one. finding: a sentence.
    """

    stored: StoredTensor
    what: str
    transposed: bool = False
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
    serves: int | None = None
    range: str = ""
    agrees: bool | None = None
    diagnosis: Diagnosis | None = None
    finding: str = ""

    @property
    def values(self) -> NDArray[Any]:
        """Its values, a table's positions first."""
        return self.stored.values.squeeze().T if self.transposed else self.stored.values

    @property
    def wrong(self) -> bool:
        """Whether it was cast, or has other values than expected."""
        return self.cast != "none" or self.agrees is False

    @property
    def judged(self) -> bool:
        """Whether it is known to be right or wrong; a base that fits all rows counts too."""
        if self.wrong or self.agrees is not None or self.table is None:
            return self.wrong or self.agrees is not None
        best = self.table.best
        parts = () if best is None or best.diagnosis is None else best.diagnosis.parts()
        return not any(kinds()[part.code].group == "positions" for part in parts)

    @property
    def against(self) -> str:
        """The setting of the comparison, and whether it was guessed."""
        return f"{self.label} (guessed)" if self.guessed else self.label

    @property
    def rows(self) -> int | None:
        """The number of positions in its table; None for frequencies."""
        sizes = np.squeeze(self.values).shape
        return None if self.what in FREQUENCIES or not sizes else sizes[0]

    @property
    def ends(self) -> bool:
        """Whether its table has fewer positions than it needs."""
        return None not in (self.rows, self.serves) and (self.rows or 0) < (self.serves or 0)

    @property
    def measured(self) -> str:
        """The number of wrong pairs and their error, beside a diagnosis; else empty."""
        table = self.table
        if table is None or table.diagnosis is None or table.nonfinite or self.agrees is not False:
            return ""
        return wording.off_by(table)

    def drift_at(self, distance: int) -> float | None:
        """Return `drift_far` at another distance."""
        if self.drift_far is None or self.setting is None:
            return None
        dump = dump_of([self])
        return drifts(dump.folded(self.setting.pairs), self.setting, distance)[1] if dump else None


def may_be_buffer(name: str, shape: tuple[int, ...], head: Callable[[], NDArray[Any]]) -> bool:
    """Return whether a tensor may be a RoPE buffer, by its name or by its first rows."""
    return bool(kind_by_name(name, shape)) or (
        rope_values.may_hold(shape) and bool(rope_values.kind_of(head()))
    )


def recognised(tensors: Iterable[StoredTensor], dumped: bool = False, lone: bool = False) -> list[Buffer]:
    """Return the tensors that are buffers, with their content by values, else by names.

    dumped: whether they are from a dump. lone: whether there is only one tensor.
    """
    buffers = []
    for tensor in tensors:
        if not tensor.values.size:
            continue
        by_name = (tensor.use and tensor.use.operand) or kind_by_name(tensor.name, tensor.shape)
        if dumped and by_name in ("inv_freq", "both") and by_name != _kind_by_shape(tensor.values):
            by_name = ""
        by_value = rope_values.kind_of(tensor.values)
        turned = "" if by_value or not by_name else rope_values.kind_of(tensor.values.squeeze().T)
        transposed = turned in ("cos", "sin") and not (tensor.use and tensor.use.transposed)
        by_value = turned if transposed else by_value
        named_first = dumped or {by_name, by_value} == {"cos", "sin"}  # swapped: a fault, not another name
        what = (by_name or by_value) if named_first else (by_value or by_name)
        if what := what or (_kind_by_shape(tensor.values) if lone else ""):
            buffers.append(Buffer(tensor, what, transposed))
    return buffers


def is_stranger(tensor: StoredTensor) -> bool:
    """Return whether a list of numbers has a name that is not about RoPE."""
    return np.squeeze(tensor.values).ndim == 1 and not _ABOUT.search(tensor.name.lower())


def kind_by_name(name: str, shape: tuple[int, ...]) -> str:
    """Return the content of a buffer by its name, if the shape fits: (p,) or (n, p); else ""."""
    last = name.rpartition(".")[2].lower()
    kind = "inv_freq" if last.endswith("inv_freq") else _KINDS.get(last, "")
    return kind if sum(size != 1 for size in shape) in _AXES.get(kind, (2,)) else ""


def _kind_by_shape(values: NDArray[Any]) -> str:
    """Return the content of a buffer by its shape: frequencies on one axis, else cos and sin."""
    sizes, is_complex = np.squeeze(values).shape, np.iscomplexobj(values)
    if len(sizes) < 2:
        return "" if is_complex else "inv_freq"
    halves = is_complex or sizes[-1] % 2 == 0
    return "both" if halves and (len(sizes) == 2 or (len(sizes) == 3 and sizes[-1] == 2)) else ""


def grouped(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Yield the buffers of each table: cos with its sin, or a single buffer."""

    def likeness(cos: Buffer, sine: Buffer) -> float:
        (prefix, _, last), (beside, _, name) = (one.stored.name.rpartition(".") for one in (cos, sine))
        if (sine.stored.shape, beside) != (cos.stored.shape, prefix):
            return 0.0
        return 2.0 if name == last.replace("cos", "sin") else rope_values.partners(cos.values, sine.values)

    left = {id(buffer): buffer for buffer in buffers}
    for buffer in [buffer for buffer in buffers if buffer.what == "cos"]:
        likely = {key: likeness(buffer, other) for key, other in left.items() if other.what == "sin"}
        best = max(likely, key=likely.__getitem__, default=None)
        if best is not None and likely[best]:
            del left[id(buffer)]
            yield [buffer, left.pop(best)]
    yield from ([buffer] for buffer in left.values())


def dump_of(parts: Sequence[Buffer]) -> Dump | None:
    """Return the table of a group of buffers; None for cos or sin alone."""
    what, values, name = parts[0].what, parts[0].values, parts[0].stored.name
    called = _CALLED.get(what, "the cos/sin table")
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
