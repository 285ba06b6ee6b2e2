"""equinox: RotaryPositionalEmbedding, whose table starts at position 0, in the default dtype or in x's."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "equinox",
        "needs": ("equinox", "jax"),
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "nn.RotaryPositionalEmbedding from position 0, rows of what it returns; float32 tables",
    },
    {
        "name": "equinox-dtype",
        "package": "equinox",
        "needs": ("equinox", "jax"),
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "the same with dtype= of q and k, which rounds its tables",
    },
)

_LONGEST = 2**18  # positions: all of those before are rotated too


class Equinox(Adapter):
    """RotaryPositionalEmbedding, which takes no position: x is laid out from position 0."""

    engine = "jax"

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function."""

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            end = table_end(int(positions.max()), int(positions.min()))
            if end > _LONGEST:
                raise ValueError(f"it rotates from position 0 on; it is audited up to {_LONGEST - 1}")
            given = jnp.asarray(x.astype(np.float32)).astype(fmt.name)
            module = self.module(setting, fmt)
            rows = jnp.zeros((end, x.shape[2]), given.dtype)
            heads = [module(rows.at[positions].set(head))[positions] for head in given]
            return np.asarray(jnp.stack(heads).astype(jnp.float32))

        return rotate

    def module(self, setting: RopeSetting, dtype: Format) -> Any:
        """Return a new module; what others left in the package's cache is dropped."""
        from equinox.nn import _embedding

        _embedding.internal_rope_embedding_cache.clear()
        return eqx.nn.RotaryPositionalEmbedding(setting.head_dim, setting.base, **self.options(dtype))

    def options(self, dtype: Format) -> dict[str, Any]:
        """Return further arguments."""
        return {}


class InDtype(Equinox):
    """The same with tables in the dtype of x."""

    def options(self, dtype: Format) -> dict[str, Any]:
        """Return further arguments."""
        return {"dtype": jax.dtypes.canonicalize_dtype(dtype.name)}


IMPLEMENTATIONS = {"equinox": Equinox, "equinox-dtype": InDtype}
