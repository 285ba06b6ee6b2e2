"""Scores of what code returns at several offsets, as the engine measures them, and what explains their drift.

Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.bounds import attainable
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.score_drift import MeasuredDrift
from ropeaudit.conformance.yardstick import MASK, Yardstick, yardstick
from ropeaudit.engine import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recognition import narrow_output, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup, explaining_recipe, explains
from ropeaudit.recognition.verification import GivenVectors
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.emulated import Emulated

_ROWS = 256  # of a long sequence that are compared, each with each


class ScoreRun:
    """q and k of a sequence, and one instance of the code, which one call gives all of it."""

    def __init__(self, code: CodeUnderTest, heads: int, length: int) -> None:
        self.code, self.length, self.last = code, length, code.up_to - length
        q, k = code.vectors(heads, length)
        self.inputs = Inputs(q.astype(np.float64), k.astype(np.float64), "gaussian", code.seed)
        self.given = q.astype(code.dtype.carrier)[None], k.astype(code.dtype.carrier)[None]
        self.rows: Positions = np.arange(length, dtype=np.int64)
        if length > _ROWS:
            generator = np.random.default_rng([code.seed, length])
            self.rows = np.sort(generator.choice(length, _ROWS, replace=False))
        self.rotator = code.rotator()
        self.called = Called(code.tested, code.setting, code.dtype, self.rotator)
        self.called.together(self.inputs.q, self.inputs.k, self.rows)

    def _rotated(self, offset: int) -> tuple[FloatArray, FloatArray]:
        at: Positions = np.arange(self.length, dtype=np.int64) + offset
        return self.rotator.rotate_both(*self.given, at)

    def seen(self, wanted: Yardstick, offsets: Sequence[int]) -> list[MeasuredDrift]:
        """Return what is measured at each offset, the first of them 0."""
        setting, inputs = self.code.setting, self.inputs
        rows = Inputs(inputs.q[:, self.rows], inputs.k[:, self.rows], "gaussian", self.code.seed)
        cells = Plan([self.called], [offsets], rows, setting, MASK, positions=self.rows)
        seen = measure.measure(cells, 1, lambda share: None)
        limits, part = wanted.limits(setting, inputs, offsets), " of one head" * (inputs.heads == 1)
        return [
            MeasuredDrift.of_cell(seen[0, offset], self.length, offset, limit, part)
            for offset, limit in zip(offsets, limits, strict=True)
        ]

    def recipe(self) -> RecipeGroup | None:
        """Return the recipe that explains the last positions, where recipes differ most."""
        return explaining_recipe(self._last_block(), self.code.setting, self.code.dtype)

    def follows(self, group: RecipeGroup) -> bool:
        """Return whether a recipe explains the last positions, all of the sequence."""
        return explains(group, self._last_block(), self.code.setting, self.code.dtype)

    def _last_block(self) -> CalledBlock:
        at: Positions = np.arange(self.length, dtype=np.int64) + self.last
        return CalledBlock(at, self.given, self._rotated(self.last))

    def explained(self, seen: Sequence[MeasuredDrift]) -> Diagnosis | None:
        """Return what explains drift that is more than allowed, at the last such offset."""
        failing = [one for one in seen if one.fails]
        if not failing:
            return None
        last = max(failing, key=lambda one: one.offset)
        offset = last.offset
        code, every = self.code, np.arange(self.length, dtype=np.int64)
        vectors = GivenVectors(self.inputs.q, self.inputs.k, every, code.seed)
        places = verification.check(
            *(self.rotator, code.setting, code.dtype, vectors, offset),
            afresh=code.afresh,
            rule=code.rule,
            searches=code.seen.searches,
        )
        given, rotated = self.given, self._rotated(offset)

        def holds(fmt: Format) -> bool:
            """Return whether scores drift by no more than those of right code in a format."""
            wanted = yardstick(None, None, code.setting, fmt, code.up_to)
            [limit] = wanted.limits(code.setting, self.inputs, [offset])
            return not replace(last, limit=limit).fails

        found = places.diagnosis
        if found is not None and found.explains:
            return found
        at = every + offset
        return narrow_output.explanation(code.setting, code.dtype, given, rotated, at, holds) or found

    def careful(self, first: MeasuredDrift) -> float:
        """Return the RMS drift that careful code in the dtype has near offset 0, as `excess` counts it."""
        subject = Emulated(attainable.careful(self.code.dtype), self.code.setting)
        predicted = bounds.bound(subject, self.inputs, MASK, 0).rms
        return attainable.attainable_rms(predicted, self.code.dtype, first.reference_rms)
