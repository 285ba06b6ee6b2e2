"""Functions of jax that take positions: of gemma, tunix and EasyDeL, each out of its file alone.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation, table_end

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "gemma",
        "needs": ("gemma", "jax"),
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "apply_rope of gemma/gm/math/_positional_embeddings.py, its file alone, in jax",
    },
    {
        "name": "tunix-llama3",
        "package": "google-tunix",
        "needs": ("tunix", "jax"),
        "extra": "tunix",
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "apply_rope of tunix/models/llama3/model.py, the function alone, in jax",
    },
    {
        "name": "tunix-gemma3",
        "package": "google-tunix",
        "needs": ("tunix", "jax"),
        "extra": "tunix",
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "apply_rope of tunix/models/gemma3/model.py, the function alone, in jax",
    },
    {
        "name": "tunix-gemma4",
        "package": "google-tunix",
        "needs": ("tunix", "jax"),
        "extra": "tunix",
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "apply_rope of tunix/models/gemma4/model.py, the function alone, in jax",
    },
    {
        "name": "tunix-qwen3",
        "package": "google-tunix",
        "needs": ("tunix", "jax"),
        "extra": "tunix",
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "apply_rope of tunix/models/qwen3/model.py, the function alone, in jax",
    },
    {
        "name": "easydel",
        "needs": ("easydel", "jax"),
        "layouts": ("half", "interleaved"),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "compute_basic_frequencies and apply_basic_rope of easydel/layers/rotary/_compute_fns.py, "
        "the functions alone, in jax",
    },
)

# x (1, s, h, d), positions (1, s) -> x rotated
Function: TypeAlias = Callable[[Any, Any], Any]
_INT32 = 2**31


class JaxFunction(Adapter):
    """A function of jax that takes x (1, s, h, d) and positions (1, s)."""

    engine = "jax"

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function."""
        function = self.function(setting)

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            if abs(positions).max(initial=0) >= _INT32:
                raise ValueError("its positions are int32")
            given = jnp.asarray(x.transpose(1, 0, 2)[None].astype(np.float32)).astype(fmt.name)
            rotated = function(given, jnp.asarray(positions[None].astype(np.int32)))
            back: FloatArray = np.asarray(rotated.astype(jnp.float32))[0].transpose(1, 0, 2)
            return back

        return rotate

    def function(self, setting: RopeSetting) -> Function:
        """Return what is called."""
        raise NotImplementedError  # each class below says its own


class Gemma(JaxFunction):
    """apply_rope of gemma."""

    def function(self, setting: RopeSetting) -> Function:
        """Return what is called."""
        apply = one_file.module("gemma", "gm/math/_positional_embeddings.py").apply_rope
        return lambda x, at: apply(x, at, base_frequency=setting.base)


class Tunix(JaxFunction):
    """apply_rope of a model of tunix."""

    def function(self, setting: RopeSetting) -> Function:
        """Return what is called."""
        place = f"models/{self.name.removeprefix('tunix-')}/model.py"
        given = {"jnp": jnp, "jax": jax}
        apply = one_file.definitions("tunix", place, ["apply_rope"], given)["apply_rope"]
        names = inspect.signature(apply).parameters
        base = "rope_theta" if "rope_theta" in names else "base_frequency"
        dims = {"head_dim": setting.head_dim} if "head_dim" in names else {}
        return lambda x, at: apply(x, at, **{base: setting.base}, **dims)


class EasyDel(JaxFunction):
    """compute_basic_frequencies, a table from 0 in float32, and apply_basic_rope."""

    partial = True

    def function(self, setting: RopeSetting) -> Function:
        """Return what is called; the table is as long as the largest position needs, or it raises."""
        space: dict[str, Any] = {"jax": jax, "jnp": jnp}
        utils = one_file.definitions(
            "easydel", "layers/rotary/_utils.py", ["_rotate_neox", "_rotate_gptj", "_apply_rotary_emb"], space
        )
        names = ["compute_basic_inv_frequencies", "compute_basic_frequencies", "apply_basic_rope"]
        own = one_file.definitions("easydel", "layers/rotary/_compute_fns.py", names, {**space, **utils})

        def rotate(x: Any, at: Any) -> Any:
            end = table_end(int(at.max()), int(at.min()))
            table = own["compute_basic_frequencies"](setting.base, setting.rotary_dim, end)
            return own["apply_basic_rope"](
                x, x, at, table, setting.rotary_dim, setting.layout == "half", dtype=x.dtype
            )[0]

        return rotate


IMPLEMENTATIONS = {
    "gemma": Gemma,
    **{f"tunix-{model}": Tunix for model in ("llama3", "gemma3", "gemma4", "qwen3")},
    "easydel": EasyDel,
}
