"""Code that is explained by way of the recipe that its numbers resemble."""

import pytest
from command_line import ran

from ropeaudit import explain, report

pytest.importorskip("torch")
KERNELS = "explained_kernels.py"
SMALL = {"heads": 2, "seq_len": 64, "head_dim": 32}
FLAGS = ["--heads", "2", "--seq-len", "64", "--head-dim", "32"]


def test_code_is_explained_as_the_recipe_that_it_is_like(spec) -> None:
    names = [spec("like_meta"), spec("like_hf")]
    results = explain(1000, "bf16", implementations=names, **SMALL)
    for result, name, recipe in zip(results, names, ("meta", "hf"), strict=True):
        [own] = result.explanations
        changes = {"accumulate": "fp64", "score": "fp64"}
        [same] = explain(1000, "bf16", own.recipe.recipe.name, changes=changes, **SMALL)
        assert own.drift.rms == same.drift.rms
        assert own.blames == same.blames
        assert own.code == name
        assert recipe in result.trace.recipes()
        shown = report([result], by="stage")
        [answer] = shown.answers
        assert f"off (as {own.recipe.recipe.name}); limit 1 %" in answer.decides
        assert shown.rows[0]["implementation"] == f"{own.code} (as {own.recipe.recipe.name})"


def test_what_gets_no_shares_says_why(spec) -> None:
    names = [spec(name) for name in ("shifted", "raising", "short")]
    results = list(explain((0, 1000), "bf16", implementations=names, **SMALL))
    _, raising, short = results
    shown = report(results, by="dtypes")
    [first, second, third] = shown.answers
    assert (first.status, first.decides) == ("FAIL", "bf16: behaves like no known recipe")
    assert [(one.code, one.title) for one in first.causes] == [("positions-off", "positions +1")]
    where = f"{names[0]} in bfloat16 at offset 1000"
    assert f"{where} does what no known recipe does; its stages get no shares" in shown.notes
    assert raising.trace.refused == second.causes[0].title == "TypeError: no bfloat16"
    assert (raising.explanations, raising.unexplained) == ((), {})
    assert [one.offset for one in short.explanations] == [0]
    assert "cannot be called in bfloat16 at offset 1000: IndexError" in short.unexplained[1000]
    assert third.decides.startswith("bf16, offset 0: scores 0.")


def test_dtypes_come_first_then_the_shares_of_each_offset(spec, capsys) -> None:
    command = ["explain", spec("like_hf"), *FLAGS, "--offset", "1000,5000"]
    out = ran(capsys, [*command, "-v"]).out
    places = [out.index(one) for one in ("behaves like", "Recipes, nearest first:", "Stages, the worst")]
    assert 0 < places[0] < places[1] < places[2]
    whole = ran(capsys, [*command, "-f", "json", "-q"]).json
    assert {"seen", "operations", "recipe_format"} <= set(whole["records"][0])
    assert {one["offset"] for one in whole["stages"]} == {1000, 5000}
    assert {one["offset"] for one in whole["profiles"]} == {0, 1000, 5000}
    assert whole["by"] == "dtypes"


def test_code_of_another_layout_than_the_model_is_explained_in_its_own(spec) -> None:
    case = {"model": "llama-2-7b", "heads": 2, "seq_len": 16}
    [result] = explain(implementations=spec("interleaved"), **case)
    assert result.trace.setting.layout == "interleaved"
    assert [one.setting.layout for one in result.explanations] == ["interleaved"] * 2
    assert [one.offset for one in result.explanations] == [0, 4096 - 16]  # its table may end at 4096


def test_the_command_stands_beside_recipes_and_has_a_line_for_each(spec, capsys) -> None:
    command = ["explain", f"{spec('like_meta')},{spec('like_hf')}", "--recipe", "meta", *FLAGS]
    lines = ran(capsys, [*command, "--offset", "1000", "-q"]).out.splitlines()
    names = "meta", spec("like_meta"), spec("like_hf")
    assert [line.split()[:2] for line in lines] == [["OK", name] for name in names]
