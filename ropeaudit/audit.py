"""Cases in, records out: the only place that joins settings, inputs, subjects and measurement."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit import circumstances, inputs, masks, measure, recipes, records
from ropeaudit.errors import BadShape, UnknownName, UsageError
from ropeaudit.formats import parse
from ropeaudit.inputs import Inputs
from ropeaudit.masks import Mask
from ropeaudit.measure import Measured, Plan
from ropeaudit.recipes import Resolved
from ropeaudit.records import Record
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    import pandas as pd

DTYPES = ("float64", "float32", "float16", "bfloat16")
LIMIT = 2**53  # positions are exact in float64 below it


@dataclass(frozen=True, slots=True)
class Case:
    """Everything of an audit but the subjects and the offsets; None means the usual default.

    heads, kv_heads, seq_len, head_dim and seed are those of synthetic q and k; a captured file brings its
    own. rotary_dim defaults to head_dim, scale to 1/sqrt(head_dim), kv_heads to heads.
    """

    qk: str = "gaussian"
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    head_dim: int | None = None
    seed: int | None = None
    rotary_dim: int | None = None
    base: float = 10000.0
    layout: Layout = "half"
    scale: float | None = None
    mask: Mask = "causal"

    def load(self) -> tuple[Inputs, RopeSetting]:
        """Return q and k and the RoPE setting. Raises: BadInput, BadShape, UnknownName, UsageError."""
        if self.mask not in masks.MASKS:
            raise UnknownName("mask", self.mask, masks.MASKS)
        if not inputs.is_file(self.qk):
            return self._synthetic()
        for name in ("heads", "kv_heads", "seq_len", "head_dim", "seed"):
            if getattr(self, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} is given by the file {self.qk!r}; leave it out")
        loaded = inputs.from_file(self.qk)
        return loaded, self._setting(loaded.q.shape[2])

    def _synthetic(self) -> tuple[Inputs, RopeSetting]:
        heads = _positive("heads", 8 if self.heads is None else self.heads)
        kv_heads = _positive("kv_heads", heads if self.kv_heads is None else self.kv_heads)
        seq_len = _positive("seq_len", 256 if self.seq_len is None else self.seq_len)
        setting = self._setting(128 if self.head_dim is None else self.head_dim)
        if heads % kv_heads:
            raise BadShape(f"--kv-heads {kv_heads} does not divide --heads {heads}; give one of its divisors")
        _fits(measure.bytes_needed(setting, heads, kv_heads, seq_len))
        seed = 0 if self.seed is None else self.seed
        if seed < 0:
            raise UsageError(f"--seed {seed} is negative; try --seed 0")
        made = inputs.make(self.qk, heads, kv_heads, seq_len, setting.head_dim, seed)
        return made, setting

    def _setting(self, head_dim: int) -> RopeSetting:
        return RopeSetting.of(head_dim, self.rotary_dim, self.base, self.layout, self.scale)


@dataclass(frozen=True, slots=True)
class Audit:
    """Cases x recipes x dtypes x offsets, checked and ready to run."""

    cases: Sequence[Case] = (Case(),)
    recipes: Sequence[str] = ("uniform",)
    dtypes: Sequence[str] = DTYPES
    offsets: Sequence[int] = (0, 1000)
    changes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for offset in self.offsets:
            if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
                raise UsageError(f"offset {offset!r} is not a whole number of tokens")
            if abs(offset) >= LIMIT:
                raise UsageError(f"offset {offset} is past 2^53 - 1 = {LIMIT - 1}, the largest allowed")
        for name in ("cases", "recipes", "dtypes", "offsets"):
            if not getattr(self, name):
                raise UsageError(f"there are no {name} to audit")
        self.resolved()

    def resolved(self) -> list[Resolved]:
        """Return every recipe in every dtype, in the order of the rows, each once."""
        chosen = [recipes.load(name).changed(self.changes) for name in dict.fromkeys(self.recipes)]
        formats = list(dict.fromkeys(parse(name) for name in self.dtypes))
        return [recipe.resolve(fmt) for recipe in chosen for fmt in formats]

    def stages(self) -> dict[str, dict[str, str]]:
        """Return "subject dtype" -> stage -> format: what was audited, for the circumstances."""
        return {f"{r.recipe.name} {r.dtype}": r.stages() for r in self.resolved()}

    def run(
        self, threads: int | None = None, progress: Callable[[float], None] | None = None
    ) -> Iterator[Record]:
        """Yield the records: case by case, recipe by recipe, dtype by dtype, offset by offset.

        progress is called with the share that is done, from 0 to 1.
        """
        offsets = list(dict.fromkeys(int(offset) for offset in self.offsets))
        for number, case in enumerate(self.cases):
            loaded, setting = case.load()
            _positions_fit(offsets, loaded.q.shape[1])
            subjects = [Emulated(recipe, setting) for recipe in self.resolved()]
            start, count = number, len(self.cases)

            def part(share: float, start: int = start, count: int = count) -> None:
                if progress:
                    progress((start + share) / count)

            yield from _run_case(case, loaded, setting, subjects, offsets, threads, part)


def shift(
    offsets: int | Iterable[int] = (0, 1000),
    dtypes: str | Iterable[str] = DTYPES,
    recipe: str | Iterable[str] = "uniform",
    *,
    changes: Mapping[str, str] | None = None,
    threads: int | None = None,
    **case: Any,
) -> Iterator[Record]:
    """Audit the scores of q and k when `offsets` are added to every position.

    Yields one Record per recipe, dtype and offset, in that order; floats are in score units
    (scaled, before softmax).

    offsets: tokens; negative ones are allowed. dtypes, recipe: names, or a path to a recipe file.
    changes: stage -> format, such as {"angle": "fp64"}. threads: all processors by default.
    case: the fields of `Case`: qk, heads, kv_heads, seq_len, head_dim, seed, rotary_dim, base, layout,
    scale, mask. Shapes of q and k: (heads, seq_len, head_dim), (kv_heads, seq_len, head_dim).
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated: children of RopeAuditError.
    Source: RoFormer, arXiv 2104.09864: exact scores depend on the distance of two tokens alone.

    >>> [record.distinct_positions for record in shift(1000, "bf16")]
    [36]
    """
    audit = Audit(
        cases=(Case(**case),),
        recipes=(recipe,) if isinstance(recipe, str) else tuple(recipe),
        dtypes=(dtypes,) if isinstance(dtypes, str) else tuple(dtypes),
        offsets=(offsets,) if isinstance(offsets, int) else tuple(offsets),
        changes=changes or {},
    )
    return audit.run(threads)


def to_frame(found: Iterable[Record]) -> pd.DataFrame:
    """Return records as a pandas DataFrame, one row each, columns as in `records.COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([record.as_dict() for record in found], columns=list(records.COLUMNS))


def _run_case(
    case: Case,
    loaded: Inputs,
    setting: RopeSetting,
    subjects: Sequence[Subject],
    offsets: Sequence[int],
    threads: int | None,
    progress: Callable[[float], None],
) -> Iterator[Record]:
    """Measure as many cells at once as the cache holds, and yield their records."""
    room = measure.cells_at_once(setting, loaded.q.shape[1])
    cells = [(subject, offset) for subject in subjects for offset in offsets]
    starts = range(0, len(cells), max(1, room - 1))
    for number, start in enumerate(starts):
        batch: dict[int, list[int]] = {}
        for subject, offset in cells[start : start + max(1, room - 1)]:
            batch.setdefault(id(subject), []).append(offset)
        chosen = [subject for subject in subjects if id(subject) in batch]
        wanted = [batch[id(subject)] for subject in chosen]
        measured_at = [[0, *(offset for offset in some if offset)] for some in wanted]
        plan = Plan(chosen, measured_at, loaded, setting, case.mask)
        found = measure.measure(
            plan,
            threads or circumstances.threads(),
            lambda share, n=number: progress((n + share) / len(starts)),  # type: ignore[misc]
        )
        for index, subject in enumerate(chosen):
            for offset in wanted[index]:
                floor = found[index, 0]
                yield _record(case, loaded, setting, subject, offset, found[index, offset], floor)


def _record(
    case: Case,
    loaded: Inputs,
    setting: RopeSetting,
    subject: Subject,
    offset: int,
    measured: Measured,
    floor: Measured,
) -> Record:
    heads, seq_len, _ = loaded.q.shape
    drift, truth = measured.drift, measured.truth
    head, query, key = drift.place if drift.place and not drift.nonfinite else (None, None, None)
    judged = {
        "nonfinite": drift.nonfinite,
        "drift_max": drift.max,
        "drift_rms": drift.rms,
        "floor_rms": floor.drift.rms,
        "reference_rms": truth.rms,
        "reference_error": measured.error,
    }
    return Record(
        schema=records.SCHEMA,
        subject=subject.name,
        dtype=subject.dtype.name,
        offset=offset,
        backend=subject.backend,
        device=subject.device,
        layout=setting.layout,
        head_dim=setting.head_dim,
        rotary_dim=setting.rotary_dim,
        base=setting.base,
        scale=setting.scale,
        seq_len=seq_len,
        heads=heads,
        kv_heads=loaded.k.shape[0],
        mask=case.mask,
        source=loaded.source,
        seed=loaded.seed,
        scores=drift.count,
        distinct_positions=subject.distinct_positions(np.arange(seq_len, dtype=np.int64) + offset),
        drift_mean_abs=drift.mean_abs,
        drift_bias=drift.mean,
        drift_relative=records.ratio(drift.rms, truth.rms),
        self_drift_max=measured.own.max,
        self_drift_rms=measured.own.rms,
        worst_head=head,
        worst_query=query,
        worst_key=key,
        verdict=records.judge(**judged),  # type: ignore[arg-type]
        **judged,  # type: ignore[arg-type]
    )


def _positive(name: str, value: int) -> int:
    if value < 1:
        flag = "--" + name.replace("_", "-")
        raise BadShape(f"{flag} {value} is not a whole number from 1 up")
    return value


def _positions_fit(offsets: Iterable[int], seq_len: int) -> None:
    for offset in offsets:
        if abs(offset) + seq_len > LIMIT:
            raise UsageError(f"offset {offset} takes some of {seq_len} positions past 2^53")


def _fits(needed: int) -> None:
    """Raise BadShape unless about `needed` bytes of memory are free."""
    free = _free_bytes()
    if needed > free:
        raise BadShape(
            f"this needs about {needed / 2**30:,.1f} GiB of memory and {free / 2**30:,.1f} GiB are "
            "free; give a smaller --seq-len, --heads or --head-dim"
        )


def _free_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            table = dict(line.split(":", 1) for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # Windows has no sysconf
        return 2**36
