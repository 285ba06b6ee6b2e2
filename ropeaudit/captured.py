"""Read q and k, captured from a real model, out of a file.

.safetensors, .npz, .pt and .pth hold two tensors called q and k (or query and key); a pair of .npy
files is named "q.npy,k.npy". Nothing in a file is ever executed: no pickles.
Letters: b batch, h heads, g key-value heads, s positions, d head_dim.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput

Tensors = Mapping[str, NDArray[Any]]
_NAMES = {"q": ("q", "query"), "k": ("k", "key")}
# Squares of scores, and the low parts of products, stay clear of overflow and of underflow's grid.
_SMALLEST, _LARGEST = 1e-60, 1e60


def read(spec: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return q and k in float64, exactly as stored.

    spec: a path, or two .npy paths with a comma between them.
    Shapes: (h, s, d) and (g, s, d); (b, h, s, d) is folded into (b*h, s, d).
    Raises: BadInput for whatever is wrong with the file or with its tensors.
    """
    paths = [Path(part) for part in spec.split(",")] if spec.endswith(".npy") else [Path(spec)]
    for path in paths:
        _check(path)
    try:
        with warnings.catch_warnings():  # what a parser thinks of a file is in its error
            warnings.simplefilter("ignore")
            tensors = _tensors(paths)
    except BadInput:
        raise
    except ImportError as error:
        raise BadInput(f"--qk {spec!r}: cannot be read without {error.name}") from None
    except Exception as error:  # whatever a parser makes of a damaged or hostile file
        raise BadInput(f"--qk {spec!r}: not a readable {paths[0].suffix} file: {_line(error)}") from None
    q, k = (_heads(spec, name, _pick(spec, tensors, name)) for name in ("q", "k"))
    if q.shape[1:] != k.shape[1:]:
        raise BadInput(
            f"--qk {spec!r}: q has shape {q.shape} and k {k.shape}; they must agree in positions and head_dim"
        )
    return q, k


def _check(path: Path) -> None:
    """Raise BadInput unless the path is that of a file with something in it."""
    name = f"--qk {str(path)!r}"
    try:
        if path.is_dir():
            raise BadInput(f"{name}: is a folder; give a file with q and k")
        if not path.is_file():
            raise BadInput(f"{name}: no such file; or give gaussian, ones or arange")
        if path.stat().st_size == 0:
            raise BadInput(f"{name}: the file is empty; give one with q and k")
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}; give a file that can be read") from None


def _tensors(paths: list[Path]) -> Tensors:
    if len(paths) == 2:
        return {name: np.load(p, allow_pickle=False) for name, p in zip("qk", paths, strict=True)}
    reader = _READERS.get(paths[0].suffix.lower())
    if reader is None:
        seen = "one .npy file holds one tensor" if paths[0].suffix == ".npy" else "unknown kind of file"
        raise BadInput(
            f"--qk {str(paths[0])!r}: {seen}; give one of {', '.join(_READERS)}, or a pair q.npy,k.npy"
        )
    return reader(paths[0])


def _read_npz(path: Path) -> Tensors:
    with path.open("rb") as file:  # NumPy leaves it open where the archive is damaged
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadInput(f"--qk {str(path)!r}: holds one array; give an archive with q and k")
        return {name: archive[name] for name in archive.files if _wanted(name)} or dict.fromkeys(
            archive.files, np.zeros(0)
        )


def _read_safetensors(path: Path) -> Tensors:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as archive:
        names = list(archive.keys())
        return {name: archive.get_tensor(name) for name in names if _wanted(name)} or dict.fromkeys(
            names, np.zeros(0)
        )


def _read_torch(path: Path) -> Tensors:
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(loaded, (tuple, list)) and len(loaded) == 2:
        loaded = dict(zip("qk", loaded, strict=True))
    if not isinstance(loaded, dict):
        raise BadInput(f"--qk {str(path)!r}: holds a {type(loaded).__name__}; give a dict of q and k")
    tensors = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    found: dict[str, NDArray[Any]] = {}
    for name, value in tensors.items():
        kept = value.detach()
        if _wanted(name) and kept.dtype.is_floating_point:
            kept = kept.to(torch.float64)  # NumPy knows neither bfloat16 nor float8
        found[name] = kept.numpy() if _wanted(name) else np.zeros(0)
    return found


_READERS: dict[str, Callable[[Path], Tensors]] = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
}


def _wanted(name: str) -> bool:
    return any(name in names for names in _NAMES.values())


def _pick(spec: str, tensors: Tensors, which: str) -> NDArray[Any]:
    for name in _NAMES[which]:
        if name in tensors:
            return tensors[name]
    seen = ", ".join(repr(name[:40])[1:-1] for name in sorted(tensors)[:8]) or "nothing"
    raise BadInput(f"--qk {spec!r}: no tensor called {' or '.join(_NAMES[which])}; it holds {seen}")


def _heads(spec: str, name: str, tensor: NDArray[Any]) -> NDArray[np.float64]:
    """Check one tensor and bring it to (h, s, d) in float64."""
    if not isinstance(tensor, np.ndarray):  # .npz archives may hold files that are no arrays
        raise BadInput(f"--qk {spec!r}: {name} is no array; give real numbers")
    if tensor.dtype.kind == "V" and tensor.dtype.itemsize == 2:
        import ml_dtypes

        tensor = tensor.view(ml_dtypes.bfloat16)  # how NumPy's own files hand bfloat16 back
    if tensor.dtype.kind in "VOcSUbMm" and "float" not in tensor.dtype.name:
        raise BadInput(f"--qk {spec!r}: {name} holds {tensor.dtype}; give real numbers")
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


def _line(error: BaseException) -> str:
    """The first sentence of a parser's message, short enough to read, without advice on pickles."""
    if "ickle" in str(error) or "weights_only" in str(error):
        return "it holds Python objects, or is damaged; give tensors alone"
    text = str(error).strip().splitlines()
    first = text[0].partition(". ")[0] if text else ""
    return (first if len(first) > 3 else "it is damaged")[:160]
