"""Named models: their sources, what their table holds, and that every command takes them."""

import tomllib
from importlib import resources

from command_line import ran

from ropeaudit.main import main
from ropeaudit.rope import presets

TABLES = tomllib.loads(resources.files("ropeaudit.data").joinpath("models.toml").read_text(encoding="utf-8"))


def test_every_model_has_a_source() -> None:
    assert len(TABLES) == len(presets.all_presets()) == 58
    for name, table in TABLES.items():
        assert len(table["source"]) > 10, name
        assert table["verified"].startswith("source"), name
        assert presets.named(name).source == table["source"]


def test_every_key_of_the_table_is_used() -> None:
    used = {"base", "head_dim", "rotary_dim", "layout", "heads", "kv_heads", "maximum", "scaling"}
    used |= {"sliding_base", "scale", "source", "verified", "note", "unrotated"}
    assert {key for table in TABLES.values() for key in table} == used


def test_heads_are_groups() -> None:
    for model in presets.all_presets():
        assert model.heads % model.kv_heads == 0, model.name
        assert model.maximum, model.name
        assert set(model.layers) <= {"full_attention", "sliding_attention"}


def test_every_model_works_in_every_command(capsys) -> None:
    layers = sum(len(model.layers) for model in presets.all_presets())
    pairs = sum(setting.pairs for model in presets.all_presets() for setting in model.layers.values())
    small = ["--model", "all", "--layer", "all", "-f", "csv", "--no-header", "-q"]
    sizes = ["--heads", "1", "--seq-len", "32", "--offset", "128k", "--dtype", "bf16", "--recipe", "uniform"]
    assert ran(capsys, ["shift", *small, *sizes]).out.count("\n") == layers
    assert ran(capsys, ["list", "frequencies", *small[:-2]]).out.count("\n") == pairs + 1
    assert main(["decay", *small, "--distance", "0,1,100", "--qk", "ones"]) == 0
    assert capsys.readouterr().out.count("\n") == 3 * layers


def test_usual_is_ten_models_in_every_command(capsys) -> None:
    line = ["list", "frequencies", "-f", "csv", "--dtype", "bf16", "--model"]
    rows = ran(capsys, [*line, "usual,mistral-7b-v0.3"]).out.splitlines()[1:]
    models = dict.fromkeys(row.partition(",")[0].partition("/")[0] for row in rows)
    assert list(models) == [*presets.USUAL, "mistral-7b-v0.3"]
    assert len(presets.USUAL) == 10
