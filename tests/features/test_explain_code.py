"""Code that is explained by way of the recipe that its numbers resemble."""

import json

import pytest

from ropeaudit import explain, report
from ropeaudit.errors import UsageError
from ropeaudit.features.explain.code import recipe_of
from ropeaudit.main import main

CODE = """
import torch

def rotated(x, positions, table):
    d = x.shape[-1]
    inverse = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * inverse
    cos, sin = angles.cos().to(table), angles.sin().to(table)
    a, b = x[..., : d // 2].to(table), x[..., d // 2 :].to(table)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

def like_meta(x, positions):
    return rotated(x, positions, torch.float32)

def like_hf(x, positions):
    return rotated(x, positions, x.dtype)

def shifted(x, positions):
    return like_meta(x, positions + 1)

def raising(x, positions):
    if x.dtype == torch.bfloat16:
        raise TypeError("no bfloat16")
    return like_meta(x, positions)
"""
SMALL = {"heads": 2, "seq_len": 64, "head_dim": 32}
FLAGS = ["--heads", "2", "--seq-len", "64", "--head-dim", "32"]


@pytest.fixture
def code(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "k.py"
    path.write_text(CODE)
    return lambda name: f"{path}:{name}"


@pytest.mark.parametrize(("name", "recipe"), [("like_meta", "meta"), ("like_hf", "hf")])
def test_code_is_explained_as_the_recipe_that_it_is_like(name, recipe, code) -> None:
    [own] = explain(1000, "bf16", implementations=code(name), **SMALL)
    changes = {"accumulate": "fp64", "score": "fp64"}
    [same] = explain(1000, "bf16", recipe, changes=changes, **SMALL)
    assert own.drift.rms == same.drift.rms
    assert [(one.stage, one.share) for one in own.blames] == [(one.stage, one.share) for one in same.blames]
    assert own.code == code(name)
    assert recipe in own.resembles
    shown = report([own])
    assert shown.headline.endswith(
        f"Figures are those of {own.recipe.recipe.name}, which {own.code} resembles."
    )
    assert any("to within the recipe's own roundings" in note for note in shown.notes)
    assert shown.rows[0]["subject"] == f"{own.code} (as {own.recipe.recipe.name})"


def test_recipes_say_nothing_of_code() -> None:
    [own] = explain(0, "bf16", **SMALL)
    assert (own.subject, own.code, own.resembles) == ("hf", "", "")
    assert "resembles" not in report([own]).headline


def test_what_resembles_nothing_is_refused_with_what_to_type(code, capsys) -> None:
    assert main(["explain", "--impl", code("shifted"), *FLAGS]) == 2
    seen = capsys.readouterr()
    assert "does what no known recipe does" in seen.err
    assert f"ropeaudit trace {code('shifted')}" in seen.err
    assert seen.out == ""


def test_what_cannot_be_called_is_refused(code) -> None:
    with pytest.raises(
        UsageError, match="cannot be called in bfloat16 at offset 1000: TypeError: no bfloat16"
    ):
        list(explain(1000, "bf16", implementations=code("raising"), **SMALL))


def test_the_command_stands_beside_recipes(code, capsys) -> None:
    command = ["explain", "--impl", code("like_meta"), "--recipe", "meta", *FLAGS, "-f", "json"]
    assert main(command) == 0
    subjects = dict.fromkeys(one["subject"] for one in json.loads(capsys.readouterr().out)["records"])
    first, second = subjects
    assert first == "meta"
    assert second.startswith(f"{code('like_meta')} (as ")


def test_recipe_of_a_recipe_is_itself() -> None:
    [own] = explain(0, "bf16", **SMALL)
    assert recipe_of(own.recipe, own.case, own.inputs, own.setting, 0) == (own.recipe, "", "")
