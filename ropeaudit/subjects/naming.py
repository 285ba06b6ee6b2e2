"""What explains rotated pairs that are out of place: a known recipe, a usual fault, or nothing that is known.

A fault is named only where it puts every pair of the heads in question where it was found, to within what
right code is allowed, there and at other positions that tell it from faults alike. A recipe is named only
where it explains q and k, all heads and batch elements.
Letters: b batch elements, h heads, s positions, d head_dim, p pairs, n vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ropeaudit.errors import RopeAuditError
from ropeaudit.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions, allowance, likeness, right
from ropeaudit.subjects.called import Turning
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.faults import Fault, faults
from ropeaudit.subjects.likeness import Group

_CLEAR = 0.3  # a recipe is at most this share as far away as the exact rotation
_SOME = 128  # positions that are compared, around the worst
_VECTORS = 4  # and vectors
_MOST = 3  # faults that are named where several explain what was seen
_EVEN = 0.02  # spread of the logarithms of frequencies that are powers of one base


@dataclass(frozen=True, slots=True)
class Block:
    """One call: positions (s,) as shifted, q and k as given and as rotated (b, h, s, d).

    apart: by how much the positions of later batch elements are higher.
    """

    at: Positions
    given: tuple[FloatArray, FloatArray]
    found: tuple[FloatArray, FloatArray]
    apart: int = 0

    def rows(self) -> Positions:
        """Return the positions of each batch element. Shapes: -> (b, s)."""
        return self.at + self.apart * np.arange(len(self.given[0]))[:, None]


@dataclass(frozen=True, slots=True)
class Side:
    """What is out of place of q or k: heads (b, h), pairs (p,), positions; and the call where it is worst."""

    heads: NDArray[np.bool_]
    pairs: NDArray[np.bool_]
    positions: Positions
    block: Block


def named(
    sides: dict[str, Side], setting: RopeSetting, dtype: Format, turning: Turning
) -> tuple[str, bool]:
    """Return in words what explains it, empty where nothing known does, and whether that is a recipe."""
    block = next(iter(sides.values())).block
    if group := _recipe(block, setting, dtype):
        return str(group), True
    texts = {name: _fault(name, side, setting, dtype, turning) for name, side in sides.items()}
    if len(texts) == 2 and len(set(texts.values())) == 1:
        return texts["q"], False
    parts = [f"{name}{'' if len(texts) == 2 else ' alone'}: {text}" for name, text in texts.items() if text]
    return "; ".join(parts), False


def _recipe(block: Block, setting: RopeSetting, dtype: Format) -> Group | None:
    """Return the recipe that rotates all of q and k as they were found."""
    if block.apart:
        return None
    window = _window(block.at, 32, block.at.size - 1)
    near: list[tuple[float, Group]] = []
    first = [(x[0, 0][window], y[0, 0][window]) for x, y in zip(block.given, block.found, strict=True)]
    missed = max(_apart(y, _exactly(x, block.at[window], setting)) for x, y in first)
    for group in likeness.variants(dtype):
        distance = max(_apart(y, _emulated(group, x, block.at[window], setting)) for x, y in first)
        if distance <= _CLEAR * missed or (np.isinf(missed) and distance < np.inf):
            near.append((distance, group))
    near.sort(key=lambda pair: pair[0])
    return next((group for _, group in near[:_MOST] if _explains(group, block, setting, dtype)), None)


def _explains(group: Group, block: Block, setting: RopeSetting, dtype: Format) -> bool:
    """Whether a recipe gives what was found: to within a rounding or two of its own, everywhere."""
    one, at = group.resolved, block.at
    allowed = 2 * (allowance.flips(one, setting, at) + allowance.stored(one, setting))
    for x, y in zip(block.given, block.found, strict=True):
        for vector, found in zip(x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:]), strict=True):
            emulated = _emulated(group, vector, at, setting)
            lost = ~np.isfinite(emulated)
            if not np.array_equal(lost, ~np.isfinite(found)):
                return False
            z, w = (right.complex_pairs(np.where(lost, 0, e), setting) for e in (emulated, found))
            size = np.abs(right.complex_pairs(vector, setting)) + 4 * dtype.smallest_subnormal
            if (np.abs(z - w) > allowed * size).any():
                return False
    return True


def _fault(name: str, side: Side, setting: RopeSetting, dtype: Format, turning: Turning) -> str:
    """Return which heads and positions of one side are out of place, and the faults that explain it."""
    where = [_heads(side.heads), _single(side, setting)]
    what = _swapped(name, side, setting, dtype) or " or ".join(_known(name, side, setting, dtype, turning))
    if not what and not any(where):
        what = _base(name, side, setting, dtype, turning)
    return ": ".join(part for part in (", ".join(part for part in where if part), what) if part)


def _heads(off: NDArray[np.bool_]) -> str:
    """Return which batch elements and heads are out of place; nothing where all of them are."""
    if off.all():
        return ""
    batches, heads = off.any(axis=1), off.any(axis=0)
    if off.shape[0] > 1 and not batches.all():
        which = f"batch element {', '.join(map(str, np.flatnonzero(batches)))} alone"
        return which if heads.all() else f"{which}, head {', '.join(map(str, np.flatnonzero(heads)))}"
    if not heads.all():
        return f"head {', '.join(map(str, np.flatnonzero(heads)))} of {heads.size} alone"
    return ""


def _single(side: Side, setting: RopeSetting) -> str:
    """Return the one position or the one pair that is out of place, where it is but one."""
    if side.positions.size == 1 and side.block.at.size > 2:
        return f"position {side.positions[0]} alone"
    pairs = np.flatnonzero(side.pairs)
    if pairs.size == 1 and side.pairs.size > 2:
        return f"pair {pairs[0]} alone" if pairs[0] < setting.pairs else "dims that are not rotated"
    return "dims that are not rotated" if (pairs >= setting.pairs).all() else ""


def _known(name: str, side: Side, setting: RopeSetting, dtype: Format, turning: Turning) -> list[str]:
    """Return the faults that explain what was found, as few as other positions leave."""
    block, off = side.block, np.argwhere(side.heads)[:_VECTORS]
    first = int(np.argmax(np.isin(block.at, side.positions)))
    kept = [fault for fault in faults(setting, first) if _holds(fault, name, block, off, setting, dtype)]
    for start in _probes(int(block.at[0]), block.at.size):
        if len(kept) < 1:
            break
        at = block.at - block.at[0] + start
        try:
            probe = replace(block, at=at, found=turning.both(*block.given, at if not block.apart else _rows(block, at)))
        except RopeAuditError:
            raise
        except Exception:  # whatever other people's code raises; then it tells nothing
            continue
        kept = [fault for fault in kept if _holds(fault, name, probe, off, setting, dtype)]
    texts = [fault.text for fault in kept]
    return texts[:_MOST] if len(texts) <= _MOST else [*texts[:_MOST], f"{len(texts) - _MOST} faults more"]


def _rows(block: Block, at: Positions) -> Positions:
    return replace(block, at=at).rows()


def _probes(first: int, length: int) -> Iterator[int]:
    """Yield first positions, none larger, at which faults that look alike come apart."""
    for share, odd in ((2, 777), (4, 555), (8, 333)):
        start = first * (share - 1) // share + odd
        yield from (start,) if 0 < start < first else ()
        start = first // share + odd
        yield from (start,) if 0 < start < first else ()


def _holds(
    fault: Fault, name: str, block: Block, off: NDArray[np.intp], setting: RopeSetting, dtype: Format
) -> bool:
    """Whether a fault puts the pairs of some vectors where they were found, around the worst and at the ends."""
    index = 0 if name == "q" else 1
    x, y = block.given[index], block.found[index]
    size = block.at.size
    some = np.unique(np.r_[0 : min(_SOME, size), np.linspace(0, size - 1, _SOME).astype(int), size - min(_SOME, size) : size])
    rule = allowance.careful(dtype)
    for b, h in off:
        at = block.rows()[b]
        seen = fault.seen(at)
        allowed = np.maximum(allowance.allowed(rule, setting, at[some]), allowance.allowed(rule, setting, seen[some]))
        z, w = (right.complex_pairs(one[b, h][some], fault.setting) for one in (x, y))
        with np.errstate(invalid="ignore", over="ignore"):
            missed = np.abs(w - z * right.turns(fault.setting, seen[some]))
            if not (missed <= allowed.max(axis=1, keepdims=True) * np.abs(z) + 4 * dtype.smallest_subnormal).all():
                return False
    return True


def _swapped(name: str, side: Side, setting: RopeSetting, dtype: Format) -> str:
    """Return that what came back as q is k, or the other way round."""
    q, k = side.block.given
    if q.shape != k.shape:
        return ""
    here = replace(side.block, given=(k, q))
    same = Fault("", lambda at: at, setting)
    off = np.argwhere(side.heads)[:_VECTORS]
    return "q and k swapped" if _holds(same, name, here, off, setting, dtype) else ""


def _base(name: str, side: Side, setting: RopeSetting, dtype: Format, turning: Turning) -> str:
    """Return the base that frequencies from the first to the last speak of; nothing where they differ from it."""
    block, index = side.block, 0 if name == "q" else 1
    if setting.scaling.kind != "default" or setting.pairs < 4 or block.at.size < 2:
        return ""
    if (np.diff(block.at) != 1).any():
        return ""
    z, w = (right.complex_pairs(one[index][0], setting) for one in (block.given, block.found))
    with np.errstate(invalid="ignore", divide="ignore"):
        turned = w * np.conj(z)  # (h, s, p)
        angle = np.angle((turned[:, 1:] * np.conj(turned[:, :-1])).sum(axis=(0, 1)))
        i = np.arange(setting.pairs)
        some = (i >= 1) & (angle > 0.05) & (angle < 3)
        logs = -np.log(angle[some]) * setting.rotary_dim / (2 * i[some])
    if logs.size < 2 or abs(angle[0] - 1) > _EVEN:
        return ""
    base = float(np.exp(np.median(logs)))
    fit = angle[some] * base ** (2 * i[some] / setting.rotary_dim)
    if np.abs(fit - 1).max() > _EVEN or abs(base / setting.base - 1) < 1e-3:
        return ""
    d = setting.rotary_dim
    text = f"base {base:.3g}"
    if d > 2 and abs(np.log(base) / np.log(setting.base) - d / (d - 2)) < 1e-3:
        text += ", as of an exponent of 2i/(d-2)"
    return text


def _window(at: Positions, size: int, last: int) -> slice:
    """Return some positions at the end, where errors that grow are largest."""
    return slice(max(0, last + 1 - size), last + 1)


def _exactly(x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    return right.rotated(x[None], at, setting)[0]


def _emulated(group: Group, x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    subject = Emulated(group.resolved, setting)
    return subject.rotate(likeness.round_to(x, subject.input), subject.table(at, 0))


def _apart(found: FloatArray, other: FloatArray) -> float:
    """Return the RMS distance; numbers that are lost in both do not count, inf where they are in one."""
    lost = ~np.isfinite(found)
    if not np.array_equal(lost, ~np.isfinite(other)):
        return float("inf")
    return likeness.apart(np.where(lost, 0, found), np.where(lost, 0, other))
