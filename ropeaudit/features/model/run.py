"""One forward pass of a model at shifted positions, from a fresh state: logits, q and k, frequencies.

Letters: s positions, v vocabulary. Positions in tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput, UsageError
from ropeaudit.features.model import float64_mode, load
from ropeaudit.features.model.layers import Capture, LayerVectors, RotatedPairs
from ropeaudit.runtime import process_state, streams
from ropeaudit.subjects.calling.implementation import one_line


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass returned. logits (s, v). lookups: the inputs of every embedding."""

    logits: Any
    layers: dict[int, LayerVectors]
    frequencies: dict[str, Any]
    lookups: dict[str, Any]


class Runner:
    """A loaded model; every pass begins with the rotary state that it was loaded with.

    Frequencies that depend on the length are remembered by the modules that compute them.
    """

    def __init__(self, model: Any, layout: str, wide: bool) -> None:
        """Keep the model; `wide` runs it in float64 throughout, see `float64_mode`."""
        self.model, self.layout, self.wide = model, layout, wide
        self.narrow: set[str] = set(float64_mode.widen(model)) if wide else set()
        self.fresh = {name: copy.deepcopy(module) for name, module in float64_mode.rotaries(model).items()}

    def run(self, ids: list[int], offset: int) -> Pass:
        """Read the tokens at positions offset ... offset + s - 1. Raises: BadInput."""
        capture = Capture()
        load.listen(capture)
        for name, module in self.fresh.items():
            self.model.set_submodule(name, copy.deepcopy(module))
        given = torch.tensor([ids])
        positions = torch.arange(len(ids))[None] + offset
        with self._listening() as lookups, torch.no_grad(), self._arithmetic():
            try:
                with streams.aside(), process_state.foreign():
                    logits = self.model(given, position_ids=positions, use_cache=False).logits[0]
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
                raise BadInput(
                    f"the model cannot be run at offset {offset}: {one_line(error, 300)}"
                ) from None
        frequencies = {
            f"{name}.{key}": value.clone()
            for name, module in float64_mode.rotaries(self.model).items()
            for key, value in module._buffers.items()
            if key.endswith("inv_freq") and "original" not in key
        }
        return Pass(logits.detach(), capture.layers, frequencies, lookups)

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        if not self.wide:
            yield
            return
        with float64_mode.wide() as mode:
            yield
        self.narrow |= mode.narrow

    @contextlib.contextmanager
    def _listening(self) -> Iterator[dict[str, Any]]:
        """Note the inputs of every embedding: one whose inputs are positions is learned."""
        lookups: dict[str, Any] = {}

        def listen(name: str) -> Any:
            def note(module: Any, inputs: Any) -> None:
                lookups[name] = inputs[0].detach().clone()

            return note

        handles = [
            module.register_forward_pre_hook(listen(name))
            for name, module in self.model.named_modules()
            if isinstance(module, torch.nn.Embedding)
        ]
        try:
            yield lookups
        finally:
            for handle in handles:
                handle.remove()

    def check_learned(self, base: Pass, ids: list[int], offsets: list[int]) -> None:
        """Raise UsageError for an offset that learned positions do not reach. base: the pass at offset 0."""
        count = len(ids)
        for name, positions in base.lookups.items():
            steps = positions.reshape(-1) - torch.arange(positions.numel())
            if (
                positions.numel() == count > 2
                and bool((steps == steps[0]).all())
                and positions.reshape(-1).tolist() != ids
            ):
                most = self.model.get_submodule(name).num_embeddings - count - int(steps[0])
                beyond = [offset for offset in offsets if offset > most]
                if beyond:
                    raise UsageError(
                        f"--offset {beyond[0]}: positions are learned ({name}) and end before; for "
                        f"{count} tokens offsets go up to {most}"
                    )

    def pairs(self, layer: int) -> RotatedPairs:
        """Return the pairs of a layer, none where it is not rotated."""
        config = self.model.config.get_text_config()
        nothing = RotatedPairs(0, self.layout, np.zeros(0))
        rotates = getattr(config, "no_rope_layers", None)
        if isinstance(rotates, (list, tuple)) and layer < len(rotates) and not rotates[layer]:
            return nothing
        modules = float64_mode.rotaries(self.model)
        own = [module for name, module in modules.items() if f".{layer}." in f".{name}."] or list(
            modules.values()
        )
        if not own:
            return nothing
        types = getattr(config, "layer_types", None)
        key = (
            f"{types[layer]}_inv_freq"
            if isinstance(types, (list, tuple)) and layer < len(types)
            else "inv_freq"
        )
        buffers = own[0]._buffers
        values = buffers[key] if key in buffers else buffers.get("inv_freq")
        if values is None:
            return nothing
        factor = getattr(own[0], key.replace("inv_freq", "attention_scaling"), None)
        factor = getattr(own[0], "attention_scaling", 1.0) if factor is None else factor
        frequencies: Array = values.detach().double().cpu().numpy().reshape(-1)
        latent = getattr(config, "qk_nope_head_dim", None)
        return RotatedPairs(
            int(latent or 0),
            self.layout,
            frequencies,
            float(factor) if isinstance(factor, (int, float)) else 1.0,
        )


def differ(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names under which two mappings of tensors hold different ones."""
    return [name for name in first if name in other and not torch.equal(first[name], other[name])]
