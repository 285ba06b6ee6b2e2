"""curated-transformers (explosion): a float32 table and rotation, and float32 for narrower q and k."""

from __future__ import annotations

import torch
from curated_transformers.layers.embeddings import QueryKeyRotaryEmbeddings

from ropeaudit.arithmetic.formats import Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import TensorTurn, TorchAdapter, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "curated-transformers",
        "needs": ("curated_transformers", "catalogue"),
        "layouts": ("half",),
        "calls": "QueryKeyRotaryEmbeddings, which returns float32 for narrower q and k",
    },
)


class Curated(TorchAdapter):
    """QueryKeyRotaryEmbeddings with positions; its table grows from position 0."""

    partial = True

    def module(self, setting: RopeSetting, dtype: Format) -> TensorTurn:
        """Return the rotation of a new module. Raises: TypeError if it does not take the base."""
        fraction = setting.rotary_dim / setting.head_dim
        module = self.device.moved(
            QueryKeyRotaryEmbeddings(base=int(setting.base), fraction=fraction, head_width=setting.head_dim)
        )

        def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            table_end(int(positions.max()), int(positions.min()))
            rotated: torch.Tensor = module(query=x, key=x, positions=positions[None])[0]
            return rotated

        return rotate

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting or dtype is not taken: the base is a whole number there."""
        if setting.base != int(setting.base):
            return f"its base is a whole number, and {setting.base} is not"
        return super().refuses(setting, dtype)


IMPLEMENTATIONS = {"curated-transformers": Curated}
