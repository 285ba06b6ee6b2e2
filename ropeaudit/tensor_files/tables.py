"""Read a dumped table of frequencies, or of cos and sin, out of a file.

.npy holds one array (a pair is named "cos.npy,sin.npy"); .npz, .safetensors, .pt and .pth hold tensors that
are known by their names, or a single one of any name, which may hold angles too. Of a name such as
model.rotary_emb.inv_freq the last part counts. Nothing in a file is ever executed: no pickles.
Letters: n positions, p pairs, c columns: p, or 2p where every pair stands twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import BadInput
from ropeaudit.tensor_files import rope_values
from ropeaudit.tensor_files import tensors as tensorfiles
from ropeaudit.tensor_files.tensors import Tensors, Unnamed

Array = NDArray[np.float64]
_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt", ".pth")
_FREQUENCIES = ("inv_freq", "inv_freqs", "frequencies", "freqs")
_COS = ("cos", "cos_cached", "cos_cache", "cos_table", "freqs_cos")
_SIN = ("sin", "sin_cached", "sin_cache", "sin_table", "freqs_sin")
_BOTH = ("freqs_cis", "freqs_complex", "cos_sin_cache", "cos_sin", "cache")  # complex, or side by side
_NAMES = frozenset((*_FREQUENCIES, *_COS, *_SIN, *_BOTH))


@dataclass(frozen=True, slots=True)
class Dump:
    """What a file holds, in float64, exactly as stored: frequencies (c,), or cos and sin (n, c).

    inverse: the frequencies are stored as their inverses, whose values a cast has rounded.
    """

    spec: str
    name: str
    frequencies: Array | None = None
    cos: Array | None = None
    sin: Array | None = None
    inverse: bool = False

    def folded(self, pairs: int) -> Dump:
        """Return the dump with one column a pair, where each stands twice: in halves or side by side.

        Raises: BadInput if the columns are not those of `pairs` pairs.
        """
        frequencies, cos, sin = (
            None if part is None else self._folded(part, pairs)
            for part in (self.frequencies, self.cos, self.sin)
        )
        return replace(self, frequencies=frequencies, cos=cos, sin=sin)

    def _folded(self, part: Array, pairs: int) -> Array:
        columns = part.shape[-1]
        if columns == pairs:
            return part
        if columns != 2 * pairs:
            raise BadInput(
                f"--against {self.spec!r}: {self.name} has {columns} columns and the setting has {pairs} "
                f"pairs; give --head-dim or --rotary-dim {2 * columns}, or {columns} if each stands twice"
            )
        for first, second in (np.split(part, 2, axis=-1), (part[..., ::2], part[..., 1::2])):
            if np.array_equal(first, second, equal_nan=True):
                return first
        raise BadInput(
            f"--against {self.spec!r}: the {columns} columns of {self.name} repeat {pairs} pairs neither in "
            f"halves nor side by side; give one column a pair, or --rotary-dim {2 * columns}"
        )


def read(spec: str) -> Dump:
    """Return the table in a file. spec: a path, or "cos.npy,sin.npy". Raises: BadInput."""
    paths = tensorfiles.paths(spec)
    for path in paths:
        if wrong := tensorfiles.wrong(path):
            remedy = "give a file with inv_freq, or with cos and sin"
            raise BadInput(f"--against {str(path)!r}: {wrong}; {remedy}")
    tensors = tensorfiles.guarded(f"--against {spec!r}", paths[0], lambda: _tensors(spec, paths))
    return _dump(spec, tensors)


def _tensors(spec: str, paths: list[Path]) -> Tensors:
    if len(paths) > 2:
        raise BadInput(f"--against {spec!r}: names {len(paths)} files; give one, or cos.npy,sin.npy")
    if len(paths) == 2:
        return {name: tensorfiles.read_npy(p) for name, p in zip(("cos", "sin"), paths, strict=True)}
    path = paths[0]
    if path.suffix.lower() == ".npy":
        return {path.stem: tensorfiles.read_npy(path)}
    if path.suffix.lower() not in tensorfiles.SUFFIXES:
        raise BadInput(f"--against {spec!r}: unknown kind of file; give one of {', '.join(_SUFFIXES)}")
    try:
        return tensorfiles.read(path, _chosen_names, ("cos", "sin"))
    except Unnamed as other:
        if other.args[1] is not None:
            return {path.stem: other.args[1]}
        raise BadInput(f"--against {str(path)!r}: holds {other.args[0]}; give tensors by name") from None


def _chosen_names(names: list[str]) -> list[str]:  # the names to load: known ones, or the only one there is
    return [name for name in names if _last(name) in _NAMES] or (names if len(names) == 1 else [])


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _dump(spec: str, tensors: Tensors) -> Dump:
    """Choose among the tensors: frequencies first, then cos and sin, then both in one."""
    known_names = {"inv_freq": _FREQUENCIES, "cos": _COS, "sin": _SIN, "both": _BOTH}
    picked = {kind: _pick(spec, tensors, names) for kind, names in known_names.items()}
    if picked["inv_freq"] is None and picked["cos"] is not None and picked["sin"] is not None:
        cos, sin = (_plane(spec, *picked[kind]) for kind in ("cos", "sin"))  # type: ignore[misc]
        if cos.shape != sin.shape:
            raise BadInput(
                f"--against {spec!r}: cos has shape {cos.shape} and sin {sin.shape}; give equal ones"
            )
        return Dump(spec, "the cos/sin table", cos=cos, sin=sin)
    chosen = picked["inv_freq"] or picked["both"]
    if chosen is None and len(tensors) == 1 and not {_last(n) for n in tensors} & {*_COS, *_SIN}:
        chosen = next(iter(tensors.items()))
    if chosen is None:
        seen = f"no inv_freq, cos and sin, or freqs_cis; it holds {tensorfiles.listed(tensors)}"
        raise BadInput(f"--against {spec!r}: {seen}")
    name, tensor = chosen
    squeezed = np.squeeze(tensor) if isinstance(tensor, np.ndarray) else tensor
    if getattr(squeezed, "ndim", 0) <= 1 and getattr(tensor, "dtype", np.dtype("O")).kind != "c":
        return Dump(spec, "inv_freq", frequencies=_real(spec, name, tensor).reshape(-1))
    if not np.iscomplexobj(tensor) and rope_values.known(_real(spec, name, tensor)) == "angles":
        angles = _plane(spec, name, tensor)
        with np.errstate(invalid="ignore"):
            return Dump(spec, "the angle table", cos=np.cos(angles), sin=np.sin(angles))
    cos, sin = _both(spec, name, tensor)
    return Dump(spec, "the cos/sin table", cos=cos, sin=sin)


def _pick(spec: str, tensors: Tensors, names: tuple[str, ...]) -> tuple[str, NDArray[Any]] | None:
    """Return the tensor of one of these names; layers may each hold the same one. Raises: BadInput."""
    for last in names:
        matching = [(name, tensor) for name, tensor in tensors.items() if _last(name) == last]
        if any(not np.array_equal(tensor, matching[0][1]) for _, tensor in matching[1:]):
            seen = f"{len(matching)} tensors called {last} differ"
            raise BadInput(f"--against {spec!r}: {seen}; give a file with one")
        if matching:
            return matching[0]
    return None


def _both(spec: str, name: str, tensor: NDArray[Any]) -> tuple[Array, Array]:
    """Take cos and sin out of a complex table, one with a last axis of 2, or one with them side by side."""
    if tensor.dtype.kind == "c":
        return _plane(spec, name, tensor.real), _plane(spec, name, tensor.imag)
    if tensor.ndim > 2 and tensor.shape[-1] == 2:
        return _plane(spec, name, tensor[..., 0]), _plane(spec, name, tensor[..., 1])
    plane = _plane(spec, name, tensor)
    if known := rope_values.both(plane):
        return known  # whichever stands first
    half = plane.shape[1] // 2
    if plane.shape[1] != 2 * half:
        raise BadInput(
            f"--against {spec!r}: {name[:40]} has shape {tensor.shape}; give cos and sin side by side"
        )
    return plane[:, :half], plane[:, half:]


def _plane(spec: str, name: str, tensor: NDArray[Any]) -> Array:
    """Bring a table to (n, c) in float64: axes of length 1 before the last are dropped."""
    values = _real(spec, name, tensor)
    axes = [axis for axis, length in enumerate(values.shape[:-1]) if length == 1]
    values = np.squeeze(values, tuple(axes[: max(0, values.ndim - 2)]))
    if values.ndim != 2 or values.shape[0] < 2:
        needed = "give (positions, pairs) or (positions, rotary_dim), for 2 positions at least"
        raise BadInput(f"--against {spec!r}: {name[:40]} has shape {tensor.shape}; {needed}")
    return values


def _real(spec: str, name: str, tensor: Any) -> Array:
    """Return a tensor in float64. Raises: BadInput unless it holds real numbers, and some."""
    seen = f"--against {spec!r}: {name[:40]}"
    tensor = tensorfiles.real(seen, tensor)
    if tensor.size == 0:
        raise BadInput(f"{seen} has shape {tensor.shape}, which holds no number")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(tensor, dtype=np.float64)
