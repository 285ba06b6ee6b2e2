"""q and k of every layer: which pairs it rotates, whether as in its config, and how a shift moves scores.

Pairs and frequencies follow from arguments and results of the function that rotates q and k.
Letters: h heads, g key-value heads, s positions, d head_dim, r dims given to be rotated, p pairs.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.conformance.returned import Recorded
from ropeaudit.errors import BadInput
from ropeaudit.features.model.load import Folder
from ropeaudit.recognition import verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import atomic_files, paths

NEAR = 1e-6  # relative: a wrong arrangement is off by 1e-5 and more, float64 by 1e-12
# the layout of pairs that a function is given, and the one that it returns
_ARRANGEMENTS = (("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half"))
NO_ROTATION_SEEN = (
    "no q and k of this model are seen before and after rotation, and no layer is compared with config.json: "
    "seen are those that one function `apply_rotary...` is given, and attention gets as it returns them"
)


@dataclass(frozen=True, slots=True)
class LayerVectors:
    """q (h, s, d), k (g, s, d) in attention, exact float64; visible scores (s, s)."""

    q: Array
    k: Array
    scale: float
    visible: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RotatingCall:
    """Arguments and results of a function that rotates: q (h, s, r), k (g, s, r).

    start: the first of these dims in a head.
    """

    before: tuple[Array, Array]
    after: tuple[Array, Array]
    start: int = 0


@dataclass(frozen=True, slots=True)
class RotatedPairs:
    """The dims of a layer's pairs in q and k, and their frequencies (p,), radians per token.

    given: their layout before rotation. Negative frequencies turn the second dim of a pair to the first.
    """

    start: int
    layout: str
    frequencies: Array
    given: str = "half"

    def split(self, x: Array) -> tuple[Array, Array]:
        """Return views of both dims of every pair. Shapes: (..., d) -> two of (..., p)."""
        return _halves(x[..., self.start : self.start + 2 * self.frequencies.size], self.layout)

    def rotated(self, x: Array, distance: int) -> Array:
        """Return x, rotated further by a distance. Shapes: (h, s, d) -> (h, s, d)."""
        cos, sin = np.cos(distance * self.frequencies), np.sin(distance * self.frequencies)
        turned = x.copy()
        (a, b), (first, second) = self.split(x), self.split(turned)
        first[...], second[...] = a * cos - b * sin, b * cos + a * sin
        return turned


NO_PAIRS = RotatedPairs(0, "half", np.zeros(0))


def _halves(x: Array, layout: str) -> tuple[Array, Array]:
    p = x.shape[-1] // 2
    return (x[..., ::2], x[..., 1::2]) if layout == "interleaved" else (x[..., :p], x[..., p:])


def relative_error(x: Array, expected: Array) -> float:
    """Return the largest error over the largest expected value; inf if not comparable."""
    if x.shape != expected.shape:
        return np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        far = float(np.abs(x - expected).max()) / max(float(np.abs(expected).max()), 1e-300)
    return far if np.isfinite(far) else np.inf


def rotated_pairs(call: RotatingCall) -> RotatedPairs | None:
    """Return the pairs that a call of a float64 run rotates by angles that grow evenly.

    Those of q, else of k; None if no known arrangement of pairs fits. The last dims may not rotate.
    """
    for whole, returned in zip(call.before, call.after, strict=True):
        moved = np.flatnonzero((whole != returned).any((0, 1)))
        widths = [*(int(last) // 2 * 2 + 2 for last in moved[-1:]), whole.shape[-1]]
        for width, (given, layout) in itertools.product(widths, _ARRANGEMENTS):
            (a, b), (c, d) = _halves(whole[..., :width], given), _halves(returned[..., :width], layout)
            before, after = a + 1j * b, c + 1j * d
            turns = (after * before.conj()).sum(0)  # of each position and pair: factor · |x|² · exp(i angle)
            with np.errstate(invalid="ignore", divide="ignore"):
                frequencies = np.angle((turns[1:] * turns[:-1].conj()).sum(0))
                factor = float(np.abs(turns).sum() / (np.abs(before) ** 2).sum())
            even = np.exp(1j * np.multiply.outer(np.arange(len(turns)), frequencies))
            first = np.exp(1j * np.angle((turns * even.conj()).sum(0)))
            if relative_error(before * (factor * first * even), after) <= NEAR:
                return RotatedPairs(call.start, layout, frequencies, given)
    return None


@dataclass(frozen=True, slots=True)
class HeadDrift:
    """The effect of a shift on the scores of a head, and the part of each pair.

    pairs (4, p): tokens of a whole turn; the mean norms of every pair's chunk of q and of k, the frequency
    usage of arXiv 2410.06205; RMS over all q and k of what each pair adds to the change.
    """

    layer: int
    head: int
    scores: int
    largest: float
    squares: float
    reference_squares: float
    pairs: Array


def drifts(
    layer: int,
    base: LayerVectors,
    shifted: LayerVectors,
    pairs: RotatedPairs,
) -> list[HeadDrift]:
    """Compare a layer's scores before and after a shift, head by head, in float64."""
    results, heads, groups = [], base.q.shape[0], base.k.shape[0]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wavelength = 2 * np.pi / np.abs(pairs.frequencies)
        for head in range(heads):
            group = head * groups // heads
            q, k, later_q, later_k = base.q[head], base.k[group], shifted.q[head], shifted.k[group]
            reference = np.where(base.visible, q @ k.T, 0.0) * base.scale
            change = (later_q - q) @ later_k.T + q @ (later_k - k).T
            change = np.where(base.visible, change, 0.0) * base.scale
            norms = [np.hypot(*pairs.split(x)).mean(axis=0) for x in (q, k)]
            # a pair's part of the change is a product of 4 columns, whose norm their Gram matrices tell
            parts = [pairs.split(x) for x in (later_q - q, q, later_k, later_k - k)]
            left, right = (np.stack([*parts[i], *parts[i + 1]], axis=-1).transpose(1, 2, 0) for i in (0, 2))
            grams = (left @ left.transpose(0, 2, 1)) * (right @ right.transpose(0, 2, 1))
            own = np.sqrt(np.maximum(grams.sum(axis=(1, 2)), 0.0)) / max(q.shape[0], 1) * base.scale
            sizes = float(np.abs(change).max()), float(np.sum(change**2)), float(np.sum(reference**2))
            of_pairs = np.stack([wavelength, *norms, own])
            results.append(HeadDrift(layer, head, int(base.visible.sum()), *sizes, of_pairs))
    return results


_MOST_UNEXPLAINED = 2  # layers without a diagnosis, after which the long search stops
_LEAST = 3  # positions: two do not determine frequencies


def check_layers(
    folder: Folder,
    calls: Mapping[int, RotatingCall],
    vectors: Mapping[int, LayerVectors],
    pairs: Mapping[int, RotatedPairs | None],
    dtype: Format,
    offset: int,
    known: Diagnosis | None,
) -> dict[int, Places]:
    """Return layer -> its worst rotated pair, for layers whose rotation was recorded.

    pairs: those that layers rotate in float64; layers without any are judged too.
    known: the diagnosis of wrong layers, if there is one.
    """
    unrotated = folder.rope.still if folder.rope and folder.known else ()
    still = [n for n, own in pairs.items() if own is NO_PAIRS and calls]  # else none is known to
    rule = FP32 if dtype is FP64 else dtype  # transformers' float64 keeps float32 tables
    results, first, in_vain = dict[int, Places](), None, 0
    for layer in sorted({*calls, *still}):
        setting = None if layer in unrotated else folder.setting(layer)
        if setting is None and layer not in unrotated:
            continue
        call, own, both = calls.get(layer), pairs.get(layer), vectors.get(layer)
        if call is None and both is not None and setting is not None:
            call = RotatingCall((both.q, both.k), (both.q, both.k))
        if call is None:
            continue
        joined = own is not None and own.given != own.layout
        found = _check_call(call, setting, joined, offset, rule, explain=known is None)
        if found is None:
            continue
        if known and setting and found.wrong_rotation:
            found = replace(found, diagnosis=known)
        why = found.diagnosis
        equals = [one.code for one in (why, *why.alternatives)] if why else []
        if why and first and first.code in equals and first.where == why.where:
            found = replace(found, diagnosis=first)
        results[layer], first = found, first or found.diagnosis
        in_vain += found.diagnosis is not None and not found.diagnosis.explains
        if not known and in_vain >= _MOST_UNEXPLAINED:
            break
    return results


@dataclass(frozen=True, slots=True)
class Scale:
    """The factor of q·k in a layer, in float64. asked: that of its config; None if unknown."""

    seen: float
    asked: float | None

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis if it is not that of the config."""
        if self.asked is None or abs(self.seen - self.asked) <= NEAR * self.asked:
            return None
        return Diagnosis("softmax-scale", {"seen": self.seen, "asked": self.asked})


def scales(
    folder: Folder,
    vectors: Mapping[int, LayerVectors],
    lengthened: Mapping[int, Array],
    offset: int,
) -> dict[int, Scale]:
    """Return the softmax scale of each layer, at the token whose scale is furthest off.

    vectors, lengthened: those of a float64 run; q·k is multiplied by the latter, token by token, before
    attention. Queries may grow with their position where the config says by how much.
    """
    results = dict[int, Scale]()
    for layer, own in sorted(vectors.items()):
        setting, times = folder.setting(layer), lengthened.get(layer)
        if times is None or np.isnan(times).all():  # the function that rotates q and k may be unknown
            results[layer] = Scale(own.scale, setting.scale if setting else None)
            continue
        growth = folder.query_growth(offset, times.size)
        seen, even = own.scale * times, np.nanmax(times) - np.nanmin(times) <= NEAR
        if setting is None or (growth is None and not even):
            results[layer] = Scale(float(np.nanmax(seen)), None)
            continue
        asked = setting.scale * (np.ones_like(times) if growth is None else growth)
        worst = int(np.nanargmax(np.abs(seen / asked - 1)))
        results[layer] = Scale(float(seen[worst]), float(asked[worst]))
    return results


def _check_call(
    call: RotatingCall,
    setting: RopeSetting | None,
    joined: bool,
    offset: int,
    rule: Format,
    *,
    explain: bool,
) -> Places | None:
    """Return the worst rotated pair of a call; None if it cannot be judged.

    setting: None for a layer that must not rotate. joined: whether the call turns interleaved pairs into
    halves.
    """
    given, size = call.before, call.before[0].shape[-2]
    if setting is None:  # how far it changes q and k, relative to one rounding
        excess = 0.0
        for x, y in zip(given, call.after, strict=True):
            with np.errstate(invalid="ignore"):
                sizes = np.abs(y - x) / (2 * rule.unit_roundoff * np.abs(x) + rule.smallest_subnormal)
            excess = max(excess, float(sizes.max(initial=0.0)))
        unasked = Diagnosis("rotation-unasked") if excess > 1 else None
        return Places(excess, "q", 0, 0, offset, 0, unasked, offset if unasked else -1)
    setting = setting.for_positions(offset + size)
    if given[0].shape[-1] == setting.rotary_dim:
        setting = replace(setting, head_dim=setting.rotary_dim)
    if joined:
        setting = replace(setting, layout="half")
        q, k = (np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1) for x in given)
        given = q, k
    fits = all(x.shape[-1] == setting.head_dim and np.isfinite(x).all() for x in given)
    if not fits or size < _LEAST:
        return None
    at = np.arange(size, dtype=np.int64) + offset
    block = CalledBlock(at, (given[0][None], given[1][None]), (call.after[0][None], call.after[1][None]))
    return verification.judge_calls([block], Recorded(()), setting, rule, explain=explain)


def layer_words(numbers: Sequence[int]) -> str:
    """Return layers in words: "layers 0 to 2, 5"."""
    return f"layer{'s' if len(numbers) > 1 else ''} {wording.runs(numbers)}"


def save_qk(
    path: str,
    folder: Folder,
    layers: Mapping[int, LayerVectors],
    calls: Mapping[int, RotatingCall],
) -> list[str]:
    """Write q (layers, h, s, d) and k (layers, g, s, d) before RoPE, a file for each layer type.

    They are from float64, rotated dims first. Return a sentence for each file. Raises: BadInput.
    """
    import safetensors.numpy as safetensors

    rope, results, groups = folder.rope, [], dict[str, list[int]]()
    kinds = rope.kinds_of_layers if rope and len(rope.layers) > 1 else {}
    for layer in sorted(set(layers) & set(calls)):
        groups.setdefault(kinds.get(layer, ""), []).append(layer)
    if not groups:
        raise BadInput(f"--save-qk {path!r}: {NO_ROTATION_SEEN}; leave it out")
    for kind, members in groups.items():
        file, which = Path(path), f"{layer_words(members)} ({kind})" if kind else layer_words(members)
        file = file.with_name(f"{file.stem}-{kind or 'other'}{file.suffix}") if len(groups) > 1 else file
        arrays = dict[str, Array]()
        try:
            for index, name in enumerate("qk"):
                sides = []
                for call, vectors in ((calls[layer], layers[layer]) for layer in members):
                    whole, before = (vectors.q, vectors.k)[index], call.before[index]
                    given = np.broadcast_to(before, (*whole.shape[:-1], before.shape[-1]))
                    rest = np.delete(whole, np.s_[call.start : call.start + before.shape[-1]], axis=-1)
                    sides.append(np.concatenate([given, rest], axis=-1))
                # contiguous: safetensors writes the bytes as they lie
                arrays[name] = np.ascontiguousarray(np.stack(sides))
            content = safetensors.save(arrays, {"layers": ",".join(map(str, members))})
            atomic_files.write({Path(paths.link_target(str(file))): content})
        except ValueError:
            raise BadInput(
                f"--save-qk {path!r}: {layer_words(members)} differ in shape, and config.json does not tell "
                "them apart; leave it out"
            ) from None
        except OSError as error:
            reason = error.strerror or error
            raise BadInput(f"--save-qk {str(file)!r} cannot be written: {reason}") from None
        command = f"ropeaudit shift --qk {shlex.quote(str(file))}"
        command += f" --config {shlex.quote(str(folder.path))}" if rope is not None else ""
        command += f" --layer {kind}" if kind and kind != "full_attention" else ""
        results.append(f"q and k before RoPE of {which} are in {file}; `{command}` audits them")
    return results
