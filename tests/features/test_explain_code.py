"""Code that is explained by way of the recipe that its numbers resemble."""

import json

import pytest
from command_line import ran

from ropeaudit import explain, report
from ropeaudit.main import main

pytest.importorskip("torch")
KERNELS = "explained_kernels.py"
SMALL = {"heads": 2, "seq_len": 64, "head_dim": 32}
FLAGS = ["--heads", "2", "--seq-len", "64", "--head-dim", "32"]


@pytest.mark.parametrize(("name", "recipe"), [("like_meta", "meta"), ("like_hf", "hf")])
def test_code_is_explained_as_the_recipe_that_it_is_like(name, recipe, spec) -> None:
    [result] = explain(1000, "bf16", implementations=spec(name), **SMALL)
    [own] = result.explanations
    changes = {"accumulate": "fp64", "score": "fp64"}
    [same] = explain(1000, "bf16", own.recipe.recipe.name, changes=changes, **SMALL)
    assert own.drift.rms == same.drift.rms
    assert [(one.stage, one.share) for one in own.blames] == [(one.stage, one.share) for one in same.blames]
    assert own.code == spec(name)
    assert recipe in [one for like in result.trace.nearest() for one in like.group.names]
    shown = report([result], by="stage")
    [answer] = shown.answers
    assert f"off (as {own.recipe.recipe.name}); limit 1 %" in answer.decides
    assert shown.rows[0]["implementation"] == f"{own.code} (as {own.recipe.recipe.name})"


def test_what_resembles_nothing_is_shown_with_why_there_are_no_shares(spec, capsys) -> None:
    seen = ran(capsys, ["explain", spec("shifted"), *FLAGS, "--offset", "64"])
    assert seen.out.startswith(f"FAIL  {spec('shifted')}   bf16: behaves like no known recipe\n")
    assert "error[positions-off]: positions +1\n" in seen.out
    assert main(["explain", spec("shifted"), *FLAGS, "--offset", "64", "-f", "json"]) == 0
    where = f"{spec('shifted')} in bfloat16 at offset 64"
    assert f"{where} does what no known recipe does; its stages get no shares" in capsys.readouterr().out


def test_what_cannot_be_called_says_why(spec) -> None:
    [result] = explain(1000, "bf16", implementations=spec("raising"), **SMALL)
    assert result.trace.refused == "TypeError: no bfloat16"
    assert (result.explanations, result.unexplained) == ((), {})


def test_what_cannot_be_called_at_an_offset_gets_no_shares_there(spec) -> None:
    [result] = explain((0, 1000), "bf16", implementations=spec("short"), **SMALL)
    assert [one.offset for one in result.explanations] == [0]
    assert list(result.unexplained) == [1000]
    assert "cannot be called in bfloat16 at offset 1000: IndexError" in result.unexplained[1000]


def test_dtypes_come_first_then_the_shares_of_each_offset(spec, capsys) -> None:
    out = ran(capsys, ["explain", spec("like_hf"), *FLAGS, "--offset", "1000,5000", "-v"]).out
    places = [out.index(one) for one in ("behaves like", "Recipes, nearest first:", "Stages, the worst")]
    assert 0 < places[0] < places[1] < places[2]
    assert main(["explain", spec("like_hf"), *FLAGS, "--offset", "1000,5000", "-f", "json", "-q"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert {"seen", "operations", "recipe_format"} <= set(whole["records"][0])
    assert {one["offset"] for one in whole["stages"]} == {1000, 5000}
    assert {one["offset"] for one in whole["profiles"]} == {0, 1000, 5000}
    assert whole["by"] == "dtypes"


def test_code_of_another_layout_than_the_model_is_explained_in_its_own(spec) -> None:
    case = {"model": "llama-2-7b", "heads": 2, "seq_len": 16}
    [result] = explain(0, "bf16", implementations=spec("interleaved"), **case)
    assert result.trace.setting.layout == "interleaved"
    assert [one.setting.layout for one in result.explanations] == ["interleaved"]


def test_the_command_stands_beside_recipes_and_has_a_line_for_each(spec, capsys) -> None:
    command = ["explain", f"{spec('like_meta')},{spec('like_hf')}", "--recipe", "meta", *FLAGS]
    lines = ran(capsys, [*command, "-q"]).out.splitlines()
    targets = "meta", spec("like_meta"), spec("like_hf")
    assert [line.startswith(f"OK  {name} ") for line, name in zip(lines, targets, strict=True)] == [True] * 3
    stages = ran(capsys, [*command, "--offset", "1000", "-f", "json"]).json["stages"]
    first, second, third = dict.fromkeys(one["implementation"] for one in stages)
    assert first == "meta"
    assert second.startswith(f"{spec('like_meta')} (as ")
    assert third.startswith(f"{spec('like_hf')} (as ")
