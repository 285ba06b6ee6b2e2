"""What was requested: the columns that identify a row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ropeaudit import __version__, recipes
from ropeaudit.arithmetic.formats import parse
from ropeaudit.errors import RopeAuditError

UNKNOWN = "unknown"  # a setting that a file does not say
# What identifies a row beside its case: a later schema, version or tolerance measures the same case.
APART = ("schema", "version", "tolerance", "case")
_DIGITS = 12  # of a case: 48 bits, so that two among a million cases agree once in 500 sweeps


def moved_apart(record: Identity) -> bool:
    """Return whether `offset` does not say by how much the axes of a grid moved."""
    moved = [value for value in (record.offset_t, record.offset_h, record.offset_w) if value is not None]
    return any(value != record.offset for value in moved)


def _usual_scale(row: Mapping[str, Any]) -> float | None:
    size = row.get("head_dim") or 0  # a file may say anything
    return 1 / math.sqrt(size) if size > 0 else None


@lru_cache(maxsize=256)
def _stages(name: str, dtype: str) -> str:
    """Return the stages of a recipe that has a name; nothing of own recipes and of code."""
    bare, _, changes = name.rstrip("]").partition("[")
    try:
        recipe = recipes.named(bare).changed(recipes.parse_changes([changes]) if changes else {})
        resolved = recipe.resolve(parse(dtype), stores_keys=True)
    except RopeAuditError:
        return ""
    stages = resolved.stages() | resolved.switches()
    return " ".join(f"{stage}={fmt}" for stage, fmt in stages.items())


# what a row of a file holds of a column that the file lacks, where that follows from the others
FOLLOWING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "version": lambda row: __version__,
    "rotary_dim": lambda row: row.get("head_dim"),
    "scale": _usual_scale,
    "kv_heads": lambda row: row.get("heads"),
    "stages": lambda row: _stages(str(row.get("implementation")), str(row.get("dtype"))),
}


@dataclass(frozen=True, slots=True)
class Identity:
    """A cell of a sweep: RoPE setting x inputs x subject x dtype x offset, before it is measured."""

    schema: int
    implementation: str
    dtype: str
    offset: int
    model: str
    scaling: str
    clip: float | None
    length: int | None
    axes: str
    backend: str
    version: str
    device: str
    environment: str | None
    layout: str
    head_dim: int
    rotary_dim: int
    base: float
    scale: float
    seq_len: int
    heads: int
    kv_heads: int
    mask: str
    source: str
    seed: int | None
    sample: int | None
    softmax: str | None
    anchor: int | None
    grid: str | None
    offset_t: float | None
    offset_h: float | None
    offset_w: float | None
    stages: str
    case: str
    tolerance: float
    rerotated: str | None


def shown(row: Identity) -> str:
    """Name a row for a message."""
    requested = f"{row.implementation} {row.dtype} at offset {row.offset}"
    made = f"version {row.version}, on {row.device}"
    return f"{requested} ({row.seq_len} positions, schema {row.schema}, {made})"


def case_of(values: Mapping[str, Any]) -> str:
    """Return the digest of what was requested, from the columns of `Identity` less those of `APART`."""
    digest = _begun(tuple(_word(values[name]) for name in _NAMES)).copy()
    digest.update(_word(values["offset"]).encode("utf-8", "backslashreplace"))
    text: str = digest.hexdigest()
    return text[:_DIGITS]


def _word(value: Any) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


@lru_cache(maxsize=64)
def _begun(words: tuple[str, ...]) -> Any:
    """Return the digest of all but the offset: cells of a sweep that differ in it alone share it."""
    text = "".join(f"{name}={word}\n" for name, word in zip(_NAMES, words, strict=True))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace"))


_NAMES = tuple(name for name in Identity.__dataclass_fields__ if name not in (*APART, "offset"))
