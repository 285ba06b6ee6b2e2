"""Columns are data; what a line of its own puts into files and readers: tests/test_adding.py."""

from __future__ import annotations

import io
import json
from typing import get_args

import pytest

from ropeaudit import reports
from ropeaudit.audits import judging, records
from ropeaudit.reports import Report
from ropeaudit.runtime.columns import Column, Columns, table, tables

TOY = Columns(
    [
        Column("name", str, "who it is", role="case", screen=True),
        Column(
            "size", float, "how large it is", unit="m", compared=1, style="percent", screen=True, leaves=1
        ),
        Column("count", int, "how many", optional=True, screen="any", after="name"),
        Column("share", float, "a share", style="part", screen="with count"),
        Column("device", str, "where", screen="not cpu"),
        Column("right", bool, "whether it is", words=["yes", "no", "undecided"], optional=True, screen=True),
    ]
)
ROW = {"name": "a", "size": 0.5, "count": None, "share": 0.2, "device": "cpu", "right": None}


def test_a_report_shows_and_writes_values_as_they_are_declared() -> None:
    report = Report([ROW | {"count": 1234}], list(TOY), TOY.screen([ROW | {"count": 1}]), declared=TOY)
    assert reports.render("csv", report).splitlines() == [",".join(TOY), "a,0.5,1234,0.2,cpu,"]
    shown = reports.render("table", report).splitlines()[-1]
    assert shown.split() == ["a", "1,234", "50", "%", "20.0", "%", "undecided"]
    assert json.loads(reports.render("json", report))["records"] == [ROW | {"count": 1234}]


def test_an_undefined_column_has_its_declared_type_in_parquet() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = parquet.read_schema(
        io.BytesIO(reports.encoded("parquet", Report([ROW], list(TOY), (), declared=TOY)))
    )
    types = {name: str(schema.field(name).type) for name in TOY}
    assert list(types.values()) == ["string", "double", "int64", "double", "string", "bool"]


@pytest.mark.parametrize("name", tables())
def test_every_column_of_the_data_says_what_it_holds(name) -> None:
    columns = table(name)
    for one in columns.values():
        assert one.meaning
        assert not one.leaves or one.screen
        assert not one.after or one.after in (*columns, *records.COLUMNS)
        if isinstance(one.screen, str):
            assert one.screen in ("any", "not cpu") or one.screen.removeprefix("with ") in columns


def test_words_and_meanings_of_verdicts_are_those_that_judging_gives() -> None:
    assert list(records.COLUMNS["verdict"].words) == list(get_args(judging.Verdict))
    assert list(records.COLUMNS["refused"].words) == list(judging.REFUSALS)
    summary = table("report-by")
    for verdict, meaning in judging.VERDICTS.items():
        assert summary[f"{verdict}_cases"].meaning == f"how many rows are {verdict}: {meaning}"
    assert set(judging.VERDICTS) == set(get_args(judging.Verdict))
    for word in ("sound", "coarse", "growing"):
        assert f" {judging.EXCESS:g} times the best achievable in the dtype" in judging.VERDICTS[word]
    for word in ("coarse", "growing"):
        assert f" {judging.GROWTH:g} times that at offset 0" in judging.VERDICTS[word]
    assert f"at least {100 * judging.BROKEN_SHARE:.0f} % of the exact scores" in judging.VERDICTS["broken"]


def test_which_columns_are_on_a_screen_and_which_leave_it_first(snapshot) -> None:
    """Their order is seen, the numbers that make it are not."""
    text = ""
    for name in tables():
        columns = table(name)
        orders = {
            "shown": columns.names(lambda one: one.screen is True),
            "shown where there is something": columns.names(lambda one: isinstance(one.screen, str)),
            "first to leave": columns.dispensable,
        }
        text += "".join(f"{name}, {what}: {' '.join(names)}\n" for what, names in orders.items() if names)
    shift = records.COLUMNS
    text += f"compared: {' '.join(shift.compared)}\n"
    text += f"small is bad: {' '.join(shift.names(lambda one: one.least_is_worst))}\n"
    assert text == snapshot
