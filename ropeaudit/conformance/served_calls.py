"""Calls as servers and trainers make them: which there are, and which of them are made.

They cover every two values of the axes together; values that make a call large stand alone, and what servers
call most stands beside them.
Letters: b batch, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ropeaudit.subjects import Positions

# vectors of q in a call: usually, where two sizes make it larger, and where one alone does
_USUAL, _MOST, MOST_ALONE = 2**11, 2**13, 2**16


@dataclass(frozen=True, slots=True)
class ServedCall:
    """One call: the kind of its positions, its sizes, how vectors lie, and the integers of positions.

    groups: query heads to a key head; 0 for one key head. place: which positions of that kind; calls that
    differ in sizes alone have the same as far as they go.
    """

    positions: str = "run"
    tokens: int = 16
    batch: int = 2
    heads: int = 4
    groups: int = 1
    strides: Any = "contiguous"
    index: Any = "int64"
    place: int = 0

    @property
    def kv_heads(self) -> int:
        """The number of key heads."""
        return self.heads // self.groups if self.groups else 1

    @property
    def size(self) -> int:
        """The number of vectors of q."""
        return self.tokens * self.batch * self.heads

    @property
    def goes(self) -> bool:
        """Whether heads make whole groups, and rows of positions are for several rows."""
        groups = self.groups == 0 or self.heads % self.groups == 0
        return groups and (self.batch > 1 or self.positions not in BY_ROW)

    def has(self, other: ServedCall) -> bool:
        """Return whether it has all that another takes to fail."""
        for axis in AXES:
            value, needed, usual = (getattr(one, axis) for one in (self, other, PLAIN))
            if needed == usual or value == needed:
                continue
            if axis not in SIZES or not (value > needed > usual or value < needed < usual):
                return False
        return True


_Values: TypeAlias = tuple[tuple[str, Any], ...]  # axes with their values
Fits: TypeAlias = Callable[[ServedCall, int], bool]  # whether it may be made, of so many vectors at most
PLAIN = ServedCall()
AXES: dict[str, tuple[Any, ...]] = {
    "positions": (
        *("run", "rows", "run from 0", "padded", "packed", "repeated", "gaps", "descending", "shuffled"),
        "far apart",
    ),
    "tokens": (1, 2, 3, 7, 17, 64),
    "batch": (1, 2, 5, 33),
    "heads": (1, 2, 3, 8, 28, 33, 40, 64, 128),
    "groups": (1, 0, 2, 4, 7, 8, 16),
    "strides": ("contiguous", "packed", "unlike", "guarded", "transposed", "stepped", "expanded"),
    "index": ("int64", "int32"),
}
# tokens of calls that are large by them alone: a token more than tiles of powers of two hold, and many more
LONG = (1311, 4097, 4223, 16385)
# what servers call most, of which any two values may be called without the third: decode of a large batch,
# with q and k as they come out of a joint projection, a few tokens ahead of each row, a piece of one prompt
_TYPICAL: tuple[dict[str, Any], ...] = (
    {"positions": "rows", "tokens": 1, "batch": 33},
    {"positions": "rows", "tokens": 1, "batch": 33, "strides": "packed", "index": "int32"},
    {"positions": "rows", "tokens": 3, "batch": 5, "strides": "packed"},
    {"positions": "run", "tokens": 64, "batch": 1, "strides": "packed"},
)
BY_ROW = ("rows", "padded")  # kinds of positions that differ between rows
RUNS = ("run", "run from 0")
SIZES = ("tokens", "batch", "heads")
_WORDS: dict[str, str] = {
    "run": "a run of positions",
    "run from 0": "positions from 0",
    "rows": "each row at positions of its own",
    "padded": "left-padded rows",
    "packed": "packed sequences that restart",
    "repeated": "repeated positions",
    "gaps": "gaps between positions",
    "descending": "descending positions",
    "shuffled": "shuffled positions",
    "far apart": "positions far apart",
    "packed qkv": "q and k as views of one packed qkv",
    "unlike": "q as a view of a packed qkv and k in one piece",
    "guarded": "q and k at an offset in a larger buffer",
    "transposed": "transposed input",
    "stepped": "input that is not contiguous in its last axis",
    "expanded": "an expanded batch (stride 0)",
    "contiguous": "input in one piece",
}


def words(axis: str, value: Any) -> str:
    """Return a value of an axis in words.

    >>> words("tokens", 1), words("groups", 0), words("heads", 40)
    ('1 token', 'one key head', '40 heads')
    """
    if axis == "groups":
        return f"{value} query heads to a key head" if value else "one key head"
    if axis == "index":
        return f"{value} positions"
    if axis == "batch":
        return f"a batch of {value}"
    if axis in ("tokens", "heads"):
        return f"{value:,} {axis if value > 1 else axis[:-1]}"
    return _WORDS["packed qkv" if (axis, value) == ("strides", "packed") else value]


def at(call: ServedCall, up_to: int, seed: int) -> Positions:
    """Return the positions of a call, all below `up_to`. Shapes: -> (s,), or (b, s) where rows differ."""
    random, s, b = np.random.default_rng([seed, call.place]), call.tokens, call.batch
    run, last = np.arange(s, dtype=np.int64), up_to - s
    first = min(int(random.integers(0, up_to)), last)
    firsts = np.r_[last, np.minimum(random.integers(0, up_to, b), last)][:b, None]
    steps = random.integers(1, max(2, min(50, up_to // s)), s)
    kinds: dict[str, Positions] = {
        "run": first + run,
        "run from 0": run,
        "rows": firsts + run,
        "padded": np.maximum(0, run - np.arange(b)[:, None] * s // (2 * b)),
        "packed": run - np.maximum.accumulate(np.where(_starts(random, s), run, 0)),
        "repeated": first + run // 2,
        "gaps": np.minimum(np.cumsum(steps), up_to - 1),
        "descending": first + run[::-1],
        "shuffled": first + random.permutation(s),
        "far apart": np.where(run % 2 == 0, run, up_to - 1 - run),
    }
    return np.ascontiguousarray(kinds[call.positions])


def _starts(random: np.random.Generator, length: int) -> Any:
    """Return where sequences of a packed row begin. Shapes: -> (s,)."""
    starts = random.random(length) < 4 / max(4, length)
    starts[[0, length // 2]] = True
    return starts


def calls_of(values: Mapping[str, Sequence[Any]], fits: Fits, together: int = 2) -> list[ServedCall]:
    """Return calls that cover any so many values of different axes together, where they fit.

    fits: whether a call may be made, of so many vectors at most. Calls that these values alone make large
    have the least of all others.
    """
    covered: set[_Values] = set()
    calls: list[ServedCall] = []

    def gain(call: ServedCall) -> int:
        return sum(some not in covered for some in _parts(call, values, together))

    for axes in itertools.combinations(values, together):
        for some in itertools.product(*(values[axis] for axis in axes)):
            chosen = tuple(zip(axes, some, strict=True))
            base = next((one for one in _bases(values, dict(chosen)) if fits(one, _MOST)), None)
            if chosen in covered or base is None:
                continue
            for axis in (axis for axis in values if axis not in axes):
                trials = [replace(base, **{axis: value}) for value in values[axis]]
                most = max(_USUAL, base.size)
                base = max((trial for trial in trials if fits(trial, most)), key=gain, default=base)
            calls.append(base)
            covered.update(_parts(base, values, together))
    return calls


def beside(calls: Sequence[ServedCall], values: Mapping[str, Sequence[Any]], fits: Fits) -> list[ServedCall]:
    """Return what servers call most, where it is not among calls, and calls that are large by one axis alone.

    They have these values alone.
    """
    small = replace(_least(values), positions="run")
    more: list[ServedCall] = []
    for typical in _TYPICAL:
        chosen = {"heads": 8, "groups": 4, **typical}
        call = replace(small, **{axis: one for axis, one in chosen.items() if one in values[axis]})
        more += [call] if call not in (*calls, *more) and fits(call, _MOST) else []
    more += [replace(small, batch=33, heads=8)] if 33 in values["batch"] and 8 in values["heads"] else []
    alone = [replace(small, tokens=tokens) for tokens in LONG]
    alone += [replace(small, tokens=4097, heads=2)] if 2 in values["heads"] else []
    return more + [call for call in alone if fits(call, MOST_ALONE)]


def _bases(values: Mapping[str, Sequence[Any]], chosen: Mapping[str, Any]) -> Iterator[ServedCall]:
    """Yield the smallest calls with some values: of one row, then of two, then of more heads."""
    least = _least(values)
    yield replace(least, **chosen)
    rows = {"batch": 2} if 2 in values.get("batch", ()) else {}
    for heads in values.get("heads", (1,)):
        yield replace(least, **{**rows, "heads": heads, **chosen})


def _least(values: Mapping[str, Sequence[Any]]) -> ServedCall:
    """Return the smallest call of some values."""
    least: dict[str, Any] = {axis: 1 if 1 in some else some[0] for axis, some in values.items()}
    return replace(PLAIN, **least)


def _parts(call: ServedCall, values: Mapping[str, Sequence[Any]], together: int) -> Iterator[_Values]:
    return itertools.combinations([(axis, getattr(call, axis)) for axis in values], together)
