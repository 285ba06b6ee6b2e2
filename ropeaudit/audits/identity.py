"""What was requested: the columns that identify a row."""

from __future__ import annotations

from collections.abc import Callable

from ropeaudit.runtime.columns import column, row_class


def moved_apart(record: Identity) -> bool:
    """Return whether `offset` does not say by how much the axes of a grid moved."""
    moved = [value for value in (record.offset_t, record.offset_h, record.offset_w) if value is not None]
    return any(value != record.offset for value in moved)


def _shown(name: str) -> Callable[[Identity], bool]:
    return lambda record: getattr(record, name) is not None and moved_apart(record)


@row_class
class Identity:
    """A cell of a sweep: RoPE setting x inputs x subject x dtype x offset, before it is measured."""

    schema: int = column("version of this list of columns", role="case")
    subject: str = column("recipe, with the changes made to it in brackets", role="case", shown=True)
    dtype: str = column(
        "number format of the model, which the recipe applies to its stages", role="case", shown=True
    )
    offset: int = column("integer added to every position, in tokens", unit="tokens", role="case", shown=True)
    model: str = column(
        "preset or config, with its layer type where it has several, of a grid its axes; none without one",
        role="setting",
    )
    scaling: str = column(
        "how the frequencies are changed: default, linear, dynamic, yarn, longrope, llama3, ...",
        role="setting",
    )
    clip: float | None = column(
        "cap of the angles in radians; nan without one", unit="radians", role="setting"
    )
    length: int | None = column(
        "positions that the frequencies stand for (longrope: the border, or one more); nan without",
        unit="tokens",
        role="setting",
    )
    axes: str = column(
        "M-RoPE, grids: pairs per position axis and the axes that are shifted; none for one axis",
        role="setting",
    )
    backend: str = column(
        "what executed the subject: numpy, torch, or an implementation's own engine", role="case"
    )
    version: str = column(
        "of the implementation; of your own code a digest of its file and those it imports from its folder; "
        "torch's with --backend torch; "
        "ropeaudit's own for an emulated recipe",
        role="case",
    )
    device: str = column(
        "where it was executed: cpu, or another device with the name of its GPU",
        role="case",
        shown=lambda record: record.device != "cpu",
        leaves=1,
    )
    environment: str | None = column(
        "what code was called under, such as autocast:bf16; none: nothing; nan where nothing is known of it",
        role="case",
        shown=lambda one: one.environment not in (None, "none"),
    )
    engine: str | None = column(
        "what measured: numpy or torch; nan where nothing is known of it", role="case"
    )
    layout: str = column(
        "pairs of dims: half (i, i + rotary_dim/2) or interleaved (2i, 2i + 1)", role="setting"
    )
    head_dim: int = column("dims of a head", role="setting")
    rotary_dim: int = column("dims of a head that are rotated", role="setting")
    base: float = column("theta: frequencies are base^(-2i/rotary_dim)", role="setting", style="setting")
    scale: float = column("softmax scale that multiplies every score", role="setting", style="setting")
    seq_len: int = column("positions", unit="tokens", role="setting")
    heads: int = column("query heads", role="setting")
    kv_heads: int = column("key-value heads", role="setting")
    mask: str = column("which keys a query sees: causal, full or window:N, the last N", role="setting")
    source: str = column(
        "where q and k come from: gaussian (by-row: each row by itself), ones, ..., or a file "
        "and the digest of its numbers",
        role="setting",
    )
    seed: int | None = column(
        "seed of random q and k, and of the sample; nan where none was used", role="setting"
    )
    sample: int | None = column(
        "how many scores were drawn at random to stand for all that the mask shows; nan without", role="case"
    )
    softmax: str | None = column(
        "--attention: arithmetic of the softmax, fp64 or the recipe's; nan without", role="case"
    )
    anchor: int | None = column(
        "--attention: offset that attention_d compares with, in tokens; nan without",
        unit="tokens",
        role="case",
    )
    grid: str | None = column(
        "rows and columns of positions, of images and video; nan for a sequence",
        role="case",
        shown=lambda record: record.grid is not None,
        leaves=1,
    )
    offset_t: float | None = column(
        "offset of the position axis t as a real number, in the unit of its positions; nan where `offset` "
        "says all",
        role="case",
        shown=_shown("offset_t"),
    )
    offset_h: float | None = column("the same of the axis h", role="case", shown=_shown("offset_h"))
    offset_w: float | None = column("the same of the axis w", role="case", shown=_shown("offset_w"))
    stages: str = column(
        "number format per stage, as far as it is known: stage=format; then switches other than "
        "inverse_power, each and false, and the axes of --order",
        role="case",
    )
    tolerance: float = column(
        "--tolerance: the largest drift_relative that is good enough", role="case", style="setting"
    )
    rerotated: str | None = column(
        "how many times stored keys were rotated again, and by how many tokens each time, as 64 x -16; nan "
        "where they are stored once",
        role="case",
        shown=lambda record: record.rerotated is not None,
    )
