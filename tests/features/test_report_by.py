"""report --by: counts, verdicts, worst and median of groups, against plain computations."""

import math
import statistics
from collections import Counter
from pathlib import Path

import pytest
from command_line import ran
from hypothesis import given
from hypothesis import strategies as st

from ropeaudit.errors import UsageError
from ropeaudit.features.report.analysis import groups
from ropeaudit.main import main
from ropeaudit.reports.reading import read

SHIFT = ["--heads", "1", "--kv-heads", "1", "--seq-len", "40", "--recipe", "hf,uniform"]
SHIFT += ["--offset", "0,1000,128k"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("summary") / "sweep.jsonl"
    assert main(["shift", *SHIFT, "--model", "llama-3.1-8b,gpt-oss-20b", "-o", f"{path}", "-q"]) == 0
    return path


def test_lines_are_what_a_plain_computation_gives(sweep, capsys) -> None:
    report = ran(capsys, ["report", sweep, "--by", "model,dtype", "-f", "json"]).json
    rows = read(str(sweep))
    assert len(report["records"]) == 8
    for line in report["records"]:
        some = [row for row in rows if (row["model"], row["dtype"]) == (line["model"], line["dtype"])]
        finite = [row["drift_rms"] for row in some if not math.isnan(row["drift_rms"])]
        assert line["cases"] == len(some) == 6
        assert line["undefined"] == 6 - len(finite)
        assert line["worst"] == (None if line["undefined"] else max(finite))
        assert line["median"] == statistics.median(finite)
        counts = Counter(row["verdict"] for row in some)
        assert {name: line[f"{name}_cases"] for name in counts} == dict(counts)
        assert line["verdicts"].count(",") == len(counts) - 1
    worst = max(row["drift_rms"] for row in rows if not row["nonfinite"])
    assert report["headline"] == "FAIL 48 cases: 10 out of tolerance"
    text = " ".join(ran(capsys, ["report", sweep, "--by", "model,dtype"]).out.split())
    assert "no drift_rms 2 (nan), first llama-3.1-8b uniform float16 at offset 131072" in text
    assert f"worst drift_rms {worst:.2f}, of gpt-oss-20b uniform bfloat16 at offset 131072" in text


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False, width=16), min_size=1, max_size=9))
def test_worst_is_the_largest_and_nan_before_all(values: list[float]) -> None:
    rows = [{"implementation": "a", "drift_bias": value, "verdict": "sound"} for value in values]
    (group,) = groups(rows, ["implementation"], "drift_bias")
    worst = group.worst["drift_bias"]
    if any(map(math.isnan, values)):
        assert math.isnan(worst)
    else:
        assert abs(worst) == max(map(abs, values))
        assert group.median == statistics.median(values)


def test_refused_cases_are_counted_and_not_the_worst() -> None:
    rows = [
        {"implementation": "a", "offset": 0, "drift_rms": value, "verdict": verdict}
        for value, verdict in ((math.nan, "refused"), (0.5, "sound"))
    ]
    (group,) = groups(rows, ["implementation"])
    assert group.worst == rows[1]
    (alone,) = groups(rows[:1], ["implementation"])
    assert alone.worst is None
    with pytest.raises(UsageError, match="no column dtype"):
        groups(rows)
