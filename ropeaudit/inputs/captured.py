"""Read q and k, captured from a real model, out of a file.

It holds two tensors called q and k (or query and key), or there is a .npy of each. No pickle is run.
Letters: b batch, h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import Tensors

_NAMES = {"q": ("q", "query"), "k": ("k", "key")}
_REMEDIES = {
    "is a folder": "give a file with q and k",
    "no such file": "or give gaussian, ones or arange",
    "the file is empty": "give one with q and k",
}
# Squares of scores, and the low parts of products, stay clear of overflow and of underflow's grid.
_SMALLEST, _LARGEST = 1e-60, 1e60


def read(spec: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return q and k in float64, exactly as stored.

    Shapes: (h, s, d) and (g, s, d); (b, h, s, d) is folded into (b*h, s, d). Raises: BadInput.
    """
    paths = tensorfiles.paths(spec)
    for path in paths:
        if wrong := tensorfiles.wrong(path):
            raise BadInput(
                f"--qk {str(path)!r}: {wrong}; {_REMEDIES.get(wrong, 'give a file that can be read')}"
            )
    tensors = tensorfiles.guarded(f"--qk {spec!r}", paths[0], lambda: _tensors(paths))
    q, k = (_heads(spec, which, tensors) for which in _NAMES)
    if q.shape[1:] != k.shape[1:]:
        raise BadInput(
            f"--qk {spec!r}: q has shape {q.shape} and k {k.shape}; they must agree in positions and head_dim"
        )
    return q, k


def _tensors(paths: list[Path]) -> Tensors:
    if len(paths) == 2:
        return {name: next(tensorfiles.parts(p)).read(...) for name, p in zip("qk", paths, strict=True)}
    path, known = paths[0], (".safetensors", ".npz", ".pt", ".pth")
    if path.suffix.lower() not in known:
        seen = "one .npy file holds one tensor" if path.suffix == ".npy" else "unknown kind of file"
        raise BadInput(f"--qk {str(path)!r}: {seen}; give one of {', '.join(known)}, or a pair q.npy,k.npy")
    return tensorfiles.read(path, {name for names in _NAMES.values() for name in names})


def _heads(spec: str, name: str, tensors: Tensors) -> NDArray[np.float64]:
    """Check one tensor and bring it to (h, s, d) in float64."""
    called = next((one for one in _NAMES[name] if one in tensors), None)
    if called is None:
        seen = f"no tensor called {' or '.join(_NAMES[name])}; it holds {tensorfiles.listed(tensors)}"
        raise BadInput(f"--qk {spec!r}: {seen}")
    tensor = tensorfiles.real(f"--qk {spec!r}: {name}", tensors[called])
    if tensor.ndim not in (3, 4) or 0 in tensor.shape or tensor.shape[-1] % 2:
        raise BadInput(
            f"--qk {spec!r}: {name} has shape {tensor.shape}; give (heads, seq, head_dim) or "
            "(batch, heads, seq, head_dim), none of them 0, head_dim even"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes inf or nan here is refused below
        values = tensor.astype(np.float64).reshape(-1, *tensor.shape[-2:])
    if not np.isfinite(values).all():
        bad = int(values.size - np.isfinite(values).sum())
        raise BadInput(
            f"--qk {spec!r}: {name} has {bad} nan or infinite values of {values.size}; give finite ones"
        )
    largest = float(np.abs(values).max())
    if largest > _LARGEST or 0.0 < largest < _SMALLEST:
        raise BadInput(
            f"--qk {spec!r}: the largest value of {name} is {largest:.3g}; "
            f"give one between {_SMALLEST:g} and {_LARGEST:g}"
        )
    return values
