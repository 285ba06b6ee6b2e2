"""Drift of the scores: near position 0, at the end, over a long sequence, and whether it is good enough.

Scores are formed in float64 from what the code returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropeaudit.audits import judging
from ropeaudit.conformance import drift_findings
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable
from ropeaudit.conformance.score_run import ScoreRun
from ropeaudit.conformance.yardstick import Yardstick, yardstick
from ropeaudit.recognition.known_recipes import RecipeGroup

_SHORT, _LONG = 64, 4096  # positions of a sequence
_MIDDLE = 1000  # an offset between the first and the last


def scores(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether scores drift as far as they may: short and long sequences, growth, tolerance."""
    length = min(_SHORT, code.up_to)
    if HEADS * length**2 < judging.FEWEST:
        why = f"{code.up_to} positions make fewer than {judging.FEWEST} scores"
        yield from (not_applicable(name, why) for name in ("drift", "long sequence", "growth", "tolerance"))
        return
    heads = ScoreRun(code, HEADS, length)
    resembled = None if code.seen.wrong_rotation else heads.recipe()
    wanted = _yardstick(code, resembled)
    short = heads.seen(wanted, sorted({0, min(_MIDDLE, heads.last), heads.last}))
    behaves, runs = heads.explained(short), [(heads, short, wanted)]
    yield drift_findings.drift("drift", short, wanted, behaves)
    if code.up_to > _SHORT:
        heads = ScoreRun(code, 1, min(_LONG, code.up_to))
        if resembled and not heads.follows(resembled):
            wanted = _yardstick(code, None)
        long = heads.seen(wanted, sorted({0, heads.last}))
        if not any(one.fails for one in short):
            behaves = heads.explained(long)
        yield drift_findings.drift("long sequence", long, wanted, behaves)
        if heads.last:
            runs.insert(0, (heads, long, wanted))
    else:
        long = short
        yield not_applicable("long sequence", f"there are no more than {code.up_to} positions")
    growing = [
        drift_findings.growth(measured, limit, code.dtype, run.careful, behaves)
        for run, measured, limit in runs
    ]  # a long one may be as wrong at offset 0
    yield next((one for one in growing if one.failed), growing[0])
    yield drift_findings.tolerance([*short, *long], code.claimed, code.setting, code.dtype, behaves)


def _yardstick(code: CodeUnderTest, resembled: RecipeGroup | None) -> Yardstick:
    return yardstick(code.claimed, resembled, code.setting, code.dtype, code.up_to)
