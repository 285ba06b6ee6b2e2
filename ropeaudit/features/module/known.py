"""Frequencies that a module's buffers hold, as it was built: what it should return follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.inferred import Inference
from ropeaudit.reference import exact_frequencies
from ropeaudit.tensor_files import rope_values

if TYPE_CHECKING:
    from ropeaudit.features.module.buffers import Buffer

Array = NDArray[np.float64]
Seen = tuple[Array, Array]  # frequencies, and how far off each may be, relative


def frequencies_of(name: str, tensor: Any) -> Array | None:
    """Return the frequencies that a tensor of torch holds, as its values say; None where they do not."""
    import torch

    wide = torch.complex128 if tensor.is_complex() else torch.float64
    values = tensor.detach().to("cpu", wide).numpy()
    seen = _frequencies(rope_values.known(values), values, str(tensor.dtype).removeprefix("torch."))
    return None if seen is None else seen[0]


def _frequencies(what: str, values: NDArray[Any], dtype: str) -> Seen | None:
    squeezed = np.squeeze(values)
    with np.errstate(all="ignore"):
        if what == "inv_freq":
            return _held(np.asarray(rope_values.folded(squeezed)))
        if what == "periods":
            return _held(np.asarray(1 / rope_values.folded(squeezed)))
        if what == "angles":
            return _held(np.asarray(rope_values.folded(squeezed[1])))
        if what == "both" and (halves := rope_values.both(squeezed)):
            return _inferred(halves[0] + 1j * halves[1], dtype)
    return None


def _held(theta: Array) -> Seen:
    return theta, np.zeros_like(theta)


def _inferred(points: NDArray[np.complex128], dtype: str) -> Seen:
    """Return the frequencies that a table of a dtype shows, and how far off each may be, relative."""
    unit = FP32.unit_roundoff if dtype.startswith("complex") else parse(dtype).unit_roundoff
    seen = Inference.of(points, unit)
    return seen.theta, seen.uncertain / np.where(seen.theta == 0, 1.0, np.abs(seen.theta))


def _of_both(cos: Buffer, buffers: Sequence[Buffer]) -> Seen | None:
    """Return the frequencies of a table of cos and the sin beside it; None where there is none."""
    for sin in buffers:
        same = sin.what == "sin" and sin.stored.values.shape == cos.stored.values.shape
        beside = sin.stored.name.rpartition(".")[0] == cos.stored.name.rpartition(".")[0]
        first, second = np.squeeze(cos.stored.values), np.squeeze(sin.stored.values)
        if same and beside and first.ndim == 2 and rope_values.partners(first, second):
            return _inferred(first + 1j * second, cos.stored.dtype)
    return None


def known(buffers: Sequence[Buffer]) -> list[tuple[str, Array, Array]]:
    """Return name, frequencies and relative tolerance of each buffer that says its frequencies.

    Of one that was cast they are the exact ones of the setting that explains it, if there is any. Those
    that are known without a tolerance come first; those of a table are inferred, up to theirs.
    """
    results = []
    for buffer in buffers:
        setting, stored = buffer.setting, buffer.stored
        seen = _frequencies(buffer.what, stored.values, stored.dtype)
        if buffer.what == "cos" and buffer.cast == "none":
            seen = _of_both(buffer, buffers)
        theta, tolerance = seen or (None, np.zeros(0))
        if setting is not None and (theta is None or (buffer.cast != "none" and setting.pairs == theta.size)):
            theta = np.array([float(one) for one in exact_frequencies.frequencies(setting)])
            tolerance = hypotheses.tolerance(setting)
        elif theta is None or not theta.size:
            continue
        results.append((buffer.stored.name, theta, tolerance))
    return sorted(results, key=lambda one: bool(one[2].any()))
