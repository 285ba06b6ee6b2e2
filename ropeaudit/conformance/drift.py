"""Drift of the scores of called code: near position 0, at the end, over a long sequence, and good enough?

Scores are formed in float64 from what the code returns, as the engine measures them, at several offsets.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ropeaudit import bounds
from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.audits import judging
from ropeaudit.bounds import attainable
from ropeaudit.conformance import score_drift
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.conformance.score_drift import MASK, MeasuredDrift, Yardstick, yardstick
from ropeaudit.engine import measure
from ropeaudit.engine.plan import Plan
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recognition import narrow_output, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock, RecipeGroup, explaining_recipe, explains
from ropeaudit.recognition.verification import GivenVectors, Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.emulated import Emulated

CHECKS = ("drift", "long sequence", "growth", "tolerance")
_SHORT, _LONG = 64, 4096  # positions of a sequence
_MIDDLE = 1000  # an offset between the first and the last
_ROWS = 256  # of a long sequence that are compared, each with each


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether scores drift as far as they may: short and long sequences, growth, tolerance."""
    length = min(_SHORT, code.up_to)
    if HEADS * length**2 < judging.FEWEST:
        why = f"{code.up_to} positions make fewer than {judging.FEWEST} scores"
        yield from (not_applicable(name, why) for name in CHECKS)
        return
    run = ScoreRun(code, HEADS, length)
    resembled = None if code.seen.wrong_rotation else run.recipe()
    wanted = yardstick(code.claimed, resembled, code.setting, code.dtype, code.up_to)
    short = run.measured(wanted, sorted({0, min(_MIDDLE, run.last), run.last}))
    cause, runs = run.cause(short), [(run, short, wanted)]
    yield score_drift.drift("drift", short, wanted, cause)
    if code.up_to > _SHORT:
        run = ScoreRun(code, 1, min(_LONG, code.up_to))
        if resembled and not run.follows(resembled):
            wanted = yardstick(code.claimed, None, code.setting, code.dtype, code.up_to)
        long = run.measured(wanted, sorted({0, run.last}))
        if not any(drift.fails for drift in short):
            cause = run.cause(long)
        yield score_drift.drift("long sequence", long, wanted, cause)
        if run.last:
            runs.insert(0, (run, long, wanted))
    else:
        long = short
        yield not_applicable("long sequence", f"there are no more than {code.up_to} positions")
    growing = [
        score_drift.growth(drifts, limit, code.dtype, run.careful, cause) for run, drifts, limit in runs
    ]  # a long one may be as wrong at offset 0
    yield next((finding for finding in growing if finding.failed), growing[0])
    yield score_drift.tolerance([*short, *long], code.claimed, code.setting, code.dtype, cause)


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

    def measured(self, wanted: Yardstick, offsets: Sequence[int]) -> list[MeasuredDrift]:
        """Return what is measured at each offset, the first of them 0."""
        inputs, seen = self.inputs, list[MeasuredDrift]()
        rows = Inputs(inputs.q[:, self.rows], inputs.k[:, self.rows], "gaussian", self.code.seed)
        alike: dict[RopeSetting, list[int]] = {}
        for offset in offsets:
            alike.setdefault(self._held_to(offset), []).append(offset)
        for setting, some in alike.items():
            cells = Plan([self.called], [some], rows, setting, MASK, positions=self.rows)
            results = measure.measure(cells, 1, lambda share: None)
            limits, part = wanted.limits(setting, inputs, some), " of one head" * (inputs.heads == 1)
            seen += [
                MeasuredDrift.of_cell(results[0, offset], self.length, offset, limit, part)
                for offset, limit in zip(some, limits, strict=True)
            ]
        return seen

    def _held_to(self, offset: int) -> RopeSetting:
        """Return the setting that the sequence is held to at an offset."""
        return self.code.setting_at(np.array([offset + self.length - 1]))

    def recipe(self) -> RecipeGroup | None:
        """Return the recipe that explains the last positions, where recipes differ most."""
        return explaining_recipe(self._last_block(), self._held_to(self.last), self.code.dtype)

    def follows(self, group: RecipeGroup) -> bool:
        """Return whether a recipe explains the last positions, all of the sequence."""
        return explains(group, self._last_block(), self._held_to(self.last), self.code.dtype)

    def _last_block(self) -> CalledBlock:
        at: Positions = np.arange(self.length, dtype=np.int64) + self.last
        return CalledBlock(at, self.given, self._rotated(self.last))

    def cause(self, drifts: Sequence[MeasuredDrift]) -> Diagnosis | None:
        """Return what explains drift that is more than allowed, at the last such offset."""
        failing = [drift for drift in drifts if drift.fails]
        if not failing:
            return None
        last = max(failing, key=lambda drift: drift.offset)
        offset = last.offset
        code, every = self.code, np.arange(self.length, dtype=np.int64)
        vectors = GivenVectors(self.inputs.q, self.inputs.k, every, code.seed)

        def judge(offset: int, explain: bool) -> Places:
            return code.check(self.rotator, vectors, offset, explain=explain)

        others = [drift.offset for drift in drifts if drift.offset != offset]
        found = verification.with_other_side(judge(offset, True), judge, others).diagnosis
        rotated, setting = self._rotated(offset), self._held_to(offset)

        def holds(fmt: Format) -> bool:
            """Return whether scores drift by no more than those of right code in a format."""
            wanted = yardstick(None, None, setting, fmt, code.up_to)
            [limit] = wanted.limits(setting, self.inputs, [offset])
            return not replace(last, limit=limit).fails

        if found is not None and found.explains:
            return found
        call = self.given, rotated, every + offset
        return narrow_output.explanation(setting, code.dtype, *call, holds) or found

    def careful(self, first: MeasuredDrift) -> float:
        """Return the RMS drift that careful code in the dtype has near offset 0, as `excess` counts it."""
        subject = Emulated(attainable.careful(self.code.dtype), self._held_to(0))
        predicted = bounds.bound(subject, self.inputs, MASK, 0).rms
        return attainable.attainable_rms(predicted, self.code.dtype, first.reference_rms)
