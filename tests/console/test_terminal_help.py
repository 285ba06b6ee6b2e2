"""Help in groups, completion, colours, lists that take all, suggestions."""

import json

import click
import pytest
from click.shell_completion import ShellComplete
from command_line import ran

from ropeaudit.console import parameters
from ropeaudit.main import cli, main

TINY = ["--heads", "1", "--seq-len", "4", "--head-dim", "8", "--offset", "0"]


def test_without_a_command_one_sees_what_there_is(capsys) -> None:
    alone = ran(capsys, []).out
    assert ran(capsys, ["--help"]).out == alone


def test_help_is_one_list_that_ends_in_examples(capsys) -> None:
    text = ran(capsys, ["shift", "--help"]).out
    headings = [line for line in text.split("\n") if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options:", "Examples:"]
    assert ran(capsys, ["shift", "--help-all"]).out == text
    context = click.Context(cli)
    assert all(text.count(f"{param.opts[-1]} ") for param in cli.get_command(context, "shift").params)


@pytest.mark.parametrize(
    ("words", "incomplete", "some"),
    [
        (["shift", "--recipe"], "hf-s", ["hf-sdpa"]),
        (["shift", "--recipe"], "uniform,vllm-c", ["uniform,vllm-cuda"]),
        (["limit", "--dtype"], "bf", ["bfloat16", "bf16"]),
        (["shift", "--model"], "llama-3.1-8", ["llama-3.1-8b"]),
        (["shift", "--format"], "h", ["html"]),
        (["shift", "--columns"], "drift_rel", ["drift_relative"]),
        (["shift", "--fail-if"], "drift_rel", ["drift_relative"]),
        (["limit", "--columns"], "bound_up", ["bound_up_to"]),
        (["explain", "--columns"], "shar", ["share"]),
        (["decay", "--columns"], "men", ["men_sum"]),
        (["report", "--columns"], "out_of", ["out_of_tolerance"]),
        (["report", "--columns"], "drift_rms_ra", ["drift_rms_ratio"]),
        (["report", "--columns"], "fil", ["file"]),
        (["check"], "llama-3.1-8", ["llama-3.1-8b"]),
        (["plot", "--kind"], "dec", ["decay"]),
        (["plot", "--kind"], "fre", ["frequencies"]),
        (["list"], "mod", ["models"]),
        (["list", "frequencies", "--columns"], "wave", ["wavelength"]),
        (["parity"], "vllm-c", ["vllm-cuda"]),
    ],
)
def test_values_are_completed(words, incomplete, some) -> None:
    items = ShellComplete(cli, {}, "ropeaudit", "_X").get_completions(words, incomplete)
    assert [item.value for item in items] == some


def test_paths_are_completed_as_files() -> None:
    [item] = ShellComplete(cli, {}, "ropeaudit", "_X").get_completions(["shift", "--config"], "con")
    assert (item.type, item.value) == ("file", "con")


@pytest.mark.parametrize("flag", ["--recipe", "--dtype"])
def test_all_is_every_name(flag, capsys) -> None:
    others = ["--dtype", "bf16"] if flag == "--recipe" else ["--recipe", "hf"]
    assert main(["shift", *TINY, *others, flag, "all", "--dry-run", "-f", "json"]) == 0
    counts = {row["axis"]: row["count"] for row in json.loads(capsys.readouterr().out)["records"]}
    column = {"--recipe": "implementation", "--dtype": "dtype"}[flag]
    assert counts[column] == len(parameters.ALL[flag]()) > 5


def test_configs_are_a_list_and_a_name_with_a_comma_is_one(tmp_path, capsys) -> None:
    config = '{"model_type": "llama", "head_dim": 8, "num_attention_heads": 1, "hidden_size": 8, '
    for name, base in (("a.json", 1e4), ("b.json", 2e4), ("c,d.json", 3e4)):
        (tmp_path / name).write_text(f'{config}"rope_theta": {base}}}', encoding="utf-8")
    line = ["shift", *TINY, "--dtype", "fp32", "--recipe", "hf", "--dry-run", "-f", "json", "--config"]

    def models() -> int:
        rows = json.loads(capsys.readouterr().out)["records"]
        return {row["axis"]: row["count"] for row in rows}.get("model", 1)

    assert main([*line, f"{tmp_path / 'a.json'},{tmp_path / 'b.json'}"]) == 0
    assert models() == 2
    assert main([*line, f"{tmp_path / 'c,d.json'}"]) == 0
    assert models() == 1


@pytest.mark.parametrize(
    ("given", "option", "coloured"),
    [
        ({}, [], False),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": "1"}, ["--color"], True),
        ({"FORCE_COLOR": "1"}, ["--no-color"], False),
    ],
)
def test_colours_go_by_the_option_then_the_variables(
    given,
    option,
    coloured,
    monkeypatch,
    capfd,
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["shift", *TINY, "--dtype", "fp32", "-q", *option]) == 0
    assert ("\x1b[" in capfd.readouterr().out) is coloured
