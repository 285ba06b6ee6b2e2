"""Recipes are data with sources; they resolve, change, load from files, and refuse what NumPy cannot say."""

from pathlib import Path

import numpy as np
import pytest

from ropeaudit import RopeSetting, recipes, shift
from ropeaudit.arithmetic.formats import FORMATS, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.errors import BadInput, NotEmulated
from ropeaudit.subjects.emulated import Emulated

BF16 = parse("bf16")
REFUSED = {"mlx-metal", "flashinfer-posids"}


def test_every_recipe_cites_its_source_and_resolves_or_says_why_not() -> None:
    for recipe in recipes.all_recipes():
        assert recipe.source, recipe.name
        assert recipe.summary, recipe.name
        assert recipe.verified in ("ran", "read", "ours"), recipe.name
        if recipe.name in REFUSED:
            with pytest.raises(NotEmulated, match=r"no portable definition; `ropeaudit list recipes`"):
                recipe.resolve(BF16)
        else:
            stages = [recipe.resolve(fmt).stages().keys() for fmt in FORMATS]
            assert stages == [set(recipes.STAGES)] * len(FORMATS), recipe.name


def test_a_change_is_in_the_name_and_in_the_stages() -> None:
    changed = recipes.named("hf").changed({"angle": "fp64", "rotation_rounding": "once"})
    assert changed.name == "hf[angle=fp64 rotation_rounding=once]"
    assert changed.resolve(BF16).stages()["angle"] == "float64"
    assert changed.rotation_rounding == "once"


def test_a_file_extends_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "meta"\nangle = "fp64"\nscale_after_store = true\n')
    mine = recipes.load(str(path))
    assert (mine.name, mine.stages["angle"], mine.stages["rotation"]) == ("mine", "fp64", "fp32")
    assert mine.scale_after_store
    assert [record.implementation for record in shift(5, "bf16", str(path), heads=1, seq_len=3)] == ["mine"]


def test_a_file_may_have_64_kib(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text('angle = "fp64"\n#' + "x" * 65_500)
    assert recipes.load(str(path)).stages["angle"] == "fp64"
    path.write_text("#" + "x" * 65_536)
    with pytest.raises(BadInput, match="larger than 64 KiB"):
        recipes.load(str(path))


def test_the_narrowest_stage_is_the_least_precise_that_rounds_everywhere() -> None:
    for stage in ("rotation", "output", "accumulate", "score"):
        one = recipes.named("uniform").changed({stage: "bf16"}).resolve(parse("fp64"))
        assert one.narrowest == 8, stage
    assert recipes.named("uniform").resolve(parse("fp64")).narrowest == 53


def test_cos_and_sin_are_held_in_their_own_format() -> None:

    for fmt in ("bf16", "fp16", "fp32"):
        one = recipes.named("uniform").changed({"trig": fmt, "table": "fp64"}).resolve(parse("fp64"))
        for part in Emulated(one, RopeSetting.of(16)).table(np.arange(1, 99), 0):
            assert np.array_equal(part, round_to(part, parse(fmt))), fmt
