"""From what was measured to the record: one row a subject and offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ropeaudit.audits import judging, records
from ropeaudit.audits.cases import Case, Outline
from ropeaudit.audits.identity import case_of
from ropeaudit.audits.records import Record
from ropeaudit.bounds import Bound
from ropeaudit.bounds.attainable import attainable_rms
from ropeaudit.engine.plan import AttentionOptions, CellStatistics
from ropeaudit.engine.statistics import Statistics
from ropeaudit.inputs.qk import Inputs
from ropeaudit.inputs.sampled_rows import SampledInputs
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Raised, Subject
from ropeaudit.subjects.emulated import Emulated

if TYPE_CHECKING:
    from ropeaudit.engine.attention_pass import Attention
    from ropeaudit.recognition.verification import Places
    from ropeaudit.rope.grids import Grid

QK: TypeAlias = Inputs | SampledInputs | Outline  # q and k, as far as a row tells of them
_POSITIONS = 2**20  # looked at together


@dataclass(slots=True)
class CellResult:
    """What was measured of one subject at one offset, and under which setting; or why it was refused.

    careful: predicted RMS drift of `attainable.careful` at offset 0. places: of code alone.
    key_norm_growth: of keys that are rotated again.
    """

    subject: Subject
    offset: int
    setting: RopeSetting
    measured: CellStatistics = field(default_factory=CellStatistics)
    floor: CellStatistics = field(default_factory=CellStatistics)
    structural: Statistics = field(default_factory=Statistics)
    careful: float = math.nan
    bound: Bound | None = None
    attention: Attention | None = None
    places: Places | None = None
    key_norm_growth: float | None = None
    refused: str = ""


def setting_columns(case: Case, sizes: QK, setting: RopeSetting) -> dict[str, Any]:
    """Return the columns that say under which setting, and of which q and k, something was measured."""
    axes = setting.grid or case.position_axes(setting)
    return {
        "model": _text(case.model_name),
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
        "source": _text(f"{sizes.source} {sizes.digest}".rstrip()),
        "seed": sizes.seed,
    }


def _text(name: str) -> str:
    """Return a name that every kind of file can hold: bytes in it that are no text are written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def identity(
    case: Case,
    sizes: QK,
    setting: RopeSetting,
    subject: Subject,
    offset: int,
    requested: AttentionOptions | None,
    tolerance: float,
) -> dict[str, Any]:
    """Return the columns of `records.IDENTITY`: what was requested. Nothing is measured for it."""
    values = records.COLUMNS.unset(records.IDENTITY) | {
        "schema": records.SCHEMA,
        "implementation": subject.name,
        "dtype": subject.dtype.name,
        "offset": offset,
        **(_grid_columns(setting.grid, offset) if setting.grid is not None else {}),
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
    }
    return values | {"case": case_of(values)}


def _grid_columns(grid: Grid, offset: int) -> dict[str, Any]:
    """Return the size of a grid, and by how much each of its axes is shifted."""
    moved = dict(zip(grid.rope.axes, grid.shift(offset).tolist(), strict=True))
    return {"grid": "x".join(map(str, grid.sizes)), **{f"offset_{name}": moved.get(name) for name in "thw"}}


def record(
    case: Case,
    loaded: QK,
    results: CellResult,
    requested: AttentionOptions | None,
    tolerance: float,
) -> Record:
    """Return the row of a subject and offset."""
    subject, setting, measured = results.subject, results.setting, results.measured
    drift = measured.drift
    head, query, key = drift.place if drift.place and not drift.nonfinite else (None, None, None)
    low, high = drift.interval()
    why = results.refused
    values = {
        **identity(case, loaded, setting, subject, results.offset, requested, tolerance),
        "scores": drift.count,
        "distinct_positions": 0 if results.refused else _distinct(results, loaded.seq_len),
        "drift_mean_abs": drift.mean_abs,
        "drift_rms_low": low,
        "drift_rms_high": high,
        "drift_bias": drift.mean,
        "change_max": measured.self_drift.max,
        "change_rms": measured.self_drift.rms,
        "structural_max": results.structural.max,
        "structural_rms": results.structural.rms,
        **_bound_columns(results.bound, measured.error),
        **(results.attention.columns() if results.attention else {}),
        **(_place_columns(results.places) if results.places else {}),
        "worst_head": head,
        "worst_query": query,
        "worst_key": key,
        "key_norm_growth": results.key_norm_growth,
        "refused": ("raises" if isinstance(why, Raised) else "unsupported") if why else None,
        "reason": str(why) if why else None,
        **_judged(results, tolerance, (low, high)),
    }
    return Record(**records.COLUMNS.unset(records.COLUMNS) | values)


def _bound_columns(bound: Bound | None, error: float) -> dict[str, float | None]:
    """Return the predicted RMS and the bound of any drift. error: the certificate of the reference.

    The prediction is nan where numbers may overflow, for it is that of a run without overflow; a sample has
    no bound.
    """
    if bound is None:
        return {"predicted_rms": None, "bound_max": None}
    return {
        "predicted_rms": bound.rms if bound.maximum != math.inf else math.nan,
        "bound_max": None if math.isnan(bound.maximum) else bound.maximum + error,
    }


def _judged(
    results: CellResult, tolerance: float, interval: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Return the columns that verdicts rest on, and the verdicts."""
    drift, reference = results.measured.drift, results.measured.reference
    careful = attainable_rms(results.careful, results.subject.dtype, reference.rms)
    relative = judging.ratio(drift.rms, reference.rms)
    excess = 0.0 if drift.rms == 0 else drift.rms / careful if careful else math.inf
    measured = {
        "nonfinite": drift.nonfinite,
        "drift_max": drift.max,
        "drift_rms": drift.rms,
        "floor_rms": results.floor.drift.rms,
        "reference_rms": reference.rms,
        "reference_error": results.measured.error,
        "excess": excess,
    }
    if results.refused:
        words = {"within_tolerance": None, "verdict": "refused"}
        return {**measured, "attainable_rms": math.nan, "drift_relative": relative, **words}
    low, high = interval
    within = judging.within(
        tolerance,
        nonfinite=drift.nonfinite,
        scores=drift.count,
        drift_relative=relative,
        interval=None if low is None or high is None else (low / reference.rms, high / reference.rms),
        wrong_rotation=results.places is not None and not results.places.excess <= 1,
        exact=drift.max <= results.measured.error,
    )
    wrong_rotation = results.places is not None and results.places.wrong_rotation
    return {
        **measured,
        "attainable_rms": careful,
        "drift_relative": relative,
        "within_tolerance": within,
        "verdict": judging.judge(**measured, wrong_rotation=wrong_rotation),  # type: ignore[arg-type]
    }


def _place_columns(places: Places) -> dict[str, Any]:
    """Return the columns that say where a rotated pair is worst placed: `rotation_head` is `head` of it."""
    from ropeaudit.recognition import wording  # in-function: most rows are of no code
    from ropeaudit.recognition.diagnosis import codes

    names = [name for name in records.COLUMNS.having("place") if name != "resembles"]
    columns = {name: getattr(places, name.removeprefix("rotation_")) for name in names}
    found = places.diagnosis
    return columns | {"diagnosis": codes(found) or None, "resembles": wording.sentence(found) or None}


def _distinct(results: CellResult, seq_len: int) -> int:
    """Count the positions that stay different, a part at a time: parts share their last position.

    On a grid these are tokens with a position of their own.
    """
    subject, offset, count = results.subject, results.offset, 0
    if isinstance(subject, Emulated) and results.setting.grid is not None:
        return subject.distinct_tokens(seq_len, offset)
    for start in range(0, seq_len, _POSITIONS):
        part = np.arange(start, min(start + _POSITIONS + 1, seq_len), dtype=np.int64) + offset
        count += subject.distinct_positions(part)
        if part.size > _POSITIONS:
            count -= subject.distinct_positions(part[-1:])
    return count
