"""OpenVINO on the CPU: the RoPE of transformers' Llama, converted, and saved with float16 constants."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "openvino",
        "needs": ("openvino", "transformers"),
        "layouts": ("half",),
        "dtypes": ("float32",),
        "calls": "LlamaRotaryEmbedding and apply_rotary_pos_emb through convert_model, on the CPU in float32",
    },
    {
        "name": "openvino-fp16",
        "package": "openvino",
        "needs": ("openvino", "transformers"),
        "layouts": ("half",),
        "dtypes": ("float32",),
        "calls": "the same after save_model, whose default compress_to_fp16 rounds inv_freq",
    },
)


class _Llama(torch.nn.Module):
    """The embedding and the rotation in one module."""

    def __init__(self, setting: RopeSetting) -> None:
        super().__init__()
        rope = {"rope_type": "default", "rope_theta": setting.base}
        config: Any = LlamaConfig(head_dim=setting.head_dim, rope_parameters=rope)
        self.rope = llama.LlamaRotaryEmbedding(config)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return x rotated. Shapes: (1, h, s, d), (1, s) -> (1, h, s, d)."""
        cos, sin = self.rope(x, positions)
        rotated: torch.Tensor = llama.apply_rotary_pos_emb(x, x, cos, sin)[0]
        return rotated


class OpenVino(Adapter):
    """A converted model, compiled for the CPU with float32 as its inference precision."""

    engine = "openvino"

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a newly compiled model."""
        example = torch.zeros(1, 2, 3, setting.head_dim), torch.arange(3)[None]
        model = self.loaded(openvino.convert_model(_Llama(setting).eval(), example_input=example))
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled = openvino.compile_model(model, "CPU", settings)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            rotated: FloatArray = compiled([x[None].astype(np.float32), positions[None]])[0][0]
            return rotated

        return rotate

    def loaded(self, model: Any) -> Any:
        """Return a model as it was converted."""
        return model


class Saved(OpenVino):
    """The same, saved as save_model does it by default, and read."""

    def loaded(self, model: Any) -> Any:
        """Return a model as it is read."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rope.xml")
            openvino.save_model(model, path)
            weights = path.with_suffix(".bin").read_bytes()
            return openvino.Core().read_model(path.read_bytes(), weights)


IMPLEMENTATIONS = {"openvino": OpenVino, "openvino-fp16": Saved}
