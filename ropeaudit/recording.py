"""From what was measured to the record: one row a subject and offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ropeaudit import records
from ropeaudit.bounds import Bound
from ropeaudit.cases import Case
from ropeaudit.inputs import Inputs
from ropeaudit.measuring import sampled
from ropeaudit.measuring.drawn import Drawn
from ropeaudit.measuring.metrics import Spread
from ropeaudit.measuring.plan import AttentionOptions, Measured
from ropeaudit.records import Record
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Subject

if TYPE_CHECKING:
    from ropeaudit.measuring.attention import Attention

_POSITIONS = 2**20  # looked at together


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of one subject at one offset, and under which setting; or why it was refused."""

    subject: Subject
    offset: int
    setting: RopeSetting
    measured: Measured
    floor: Measured
    structural: Spread
    bound: Bound | None = None
    attention: Attention | None = None
    refused: str = ""


class Sizes(Protocol):
    """q and k, as far as a row tells of them."""

    @property
    def heads(self) -> int:
        """h: query heads."""

    @property
    def kv_heads(self) -> int:
        """g: key-value heads."""

    @property
    def seq_len(self) -> int:
        """s: positions."""

    @property
    def source(self) -> str:
        """Where they come from."""

    @property
    def seed(self) -> int | None:
        """The seed, None where none was used."""

    @property
    def digest(self) -> str:
        """Which numbers a file held; empty for those that are made."""


def setting_columns(case: Case, sizes: Sizes, setting: RopeSetting) -> dict[str, Any]:
    """Return the columns that say under which setting, and of which q and k, something was measured."""
    axes = case.position_axes(setting)
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
    sizes: Sizes,
    setting: RopeSetting,
    subject: Subject,
    offset: int,
    asked: AttentionOptions | None,
) -> dict[str, Any]:
    """Return the columns of `records.IDENTITY`: what was asked for. Nothing is measured for it."""
    return {
        "schema": records.SCHEMA,
        "subject": subject.name,
        "dtype": subject.dtype.name,
        "offset": offset,
        **setting_columns(case, sizes, setting),
        "backend": subject.backend,
        "version": subject.version,
        "device": subject.device,
        "sample": case.sample,
        "softmax": asked.softmax if asked else None,
        "anchor": asked.anchor if asked else None,
        "stages": " ".join(f"{stage}={fmt}" for stage, fmt in subject.stages().items()),
    }


def record(case: Case, loaded: Inputs | Drawn, found: Found, asked: AttentionOptions | None) -> Record:
    """Return the row of a subject and offset."""
    subject, setting, measured, floor = found.subject, found.setting, found.measured, found.floor
    drift, truth = measured.drift, measured.truth
    head, query, key = drift.place if drift.place and not drift.nonfinite else (None, None, None)
    low, high = sampled.interval(drift)
    verdict = "refused" if found.refused else ""
    judged = {
        "nonfinite": drift.nonfinite,
        "drift_max": drift.max,
        "drift_rms": drift.rms,
        "floor_rms": floor.drift.rms,
        "reference_rms": truth.rms,
        "reference_error": measured.error,
    }
    return Record(
        **identity(case, loaded, setting, subject, found.offset, asked),
        scores=drift.count,
        distinct_positions=0 if found.refused else _distinct(subject, loaded.seq_len, found.offset),
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
        verdict=verdict or records.judge(**judged),  # type: ignore[arg-type]
        refused=found.refused or "none",
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
