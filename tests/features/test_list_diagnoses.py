"""`ropeaudit list diagnoses`: a row a code; of one code all that is known, with an example."""

import ast
import json
import tomllib

from ropeaudit import data
from ropeaudit.main import main
from ropeaudit.recognition.diagnosis import kinds


def listed(capsys, form: str) -> str:
    assert main(["list", "diagnoses", "-f", form]) == 0
    return capsys.readouterr().out


def test_every_code_has_a_row_with_all_that_is_known_of_it(capsys) -> None:
    rows = json.loads(listed(capsys, "json"))["records"]
    tables = tomllib.loads(data.text("diagnoses.toml"))
    assert [row["code"] for row in rows] == list(kinds())
    for row in rows:
        table = tables[row["code"]]
        assert set(row) == {"code", *(name for one in tables.values() for name in one)} - {"values"}
        assert {name: row[name] for name in ("class", "title", "shows", "cause")} == {
            name: table[name] for name in ("class", "title", "shows", "cause")
        }
        assert row["bugs"] == ", ".join(table["bugs"])
        assert not any("{" in value for name, value in row.items() if name not in ("wrong", "right"))


def test_a_value_stands_there_by_its_name(capsys) -> None:
    rows = {row["code"]: row for row in json.loads(listed(capsys, "json"))["records"]}
    assert rows["wrong-base"]["sentence"] == "base <base> instead of <asked>"
    assert rows["wrong-base"]["remedy"] == "use the base that is asked for, <asked>"
    assert rows["wrong-base"]["option"] == "--base <base>"
    assert rows["wrong-direction"]["gradient_remedy"] == "negate sin in the backward pass"


def test_of_one_code_all_is_told_with_lines_that_are_wrong_and_right(capsys) -> None:
    assert main(["list", "diagnoses", "wrong-base"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines)
    assert told["wrong-base"].strip() == "another base"
    assert told["right"] == "base = config.rope_theta"
    assert any(line.endswith("base 10500 instead of 10000") for line in lines)
    assert "vllm#42624" in lines[-1]
    assert main(["list", "diagnoses", "wrong-base", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"][0]["bugs"].startswith("vllm#42624")


def test_examples_are_python_and_differ() -> None:
    shown = [kind for kind in kinds().values() if kind.wrong]
    assert len(shown) >= 25
    for kind in shown:
        assert kind.wrong != kind.right
        for text in (kind.wrong, kind.right):
            assert text.count("\n") <= 6
            ast.parse(text)
