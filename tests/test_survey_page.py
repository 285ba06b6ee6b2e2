"""The script of the survey: outliers first and explained, and pages of them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import survey_page
from survey_page import Cell, Surveyed

import ropeaudit

KERNELS = Path(__file__).parent / "survey_kernels.py"


@pytest.fixture(scope="module")
def measured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey_page, "DTYPES", ("bf16",))
        patch.setattr(survey_page, "OFFSETS", (0, 1000))
        patch.setattr(survey_page, "UNDER", ("autocast:bf16",))
        names = [f"{KERNELS}:{name}" for name in ("right", "low", "by_product")]
        return survey_page.survey(names, 2)


@pytest.fixture(scope="module")
def results(measured):
    return [Surveyed.from_json(one) for one in json.loads(json.dumps(measured))["implementations"]]


@pytest.mark.slow
def test_outliers_come_first_and_are_explained(results) -> None:
    report = survey_page.report_of(results)
    names = [row["implementation"].rpartition(":")[2] for row in report.rows]
    assert names == ["low", "by_product", "right"]
    low, by_product, right = report.rows
    assert low["outlier"] == "yes"
    assert low["bf16"] > 0.5
    assert (by_product["outlier"], by_product["exposed"]) == ("no", "autocast:bf16")
    assert (right["outlier"], right["exposed"]) == ("no", "none")
    assert right["times"] < 1  # one rounding less than hf
    assert "flash-attn-pre-2023-07" in low["recipes"]
    assert any(
        "the angle is a matrix product (bmm), computed in bfloat16 (clean: float32)" in note
        for note in report.notes
    )
    assert report.headline.startswith("1 of 3 implementations drift more than 3 times as much as recipe hf")


@pytest.mark.slow
def test_the_pages(measured, results, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(survey_page, "DOCS", tmp_path)
    survey_page.write(survey_page.report_of(results), measured["environment"])
    page = (tmp_path / "survey.md").read_text(encoding="utf-8")
    assert page.startswith("# Survey\n")
    assert "kernels.py:low" in page
    assert "Measured with python " in page
    assert "<!doctype html" in (tmp_path / "survey.html").read_text(encoding="utf-8").lower()


def test_the_page_is_introduced_as_the_script_does() -> None:
    page = Path(survey_page.DOCS / "survey.md").read_text(encoding="utf-8")
    assert page.startswith(survey_page.INTRODUCTION)


def test_what_is_refused_in_a_head_dim_is_tried_in_the_next(monkeypatch) -> None:
    asked = []

    def shifted(command, **_) -> None:
        given = dict(zip(command[4::2], command[5::2], strict=False))
        head_dim, names = int(given["--head-dim"]), given["--impl"].split(",")
        asked.append((head_dim, names))
        case = {"heads": 1, "seq_len": 8, "head_dim": head_dim}
        rows = list(ropeaudit.shift(0, "bf16", "hf", **case))
        built = {"a": 128, "b": 64, "c": 0} if names == ["all"] else dict.fromkeys(names, 64)
        every = [
            replace(
                row, implementation=name, verdict="sound" if name != "c" and head_dim == takes else "refused"
            )
            for name, takes in built.items()
            for row in rows
        ]
        report = ropeaudit.report(every, ["all"])
        report = replace(report, metadata={"environment": {"torch": "2"}}, notes=[f"of {head_dim}"])
        Path(given["-o"]).write_text(ropeaudit.render("json", report), encoding="utf-8")

    monkeypatch.setattr(survey_page, "subprocess", SimpleNamespace(run=shifted, DEVNULL=-3))
    rows, notes, environment = survey_page.rows_of(["all"], 1)
    assert asked == [(128, ["all"]), (64, ["b", "c"])]
    found = {row["implementation"]: (row["head_dim"], row["verdict"]) for row in rows}
    assert found == {"a": (128, "sound"), "b": (64, "sound"), "c": (64, "refused")}
    assert (notes, environment) == (["of 128", "of 64"], {"torch": "2"})


def cell(drift: float, environment: str = "none", verdict: str = "sound", times: float = 1.0) -> Cell:
    within = "yes" if drift <= 0.01 else "no"
    refused = "its process ended with signal 9" if verdict == "refused" else "none"
    return Cell("bfloat16", 0, environment, drift, times, verdict, within, "", refused)


def test_what_is_refused_and_what_is_not_finite() -> None:
    dead = Surveyed("a", "1", [cell(math.nan, verdict="refused")])
    lost = Surveyed("b", "1", [cell(math.nan, verdict="overflow")])
    exposed = Surveyed(
        "c", "1", [cell(0.002), cell(0.02, "tf32"), cell(math.nan, "autocast:bf16", "overflow")]
    )
    alike = Surveyed("d", "1", [cell(0.02), cell(0.021, "tf32")])
    assert (dead.refused, dead.ends) == ("its process ended with signal 9", [0])
    assert [one.environment for one in exposed.exposures] == ["tf32", "autocast:bf16"]
    assert alike.exposures == []
    report = survey_page.report_of([dead, exposed, alike, lost, Surveyed("a", "1", [cell(0.001)])])
    assert [row["implementation"] for row in report.rows] == ["b", "d", "c", "a"]
    assert math.isnan(report.rows[0]["bf16"])
    assert survey_page.report_of([dead]).headline == "None of 1 implementations could be called."
