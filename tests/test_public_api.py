"""The public API: its names, what a wrong argument gets, and a user's script under mypy strict."""

import ast
import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import numpy as np
import pytest
from cases import table

import ropeaudit
from ropeaudit import UsageError
from ropeaudit.main import cli, main

ROOT = Path(__file__).parent.parent
SMALL = {"heads": 1, "seq_len": 16, "head_dim": 8}
# commands without a function of their own: what they print is data of the package, or a picture
WITHOUT = {"list", "plot"}

TABLE = table(__file__, "public_api.toml")


def test_every_name_is_there_and_listed() -> None:
    for name in ropeaudit.__all__:
        assert getattr(ropeaudit, name).__name__ == name or name == "Format"
    assert set(ropeaudit.__all__) <= set(dir(ropeaudit))
    assert "__version__" in dir(ropeaudit)
    with pytest.raises(AttributeError, match="shifted"):
        _ = ropeaudit.shifted


def test_type_checkers_read_what_is_loaded() -> None:
    tree = ast.parse(Path(inspect.getfile(ropeaudit)).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    named = {alias.name: node.module for node in checked.body for alias in node.names}
    assert named == {name: f"ropeaudit.{home}" for name, home in ropeaudit._HOMES.items()}
    assert sorted(named) == sorted(ropeaudit.__all__)


def test_every_command_has_its_function() -> None:
    functions = {name for name in ropeaudit.__all__ if inspect.isfunction(getattr(ropeaudit, name))}
    assert set(cli.list_commands(click.Context(cli))) - WITHOUT <= functions


def test_no_public_function_takes_anything() -> None:
    for name in ropeaudit.__all__:
        thing = getattr(ropeaudit, name)
        if inspect.isfunction(thing):
            assert "**case: 'Any'" not in str(inspect.signature(thing)), name


def test_a_wrong_argument_names_the_nearest() -> None:
    for name, arguments, wrong, nearest in TABLE["misspelt"]:
        message = f"unknown argument of {name} '{wrong}'; did you mean {nearest}"
        with pytest.raises(ropeaudit.UnknownName, match=message):
            getattr(ropeaudit, name)(*arguments, **{wrong: 1})


def test_an_error_names_arguments_in_python_and_options_on_the_command_line(capsys) -> None:
    with pytest.raises(UsageError, match=r"^kv_heads 3 does not divide heads 8; "):
        next(ropeaudit.shift(kv_heads=3))
    named = "transformers-llama"
    with pytest.raises(UsageError, match=rf"^rerotate is of recipes; leave out implementations {named}$"):
        next(ropeaudit.shift(implementations=named, rerotate=1))
    with pytest.raises(UsageError, match=r"^'a\.b:' does not say which function; try "):
        next(ropeaudit.shift(implementations="a.b:"))
    assert main(["shift", "--kv-heads", "3"]) == 2
    assert "error: --kv-heads 3 does not divide --heads 8; " in capsys.readouterr().err


def test_every_result_says_which_module_reports_it() -> None:
    kinds = [getattr(ropeaudit, name) for name in ropeaudit.__all__]
    modules = {one.__name__: one.report_module for one in kinds if hasattr(one, "report_module")}
    assert len(modules) == 13
    for name, module in modules.items():
        home = import_module(module)
        assert [*inspect.signature(home.report).parameters][:3] == ["results", "columns", "metadata"], name


def assert_framed(results, name: str, **given) -> None:
    """Compare a frame with the rows of the report, value by value, and its types with those of the columns.

    What a notebook shows of a result is its report too.
    """
    one = results[0] if isinstance(results, list) else results
    assert one._repr_html_() == ropeaudit.report(one, metadata={})._repr_html_(), name
    report = ropeaudit.report(results, metadata={}, **given)
    frame = ropeaudit.to_frame(results, **given)
    assert list(frame) == list(report.columns), name
    kinds = {int: "Int64", float: "float64", str: "string", bool: "boolean"}
    for column in report.columns:
        declared = report.declared.get(column)
        kind = declared.kind if declared is not None else type(report.rows[0][column])
        if declared is None or not declared.words:
            assert str(frame[column].dtype) == kinds[kind], (name, column)
        there = [row[column] for row in report.rows]
        empty = [value is None or value == "" or value != value for value in there]
        assert frame[column].isna().tolist() == empty, (name, column)
        assert frame[column].dropna().tolist() == [
            kind(value) for value, undefined in zip(there, empty, strict=True) if not undefined
        ], (name, column)


def test_a_report_of_every_kind_of_result() -> None:
    tiny = {**SMALL, "seq_len": 8}
    made = {
        "shift": ropeaudit.shift(1000, "bf16", "hf", **tiny),
        "limit": ropeaudit.limit("distinct_positions=8", "fp16", "uniform", **tiny),
        "explain": ropeaudit.explain(1000, "bf16", "uniform", **tiny),
        "parity": ropeaudit.parity("hf", "uniform", 1000, **tiny),
        "rerotate": ropeaudit.shift(0, "bf16", "hf", rerotate=1, **tiny),
        "decay": ropeaudit.decay([0, 9], "ones", head_dim=8),
        "frequencies": ropeaudit.frequencies("bf16", head_dim=8),
        "check": ropeaudit.check("llama-3.1-8b", "bf16", up_to=64),
    }
    for name, results in made.items():
        results = list(results)
        report = ropeaudit.report(results)
        assert report.rows, name
        assert report.headline, name
        assert ropeaudit.render("csv", report).count("\n") == len(report.rows) + 1, name
        assert "environment" in report.metadata, name
        assert_framed(results, name)
    explained = list(ropeaudit.explain(1000, "bf16", "uniform", **tiny))
    assert "pair" in ropeaudit.report(explained, by="pair").columns
    assert_framed(explained, "by pair", by="pair")
    assert list(ropeaudit.to_frame(explained, ["share", "pair"], by="pair")) == ["share", "pair"]
    large = ropeaudit.to_frame(ropeaudit.shift(1, "fp16", "hf", seed=2**63, **tiny))
    assert large["seed"].tolist() == [2**63]
    for function in (ropeaudit.report, ropeaudit.to_frame):
        with pytest.raises(UsageError, match="no results"):
            function([])
        with pytest.raises(ropeaudit.UnknownName, match="unknown column 'part'; did you mean part_rms"):
            function(explained, ["share", "part"], by="pair")
        with pytest.raises(ropeaudit.UnknownName, match=r"unknown by 'part'; did you mean pair\?"):
            function(explained, by="part")
    assert list(ropeaudit.to_frame(explained, "share")) == ["share"]
    with pytest.raises(UsageError, match="is no result"):
        ropeaudit.report([1])
    [limit] = ropeaudit.limit("distinct_positions=8", "fp16", "uniform", **tiny)
    assert ropeaudit.report(limit).rows == ropeaudit.report([limit]).rows
    with pytest.raises(UsageError, match="results of Limit and of FrequencyTable have a report each; give"):
        ropeaudit.report([limit, *ropeaudit.frequencies("bf16", head_dim=8)])


def test_a_report_of_what_files_and_code_hold(tmp_path) -> None:
    from safetensors.numpy import save_file
    from tiny_models import make

    theta = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    np.save(tmp_path / "table.npy", theta)
    save_file({"rotary.inv_freq": theta.astype(np.float16)}, tmp_path / "state.safetensors")
    rows = ropeaudit.report(ropeaudit.shift([0, 1000], "bf16", "uniform", **SMALL))
    (tmp_path / "a.csv").write_text(ropeaudit.render("csv", rows))
    after = str(tmp_path / "a.csv")
    results = {
        "dump": ropeaudit.module(str(tmp_path / "table.npy"), base=1e4, head_dim=8),
        "explain": ropeaudit.explain(0, implementations=f"{ROOT}/examples/kernel.py:apply_rope", **SMALL),
        "module": ropeaudit.module(str(tmp_path / "state.safetensors"), base=1e4, head_dim=8),
        "model": ropeaudit.model(str(make("llama", tmp_path / "model", 1)), 1000, "fp32", tokens="8"),
        "diff": ropeaudit.diff(after, after),
        "summary": ropeaudit.summary(after),
    }
    for name, result in results.items():
        result = result if hasattr(result, "report_module") else list(result)
        report = ropeaudit.report(result)
        assert report.headline, name
        assert ropeaudit.render("csv", report).count("\n") == len(report.rows) + 1, name
        assert_framed(result, name)
    with pytest.raises(UsageError, match=r"by 'layer' says what the rows of explain and of model are; leave"):
        ropeaudit.report(ropeaudit.diff(after, after), by="layer")
    with pytest.raises(UsageError, match="a report is about one Difference, and there are 2; give one"):
        ropeaudit.report([results["diff"]] * 2)


def test_a_report_is_that_of_the_command(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    sizes = ["--heads", "1", "--seq-len", "16", "--head-dim", "8"]
    assert main(["parity", "hf", "uniform", "--offset", "1000", *sizes]) == 0
    results = ropeaudit.parity("hf", "uniform", 1000, **SMALL)
    assert capsys.readouterr().out == ropeaudit.render("table", ropeaudit.report(results))


@pytest.mark.exhaustive
def test_a_script_is_checked(tmp_path) -> None:
    """mypy strict takes a script that calls every function, and refuses each wrong argument."""
    pytest.importorskip("mypy")

    def checked(text: str) -> str:
        (tmp_path / "script.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "script.py"]
        there = os.environ | {"MYPYPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True).stdout

    assert checked(TABLE["script"]).startswith("Success: ")
    wrong = checked("import ropeaudit\n" + "\n".join(TABLE["wrong"].values()) + "\n")
    assert [
        name for line, name in enumerate(TABLE["wrong"], 2) if f"script.py:{line}: error" not in wrong
    ] == []
