"""What is known of one implementation after the survey, as it comes home from the process that called it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLEAN = "none"  # the environment in which nothing is changed
BAD = ("overflow", "misplaced", "broken")
SEVERAL = 3.0  # times the drift of recipe hf, as `excess` of verdicts
CHANGED = 1.5  # times the clean drift: what an environment leaves below that is no exposure


@dataclass(frozen=True, slots=True)
class Options:
    """What every implementation is called with. head_dims: the first that it takes is used.

    under: environments beside the clean one. casts: number formats that its class is cast to.
    """

    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    under: tuple[str, ...] = ()
    casts: tuple[str, ...] = ()
    head_dims: tuple[int, ...] = (128, 64)
    seq_len: int = 256
    heads: int = 4

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Options:
        """Return the options of a dictionary that went through JSON, which has no tuples."""
        fields: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in given.items()
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of `shift`. times: its drift over that of recipe hf in the same cell, nan where that is nan."""

    dtype: str
    offset: int
    environment: str
    drift_relative: float
    times: float
    verdict: str
    within: str
    distinct: int
    resembles: str = ""
    refused: str = ""

    @property
    def outlier(self) -> bool:
        """Whether it is out of tolerance, misplaced, or several times worse than recipe hf."""
        return self.verdict != "refused" and (
            self.within != "yes" or self.verdict in BAD or self.times > SEVERAL
        )

    @property
    def where(self) -> str:
        """Dtype, offset and environment in words."""
        under = "" if self.environment == CLEAN else f" under {self.environment}"
        return f"{self.dtype} at {self.offset}{under}"


@dataclass(frozen=True, slots=True)
class Cast:
    """What a class returns after a cast, as `module` measures it. way: of loading, in words."""

    way: str
    cos_error: float
    distinct: int | None
    positions: int | None
    wrong: bool
    held: str


@dataclass(frozen=True, slots=True)
class Surveyed:
    """An implementation. behaves: the nearest recipe's arithmetic, in words; recipes: its names.

    stages: stage -> dtypes in order and operations. causes: environment -> why it is worse there.
    refused: why nothing is known.
    """

    name: str
    version: str = "none"
    head_dim: int = 0
    layout: str = ""
    behaves: str = ""
    recipes: tuple[str, ...] = ()
    stages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cells: Sequence[Cell] = ()
    casts: Sequence[Cast] = ()
    causes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    refused: str = ""
    cast_refused: str = ""

    @property
    def clean(self) -> list[Cell]:
        """The cells in which nothing is changed."""
        return [cell for cell in self.cells if cell.environment == CLEAN]

    @property
    def ends(self) -> Mapping[int, str]:
        """The offsets at which it is refused in every dtype, with the reason."""
        taken = {cell.offset for cell in self.clean if cell.verdict != "refused"}
        return {cell.offset: cell.refused for cell in self.clean if cell.offset not in taken}

    @property
    def outliers(self) -> list[Cell]:
        """The clean cells that are outliers, the largest drift first."""
        worst_first = sorted(self.clean, key=lambda cell: -_size(cell.drift_relative))
        return [cell for cell in worst_first if cell.outlier]

    @property
    def exposures(self) -> list[Cell]:
        """For each environment the worst cell, of those that are outliers and worse than clean."""
        clean = {(cell.dtype, cell.offset): cell for cell in self.clean}
        worst: dict[str, Cell] = {}
        for cell in self.cells:
            beside = clean.get((cell.dtype, cell.offset))
            if cell.environment == CLEAN or beside is None or cell.verdict == "refused" or not cell.outlier:
                continue
            if not _size(cell.drift_relative) > CHANGED * beside.drift_relative:
                continue
            earlier = worst.get(cell.environment)
            if earlier is None or _size(cell.drift_relative) > _size(earlier.drift_relative):
                worst[cell.environment] = cell
        return list(worst.values())

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Surveyed:
        """Return what `to_json` gave."""
        cells = tuple(Cell(**one) for one in given["cells"])
        casts = tuple(Cast(**one) for one in given["casts"])
        return cls(
            **{
                **given,
                "cells": cells,
                "casts": casts,
                "recipes": tuple(given["recipes"]),
                "notes": tuple(given["notes"]),
            }
        )


def _size(drift: float) -> float:
    return math.inf if math.isnan(drift) else drift
