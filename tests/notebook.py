"""The cells of examples/drift.ipynb, executed here as a notebook would. Run as a script, this writes outputs.

No kernel is started: a cell is Python, and its last expression is what is shown.
"""

import ast
import base64
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "examples" / "drift.ipynb"


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


if __name__ == "__main__":
    text = json.dumps(executed(read()), indent=1, ensure_ascii=False, sort_keys=True)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
