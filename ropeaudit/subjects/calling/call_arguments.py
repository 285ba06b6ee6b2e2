"""What a forward is given, by the names of its arguments: positions, vectors, sizes of grids.

Each is a line of Python as well, for whoever calls the module without this package: `at` is positions (n,),
`dtype` that of vectors.
Letters: b batch, h heads, n positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ropeaudit.subjects.calling import signatures

DIMS = 64  # of vectors whose values do not matter
LONGEST = 64  # the largest size of a grid, in tokens
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
    "image": ("pixel_values", "images", "image"),
}
SIZES = {"height", "width", "shape", "sizes", "list of sizes"}
FIRST = "the first of 3 axes, the others of size 1"
GRID = ("shape", "sizes", "list of sizes", "image", "height")


@dataclass(frozen=True, slots=True)
class Argument:
    """What builds an argument from positions (n,) and a dtype, and the same as Python."""

    text: str
    build: Callable[[Any, Any], Any]


def role(name: str) -> str:
    """Return what an argument is; nothing where its name does not say."""
    return next((role for role, names in _ROLES.items() if name.lower() in names), "")


def constant(value: object) -> Argument:
    """Return an argument that is always the same."""
    return Argument(repr(value), lambda at, dtype: value)


def zeros(*sizes: int | None) -> Argument:
    """Return vectors that are zeros, which give dtype, device and sizes; None stands for n."""
    text = ", ".join("len(at)" if size is None else str(size) for size in sizes)

    def build(at: Any, dtype: Any) -> Any:
        import torch  # not at.new_zeros: who logs operations would take vectors for positions

        return torch.zeros(
            [len(at) if size is None else size for size in sizes], dtype=dtype, device=at.device
        )

    return Argument(f"torch.zeros(({text}), dtype=dtype, device=at.device)", build)


def ones_and_zeros(shape: tuple[int | None, ...], rotary: int, interleaved: bool) -> Argument:
    """Return vectors that are 1 in the first of each pair of `rotary` dims, and else 0."""
    blank = zeros(*shape)
    halves = pairs(rotary, interleaved)[0]

    def build(at: Any, dtype: Any) -> Any:
        x = blank.build(at, dtype)
        x[..., halves] = 1
        return x

    indices = f"torch.arange({halves.start or 0}, {halves.stop}, {halves.step or 1}, device=at.device)"
    return Argument(f"{blank.text}.index_fill(-1, {indices}, 1)", build)


def pairs(rotary: int, interleaved: bool) -> tuple[slice, slice]:
    """Return where the firsts and the seconds of pairs stand among `rotary` dims."""
    if interleaved:
        return slice(0, rotary, 2), slice(1, rotary, 2)
    return slice(0, rotary // 2), slice(rotary // 2, rotary)


def of_sizes(first: int | None, height: int, width: int) -> dict[str, Argument]:
    """Return the arguments of a grid by their roles; None stands for n."""
    text = f"({'len(at)' if first is None else first}, {height}, {width})"

    def sizes(at: Any, dtype: Any) -> tuple[int, int, int]:
        return (len(at) if first is None else first, height, width)

    return {
        "sizes": Argument(text, sizes),
        "list of sizes": Argument(f"[{text}]", lambda at, dtype: [sizes(at, dtype)]),
        "height": constant(height),
        "width": constant(width),
        "shape": Argument(f"(1, *{text})", lambda at, dtype: (1, *sizes(at, dtype))),
    }


def alike(count: int) -> str:
    """Return how positions of several axes are given, in words."""
    return f"{count} axes at the same position"


def _axes(count: int, last: bool, batch: bool) -> Argument:
    """Return positions of several axes, all at the same place: (b, n, axes) or (axes, b, n)."""

    def build(at: Any, dtype: Any) -> Any:
        rows = at[None] if batch else at
        return rows[..., None].expand(*rows.shape, count) if last else rows.expand(count, *rows.shape)

    rows = "at[None]" if batch else "at"
    sizes = "1, len(at)" if batch else "len(at)"
    text = f"{rows}[..., None].expand({sizes}, {count})" if last else f"{rows}.expand({count}, {sizes})"
    return Argument(text, build)


# what is given as positions, and what a reader must know of it
POSITIONS: tuple[tuple[str, Argument], ...] = (
    ("", Argument("at[None]", lambda at, dtype: at[None])),
    ("", Argument("at", lambda at, dtype: at)),
    *((alike(count), _axes(count, last=True, batch=True)) for count in (3, 2)),
    *((alike(count), _axes(count, last=True, batch=False)) for count in (3, 2, 4)),
    *((alike(count), _axes(count, last=False, batch=True)) for count in (3, 2, 4)),
    ("", Argument("at[:, None]", lambda at, dtype: at[:, None])),
    (
        "the first of 3 axes, the others at 0",
        Argument("(at, at[:1] * 0, at[:1] * 0)", lambda at, dtype: (at, at[:1] * 0, at[:1] * 0)),
    ),
)


def _first_axis(count: int, last: bool, batch: bool) -> tuple[str, Argument]:
    """Return positions of several axes, all but the first at 0, see `_axes`."""
    same = _axes(count, last, batch)

    def build(at: Any, dtype: Any) -> Any:
        rows = same.build(at, dtype) * 0  # a new tensor
        (rows[..., 0] if last else rows[0]).copy_(at)
        return rows

    only = f"(torch.arange({count}, device=at.device) == 0)"
    text = f"{same.text} * {only}" if last else f"{same.text} * {only}.view(-1, *[1] * {1 + batch})"
    return f"the first of {count} axes, the others at 0", Argument(text, build)


_WHERE = ((True, False), (False, False), (True, True), (False, True))
MORE_POSITIONS: tuple[tuple[str, Argument], ...] = (
    *POSITIONS[:2],
    *((alike(count), _axes(count, *where)) for count in (2, 3, 4) for where in _WHERE),
    *POSITIONS[-2:],
    *(_first_axis(count, *where) for count in (2, 3, 4) for where in _WHERE),
)
AS_POSITIONS = ("positions in float32", Argument("at.float()", lambda at, dtype: at.float()))
# (b, channels, frames, height, width), of one patch each
VIDEO = ("frames of a video, the first of 3 axes, the others at 0", zeros(1, 16, None, 2, 2))
VECTOR_SHAPES: tuple[tuple[str, Argument], ...] = (
    ("", zeros(1, None, DIMS)),
    ("", zeros(1, 2, None, DIMS)),
    ("", zeros(None, DIMS)),
    VIDEO,
)
ROTATED_SHAPES: tuple[tuple[int | None, ...], ...] = (
    (1, None, 2),
    (1, 2, None),
    (1, None),
    (None, 1),
    (None,),
)
# what is given where positions are not known, in words
GRIDS: tuple[tuple[str, Argument], ...] = (
    ("a latent of 8 x 64 x 48", zeros(1, 16, 8, 64, 48)),
    ("a latent of 64 x 48", zeros(1, 16, 64, 48)),
)
IMAGE = ("an image of 896 x 672", zeros(1, 3, 896, 672))  # 64 x 48 patches of 14 x 14
