"""Frequencies that a module's buffers hold, as it was built: what it should return follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.stored_table import recovered
from ropeaudit.reference import exact_frequencies
from ropeaudit.tensor_files import rope_values

if TYPE_CHECKING:
    from ropeaudit.features.module.buffers import Buffer

Array = NDArray[np.float64]


def frequencies_of(name: str, tensor: Any) -> Array | None:
    """Return the frequencies that a tensor of torch holds, as its values say; None where they do not."""
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    values = tensor.detach().to("cpu", wide).numpy()
    return _frequencies(rope_values.known(values), values)


def _frequencies(what: str, values: NDArray[Any]) -> Array | None:
    squeezed = np.squeeze(values)
    with np.errstate(all="ignore"):
        if what == "inv_freq":
            return np.asarray(rope_values.folded(squeezed))
        if what == "periods":
            return np.asarray(1 / rope_values.folded(squeezed))
        if what == "angles":
            return np.asarray(rope_values.folded(squeezed[1]))
        if what == "both" and (halves := rope_values.both(squeezed)):
            return recovered(halves[0] + 1j * halves[1])
    return None


def _of_both(cos: Buffer, buffers: Sequence[Buffer]) -> Array | None:
    """Return the frequencies of a table of cos and the sin beside it; None where there is none."""
    for sin in buffers:
        same = sin.what == "sin" and sin.stored.values.shape == cos.stored.values.shape
        beside = sin.stored.name.rpartition(".")[0] == cos.stored.name.rpartition(".")[0]
        first, second = np.squeeze(cos.stored.values), np.squeeze(sin.stored.values)
        if same and beside and first.ndim == 2 and rope_values.partners(first, second):
            return recovered(first + 1j * second)
    return None


def known(buffers: Sequence[Buffer]) -> list[tuple[str, Array, Array]]:
    """Return name, frequencies and relative tolerance of each buffer that says its frequencies.

    Of one that was cast they are the exact ones of the setting that explains it, if there is any. Those
    that are known without a tolerance come first.
    """
    results = []
    for buffer in buffers:
        theta, setting = _frequencies(buffer.what, buffer.stored.values), buffer.setting
        if buffer.what == "cos" and buffer.cast == "none":
            theta = _of_both(buffer, buffers)
        if setting is not None and (theta is None or (buffer.cast != "none" and setting.pairs == theta.size)):
            theta = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
            tolerance = hypotheses.tolerance(setting)
        elif theta is not None and theta.size:
            tolerance = np.zeros_like(theta)
        else:
            continue
        results.append((buffer.stored.name, theta, tolerance))
    return sorted(results, key=lambda one: bool(one[2].any()))
