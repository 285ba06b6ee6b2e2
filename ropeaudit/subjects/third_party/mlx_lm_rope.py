"""mlx-lm: what initialize_rope returns, on the CPU, which takes the first position and counts up."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.models.rope_utils import initialize_rope

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation, runs

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "mlx-lm",
        "needs": ("mlx_lm", "mlx"),
        "layouts": ("half", "interleaved"),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "initialize_rope of mlx_lm.models.rope_utils on the CPU, a run of positions a call",
    },
)


class MlxLm(Adapter):
    """initialize_rope's module, called with the first position as its offset."""

    engine = "mlx"
    partial = True
    scalings = ("default", "linear")

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a new module."""
        stretch = setting.scaling.stretch
        scaling = {"rope_type": "linear", "factor": stretch} if stretch != 1 else None
        rope = initialize_rope(setting.rotary_dim, setting.base, setting.layout == "interleaved", scaling)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            with mx.stream(mx.cpu):
                given = mx.array(x[None]).astype(getattr(mx, fmt.name))
                parts = [
                    rope(given[:, :, run], offset=first).astype(mx.float32) for run, first in runs(positions)
                ]
                return np.concatenate([np.array(part[0]) for part in parts], axis=1)

        return rotate


IMPLEMENTATIONS = {"mlx-lm": MlxLm}
