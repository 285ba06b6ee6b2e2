"""The notebook in examples/ runs, and shows what it holds; what results show of themselves in notebooks.

Its cells are executed here as a notebook would, without a kernel: a cell is Python, its last expression is
what is shown. `python tests/documentation/test_notebook.py` writes its outputs.
"""

import ast
import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import ropeaudit

NOTEBOOK = Path(__file__).parents[2] / "examples" / "drift.ipynb"


def shown(value: Any) -> dict[str, Any]:
    """Return what a notebook stores of a value: a picture, HTML, or its text."""
    if hasattr(value, "savefig"):
        file = io.BytesIO()
        value.savefig(file, dpi=72, metadata={"Software": None})
        return {"image/png": base64.b64encode(file.getvalue()).decode() + "\n", "text/plain": ["a figure"]}
    html = value._repr_html_() if hasattr(value, "_repr_html_") else None
    if html is None:
        return {"text/plain": repr(value).splitlines(keepends=True)}
    return {"text/html": html.splitlines(keepends=True), "text/plain": [type(value).__name__]}


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of its cells. Raises: whatever a cell raises."""
    names: dict[str, Any] = {}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102  # our own example
        cell["execution_count"], cell["outputs"] = count, []
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
            output = {"data": shown(value), "execution_count": count, "metadata": {}}
            cell["outputs"] = [{**output, "output_type": "execute_result"}]
    return notebook


def read() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


@pytest.mark.slow  # processes
def test_the_notebook_shows_what_it_holds() -> None:
    pytest.importorskip("matplotlib")
    held, made = read(), executed(read())
    for before, after in zip(held["cells"], made["cells"], strict=True):
        for one in (before, after):
            for output in one.get("outputs", ()):
                if "image/png" in output["data"]:  # its bytes are those of a version of matplotlib
                    assert len(output["data"].pop("image/png")) > 10000
        assert before == after


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
    assert " ".join(alone.figure.get_suptitle().split()) in ropeaudit.report(results).headline
    with pytest.raises(ropeaudit.UsageError, match=r"what ropeaudit\.shift returns"):
        ropeaudit.plot(ropeaudit.check("llama-3.1-8b", "bf16", up_to=16))


if __name__ == "__main__":
    text = json.dumps(executed(read()), indent=1, ensure_ascii=False, sort_keys=True)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
