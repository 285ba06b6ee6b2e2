"""Other ways to call the same code: each fault shows in its own check, right code passes all of them."""

import logging
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import faulty_calls
import pytest
import torch
from cases import first_fast
from planted import Planted, plant, under_test

from ropeaudit import parse
from ropeaudit.conformance import code_checks, code_under_test, mean_errors
from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.errors import RopeAuditError
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import environments

KERNELS = Path(faulty_calls.__file__)
CALLS = (
    "max-position",
    "decode",
    "chunked-prefill",
    "batch-of-one",
    "memory-layout",
    "stateless",
    "inputs-unmodified",
    "dtype",
)


def code_of(name, *args, **more):
    return under_test(f"{KERNELS}:{name}", *args, **more)


def found(name, *checks, dtype="bf16", **more):
    """Return the findings of some checks, by name."""
    code = code_of(name, dtype, **{"thorough": "torch.compile" in checks} | more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {one.check: one for check in checks for one in code_checks.run_check(check, code)}


def test_state_is_the_diagnosis_wherever_the_same_call_is_right_afresh() -> None:
    results = found(
        "stale_positions", "rotation", "short-sequences", "decode", "chunked-prefill", "stateless", "gradient"
    )
    failed = [one for one in results.values() if one.failed]
    assert {one.check for one in failed} >= {"rotation", "short-sequences", "decode", "stateless"}
    for one in failed:
        assert replace(one.diagnosis, where=Where()) == Diagnosis("state-left", {"how": "afresh"})


@pytest.mark.parametrize("once", [False, True])
def test_without_forks_what_can_be_executed_but_once_is_said_to_be(once, tmp_path, in_process) -> None:
    lock = "\nimport os\nos.mkdir(__file__ + '.lock')\n" if once else ""
    (tmp_path / "kernel.py").write_text(KERNELS.read_text() + lock)
    [state] = code_checks.run_check("stateless", under_test(f"{tmp_path / 'kernel.py'}:right"))
    assert state.status == "pass"
    assert ("it is loaded once" in state.detail) is once


def test_a_function_of_a_module_is_called_afresh(monkeypatch) -> None:
    monkeypatch.syspath_prepend(KERNELS.parent)
    code = under_test("faulty_calls:stale_positions")
    [state] = code_checks.run_check("stateless", code)
    assert "loaded once" not in state.detail
    [places] = code_checks.run_check("rotation", code)
    assert places.diagnosis == Diagnosis("state-left", {"how": "afresh"})


def test_rows_and_heads_behind_the_usual_few_are_named() -> None:
    for name, check, where in (
        ("third_row_late", "short-sequences", Where(batch=(2, 3, 4))),
        ("heads_behind_8_late", "short-sequences", Where(heads=tuple(range(8, 33)), of_heads=33)),
        ("third_row_of_positions", "positions-per-row", Where(batch=(2, 3, 4))),
    ):
        finding = found(name, check)[check]
        assert (finding.failed, finding.diagnosis.where) == (True, where)


FROM_0 = "it takes no positions: each call starts at 0"
PIECES = ("decode", "chunked-prefill", "positions-per-row")


@pytest.mark.parametrize(
    ("kernel", "statuses"),
    [
        ("cases/odd_name.py:right", {}),
        ("called/rows_told.py:left_padding", {"positions-per-row": "pass"}),
        ("cases/cached_keys.py:right", {"decode": "pass"}),  # k holds all tokens, q the newest
        ("cases/returns_cos_sin.py:OfX", {}),
    ],
)
def test_code_without_positions_is_not_called_in_pieces(kernel, statuses) -> None:
    code = under_test(f"{KERNELS.parents[1] / kernel}")
    for check in PIECES:
        [one] = code_checks.run_check(check, code)
        assert one.status == statuses.get(check, "not applicable")
        assert one.status == "pass" or one.detail == FROM_0


def test_rows_of_tables_are_taken_in_pieces() -> None:
    code = under_test(f"{KERNELS.parents[1] / 'cases/returns_cos_sin.py'}:OfLength")
    found = [one for check in PIECES for one in code_checks.run_check(check, code)]
    assert [one.status for one in found] == ["pass", "pass", "not applicable"]
    assert found[-1].detail == "its positions have no batch axis"


OF_BASE = """
def of_base(x, positions, base=500000.0):
    return right(x, positions)

class OfBase:
    def __init__(self, dim=128, base=500000.0, max_len=4096):
        pass
    def __call__(self, x, positions):
        return right(x, positions)
"""


@pytest.mark.parametrize(
    ("name", "called", "default"),
    [
        ("of_base", "f(x, positions, base=10000)", "(called with 10000)"),
        ("OfBase", "f(x, positions)", "(built with 10000)"),
    ],
)
def test_a_default_base_in_whose_place_another_is_given_is_named(name, called, default, tmp_path) -> None:
    (tmp_path / "kernel.py").write_text(KERNELS.read_text() + OF_BASE)
    code = under_test(f"{tmp_path / 'kernel.py'}:{name}")
    assert code.convention.called.startswith("f(x, positions")
    said = [text.partition(": ")[2] for text in code.own.findings]
    assert f"not checked: its default base=500000.0 {default}." in said
    assert any(text.startswith(f"called as {called} with ") for text in said)


def test_a_row_is_named_with_its_own_position() -> None:
    finding = found("position_70_late", "positions-per-row", up_to=71)["positions-per-row"]
    assert finding.failed
    assert "batch element 1, " in finding.where
    assert "position 70, " in finding.where


def test_what_is_wrong_alike_in_every_call_passes_here_and_is_left_to_places(tmp_path) -> None:
    (tmp_path / "wrong.py").write_text(
        KERNELS.read_text() + "\ndef wrong(x, positions):\n    return right(x, 2 * positions)\n"
    )
    code = under_test(f"{tmp_path / 'wrong.py'}:wrong")
    for check in ("decode", "chunked-prefill", "batch-of-one", "memory-layout"):
        [one] = code_checks.run_check(check, code)
        assert (one.status, one.differing, one.measured, one.where) == ("pass", 0.0, 0.0, "")
        assert (
            "a plain call has out of place are so here too: see places; the figure is of pairs that differ"
            in one.detail
        )
    [one] = code_checks.run_check("short-sequences", code)
    assert one.failed


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_tables_have_the_dtype_of_the_vectors_where_wider_ones_make_the_result_wider(dtype) -> None:
    code = code_of("by_tables", dtype)
    spelled = parse(dtype).name
    [one] = code_checks.run_check("dtype", code)
    assert one.detail == (
        f"{spelled} comes back in {spelled} where tables are given in {spelled}; "
        "with float32 ones float32 comes back"
    )
    assert not one.failed
    assert code.own.findings[-1:] == [
        f"{KERNELS}:by_tables: tables are given in {spelled}: with float32 ones it returns float32."
    ]
    changed = factories.implementation(f"{KERNELS}:by_tables", None, {"table": "fp32"})
    assert not changed.narrow_tables(code.setting, code.dtype)


@pytest.fixture
def with_eager(monkeypatch, in_process):
    """Compile with the backend that needs no compiler."""
    compile_ = torch.compile
    monkeypatch.setattr(environments, "has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", lambda function, options: compile_(function, backend="eager"))


@pytest.mark.slow
def test_compiled_code_fails_by_its_own_fault_and_passes_where_it_alone_is_right(with_eager) -> None:
    for name, by in (("compiled_otherwise", 1), ("wrong_in_two_ways", 2)):
        one = found(name, "torch.compile")["torch.compile"]
        assert one.failed
        assert one.diagnosis == Diagnosis("positions-off", {"by": by})
    one = found("right_when_compiled", "torch.compile")["torch.compile"]
    assert one.status == "pass"
    assert one.measured <= one.allowed
    assert one.differing > 0.5
    right = found("right", "torch.compile", dtype="fp32")["torch.compile"]
    assert right.status == "pass"
    assert right.detail.startswith("it is compiled by torch.compile; 256 positions from 0, 1000, ")


def test_a_compiler_warns_nobody(with_eager) -> None:
    records = []

    class Listening(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    loggers, listening = ("torch", "torch._dynamo"), Listening(logging.WARNING)
    for name in loggers:
        logging.getLogger(name).addHandler(listening)
    try:
        assert found("breaks_the_graph", "torch.compile", up_to=500)["torch.compile"].status == "pass"
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(listening)
    assert records == []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        [one] = code_checks.run_check("torch.compile", code_of("warned_of", thorough=True))
    assert one.status == "pass"
    assert [str(warning.message) for warning in seen] == []


@pytest.mark.slow
@pytest.mark.skipif(not environments.has_compiler(), reason="there is no C++ compiler")
def test_inductor() -> None:
    assert found("right", "torch.compile")["torch.compile"].status == "pass"
    assert found("compiled_otherwise", "torch.compile")["torch.compile"].failed


def test_a_compiler_that_fails_is_no_fault_of_the_code(monkeypatch, in_process) -> None:
    def broken(function, options):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(environments, "has_compiler", lambda: True)
    monkeypatch.setattr(torch, "compile", broken)
    one = found("right", "torch.compile")["torch.compile"]
    assert one.status == "not applicable"
    assert "it raises RuntimeError: no compiler" in one.detail


def test_compiling_applies_to_torch_code_and_on_request() -> None:
    assert found("right_numpy", "torch.compile")["torch.compile"].status == "not applicable"
    left = found("right", "torch.compile", thorough=False)["torch.compile"]
    assert left.status == "not checked"
    assert left.detail.endswith("; --thorough makes it")


class Forgetful(Planted):
    """Takes the positions of its first call, whatever comes later."""

    def instance(self, setting, dtype):
        rotate, first = super().instance(setting, dtype), []

        def called(x, positions):
            first.append(positions[0])
            return rotate(x, positions - positions[0] + first[0])

        return called


def test_adapters_are_checked_as_far_as_they_can_be(monkeypatch) -> None:
    plant(monkeypatch, Forgetful)
    code = under_test("planted", "fp32", 9000)
    results = {check: next(iter(code_checks.run_check(check, code))) for check in CALLS}
    assert results["stateless"].failed
    assert results["decode"].failed
    assert codes(results["stateless"].diagnosis) == "state-left"
    assert {results[name].status for name in ("memory-layout", "inputs-unmodified", "dtype")} == {
        "not applicable"
    }


def test_dear_code_is_called_less(monkeypatch) -> None:
    monkeypatch.setattr(code_under_test, "seconds_of_a_call", lambda *_: 1.0)
    assert found("right", "decode")["decode"].detail.startswith("4 runs of 8 positions")
    assert " at 2 offsets up to " in found("right", "chunked-prefill")["chunked-prefill"].detail


def test_modules_are_called_in_eval_mode_and_that_is_said() -> None:
    late = found("EvalLate", "short-sequences")["short-sequences"]
    assert late.diagnosis == Diagnosis("positions-off", {"by": -1})
    for name in ("TrainingLate", "training_late"):
        code = code_of(name)
        [one] = code_checks.run_check("short-sequences", code)
        assert one.status == "pass"
        assert any("training mode: a module is called in eval mode" in text for text in code.own.findings)


def test_an_error_of_the_audit_itself_is_no_answer_of_the_code(monkeypatch) -> None:
    code = code_of("by_tables")

    def ended(*_: object) -> None:
        raise RopeAuditError("took longer than 600 s")

    monkeypatch.setattr(CodeUnderTest, "rotator", lambda self: SimpleNamespace(rotate_both=ended))
    with pytest.raises(RopeAuditError, match="took longer"):
        list(code_checks.run_check("max-position", code))


@pytest.mark.parametrize(
    "check", first_fast(["short-sequences", "gradient", "serving-shapes", "score-error"])
)
def test_one_side_is_alone_only_where_the_other_is_right_in_all_of_the_calls(check) -> None:
    """k is wrong from position 401 on, q in the first calls too."""
    other = {"up_to": 700, "dtype": "fp32"}
    assert "k alone: " in found("k_late_from_401", check, **other)[check].resembles
    both = found("q_of_another_base_and_k_late_from_401", check, **other)[check]
    assert (codes(both.diagnosis), both.resembles) == (
        "wrong-base+positions-off",
        "q: base 20000 instead of 10000; k: positions +1, which does not explain every call",
    )


def test_a_mean_error_is_told_by_its_size() -> None:
    path = KERNELS.parents[1] / "cases" / "bias.py"
    found = mean_errors.beyond_rounding(under_test(f"{path}:k_1004"))
    assert codes(found.diagnosis) == "bias"
    assert found.diagnosis.values["length"] == 0.004
