"""Calls as servers make them: what they cover, what is named by which of them, and what is right."""

import itertools
import warnings

import numpy as np
import pytest
import served_kernels
from hypothesis import given
from hypothesis import strategies as st
from planted import under_test

from ropeaudit import testing
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.conformance import code_checks, environments, every_position, served
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.served import AXES, ServedCall, calls_of
from ropeaudit.subjects.calling.arrays import VectorBuffer, WroteAround

ROWS, JOINT = "each row at positions of its own", "q and k as views of one packed qkv"
# kernel -> what it takes to see its fault; the table of kernels has the codes
TAKES = {
    "one_row_decodes": f"{ROWS}, 1 token (right with 2)",
    "heads_from_40_are_left": "64 heads (right with 40)",
    # three things together and more, as servers have them
    "large_decode_as_servers_have_it_is_left": (
        f"{ROWS}, 1 token (right with 2), a batch of 33 (right with 5), {JOINT}, int32 positions"
    ),
    "pieces_of_one_prompt_are_left": f"64 tokens (right with 17), a batch of 1 (right with 2), {JOINT}",
}


def found(function, check=served.serving_shapes, **rest):
    return list(check(under_test(function, "fp32", 2**17, **rest)))


def test_input_that_some_calls_alone_change_is_seen() -> None:
    code = under_test(served_kernels.overwrites_q_of_one_token, "fp32", 2**17)
    assert [one.status for one in environments.inputs_unmodified(code)] == [
        "pass"
    ]  # of a call of many tokens
    list(served.serving_shapes(code))
    (inputs,) = environments.inputs_unmodified(code)
    assert inputs.failed
    assert "in some calls, and returns another array" in inputs.detail


@pytest.mark.slow  # a whole check
@pytest.mark.parametrize("name", TAKES)
def test_a_fault_is_told_with_what_it_takes(name: str) -> None:
    failed = [one for one in found(getattr(served_kernels, name)) if one.failed]
    assert {one.check for one in failed} == {"serving-shapes"}
    assert any(TAKES[name] in one.detail.partition(";")[0] for one in failed), [one.detail for one in failed]


def test_a_fault_of_one_token_is_named() -> None:
    def rotate(q, k, at):
        return served_kernels.right(q, k, at.clamp(max=500) if q.shape[2] == 1 else at)

    [one] = [one for one in served.serving_shapes(under_test(rotate, "fp32", 2**12)) if one.failed]
    assert (one.diagnosis.code, one.diagnosis.values["seen"]) == ("another-position", 500)


def test_what_is_refused_is_noted_with_what_it_takes() -> None:
    def rotate(q, k, positions):
        if q.shape[1] != k.shape[1]:
            raise ValueError("as many heads of k as of q")
        return served_kernels.right(q, k, positions)

    noted = [one for one in found(rotate) if one.status == "info"]
    assert noted
    assert all("as many heads of k as of q" in one.detail for one in noted)
    assert not [one for one in found(rotate) if one.failed]


def test_any_two_values_are_called_together() -> None:
    """As the detail of the check says: none is too large, and none goes with no other."""

    def fits(call: ServedCall, most: int) -> bool:
        return call.is_consistent and call.size <= most

    calls = calls_of(AXES, fits)
    for one, two in itertools.combinations(AXES, 2):
        seen = {(getattr(call, one), getattr(call, two)) for call in calls}
        lacking = set(itertools.product(AXES[one], AXES[two])) - seen
        alone = {(one, two), (two, one)} & {
            ("batch", "positions"),
            ("positions", "batch"),
            ("heads", "groups"),
        }
        assert not lacking or alone, (one, two, lacking)


def test_a_wrong_call_fails_though_it_is_right_when_made_again() -> None:
    seen = []

    def cold(q, k, positions):
        first = q.shape[1] == 40 and not seen
        seen.extend([1] * first)
        return (q.clone() if first else served_kernels.rotated(q, positions)), served_kernels.rotated(
            k, positions
        )

    failed = [one for one in found(cold) if one.failed]
    assert failed
    assert "40 heads" in failed[0].where


def test_what_is_called_right_was_right() -> None:
    def rotate(q, k, positions):
        if q.shape[1] == 33:
            raise ValueError("no 33")
        if q.shape[1] >= 40:
            return q.clone(), served_kernels.rotated(k, positions)
        return served_kernels.right(q, k, positions)

    wrong, *_ = [one for one in found(rotate) if one.failed]
    assert "40 heads (right with 28)" in wrong.where


@given(
    st.sampled_from(AXES["positions"]),
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(0, 200),
)
def test_positions_are_of_their_kind_and_below_the_last(
    kind: str, tokens: int, batch: int, more: int
) -> None:
    at = ServedCall(kind, tokens, batch).at(tokens + more, 0)
    assert at.shape == ((batch, tokens) if kind in ("rows", "padded") else (tokens,))
    assert at.min() >= 0
    assert at.max() < tokens + more
    steps = np.diff(at)
    if kind in ("run", "run from 0", "rows"):
        assert (steps == 1).all()
    if kind == "descending":
        assert (steps == -1).all()
    if kind == "packed" and tokens > 1:
        assert (at == 0).sum() > 1
    if kind == "shuffled":
        assert np.array_equal(np.sort(at), at.min() + np.arange(tokens))


@pytest.mark.parametrize("engine", ["numpy", "torch"])
@pytest.mark.parametrize("strides", ["packed", "unlike", "guarded", "transposed", "stepped", "sliced"])
def test_what_is_written_around_vectors_is_seen_and_in_them_is_not(strides: str, engine: str) -> None:
    q, k = np.ones((2, 4, 3, 8), np.float32), np.full((2, 2, 3, 8), 2, np.float32)
    given = VectorBuffer({"q": q, "k": k}, FP32, engine, strides, "bhsd")
    assert np.array_equal(np.asarray(given.views["q"]), q)
    assert np.array_equal(np.asarray(given.views["k"]), k)
    given.views["q"][...] = 5
    given.check_around()
    free = np.flatnonzero(np.isnan(np.asarray(given.buffer)))
    for place in free[[0, len(free) // 2, -1]]:
        given.buffer[int(place)] = 1
        with pytest.raises(WroteAround):
            given.check_around()
        given.buffer[int(place)] = np.nan
    given.check_around()


@pytest.mark.slow  # a whole check
def test_heads_of_other_sizes_are_tried_on_request() -> None:
    def left_at_96(x, positions):
        result = served_kernels.rotated(x, positions)
        if x.shape[-1] == 96:
            result[..., 64:] = x[..., 64:]
        return result

    assert not found(left_at_96, every_position.head_dims)
    [one] = found(left_at_96, every_position.head_dims, sizes=True)
    assert one.failed
    assert one.where.startswith("96 of 96 dims")
    [one] = found(served_kernels.right_alone, every_position.head_dims, sizes=True)
    assert one.status == "pass"
    assert "256 of 256" in one.detail
    one, *_ = found(served_kernels.right_partial, every_position.head_dims, sizes=True)
    assert one.status == "pass"
    assert "64 of 256" in one.detail


def test_a_battery_that_is_interrupted_is_no_pass(monkeypatch) -> None:
    def interrupted(code):
        raise KeyboardInterrupt
        yield

    monkeypatch.setitem(code_checks.CHECKS, "decode", code_checks.Check(interrupted))
    made = code_checks.findings(under_test(served_kernels.right, "fp32", 64))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(iter(lambda: next(made), None))
    last = seen[-1]
    assert last.failed
    assert last.detail.startswith("no pass: not run, or not to its end: decode, chunked-prefill, ")


@pytest.mark.parametrize("at", ["max-position", pytest.param("under tf32:emulated", marks=pytest.mark.slow)])
def test_an_interruption_names_every_check_that_has_no_row(at) -> None:
    """After the row of `at`; the names are those that rows of a whole run have."""
    code = under_test(served_kernels.right, "fp32", 80, environments=DEFAULT, sizes=True)
    names = list(dict.fromkeys(one.check for one in code_checks.findings(code)))
    assert {"guard-regions", "score-error-growth", "under tf32:emulated"} < set(names)
    made = code_checks.findings(code)
    while next(made).check != at:
        pass
    last = made.throw(KeyboardInterrupt())
    listed = last.detail.removeprefix("no pass: not run, or not to its end: ").split(", ")
    seldom = ("keys", "frequency-switch")  # which have rows of some code alone
    assert [one for one in listed if one not in seldom] == names[names.index(at) + 1 :]


@pytest.mark.slow  # a whole check
def test_the_helper_for_test_suites_makes_the_same_calls() -> None:
    testing.assert_rope(served_kernels.right, "fp32", head_dim=32)
    with pytest.raises(testing.WrongRope) as caught:
        testing.assert_rope(served_kernels.one_row_decodes, "fp32", head_dim=32)
    assert caught.value.diagnosis == "positions-of-another-row"
    assert "1 token (right with 2)" in str(caught.value)
    assert "rotate each row by its own positions" in str(caught.value)


@pytest.mark.slow  # a whole check
def test_the_helper_warns_of_keys_that_are_not_seen() -> None:
    with pytest.warns(UserWarning, match="what it does to k was not seen"):
        testing.assert_rope(served_kernels.q_alone, "fp32", head_dim=32, up_to=256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        testing.assert_rope(served_kernels.right, "fp32", head_dim=32, up_to=256)
