"""Own code under audit: signatures, orders, layouts, NumPy, modules; and all that can be wrong with it.

Instances share tables until one of them writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernels_tables
import numpy as np
import pytest
import torch
from faulty_calls import right

from ropeaudit import parse, shift
from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case
from ropeaudit.errors import RopeAuditError, UnknownName, UsageError
from ropeaudit.features.check import code_target
from ropeaudit.features.check.checked import CheckOptions, Target
from ropeaudit.main import main
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import factories
from ropeaudit.subjects.calling import loading
from ropeaudit.subjects.calling.foreign import in_process, load
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.signatures import copied

SETTING = RopeSetting.of(64)
SMALL = ["--heads", "2", "--seq-len", "32", "--head-dim", "64"]
PATH = Path(__file__).parents[1] / "kernels" / "called" / "own_rotations.py"
BHSD = ["--order", "bhsd"]  # of code that fits no call: else each order is tried


def run(name, *more, capsys):
    code = main(["shift", "--impl", f"{PATH}:{name}", *SMALL, "-f", "json", *more])
    seen = capsys.readouterr()
    return code, json.loads(seen.out) if code != 2 else None, seen.err


FOUND = {
    **{name: (name, "half") for name in ("bhsd", "bshd", "sbhd", "hsd", "sd")},
    **dict.fromkeys(("tables", "one_table", "numpy_one", "Module", "instance", "factory"), ("bhsd", "half")),
    **dict.fromkeys(("interleaved", "deepseek"), ("bhsd", "interleaved")),
}
ORDERED, MEASURED = ("bshd", "sbhd"), ("sbhd", "tables", "numpy_one", "factory", "deepseek")


def test_signature_order_and_layout_are_found_out() -> None:
    wrong = {}
    for name, found in FOUND.items():
        fit = load(f"{PATH}:{name}").fit(SETTING)
        form = fit.convention
        seen = form.order, fit.layout, fit.odd, fit.permuted, form.engine, fit.error < 1e-5
        engine = "numpy" if name == "numpy_one" else "torch"
        if seen != (*found, (), name == "deepseek", engine, True):
            wrong[name] = seen
        elif name in ORDERED and load(f"{PATH}:{name}", found[0]).fit(SETTING).convention != form:
            wrong[name] = "another form where its order is given"
    assert wrong == {}
    specs, case = [f"{PATH}:{name}" for name in MEASURED], {"heads": 2, "seq_len": 32, "head_dim": 64}
    rows = list(shift(4096, ("fp32", "bf16"), implementations=specs, **case))
    assert [row.layout for row in rows[::2]] == [FOUND[name][1] for name in MEASURED]
    allowed = {"float32": 1e-4, "bfloat16": 4e-3}
    assert [(row.implementation, row.dtype) for row in rows if row.drift_rms >= allowed[row.dtype]] == []


def test_a_module_of_ones_own_is_found_where_the_command_runs(capsys, monkeypatch) -> None:
    monkeypatch.chdir(PATH.parent)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(PATH.parent)])
    monkeypatch.delitem(sys.modules, "own_rotations", raising=False)
    gate = ["--offset", "128k", "--dtype", "bf16", "--fail-if"]
    assert main(["shift", "--impl", "own_rotations:bhsd", *SMALL, *gate, "drift_rms>0.01"]) == 0
    assert main(["shift", "--impl", "own_rotations:bhsd", *SMALL, *gate, "drift_rms>0.0001"]) == 1
    assert "failed: drift_rms" in capsys.readouterr().err
    assert "own_rotations" not in sys.modules


def test_a_file_may_have_dots_in_its_name(tmp_path) -> None:
    (tmp_path / "rope.v1.2.py").write_bytes(PATH.read_bytes())
    more = ["--dtype", "fp32", "--offset", "7"]
    assert main(["shift", "--impl", f"{tmp_path}/rope.v1.2.py:bhsd", *SMALL, *more]) == 0


@pytest.mark.processor
def test_what_is_measured_is_a_plain_computation() -> None:
    """The largest drift in bfloat16, from float64 angles and complex numbers of this test's own."""
    (record,) = shift(
        1000, "bf16", implementations=f"{PATH}:bhsd", heads=1, seq_len=16, head_dim=64, mask="full"
    )
    from ropeaudit.inputs import qk

    built = qk.make("gaussian", 1, 1, 16, SETTING, 0)
    rotator = load(f"{PATH}:bhsd").rotator(SETTING, parse("bf16"))
    q, k = (
        rotator.rotate_both(x[None], x[None], np.arange(16) + 1000)[0][0, 0].astype(np.float64)
        for x in (built.q, built.k)
    )
    theta = 10000.0 ** (-np.arange(32) / 32)
    rotations = np.exp(1j * np.arange(16)[:, None] * theta)
    a, b = ((x[0][:, :32] + 1j * x[0][:, 32:]) * rotations for x in (built.q, built.k))
    exact = (a @ b.conj().T).real / 8
    assert record.drift_max == pytest.approx(np.abs(q @ k.T / 8 - exact).max(), rel=1e-9)


@pytest.mark.slow  # a whole check
def test_a_layout_that_is_given_is_kept_and_a_wrong_one_found(capsys) -> None:
    code, report, err = run("interleaved", "--layout", "half", "--dtype", "fp32", capsys=capsys)
    assert code == 0
    assert {row["layout"] for row in report["records"]} == {"half"}
    assert {row["verdict"] for row in report["records"]} == {"wrong_rotation"}
    assert "behaves like interleaved pairs; it is audited as half, as asked" in " ".join(
        [err, *report["notes"]]
    )
    _, report, err = run("interleaved", "--dtype", "fp32", capsys=capsys)
    assert {row["layout"] for row in report["records"]} == {"interleaved"}
    assert "behaves like" not in err


def test_two_layouts_in_one_command(capsys) -> None:
    more = ["--dtype", "fp32", "--recipe", "hf", "--offset", "0,1000"]
    code, report, _ = run(f"interleaved,{PATH}:bhsd", *more, capsys=capsys)
    assert code == 0
    results = [(row["implementation"].rpartition(":")[2], row["layout"]) for row in report["records"]]
    assert results[::2] == [("hf", "interleaved"), ("interleaved", "interleaved"), ("bhsd", "half")]


def test_the_base_reaches_functions_and_modules() -> None:
    for name in ("bshd", "Module"):
        (record,) = shift(0, "fp32", implementations=f"{PATH}:{name}", base=77.0, heads=1, seq_len=32)
        assert record.drift_rms < 1e-5


FINDINGS = {
    "in_place": "changes its input where it lies",
    "wide": "returned float32 for bfloat16",
    "gives_nan": "nan",
    "bhsd": "called as f(x, positions) with torch tensors bhsd, half-split pairs (detected)",
}


def test_findings_are_said_and_recorded(capsys) -> None:
    names = ",".join(f"{PATH}:{name}" for name in FINDINGS)
    code, report, err = run(names.partition(":")[2], "--dtype", "bf16", "--offset", "0", capsys=capsys)
    assert code == 0
    assert [text for text in FINDINGS.values() if text not in " ".join([err, *report["notes"]])] == []
    assert [text for text in FINDINGS.values() if not any(text in one for one in report["findings"])] == []
    verdicts = {row["implementation"].rpartition(":")[2]: row["verdict"] for row in report["records"]}
    assert [name for name, verdict in verdicts.items() if verdict == "overflow"] == ["gives_nan"]


@pytest.mark.parametrize(
    ("name", "side", "error_line"),
    [("skewed", "k", None), ("one_head", None, "head 1 of 2 alone: no rotation")],
)
def test_k_and_heads_that_are_rotated_otherwise_are_out_of_place(name, side, error_line, capsys) -> None:
    _, report, _ = run(name, "--dtype", "bf16", "--offset", "0", *BHSD, capsys=capsys)
    (row,) = report["records"]
    assert (row["verdict"], row["within_tolerance"]) == ("wrong_rotation", False)
    assert side in (None, row["rotation_side"])
    assert error_line in (None, row["resembles"])


def test_a_dtype_that_raises_is_a_row(capsys) -> None:
    code, report, _ = run("raises_for_half", "--dtype", "fp32,bf16", "--offset", "0", capsys=capsys)
    assert code == 0
    assert [row["refused"] for row in report["records"]] == [None, "raises"]
    assert [row["reason"] for row in report["records"]] == [None, "TypeError: float32 alone"]


def test_prints_stay_out_of_the_report(capsys) -> None:
    more = ("--dtype", "fp32", "--offset", "7", "-v")
    code, _, err = run("prints", *more, capsys=capsys)  # the report is JSON
    assert code == 0
    assert "hello from the kernel" in err


UNCALLABLE = {
    "raises": "ValueError: boom and more",
    "wrong_shape": "returns the shape",
    "leaves": "SystemExit: 5",
    "truncates": "returns an array of int32",
    "greedy": "known: q, k, v; unknown: cache, table, mystery",
    "no_vectors": "makes a int, which cannot be called",
    "value": "it is of type int and cannot be called",
    "hsdd": "did you mean hsd",
    "nothing": "returns None and leaves what it is given as it was",
}
FOREIGN = PATH.parent / "foreign_rope.py"
ABSENT = {
    f"{FOREIGN}:Triple": "returns 3 things for one array",
    f"{FOREIGN}:unknown": "wrapper, rotate(q, k, positions): ropeaudit check TARGET --write-wrapper",
    "nope_nope:f": "there is no module 'nope_nope' here",
    "nope.py:f": "there is no such file",
    **dict.fromkeys(("nope.py", ":f", "a:", "a:b c"), "does not say which function"),
}


def test_what_cannot_be_called_is_one_line(capsys) -> None:
    wrong = {}
    given = {f"{PATH}:{name}": text for name, text in UNCALLABLE.items()} | ABSENT
    for spec, text in given.items():
        code, seen = main(["shift", "--impl", spec, *SMALL, *BHSD]), capsys.readouterr()
        errors = [line for line in seen.err.splitlines() if line.startswith("ropeaudit: error")]
        once = seen.err.count("things for one array") <= 1 and "Traceback" not in seen.err
        if code != 2 or text not in seen.err or seen.out or len(errors) != 1 or not once:
            wrong[spec] = code, seen
    assert wrong == {}


NOT_IMPORTED = {
    "import nope_nope_nope": "ModuleNotFoundError: No module named 'nope_nope_nope'",
    "def f(:": "SyntaxError",
    "raise SystemExit(3)": "SystemExit: 3",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import pytest; pytest.skip('no', allow_module_level=True)": "Skipped",
    "1 / 0": "ZeroDivisionError: division by zero",
}


def test_a_folder_is_said_to_be_one_and_hides_no_package(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("kernels_of_mine", "json"):
        (tmp_path / name).mkdir()
        assert main(["check", f"{name}:rope"]) == 2
    mine, package = capsys.readouterr().err.splitlines()
    assert "kernels_of_mine is a folder; name a file in it" in mine
    assert "unknown name in json" in package


def test_a_module_that_fails_to_import_is_one_line(tmp_path, capsys) -> None:
    for number, (source, text) in enumerate(NOT_IMPORTED.items()):
        path = tmp_path / f"broken{number}.py"
        path.write_text(source)
        assert main(["shift", "--impl", f"{path}:f"]) == 2
        seen = capsys.readouterr().err
        assert text in seen
        assert "Traceback" not in seen
    (tmp_path / "notes.txt").write_text("def f(x, positions): return x")
    assert main(["shift", "--impl", f"{tmp_path / 'notes.txt'}:f", *SMALL]) == 2
    assert "cannot be imported: ImportError: it is no Python file" in capsys.readouterr().err


def test_orders_are_a_closed_list(capsys) -> None:
    assert main(["shift", "--impl", f"{PATH}:bhsd", "--order", "hbsd"]) == 2
    assert "unknown --order 'hbsd'" in capsys.readouterr().err
    with pytest.raises(RopeAuditError, match="nothing was checked"):
        load(f"{PATH}:sd", "bhsd").fit(SETTING)
    with pytest.raises(UnknownName):
        load(f"{PATH}:nope")


def test_samples_of_own_code(capsys) -> None:
    more = ("--sample", "200", "--dtype", "fp32", "--seq-len", "500", "--offset", "7")
    code, report, _ = run("interleaved", *more, capsys=capsys)
    assert code == 0
    assert {row["layout"] for row in report["records"]} == {"interleaved"}


def test_a_module_under_audit_keeps_its_state() -> None:
    """Every table gets a copy of an instance, as of any implementation."""

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x, positions):
            self.calls += 1
            return x

    module = Counting()
    rotator = in_process(OwnCode("counting", module, "bhsd")).rotator(SETTING, parse("fp32"))
    x = np.ones((1, 1, 4, 64), np.float32)
    rotator.rotate_both(x, x, np.arange(4))
    assert module.calls == 0


def test_positions_that_come_again_far_away_are_no_distinct_ones() -> None:
    (record,) = shift(0, "fp32", implementations=f"{PATH}:wraps", heads=1, seq_len=300, head_dim=8)
    assert record.distinct_positions == 100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="spawned processes")
def test_findings_come_home_from_workers(capsys) -> None:
    requested = ["shift", "--impl", f"{PATH}:wide,{PATH}:in_place", "--dtype", "fp16,bf16", *SMALL]
    requested += ["--offset", "0-19+1", "--columns", "offset", "-v"]
    assert main(requested) == 0
    alone = capsys.readouterr()
    assert "returned float32 for bfloat16" in alone.out
    assert "changes its input where it lies" in alone.out
    assert main([*requested, "--jobs", "2"]) == 0
    assert capsys.readouterr() == alone


@pytest.fixture
def foreign(monkeypatch) -> str:
    monkeypatch.chdir(PATH.parent)
    return "foreign_rope.py"


def test_arrays_of_other_libraries_and_a_position_offset_are_called_right(foreign) -> None:
    specs = [f"{foreign}:{name}" for name in ("foreign", "offset")]
    rows = shift(100, "bf16", implementations=specs, heads=1, seq_len=32, head_dim=64)
    assert [(row.verdict, row.rotation_excess < 1) for row in rows] == [("sound", True)] * 2


def test_what_numpy_does_not_have_is_refused_with_a_wrapper_also_where_quiet(foreign, capsys) -> None:
    asked = [*SMALL, "--dtype", "bf16", "--offset", "0,7", "-q"]
    assert main(["shift", "--impl", f"{foreign}:plain", *asked]) == 0
    [line] = capsys.readouterr().out.strip().split("\n")
    assert line.startswith("WARN  foreign_rope.py:plain   refused in all 2 rows: TypeError: cannot determine")
    assert "NumPy itself has no bfloat16: a wrapper that takes x.astype(numpy.float32)" in line


def test_a_table_that_ends_with_the_positions_of_the_request_is_no_fault_of_ours() -> None:
    """Another batch element is called at later positions, where it has one; those were not asked for."""
    rows = list(shift((0, 100), "fp32", implementations=f"{PATH}:Ends", seq_len=16, head_dim=32))
    assert [(one.within_tolerance, one.rotation_excess < 1) for one in rows] == [(True, True)] * 2


def test_sizes_that_pass_for_parts_are_no_way_to_call() -> None:
    """Three heads are unpacked as q, k and v; with four there is nothing to unpack."""
    with pytest.raises(UsageError, match=r"(?s)nothing was checked.*too many values"):
        load(f"{PATH}:fused", "bshd").fit(SETTING)


def test_code_that_works_in_place_and_stops_is_wrong_and_not_refused() -> None:
    rows = shift((0, 5000), "fp32", implementations=f"{PATH}:stops", seq_len=16, head_dim=32, heads=2)
    assert [(one.verdict == "wrong_rotation", one.diagnosis) for one in rows] == [
        (False, None),
        (True, "no-rotation"),
    ]


def test_a_module_of_flax_is_called_with_parameters_that_it_makes(monkeypatch) -> None:
    class Module:
        def init_with_output(self, key, *plain, **named):
            self.theta = 1e4 ** (-np.arange(0, 64, 2) / 64)
            return self(*plain, **named), {}

    class Rotary(Module):
        def __call__(self, x, positions):
            turns = np.exp(1j * positions[:, None] * self.theta) * (x[..., :32] + 1j * x[..., 32:])
            return np.concatenate([turns.real, turns.imag], -1).astype(x.dtype)

    monkeypatch.setitem(sys.modules, "flax.linen", SimpleNamespace(Module=Module))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(random=SimpleNamespace(key=int)))
    assert in_process(OwnCode("rotary", Rotary)).fit(SETTING).sure


def test_a_call_is_told_of_as_many_tokens_as_it_gets() -> None:
    calls, x = [], np.ones((2, 2, 5, 64), np.float32)
    at = np.array([[3], [7]]) + np.arange(5)

    def longest(x, positions, max_seqlen):
        calls.append(max_seqlen)
        return right(x, positions)

    def packed(x, positions, cu_seqlens):
        calls.append((len(x), *cu_seqlens.tolist()))
        return right(x.transpose(0, 1), positions).transpose(0, 1)

    told = {(longest, "bhsd"): 5, (packed, "thd"): (10, 0, 5, 10)}
    for code, expected in told.items():
        own = in_process(OwnCode("own", *code))
        rotator = own.rotator(SETTING, parse("fp32"))
        calls.clear()
        rotator.rotate_both(x, x, at)
        assert calls == [expected]


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).reshape(3, 2))
        self.plain, self.view = torch.ones(3), self.table[1:]
        self.log: list[int] = []


WRITES = {
    "in place": lambda one: one.table.add_(1),
    "data": lambda one: one.table.data.__setitem__((0, 0), 9.0),
    "numpy": lambda one: one.table.numpy().__setitem__((0, 0), 9.0),
    "pointer": lambda one: np.ctypeslib.as_array(
        (__import__("ctypes").c_float * 6).from_address(one.table.data_ptr())
    ).__setitem__(0, 9.0),
    "through a view": lambda one: one.view.mul_(3.0),
    "an attribute": lambda one: one.plain.zero_(),
    "a list": lambda one: one.log.append(1),
}


def held(one: Cached) -> list[object]:
    return [one.table.tolist(), one.plain.tolist(), list(one.log)]


def test_what_a_copy_writes_no_other_sees() -> None:
    for how, write in WRITES.items():
        first = Cached()
        before, copies = held(first), [copied(first), copied(first)]
        # both read the same memory until one writes, which a data pointer may
        assert torch._C._data_address(copies[0].table) == torch._C._data_address(first.table)
        write(copies[0])
        assert [held(first), held(copies[1])] == [before] * 2, how
        assert held(copies[0]) != before
        assert copies[0].view.tolist() == copies[0].table[1:].tolist()  # still a view


def test_a_torch_without_lazy_copies_copies(monkeypatch) -> None:
    monkeypatch.delattr(torch, "_lazy_clone")
    first = Cached()
    copied(first).table.zero_()
    assert first.table.any()


# declared, original and served differ
YARN = {
    "max_position_embeddings": 200,
    "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128},
}
DYNAMIC = {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "dynamic", "factor": 4}}


@pytest.mark.parametrize(
    ("name", "config", "rows"),
    [
        ("OfConfig", YARN, 200),
        ("OfLength", YARN, 512),
        ("OfConfig", DYNAMIC, 128),  # as it was before the extension
        ("OfLength", DYNAMIC, 128),
    ],
)
def test_a_config_says_what_is_declared_and_a_length_is_what_is_served(
    name: str, config: dict[str, Any], rows: int, tmp_path: Path
) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 4, "rope_theta": 10000.0}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **shape, **config}))
    own, case = factories.implementation(f"{kernels_tables.__file__}:{name}"), Case(config=str(path))
    options = CheckOptions(dtypes=(FP32,), environments=("none",))
    next(iter(code_target.checks_of_code(own, Target(name, "code", case, options, lambda texts: None))))
    assert case.maximum == 512
    inside, _ = loading.load(own.name)
    inside.declared, inside.served = own.declared, own.served
    assert inside.instance(case.setting(512)).rows == rows
