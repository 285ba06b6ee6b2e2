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

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import RopeAuditError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.implementation import Rotator
from ropeaudit.subjects.emulated import Emulated
from ropeaudit.subjects.placement import allowance, exact_rotation, likeness, solving
from ropeaudit.subjects.placement.faults import Fault, faults
from ropeaudit.subjects.placement.likeness import RecipeGroup

_CLEAR = 0.3  # a recipe is at most this share as far away as the exact rotation
_SOME = 128  # positions that are compared, around the worst
_VECTORS = 4  # and vectors
_MOST = 3  # faults that are named where several explain what was seen


@dataclass(frozen=True, slots=True)
class CalledBlock:
    """One call: positions (s,) as shifted, q and k as given and as rotated (b, h, s, d).

    apart: by how much the positions of later batch elements are higher.
    """

    at: Positions
    given: tuple[FloatArray, FloatArray]
    results: tuple[FloatArray, FloatArray]
    apart: int = 0

    def rows(self) -> Positions:
        """Return the positions of each batch element. Shapes: -> (b, s)."""
        return self.at + self.apart * np.arange(len(self.given[0]))[:, None]


@dataclass(frozen=True, slots=True)
class MisplacedSide:
    """What is out of place of q or k: heads (b, h), pairs (p,), positions; and the call where it is worst."""

    heads: NDArray[np.bool_]
    pairs: NDArray[np.bool_]
    positions: Positions
    block: CalledBlock


def named(
    sides: dict[str, MisplacedSide], setting: RopeSetting, dtype: Format, rotator: Rotator
) -> tuple[str, bool]:
    """Return in words what explains it, empty where nothing known does, and whether that is a recipe."""
    block = next(iter(sides.values())).block
    if not any(np.isfinite(x).any() for x in block.results):
        return _nonfinite(block, setting, dtype)
    if group := _recipe(block, setting, dtype):
        return str(group), True
    texts = {name: _fault(name, side, setting, dtype, rotator) for name, side in sides.items()}
    if len(texts) == 2 and len(set(texts.values())) == 1:
        return texts["q"], False
    parts = [f"{name}{'' if len(texts) == 2 else ' alone'}: {text}" for name, text in texts.items() if text]
    return "; ".join(parts), False


def _nonfinite(block: CalledBlock, setting: RopeSetting, dtype: Format) -> tuple[str, bool]:
    """Return which recipes lose all numbers too: which of them it is cannot be told."""
    x = block.given[0][0, 0]
    names = [
        name
        for group in likeness.groups(dtype)
        if not np.isfinite(_emulated(group, x, block.at, setting)[:, : setting.rotary_dim]).any()
        for name in group.names
    ]
    return f"nan or inf, as {', '.join(names)}" if names else "nan or inf", bool(names)


def _recipe(block: CalledBlock, setting: RopeSetting, dtype: Format) -> RecipeGroup | None:
    """Return the recipe that rotates all of q and k as they were found."""
    if block.apart:
        return None
    window = _window(block.at, 32, block.at.size - 1)
    near: list[tuple[float, RecipeGroup]] = []
    first = [(x[0, 0][window], y[0, 0][window]) for x, y in zip(block.given, block.results, strict=True)]
    missed = max(_apart(y, _exactly(x, block.at[window], setting)) for x, y in first)
    for group in likeness.variants(dtype):
        distance = max(_apart(y, _emulated(group, x, block.at[window], setting)) for x, y in first)
        if distance <= _CLEAR * missed or (np.isinf(missed) and distance < np.inf):
            near.append((distance, group))
    near.sort(key=lambda pair: pair[0])
    return next((group for _, group in near[:_MOST] if _explains(group, block, setting, dtype)), None)


def _explains(group: RecipeGroup, block: CalledBlock, setting: RopeSetting, dtype: Format) -> bool:
    """Whether a recipe gives what was found: to within a rounding or two of its own, everywhere."""
    one, at = group.resolved, block.at
    allowed = 2 * (allowance.flips(one, setting, at) + allowance.stored(one, setting))
    for x, y in zip(block.given, block.results, strict=True):
        for vector, result in zip(x.reshape(-1, *x.shape[2:]), y.reshape(-1, *y.shape[2:]), strict=True):
            emulated = _emulated(group, vector, at, setting)
            nonfinite = ~np.isfinite(emulated)
            if not np.array_equal(nonfinite, ~np.isfinite(result)):
                return False
            z, w = (
                exact_rotation.complex_pairs(np.where(nonfinite, 0, e), setting) for e in (emulated, result)
            )
            size = np.abs(exact_rotation.complex_pairs(vector, setting)) + 4 * dtype.smallest_subnormal
            if (np.abs(z - w) > allowed * size).any():
                return False
    return True


def _fault(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format, rotator: Rotator) -> str:
    """Return which heads and positions of one side are out of place, and the faults that explain it."""
    where = [_heads(side.heads), _single(side, setting)]
    what = _swapped(name, side, setting, dtype) or " or ".join(_known(name, side, setting, dtype, rotator))
    if not what and not where[0]:
        given, result = (one[0 if name == "q" else 1][0] for one in (side.block.given, side.block.results))
        what = solving.base(side.block.at, given, result, setting, dtype)
    if not what:
        what = _position(name, side, setting, dtype)
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


def _single(side: MisplacedSide, setting: RopeSetting) -> str:
    """Return the one position or the one pair that is out of place, where it is but one."""
    if side.positions.size == 1 and side.block.at.size > 2:
        return f"position {side.positions[0]} alone"
    pairs = np.flatnonzero(side.pairs)
    if pairs.size == 1 and side.pairs.size > 2:
        return f"pair {pairs[0]} alone" if pairs[0] < setting.pairs else "dims that are not rotated"
    return "dims that are not rotated" if (pairs >= setting.pairs).all() else ""


def _known(
    name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format, rotator: Rotator
) -> list[str]:
    """Return the faults that explain what was found, as few as other positions leave."""
    block, off = side.block, np.argwhere(side.heads)[:_VECTORS]
    first = int(np.argmax(np.isin(block.at, side.positions)))
    stored = [
        fault
        for fault in faults(setting, first)
        if (fault.setting != setting or not np.array_equal(fault.seen(block.at), block.at))
        and _holds(fault, name, block, off, setting, dtype)
    ]
    here = stored
    for start in _probes(int(block.at[0])) if stored else ():
        if probe := _probed(block, start, rotator):
            stored = [fault for fault in stored if _holds(fault, name, probe, off, setting, dtype)]
    texts = [fault.text for fault in stored] or [f"{fault.text}, though not in every call" for fault in here]
    more = len(texts) - _MOST
    return texts[:_MOST] if more <= 0 else [*texts[:_MOST], f"{more} fault{'s' * (more > 1)} more"]


def _probed(block: CalledBlock, start: int, rotator: Rotator) -> CalledBlock | None:
    """Return a call like that of a block, from another first position; None where it raises."""
    moved = replace(block, at=block.at - block.at[0] + start)
    try:
        result = rotator.both(*block.given, moved.rows() if block.apart else moved.at)
    except RopeAuditError:
        raise
    except Exception:  # whatever other people's code raises; then it tells nothing
        return None
    return replace(moved, results=result)


def _probes(first: int) -> Iterator[int]:
    """Yield other first positions at which faults that look alike come apart, the farther ones last."""
    for part in (1, 2, 3, 4, 6, 7):
        start = first * part // 8 + 111 * part
        if 0 < start < first:
            yield start
    for share in (37, 45, 79):  # not a power of two
        yield first * share // 100
    yield first + 333


def _holds(
    fault: Fault, name: str, block: CalledBlock, off: NDArray[np.intp], setting: RopeSetting, dtype: Format
) -> bool:
    """Whether a fault puts the pairs of some vectors where they were found: first at few positions."""
    index, size = 0 if name == "q" else 1, block.at.size
    few = np.unique(np.r_[: min(8, size), size // 2, max(0, size - 8) : size])
    many = np.unique(np.r_[few, np.linspace(0, size - 1, _SOME).astype(int), : min(_SOME, size)])
    rule, seen = allowance.careful(dtype), {b: fault.seen(row) for b, row in enumerate(block.rows())}
    for some in (few, many):
        rotations = {
            int(b): exact_rotation.rotations(fault.setting, seen[b][some], dtype) for b in set(off[:, 0])
        }
        for b, h in off:
            at = np.stack([block.rows()[b][some], seen[b][some]])
            allowed = np.maximum(*(allowance.allowed(rule, setting, row) for row in at))
            given, result = (one[index][b, h][some] for one in (block.given, block.results))
            z, w = (exact_rotation.complex_pairs(one, fault.setting) for one in (given, result))
            most = allowed.max(axis=1, keepdims=True) * np.abs(z) + 4 * dtype.smallest_subnormal
            with np.errstate(invalid="ignore", over="ignore"):
                if not (np.abs(w - z * rotations[int(b)]) <= most).all():
                    return False
    return True


def _position(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return as which position the first is rotated, where the first and the last head agree on it."""
    block, index, every = side.block, 0 if name == "q" else 1, np.argwhere(side.heads)
    texts = set()
    for b, h in dict.fromkeys((tuple(every[0]), tuple(every[-1]))):
        at = block.rows()[b]
        given, result = (one[index][b, h] for one in (block.given, block.results))
        texts.add(solving.position(at, given, result, np.isin(at, side.positions), setting, dtype))
    return texts.pop() if len(texts) == 1 else ""


def _swapped(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return that what came back as q is k, or the other way round."""
    q, k = side.block.given
    if q.shape != k.shape:
        return ""
    here = replace(side.block, given=(k, q))
    same = Fault("", lambda at: at, setting)
    off = np.argwhere(side.heads)[:_VECTORS]
    return "q and k swapped" if _holds(same, name, here, off, setting, dtype) else ""


def _window(at: Positions, size: int, last: int) -> slice:
    """Return some positions at the end, where errors that grow are largest."""
    return slice(max(0, last + 1 - size), last + 1)


def _exactly(x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    result: FloatArray = exact_rotation.rotated(x[None], at, setting)[0]
    return result


def _emulated(group: RecipeGroup, x: FloatArray, at: Positions, setting: RopeSetting) -> FloatArray:
    subject = Emulated(group.resolved, setting)
    return subject.rotate(round_to(x, subject.input), subject.table(at, 0))


def _apart(results: FloatArray, other: FloatArray) -> float:
    """Return the RMS distance; numbers that are lost in both do not count, inf where they are in one."""
    nonfinite = ~np.isfinite(results)
    if not np.array_equal(nonfinite, ~np.isfinite(other)):
        return float("inf")
    return likeness.rms_difference(np.where(nonfinite, 0, results), np.where(nonfinite, 0, other))
