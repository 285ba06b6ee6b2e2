"""mlx: mx.fast.rope on the CPU, which takes the first position and counts up."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation, runs

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "mlx",
        "layouts": ("half", "interleaved"),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "mx.fast.rope on the CPU, a run of positions a call",
    },
)


class Mlx(Adapter):
    """mx.fast.rope: a function without state."""

    engine = "mlx"
    partial = True
    scalings = ("default", "linear")

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function."""

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            with mx.stream(mx.cpu):
                given = mx.array(x[None]).astype(getattr(mx, fmt.name))
                parts = [
                    mx.fast.rope(
                        given[:, :, run],
                        setting.rotary_dim,
                        traditional=setting.layout == "interleaved",
                        base=setting.base,
                        scale=1.0 / setting.scaling.stretch,
                        offset=first,
                    ).astype(mx.float32)
                    for run, first in runs(positions)
                ]
                return np.concatenate([np.array(part[0]) for part in parts], axis=1)

        return rotate


IMPLEMENTATIONS = {"mlx": Mlx}
