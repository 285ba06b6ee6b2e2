"""Whether RoPE buffers are right: cast, off, too short or never written; why, and what to do.

Numbers all of which a narrower format holds were cast. A guessed base says what values are, and
not what they should be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput
from ropeaudit.features.module.buffers import Buffer, dump_of, grouped
from ropeaudit.recognition import wording
from ropeaudit.recognition.check import check
from ropeaudit.recognition.diagnosis import Diagnosis, kinds
from ropeaudit.recognition.faults import BY_PAIR
from ropeaudit.recognition.stored_values import Guess, Lost, drifts, guessed, uninitialised
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.hf_config import ModelRope
from ropeaudit.rope.scaling import DEFAULT, Scaling, Served
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import digests
from ropeaudit.tensor_files.rope_values import Dump
from ropeaudit.tensor_files.tensors import StoredTensor

CASTS = ("bfloat16", "float16")
_WIDE = ("float32", "float64", "complex64", "complex128")
_POSITIONS = 4096  # that a remedy is written for
_Compared: TypeAlias = Mapping[str, Any]  # fields of `Buffer` that a table has


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of the frequencies, or None; options stand above the model.

    range: the key that says how far the model serves, with its value.
    """

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None
    range: str = ""

    def settings(self, pairs: int | None, layer: str | None = None) -> list[tuple[str, RopeSetting]]:
        """Return what is expected, by name: a setting per layer type, also for long sequences.

        pairs: those of a table, by default. layer: the one type that is meant.
        """
        if self.model is None:
            plain = [] if self.base is None else [self.plain(pairs, self.base)]
            return [(self.words(f"base {setting.base:.8g}"), setting) for setting in plain]
        expected: list[tuple[str, RopeSetting]] = []
        for kind, setting in self.model.layers.items():
            if layer not in (None, kind):
                continue
            name = self.model.name if len(self.model.layers) == 1 else f"{self.model.name}/{kind}"
            head_dim, base = self.head_dim or setting.head_dim, self.base or setting.base
            usual = head_dim if setting.rotary_dim == setting.head_dim else setting.rotary_dim
            rotary_dim = usual if self.rotary_dim is None else self.rotary_dim
            scaling = self.scaling or setting.scaling
            changed = replace(setting, head_dim=head_dim, rotary_dim=rotary_dim, base=base, scaling=scaling)
            labels = self.words(name), f"{self.words(name)} (long)"
            expected += zip(labels, changed.short_and_long() if changed.pairs else (), strict=False)
        return expected

    def layer_of(self, name: str) -> str | None:
        """Return the layer type that a tensor's name says, or the number of a layer in it."""
        kinds = self.model.layers if self.model else {}
        words = name.replace("rotary_emb_local", "sliding_attention")
        if named := next((kind for kind in kinds if kind in words), None):
            return named
        number = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        if self.model is None or number is None:
            return None
        return self.model.kinds_of_layers.get(number)

    def pairs(self) -> list[tuple[str, int]]:
        """Return how many pairs there should be, by what says so."""
        if self.model is not None:
            return [(label, setting.pairs) for label, setting in self.settings(None)]
        given = {"--rotary-dim": self.rotary_dim, "--head-dim": self.head_dim}
        return [(f"{flag} {dim}", dim // 2) for flag, dim in given.items() if dim is not None][:1]

    @property
    def positions(self) -> int | None:
        """The number of positions that the model serves; None where nothing says it."""
        if self.model is None:
            return None
        scalings = (setting.scaling for _, setting in self.settings(None))
        return Served.of(self.model.declared, scalings).positions

    def serves(self, setting: RopeSetting) -> int | None:
        """Return how many positions a table has to hold: fewer of one for short sequences."""
        scaling, most = setting.scaling, self.positions
        border = int((scaling.original if scaling.kind == "longrope" else scaling.maximum) or 0)
        short = scaling.depends_on_length and 0 < border >= setting.length
        return min(border, most) if short and most else most

    def words(self, begin: str) -> str:
        """Return what the options say, behind the name of a model or a base."""
        base = [f"base {self.base:.8g}"] if self.model is not None and self.base is not None else []
        scaling = self.scaling and self.scaling.kind
        given = {"scaling": scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        said = [f"{name} {value}" for name, value in given.items() if value is not None]
        return ", ".join([begin, *base, *said])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting of this base and the options, with `pairs` pairs by default."""
        asked = (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs, 128)
        rotary_dim = next(dims for dims in asked if dims is not None)
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)


@dataclass(frozen=True, slots=True)
class ModuleAudit(Result):
    """Where RoPE buffers are from, what they should be, and what was found.

    kind: gguf, dump (which is explained pair by pair), graph or checkpoint.
    found: the buffers before they are judged. tensors: how many there are in all.
    gguf: what its file says. unrotated: why there is no RoPE, if that is known.
    config: whether a config.json is in its folder. own_code: whether that names code of its own.
    lost: what a conversion to GGUF lost.
    """

    report_module: ClassVar[str] = "ropeaudit.features.module.report"
    spec: str
    kind: str
    found: Sequence[Buffer]
    tensors: int
    expected: Expected
    notes: list[str]
    gguf: GgufRope | None = None
    unrotated: str = ""
    config: bool = False
    own_code: bool = False
    buffers: Sequence[Buffer] = ()
    lost: Sequence[Lost] = ()

    @property
    def explicit(self) -> bool:
        """Whether anything says what its frequencies should be."""
        return self.expected.model is not None or self.expected.base is not None

    @property
    def noun(self) -> str:
        """What its tensors are called."""
        return {"gguf": "setting", "dump": "table", "graph": "constant"}.get(self.kind, "buffer")

    @property
    def wrong(self) -> bool:
        """Whether any buffer is wrong, or anything was lost."""
        return bool(self.lost) or any(one.wrong for one in self.buffers)

    @property
    def judged(self) -> bool:
        """Whether all was judged that there is to judge, which may be nothing."""
        if self.wrong or self.unrotated:
            return True
        if self.kind == "gguf" and not self.explicit:
            return False
        some = bool(self.buffers) or self.kind == "checkpoint"
        return some and all(one.judged for one in self.buffers)


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
    if misfit and audit.kind != "gguf" and not any(_of_other_dims(one, expected) for one in tables):
        first, (label, pairs) = groups[0][0].stored, expected.pairs()[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        raise BadInput(
            f"{audit.spec!r}: {first.name} has shape {shape} and {label} has {pairs} pairs; "
            "give what belongs to these tensors with --config, --model, --head-dim or --rotary-dim"
        )
    compared: dict[tuple[object, ...], _Compared] = {}  # layers share their tables
    for parts, dump in zip(groups, dumps, strict=True):
        found = dict[str, Any]()
        if dump is not None:
            layer = expected.layer_of(dump.spec)
            key = digests.of_arrays(dump.arrays.values()), layer
            if key not in compared:
                compared[key] = _compared(dump, expected, misfit, layer)
            found |= compared[key]
        yield from (_judged(buffer, len(parts) == 1, found) for buffer in parts)


def _compared(dump: Dump, expected: Expected, misfit: bool, layer: str | None) -> _Compared:
    """Return how a table compares with the setting that fits best, else with a guess, else nothing.

    layer: the layer type that its name says, whose settings alone are tried.
    """
    found = _of_other_dims(dump, expected) if misfit else None
    if found is None:
        fitting = [one for one in expected.settings(dump.pairs, layer) if dump.fits(one[1].pairs)]
        tried = [(check(dump, setting, label), label, setting) for label, setting in fitting]
        found = min(tried, key=lambda one: one[0].preference, default=None)
    chosen = found
    if found is None and (guess := guessed(dump, functools.partial(expected.plain, dump.pairs))):
        table, other, setting = guess
        words = [expected.words(f"base {setting.base:.8g}"), other]
        chosen = table, ", ".join(filter(None, words)), setting
    if chosen is None:
        return {}
    table, label, setting = chosen
    one = dict[str, Any](table=table, label=label, setting=setting, guessed=found is None)
    if found is not None:
        one |= {"serves": expected.serves(setting), "range": expected.range}
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
    values, table = buffer.values, compared.get("table")
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
    )
    agrees, diagnosis, said = _explained(one)
    if one.ends:
        ended = Diagnosis("table-ends", {"last": (one.rows or 1) - 1})
        if diagnosis is not None:
            ended = replace(diagnosis, also=(*diagnosis.also, ended))
        diagnosis, known = ended, f"{said[:-1]}; " if agrees is False else ""
        agrees, said = False, f"{known}{rows_in_words(one)}."
    one = replace(one, agrees=agrees, finding=said)
    return replace(one, diagnosis=diagnosis) if one.wrong else one


def _explained(one: Buffer) -> tuple[bool | None, Diagnosis | None, str]:
    """Return whether it is what is expected, what explains its values, and a sentence."""
    table = one.table
    cast = None if one.cast == "none" else Diagnosis("buffer-cast", {"format": one.cast})
    if one.nonfinite:
        said = f"{one.nonfinite} of {one.stored.values.size} values are nan or infinite."
        return False, Diagnosis("nonfinite"), said
    if one.what not in ("angles", "periods") and (left := uninitialised(one.values)):
        sizes = np.abs(one.values)
        seen = f"{one.values.size} values of size {sizes.min():.2g} to {sizes.max():.2g}"
        return False, left, f"{seen}, which no model has."
    if one.transposed:
        beside = None if table is None or one.spared else table.diagnosis_of(one.what)
        also = () if beside is None else (beside,)
        found = Diagnosis("axes-order", {"order": ("pairs", "positions")}, also=also)
        said = f"{wording.sentence(found)}: it has columns where its positions should be rows."
        return False, found, said
    if table is None:
        why = "its partner of cos and sin is missing" if one.lone else "no base explains its values"
        shown = f"all its values are {one.cast} numbers" if cast else "its values show no cast"
        return None, cast, f"{why}, so that it was compared with nothing; {shown}."
    if one.spared or table.agrees:
        said = "its values agree within float32 rounding, and those of its partner do not."
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


def rows_in_words(one: Buffer) -> str:
    """Return how many positions a table holds, and how many it has to hold."""
    last, serves = (one.rows or 1) - 1, one.serves or 0
    who, key = ("the config", f" ({one.range})") if one.range else (one.label, "")
    return f"its {last + 1:,} rows end at position {last:,}, and {who} serves {serves:,} positions{key}"


def remedy(one: Buffer, audit: ModuleAudit) -> str:
    """Return what to do about a wrong buffer; empty where nothing is known.

    Source: transformers 5.23.0, modeling_utils.py, _adjust_missing_and_unexpected_keys (read).
    """
    told = [f"write it with {one.serves:,} rows, or serve {one.rows:,} positions"] if one.ends else []
    parts = [] if one.diagnosis is None else list(one.diagnosis.parts())
    parts = [part for part in parts if part.code != "table-ends"]
    known = [kinds()[part.code].group == "setting" and part.certainty != "resembles" for part in parts]
    asked = audit.expected.base is not None or audit.expected.scaling is not None
    by_config = audit.kind == "checkpoint" and audit.config and not asked
    if by_config and known and all(known) and not one.guessed and one.cast == "none":
        builds = "code that computes the values from config.json does not use it"
        if one.stored.name.endswith("rotary_emb.inv_freq"):
            builds = "transformers computes inv_freq from config.json and drops stored ones"
        told.append(
            f"either config.json or the stored tensor is wrong: {builds}, and code that loads the tensor "
            "rotates by it"
        )
    elif parts and one.diagnosis is not None:
        whole = replace(one.diagnosis, also=tuple(parts[1:]))
        told.append(wording.remedy(whole, FP32, _POSITIONS))
    return "; ".join(filter(None, told))
