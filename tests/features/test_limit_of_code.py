"""Limits of code that is called, and --fail-if of limits: what is measured, what is claimed, what fails."""

import pytest

from ropeaudit import limit, report
from ropeaudit.features.limit import analysis, command

KERNELS = "limited_kernels.py"
SMALL = {"heads": 1, "seq_len": 16, "head_dim": 16}


def one(spec, name, dtype="fp32", **given):
    [result] = limit("drift_relative=0.01", dtype, implementations=spec(name), **(SMALL | given))
    return result


@pytest.mark.slow
def test_right_code_is_measured_and_not_proved(spec) -> None:
    result = one(spec, "right")
    assert result.up_to == 2**17 - 16
    assert result.first_failure_seen is None
    assert (result.proof, result.proved_up_to, result.bound_up_to) == ("none", None, None)
    assert result.measured_up_to == result.up_to
    assert result.boundary.tested <= analysis.CODE_MOST
    shown = report([result])
    [answer] = shown.answers
    facts = dict(answer.facts)
    assert answer.status == "OK"
    assert answer.decides.startswith("no failure in ")
    assert answer.decides.endswith(" distances to 131,071")
    assert (result.measured_distance, result.failing_distance) == (131_071, None)
    assert facts["proven"].startswith("nothing: this is code")
    assert facts["called as"].startswith("f(x, positions)")


def test_a_wrong_rotation_is_not_said_to_be_fine(spec) -> None:
    """Its scores are right at every offset: positions count from 0 where the first one is not."""
    [result] = limit("1%", "fp32", implementations=spec("restarted"), up_to=4, **SMALL)
    [answer] = report([result]).answers
    assert result.at_failure.drift_relative < 0.01
    assert (answer.status, answer.decides) == ("FAIL", "rotates wrongly at offset 1")
    assert [cause.code for cause in answer.causes] == ["positions-from-0"]


@pytest.mark.slow
def test_a_misplaced_row_meets_no_tolerance(spec) -> None:
    result = one(spec, "short")
    assert result.first_failure_seen == 2**15 - 15  # the first sequence that holds position 2^15
    assert result.at_failure.verdict == "wrong_rotation"
    [answer] = report([result]).answers
    assert (answer.status, [cause.code for cause in answer.causes]) == ("FAIL", ["integer-width"])
    assert answer.decides == "rotates wrongly, 30 % at offset 32,753"
    [loose] = limit("drift_relative=9", "fp32", implementations=spec("short"), **SMALL)
    assert loose.first_failure_seen == 2**15 - 15


def test_every_offset_measured_is_proved(spec) -> None:
    result = one(spec, "right", up_to=40)
    assert (result.proof, result.proved_up_to, result.boundary.exhaustive) == ("exhaustive", 40, True)
    assert dict(report([result]).answers[0].facts)["proven"] == "every offset to 40 (all measured)"


def test_the_end_of_a_table_is_a_failure(spec) -> None:
    result = one(spec, "ends")
    assert result.first_failure_seen == 3000 - 15
    facts = dict(report([result]).answers[0].facts)
    assert facts["failure seen"].endswith(": refused: IndexError: the table ends")


def test_a_dtype_that_is_not_taken_is_said(spec) -> None:
    result = one(spec, "no_float16", "fp16")
    assert result.fails_at_zero
    assert result.margin is None
    [answer] = report([result]).answers
    assert (answer.status, answer.decides) == (
        "FAIL",
        "it cannot be called: TypeError: float16 is not taken",
    )


def test_code_has_its_own_layout_and_stands_beside_recipes(spec) -> None:
    results = list(
        limit("drift_rms=0.1", "fp32", "hf", implementations=spec("interleaved"), up_to=30, **SMALL)
    )
    assert [result.at_zero.layout for result in results] == ["interleaved", "interleaved"]  # as shift does
    assert [result.first_failure_seen for result in results] == [None, None]
    assert [result.called for result in results] == [False, True]


def test_a_model_sets_how_far_code_is_looked_at(spec) -> None:
    given = {"model": "llama-2-7b", "budget": 64, "rotary_dim": 16}
    result = one(spec, "right", **given)
    assert result.up_to == 4096 - 16
    assert result.standing == "unseen"
    assert result.margin == 1
    assert result.proved_margin is None


HELD = [
    *("first_failure_seen<131072", "first_failure_seen<100", "failure_position>0", "value_at_failure>0"),
    *("first_failure!=7", "measured_up_to<30"),
]


@pytest.mark.parametrize(
    ("ask", "conditions", "broken"),
    [
        ("nonfinite=0", HELD, 0),
        ("nonfinite=0", ["measured_up_to<=30"], 1),
        ("distinct_positions=16", ["first_failure_seen<2034"], 0),
        (
            "distinct_positions=16",
            ["first_failure_seen<131072", "failure_position<2050", "value_at_failure>=0"],
            3,
        ),
    ],
)
def test_conditions_on_failures_hold_where_none_was_seen(ask, conditions, broken) -> None:
    fails = ask.startswith("distinct")
    given = ("fp16", "uniform") if fails else ("fp32", "hf")
    results = list(limit(ask, *given, up_to=None if fails else 30, **SMALL))
    assert len(command.broken(command.parse(conditions, None), results)) == broken
