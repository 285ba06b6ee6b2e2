"""A column is declared once; what a line of its own puts into files and readers: tests/test_adding.py."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

import ropeaudit
from ropeaudit import reports
from ropeaudit.audits import records
from ropeaudit.features.decay.report import COLUMNS as DECAY
from ropeaudit.features.explain import code_report
from ropeaudit.features.explain import columns as explain_columns
from ropeaudit.features.explain.report import rows
from ropeaudit.features.limit.report import COLUMNS as LIMIT
from ropeaudit.features.list import columns as list_columns
from ropeaudit.features.model.columns import COLUMNS as MODEL
from ropeaudit.features.model.columns import OWN as MODEL_OWN
from ropeaudit.features.module.report import COLUMNS as MODULE
from ropeaudit.features.module.run_report import COLUMNS as MODULE_RUNS
from ropeaudit.features.parity.report import COLUMNS as PARITY
from ropeaudit.features.report.report import OWN as GROUPS_OWN
from ropeaudit.features.report.report import SUMMARY as GROUPS
from ropeaudit.reports import Report
from ropeaudit.reports.comparison import COLUMNS as CHANGES
from ropeaudit.runtime.columns import Column, Columns, Declare, Together, column, columns_of, row_class


@row_class
class Toy:
    """A row of few columns."""

    name: str = column("who it is", role="case", shown=True)
    size: float = column("how large it is", unit="m", compared=1, style="percent", shown=True, leaves=1)
    count: int | None = column("how many", shown=lambda row: row.count is not None, shown_after="name")
    note: str | None = column("what else", default=None)


def test_a_declaration_says_type_optionality_and_place() -> None:
    columns = columns_of(Toy)
    assert [(one.kind, one.optional) for one in columns.values()] == [
        (str, False),
        (float, False),
        (int, True),
        (str, True),
    ]
    assert columns.numeric == ("size", "count")
    assert columns.identity == ("name",)
    assert columns.compared == ("size",)
    assert columns.dispensable == ("size",)
    assert columns.unset(columns) == {"count": None, "note": None}
    assert [one.undefined is None for one in columns.values()] == [True, False, True, True]
    assert columns.screen([Toy("a", 1.0, None)]) == ["name", "size"]
    assert columns.screen([Toy("a", 1.0, None), Toy("b", 1.0, 3)]) == ["name", "count", "size"]
    assert columns.row(Toy("a", 0.5, 3)) == {"name": "a", "size": 0.5, "count": 3, "note": None}


@dataclass
class Box:
    """A result that is no row."""

    name: str
    sides: tuple[float, float]


of: Declare[Box] = Declare()


class BoxColumns:
    """The columns of a toy report."""

    name: str = of("who it is", shown=True)
    area: float | None = of("how large it is", lambda box: box.sides[0] * box.sides[1], shown=True)
    sides = Together[Box](
        [Column("width", float, "its width"), Column("height", float, "its height")],
        lambda box: dict(zip(("width", "height"), box.sides, strict=True)),
    )
    share: float = of("a share", lambda box: box.sides[0] / 10, style="part", shown=True)
    empty: int | None = of("nothing", lambda box: None)


def test_a_report_takes_names_values_types_and_styles_from_the_declaration() -> None:
    columns = of.columns(BoxColumns)
    rows = [columns.row(Box("a", (2.0, 3.0)))]
    assert rows == [{"name": "a", "area": 6.0, "width": 2.0, "height": 3.0, "share": 0.2, "empty": None}]
    assert [str(one.undefined) for one in columns.values()] == ["None", "None", "nan", "nan", "nan", "None"]
    report = Report(rows, list(columns), columns.screen(()), declared=columns)
    assert reports.render("csv", report).splitlines()[0] == "name,area,width,height,share,empty"
    assert reports.render("table", report).splitlines()[-1].split() == ["a", "6.00", "20.0", "%"]
    assert json.loads(reports.render("json", report))["records"] == rows


def test_an_undefined_column_has_its_declared_type_in_parquet() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import io

    columns = of.columns(BoxColumns)
    report = Report([columns.row(Box("a", (2.0, 3.0)))], list(columns), (), declared=columns)
    schema = parquet.read_schema(io.BytesIO(reports.encoded("parquet", report)))
    types = {name: str(schema.field(name).type) for name in ("name", "area", "empty")}
    assert types == {"name": "string", "area": "double", "empty": "int64"}


def test_a_column_has_one_name() -> None:
    one = Column("a", int, "once")
    with pytest.raises(ValueError, match="declared twice"):
        Columns(one, one)


TABLES = {
    "records": records.COLUMNS,
    **{f"explain {kind}": columns for kind, columns in explain_columns.COLUMNS.items()},
    **{f"model {kind}": columns for kind, columns in MODEL.items()},
    "explain dtypes": code_report.COLUMNS,
    "explain profile": code_report.PROFILE,
    "explain recipes": code_report.RECIPES,
    "decay": DECAY,
    "limit": LIMIT,
    "module": MODULE,
    "module runs": MODULE_RUNS,
    "parity": PARITY,
    "report --by": GROUPS,
    "report --against": CHANGES,
    "lists": list_columns.MODELS,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_column_says_what_it_holds(name) -> None:
    for key, one in TABLES[name].items():
        assert one.name == key
        assert one.meaning
        assert one.kind in (str, int, float)
        assert not one.leaves or one.shown or name == "report --against"


SCREENS = TABLES | {
    **{f"explain {kind}": columns for kind, columns in explain_columns.OWN.items()},
    **{f"model {kind}": columns for kind, columns in MODEL_OWN.items()},
    "report --by": GROUPS_OWN,
    **{
        f"list {name}": list_columns.LISTS[name][0]
        for name in ("recipes", "implementations", "formats", "verdicts", "diagnoses")
    },
}


def test_which_columns_are_on_a_screen_and_which_leave_it_first(snapshot) -> None:
    """Their order is seen, the numbers that make it are not."""
    text = ""
    for name, columns in SCREENS.items():
        orders = {
            "shown": columns.screen(()),
            "shown where there is something": columns.names(lambda one: callable(one.shown)),
            "first to leave": columns.dispensable,
        }
        text += "".join(f"{name}, {what}: {' '.join(names)}\n" for what, names in orders.items() if names)
    assert text == snapshot


def test_which_columns_are_compared_and_what_their_values_may_be(snapshot) -> None:
    orders = {
        "compared": records.COLUMNS.compared,
        "never negative": records.COLUMNS.names(lambda one: one.nonnegative),
        "small is bad": records.COLUMNS.names(lambda one: one.least_is_worst),
    }
    assert "".join(f"{what}: {' '.join(names)}\n" for what, names in orders.items()) == snapshot


def check_types(columns, results) -> None:
    """Check that every value has the declared type; a number may be whole where floats are declared."""
    assert results
    for row in results:
        assert list(row) == list(columns)
        for name, value in row.items():
            one = columns[name]
            allowed = (int, float) if one.kind is float else (one.kind,)
            assert (value is None and one.optional) or isinstance(value, allowed), (name, value)


def test_values_are_of_the_declared_types() -> None:
    case = {"heads": 2, "seq_len": 16, "head_dim": 8}
    measured = ropeaudit.shift((0, 1000), "bf16", attention=True, **case)
    check_types(records.COLUMNS, [one.as_dict() for one in measured])
    check_types(
        LIMIT, [LIMIT.row(one) for one in ropeaudit.limit("drift_rms=1e-2", "bf16", "uniform", **case)]
    )
    (result,) = ropeaudit.explain(1000, "bf16", "uniform", **case)
    for kind in set(explain_columns.KINDS) - {"pair"}:  # whose last row is of no pair, and has words for it
        check_types(explain_columns.COLUMNS[kind], rows(result, kind))
