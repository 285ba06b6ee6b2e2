"""Tables on narrow terminals: every word and number whole, what all rows agree on said once."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from ropeaudit import shift
from ropeaudit.audits.cases import Case
from ropeaudit.main import main
from ropeaudit.reports import Report, render, without_constants
from ropeaudit.reports.drift import report as drift_report
from ropeaudit.reports.forms import table
from ropeaudit.reports.forms.table import columns_of_terminal, fitted, whole
from ropeaudit.rope import presets

NARROW = (80, 100)


@pytest.fixture(scope="module")
def of_all_models() -> Report:
    names = [one.name for one in presets.all_presets()]
    assert len(names) >= 58
    cases = [Case(model=name, heads=1, kv_heads=1, seq_len=4) for name in names]
    return drift_report(list(shift([0, 1000], ["bf16"], ["hf", "vllm-cuda"], cases=cases)), None, {})


def shown(report: Report, width: int) -> list[str]:
    out = io.StringIO()
    table.show(report, Console(file=out, width=width, highlight=False, color_system=None))
    return out.getvalue().split("\n")


@pytest.mark.parametrize("width", NARROW)
def test_all_models_fit_without_a_broken_word(of_all_models, width) -> None:
    lines = shown(of_all_models, width)
    assert max(map(columns_of_terminal, lines)) <= width
    start = next(number for number, line in enumerate(lines) if line.startswith("───")) + 1
    rows = lines[start : lines.index("", start)]
    cells = {cell for column in whole(of_all_models.for_readers()).cells for cell in column}
    words = {piece for cell in cells for word in cell.split() for piece in pieces(word)}
    assert {word for line in rows for word in line.split()} <= words


def pieces(word: str) -> set[str]:
    """Return what a word may be wrapped into: between `/`, or a hyphen, and a letter."""
    ends = [0, *(match.end() for match in re.finditer(r"/|(?<=\w)-(?=[A-Za-z])", word)), len(word)]
    return {word[a:b] for a in ends for b in ends if a < b}


def test_longrope_factors_are_never_printed_and_models_come_first(of_all_models) -> None:
    text = table.render(of_all_models)
    assert "longrope ×32" in text
    assert not re.search(r"\d;\d", text)
    assert max(map(len, text.split("\n")[1:])) < 220  # of a pipe, whose lines are whole
    heading = next(line for line in text.split("\n") if line.startswith("model"))
    assert not {"head dim", "base", "layout", "dtype"} & set(re.split(r"\s{2,}", heading))
    assert f"In all {len(of_all_models.rows)} rows: dtype bfloat16." in text
    assert "In all" in "".join(shown(of_all_models, 100))


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


def test_a_table_that_fits_is_left_as_it_is() -> None:
    report = simple([{"a": 1, "b": "x"}, {"a": 1, "b": "x"}])
    assert fitted(report, 80)[0] is report
    assert fitted(report, 80)[1].headings == ["a", "b"]


def test_headings_wrap_before_columns_leave_and_numbers_never() -> None:
    rows = [{"a_rather_long_name": 1.5e-7, "another_long_name": "one, two, three, four"}, {}]
    rows[1] = {"a_rather_long_name": 2.5e-7, "another_long_name": "five"}
    _, layout, left_out = fitted(simple(rows, dispensable=["another_long_name"]), 34)
    assert layout.headings[0] == "a rather\nlong\nname"
    assert layout.cells[0] == ["1.50e-07", "2.50e-07"]
    assert not left_out
    _, layout, _ = fitted(simple(rows), 19)
    assert layout.cells[1][0].split("\n") == ["one, two,", "three,", "four"] or all(
        line.strip() in "one, two, three, four" for line in layout.cells[1][0].split("\n")
    )
    assert layout.cells[0] == ["1.50e-07", "2.50e-07"]


def test_constants_are_said_once_only_where_rows_agree() -> None:
    rows = [{"where": "somewhere quite far", "size": number, "verdict": "sound"} for number in range(3)]
    report, _, _ = fitted(simple(rows), 20)
    assert report.screen == ["size", "verdict"]
    assert report.full_legend() == "In all 3 rows: where somewhere quite far."
    assert "where" in fitted(simple(rows[:1]), 10)[0].screen  # of one row nothing is common


def test_a_constant_that_is_empty_is_none() -> None:
    rows = [{"first_layer": None, "size": number} for number in range(3)]
    report = without_constants(simple(rows), ["first_layer"])
    assert report.full_legend() == "In all 3 rows: first layer none."


def test_a_legend_is_silent_of_columns_that_are_left_out() -> None:
    report = drift_report(list(shift([0, 1000], ["bf16"], ["hf"], cases=[Case(heads=1, seq_len=4)])), (), {})
    wide, narrow = ("\n".join(shown(report, width)) for width in (100, 60))
    assert "change: score at the offset minus the same implementation's" in " ".join(wide.split())
    text = " ".join(narrow.split())
    assert "Hidden (terminal too narrow): change_rms" in text
    assert "drift: score at the offset minus the exact score; scaled, before softmax. excess: drift ÷" in text
    assert "change:" not in text
    chosen = replace(report, screen=["offset", "excess"])
    assert chosen.full_legend().startswith("excess: drift ÷ best achievable")
    page = render("html", chosen)
    assert "excess: drift" in page
    assert "change: score" not in page


def test_a_legend_drops_the_clauses_of_a_column_that_is_hidden(capsys) -> None:
    command = ["decay", "--distance", "0,10", "--qk", "ones", "--columns", "distance,bound", "-f", "markdown"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "bound: RoFormer's decay curve, section 3.4.3." in text
    assert "men sum:" not in text
