"""Diagnoses as data: a code of data/diagnoses.toml, the values of its sentence, and the place.

Only `wording` turns diagnoses into sentences; no code reads these.
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
    metadata: str = ""
    option: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    wrong: str = ""
    right: str = ""


@functools.cache
def kinds() -> Mapping[str, Kind]:
    """Return every kind of diagnosis by its code, in the order of the file."""
    tables = tomllib.loads(data.text("diagnoses.toml"))
    return {
        code: Kind(code, table.pop("class"), **{name: _as_tuples(value) for name, value in table.items()})
        for code, table in tables.items()
    }


def _as_tuples(value: Any) -> Any:
    """Return a value of a row with tuples where the file has lists."""
    if isinstance(value, dict):
        return {name: _as_tuples(one) for name, one in value.items()}
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Where:
    """The part of q and k that a diagnosis is about; empty and None mean all.

    sides: "q", "k" or both. batch, heads: some, of `of_heads` heads. position, pair: a single one. unrotated:
    dims that are not rotated. since: the first wrong position; those from `until` up to it are right. offset:
    the shift at which it was found. gradient: it is about the gradient, the inverse rotation. layers: of a
    model.
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

    values: those of its sentence. alternatives: other explanations that are as good. also: further faults in
    addition to it.
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
        """Whether it names a cause, unlike "unexplained" and "not-a-rotation"."""
        return self.code not in NO_CAUSE

    def __post_init__(self) -> None:
        kinds()[self.code]

    @property
    def arithmetic(self) -> bool:
        """Whether it only names a recipe's arithmetic, which is no wrong rotation."""
        return "recipes" in self.values and not self.also

    def parts(self) -> Iterator[Diagnosis]:
        """Yield the diagnosis and its further faults."""
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
