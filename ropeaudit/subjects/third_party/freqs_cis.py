"""mistral-inference and llama-models: a table of complex numbers, built from position 0 in float32."""

from __future__ import annotations

import functools
from importlib import import_module

import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "mistral-inference",
        "package": "mistral_inference",
        "extra": "mistral-inference",
        "layouts": ("interleaved",),
        "calls": "precompute_freqs_cis and apply_rotary_emb of mistral_inference.rope",
        "snippet": (
            "from mistral_inference.rope import apply_rotary_emb, precompute_freqs_cis",
            "table = precompute_freqs_cis(<head_dim>, <end>, <base>)",
            "def rotate(x, at):",
            "    x = x.transpose(0, 1)",
            "    return apply_rotary_emb(x, x, table[at])[0].transpose(0, 1)",
        ),
    },
    {
        "name": "llama-models",
        "package": "llama_models",
        "needs": ("llama_models", "fairscale"),
        "extra": "llama-models",
        "layouts": ("interleaved",),
        "calls": "precompute_freqs_cis and apply_rotary_emb of llama_models.llama3.model",
    },
)


class Mistral(TorchAdapter):
    """precompute_freqs_cis and apply_rotary_emb of mistral_inference.rope; x is (s, h, d)."""

    code = "mistral_inference.rope"

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        code = import_module(self.code)

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            table = self.device.put(_table(self.code, setting.head_dim, end, setting.base))[positions]
            rows = self.rows(x)
            rotated, _ = code.apply_rotary_emb(rows, rows, table)
            back: torch.Tensor = rotated.reshape(rows.shape[-3:]).transpose(0, 1)[None]
            return back

        return rotate

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return x in the requested order. Shapes: (1, h, s, d) -> (s, h, d)."""
        return x[0].transpose(0, 1)


class LlamaComplex(Mistral):
    """The same functions of llama_models.llama3.model; x is (1, s, h, d)."""

    code = "llama_models.llama3.model"

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return x in the requested order. Shapes: (1, h, s, d) -> (1, s, h, d)."""
        return x.transpose(1, 2)


@functools.lru_cache(maxsize=1)
def _table(code: str, dim: int, end: int, base: float) -> torch.Tensor:
    """Return the table. Its values do not depend on its length. Shapes: -> (end, d/2), complex."""
    table: torch.Tensor = import_module(code).precompute_freqs_cis(dim, end, base)
    return table


IMPLEMENTATIONS = {"mistral-inference": Mistral, "llama-models": LlamaComplex}
