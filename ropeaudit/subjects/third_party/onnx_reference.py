"""onnx: the reference implementation of RotaryEmbedding, opset 23, in NumPy. Its tables are the caller's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx.reference.ops.op_rotary_embedding import rotary_embedding

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "onnx-reference",
        "package": "onnx",
        "extra": "onnxruntime",
        "layouts": ("half", "interleaved"),
        "calls": "rotary_embedding of onnx.reference, with tables of the caller: float64, rounded once",
    },
)


class OnnxReference(Adapter):
    """rotary_embedding with the rows of the requested positions."""

    engine = "numpy"
    partial = True

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function."""
        frequencies = setting.base ** (-2.0 * np.arange(setting.pairs) / setting.rotary_dim)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            kind = ml_dtypes.bfloat16 if fmt.name == "bfloat16" else np.dtype(fmt.name)
            angles = positions[:, None] * frequencies
            rotated = rotary_embedding(
                *(x[None].astype(kind), np.cos(angles).astype(kind), np.sin(angles).astype(kind)),
                np.arange(positions.size)[None],
                interleaved=int(setting.layout == "interleaved"),
                rotary_embedding_dim=setting.rotary_dim,
            )
            result: FloatArray = rotated[0].astype(np.float64 if fmt.name == "float64" else np.float32)
            return result

        return rotate


IMPLEMENTATIONS = {"onnx-reference": OnnxReference}
