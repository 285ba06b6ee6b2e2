"""Tables of cos and sin that were damaged in known ways, and the files and modules that hold them.

A damage changes right tables (n, d) of `BASE` and says what is wrong: the code of a diagnosis, and which of
cos and sin is off. What holds them says how each is called there.
Letters: n positions, p pairs, d = 2p columns, each pair in column i and i + p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
BASE, PAIRS, ROWS = 500000.0, 32, 512
ROW, COLUMN = 217, 5
THETA = BASE ** (-np.arange(PAIRS) / PAIRS)
BOTH, COS, SIN = ("cos", "sin"), ("cos",), ("sin",)


@dataclass(frozen=True)
class Damage:
    """What was done to tables: the codes of which one must be named, and the sides that are off.

    entries: those that the finding must name. guessed: the codes where no base is given, if others; none
    where that cannot show. beside: what the other side has, if it is wrong in another way.
    """

    change: Callable[[Array, Array], tuple[Array, Array]]
    codes: tuple[str, ...]
    sides: tuple[str, ...] = BOTH
    entries: tuple[int, ...] = ()
    guessed: tuple[str, ...] | None = None
    beside: tuple[str, ...] = ()


def tables(positions: Array | None = None, theta: Array = THETA) -> tuple[Array, Array]:
    """Return cos and sin in float32, of positions from 0. Shapes: -> (n, d), (n, d)."""
    at = np.arange(ROWS) if positions is None else positions
    angles = np.tile(at[:, None] * theta, 2)
    return np.cos(angles).astype("f4"), np.sin(angles).astype("f4")


def _set(part: Array, where: Any, values: Any) -> Array:
    changed = part.copy()
    changed[where] = values
    return changed


def _pair(column: int) -> list[int]:
    return [column, column + PAIRS]


def _narrow(part: Array, fmt: Any) -> Array:
    return part.astype(fmt).astype("f4")


def _two(at: Array | None = None, theta: Array = THETA) -> tuple[Array, Array]:
    return tables(at, theta)


_ALL = slice(None)
_PAIR = (_ALL, _pair(COLUMN))
_OTHER = (_ALL, _pair(COLUMN + 1))
_NOISE = np.random.default_rng(1).uniform(-1, 1, 2 * PAIRS).astype("f4")
_CODES = ("entries-off",)
DAMAGES = {
    "row of cos": Damage(lambda c, s: (_set(c, ROW, c[12]), s), _CODES, COS, (ROW,)),
    "row of sin": Damage(lambda c, s: (c, _set(s, ROW, _NOISE)), _CODES, SIN, (ROW,)),
    "row of both": Damage(lambda c, s: (_set(c, ROW, c[12]), _set(s, ROW, s[12])), _CODES, BOTH, (ROW,)),
    "column of cos": Damage(lambda c, s: (_set(c, _PAIR, c[_OTHER]), s), _CODES, COS, (COLUMN,)),
    "column of both": Damage(
        lambda c, s: (_set(c, _PAIR, c[_OTHER]), _set(s, _PAIR, s[_OTHER])), _CODES, BOTH, (COLUMN,)
    ),
    "sign": Damage(lambda c, s: (c, -s), ("wrong-direction",), SIN),
    "sign of a column": Damage(lambda c, s: (c, _set(s, _PAIR, -s[_PAIR])), _CODES, SIN, (COLUMN,)),
    "swapped": Damage(lambda c, s: (s, c), ("cos-sin-swapped",)),
    "shifted by one": Damage(lambda c, s: _two(np.arange(ROWS) + 1), ("positions-off",)),
    "sin rolled by one": Damage(lambda c, s: (c, np.roll(s, -1, 0)), ("positions-off",), SIN),
    "half of cos": Damage(
        lambda c, s: (_narrow(c, ml_dtypes.bfloat16), s), ("narrow-table", "buffer-cast"), COS
    ),
    "half of sin": Damage(lambda c, s: (c, _narrow(s, "f2")), ("narrow-table", "buffer-cast"), SIN),
    "transposed": Damage(lambda c, s: (c.T.copy(), s.T.copy()), ("axes-order",)),
    "another base, and cast": Damage(
        lambda c, s: tuple(
            _narrow(one, ml_dtypes.bfloat16) for one in _two(theta=10000.0 ** (-np.arange(PAIRS) / PAIRS))
        ),
        ("wrong-base",),
        guessed=("narrow-table",),
    ),
    "two rows exchanged": Damage(
        lambda c, s: (_set(c, [40, 300], c[[300, 40]]), _set(s, [40, 300], s[[300, 40]])),
        _CODES,
        BOTH,
        (40, 300),
    ),
}
FACTORY = """
import torch

class Rope(torch.nn.Module):
    def __init__(self):
        super().__init__()
        held = torch.load({file!r})
        for name in ("cos_cached", "sin_cached"):
            self.register_buffer(name, held[name])

    def forward(self, x, position_ids):
        return self.cos_cached[position_ids], self.sin_cached[position_ids]

def make():
    return Rope()
"""


def as_module(folder: Path, cos: Array, sin: Array) -> tuple[str, dict[str, str]]:
    import torch

    held = {"cos_cached": torch.from_numpy(cos.copy()), "sin_cached": torch.from_numpy(sin.copy())}
    torch.save(held, folder / "held.pt")
    (folder / "rope.py").write_text(FACTORY.format(file=str(folder / "held.pt")))
    return f"{folder / 'rope.py'}:make", {"cos_cached": "cos", "sin_cached": "sin"}


def as_safetensors(folder: Path, cos: Array, sin: Array) -> tuple[str, dict[str, str]]:
    from safetensors.numpy import save_file

    names = {f"model.layers.0.rotary_emb.{side}_cached": side for side in BOTH}
    held = dict(zip(names, (np.ascontiguousarray(cos), np.ascontiguousarray(sin)), strict=True))
    save_file({**held, "w": np.ones((8, 8), "f4")}, folder / "model.safetensors")
    return str(folder / "model.safetensors"), names


def as_onnx(folder: Path, cos: Array, sin: Array) -> tuple[str, dict[str, str]]:
    from onnx import TensorProto, helper, numpy_helper

    constants = [numpy_helper.from_array(part, name) for part, name in ((cos, "t1"), (sin, "t2"))]
    node = helper.make_node("RotaryEmbedding", ["x", "p", "t1", "t2"], ["o"], domain="com.microsoft")
    value = helper.make_tensor_value_info("p", TensorProto.INT64, ["n", 1])
    model = helper.make_model(helper.make_graph([node], "g", [value], [], constants))
    (folder / "x.onnx").write_bytes(model.SerializeToString())
    return str(folder / "x.onnx"), {"t1": "cos", "t2": "sin"}


HOLDERS = {"module": as_module, "safetensors": as_safetensors, "onnx": as_onnx}
