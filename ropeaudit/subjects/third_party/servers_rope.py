"""vLLM and SGLang: a table that is cast to the model's dtype, and a rotation in the dtype of q and k.

Their packages need a GPU's libraries; table and rotation are definitions of their own files, in torch.
"""

from __future__ import annotations

from typing import Any

import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "vllm",
        "layouts": ("half", "interleaved"),
        "calls": "_compute_cos_sin_cache, cast as __init__ does, and ApplyRotaryEmb.forward_static of "
        "model_executor/layers/rotary_embedding, those definitions alone: its native path on the CPU",
    },
    {
        "name": "sglang",
        "layouts": ("half", "interleaved"),
        "calls": "_compute_cos_sin_cache, cast as __init__ does on a CPU, and apply_rotary_emb of "
        "srt/layers/rotary_embedding, those definitions alone: its native path",
    },
    {
        "name": "sglang-float32",
        "package": "sglang",
        "layouts": ("half", "interleaved"),
        "calls": "the same with its table in float32, as __init__ leaves it on CUDA; the rotation casts rows",
    },
)


class _Nothing:
    """A base without anything of its own."""


class Server(TorchAdapter):
    """A table from 0 in float32 that is cast, and a function that rotates (s, h, d)."""

    partial = True
    cast = True

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        embedding, apply = self.parts()
        embedding.base, embedding.rotary_dim = setting.base, setting.rotary_dim
        tables: dict[int, torch.Tensor] = {}
        half = setting.layout == "half"

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            if end not in tables:
                embedding.max_position_embeddings = end
                table = self.device.put(embedding._compute_cos_sin_cache())
                tables[end] = table.to(torch_arrays.dtype(dtype)) if self.cast else table
            cos, sin = tables[end].index_select(0, positions).chunk(2, dim=-1)
            rows = x[0].transpose(0, 1)
            part = apply(rows[..., : setting.rotary_dim], cos, sin, half)
            rotated = torch.cat((part, rows[..., setting.rotary_dim :]), dim=-1)
            return rotated.transpose(0, 1)[None]

        return rotate

    def parts(self) -> tuple[Any, Any]:
        """Return an object that computes the table, and the function that rotates."""
        folder = "srt/layers/rotary_embedding/"
        given = {"torch": torch, "BaseFusedOp": _Nothing}
        embedding = _bare("sglang", f"{folder}base.py", "RotaryEmbedding", given)
        embedding._force_native, embedding.position_start = False, 0  # as __init__ does
        names = ["apply_rotary_emb"]
        return embedding, one_file.definitions("sglang", f"{folder}utils.py", names, given)[names[0]]


class Float32Table(Server):
    """The same with the table as it is computed."""

    cast = False


class Vllm(Server):
    """vLLM's."""

    def parts(self) -> tuple[Any, Any]:
        """Return an object that computes the table, and the function that rotates."""
        folder = "model_executor/layers/rotary_embedding/"
        given = {"torch": torch, "CustomOp": _Nothing}
        embedding = _bare("vllm", f"{folder}base.py", "RotaryEmbeddingBase", given)
        names = ["ApplyRotaryEmb"]
        apply = one_file.definitions("vllm", f"{folder}common.py", names, given)[names[0]]
        return embedding, apply.forward_static


def _bare(package: str, place: str, name: str, given: dict[str, Any]) -> Any:
    """Return an instance of a class whose __init__, which needs the whole package, was not called."""
    cls = one_file.definitions(package, place, [name], given)[name]
    return cls.__new__(cls)


IMPLEMENTATIONS = {"vllm": Vllm, "sglang": Server, "sglang-float32": Float32Table}
