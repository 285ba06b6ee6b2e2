"""The judgement of RoPE buffers: cast, wrong, too short or uninitialised; diagnoses and remedies.

Values that are all numbers of a narrower format were cast. A guessed base explains values, and does not judge
them.
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
from ropeaudit.recognition.stored_values import Guess, Loss, best_guess, drifts, uninitialised
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
_TableFields: TypeAlias = Mapping[str, Any]  # fields of `Buffer` that a table has


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected frequencies, as far as options and a model give them; options overrule the model.

    range: key and value of the number of positions in the config.
    """

    model: ModelRope | None = None
    base: float | None = None
    scaling: Scaling | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None
    range: str = ""

    def settings(self, pairs: int | None, layer: str | None = None) -> list[tuple[str, RopeSetting]]:
        """Return the expected settings by name: for each layer type, for short and long sequences.

        pairs: default number of pairs. layer: the only layer type; None for all.
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
        """Return the layer type of a tensor by its name, or by the layer number in it."""
        kinds = self.model.layers if self.model else {}
        words = name.replace("rotary_emb_local", "sliding_attention")
        if named := next((kind for kind in kinds if kind in words), None):
            return named
        number = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        if self.model is None or number is None:
            return None
        return self.model.kinds_of_layers.get(number)

    def pairs(self) -> list[tuple[str, int]]:
        """Return the expected numbers of pairs, each with its source."""
        if self.model is not None:
            return [(label, setting.pairs) for label, setting in self.settings(None)]
        given = {"--rotary-dim": self.rotary_dim, "--head-dim": self.head_dim}
        return [(f"{flag} {dim}", dim // 2) for flag, dim in given.items() if dim is not None][:1]

    @property
    def positions(self) -> int | None:
        """The number of positions that the model serves; None if unknown."""
        if self.model is None:
            return None
        scalings = (setting.scaling for _, setting in self.settings(None))
        return Served.of(self.model.declared, scalings).positions

    def serves(self, setting: RopeSetting) -> int | None:
        """Return the number of positions that a table needs: fewer if it is for short sequences."""
        scaling, most = setting.scaling, self.positions
        border = int((scaling.original if scaling.kind == "longrope" else scaling.maximum) or 0)
        short = scaling.depends_on_length and 0 < border >= setting.length
        return min(border, most) if short and most else most

    def words(self, begin: str) -> str:
        """Return the options in words, after the name of a model or a base."""
        base = [f"base {self.base:.8g}"] if self.model is not None and self.base is not None else []
        scaling = self.scaling and self.scaling.kind
        given = {"scaling": scaling, "head_dim": self.head_dim, "rotary_dim": self.rotary_dim}
        said = [f"{name} {value}" for name, value in given.items() if value is not None]
        return ", ".join([begin, *base, *said])

    def plain(self, pairs: int | None, base: float) -> RopeSetting:
        """Return a setting with a base and the options; `pairs` is the default number of pairs."""
        asked = (self.rotary_dim, self.head_dim, None if pairs is None else 2 * pairs, 128)
        rotary_dim = next(dims for dims in asked if dims is not None)
        head_dim = rotary_dim if self.head_dim is None else self.head_dim
        return RopeSetting.of(head_dim, rotary_dim, base, scaling=self.scaling or DEFAULT)


@dataclass(frozen=True, slots=True)
class ModuleAudit(Result):
    """The RoPE buffers of a source, with the expected values and the judgement.

    kind: gguf, dump (explained pair by pair), graph or checkpoint.
    found: the buffers before the judgement. tensors: number of all tensors.
    gguf: metadata of a GGUF file. unrotated: why there is no RoPE, if so.
    config: whether its folder has a config.json. own_code: whether that names custom code.
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
    lost: Sequence[Loss] = ()

    @property
    def explicit(self) -> bool:
        """Whether a model or a base gives the expected frequencies."""
        return self.expected.model is not None or self.expected.base is not None

    @property
    def noun(self) -> str:
        """The noun for its tensors."""
        return {"gguf": "setting", "dump": "table", "graph": "constant"}.get(self.kind, "buffer")

    @property
    def wrong(self) -> bool:
        """Whether a buffer is wrong, or a setting was lost."""
        return bool(self.lost) or any(buffer.wrong for buffer in self.buffers)

    @property
    def judged(self) -> bool:
        """Whether every buffer was judged; there may be none."""
        if self.wrong or self.unrotated:
            return True
        if self.kind == "gguf" and not self.explicit:
            return False
        some = bool(self.buffers) or self.kind == "checkpoint"
        return some and all(buffer.judged for buffer in self.buffers)


def judge_buffers(audit: ModuleAudit) -> Iterator[Buffer]:
    """Judge the buffers of an audit. Raises: BadInput if none fits the expected number of pairs."""
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
    if misfit and audit.kind != "gguf" and not any(_table_of_other_dims(one, expected) for one in tables):
        first, (label, pairs) = groups[0][0].stored, expected.pairs()[0]
        shape = "x".join(map(str, first.shape)) or "scalar"
        raise BadInput(
            f"{audit.spec!r}: {first.name} has shape {shape} and {label} has {pairs} pairs; "
            "give what belongs to these tensors with --config, --model, --head-dim or --rotary-dim"
        )
    compared: dict[tuple[object, ...], _TableFields] = {}  # layers share their tables
    for parts, dump in zip(groups, dumps, strict=True):
        found = dict[str, Any]()
        if dump is not None:
            layer = expected.layer_of(dump.spec)
            key = digests.of_arrays(dump.arrays.values()), layer
            if key not in compared:
                compared[key] = _compare_table(dump, expected, misfit, layer)
            found |= compared[key]
        yield from (_judge_buffer(buffer, len(parts) == 1, found) for buffer in parts)


def _compare_table(dump: Dump, expected: Expected, misfit: bool, layer: str | None) -> _TableFields:
    """Compare a table with the expected setting that fits best, else with a guess.

    layer: the layer type by its name; only its settings are tried.
    """
    found = _table_of_other_dims(dump, expected) if misfit else None
    if found is None:
        fitting = [one for one in expected.settings(dump.pairs, layer) if dump.fits(one[1].pairs)]
        tried = [(check(dump, setting, label), label, setting) for label, setting in fitting]
        found = min(tried, key=lambda one: one[0].preference, default=None)
    chosen = found
    if found is None and (guess := best_guess(dump, functools.partial(expected.plain, dump.pairs))):
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


def _table_of_other_dims(dump: Dump, expected: Expected) -> Guess | None:
    """Compare a table with settings of another rotary_dim, where only part of a head rotates."""
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


def _judge_buffer(buffer: Buffer, alone: bool, compared: _TableFields) -> Buffer:
    values, table = buffer.values, compared.get("table")
    spared = not alone and table is not None and table.side not in ("", buffer.what)
    cast, how = _cast_format(buffer.stored, spared or (table is not None and table.agrees))
    if spared:
        compared = {**compared, "error": None, "drift_near": None, "drift_far": None}
    judged = replace(
        buffer,
        **compared,
        cast=cast,
        how=how,
        nonfinite=values.size - int(np.count_nonzero(np.isfinite(values))),
        lone=alone and buffer.what in ("cos", "sin"),
        spared=spared,
    )
    agrees, diagnosis, said = _explain_values(judged)
    if judged.ends:
        ended = Diagnosis("table-ends", {"last": (judged.rows or 1) - 1})
        if diagnosis is not None:
            ended = replace(diagnosis, also=(*diagnosis.also, ended))
        diagnosis, known = ended, f"{said[:-1]}; " if agrees is False else ""
        agrees, said = False, f"{known}{rows_in_words(judged)}."
    judged = replace(judged, agrees=agrees, finding=said)
    return replace(judged, diagnosis=diagnosis) if judged.wrong else judged


def _explain_values(buffer: Buffer) -> tuple[bool | None, Diagnosis | None, str]:
    """Return whether a buffer has the expected values, the diagnosis, and a sentence."""
    table = buffer.table
    cast = None if buffer.cast == "none" else Diagnosis("buffer-cast", {"format": buffer.cast})
    if buffer.nonfinite:
        said = f"{buffer.nonfinite} of {buffer.stored.values.size} values are nan or infinite."
        return False, Diagnosis("nonfinite"), said
    if buffer.what not in ("angles", "periods") and (left := uninitialised(buffer.values)):
        sizes = np.abs(buffer.values)
        seen = f"{buffer.values.size} values of size {sizes.min():.2g} to {sizes.max():.2g}"
        return False, left, f"{seen}, which no model has."
    if buffer.transposed:
        beside = None if table is None or buffer.spared else table.diagnosis_of(buffer.what)
        also = () if beside is None else (beside,)
        found = Diagnosis("axes-order", {"order": ("pairs", "positions")}, also=also)
        said = f"{wording.sentence(found)}: it has columns where its positions should be rows."
        return False, found, said
    if table is None:
        why = "its partner of cos and sin is missing" if buffer.lone else "no base explains its values"
        shown = f"all its values are {buffer.cast} numbers" if cast else "its values show no cast"
        return None, cast, f"{why}, so that it was compared with nothing; {shown}."
    if buffer.spared or table.agrees:
        said = "its values agree within float32 rounding, and those of its partner do not."
        return None if buffer.guessed else True, cast, said if buffer.spared else wording.of_table(table)
    if buffer.guessed and table.best and table.best.another_setting:
        return None, cast, f"{table.name} is that of {buffer.label}."
    own, said = table.diagnosis_of(buffer.what), wording.of_table(table)
    if own is not table.diagnosis:  # the rest is in its partner
        said = f"{wording.sentence(own)}."
    return False, own or cast, said


def _cast_format(tensor: StoredTensor, agrees: bool) -> tuple[str, str]:
    """Return the format of a cast, and the evidence, or None."""
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


def rows_in_words(buffer: Buffer) -> str:
    """Return a clause about the positions that a table holds, and those that it needs."""
    last, serves = (buffer.rows or 1) - 1, buffer.serves or 0
    who, key = ("the config", f" ({buffer.range})") if buffer.range else (buffer.label, "")
    return f"its {last + 1:,} rows end at position {last:,}, and {who} serves {serves:,} positions{key}"


def remedy(buffer: Buffer, audit: ModuleAudit) -> str:
    """Return the remedy for a wrong buffer; empty if unknown.

    Source: transformers 5.23.0, modeling_utils.py, _adjust_missing_and_unexpected_keys (read).
    """
    told = (
        [f"write it with {buffer.serves:,} rows, or serve {buffer.rows:,} positions"] if buffer.ends else []
    )
    parts = [] if buffer.diagnosis is None else list(buffer.diagnosis.parts())
    parts = [part for part in parts if part.code != "table-ends"]
    known = [kinds()[part.code].group == "setting" and part.certainty != "resembles" for part in parts]
    asked = audit.expected.base is not None or audit.expected.scaling is not None
    by_config = audit.kind == "checkpoint" and audit.config and not asked
    if by_config and known and all(known) and not buffer.guessed and buffer.cast == "none":
        builds = "code that computes the values from config.json does not use it"
        if buffer.stored.name.endswith("rotary_emb.inv_freq"):
            builds = "transformers computes inv_freq from config.json and drops stored ones"
        told.append(
            f"either config.json or the stored tensor is wrong: {builds}, and code that loads the tensor "
            "rotates by it"
        )
    elif parts and buffer.diagnosis is not None:
        whole = replace(buffer.diagnosis, also=tuple(parts[1:]))
        told.append(wording.remedy(whole, FP32, _POSITIONS))
    return "; ".join(filter(None, told))
