"""How a row behaves, whether it is good enough, and what the headline says of many rows."""

import dataclasses
import functools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import shift
from ropeaudit.audits import judging
from ropeaudit.audits.comparison import Pair
from ropeaudit.audits.records import Record
from ropeaudit.console import gates
from ropeaudit.reports import drift, verdicts

SMALL = {"heads": 1, "seq_len": 32, "head_dim": 16}


@functools.cache
def row(**changes: object) -> Record:
    (plain,) = shift(1000, "bf16", "hf", **SMALL)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


SOUND = {
    "nonfinite": 0,
    "drift_max": 0.1,
    "drift_rms": 0.01,
    "floor_rms": 0.01,
    "reference_rms": 1.0,
    "reference_error": 1e-15,
    "excess": 1.5,
}


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({}, "sound"),
        ({"excess": 3.0}, "sound"),
        ({"excess": math.nextafter(3.0, 4.0)}, "coarse"),
        ({"excess": 99.0, "drift_rms": 0.02}, "coarse"),
        ({"excess": 99.0, "drift_rms": 0.0201}, "growing"),
        ({"excess": 2.0, "drift_rms": 0.3}, "sound"),  # it grows, but is what careful code has
        ({"excess": math.nan}, "coarse"),  # what cannot be compared is not called sound
        ({"drift_rms": 0.5, "drift_max": 2.0}, "broken"),
        ({"drift_rms": 0.4999, "drift_max": 2.0, "excess": 99.0}, "growing"),
        ({"drift_max": 1e-15, "drift_rms": 1e-16, "excess": 99.0}, "exact"),
        ({"drift_max": 0.0, "drift_rms": 0.0, "reference_rms": 0.0}, "exact"),
        ({"wrong_rotation": True}, "wrong_rotation"),
        ({"wrong_rotation": True, "drift_max": 0.0, "drift_rms": 0.0}, "wrong_rotation"),
        ({"wrong_rotation": True, "nonfinite": 1}, "overflow"),
        ({"nonfinite": 1, "drift_rms": math.nan}, "overflow"),
    ],
)
def test_the_first_verdict_that_holds(figures, verdict) -> None:
    seen = SOUND | figures
    assert judging.judge(seen, seen.get("wrong_rotation", False)) == verdict


SAMPLED = ("drift_rms_low", "drift_rms_high")
GOOD = {**SOUND, **dict.fromkeys(SAMPLED), "scores": 100, "drift_relative": 0.01, "tolerance": 0.01}


@pytest.mark.parametrize(
    ("figures", "within"),
    [
        ({}, True),
        ({"drift_relative": math.nextafter(0.01, 1)}, False),
        ({"scores": 99}, None),
        ({"scores": 99, "wrong_rotation": True}, False),
        ({"wrong_rotation": True, "drift_relative": 0.0}, False),
        ({"nonfinite": 3, "drift_relative": math.nan}, False),
        ({"drift_relative": math.nan}, False),
        ({"interval": (0.009, 0.02)}, None),
        ({"drift_max": 1e-16, "drift_relative": 0.02}, True),  # the reference itself is no better
        ({"interval": (0.002, 0.0099), "drift_relative": 0.005}, True),
        ({"interval": (0.011, 0.02), "drift_relative": 0.015}, False),
    ],
)
def test_good_enough(figures, within) -> None:
    seen = GOOD | figures | dict(zip(SAMPLED, figures.get("interval", ()), strict=False))
    assert judging.within(seen, seen.get("wrong_rotation", False)) == within


def test_what_careful_code_attains_is_one_value_a_dtype_whatever_the_recipe_rounds() -> None:
    rows = list(
        shift([0, 1000, 131072], ["fp32", "bf16"], ["hf", "uniform", "meta", "hf-model-cast"], **SMALL)
    )
    for dtype in ("float32", "bfloat16"):
        assert len({one.attainable_rms for one in rows if one.dtype == dtype}) == 1
    assert all(one.excess == one.drift_rms / one.attainable_rms for one in rows)


def test_the_attainable_drift_is_that_of_meta_and_of_scores_rounded_once() -> None:
    (meta,) = shift(0, "bf16", "meta", changes={"accumulate": "fp32", "score": "fp32"})
    rounded = 0.42 * 2.0**-8 * meta.reference_rms  # 0.42: RMS of a relative rounding error, in units of u
    assert meta.attainable_rms == pytest.approx(math.hypot(meta.predicted_rms, rounded), rel=1e-12)
    (wide,) = shift(0, "fp32", "meta", changes={"accumulate": "fp32", "score": "fp32"})
    assert wide.attainable_rms == wide.predicted_rms


QUALITIES = st.sampled_from([True, False, None])
VERDICTS = st.sampled_from(
    ["sound", "exact", "coarse", "growing", "broken", "wrong_rotation", "overflow", "refused"]
)


@st.composite
def rows_of_any_kind(draw) -> list[Record]:
    results = []
    for _ in range(draw(st.integers(1, 6))):
        verdict, quality = draw(VERDICTS), draw(QUALITIES)
        if verdict in ("wrong_rotation", "overflow"):
            quality = False
        elif verdict == "exact" and quality is False:
            quality = True
        figures = {
            "verdict": verdict,
            "within_tolerance": None if verdict == "refused" else quality,
            "drift_relative": draw(st.floats(0, 2)),
            "refused": "unsupported" if verdict == "refused" else None,
            "implementation": draw(st.sampled_from(["hf", "uniform", "meta"])),
            "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
            "structural_max": draw(st.sampled_from([0.0, 1.0])),
            "structural_rms": 0.25,
            "nonfinite": 7 if verdict == "overflow" else 0,
        }
        results.append(row(**figures))
    return results


@given(rows_of_any_kind())
def test_nothing_that_reads_as_fine_stands_above_a_bad_row(rows: list[Record]) -> None:
    answer, kinds = drift.answer(rows), {one.verdict for one in rows}
    bad = [one for one in rows if one.within_tolerance is False and one.verdict != "refused"]
    wrong = [one for one in rows if one.verdict in ("overflow", "wrong_rotation")]
    assert (answer.status == "FAIL") == bool(bad or wrong)
    if answer.status == "OK":
        assert all(one.within_tolerance is True for one in rows)
        assert "refused" not in kinds
    if "overflow" in kinds:
        assert "scores are nan or infinite" in answer.decides
    facts = dict(answer.facts)
    if len(rows) > 1:
        counts = [int(number) for number in re.findall(r"(\d+) [a-z]", facts["rows"])]
        assert sum(counts) == len(rows)
        assert facts["rows"].endswith(f"of {len(rows)}")
    assert ("structure" in facts) == any(one.structural_max for one in rows)
    for never in ("does not matter", "unrelated", "safe"):
        assert never not in answer.headline


@given(rows_of_any_kind())
def test_the_answer_names_the_largest_drift_of_the_worst_kind(rows: list[Record]) -> None:
    plain = [one for one in rows if one.verdict not in ("overflow", "wrong_rotation", "refused", "exact")]
    if len(plain) < len(rows):
        return
    worst = [one for one in plain if one.within_tolerance is False]
    worst = worst or [one for one in plain if one.within_tolerance is None]
    largest = max(worst or plain, key=lambda one: one.drift_relative)
    if worst and worst[0].within_tolerance is None:
        assert drift.answer(rows).status == "WARN"
    else:
        share = verdicts.distinct_percent(largest.drift_relative, largest.tolerance)
        assert share in drift.answer(rows).decides


def test_a_wrong_rotation_breaks_every_gate_on_drift() -> None:
    one = row(verdict="wrong_rotation", within_tolerance=False, drift_rms=1e-6, rotation_excess=55.0)
    for text in ("drift_rms>0.01", "drift_max>1", "floor_rms>1", "excess>1e9", "change_rms>1"):
        (line,) = gates.broken_since([gates.parse(text)], [Pair(None, one.as_dict())])
        name = text.partition(">")[0]
        assert line.startswith(f"failed: wrong rotation (rotation error 55× allowed); {name} itself is ")
        assert ">" not in line  # an inequality that would be false
    for text, other in (("nonfinite>0", one), ("drift_rms>0.01", row(drift_rms=1e-6))):
        assert not gates.broken_since([gates.parse(text)], [Pair(None, other.as_dict())])
