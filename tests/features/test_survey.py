"""The survey: outliers first and explained, and nobody's crash or sleep stops it."""

import json
from pathlib import Path

import pytest

from ropeaudit import survey
from ropeaudit.features.survey import processes
from ropeaudit.features.survey.report import survey_report
from ropeaudit.features.survey.surveyed import Surveyed
from ropeaudit.main import main

KERNELS = Path(__file__).parent / "survey_kernels.py"


def names(*functions):
    return [f"{KERNELS}:{name}" for name in functions]


@pytest.fixture(scope="module")
def results():
    given = names("right", "dies", "low", "by_product")
    return list(survey(given, "bf16", (0, 1000), under="autocast:bf16", casts=()))


@pytest.mark.slow
def test_outliers_come_first_and_are_explained(results) -> None:
    report = survey_report(results, (), {})
    assert [row["implementation"].partition(":")[2] for row in report.folded] == [
        "low",
        "by_product",
        "right",
    ]
    low, by_product, right = report.folded
    assert low["outlier"] == "yes"
    assert low["bf16"] > 0.5
    assert (by_product["outlier"], by_product["exposed"]) == ("no", "autocast:bf16")
    assert (right["outlier"], right["exposed"]) == ("no", "none")
    assert right["times"] < 1  # one rounding less than hf
    assert any("the angle is a matrix product (bmm), computed in bfloat16" in note for note in report.notes)
    assert report.headline.startswith("1 of 3 implementations drift more than 3 times as much as recipe hf")


def test_a_process_that_ends_costs_one_implementation(results) -> None:
    [one] = [one for one in results if one.refused]
    assert one.name.endswith(":dies")
    assert one.refused.startswith("its process ended with signal 9")


def test_what_never_returns_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 1.0)
    [one] = survey(names("hangs"), "bf16", 0, under=(), casts=())
    assert one.refused == "took longer than 1 s, and was ended"


def test_results_survive_their_way_home(results) -> None:
    for one in results:
        assert repr(Surveyed.from_json(json.loads(json.dumps(one.to_json())))) == repr(one)


def test_the_command(tmp_path, capsys) -> None:
    out = tmp_path / "survey.md"
    assert (
        main(
            ["survey", *names("right"), "--dtype", "bf16", "--offset", "0", "--under", "none", "-o", str(out)]
        )
        == 0
    )
    assert "0 of 1 implementations drift more" in capsys.readouterr().out
    assert "kernels.py:right" in out.read_text()
    assert main(["survey", *names("right"), "--jobs", "0"]) == 2


def test_what_cannot_be_called_is_in_every_file_and_gives_an_exit_code(tmp_path, capsys) -> None:
    (tmp_path / "none.py").write_text("def boom(x, positions):\n    raise ValueError('no')\n")
    line = ["survey", f"{tmp_path}/none.py:boom", "--dtype", "bf16", "--offset", "0", "--under", "none"]
    assert main([*line, "-o", str(tmp_path / "t.csv"), "-q"]) == 1
    row = (tmp_path / "t.csv").read_text().splitlines()[1]
    assert ",unknown,refused,untried," in row
    assert "ValueError: no" in row
    assert main(["survey", f"{tmp_path}/missing.py:boom"]) == 2
    assert "there is no file" in capsys.readouterr().err
