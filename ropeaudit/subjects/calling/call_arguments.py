"""What a forward is given, by the names of its arguments: positions, vectors, sizes of grids.

An argument is built from `at`, positions (n,), and the dtype of vectors.
Letters: b batch, h heads, n positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ropeaudit.subjects.calling import signatures

Argument: TypeAlias = Callable[[Any, Any], Any]
DIMS = 64  # of vectors whose values do not matter
_LENGTHS = ("seq_len", "seqlen", "seq_length", "sequence_length", "length", "num_positions")
_POSITIONS = (
    *signatures.ROLES["positions"],
    *("ids", "coords", "timestamps", "frame_indices"),
)
VECTORS = (
    *signatures.ROLES["x"],
    *signatures.ROLES["q"],
    *signatures.ROLES["k"],
    *("value", "value_states", "device_ref"),
)
_ROLES = {
    "positions": _POSITIONS,
    "length": (*_LENGTHS, "num_frames", "max_txt_seq_len"),
    "x": VECTORS,
    "layer": ("layer_type",),
    "offset": signatures.ROLES["offset"],
    "device": ("device",),
    "dtype": ("dtype",),
    "height": ("height",),
    "width": ("width",),
    "shape": ("shape",),
    "sizes": ("fhw", "thw", "grid_size", "grid_sizes", "sizes"),
    "list of sizes": ("video_fhw", "img_shapes", "grid_thw", "image_sizes"),
}
SIZES = {"height", "width", "shape", "sizes", "list of sizes"}


def role(name: str) -> str:
    """Return what an argument is; nothing where its name does not say."""
    return next((role for role, names in _ROLES.items() if name.lower() in names), "")


def constant(value: object) -> Argument:
    """Return an argument that is always the same."""
    return lambda at, dtype: value


def zeros(*sizes: int | None) -> Argument:
    """Return vectors that are zeros, which give dtype, device and sizes; None stands for n."""

    def build(at: Any, dtype: Any) -> Any:
        import torch  # not at.new_zeros: who logs operations would take vectors for positions

        return torch.zeros(
            [len(at) if size is None else size for size in sizes], dtype=dtype, device=at.device
        )

    return build


# roles of what says no position: a grid is one token high and wide
PLAIN: dict[str, Argument] = {
    "length": lambda at, dtype: len(at),
    "device": lambda at, dtype: at.device,
    "dtype": lambda at, dtype: dtype,
    "offset": constant(0),
    "sizes": lambda at, dtype: (len(at), 1, 1),
    "list of sizes": lambda at, dtype: [(len(at), 1, 1)],
    "height": constant(1),
    "width": constant(1),
    "shape": lambda at, dtype: (1, len(at), 1, 1),
}


def _axes(count: int, last: bool, batch: bool) -> Argument:
    """Return positions of several axes, all at the same place: (b, n, axes) or (axes, b, n)."""

    def build(at: Any, dtype: Any) -> Any:
        rows = at[None] if batch else at
        return rows[..., None].expand(*rows.shape, count) if last else rows.expand(count, *rows.shape)

    return build


def _alike(count: int, last: bool, batch: bool) -> tuple[str, Argument]:
    return f"{count} axes at the same position", _axes(count, last, batch)


# what is given as positions, and what a reader must know of it
POSITIONS: tuple[tuple[str, Argument], ...] = (
    ("", lambda at, dtype: at[None]),
    ("", lambda at, dtype: at),
    *(_alike(count, last=True, batch=True) for count in (3, 2)),
    *(_alike(count, last=True, batch=False) for count in (3, 2, 4)),
    *(_alike(count, last=False, batch=True) for count in (3, 2, 4)),
    ("", lambda at, dtype: at[:, None]),
    ("the first of 3 axes, the others at 0", lambda at, dtype: (at, at[:1] * 0, at[:1] * 0)),
)


def _first_axis(count: int, last: bool, batch: bool) -> tuple[str, Argument]:
    """Return positions of several axes, all but the first at 0, see `_axes`."""
    same = _axes(count, last, batch)

    def build(at: Any, dtype: Any) -> Any:
        rows = same(at, dtype) * 0  # a new tensor
        (rows[..., 0] if last else rows[0]).copy_(at)
        return rows

    return f"the first of {count} axes, the others at 0", build


_WHERE = ((True, False), (False, False), (True, True), (False, True))
MORE_POSITIONS: tuple[tuple[str, Argument], ...] = (
    *POSITIONS[:2],
    *(_alike(count, *where) for count in (2, 3, 4) for where in _WHERE),
    *POSITIONS[-2:],
    *(_first_axis(count, *where) for count in (2, 3, 4) for where in _WHERE),
)
AS_POSITIONS: tuple[str, Argument] = ("positions in float32", lambda at, dtype: at.float())
# (b, channels, frames, height, width), of one patch each
VIDEO = ("frames of a video, the first of 3 axes, the others at 0", zeros(1, 16, None, 2, 2))
VECTOR_SHAPES: tuple[tuple[str, Argument], ...] = (
    ("", zeros(1, None, DIMS)),
    ("", zeros(1, 2, None, DIMS)),
    ("", zeros(None, DIMS)),
)
