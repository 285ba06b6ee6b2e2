"""One forward pass of a model at shifted positions, from a fresh state: logits, q and k, frequencies.

Letters: s positions, v vocabulary. Positions in tokens.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ropeaudit.errors import BadInput, one_line
from ropeaudit.features.model import float64_mode, load, provenance
from ropeaudit.features.model.capture import Capture, Products
from ropeaudit.features.model.layers import LayerVectors
from ropeaudit.features.model.lookups import Lookup, Lookups
from ropeaudit.runtime import process_state, streams
from ropeaudit.subjects.calling.devices import CPU, Device


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass returned. logits (s, v). reads: whether it did anything with the positions."""

    logits: Any
    layers: dict[int, LayerVectors]
    frequencies: dict[str, Any]
    lookups: dict[str, Lookup]
    reads: bool = True


class Runner:
    """A loaded model; every pass begins with the rotary state that it was loaded with.

    Frequencies that depend on the length are remembered by the modules that compute them.
    """

    def __init__(
        self,
        model: Any,
        wide: bool,
        maximum: int | None = None,
        scales: dict[int, float] | None = None,
        device: Device = CPU,
    ) -> None:
        """Keep the model, on a device; `wide` runs it in float64 throughout, see `float64_mode`.

        scales: of `Products`.
        """
        self.wide, self.maximum, self.device = wide, maximum, device
        self.scales = {} if scales is None else scales
        self.narrow: set[str] = set(float64_mode.widen(model)) if wide else set()
        self.model = device.moved(model)  # what was widened was made on the CPU
        self.fresh = {name: copy.deepcopy(module) for name, module in float64_mode.rotaries(model).items()}

    def run(self, ids: list[int], offset: int, *, follow: bool = False) -> Pass:
        """Read the tokens at positions offset ... offset + s - 1. Raises: BadInput.

        follow: whether layers get q and k before rotation too, as far as those are seen.
        """
        capture = Capture()
        load.listen(capture)
        for name, module in self.fresh.items():
            self.model.set_submodule(name, copy.deepcopy(module))
        given = self.device.put(torch.tensor([ids]))
        positions = self.device.put(torch.arange(len(ids))[None] + offset)
        lookups = Lookups(self.model, positions)
        products = Products(capture, self.scales, self.wide)
        followed = provenance.following(self.model, len(ids)) if follow else contextlib.nullcontext()
        with torch.no_grad(), self._arithmetic(), followed, products, lookups:
            try:
                with streams.aside(), process_state.foreign():
                    logits = self.model(given, position_ids=positions, use_cache=False).logits[0]
            except Exception as error:  # whatever a model's own code raises at positions that it has not
                raise BadInput(self._refusal(len(ids), offset, one_line(error, 300))) from None
        frequencies = {
            f"{name}.{key}": value.cpu().clone()
            for name, module in float64_mode.rotaries(self.model).items()
            for key, value in module._buffers.items()
            if key.endswith("inv_freq") and "original" not in key
        }
        return Pass(logits.detach().cpu(), capture.layers, frequencies, lookups.rows, lookups.reads)

    def _refusal(self, count: int, offset: int, message: str) -> str:
        beyond = self.maximum is not None and offset + count > self.maximum
        if not beyond:
            return f"the model cannot be run at offset {offset}: {message}"
        return (
            f"the model cannot be run at offset {offset}, past the {self.maximum:,} positions that it "
            f"declares: {message}"
        )

    @contextlib.contextmanager
    def _arithmetic(self) -> Iterator[None]:
        if not self.wide:
            yield
            return
        with float64_mode.wide() as mode:
            yield
        self.narrow |= mode.narrow


def differ(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names under which two mappings of tensors hold different ones."""
    return [name for name in first if name in other and not torch.equal(first[name], other[name])]
