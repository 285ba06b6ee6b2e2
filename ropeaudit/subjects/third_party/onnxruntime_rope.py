"""onnxruntime: the operator RotaryEmbedding of opset 23. Its tables are the caller's.

They are made here as a careful exporter would: cos and sin of float64 angles, rounded once to the dtype. So
what is audited is the operator; nothing can be wrong with its positions or angles.
It is no row of `data/adapters.toml`, as a graph and a session for each dtype take more than twelve lines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party.adapter import Adapter, Turn

_TYPES: dict[str, Any] = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


class OnnxRuntime(Adapter):
    """A graph of one node; the table holds the rows of the requested positions."""

    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return the function of new sessions, one a dtype."""
        sessions = {name: _session(setting, kind) for name, kind in _TYPES.items()}
        frequencies = setting.base ** (-2.0 * np.arange(setting.pairs) / setting.rotary_dim)

        def rotate(x: FloatArray, positions: Positions) -> FloatArray:
            angles = positions[:, None] * frequencies
            given = {
                "x": x[None],
                "cos": np.cos(angles).astype(x.dtype),
                "sin": np.sin(angles).astype(x.dtype),
                "ids": np.arange(positions.size)[None],
            }
            rotated: FloatArray = sessions[x.dtype.name].run(None, given)[0][0].astype(np.float32)
            return rotated

        return rotate


def _session(setting: RopeSetting, kind: Any) -> Any:
    names = {"x": kind, "cos": kind, "sin": kind, "ids": TensorProto.INT64}
    partial = setting.rotary_dim if setting.rotary_dim < setting.head_dim else 0
    node = helper.make_node(
        "RotaryEmbedding",
        list(names),
        ["y"],
        interleaved=int(setting.layout == "interleaved"),
        rotary_embedding_dim=partial,
    )
    inputs = [helper.make_tensor_value_info(name, of, None) for name, of in names.items()]
    graph = helper.make_graph([node], "rope", inputs, [helper.make_tensor_value_info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


adapter = OnnxRuntime
