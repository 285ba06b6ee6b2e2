"""torchtitan and fairseq2: tables of float32 angles from position 0, and float32 rotations."""

from __future__ import annotations

import math
import types
from typing import Any

import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "torchtitan",
        "layouts": ("half", "interleaved"),
        "calls": "CosSinRoPE (half) and ComplexRoPE (interleaved) of torchtitan/models/common/rope.py, their "
        "_precompute_cache and apply_rotary_emb alone",
    },
    {
        "name": "fairseq2",
        "layouts": ("interleaved",),
        "calls": "RotaryEncoder of fairseq2/nn/position_encoder.py, the class alone, with a packed batch",
    },
)


class Torchtitan(TorchAdapter):
    """The table and the rotation of CosSinRoPE or of ComplexRoPE; rows of the positions."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        name = "CosSinRoPE" if setting.layout == "half" else "ComplexRoPE"
        base = type("RoPE", (), {"Config": object})
        given = {"torch": torch, "math": math, "RoPE": base, "dataclass": lambda **options: lambda cls: cls}
        space = one_file.definitions("torchtitan", "models/common/rope.py", [name], given)
        rope: Any = space[name].__new__(space[name])
        tables: dict[int, torch.Tensor] = {}

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            if end not in tables:
                rope.config = types.SimpleNamespace(
                    dim=setting.head_dim, max_seq_len=end, theta=setting.base, scaling="none"
                )
                tables[end] = self.device.put(rope._precompute_cache())
            rows = x.transpose(1, 2)
            table = tables[end][positions][None, :, None]
            rotated: torch.Tensor = rope.apply_rotary_emb(rows, rows, table)[0]
            return rotated.transpose(1, 2)

        return rotate


class Fairseq2(TorchAdapter):
    """RotaryEncoder, whose forward takes the position of each row of a packed batch."""

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        base = type("PositionEncoder", (torch.nn.Module,), {"__init__": _encoder})
        given = {"torch": torch, "PositionEncoder": base, "override": lambda f: f, "unsqueeze": _unsqueeze}
        place = "nn/position_encoder.py"
        cls = one_file.definitions("fairseq2", place, ["RotaryEncoder"], given)["RotaryEncoder"]
        modules: dict[int, Any] = {}

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            if end not in modules:
                modules[end] = self.device.moved(cls(setting.head_dim, end, theta=setting.base).eval())
            packed = types.SimpleNamespace(
                packed=True, padded=False, position_indices=positions, max_seq_len=positions.numel()
            )
            rotated: torch.Tensor = modules[end](x[0].transpose(0, 1), packed)
            return rotated.transpose(0, 1)[None]

        return rotate


def _encoder(self: Any, encoding_dim: int) -> None:
    """Keep what the base class keeps."""
    torch.nn.Module.__init__(self)
    self.encoding_dim = encoding_dim


def _unsqueeze(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Return x with `count` new axes: fairseq2.ops.unsqueeze."""
    for _ in range(count):
        x = x.unsqueeze(dim)
    return x


IMPLEMENTATIONS = {"torchtitan": Torchtitan, "fairseq2": Fairseq2}
