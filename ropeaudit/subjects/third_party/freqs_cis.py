"""mistral-inference and llama-models: a table of complex numbers, built from position 0 in float32."""

from __future__ import annotations

import functools
from importlib import import_module

import torch

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end


class Mistral(TorchAdapter):
    """precompute_freqs_cis and apply_rotary_emb of mistral_inference.rope; x is (s, h, d)."""

    code = "mistral_inference.rope"

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation; the table is as long as the largest position needs, or it raises."""
        code = import_module(self.code)

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            end = table_end(int(positions.max()), int(positions.min()))
            table = _table(self.code, setting.head_dim, end, setting.base)[positions]
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
