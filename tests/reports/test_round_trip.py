"""Whatever stands in a name, the report that holds it is read back: here, and by pandas."""

import dataclasses
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeaudit import reports, shift
from ropeaudit.audits import records
from ropeaudit.audits.records import Record
from ropeaudit.reports import Report, reading
from ropeaudit.reports.forms.csv import restored

NAMES = [*(f"a{end}b" for end in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\n\t,;\"'"), "\r\n", "a\r"]
FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "'=x", "''+1", "\t=x", "\r=x", "'it", "it's", "x=1"]


@pytest.fixture(scope="module")
def row() -> Record:
    return next(shift(7, "fp32", "hf", heads=1, seq_len=3, head_dim=4))


def written(form: str, row: Record, name: str) -> str:
    named = dataclasses.replace(row, implementation=name, source=name)
    return reports.encoded(form, Report([named.as_dict()], list(records.COLUMNS), ())).decode()


@given(
    name=st.sampled_from(NAMES + FORMULAS)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
)
@settings(deadline=None, max_examples=80)
@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_any_name_comes_back(form, row, name, tmp_path_factory) -> None:
    if name.lower() == "nan":
        return
    text, path = written(form, row, name), tmp_path_factory.getbasetemp() / f"x.{form}"
    path.write_bytes(text.encode())
    (result,) = reading.read(str(path))
    assert (result["implementation"], result["source"], result["offset"]) == (name, name, 7)
    assert form != "jsonl" or len(text.splitlines()) == 1


def test_pandas_reads_them(row) -> None:
    pandas, names = pytest.importorskip("pandas"), NAMES + FORMULAS
    frames = [
        pandas.read_csv(io.StringIO(written("csv", row, name), newline=""), keep_default_na=False)
        for name in names
    ]
    assert [[restored(one) for one in frame["implementation"]] for frame in frames] == [
        [name] for name in names
    ]
    frames = [
        pandas.read_json(io.StringIO(written("jsonl", row, name)), lines=True, dtype=False) for name in names
    ]
    assert [list(frame["implementation"]) for frame in frames] == [[name] for name in names]


def test_no_cell_is_a_formula_and_no_number_is_text(row) -> None:
    negative = dataclasses.replace(row, drift_bias=-1.5, offset=-3, implementation="=1+1")
    report = Report([negative.as_dict()], ["implementation", "offset", "drift_bias"], ())
    assert reports.render("csv", report).splitlines()[1] == "'=1+1,-3,-1.5"
