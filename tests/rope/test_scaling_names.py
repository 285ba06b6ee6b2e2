"""Scalings in a few words: short, and different where scalings are."""

from ropeaudit.rope import presets
from ropeaudit.rope.scaling_names import short_name, short_names, shortened


def test_names_of_all_models_are_a_few_words() -> None:
    scalings = {str(one.scaling) for model in presets.all_presets() for one in model.layers.values()}
    names = short_names(scalings)
    assert max(map(len, scalings)) > 1000  # LongRoPE's factors
    assert max(map(len, names.values())) < 45
    assert len(set(names.values())) == len(scalings)


def test_what_differs_is_added() -> None:
    lists = [
        "longrope(original=4 maximum=8 short=1;2;3;4;5;6;7;8;9;10;11;12)",
        "longrope(original=4 maximum=8 short=1)",
    ]
    assert list(short_names(lists).values()) == ["longrope ×2 #1", "longrope ×2 #2"]
    assert short_name("linear(factor=8)") == "linear ×8"
    assert short_name("default") == "default"


def test_rows_keep_all_else() -> None:
    rows = [{"scaling": "yarn(factor=4 fast=1)", "x": 1}, {"x": 2}, {"scaling": None, "x": 3}]
    assert shortened(rows) == [{"scaling": "yarn ×4", "x": 1}, {"x": 2}, {"scaling": None, "x": 3}]
    models = [{"scaling": f"yarn(factor=4 fast={number})", "model": f"m{number}"} for number in (1, 2)]
    assert [row["scaling"] for row in shortened(models)] == ["yarn ×4"] * 2  # the model tells them apart
    assert [row["scaling"] for row in shortened([{**row, "model": "m"} for row in models])] == [
        "yarn ×4 fast=1",
        "yarn ×4 fast=2",
    ]
    plain = [{"scaling": "default"}]
    assert shortened(plain) is plain
