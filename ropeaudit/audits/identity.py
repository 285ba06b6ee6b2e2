"""What was requested: the columns that identify a row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ropeaudit import __version__, recipes
from ropeaudit.arithmetic.formats import parse
from ropeaudit.errors import RopeAuditError
from ropeaudit.runtime.columns import column, row_class

UNKNOWN = "unknown"  # a setting that a file does not say
# What identifies a row beside its case: a later schema, version or tolerance measures the same case.
APART = ("schema", "version", "tolerance", "case")
_DIGITS = 12  # of a case: 48 bits, so that two among a million cases agree once in 500 sweeps


def moved_apart(record: Identity) -> bool:
    """Return whether `offset` does not say by how much the axes of a grid moved."""
    moved = [value for value in (record.offset_t, record.offset_h, record.offset_w) if value is not None]
    return any(value != record.offset for value in moved)


def _shown(name: str) -> Callable[[Identity], bool]:
    return lambda record: getattr(record, name) is not None and moved_apart(record)


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


@row_class
class Identity:
    """A cell of a sweep: RoPE setting x inputs x subject x dtype x offset, before it is measured."""

    schema: int = column("version of this list of columns", role="case")
    implementation: str = column(
        "recipe, with the changes made to it in brackets, or code", role="case", shown=True, users=True
    )
    dtype: str = column(
        "number format of the model, which the recipe applies to its stages", role="case", shown=True
    )
    offset: int = column("integer added to every position, in tokens", unit="tokens", role="case", shown=True)
    model: str = column(
        "preset or config, with its layer type where it has several, of a grid its axes; none without one",
        role="setting",
        group="detail",
        implied="none",
        users=True,
    )
    scaling: str = column(
        "how the frequencies are changed: default, linear, dynamic, yarn, longrope, llama3, ...",
        role="setting",
        group="scalings",
        implied="default",
    )
    clip: float | None = column(
        "cap of the angles in radians; empty without one",
        unit="radians",
        role="setting",
        group="scalings",
    )
    length: int | None = column(
        "positions that the frequencies stand for (longrope: the border, or one more); empty without",
        unit="tokens",
        role="setting",
        group="scalings",
    )
    axes: str = column(
        "M-RoPE, grids: pairs per position axis and the axes that are shifted; none for one axis",
        role="setting",
        group="grids",
        implied="none",
        users=True,
    )
    backend: str = column(
        "what executed the implementation: numpy, torch, or an implementation's own engine",
        role="case",
        group="code",
        implied="numpy",
    )
    version: str = column(
        "of the implementation; of your own code a digest of its file and those it imports from its folder; "
        "torch's with --backend torch; "
        "ropeaudit's own for an emulated recipe",
        role="case",
        group="code",
        implied=__version__,
    )
    device: str = column(
        "where it was executed: cpu, or another device with the name of its GPU",
        role="case",
        shown=lambda record: record.device != "cpu",
        leaves=1,
        group="code",
        implied="cpu",
    )
    environment: str | None = column(
        "what code was called under, such as autocast:bf16; none: nothing; empty: not code",
        role="case",
        shown=lambda one: one.environment not in (None, "none"),
        group="code",
    )
    layout: str = column(
        "pairs of dims: half (i, i + rotary_dim/2) or interleaved (2i, 2i + 1)",
        role="setting",
        group="code",
        implied="half",
    )
    head_dim: int = column("dims of a head", role="setting")
    rotary_dim: int = column(
        "dims of a head that are rotated",
        role="setting",
        group="detail",
        implied=lambda row: row.get("head_dim"),
    )
    base: float = column("theta: frequencies are base^(-2i/rotary_dim)", role="setting", style="setting")
    scale: float = column(
        "softmax scale that multiplies every score",
        role="setting",
        style="setting",
        group="detail",
        implied=_usual_scale,
    )
    seq_len: int = column("positions", unit="tokens", role="setting")
    heads: int = column("query heads", role="setting")
    kv_heads: int = column(
        "key-value heads", role="setting", group="detail", implied=lambda row: row.get("heads")
    )
    mask: str = column("which keys a query sees: causal, full or window:N, the last N", role="setting")
    source: str = column(
        "where q and k come from: gaussian (by-row: each row by itself), ones, ..., or a file "
        "and the digest of its numbers",
        role="setting",
        users=True,
    )
    seed: int | None = column(
        "seed of random q and k, and of the sample; empty where none was used", role="setting"
    )
    sample: int | None = column(
        "how many scores were drawn at random to stand for all that the mask shows; empty without",
        role="case",
        group="samples",
    )
    softmax: str | None = column(
        "--attention: arithmetic of the softmax, fp64 or the recipe's; empty without",
        role="case",
        group="attention",
    )
    anchor: int | None = column(
        "--attention: offset that attention_d compares with, in tokens; empty without",
        unit="tokens",
        role="case",
        group="attention",
    )
    grid: str | None = column(
        "rows and columns of positions, of images and video; empty for a sequence",
        role="case",
        shown=lambda record: record.grid is not None,
        leaves=1,
        group="grids",
    )
    offset_t: float | None = column(
        "offset of the position axis t as a real number, in the unit of its positions; empty where `offset` "
        "says all",
        role="case",
        shown=_shown("offset_t"),
        group="grids",
    )
    offset_h: float | None = column(
        "the same of the axis h", role="case", shown=_shown("offset_h"), group="grids"
    )
    offset_w: float | None = column(
        "the same of the axis w", role="case", shown=_shown("offset_w"), group="grids"
    )
    stages: str = column(
        "number format per stage, as far as it is known: stage=format; then switches other than "
        "inverse_power, each and false, and the axes of --order",
        role="case",
        group="detail",
        implied=lambda row: _stages(str(row.get("implementation")), str(row.get("dtype"))),
    )
    case: str = column(
        "digest of all that was requested, " + ", ".join(APART[:-1]) + " aside: the same for the same cell "
        "in every report",
        role="case",
    )
    tolerance: float = column(
        "--tolerance: the largest drift_relative that is good enough", role="case", style="setting"
    )
    rerotated: str | None = column(
        "how many times stored keys were rotated again, and by how many tokens each time, as 64 x -16; empty "
        "where they are stored once",
        role="case",
        group="keys",
        shown=lambda record: record.rerotated is not None,
    )


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
