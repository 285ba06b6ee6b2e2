"""LaTeX tables: escaped, as many cells as columns, braces that match; compiled where LaTeX is installed."""

import re
import shutil
import subprocess

import pytest

from ropeaudit import shift
from ropeaudit.main import main
from ropeaudit.reports import Report, render
from ropeaudit.reports.drift import drift_report

HOSTILE = '50% of $x_1 & #2 {a} ~ ^ \\ <b> "q" × ≤ Σ'


@pytest.fixture(scope="module")
def text() -> str:
    records = list(shift([0, 1000], ["bf16", "fp32"], ["hf", "uniform"], heads=1, seq_len=32))
    return render("latex", drift_report(records, (), {}))


def balanced(text: str) -> bool:
    depth = 0
    for brace in re.sub(r"\\[{}]", "", text):
        depth += (brace == "{") - (brace == "}")
        assert depth >= 0
    return depth == 0


def test_rows_have_a_cell_a_column(text) -> None:
    columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1]
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.split("\n") if line.endswith(r" \\")]
    assert len(lines) == 9
    assert {line.count(" & ") + 1 for line in lines} == {len(columns)}
    assert r"\midrule" in body
    assert re.search(r"\$\d\.\d\d\\times10\^\{-\d+\}\$", body)
    assert not re.search(r"\de-\d\d", body)
    assert balanced(text)


def test_text_is_escaped() -> None:
    row = {"name": HOSTILE, "x": 1.0}
    text = render("latex", Report([row], list(row), list(row), headline=HOSTILE, notes=[HOSTILE]))
    escaped = r"50\% of \$x\_1 \& \#2 \{a\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    assert text.count(escaped) == 3
    assert balanced(text)
    assert text.isascii()


def test_long_tables_go_over_pages() -> None:
    rows = [{"x": float(number), "y": "a"} for number in range(60)]
    text = render("latex", Report(rows, ["x", "y"], ["x", "y"], headline="h"))
    assert text.startswith("% \\usepackage{booktabs} \\usepackage{longtable}\n")
    assert r"\begin{longtable}{rl}" in text
    assert text.count(r"\caption{h}") == 1


def test_a_file_and_stdout_hold_the_same(tmp_path, capfd) -> None:
    line = ["shift", "--heads", "1", "--seq-len", "16", "--dtype", "bf16", "--offset", "0", "-q"]
    assert main([*line, "-f", "latex", "-o", f"{tmp_path / 't.tex'}"]) == 0
    assert (tmp_path / "t.tex").read_text(encoding="utf-8") == capfd.readouterr().out


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.slow
def test_it_compiles(text, tmp_path) -> None:
    begin = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "x.tex").write_text(f"{begin}{text}\\end{{document}}\n", encoding="utf-8")
    called = ["pdflatex", "-interaction=batchmode", "-halt-on-error", "x.tex"]
    assert subprocess.run(called, cwd=tmp_path, check=False).returncode == 0
