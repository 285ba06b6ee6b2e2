"""The notebook in examples/ runs, and shows what it holds; what results show of themselves in notebooks."""

import re

import notebook
import pytest

import ropeaudit


@pytest.mark.slow  # processes
def test_the_notebook_shows_what_it_holds() -> None:
    pytest.importorskip("matplotlib")
    held, made = notebook.read(), notebook.executed(notebook.read())
    for before, after in zip(held["cells"], made["cells"], strict=True):
        for one in (before, after):
            for output in one.get("outputs", ()):
                if "image/png" in output["data"]:  # its bytes are those of a version of matplotlib
                    assert len(output["data"].pop("image/png")) > 10000
        assert before == after


def test_a_cell_that_fails_is_seen() -> None:
    broken = notebook.read()
    broken["cells"][1]["source"] = ["import ropeaudit\n", "ropeaudit.shift(dtypes='fp99')"]
    with pytest.raises(ropeaudit.UnknownName):
        notebook.executed(broken)


def test_results_are_shown_and_still_there() -> None:
    results = ropeaudit.shift((0, 1000), "bf16", heads=1, seq_len=32)
    first = next(results)
    html = results._repr_html_()
    rest = list(results)
    assert html == ropeaudit.report(rest, metadata={})._repr_html_()
    assert [first, *rest] == list(ropeaudit.shift((0, 1000), "bf16", heads=1, seq_len=32))
    assert len(re.findall("<tr>", html)) == 1 + len(rest) == 4
    assert results._repr_html_() is None, "there are no more"


def test_what_is_shown_is_text_whatever_it_holds() -> None:
    report = ropeaudit.Report([{"a": "<b>x</b>"}], ["a"], ["a"], headline="<i>", notes=["<script>"])
    html = report._repr_html_()
    assert "<b>" not in html
    assert "<i>" not in html
    assert "<script>" not in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html


def test_plot_draws_on_axes_that_are_given() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    left, right = figure.subplots(1, 2)
    results = list(ropeaudit.shift((0, 1000, 4000), ("fp16", "bf16"), "hf", heads=1, seq_len=32))
    assert ropeaudit.plot(results, ax=right) is right
    assert [text.get_text() for text in right.get_legend().get_texts()][:2] == ["hf float16", "hf bfloat16"]
    assert not left.lines
    assert list(right.lines[0].get_ydata()) == [one.drift_rms for one in results[:3]]
    alone = ropeaudit.plot(results)
    assert "drifts most" in alone.figure.get_suptitle()
    with pytest.raises(ropeaudit.UsageError, match=r"what ropeaudit\.shift returns"):
        ropeaudit.plot(ropeaudit.check("llama-3.1-8b", "bf16", up_to=16))
