"""`ropeaudit list diagnoses`: a row a code; what is measured stands there by its name."""

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
        assert set(row) == {"code", *(name for one in tables.values() for name in one)}
        assert {name: row[name] for name in ("class", "title", "shows", "cause")} == {
            name: table[name] for name in ("class", "title", "shows", "cause")
        }
        assert row["bugs"] == ", ".join(table["bugs"])
        assert not any("{" in value for value in row.values())


def test_a_value_stands_there_by_its_name(capsys) -> None:
    rows = {row["code"]: row for row in json.loads(listed(capsys, "json"))["records"]}
    assert rows["wrong-base"]["sentence"] == "base <base> instead of <asked>"
    assert rows["wrong-base"]["remedy"] == "use the base that is asked for, <asked>"
    assert rows["wrong-base"]["option"] == "--base <base>"
    assert rows["wrong-direction"]["gradient_remedy"] == "negate sin in the backward pass"
