"""The measurement of one case: a record of each subject at each offset."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.audits import judging, records
from ropeaudit.audits.cases import Case, Outline, check_memory
from ropeaudit.audits.records import Record, case_digest, digest_at_offset
from ropeaudit.bounds import Bound
from ropeaudit.bounds.attainable import attainable_rms, careful, predicted_rms
from ropeaudit.engine import measure, plan
from ropeaudit.engine.plan import AttentionOptions, CellStatistics, Plan
from ropeaudit.engine.statistics import Statistics
from ropeaudit.errors import Ended, ForeignError, Late, UsageError, did
from ropeaudit.inputs import qk
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.reference import exact_scores
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing, threads
from ropeaudit.subjects import Raised, Subject, Uncalled, emulated
from ropeaudit.subjects.emulated import Emulated, OfRecipe, StoredKeys
from ropeaudit.subjects.exact_rotation import Exact
from ropeaudit.subjects.factories import SubjectFactory

if TYPE_CHECKING:
    from ropeaudit.engine.attention_pass import Attention
    from ropeaudit.recognition.verification import GivenVectors, Places
    from ropeaudit.subjects.calling.code import Called

QK: TypeAlias = Inputs | SampledInputs | Outline  # q and k, or what rows say of them

_SHORT = 128  # positions up to which threads do not speed up stepwise sums
_DRIFT_SHARE = 0.25  # share of the work where softmax and outputs are measured too
_MOST_POSITIONS = 2**20  # rounded at once


@dataclass(slots=True)
class CellResult:
    """The measurements of one subject at one offset, or why it was refused.

    origin: added to the positions of the reference. careful: predicted RMS drift of careful code at offset 0.
    """

    subject: Subject
    offset: int
    setting: RopeSetting
    origin: int
    measured: CellStatistics = field(default_factory=CellStatistics)
    floor: Statistics = field(default_factory=Statistics)
    structural: Statistics = field(default_factory=Statistics)
    careful: float = math.nan
    bound: Bound | None = None
    attention: Attention | None = None
    places: Places | None = None
    refused: str = ""


@dataclass
class CaseRun:
    """A case with its q and k, on which subjects are measured."""

    case: Case
    loaded: Inputs | SampledInputs
    setting: RopeSetting
    requested: AttentionOptions | None = None
    threads: int = 1
    tolerance: float = judging.TOLERANCE
    bounded: bool = True

    def __post_init__(self) -> None:
        self.axes = self.case.position_axes(self.setting)
        self.structural: dict[tuple[RopeSetting, int, Format], Statistics] = {}
        self.careful: dict[tuple[RopeSetting, Format], float] = {}
        self.identities: dict[tuple[Subject, RopeSetting], Callable[[int], dict[str, Any]]] = {}

    def records(self, wanted: Iterable[tuple[SubjectFactory, int]]) -> Iterator[Record]:
        """Yield a record for each factory and offset, measured by setting."""
        subjects = dict[tuple[int, RopeSetting, int], Subject]()
        cells, groups = list[CellResult](), dict[tuple[RopeSetting, int], list[CellResult]]()
        for factory, offset in wanted:
            at = self.case.setting_at(self.setting, self.loaded.seq_len, offset)
            origin = offset if at.clipped else 0
            key = id(factory), at, origin
            if key not in subjects:
                subjects[key] = self._make_subject(factory, at)
            cells.append(CellResult(subjects[key], offset, at, origin))
            groups.setdefault((at, origin), []).append(cells[-1])
        done = 0
        for group in groups.values():
            room = len(group)  # a sample rotates block by block
            if isinstance(self.loaded, Inputs):
                called = [code.bytes_together for one in group if (code := _as_code(one.subject))]
                largest = max(plan.cell_bytes(group[0].setting, self.loaded.seq_len), *called, 0)
                room = max(1, plan.CACHE_BYTES // largest - 1)
            for batch in (group[start : start + room] for start in range(0, len(group), room)):
                with doing.within(done / len(cells), (done + len(batch)) / len(cells)):
                    self._measure_batch(batch)
                done += len(batch)
                if len(groups) == 1:  # else the order of the cells differs
                    yield from map(self._record, batch)
        if len(groups) > 1:
            yield from map(self._record, cells)

    def _make_subject(self, factory: SubjectFactory, at: RopeSetting) -> Subject:
        subject, turns = factory.make(at, self.axes), self.case.turns
        if turns is not None and isinstance(subject, Emulated):
            return StoredKeys(subject.recipe, subject.setting, subject.axes, turns, self.loaded)
        if (code := _as_code(subject)) and isinstance(self.loaded, Inputs):
            code.together(self.loaded.q, self.loaded.k)
        return emulated.stored(subject, self.loaded)

    def _measure_batch(self, batch: Sequence[CellResult]) -> None:
        """Measure cells together; a subject whose code ends its process is refused."""
        for cell in batch:  # it must work at offset 0 too
            offsets = dict.fromkeys((0, cell.offset))
            reasons = (cell.subject.refusal(self.loaded.seq_len, offset) for offset in offsets)
            cell.refused = next(filter(None, reasons), "")
        while cells := [cell for cell in batch if not cell.refused]:
            try:
                self._measure_cells(cells)
                return
            except (Ended, Late) as error:
                ended = [cell for cell in cells if (code := _as_code(cell.subject)) and code.ended]
                if not ended:
                    raise UsageError(f"it {did(error)}") from None
                for cell in ended:
                    cell.refused = Raised(did(error))

    def _measure_cells(self, cells: Sequence[CellResult]) -> None:
        at, origin = cells[0].setting, cells[0].origin
        offsets: dict[Subject, list[int]] = {}
        for cell in cells:
            offsets.setdefault(cell.subject, []).append(cell.offset)
        with doing.within(0.0, _DRIFT_SHARE if self.requested else 1.0):
            measured = self._measure(offsets, at, origin)
        floors = measured
        if origin:
            with doing.silently():
                floors = self._measure({subject: [0] for subject in offsets}, at, 0)
        for cell in cells:
            cell.measured = measured[cell.subject, cell.offset]
            cell.floor = floors[cell.subject, 0].drift
        self._set_bounds(cells, at)
        if self.requested and isinstance(self.loaded, Inputs):
            from ropeaudit.engine import attention_pass  # in-function: seldom needed
            from ropeaudit.engine.attention_pass import Rounding, RowOptions

            subjects, thread_count = list(offsets), self._thread_count(_SHORT)
            check_memory(attention_pass.bytes_needed(at, self.loaded.seq_len, thread_count))
            own = self.requested.softmax == "recipe"
            roundings = [Rounding(one.softmax, one.output) if own else None for one in subjects]
            options = RowOptions(self.requested.anchor, qk.BEHIND.get(self.loaded.source), roundings)
            rows = Plan(subjects, list(offsets.values()), self.loaded, at, self.case.mask, origin)
            with doing.within(_DRIFT_SHARE, 1.0), _foreign_errors(subjects):
                attentions = attention_pass.measure(rows, options, thread_count)
            for cell in cells:
                cell.attention = attentions[subjects.index(cell.subject), cell.offset]
        for cell in cells:
            cell.structural = self._structural_change(at, cell.offset, cell.subject.input)
            cell.places = self._check_rotation(cell.subject, cell.offset)

    def _measure(
        self, offsets: Mapping[Subject, Sequence[int]], at: RopeSetting, origin: int
    ) -> dict[tuple[Subject, int], CellStatistics]:
        subjects, loaded = list(offsets), self.loaded
        measured_at = [[0, *(offset for offset in some if offset)] for some in offsets.values()]
        rest = at, self.case.mask, origin
        with _foreign_errors(subjects):
            if isinstance(loaded, SampledInputs):
                results = measure.measure_sampled(Plan(subjects, measured_at, loaded, *rest), self.threads)
            else:
                stepwise = any(one.accumulate.precision < FP32.precision for one in subjects)
                short = _SHORT if stepwise else threads.SHORT
                results = measure.measure(
                    Plan(subjects, measured_at, loaded, *rest), self._thread_count(short)
                )
        return {(subjects[index], offset): measured for (index, offset), measured in results.items()}

    def _thread_count(self, short: int) -> int:
        """Return how many threads speed up a case: they share strips of rows."""
        strips = self.loaded.heads * -(-self.loaded.seq_len // plan.TILE_ROWS)
        return threads.useful_threads(min(self.threads, strips), self.loaded.seq_len, short)

    def _set_bounds(self, cells: Sequence[CellResult], at: RopeSetting) -> None:
        """Set each cell's bound, and the drift of careful code."""
        bounded, wanted = list[CellResult](), list[tuple[Emulated, int]]()
        for cell in cells if self.bounded else ():
            subject = cell.subject  # there is no bound for k that is stored otherwise than q
            if isinstance(subject, OfRecipe) and not isinstance(subject, StoredKeys):
                bounded.append(cell)
                wanted.append((Emulated(subject.recipe, subject.setting, subject.axes), cell.offset))
        dtypes = dict.fromkeys(cell.subject.dtype for cell in cells)
        missing = [dtype for dtype in dtypes if (at, dtype) not in self.careful]
        wanted += [(Emulated(careful(dtype), at, self.axes), 0) for dtype in missing]
        if isinstance(self.loaded, Inputs):
            limits = bounds.bounds(wanted, self.loaded, self.case.mask, self._thread_count(threads.SHORT))
        else:
            predicted = [predicted_rms(subject, self.loaded, offset) for subject, offset in wanted]
            limits = [Bound(math.nan, rms) for rms in predicted]
        for cell, limit in zip(bounded, limits, strict=False):
            cell.bound = limit
        for dtype, limit in zip(missing, limits[len(bounded) :], strict=True):
            self.careful[at, dtype] = limit.rms
        for cell in cells:
            cell.careful = self.careful[at, cell.subject.dtype]

    def _structural_change(self, at: RopeSetting, offset: int, input_format: Format) -> Statistics:
        """Return the change of exact scores by the shift itself; in most settings none."""
        farthest = abs(offset) + self.loaded.seq_len
        clips = at.clipped and offset and farthest * exact_scores.fastest(at) >= at.clip
        if at == self.setting and not clips:
            return Statistics(count=1)
        key = at, offset if at.clipped else 0, input_format
        if key not in self.structural:
            exact = Exact(at, input_format)
            with doing.silently():
                measured = self._measure({exact: [key[1]]}, self.setting, 0)
            self.structural[key] = measured[exact, key[1]].drift
        return self.structural[key]

    @functools.cached_property
    def _vectors(self) -> GivenVectors:
        """The vectors to check the rotation: q and k, or random ones beside a sample."""
        from ropeaudit.recognition import verification

        loaded = self.loaded
        if isinstance(loaded, Inputs):
            every = np.arange(loaded.seq_len, dtype=np.int64)
            return verification.GivenVectors(loaded.q, loaded.k, every)
        at = np.concatenate([loaded.pairs.query, loaded.pairs.key])
        sizes = loaded.heads, loaded.kv_heads, self.setting.head_dim
        return verification.sampled(at, sizes, loaded.seq_len, loaded.seed)

    def _check_rotation(self, subject: Subject, offset: int) -> Places | None:
        """Check each pair that code rotates; None for a recipe, which is right by definition."""
        if (code := _as_code(subject)) is None:
            return None
        from ropeaudit.recognition import allowance, verification  # in-function: seldom needed

        with _foreign_errors([subject]):
            return verification.check(
                *(code.rotator(), code.setting, code.dtype, self._vectors, offset),
                warm=True,
                by_batch=code.by_batch(),
                new_rotator=code.rotator,
                rule=allowance.careful(code.narrowed),
            )

    def _identity(self, subject: Subject, at: RopeSetting) -> Callable[[int], dict[str, Any]]:
        if (subject, at) not in self.identities:
            given = self.case, self.loaded, at, subject, self.requested, self.tolerance
            self.identities[subject, at] = identity_columns(*given)
        return self.identities[subject, at]

    def _record(self, cell: CellResult) -> Record:
        subject, measured, why = cell.subject, cell.measured, cell.refused
        drift, reference, places = measured.drift, measured.reference, cell.places
        worst = drift.place if drift.place and not drift.nonfinite else (None, None, None)
        low, high = drift.interval()
        attainable = attainable_rms(cell.careful, subject.dtype, reference.rms)
        values: dict[str, Any] = records.COLUMNS.unset(records.COLUMNS) | {
            **self._identity(subject, cell.setting)(cell.offset),
            "scores": drift.count,
            "nonfinite": drift.nonfinite,
            "distinct_positions": 0 if why else _count_distinct_positions(cell, self.loaded.seq_len),
            "reference_rms": reference.rms,
            "reference_error": measured.error,
            "drift_max": drift.max,
            "drift_mean_abs": drift.mean_abs,
            "drift_rms": drift.rms,
            "drift_rms_low": low,
            "drift_rms_high": high,
            "drift_bias": drift.mean,
            "drift_relative": judging.ratio(drift.rms, reference.rms),
            "attainable_rms": math.nan if why else attainable,
            "excess": 0.0 if drift.rms == 0 else drift.rms / attainable if attainable else math.inf,
            "floor_rms": cell.floor.rms,
            "change_max": measured.self_drift.max,
            "change_rms": measured.self_drift.rms,
            "structural_max": cell.structural.max,
            "structural_rms": cell.structural.rms,
            **dict(zip(("worst_head", "worst_query", "worst_key"), worst, strict=True)),
            "verdict": "refused",
        }
        if why:
            kind = "uncalled" if isinstance(why, Uncalled) else "raises" if isinstance(why, Raised) else ""
            return Record(**values | {"refused": kind or "unsupported", "reason": str(why)})
        if isinstance(subject, StoredKeys):
            values["key_norm_growth"] = subject.norm_growth(cell.offset)
        if (bound := cell.bound) is not None:
            # predicted without overflow; a sample has no bound
            values["predicted_rms"] = bound.rms if bound.maximum != math.inf else math.nan
            values["bound_max"] = None if math.isnan(bound.maximum) else bound.maximum + measured.error
        if cell.attention:
            values |= cell.attention.columns()
        if places:
            from ropeaudit.recognition import diagnosis, wording  # in-function: seldom needed

            names = [name for name in records.COLUMNS.having("place") if name != "resembles"]
            values |= {name: getattr(places, name.removeprefix("rotation_")) for name in names}
            values["diagnosis"] = diagnosis.codes(places.diagnosis) or None
            values["resembles"] = wording.sentence(places.diagnosis) or None
        values["within_tolerance"] = judging.within(values, places is not None and not places.excess <= 1)
        values["verdict"] = judging.judge(values, places is not None and places.wrong_rotation)
        return Record(**values)


def _count_distinct_positions(cell: CellResult, seq_len: int) -> int:
    """Count the positions that stay distinct once rounded; on a grid, the tokens."""
    subject, offset, count = cell.subject, cell.offset, 0
    if isinstance(subject, Emulated) and cell.setting.grid is not None:
        return subject.distinct_tokens(seq_len, offset)
    for start in range(0, seq_len, _MOST_POSITIONS):
        part = np.arange(start, min(start + _MOST_POSITIONS + 1, seq_len), dtype=np.int64) + offset
        count += subject.distinct_positions(part)
        if part.size > _MOST_POSITIONS:
            count -= subject.distinct_positions(part[-1:])
    return count


def _as_code(subject: Subject) -> Called | None:
    """Return a subject that is code, None for others; without importing what calls code."""
    return None if isinstance(subject, (OfRecipe, Exact)) else cast("Called", subject)


@contextlib.contextmanager
def _foreign_errors(subjects: Sequence[Subject]) -> Iterator[None]:
    """Within the block, turn exceptions of foreign code into UsageError."""
    try:
        yield
    except (Ended, Late):
        if len(subjects) == 1 and (code := _as_code(subjects[0])):
            code.ended = True
        raise
    except ForeignError as error:
        names = ", ".join(dict.fromkeys(one.name for one in subjects if _as_code(one)))
        raise UsageError(f"{names}: a later call {did(error)}; the first calls did not") from None


def setting_columns(case: Case, sizes: QK, setting: RopeSetting) -> dict[str, Any]:
    """Return the columns of the setting, q and k."""
    axes = setting.grid or case.position_axes(setting)
    return {
        "model": _escaped(case.model_name),
        "scaling": str(setting.scaling),
        "clip": setting.clip if setting.clipped else None,
        "length": setting.length if setting.scaling.depends_on_length else None,
        "axes": str(axes) if axes else "none",
        "layout": setting.layout,
        "head_dim": setting.head_dim,
        "rotary_dim": setting.rotary_dim,
        "base": setting.base,
        "scale": setting.scale,
        "seq_len": sizes.seq_len,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "mask": case.mask,
        "source": _escaped(f"{sizes.source} {sizes.digest}".rstrip()),
        "seed": sizes.seed,
    }


def _escaped(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def identity_columns(
    case: Case,
    sizes: QK,
    setting: RopeSetting,
    subject: Subject,
    requested: AttentionOptions | None,
    tolerance: float,
) -> Callable[[int], dict[str, Any]]:
    """Return a function from offsets to the columns that identify a row."""
    values = records.COLUMNS.unset(records.IDENTITY) | {
        "schema": records.SCHEMA,
        "implementation": subject.name,
        "dtype": subject.dtype.name,
        "offset": 0,
        **setting_columns(case, sizes, setting),
        "backend": subject.backend,
        "version": subject.version,
        "device": subject.device,
        "environment": getattr(subject, "environment", None),
        "sample": case.sample,
        "softmax": requested.softmax if requested else None,
        "anchor": requested.anchor if requested else None,
        "stages": " ".join(f"{stage}={fmt}" for stage, fmt in subject.stages().items()),
        "tolerance": tolerance,
        "rerotated": str(case.turns) if case.turns else None,
        "case": "",
    }
    grid = setting.grid
    if grid is not None:
        values["grid"] = "x".join(map(str, grid.sizes))
    values = {name: values[name] for name in records.IDENTITY}
    case_at = digest_at_offset(values)

    def at(offset: int) -> dict[str, Any]:
        columns = values | {"offset": offset, "version": subject.version}  # calls may import more
        if grid is None:
            return columns | {"case": case_at(offset)}
        shifts = dict(zip(grid.rope.axes, grid.shift(offset).tolist(), strict=True))
        columns |= {f"offset_{name}": shifts.get(name) for name in "thw"}
        return columns | {"case": case_digest(columns)}

    return at
