"""What is asked: cases x subjects x dtypes x offsets, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ropeaudit import recipes
from ropeaudit.audits import arguments, judging
from ropeaudit.audits.cases import LIMIT, Case, fits
from ropeaudit.audits.records import Record
from ropeaudit.engine.plan import AttentionOptions
from ropeaudit.errors import UsageError
from ropeaudit.recipes import Recipe
from ropeaudit.subjects import factories, scaled_keys
from ropeaudit.subjects.factories import SubjectFactory

DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Audit:
    """Cases x recipes x dtypes x offsets, checked and ready to run. offsets: each once."""

    cases: Sequence[Case] = (Case(),)
    recipes: Sequence[str] = recipes.DEFAULT
    dtypes: Sequence[str] = DTYPES
    offsets: Sequence[int] = (0, 1000)
    changes: Mapping[str, str] = field(default_factory=dict)
    attention: AttentionOptions | None = None
    implementations: Sequence[str] = ()
    backend: str = "numpy"
    device: str | None = None
    order: str | None = None
    tolerance: float = judging.TOLERANCE
    environments: Sequence[str] = ()
    _factories: list[SubjectFactory] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for offset in self.offsets:
            if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
                raise UsageError(f"offset {offset!r} is not a whole number of tokens")
            if abs(offset) >= LIMIT:
                raise UsageError(f"offset {offset} is past 2^53 - 1 = {LIMIT - 1}, the largest allowed")
        object.__setattr__(self, "offsets", tuple(dict.fromkeys(int(offset) for offset in self.offsets)))
        if not 0 <= self.tolerance < math.inf:
            raise UsageError(
                f"tolerance {self.tolerance!r} is not a share from 0 up; try {judging.TOLERANCE}"
            )
        for name in ("cases", "dtypes", "offsets"):
            if not getattr(self, name):
                raise UsageError(f"there are no {name} to audit")
        if self.order is not None and not any(factories.is_own(name) for name in self.implementations):
            raise UsageError(f"--order {self.order} says how your own code is called; give it with --impl")
        if self.environments and not self.implementations:
            raise UsageError("--under says what code is called under; add --impl, or leave it out")
        if not (self.recipes or self.implementations):
            raise UsageError("there are no recipes to audit")
        if not self.recipes and self.backend != "numpy":
            raise UsageError("--backend says what executes recipes; add --recipe, or leave it out")
        if self.device is not None and not self.implementations and self.backend == "numpy":
            raise UsageError(
                f"--device {self.device} is where code is called or torch computes; add --impl or "
                "--backend torch, or leave it out"
            )
        if "softmax" in self.changes and (self.attention is None or self.attention.softmax != "recipe"):
            raise UsageError("a changed softmax stage is not used; add --attention --softmax recipe")
        if any(case.grid is not None for case in self.cases):
            if self.implementations:
                raise UsageError(f"--impl {self.implementations[0]} has one position axis; leave out --grid")
            if self.backend != "numpy":
                raise UsageError("--backend torch has one position axis; leave it out, or leave out --grid")
        if any(case.rerotate is not None for case in self.cases):
            if self.implementations:
                raise UsageError(f"--rerotate is of recipes; leave out --impl {self.implementations[0]}")
            if self.backend != "numpy":
                raise UsageError(f"--rerotate is computed by NumPy; leave out --backend {self.backend}")
            for recipe in self._recipes():
                if recipe.keys:
                    stage, how = recipe.keys
                    raise UsageError(
                        f"{stage}={how} stores keys with scales; leave it out, or leave out --rerotate"
                    )
        self.factories()

    def factories(self) -> list[SubjectFactory]:
        """Return every recipe, then every implementation, in every dtype, as the rows come; each once."""
        if not self._factories:
            some = arguments.chosen(
                *(self.recipes, self.implementations, self.dtypes, self.changes, ()),
                *(self.device if self.implementations else None, self.order, self.environments),
                stores_keys=True,
            )
            executed = [arguments.factory(one, self.backend, self.device) for one in some]
            self._factories.extend(executed)
        return self._factories

    def _recipes(self) -> list[Recipe]:
        return [recipes.load(name).changed(self.changes) for name in dict.fromkeys(self.recipes)]

    def run(
        self, threads: int | None = None, progress: Callable[[float], None] | None = None
    ) -> Iterator[Record]:
        """Plan, and yield the records: case by case, recipe by recipe, dtype by dtype, offset by offset.

        progress gets the share that is done, from 0 to 1.
        """
        from ropeaudit.audits.sweep import Sweep  # in-function: a sweep is of an audit

        return Sweep(self).run(progress or (lambda share: None), threads=threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what was requested; factories are built anew."""
        return Audit, tuple(getattr(self, one.name) for one in fields(self) if one.init)

    def check(self, at_once: int = 1) -> None:
        """Raise what can be told to be wrong before any work.

        at_once: how many cases are in memory together.
        """
        sampled = any(case.sample is not None for case in self.cases)
        if self.attention and sampled:
            raise UsageError("--attention looks at whole rows; leave out --sample")
        for recipe in self._recipes() if sampled else ():
            scaled_keys.check_sampled(recipe)
        fits(max(case.check([*self.offsets, *self.anchors]) for case in self.cases), at_once)

    @property
    def anchors(self) -> list[int]:
        """Offsets that are measured besides those requested."""
        return [self.attention.anchor] if self.attention else []
