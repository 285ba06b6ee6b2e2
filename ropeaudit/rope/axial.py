"""Rotary embeddings with several position axes, as vision and video models have them.

A preset gives the axis and the frequency of each pair, and the positions of a grid's tokens. It is a table of
data/axes.toml, or of a .toml file. Its numbers are exact: whole numbers, decimals and fractions.
Letters: p pairs, a axes.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ropeaudit import data
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError, parser_reason
from ropeaudit.rope.axes import LARGEST_BASE, LARGEST_DIM, LAYOUTS, Axes, Layout
from ropeaudit.runtime import digests

# what multiplies every frequency: pi as a symbol, and the Python float of real code
FACTORS = {"1": 1.0, "2pi": 2 * math.pi, "pi/2": math.pi / 2}
POSITIONS = ("index", "halves", "centres", "normalised", "fitted")
# own: frequencies of each axis. split, interleaved: axes share one's (M-RoPE). alternating:
# they take turns, an axis's pairs together. linspace: base^0 to base^1, evenly in the exponent
# over all heads; axes take turns, what is left stands still.
ARRANGEMENTS = ("own", "split", "interleaved", "alternating", "linspace")


class AxisPair(NamedTuple):
    """A pair of frequency factor · base^(-numerator/denominator); 0 for denominator 0."""

    axis: int
    numerator: int
    denominator: int


@dataclass(frozen=True, slots=True)
class AxialRope:
    """The rotary embedding of one attention layer over several position axes.

    axes: their names, each a letter. dims: of a head that each axis rotates; for "linspace" those of all
    heads together, of which head `head` is this. base: of each axis. arrangement: which axis and frequency a
    pair has, see `ARRANGEMENTS`. factor: what multiplies every frequency. positions: where the tokens stand,
    per axis: "index" start + i; "halves" i - ceil(n/2), as many below 0 as not; "centres" 2(i + 1/2)/n - 1;
    "normalised" 2·i·unit/extent - 1; "fitted" the grid laid centrally over `extent` tokens, its ratio kept.
    recipe: the recipe that computes as the source does. heads: of queries; kv_heads: of keys. digest: of the
    file that it is from, empty of a preset.
    """

    name: str
    axes: tuple[str, ...]
    dims: tuple[int, ...]
    base: tuple[float, ...]
    head_dim: int
    arrangement: str = "own"
    factor: str = "1"
    layout: Layout = "half"
    positions: tuple[str, ...] = ()
    start: tuple[Fraction, ...] = ()
    unit: tuple[Fraction, ...] = ()
    extent: tuple[Fraction, ...] = ()
    heads: int = 8
    kv_heads: int = 8
    head: int = 0
    recipe: str = "hf"
    summary: str = ""
    source: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        words = [
            ("arrangement of axes", self.arrangement, ARRANGEMENTS),
            ("factor of axes", self.factor, FACTORS),
            ("layout", self.layout, LAYOUTS),
            *(("rule of positions", rule, POSITIONS) for rule in self.positions),
        ]
        for what, word, known in words:
            if word not in known:
                raise UnknownName(what, word, known)
        where = f"axes {self.name!r}:"
        once = len(set(self.axes)) == len(self.axes)
        if not self.axes or not once or any(len(axis) != 1 or axis not in "thw" for axis in self.axes):
            raise UsageError(f'{where} axes are named t, h and w, each once, such as ["h", "w"]')
        for name in ("dims", "base", "positions", "start", "unit", "extent"):
            if len(getattr(self, name)) != len(self.axes):
                raise UsageError(
                    f"{where} {name} has {len(getattr(self, name))} values for {len(self.axes)} axes"
                )
        if any(d < 0 or d % 2 for d in self.dims) or not sum(self.dims):
            raise UsageError(f"{where} dims {list(self.dims)} are not even numbers from 0 up")
        if not all(1.0 < base <= LARGEST_BASE for base in self.base):
            raise UsageError(f"{where} base {list(self.base)} is not above 1, up to 1e100")
        if self.head_dim % 2:
            raise UsageError(f"{where} head_dim {self.head_dim} is not even; pairs rotate")
        if not 2 <= self.head_dim <= LARGEST_DIM or 2 * len(self.pairs()) > self.head_dim:
            raise UsageError(
                f"{where} {2 * len(self.pairs())} rotated dims do not fit a head_dim of {self.head_dim}"
            )
        if not all(self.extent) or not all(self.unit):
            raise UsageError(f"{where} unit and extent are not 0")

    @property
    def fastest(self) -> float:
        """A bound of all frequencies, at least 1, in radians per unit of the position."""
        largest = max(self.base) if self.arrangement == "linspace" else 1.0
        return max(1.0, largest * FACTORS[self.factor])

    def pairs(self) -> tuple[AxisPair, ...]:
        """Return axis and frequency of every pair, in layout order. Shapes: -> (p,)."""
        every, count = sum(self.dims), len(self.axes)
        if self.arrangement == "own":
            return tuple(AxisPair(a, 2 * j, d) for a, d in enumerate(self.dims) for j in range(d // 2))
        if self.arrangement == "alternating":
            turns = [(a, i) for a in range(count) for i in range(a, every // 2, count)]
            return tuple(AxisPair(a, 2 * i, every) for a, i in turns)
        if self.arrangement == "linspace":
            steps, mine = self.dims[0] // 2, self.head * self.head_dim // 2
            ladder = [AxisPair(a, -j, steps - 1) for j in range(steps) for a in range(count)]
            still = [AxisPair(0, 0, 0)] * (self.heads * self.head_dim // 2 - len(ladder))
            return (*still, *ladder)[mine : mine + self.head_dim // 2]
        if count != 3:
            raise UsageError(f"axes {self.name!r}: arrangement {self.arrangement} has three axes")
        t, h, w = (d // 2 for d in self.dims)
        of_pairs = Axes((t, h, w), self.arrangement).of_pairs()
        return tuple(AxisPair(int(a), 2 * i, every) for i, a in enumerate(of_pairs))


_LARGEST_FILE = 2**16
_HINT = "give one table with axes, dims, base and head_dim, such as those of `ropeaudit list axes`"


def named(name: str) -> AxialRope:
    """Return a preset, or the only table of a .toml file. Raises: UnknownName, BadInput.

    >>> named("flux").dims
    (16, 56, 56)
    """
    if name in _library():
        return _library()[name]
    if not name.endswith(".toml"):
        raise UnknownName(
            "axes", name, _library(), "(or a path that ends in .toml, or config.json#vision_config)"
        )
    try:
        content = Path(name).read_bytes()
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
        tables = tomllib.loads(content.decode())
        if len(tables) != 1:
            raise ValueError(f"it has {len(tables)} tables and is to have one")
        [(own, table)] = tables.items()
        return replace(of_table(own, table), digest=digests.of_bytes(content))
    except OSError as error:
        raise BadInput(f"axes {name!r} cannot be read: {error.strerror or error}") from None
    except RopeAuditError as error:
        raise BadInput(f"{name!r}: {error}") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"axes {name!r}: {parser_reason(error)}; {_HINT}") from None


def all_presets() -> list[AxialRope]:
    """Return every preset, in the order of data/axes.toml."""
    return list(_library().values())


@functools.cache
def _library() -> dict[str, AxialRope]:
    return {name: of_table(name, table) for name, table in data.table("axes.toml").items()}


def _exact_number(value: Any) -> Fraction:
    """Return 3, 0.5 (the float64 number) or "8/25" exactly."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f'{value!r} is not a number or a fraction such as "8/25"')
    return Fraction(value)


# what axes have, each or all alike: its type, and its default in a table
_OF_AXES: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "dims": (int, 0),
    "base": (float, 10000),
    "positions": (str, "index"),
    "start": (_exact_number, 0),
    "unit": (_exact_number, 1),
    "extent": (_exact_number, 1),
}


def of_table(name: str, table: Mapping[str, Any]) -> AxialRope:
    """Return the preset of a table with the keys of data/axes.toml. Raises: UnknownName, UsageError."""
    known = [one.name for one in fields(AxialRope) if one.name not in ("name", "digest")]
    for key in table:
        if key not in known:
            raise UnknownName(f"key of axes {name}", key, known)
    for key in ("axes", "dims", "head_dim"):
        if key not in table:
            raise UsageError(f"axes {name} lacks the key {key}; {_HINT}")
    axes = tuple(str(axis) for axis in table["axes"])
    values = {"kv_heads": table.get("heads", 8), **table, "name": name, "axes": axes}
    for key, (kind, usual) in _OF_AXES.items():
        given = table.get(key, usual)
        each = given if isinstance(given, list) else [given] * len(axes)
        values[key] = tuple(kind(one) for one in each)
    return AxialRope(**{**values, "factor": str(table.get("factor", 1))})
