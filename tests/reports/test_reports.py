"""Small things that every report stands on."""

import dataclasses
import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit import reports, shift
from ropeaudit.errors import UnknownName
from ropeaudit.reports import Report, drift, numbers
from ropeaudit.reports.forms import table


@given(st.floats())
def test_exact_reads_back(value: float) -> None:
    read = float(numbers.exact(value))
    assert read == value or (math.isnan(read) and math.isnan(value))


@given(st.floats(allow_nan=False))
def test_short_is_short_and_within_half_a_percent(value: float) -> None:
    text = numbers.short(value)
    assert len(text) <= 10
    if math.isfinite(value) and abs(value) < 1e307:
        assert float(text) == pytest.approx(value, rel=5.001e-3)


def test_unknown_forms() -> None:
    with pytest.raises(UnknownName, match="yaml"):
        reports.render("yaml", Report([], [], []))
    with pytest.raises(UnknownName, match=r"\.csv"):
        reports.form_of("drift.xlsx")


@pytest.mark.parametrize("header", [True, False])
def test_the_plain_table_has_the_lines_of_the_coloured_one(header) -> None:
    names = ("日本語", "zero\u200bwidth", "é", "long" * 20)
    cells = shift((0, 1000), ("fp16", "bf16"), "uniform", heads=1, seq_len=16)
    named = [dataclasses.replace(row, implementation=name) for row, name in zip(cells, names, strict=True)]
    report = dataclasses.replace(drift.report(named, (), {}), header=header)
    text = io.StringIO()
    table.to_screen(report, text, True)
    coloured = text.getvalue()
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert bare != coloured
    assert table.render(report).splitlines() == [line.rstrip() for line in bare.splitlines()]
