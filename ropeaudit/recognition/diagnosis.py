"""What explains wrong numbers, as data: a code of data/diagnoses.toml, the values of its sentence, and where.

`wording` alone turns diagnoses into sentences, and no code reads those.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ropeaudit import data

# A number or a name (one word, or one with its parameters in brackets), or several; clauses are `wording`'s.
Value: TypeAlias = float | str | tuple[int, ...] | tuple[str, ...]

# to the last bit: every number is what it predicts. within rounding: to within a rounding or two, wherever
# it was looked for. in this call: so far, but not in other ones. resembles: nearest, part of it stays.
Certainty = Literal["to the last bit", "within rounding", "in this call", "measured", "resembles"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of diagnoses.toml, whose head explains it; `group` is its class there."""

    code: str
    group: str
    title: str
    sentence: str
    shows: str
    cause: str
    remedy: str
    bugs: tuple[str, ...]
    gradient: str = ""
    gradient_remedy: str = ""
    option: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    wrong: str = ""
    right: str = ""


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Return every kind of diagnosis by its code, in the order of the file."""
    tables = tomllib.loads(data.text("diagnoses.toml"))
    return {
        code: Kind(code, table.pop("class"), **{name: _tuples(value) for name, value in table.items()})
        for code, table in tables.items()
    }


def _tuples(value: Any) -> Any:
    """Return a value of a row with tuples where the file has lists."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Where:
    """What a diagnosis is about, where that is not all of q and k; empty and None: all of it.

    sides: "q", "k" or both. batch, heads: those alone, of so many heads. position, pair: that one alone.
    unrotated: dims that are not rotated. since: the position from which on it is so; those before it, from
    `until` on, are right. offset: the shift at which it was found. gradient: it is of the gradient, which is
    the inverse rotation. layers: those of a model.
    """

    sides: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    of_heads: int = 0
    position: int | None = None
    pair: int | None = None
    unrotated: bool = False
    until: int | None = None
    since: int | None = None
    offset: int | None = None
    gradient: bool = False
    layers: tuple[int, ...] = ()


STAGE_CODES = {  # stage, in the order in which they are computed -> what its rounding is
    "position": "narrow-positions",
    "frequency": "narrow-frequencies",
    "computed": "narrow-frequencies",
    "angle": "narrow-angles",
    "table": "narrow-table",
    "rotation": "narrow-rotation",
}
NO_CAUSE = ("unexplained", "not-a-rotation")  # codes of what was seen and not explained


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One explanation.

    values: those that its sentence names. alternatives: others that explain as much. also: further faults
    that are there beside it, each by itself.
    Raises: KeyError where no diagnosis has such a code.
    """

    code: str
    values: Mapping[str, Value] = field(default_factory=dict)
    where: Where = Where()
    certainty: Certainty = "within rounding"
    alternatives: tuple[Diagnosis, ...] = ()
    also: tuple[Diagnosis, ...] = ()

    @property
    def explains(self) -> bool:
        """Whether it is a cause: neither unexplained nor no rotation at all."""
        return self.code not in NO_CAUSE

    def __post_init__(self) -> None:
        kinds()[self.code]

    @property
    def arithmetic(self) -> bool:
        """Whether it is a recipe's arithmetic, which is no wrong rotation."""
        return "recipes" in self.values and not self.also

    def parts(self) -> Iterator[Diagnosis]:
        """Yield it and what is there beside it."""
        yield self
        for one in self.also:
            yield from one.parts()


def codes(diagnosis: Diagnosis | None) -> str:
    """Return the codes as one word: `a+b` for two faults, `a|b` for equal ones."""
    if diagnosis is None:
        return ""
    equals = (
        dict.fromkeys(part.code for part in one.parts()) for one in (diagnosis, *diagnosis.alternatives)
    )
    return "|".join(dict.fromkeys(map("+".join, equals)))
