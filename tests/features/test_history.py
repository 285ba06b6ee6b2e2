"""State that leaks between calls: found, named, and not seen where there is none."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from planted import Planted, plant

from ropeaudit import parse
from ropeaudit.audits.cases import Case
from ropeaudit.errors import UsageError
from ropeaudit.features.history import analysis
from ropeaudit.features.history.analysis import AuditCall
from ropeaudit.features.history.report import COLUMNS
from ropeaudit.main import main

STATELESS = ["transformers-llama", "x-transformers", "mlx", "ggml", "onnxruntime", "mistral-inference"]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def history(capsys, *arguments: str) -> list[dict[str, str]]:
    assert main(["history", *arguments, "-f", "csv", "-q"]) == 0
    return rows(capsys.readouterr().out)


def test_the_leak_of_rotary_embedding_torch_is_found_and_named(capsys) -> None:
    command = ["history", "rotary-embedding-torch", "--dtype", "fp32,bf16", "-f", "json"]
    assert main(command) == 0
    seen = capsys.readouterr()
    report = json.loads(seen.out)
    assert report["headline"].startswith("State leaks (2 of 24 cases leak): rotary-embedding-torch in ")
    assert "from a fresh instance after a call in" in report["headline"]
    assert "make an instance for each dtype" in seen.err
    leaking = [one for one in report["records"] if one["leaks"] == "yes"]
    assert {(one["dtype"], one["before_dtype"]) for one in leaking} == {
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
    }
    for one in leaking:
        assert (one["before"], one["before_offset"]) == ("another dtype from 0", 0)
        assert one["version"] == "0.9.1"
    (result,) = [one for one in leaking if one["dtype"] == "float32"]
    assert 3 < result["difference_max"] < 10


def test_it_is_what_two_calls_by_hand_give(capsys) -> None:
    import torch
    from rotary_embedding_torch import RotaryEmbedding

    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 256, 128))).float()[None]
    used, fresh = RotaryEmbedding(128), RotaryEmbedding(128)
    used.rotate_queries_or_keys(torch.ones(1, 1, 1256, 128, dtype=torch.bfloat16))
    difference = used.rotate_queries_or_keys(x, offset=1000) - fresh.rotate_queries_or_keys(x, offset=1000)
    results = history(capsys, "rotary-embedding-torch", "--dtype", "fp32,bf16", "--offset", "1000")
    (leak,) = [one for one in results if one["leaks"] == "yes" and one["dtype"] == "float32"]
    assert float(leak["difference_max"]) == pytest.approx(float(difference.abs().max()), rel=1e-6)


def test_what_keeps_no_state_leaks_none(capsys) -> None:
    command = [",".join(STATELESS), "--dtype", "fp32,fp16", "--seq-len", "32"]
    results = history(capsys, *command)
    assert {one["implementation"] for one in results} == set(STATELESS)
    assert {(one["leaks"], one["difference_max"]) for one in results} == {("no", "0.0")}
    assert {(one["implementation"], one["layout"]) for one in results} >= {
        ("mlx", "half"),
        ("x-transformers", "interleaved"),
    }


class Longest(Planted):
    """Remembers the longest sequence that it has seen, as dynamic NTK does."""

    def instance(self, setting, dtype):
        seen = []

        def rotate(x, positions, fmt):
            seen.append(positions.size)
            return (x + max(seen)).astype(np.float32)

        return rotate


class Broken(Planted):
    """Gives nan once it has been called, and takes no bfloat16."""

    def refuses(self, setting, dtype):
        return "" if dtype.name == "float32" else "it takes float32 alone"

    def instance(self, setting, dtype):
        calls = []

        def rotate(x, positions, fmt):
            calls.append(1)
            if positions.max() > 4096:
                raise IndexError("past the table")
            return np.full(x.shape, np.nan) if len(calls) > 1 else x

        return rotate


def test_a_planted_leak_is_seen_where_it_is_and_nowhere_else(monkeypatch, capsys) -> None:
    plant(monkeypatch, Longest)
    results = history(capsys, "planted", "--dtype", "fp32", "--offset", "7", "--seq-len", "10")
    leaks = {one["before"]: (one["leaks"], float(one["difference_max"])) for one in results}
    assert leaks["longer"] == ("yes", pytest.approx(10, abs=1e-5))
    assert leaks["from 0"] == ("yes", pytest.approx(7, abs=1e-5))
    assert {leaks[name] for name in ("the same call", "shorter", "another offset")} == {("no", 0.0)}


def test_lost_numbers_and_errors_are_findings(monkeypatch, capsys) -> None:
    plant(monkeypatch, Broken)
    results = history(capsys, "planted", "--dtype", "fp32,bf16", "--offset", "0", "--seq-len", "10")
    by = {(one["dtype"], one["before"]): one for one in results}
    assert by["float32", "the same call"]["difference_max"] == "inf"
    assert by["float32", "the same call"]["leaks"] == "yes"
    assert by["float32", "another dtype"]["refused"] == "it takes float32 alone"
    assert by["float32", "another offset"]["refused"] == "IndexError: past the table"
    assert {one["leaks"] for one in results if one["dtype"] == "bfloat16"} == {"refused"}
    assert main(["history", "planted", "--dtype", "bf16"]) == 0
    assert capsys.readouterr().out.startswith("Nothing could be called: it takes float32 alone.\n")


def test_histories_of_a_call() -> None:
    single, brain = parse("fp32"), parse("bf16")
    assert analysis.histories(AuditCall(single, 100, 5), [single, brain]) == [
        ("the same call", AuditCall(single, 100, 5)),
        ("another dtype", AuditCall(brain, 100, 5)),
        ("another dtype from 0", AuditCall(brain, 0, 105)),
        ("longer", AuditCall(single, 100, 10)),
        ("shorter", AuditCall(single, 100, 2)),
        ("another offset", AuditCall(single, 4196, 5)),
        ("from 0", AuditCall(single, 0, 105)),
    ]
    assert all(
        call.length < 2**16 for _, call in analysis.histories(AuditCall(single, 2**20, 5), [single, brain])
    )


def test_a_call_at_another_offset_that_floats_do_not_hold_is_refused() -> None:
    last = 2**53 - 256 - analysis.FURTHER
    case, names, dtypes = Case(head_dim=8), ["transformers-llama"], [parse("fp32")]
    with pytest.raises(UsageError, match=f"offset {2**53 - 255} takes some of 256 positions past"):
        list(analysis.run([case], names, dtypes, [last + 1]))


def test_the_table(snapshot, capsys) -> None:
    columns = "implementation,dtype,offset,before,before_dtype,before_offset,before_seq_len,leaks"
    assert main(f"history rotary-embedding-torch --dtype fp32,bf16 --columns {columns}".split()) == 0
    assert capsys.readouterr().out == snapshot


@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "markdown", "table"])
def test_every_form_and_file(form, tmp_path, capsys) -> None:
    path = tmp_path / "out.csv"
    command = ["history", "mlx", "--dtype", "fp32", "--seq-len", "4", "--offset", "0"]
    assert main([*command, "-f", form, "-o", str(path)]) == 0
    assert "mlx" in capsys.readouterr().out
    assert list(rows(path.read_text(encoding="utf-8"))[0]) == list(COLUMNS)


@pytest.mark.parametrize(
    ("arguments", "error_line"),
    [
        (["no-such"], "unknown implementation"),
        (["mlx", "--dtype", "fp17"], "unknown number format"),
        (["mlx", "--offset", "2^60"], "past 2^53"),
        (["mlx", "--seq-len", "0"], "--seq-len 0"),
        (["mlx", "--columns", "drift"], "unknown column"),
        (["mlx", "-f", "xml"], "unknown report format"),
        ([","], "empty element"),
    ],
)
def test_bad_input_gets_one_line(arguments, error_line, capsys) -> None:
    assert main(["history", *arguments]) == 2
    seen = capsys.readouterr()
    assert error_line in seen.err
    assert seen.err.count("\n") == 1
    assert seen.out == ""


def test_own_code(capsys) -> None:
    path = Path(__file__).parent.parent / "conformance" / "faulty_calls.py"
    options = ["--dtype", "fp32,bf16", "--offset", "1000", "--seq-len", "16", "--head-dim", "32"]
    by = {
        one["before"]: one
        for one in history(capsys, f"{path}:KeepsDtype", *options)
        if one["dtype"] == "float32"
    }
    assert by["another dtype"]["leaks"] == "yes"
    assert float(by["another dtype"]["difference_max"]) > 0.1
    assert by["the same call"]["leaks"] == by["longer"]["leaks"] == "no"
    assert {one["leaks"] for one in history(capsys, f"{path}:right", *options)} == {"no"}
