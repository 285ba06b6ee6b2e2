"""What explains rotated pairs that are out of place: a known recipe, a usual fault, or nothing that is known.

A fault is named only where it puts every pair of the heads in question where it is, to within what
right code is allowed, there and at other positions that tell it from faults alike. A recipe is named only
where it explains q and k, all heads and batch elements.
Letters: b batch elements, h heads, s positions, d head_dim, p pairs, n vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import FP32, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import RopeAuditError
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.implementation import Rotator
from ropeaudit.subjects.placement import allowance, exact_rotation, solving
from ropeaudit.subjects.placement.faults import Fault, faults
from ropeaudit.subjects.placement.recipe_match import CalledBlock, explaining_recipe, nonfinite_recipes

_COMPARED = 128  # positions that are compared, around the worst
_VECTORS = 4  # and vectors
_NARROW = (FP32, parse("tf32"), parse("fp16"), parse("bf16"))  # the finest first
_MOST = 3  # faults that are named where several explain what was seen


@dataclass(frozen=True, slots=True)
class MisplacedSide:
    """What is out of place in q or k: heads (b, h), pairs (p,), positions; and the call where it is worst."""

    heads: NDArray[np.bool_]
    pairs: NDArray[np.bool_]
    positions: Positions
    block: CalledBlock


def named(
    sides: dict[str, MisplacedSide], setting: RopeSetting, dtype: Format, rotator: Rotator
) -> tuple[str, bool]:
    """Return in words what explains it, empty where nothing known does, and whether that is a recipe."""
    block = next(iter(sides.values())).block
    if not any(np.isfinite(x).any() for x in block.rotated):
        return nonfinite_recipes(block, setting, dtype)
    if text := _narrow_input(sides, setting, dtype):
        return text, False
    if group := explaining_recipe(block, setting, dtype):
        return str(group), True
    texts = {name: _fault(name, side, setting, dtype, rotator) for name, side in sides.items()}
    if len(texts) == 2 and len(set(texts.values())) == 1:
        return texts["q"], False
    parts = [f"{name}{'' if len(texts) == 2 else ' alone'}: {text}" for name, text in texts.items() if text]
    return "; ".join(parts), False


def _narrow_input(sides: dict[str, MisplacedSide], setting: RopeSetting, dtype: Format) -> str:
    """Return the narrower formats to which vectors are rounded before they are rotated as they should be."""
    holding: list[Format] = []
    for fmt in (fmt for fmt in _NARROW if fmt.precision < dtype.precision):
        if holding and fmt.precision < holding[0].precision:
            break  # a finer one explains it
        if all(_rotates_rounded(fmt, name, side, setting, dtype) for name, side in sides.items()):
            holding.append(fmt)
    names = " or ".join(fmt.name for fmt in holding)
    return f"{' and '.join(sides)} rounded to {names}, then rotated" if names else ""


def _rotates_rounded(
    fmt: Format, name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format
) -> bool:
    """Return whether vectors that are rounded first put every pair within its own allowance."""
    block, index, size = side.block, 0 if name == "q" else 1, side.block.at.size
    places = np.unique(np.r_[: min(_COMPARED, size), np.linspace(0, size - 1, _COMPARED).astype(int)])
    for b, h in np.argwhere(side.heads)[:_VECTORS]:
        at = block.rows()[b][places]
        given, rotated = (vectors[index][b, h][places] for vectors in (block.given, block.rotated))
        z, w = (exact_rotation.complex_pairs(x, setting) for x in (round_to(given, fmt), rotated))
        most = allowance.allowed(allowance.careful(dtype), setting, at) * np.abs(z)
        off = np.abs(w - z * exact_rotation.rotations(setting, at, dtype))
        if not (off <= most + 4 * dtype.smallest_subnormal).all():
            return False
    return True


def _fault(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format, rotator: Rotator) -> str:
    """Return which heads and positions of one side are out of place, and the faults that explain it."""
    where = [_heads(side.heads), _single(side, setting)]
    if where[0] and (text := _common_factor(name, side, setting, dtype)):
        return text
    what = _swapped(name, side, setting, dtype) or " or ".join(_known(name, side, setting, dtype, rotator))
    if not what and not any(where):  # another base or length moves all heads and pairs
        what = _solved(name, side, setting, dtype)
    if not what:
        what = _position(name, side, setting, dtype)
    return ": ".join(part for part in (", ".join(part for part in where if part), what) if part)


def _common_factor(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return the factor of all heads, where noise decides which of them are beyond what is allowed."""
    index = 0 if name == "q" else 1
    given, rotated = (vectors[index] for vectors in (side.block.given, side.block.rotated))
    return solving.common_factor(side.block.rows(), given, rotated, setting, dtype)


def _solved(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return the factor, or the base from the first wrong position on; nothing where there is none."""
    index, at = 0 if name == "q" else 1, side.block.at
    first = int(np.argmax(np.isin(at, side.positions)))
    given, rotated = (x[index][0] for x in (side.block.given, side.block.rotated))
    if text := solving.factor(at, given[0], rotated[0], setting, dtype):
        return text  # of all: noise decides where it is beyond what is allowed first
    given, rotated = given[:, first:], rotated[:, first:]
    text = solving.factor(at[first:], given[0], rotated[0], setting, dtype)
    text = text or solving.base(at[first:], given, rotated, setting, dtype)
    if (
        not text
        or not first
        or (text.startswith("base ") and not solving.moves(text, at[:first], setting, dtype))
    ):
        return text
    return f"positions {at[0]} to {at[first - 1]} are right, from {at[first]} on {text}"


def _heads(off: NDArray[np.bool_]) -> str:
    """Return which batch elements and heads are out of place; nothing where all of them are."""
    if off.all():
        return ""
    batches, heads = off.any(axis=1), off.any(axis=0)
    if off.shape[0] > 1 and not batches.all():
        which = f"batch element {_runs(np.flatnonzero(batches))} alone"
        return which if heads.all() else f"{which}, head {_runs(np.flatnonzero(heads))}"
    if not heads.all():
        return f"head {_runs(np.flatnonzero(heads))} of {heads.size} alone"
    return ""


def _runs(numbers: NDArray[np.intp]) -> str:
    """Return numbers in a few words, such as "0, 2 to 5"."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ", ".join(
        f"{part[0]} to {part[-1]}" if part.size > 2 else ", ".join(map(str, part)) for part in parts
    )


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
    """Return the faults that explain what was returned, as few as other positions leave."""
    block, off = side.block, np.argwhere(side.heads)[:_VECTORS]
    first = int(np.argmax(np.isin(block.at, side.positions)))
    holding = [
        fault
        for fault in faults(setting, first)
        if (fault.setting != setting or not np.array_equal(fault.seen(block.at), block.at))
        and _holds(fault, name, block, off, setting, dtype)
    ]
    here = holding
    for start in _probes(int(block.at[0])) if holding else ():
        if probe := _probed(block, start, rotator):
            holding = [fault for fault in holding if _holds(fault, name, probe, off, setting, dtype)]
    named = [fault.text for fault in holding] or [f"{fault.text}, though not in every call" for fault in here]
    texts = list(dict.fromkeys(named))  # a count from the first wrong position may be one of the usual ones
    more = len(texts) - _MOST
    return texts[:_MOST] if more <= 0 else [*texts[:_MOST], f"{more} fault{'s' * (more > 1)} more"]


def _probed(block: CalledBlock, start: int, rotator: Rotator) -> CalledBlock | None:
    """Return a call like that of a block, from another first position; None where it raises."""
    moved = replace(block, at=block.at - block.at[0] + start)
    try:
        rotated = rotator.rotate_both(*block.given, moved.rows() if block.batch_step else moved.at)
    except RopeAuditError:
        raise
    except Exception:  # whatever other people's code raises; then it decides nothing
        return None
    return replace(moved, rotated=rotated)


def _probes(first: int) -> Iterator[int]:
    """Yield other first positions at which faults that look alike differ, the farther ones last."""
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
    """Return whether a fault puts the pairs of some vectors where they are: first at few positions."""
    index, size = 0 if name == "q" else 1, block.at.size
    few = np.unique(np.r_[: min(8, size), size // 2, max(0, size - 8) : size])
    many = np.unique(np.r_[few, np.linspace(0, size - 1, _COMPARED).astype(int), : min(_COMPARED, size)])
    rule, seen = allowance.careful(dtype), {b: fault.seen(row) for b, row in enumerate(block.rows())}
    for places in (few, many):
        rotations = {
            int(b): exact_rotation.rotations(fault.setting, seen[b][places], dtype) for b in set(off[:, 0])
        }
        for b, h in off:
            at = np.stack([block.rows()[b][places], seen[b][places]])
            allowed = np.maximum(*(allowance.allowed(rule, setting, row) for row in at))
            given, rotated = (vectors[index][b, h][places] for vectors in (block.given, block.rotated))
            z, w = (exact_rotation.complex_pairs(x, fault.setting) for x in (given, rotated))
            most = allowed.max(axis=1, keepdims=True) * np.abs(z) + 4 * dtype.smallest_subnormal
            with np.errstate(invalid="ignore", over="ignore"):
                if not (np.abs(w - z * rotations[int(b)]) <= most).all():
                    return False
    return True


def _position(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return as which position the first is rotated, where the first and the last head agree on it."""
    block, index, heads = side.block, 0 if name == "q" else 1, np.argwhere(side.heads)
    texts = set()
    for b, h in dict.fromkeys((tuple(heads[0]), tuple(heads[-1]))):
        at = block.rows()[b]
        given, rotated = block.given[index][b, h], block.rotated[index][b, h]
        texts.add(solving.position(at, given, rotated, np.isin(at, side.positions), setting, dtype))
    return texts.pop() if len(texts) == 1 else ""


def _swapped(name: str, side: MisplacedSide, setting: RopeSetting, dtype: Format) -> str:
    """Return that q came back as k, or k as q; nothing where it did not."""
    q, k = side.block.given
    if q.shape != k.shape:
        return ""
    swapped = replace(side.block, given=(k, q))
    same = Fault("", lambda at: at, setting)
    off = np.argwhere(side.heads)[:_VECTORS]
    return "q and k swapped" if _holds(same, name, swapped, off, setting, dtype) else ""
