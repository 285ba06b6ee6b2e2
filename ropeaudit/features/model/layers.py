"""q and k of every layer, as they come out of RoPE: which dims it rotates, and how far a shift moves scores.

No model type is known here. q and k at a later position are those at an earlier one, rotated by the distance
times the frequencies: what a layer does is the arrangement of pairs for which that holds.

Letters: h heads, g key-value heads, s positions, d head_dim, p pairs. Scores are scaled, before softmax.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput
from ropeaudit.recognition import wording
from ropeaudit.rope import hf_config
from ropeaudit.rope.setting import LAYOUTS
from ropeaudit.runtime import atomic_files, paths

if TYPE_CHECKING:
    from ropeaudit.features.model.load import Folder

DISTANCE = 64  # tokens between the two runs: the slowest pair of any known model moves by more than NEAR
NEAR = 1e-6  # of the largest element: a wrong arrangement is off by 1e-5 and more, float64 by 1e-12
Table = tuple[Array, float]
Called = tuple[tuple[Array, Array], tuple[Array, Array]]


@dataclass(frozen=True, slots=True)
class LayerVectors:
    """q (h, s, d) and k (g, s, d) of a layer in float64, exactly as computed; visible (s, s) scores.

    called: what a function of the library that rotates was given and returned, q and k each, where attention
    gets that; None where it was not heard.
    """

    q: Array
    k: Array
    scale: float
    visible: NDArray[np.bool_]
    called: Called | None = None


@dataclass(frozen=True, slots=True)
class RotatedPairs:
    """Where a layer's pairs of dims stand, and their frequencies (p,), radians per token.

    factor: what cos and sin are multiplied by. swapped: whether the second dim of a pair turns to the first.
    """

    start: int
    layout: str
    frequencies: Array
    factor: float = 1.0
    swapped: bool = False

    def split(self, x: Array) -> tuple[Array, Array]:
        """Return views of both dims of every pair. Shapes: (..., d) -> two of (..., p)."""
        p = self.frequencies.size
        part = x[..., self.start : self.start + 2 * p]
        both = (part[..., ::2], part[..., 1::2])
        if self.layout != "interleaved":
            both = (part[..., :p], part[..., p:])
        return both[::-1] if self.swapped else both

    def rotated(self, x: Array, distances: int | NDArray[Any], divisor: float = 1.0) -> Array:
        """Return x, moved on by a distance, or each row by its own, over a divisor.

        Shapes: (h, s, d), () or (s,) -> (h, s, d).
        """
        angles = np.multiply.outer(distances, self.frequencies)
        cos, sin = np.cos(angles) / divisor, np.sin(angles) / divisor
        turned = x.copy()
        (a, b), (first, second) = self.split(x), self.split(turned)
        first[...], second[...] = a * cos - b * sin, b * cos + a * sin
        return turned

    def arranged(self, x: Array, layout: str) -> Array:
        """Return x with rotated dims first; scores stay. Shapes: (h, s, d) -> (h, s, d)."""
        dims = np.arange(x.shape[-1])
        a, b = self.split(dims.astype(np.float64))
        rotated = np.stack([a, b], -1).reshape(-1) if layout == "interleaved" else np.concatenate([a, b])
        return x[..., np.concatenate([rotated, np.setdiff1d(dims, rotated)]).astype(int)]


def as_array(x: Any) -> Array:
    """Return a copy of a tensor in float64."""
    return np.array(x.detach().cpu().double().numpy())


def off(x: Array, expected: Array) -> float:
    """Return the largest error over the largest expected value; inf if not comparable."""
    if x.shape != expected.shape:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        far = float(np.abs(x - expected).max()) / max(float(np.abs(expected).max()), 1e-300)
    return far if np.isfinite(far) else np.inf


NO_PAIRS = RotatedPairs(0, "half", np.zeros(0))


def tables(model: Any, head_dim: int | None = None) -> list[Table]:
    """Return every list of frequencies that a model holds, and its factor of cos and sin.

    head_dim: the largest; those that do not fit into it rotate no head, such as of sines that are added to
    the embedding.
    """
    from ropeaudit.features.model import held  # in-function: it loads torch

    found: list[Table] = []
    for module in held.rotaries(model).values():
        for key, values in held.frequencies(module).items():
            factor = held.factor(module, key)
            found.append((values, 1.0 if factor is None else factor))
    for module in held.tabled(model).values():
        for table in held.computed_tables(module).values():
            if (values := _of_sines(table.double().cpu().numpy())).size:
                found.append((values, 1.0))
    results: list[Table] = []
    for one in found:
        fits = head_dim is None or 2 * one[0].size <= head_dim
        if fits and not any(np.array_equal(one[0], other[0]) and one[1] == other[1] for other in results):
            results.append(one)
    return results


def _of_sines(table: Array) -> Array:
    """Return the frequencies of a table of sin and cos side by side, else none.

    Shapes: (s, 2p) -> (p,). They are the angles of position 1, which are below a half turn.
    """
    if table.ndim != 2 or len(table) < 2 or table.shape[1] % 2:
        return np.zeros(0)
    halves = np.split(table[:2], 2, axis=1)
    sin, cos = halves if not halves[0][0].any() else halves[::-1]
    if sin[0].any() or (cos[0] != 1.0).any():
        return np.zeros(0)
    return np.asarray(np.arctan2(sin[1], cos[1]))


def rotated_pairs(
    base: Mapping[int, LayerVectors], other: Mapping[int, LayerVectors], distance: int, held: Sequence[Table]
) -> dict[int, RotatedPairs]:
    """Return the pairs by layer, `NO_PAIRS` for no rotation; omit layers that nothing fits."""
    results = {}
    for layer, before in base.items():
        tried, head_dim = [NO_PAIRS], before.q.shape[-1]
        for frequencies, factor in held:
            rotary_dim = 2 * frequencies.size
            starts = dict.fromkeys((0, head_dim - rotary_dim)) if 0 < rotary_dim <= head_dim else ()
            for start, layout, swapped in product(starts, LAYOUTS, (False, True)):
                tried.append(RotatedPairs(start, layout, frequencies, factor, swapped))
        both = [(before.q, other[layer].q), (before.k, other[layer].k)]
        with np.errstate(invalid="ignore", over="ignore"):
            errors = [max(off(pairs.rotated(x, distance), y) for x, y in both) for pairs in tried]
        if min(errors) <= NEAR:
            results[layer] = tried[int(np.argmin(errors))]
    return results


def unrotated(pairs: Mapping[int, RotatedPairs]) -> set[int]:
    """Return the layers that do not rotate, of a model whose other layers do."""
    still = {layer for layer, one in pairs.items() if not one.frequencies.size}
    return still if len(still) < len(pairs) else set()


def longer_queries(both: Iterable[tuple[LayerVectors, LayerVectors]]) -> bool:
    """Return whether a shift multiplies queries but not keys, in the first layer that changes.

    RoPE leaves lengths; a temperature that grows with the position does not. 1e-9: far above rounding of
    float64.
    """
    for base, shifted in both:
        with np.errstate(invalid="ignore"):
            lengths = [[np.linalg.norm(x, axis=-1) for x in (one.q, one.k)] for one in (base, shifted)]
            far = [
                bool((np.abs(b - a) > 1e-9 * np.abs(a).max()).any()) for a, b in zip(*lengths, strict=True)
            ]
        if any(far):
            return far == [True, False]
    return False


@dataclass(frozen=True, slots=True)
class HeadDrift:
    """What a shift does to the scores of a head, and which pairs it uses and suffers in.

    q_norm, k_norm: mean norm of every pair's chunk (p,), the frequency usage of arXiv 2410.06205.
    pair_rms: RMS over all q and k of what each pair adds to the change (p,).
    """

    layer: int
    head: int
    scores: int
    largest: float
    squares: float
    reference_squares: float
    q_norm: Array
    k_norm: Array
    pair_rms: Array
    wavelength: Array


def drifts(layer: int, base: LayerVectors, shifted: LayerVectors, pairs: RotatedPairs) -> list[HeadDrift]:
    """Compare a layer's scores before and after a shift, head by head, in float64."""
    head_drifts = []
    heads, groups = base.q.shape[0], base.k.shape[0]
    with np.errstate(divide="ignore"):
        wavelength = np.asarray(2 * np.pi / pairs.frequencies)
    with np.errstate(invalid="ignore", over="ignore"):
        for head in range(heads):
            group = head * groups // heads
            q, k, rotated_q, rotated_k = base.q[head], base.k[group], shifted.q[head], shifted.k[group]
            reference = np.where(base.visible, q @ k.T, 0.0) * base.scale
            change = (
                np.where(base.visible, (rotated_q - q) @ rotated_k.T + q @ (rotated_k - k).T, 0) * base.scale
            )
            norms = [np.hypot(*pairs.split(x)).mean(axis=0) for x in (q, k)]
            head_drifts.append(
                HeadDrift(
                    layer=layer,
                    head=head,
                    scores=int(base.visible.sum()),
                    largest=float(np.abs(change).max()),
                    squares=float(np.sum(change**2)),
                    reference_squares=float(np.sum(reference**2)),
                    q_norm=norms[0],
                    k_norm=norms[1],
                    pair_rms=_by_pair(q, k, rotated_q, rotated_k, pairs) * base.scale,
                    wavelength=wavelength,
                )
            )
    return head_drifts


def _by_pair(q: Array, k: Array, rotated_q: Array, rotated_k: Array, pairs: RotatedPairs) -> Array:
    """Return the RMS, over all q and k, of every pair's part of the change of q·k. Shapes: (s, d) -> (p,).

    The change (q' - q)·k' + q·(k' - k) is a product of 4 columns, whose norm their Gram matrices tell.
    """
    parts = [pairs.split(x) for x in (rotated_q - q, q, rotated_k, rotated_k - k)]
    left, right = (np.stack([*parts[i], *parts[i + 1]], axis=-1).transpose(1, 2, 0) for i in (0, 2))
    grams = (left @ left.transpose(0, 2, 1)) * (right @ right.transpose(0, 2, 1))
    squares = np.maximum(grams.sum(axis=(1, 2)), 0.0)
    return np.asarray(np.sqrt(squares) / max(q.shape[0], 1))


def listed(numbers: Sequence[int]) -> str:
    """Return layers in words: "layers 0 to 2, 5"."""
    return f"layer{'s' if len(numbers) > 1 else ''} {wording.runs(numbers)}"


def save_qk(
    path: str, folder: Folder, layers: Mapping[int, LayerVectors], pairs: Mapping[int, RotatedPairs]
) -> list[str]:
    """Write q (layers, h, s, d) and k (layers, g, s, d) of the layers that rotate, a file a layer type.

    What is returned says so, a sentence a file. They are the float64 run's, rotated back; the rotated dims
    stand first, in the config's layout.
    Raises: BadInput where there are none, or where it is not known how a layer rotates.
    """
    unknown = sorted(set(layers) - set(pairs))
    if unknown:
        raise BadInput(
            f"--save-qk {path!r}: q and k of layer {unknown[0]} do not move as its frequencies say, so they "
            "cannot be rotated back; leave it out"
        )
    rotated = {layer: pairs[layer] for layer in sorted(layers) if pairs[layer].frequencies.size}
    if not rotated:
        seen = "no layer of this model rotates q and k" if layers else "this model's q and k are not seen"
        raise BadInput(f"--save-qk {path!r}: {seen}; leave it out")
    model = folder.rope
    kinds = hf_config.kinds_of_layers(folder.config, model) if model and len(model.layers) > 1 else {}
    groups: dict[str, list[int]] = {}
    for layer in rotated:
        groups.setdefault(kinds.get(layer, ""), []).append(layer)
    results = []
    for kind, members in groups.items():
        layout = rotated[members[0]].layout
        if model is not None:
            layout = (model.layers.get(kind) or next(iter(model.layers.values()))).layout
        file = Path(path)
        several = str(file.with_name(f"{file.stem}-{kind or 'other'}{file.suffix}"))
        target = several if len(groups) > 1 else path
        _write(target, path, {n: (layers[n], rotated[n]) for n in members}, layout)
        command = f"ropeaudit shift --qk {shlex.quote(target)}"
        if model is not None:
            command += f" --config {shlex.quote(str(folder.path))}"
        if kind and kind != "full_attention":
            command += f" --layer {kind}"
        which = f"{listed(members)} ({kind})" if kind else listed(members)
        results.append(f"q and k before RoPE of {which} are in {target}; `{command}` audits them")
    return results


def _write(
    target: str, path: str, layers: Mapping[int, tuple[LayerVectors, RotatedPairs]], layout: str
) -> None:
    import safetensors.numpy as safetensors

    parts: dict[str, list[Any]] = {"q": [], "k": []}
    number, (_, first) = next(iter(layers.items()))
    for layer, (vectors, own) in layers.items():
        same = np.array_equal(own.frequencies, first.frequencies) and own.factor == first.factor
        for name, x in (("q", vectors.q), ("k", vectors.k)):
            parts[name].append(own.arranged(own.rotated(x, -np.arange(x.shape[-2]), own.factor), layout))
            if not same or parts[name][0].shape != parts[name][-1].shape:
                raise BadInput(
                    f"--save-qk {path!r}: layers {number} and {layer} differ in shape or frequencies, and "
                    "config.json does not tell them apart; leave it out"
                )
    named = {"layers": ",".join(map(str, layers)), "layout": layout}
    try:
        atomic_files.write(
            Path(paths.behind(target)),
            # contiguous: safetensors writes the bytes as they lie
            safetensors.save({n: np.ascontiguousarray(np.stack(x)) for n, x in parts.items()}, named),
        )
    except OSError as error:
        raise BadInput(f"--save-qk {target!r} cannot be written: {error.strerror or error}") from None
