"""Cases in, records out: the only place that joins settings, inputs, subjects and measurement."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit import bounds, circumstances, inputs, measure, plan, recipes, records, reference, sampled
from ropeaudit.bounds import Bound
from ropeaudit.cases import LIMIT, Case, fits, positions_fit
from ropeaudit.drawn import Drawn
from ropeaudit.errors import UsageError
from ropeaudit.formats import Format, parse
from ropeaudit.inputs import Inputs
from ropeaudit.metrics import Spread
from ropeaudit.plan import AttentionOptions, Measured, Plan
from ropeaudit.recipes import Resolved
from ropeaudit.records import Record
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.exact import Exact

if TYPE_CHECKING:
    import pandas as pd

    from ropeaudit.attention import Attention

_POSITIONS = 2**20  # looked at together
_DRAWING = 0.3  # share of the progress that drawing a sample counts for
DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Audit:
    """Cases x recipes x dtypes x offsets, checked and ready to run."""

    cases: Sequence[Case] = (Case(),)
    recipes: Sequence[str] = ("uniform",)
    dtypes: Sequence[str] = DTYPES
    offsets: Sequence[int] = (0, 1000)
    changes: Mapping[str, str] = field(default_factory=dict)
    attention: AttentionOptions | None = None

    def __post_init__(self) -> None:
        for offset in self.offsets:
            if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
                raise UsageError(f"offset {offset!r} is not a whole number of tokens")
            if abs(offset) >= LIMIT:
                raise UsageError(f"offset {offset} is past 2^53 - 1 = {LIMIT - 1}, the largest allowed")
        for name in ("cases", "recipes", "dtypes", "offsets"):
            if not getattr(self, name):
                raise UsageError(f"there are no {name} to audit")
        if "softmax" in self.changes and (self.attention is None or self.attention.softmax != "recipe"):
            raise UsageError("a changed softmax stage is not used; add --attention --softmax recipe")
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
        if self.attention and any(case.sample is not None for case in self.cases):
            raise UsageError("--attention looks at whole rows; leave out --sample")
        anchors = [self.attention.anchor] if self.attention else []
        fits(max(case.check([*offsets, *anchors]) for case in self.cases))
        for number, case in enumerate(self.cases):
            first = _DRAWING if case.sample is not None else 0.0  # its share of the case

            def part(share: float, start: float = number + first, size: float = 1 - first) -> None:
                if progress:
                    progress((start + size * share) / len(self.cases))

            def drawing(share: float, start: int = number) -> None:
                part(share, start, _DRAWING)

            loaded, setting = case.load() if case.sample is None else case.draw(drawing)
            positions_fit([*offsets, *anchors], loaded.seq_len)
            resolved, workers = self.resolved(), threads or circumstances.threads()
            run = CaseRun(case, loaded, setting, resolved, self.attention, workers, part)
            yield from run.records(offsets)


def shift(
    offsets: int | Iterable[int] = (0, 1000),
    dtypes: str | Iterable[str] = DTYPES,
    recipe: str | Iterable[str] = "uniform",
    *,
    changes: Mapping[str, str] | None = None,
    threads: int | None = None,
    attention: bool = False,
    softmax: str | None = None,
    anchor: int | None = None,
    **case: Any,
) -> Iterator[Record]:
    """Audit the scores of q and k when `offsets` are added to every position.

    Yields one Record per recipe, dtype and offset, in that order; floats are in score units
    (scaled, before softmax).

    offsets: tokens; negative ones are allowed. dtypes, recipe: names, or a path to a recipe file.
    changes: stage -> format, such as {"angle": "fp64"}. threads: all processors by default.
    attention: measure the rows after softmax too. softmax: "fp64", or "recipe" for the recipe's own
    arithmetic. anchor: the offset that `attention_d` compares with, 16 by default.
    case: the fields of `Case`: qk, heads, kv_heads, seq_len, head_dim, seed, rotary_dim, base, layout,
    scale, mask, model, config, layer, scaling, clip, mrope, axis, length, sample.
    Shapes of q and k: (heads, seq_len, head_dim), (kv_heads, seq_len, head_dim).
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated: children of RopeAuditError.
    Source: RoFormer, arXiv 2104.09864: exact scores depend on the distance of two tokens alone.

    >>> [record.distinct_positions for record in shift(1000, "bf16")]
    [36]
    """
    audit = Audit(
        cases=(Case(**case),),
        recipes=(recipe,) if isinstance(recipe, str) else tuple(recipe),
        dtypes=(dtypes,) if isinstance(dtypes, str) else tuple(dtypes),
        offsets=(offsets,) if isinstance(offsets, (int, np.integer)) else tuple(offsets),
        changes=changes or {},
        attention=AttentionOptions.asked(attention, softmax, anchor),
    )
    return audit.run(threads)


def to_frame(found: Iterable[Record]) -> pd.DataFrame:
    """Return records as a pandas DataFrame, one row each, columns as in `records.COLUMNS`.

    What is undefined is nan, as in CSV.
    """
    import pandas as pd

    rows = [record.as_dict().items() for record in found]
    defined = [{name: math.nan if value is None else value for name, value in row} for row in rows]
    return pd.DataFrame(defined, columns=list(records.COLUMNS))


@dataclass(frozen=True, slots=True)
class _Found:
    """What was measured of one subject at one offset, and under which setting."""

    subject: Subject
    offset: int
    setting: RopeSetting
    measured: Measured
    floor: Measured
    structural: Spread
    bound: Bound | None
    attention: Attention | None


class CaseRun:
    """One case: its offsets by the setting that holds at them, its subjects in batches that fit the cache."""

    def __init__(
        self,
        case: Case,
        loaded: Inputs | Drawn,
        setting: RopeSetting,
        resolved: Sequence[Resolved],
        asked: AttentionOptions | None,
        threads: int,
        progress: Callable[[float], None],
    ) -> None:
        self.case, self.loaded, self.setting, self.resolved = case, loaded, setting, resolved
        self.asked, self.threads, self.progress = asked, threads, progress
        self.axes = case.position_axes(setting)
        self.structural: dict[tuple[RopeSetting, int, Format], Spread] = {}

    def records(self, offsets: Sequence[int]) -> Iterator[Record]:
        """Yield the records, subject by subject, offset by offset."""
        groups: dict[tuple[RopeSetting, int], list[int]] = {}
        for offset in offsets:
            at = self.case.setting_at(self.setting, self.loaded.seq_len, offset)
            groups.setdefault((at, offset if at.clipped else 0), []).append(offset)
        runs = [self._group(at, origin, some) for (at, origin), some in groups.items()]
        if len(runs) == 1:
            yield from (_record(self.case, self.loaded, found) for found in runs[0])
            return
        kept = {(f.subject.name, f.subject.dtype, f.offset): f for run in runs for f in run}
        for recipe in self.resolved:
            for offset in offsets:
                yield _record(self.case, self.loaded, kept[recipe.recipe.name, recipe.dtype, offset])

    def _group(self, at: RopeSetting, origin: int, offsets: Sequence[int]) -> Iterator[_Found]:
        """Measure all subjects at the offsets that share a setting and an origin of the reference."""
        subjects = [Emulated(recipe, at, self.axes) for recipe in self.resolved]
        cells = [(index, offset) for index in range(len(subjects)) for offset in offsets]
        whole = isinstance(self.loaded, Inputs)  # a sample is turned block by block and fits always
        room = max(1, plan.cells_at_once(at, self.loaded.seq_len) - 1) if whole else len(cells)
        starts = range(0, len(cells), room)
        for number, start in enumerate(starts):
            batch = cells[start : start + room]
            chosen = list(dict.fromkeys(index for index, _ in batch))
            wanted = [[o for i, o in batch if i == index] for index in chosen]
            some = [subjects[index] for index in chosen]
            passes = 2 if self.asked else 1
            part = passes * number, passes * len(starts)
            found = self._measure(some, wanted, at, origin, part)
            floors = self._measure(some, [[0]] * len(some), at, 0) if origin else found
            pairs = [(subjects[index], offset) for index, offset in batch]
            limits: Iterator[Bound | None] = itertools.repeat(None)
            rows: dict[tuple[int, int], Attention] = {}
            if not isinstance(self.loaded, Drawn):
                limits = iter(bounds.bounds(pairs, self.loaded, self.case.mask, self.threads))
            if self.asked and not isinstance(self.loaded, Drawn):
                together = Plan(some, wanted, self.loaded, at, self.case.mask, origin)
                rows = self._attention(together, self.asked, [self.resolved[i] for i in chosen], part)
            for place, subject in enumerate(some):
                for offset in wanted[place]:
                    measured, floor = found[place, offset], floors[place, 0]
                    structural = self._structural(at, offset, subject.input)
                    softened = rows.get((place, offset))
                    limit = next(limits)
                    yield _Found(subject, offset, at, measured, floor, structural, limit, softened)

    def _measure(
        self,
        subjects: Sequence[Subject],
        offsets: Sequence[Sequence[int]],
        at: RopeSetting,
        origin: int,
        part: tuple[int, int] = (0, 0),
    ) -> dict[tuple[int, int], Measured]:
        """Measure each subject at its offsets, and at 0 before them. part: which of how many this is."""
        number, count = part
        measured_at = [[0, *(offset for offset in some if offset)] for some in offsets]

        def hear(share: float) -> None:
            if count:
                self.progress((number + share) / count)

        rest, loaded = (at, self.case.mask, origin), self.loaded
        if isinstance(loaded, Drawn):
            return sampled.measure(Plan(subjects, measured_at, loaded, *rest), self.threads, hear)
        return measure.measure(Plan(subjects, measured_at, loaded, *rest), self.threads, hear)

    def _attention(
        self,
        together: Plan[Inputs],
        asked: AttentionOptions,
        resolved: Sequence[Resolved],
        part: tuple[int, int],
    ) -> dict[tuple[int, int], Attention]:
        """Measure the rows after softmax, in a pass of its own behind that of the drift."""
        from ropeaudit import attention_pass  # in-function: most audits need neither
        from ropeaudit.attention import Rounding

        fits(attention_pass.bytes_needed(together.setting, together.seq_len, self.threads))
        own = asked.softmax == "recipe"
        roundings = [Rounding(recipe.softmax, recipe.output) if own else None for recipe in resolved]
        behind = inputs.BEHIND.get(self.loaded.source)
        number, count = part

        def hear(share: float) -> None:
            self.progress((number + 1 + share) / count)

        return attention_pass.measure(together, asked.anchor, behind, roundings, self.threads, hear)

    def _structural(self, at: RopeSetting, offset: int, input_format: Format) -> Spread:
        """Return what the shift does to exact scores; nothing, unless the setting depends on the position."""
        farthest = abs(offset) + self.loaded.seq_len
        clips = at.clipped and offset and farthest * reference.fastest(at) >= at.clip
        if at == self.setting and not clips:
            return Spread(count=1)
        key = at, offset if at.clipped else 0, input_format
        if key not in self.structural:
            found = self._measure([Exact(at, input_format)], [[key[1]]], self.setting, 0)
            self.structural[key] = found[0, key[1]].drift
        return self.structural[key]


def _record(case: Case, loaded: Inputs | Drawn, found: _Found) -> Record:
    subject, setting, measured, floor = found.subject, found.setting, found.measured, found.floor
    drift, truth = measured.drift, measured.truth
    head, query, key = drift.place if drift.place and not drift.nonfinite else (None, None, None)
    low, high = sampled.interval(drift)
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
        offset=found.offset,
        model=case.model_name,
        scaling=str(setting.scaling),
        clip=setting.clip if setting.clipped else None,
        length=setting.length if setting.scaling.depends_on_length else None,
        axes=str(axes) if (axes := case.position_axes(setting)) else "none",
        backend=subject.backend,
        device=subject.device,
        layout=setting.layout,
        head_dim=setting.head_dim,
        rotary_dim=setting.rotary_dim,
        base=setting.base,
        scale=setting.scale,
        seq_len=loaded.seq_len,
        heads=loaded.heads,
        kv_heads=loaded.kv_heads,
        mask=case.mask,
        source=loaded.source,
        seed=loaded.seed,
        sample=case.sample,
        scores=drift.count,
        distinct_positions=_distinct(subject, loaded.seq_len, found.offset),
        drift_mean_abs=drift.mean_abs,
        drift_rms_low=low,
        drift_rms_high=high,
        drift_bias=drift.mean,
        drift_relative=records.ratio(drift.rms, truth.rms),
        self_drift_max=measured.own.max,
        self_drift_rms=measured.own.rms,
        structural_max=found.structural.max,
        structural_rms=found.structural.rms,
        predicted_rms=found.bound.rms if found.bound else None,
        bound_max=found.bound.maximum + measured.error if found.bound else None,
        **(found.attention.columns() if found.attention else dict.fromkeys(records.ATTENTION)),
        worst_head=head,
        worst_query=query,
        worst_key=key,
        verdict=records.judge(**judged),  # type: ignore[arg-type]
        **judged,  # type: ignore[arg-type]
    )


def _distinct(subject: Subject, seq_len: int, offset: int) -> int:
    """Count the positions that stay different, a part at a time: parts share their last position."""
    count = 0
    for start in range(0, seq_len, _POSITIONS):
        part = np.arange(start, min(start + _POSITIONS + 1, seq_len), dtype=np.int64) + offset
        count += subject.distinct_positions(part)
        if part.size > _POSITIONS:
            count -= subject.distinct_positions(part[-1:])
    return count
