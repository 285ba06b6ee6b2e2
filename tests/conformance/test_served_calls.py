"""Calls as servers make them: what they cover, what is named by which of them, and what is right."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from conformance import served_kernels
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import testing
from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.conformance import answers, code_checks, head_dims, results, served, served_calls
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.served_calls import AXES, ServedCall, calls_of
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.arrays import IN_BUFFER, Buffer, WroteAround
from ropeaudit.subjects.calling.own_code import OwnCode

RIGHT = [name for name in vars(served_kernels) if name.startswith("right")]
ROWS, JOINT = "each row at positions of its own", "q and k as views of one packed qkv"
# kernel -> what explains it, and what it takes
FAULTS = {
    "one_row_decodes": (
        "positions-of-another-row",
        "each row at positions of its own, 1 token (right with 2)",
    ),
    "counts": ("positions-counted", "packed sequences that restart"),
    "one_key_head_is_left": ("no-rotation", "one key head"),
    "large_groups_are_late": ("positions-off", "8 query heads to a key head"),
    "heads_from_40_are_left": ("no-rotation", "64 heads (right with 40)"),
    "tokens_from_4096_are_left": ("another-position", "4,097 tokens (right with 1,311)"),
    "strides_of_q_for_k": ("unexplained", "q as a view of a packed qkv and k in one piece"),
    "narrow_int32": ("integer-width", "int32 positions"),
    "rows_from_32_are_left": ("no-rotation", "a batch of 33 (right with 5)"),
    # three things together and more, as servers have them
    "large_decode_is_left": ("no-rotation", f"{ROWS}, 1 token (right with 2), a batch of 33 (right with 5)"),
    "large_decode_as_servers_have_it_is_left": (
        "no-rotation",
        f"{ROWS}, 1 token (right with 2), a batch of 33 (right with 5), {JOINT}, int32 positions",
    ),
    "few_tokens_of_each_row_are_left": (
        "no-rotation",
        f"{ROWS}, 3 tokens (right with 7), a batch of 5 (right with 2), {JOINT}",
    ),
    "pieces_of_one_prompt_are_left": (
        "no-rotation",
        f"64 tokens (right with 17), a batch of 1 (right with 2), {JOINT}",
    ),
}


def under_test(function, dtype="fp32", up_to=2**17, head_dim=32, **rest) -> CodeUnderTest:
    own = OwnCode(function.__name__, function)
    return CodeUnderTest(own, RopeSetting.of(head_dim), parse(dtype), up_to, **rest)


def found(function, check=served.served, **rest):
    return list(check(under_test(function, **rest)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_right_in_all_calls(name: str, dtype: str) -> None:
    function = getattr(served_kernels, name)
    for check in (served.served, results.kept, results.threads):
        for one in found(function, check, dtype=dtype):
            assert one.status != "fail", one
            assert one.status != "info" or "not judged" in one.detail


def test_input_that_some_calls_alone_change_is_seen() -> None:
    code = under_test(served_kernels.overwrites_q_of_one_token)
    assert [one.status for one in answers.inputs_unchanged(code)] == ["pass"]  # of a call of many tokens
    list(served.served(code))
    (inputs,) = answers.inputs_unchanged(code)
    assert inputs.failed
    assert "in some calls, and returns another array" in inputs.detail


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_what_it_takes(name: str) -> None:
    code, takes = FAULTS[name]
    failed = [one for one in found(getattr(served_kernels, name)) if one.failed]
    assert failed
    assert {one.check for one in failed} == {"served calls"}
    assert any(takes in one.detail.partition(";")[0] for one in failed), [one.detail for one in failed]
    assert code in codes(failed[0].diagnosis).split("|")


def one_token_at(seen):
    """Code that takes a single token as if it stood elsewhere: at seen(position)."""
    return lambda q, k, at: served_kernels.right(q, k, seen(at) if q.shape[2] == 1 else at)


def explanations(function, place: int):
    """Return what explains a call of one token at one place alone, and at others too."""
    code = under_test(function)
    battery, call = served._Battery(code, code.rotator()), ServedCall(tokens=1, place=place)
    came = battery.outcome(call)
    alone = battery.places(came.block, call, explain=True)
    return alone.diagnosis, battery.explained(served._Way(call, "", came), came.block).diagnosis


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (lambda at: at % 2**16, Diagnosis("wrap", {"size": 2**16})),
        (lambda at: at.to(torch.int16), Diagnosis("integer-width", {"bits": 16})),
    ],
)
def test_what_two_faults_explain_at_one_place_is_asked_at_others(seen, found) -> None:
    def far(at):
        if int(at.min()) < 2**16:
            raise ValueError("too near")
        return seen(at)

    places = [int(served_calls.at(ServedCall(tokens=1, place=place), 2**17, 0)[0]) for place in (1, 2)]
    assert 2**16 < places[0] < 3 * 2**15 < places[1]  # the two differ at the second alone
    alone, more = explanations(one_token_at(far), 1)
    assert {one.code for one in (alone, *alone.alternatives)} == {"integer-width", "wrap"}
    assert more == found


def test_what_explains_one_place_and_not_another_explains_nothing() -> None:
    by_place = one_token_at(lambda at: at + 1 if int(at[0]) % 2 else -at)
    alone, more = explanations(by_place, 0)
    assert (alone.code, alone.certainty) == ("positions-off", "in this call")
    assert more == Diagnosis("unexplained")


def test_what_differs_by_its_values_alone_is_told_of_the_first_place() -> None:
    alone, more = explanations(one_token_at(lambda at: at.clamp(max=50000)), 0)
    assert alone.values["seen"] == 50000
    assert (more.code, more) == ("another-position", alone)


def test_plain_calls_do_not_see_these_faults() -> None:
    """They are what this battery is for: without it they pass."""
    others = [name for name in code_checks.CHECKS if name in ("rotation", "short calls", "decode", "pieces")]
    code = under_test(served_kernels.one_row_decodes, up_to=4096)
    assert not [one for name in others for one in code_checks.CHECKS[name](code) if one.failed]


def test_what_lies_beside_q_and_k_is_not_written() -> None:
    failed = [one for one in found(served_kernels.writes_behind) if one.failed]
    assert {one.check for one in failed} == {"memory"}
    assert "it writes beside q and k" in failed[0].detail


def test_a_result_that_the_next_call_overwrites_is_named() -> None:
    [one] = found(served_kernels.shares_its_output, results.kept)
    assert (one.status, codes(one.diagnosis)) == ("fail", "output-shared")


def test_threads_that_meet_are_named() -> None:
    [one] = found(served_kernels.keeps_positions, results.threads)
    assert (one.status, codes(one.diagnosis)) == ("fail", "threads-meet")


def test_what_is_refused_is_noted_with_what_it_takes() -> None:
    def rotate(q, k, positions):
        if q.shape[1] != k.shape[1]:
            raise ValueError("as many heads of k as of q")
        return served_kernels.right(q, k, positions)

    noted = [one for one in found(rotate) if one.status == "info"]
    assert noted
    assert all("as many heads of k as of q" in one.detail for one in noted)
    assert not [one for one in found(rotate) if one.failed]


@pytest.mark.parametrize("together", [2, 3])
def test_calls_cover_any_values_together(together: int) -> None:
    values = {axis: some[:4] for axis, some in AXES.items()}

    def fits(call: ServedCall, most: int) -> bool:
        return call.goes and call.size <= most

    calls = calls_of(values, fits, together)
    for axes in itertools.combinations(values, together):
        seen = {tuple(getattr(call, axis) for axis in axes) for call in calls}
        for some in itertools.product(*(values[axis] for axis in axes)):
            bases = served_calls._bases(values, dict(zip(axes, some, strict=True)))
            assert some in seen or not any(fits(one, served_calls._MOST) for one in bases)
    assert all(fits(call, served_calls._MOST) for call in calls)


def test_any_two_values_are_called_together() -> None:
    """As the detail of the check says: none is too large, and none goes with no other."""

    def fits(call: ServedCall, most: int) -> bool:
        return call.goes and call.size <= most

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
    at = served_calls.at(ServedCall(kind, tokens, batch), tokens + more, 0)
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
@pytest.mark.parametrize("strides", IN_BUFFER)
def test_what_is_written_around_vectors_is_seen_and_in_them_is_not(strides: str, engine: str) -> None:
    q, k = np.ones((2, 4, 3, 8), np.float32), np.full((2, 2, 3, 8), 2, np.float32)
    buffer = Buffer({"q": q, "k": k}, FP32, engine, strides, "bhsd")
    assert np.array_equal(np.asarray(buffer.views["q"]), q)
    assert np.array_equal(np.asarray(buffer.views["k"]), k)
    buffer.views["q"][...] = 5
    buffer.check_around()
    free = np.flatnonzero(np.isnan(np.asarray(buffer.buffer)))
    for place in free[[0, len(free) // 2, -1]]:
        buffer.buffer[int(place)] = 1
        with pytest.raises(WroteAround):
            buffer.check_around()
        buffer.buffer[int(place)] = np.nan
    buffer.check_around()


def test_heads_of_other_sizes_are_tried_on_request() -> None:
    def left_at_96(x, positions):
        result = served_kernels.rotated(x, positions)
        if x.shape[-1] == 96:
            result[..., 64:] = x[..., 64:]
        return result

    assert not found(left_at_96, head_dims.head_dims)
    [one] = found(left_at_96, head_dims.head_dims, sizes=True)
    assert one.failed
    assert one.where.startswith("96 of 96 dims")
    [one] = found(served_kernels.right_alone, head_dims.head_dims, sizes=True)
    assert one.status == "pass"
    assert "256 of 256" in one.detail
    one, *_ = found(served_kernels.right_partial, head_dims.head_dims, sizes=True)
    assert one.status == "pass"
    assert "64 of 256" in one.detail


def test_a_battery_that_is_interrupted_is_no_pass(monkeypatch) -> None:
    def interrupted(code):
        raise KeyboardInterrupt
        yield

    monkeypatch.setitem(code_checks.CHECKS, "decode", interrupted)
    made = code_checks.findings(under_test(served_kernels.right, up_to=64))
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(iter(lambda: next(made), None))
    last = seen[-1]
    assert last.failed
    assert last.detail.startswith("no pass: not run, or not to its end: decode, pieces, ")


@pytest.mark.parametrize(
    "at", ["table end", "served calls", "memory", "long sequence", "under tf32:emulated"]
)
def test_an_interruption_names_every_check_that_has_no_row(at) -> None:
    """After the row of `at`; the names are those that rows of a whole run have."""
    code = under_test(served_kernels.right, up_to=80, environments=DEFAULT, sizes=True)
    names = list(dict.fromkeys(one.check for one in code_checks.findings(code)))
    assert {"memory", "growth", "under tf32:emulated"} < set(names)
    made = code_checks.findings(code)
    while next(made).check != at:
        pass
    last = made.throw(KeyboardInterrupt())
    listed = last.detail.removeprefix("no pass: not run, or not to its end: ").split(", ")
    seldom = ("keys", "frequency switch")  # which have rows of some code alone
    assert [one for one in listed if one not in seldom] == names[names.index(at) + 1 :]


def test_the_helper_for_test_suites_makes_the_same_calls() -> None:
    testing.assert_rope(served_kernels.right, "fp32", head_dim=32)
    with pytest.raises(testing.WrongRope) as caught:
        testing.assert_rope(served_kernels.one_row_decodes, "fp32", head_dim=32)
    assert caught.value.diagnosis == "positions-of-another-row"
    assert "1 token (right with 2)" in str(caught.value)
    assert "rotate each row by its own positions" in str(caught.value)


def test_the_helper_warns_of_keys_that_are_not_seen() -> None:
    with pytest.warns(UserWarning, match="what it does to k was not seen"):
        testing.assert_rope(served_kernels.q_alone, "fp32", head_dim=32, up_to=256)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        testing.assert_rope(served_kernels.right, "fp32", head_dim=32, up_to=256)
