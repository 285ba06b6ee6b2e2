"""Tables on narrow terminals: every word and number whole."""

import re

import pytest

from ropeaudit import shift
from ropeaudit.audits.cases import Case
from ropeaudit.reports import Report
from ropeaudit.reports.drift import report as drift_report
from ropeaudit.reports.forms import table
from ropeaudit.reports.forms.table import fitted, width_of
from ropeaudit.rope import presets

NARROW = (80, 100)


@pytest.fixture(scope="module")
def of_all_models() -> Report:
    names = [one.name for one in presets.all_presets()]
    assert len(names) >= 58
    cases = [Case(model=name, heads=1, kv_heads=1, seq_len=4) for name in names]
    return drift_report(list(shift([0, 1000], ["bf16"], ["hf", "vllm-cuda"], cases=cases)), None, {})


def shown(report: Report, width: int) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in table.lines(report, width)]


@pytest.mark.parametrize("width", NARROW)
def test_all_models_fit_and_no_number_is_cut(of_all_models, width) -> None:
    lines = shown(of_all_models, width)
    assert max(map(width_of, lines)) <= width
    text = "\n".join(lines)
    for row in of_all_models.rows[:40]:
        assert of_all_models.shown("drift_relative", row["drift_relative"]) in text
    assert re.search(r"\d+ more rows: -v", text)


def test_longrope_factors_are_never_printed_and_models_come_first(of_all_models) -> None:
    text = table.render(of_all_models)
    assert "longrope ×32" in text
    assert not re.search(r"\d;\d", text.partition("note:")[0])
    lines = text.partition("\nnote:")[0].split("\n")
    assert max(map(len, lines[1:])) < 220  # of a pipe, whose lines are whole
    heading = next(line for line in text.split("\n") if line.startswith("model"))
    assert not {"head dim", "base", "layout"} & set(re.split(r"\s{2,}", heading))


def test_settings_that_do_not_follow_from_the_model_stay(of_all_models) -> None:
    cases = [
        Case(model=name, heads=1, seq_len=4, base=base)
        for name in ("qwen3-8b", "llama-2-7b")
        for base in (1e4, 2e4)
    ]
    report = drift_report(list(shift(0, ["bf16"], ["hf"], cases=cases)), None, {})
    assert {"model", "base"} <= set(report.screen)
    assert "layout" not in report.screen


def simple(rows: list[dict], **more) -> Report:
    return Report(rows, list(rows[0]), list(rows[0]), **more)


def test_columns_leave_in_their_order_and_are_named() -> None:
    rows = [{"name": "a", "size": 1.5e-7, "more": 2.5e-7, "rest": "one, two, three, four"}]
    report = simple(rows, dispensable=["more", "rest"])
    assert fitted(report, rows, None)[1] == []
    assert fitted(report, rows, 45)[1] == ["more"]
    assert fitted(report, rows, 25)[1] == ["more", "rest"]
    text = "\n".join(shown(report, 25))
    assert "Hidden (terminal" in text
    assert "1.50e-07" in text


def test_a_terminal_shows_forty_rows_and_a_pipe_all() -> None:
    rows = [{"number": number} for number in range(60)]
    assert "20 more rows: -v" in "\n".join(shown(simple(rows), 80))
    assert len(table.render(simple(rows)).splitlines()) == 61
