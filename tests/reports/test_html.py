"""The page: whole, safe whatever names it shows, and the same rows in every way of reading them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import ran
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropeaudit import reports, shift
from ropeaudit.audits import judging, records
from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.features.report.analysis import merged
from ropeaudit.main import main
from ropeaudit.reports import Report
from ropeaudit.reports.drift import report as drift_report
from ropeaudit.reports.numbers import printable

HOSTILE = "\"'></script><script>pwned=1</script><img src=x onerror=pwned=1>\x1b[31m\u202eevil\x00```\n&lt;"
RESULTS = list(shift((0, 100, 5000), ("fp32", "bf16"), ("uniform", "hf"), seq_len=16, heads=1, head_dim=8))
ABOUT = {
    "command": "ropeaudit shift --offset 1",
    "time": "2026-01-01T00:00:00Z",
    "environment": {"python": "3.11"},
    "stages": {"hf bfloat16": {"position": "float32"}},
}


class Page(HTMLParser):
    """Tags with the names of their attributes, in order; the text; style and script; values of attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, ...]] = []
        self.values: list[tuple[str, str]] = []
        self.ends: list[str] = []
        self.text = ""
        self.own = ""  # of style and script
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))
        self.values += [(name, value or "") for name, value in attrs]
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.ends.append(tag)
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.own += data
        else:
            self.text += data


def written(folder: Path, name: str = "sweep.jsonl", results=RESULTS, about=ABOUT, columns=()) -> str:
    path = folder / name
    path.write_text(reports.render(reports.form_of(name), drift_report(results, columns, about)))
    return str(path)


def page_of(subject: str, about=ABOUT) -> str:
    rows = [
        one.as_dict() | {"implementation": subject, "model": subject, "refused": subject}
        for one in RESULTS[:6]
    ]
    message = Report(
        rows, list(records.COLUMNS), ["implementation", "model", "offset", "drift_rms", "verdict"],
        headline=subject, notes=[subject], legend=subject, metadata=about,
    )  # fmt: skip
    return chartless(message)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(chartless(drift_report(RESULTS, (), ABOUT)))


def test_the_finding_comes_first() -> None:
    headline = drift_report(RESULTS, (), {}).headline
    body = chartless(drift_report(RESULTS, (), ABOUT)).partition("<body>")[2]
    assert Page(body).text.strip().startswith(headline)
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", body)[:3] == ["Verdicts", "Worst cases", "Notes"]
    assert body.index("<h1>") < body.index("<h2")


def test_verdicts_are_counted(page: Page) -> None:
    counts = {name: sum(one.verdict == name for one in RESULTS) for name in judging.VERDICTS}
    message = " ".join(page.text.split())
    for name, count in counts.items():
        assert (f"{name} {judging.VERDICTS[name]}" in message) == (count > 0)
        if count:
            assert re.search(rf"\b{count} . {name} {re.escape(judging.VERDICTS[name][:20])}", message)


def test_every_tag_is_closed(page: Page) -> None:
    void = {"meta", "link", "input", "img"}
    assert sorted(tag for tag, *_ in page.tags if tag not in void) == sorted(page.ends)
    ids = [value for name, value in page.values if name == "id"]
    assert len(ids) == len(set(ids))
    pointed = [word for name, value in page.values if name in ("aria-labelledby", "aria-describedby")
               for word in value.split()]  # fmt: skip
    assert set(pointed) <= set(ids)


def test_the_policy_allows_this_style_and_script_alone() -> None:
    text = chartless(drift_report(RESULTS, (), ABOUT))
    policy = html.unescape(re.search(r'Security-Policy" content="(.*?)"', text)[1])
    for name, rule in (("style", "style-src"), ("script", "script-src")):
        parts = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(parts[0].encode()).digest()).decode()
        assert len(parts) == 1
        assert f"{rule} 'sha256-{digest}'" in policy
    others = {rule for rule in policy.split("; ") if not rule.startswith(("style-src", "script-src"))}
    assert others == {"default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"}
    assert "unsafe" not in policy
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(", text.partition("<style>")[2].partition("</style>")[0]
    )
    assert text.isascii()


def chartless(report: Report) -> str:
    """Return the page as it is without matplotlib, whose chart takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "find_spec", lambda package: None)
        return reports.render("html", report)


@given(st.text(max_size=60))
@example(HOSTILE)
@example("</title><script>alert(1)</script>")
@example("<!--")
@example("]]>")
@settings(max_examples=20, deadline=None)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    about = ABOUT | {"command": name, "environment": {name: name}, "stages": {name: {name: name}}}
    usual, result = Page(page_of("usual name")), Page(page_of(name, about))
    if name.strip():
        assert [tag for tag in result.tags if tag[0] in ("script", "style", "img", "iframe")] == [
            ("style",),
            ("script",),
        ]
        assert {tag[0] for tag in result.tags} <= {tag[0] for tag in usual.tags}
        assert result.text.count(printable(name)) >= 6 + 2
    assert result.own == usual.own
    assert not [attribute for tag in result.tags for attribute in tag if attribute.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", result.text)


def test_hostile_files_are_text_too(tmp_path: Path) -> None:
    rows = [
        one.as_dict() | {"implementation": HOSTILE, "model": HOSTILE, "stages": HOSTILE} for one in RESULTS
    ]
    whole = {"command": HOSTILE, "time": HOSTILE, "environment": {HOSTILE: HOSTILE},
             "stages": {HOSTILE: {HOSTILE: HOSTILE}}, "records": rows, "notes": [HOSTILE]}  # fmt: skip
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(whole).replace("NaN", "null").replace("Infinity", "null"))
    outputs = ["-o", str(tmp_path / "h.html"), "-o", str(tmp_path / "h.md")]
    assert main(["report", str(path), "-q", *outputs]) == 0
    text = (tmp_path / "h.html").read_text()
    assert text.count("<script>") == 1
    assert len(re.findall("<img", text)) == len(images(text)) == 1
    ticket = (tmp_path / "h.md").read_text()
    assert ticket.startswith("```text\n")
    ticket = ticket.partition("\n```\n")[2]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", ticket)
    assert not re.search(r"(?<!\\)<(script|img)", ticket.split("```")[2])


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_a_file_gives_the_page_that_the_audit_gives(suffix: str, tmp_path: Path) -> None:
    direct = drift_report(RESULTS, (), ABOUT)
    built = merged([written(tmp_path, f"sweep.{suffix}")], None, {})
    assert built.headline == direct.headline
    assert list(built.notes) == list(direct.notes)
    table = r'<table id="cases">(.*?)</table>'
    first, second = (re.search(table, chartless(one), re.DOTALL)[1] for one in (direct, built))
    assert first == second
    if suffix == "csv":  # a chart shows bounds where they are known
        whole = merged([written(tmp_path, "whole.csv", columns=["all"])], None, {})
        assert images(reports.render("html", whole)) == images(reports.render("html", direct))


def test_numbers_keep_their_precision_for_sorting() -> None:
    text = chartless(drift_report(RESULTS, (), ABOUT))
    for one in RESULTS:
        assert f'data-v="{one.drift_relative!r}"' in text


def test_where_it_comes_from_is_said(tmp_path: Path, capsys) -> None:
    lines, whole, table = (written(tmp_path, f"a.{suffix}") for suffix in ("jsonl", "json", "csv"))
    message = {path: merged([path], None, {}).metadata["sources"][0] for path in (lines, whole, table)}
    assert message[lines].keys() == message[table].keys() == {"file", "rows"}
    assert message[whole]["command"] == ABOUT["command"]
    assert message[whole]["stages"] == ABOUT["stages"]
    (tmp_path / "a.csv.meta.json").write_text(json.dumps(ABOUT))
    assert merged([table], None, {}).metadata["sources"][0]["environment"] == {"python": "3.11"}
    for wrong in ("[]", "{", '{"environment": 7, "stages": {"a": 1}}', '"x"'):
        (tmp_path / "a.csv.meta.json").write_text(wrong)
        assert "command" not in merged([table], None, {}).metadata["sources"][0]
    out = str(tmp_path / "r.html")
    seen = ran(capsys, ["report", whole, lines, "-o", out])
    assert seen.out == drift_report(RESULTS, (), {}).headline + "\n"
    assert f"wrote {out}: 12 rows" in seen.err
    text = Path(out).read_text()
    assert f"$ {ABOUT['command']}" in text


def test_a_file_of_few_columns_makes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("implementation,dtype,offset,drift_rms,verdict\nhf,bfloat16,1000,0.5,growing\n")
    built = merged([str(path)], (), {})
    assert built.headline.startswith("WARN hf: not judged")
    text = reports.render("html", built)
    assert len(images(text)) == 1
    assert built.rows[0]["seq_len"] is None


FEW = "implementation,dtype,offset,drift_rms,verdict"
BAD_FILES = [
    ("x.csv", "schema,implementation,offset\n4,hf,7\n", "no column dtype"),
    ("x.csv", f"{FEW}\nhf,bf16,7,1,<b>\n", "a verdict '<b>'"),
    (
        "x.csv",
        f"{FEW},attention_tv_mean,top1_flips\nhf,bf16,7,1,broken,0.5,inf\n",
        "values that no audit gives",
    ),
    ("x.jsonl", '{"implementation": "hf", "offset": Infinity}', "not a report"),
    ("x.jsonl", '{"implementation": "hf", "offset": 1, "drift_rms": 1' + "0" * 400 + "}", "not a report"),
]


def test_bad_files_are_refused(tmp_path: Path, capsys) -> None:
    for name, text, fragment in BAD_FILES:
        path = tmp_path / name
        path.write_text(text)
        assert fragment in ran(capsys, ["report", str(path), "-o", str(tmp_path / "out.html")], 2).err
        assert not (tmp_path / "out.html").exists()
        with pytest.raises(BadInput, match=re.escape(fragment)):
            merged([str(path)], None, {})


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_wild_values_in_a_file_end_in_a_page_or_a_refusal(tmp_path_factory, data) -> None:
    row = next(iter(RESULTS)).as_dict()
    wild = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=1)
    names = data.draw(st.lists(st.sampled_from(list(row)), max_size=4))
    changed = row | {name: data.draw(wild) for name in names}
    path = tmp_path_factory.getbasetemp() / "wild.jsonl"
    path.write_text(json.dumps(changed))
    with contextlib.suppress(RopeAuditError):
        assert "<h1>" in chartless(merged([str(path)], None, {}))


def images(page: str) -> list[str]:
    coded = re.findall(r'<img alt="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">', page)
    return [base64.b64decode(one).decode() for one in coded]


def test_the_page_holds_a_chart_that_equal_rows_give_again() -> None:
    report = drift_report(RESULTS, (), ABOUT)
    page = reports.render("html", report)
    [drawn] = images(page)
    assert drawn.rstrip().endswith("</svg>")
    assert "<dc:date>" not in drawn
    assert not re.search(r"href=\"(?!#)|url\((?!#)", drawn)  # it asks for nothing from elsewhere
    assert 'alt="Drift against offset: FAIL uniform: out of tolerance' in page
    assert images(reports.render("html", report)) == [drawn]


def test_without_matplotlib_the_page_says_how_to_get_a_chart() -> None:
    page = chartless(drift_report(RESULTS, (), ABOUT))
    assert images(page) == []
    line = "No chart: a chart needs matplotlib; type: pip install 'ropeaudit[plot]'"
    assert html.unescape(page).count(line) == 1
    assert "a chart needs" not in chartless(Report([], (), (), headline="x"))


@pytest.mark.filterwarnings("ignore")  # of numbers that overflow, and of axes that have no place for them
@pytest.mark.parametrize("change", [{"drift_rms": 1.7e308}, {"offset": 10**400}, {"stages": "$x_$ $"}])
def test_values_that_cannot_be_drawn_leave_the_rest_of_the_page(change: dict[str, object]) -> None:
    rows = [RESULTS[0].as_dict() | {"implementation": "$x_$"} | change]
    page = reports.render("html", Report(rows, list(records.COLUMNS), ["implementation"], headline="x"))
    assert len(images(page)) + page.count("<p>No chart: ") == 1
    assert "<h1>x</h1>" in page


def test_a_ticket_of_many_rows_holds_the_worst(tmp_path: Path) -> None:
    one = RESULTS[0].as_dict()
    rows = [one | {"offset": i, "verdict": "growing", "drift_relative": i / 999} for i in range(999)]
    text = reports.render("html", Report(rows, list(records.COLUMNS), ["offset", "verdict"], headline="x"))
    ticket = html.unescape(re.search(r'<pre id="markdown".*?>(.*?)</pre>', text, re.DOTALL)[1])
    assert "The 50 worst of 999 cases are shown" in ticket
    assert next(line for line in ticket.splitlines() if "growing" in line) == "| 949 | growing |"
    assert text.count("<tr data-verdict") == 999
