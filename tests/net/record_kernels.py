"""Record what `check` and `module` say of kernels, and rewrite `kernels.toml` with it, to be read as a diff.

`python tests/net/record_kernels.py [--part PART] [--open] [WORD ...]`: of all rows, or those of a
part whose file and kernel hold a word; `--open`: those alone that state `...`. An answer that is what is
right replaces what was stated of it; another one becomes `today`, and what is right stays as it is. Seconds
of CPU of each row are printed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from net import kernel_rows
from net.kernel_rows import OF_FILE, OF_KERNEL, TABLE, Row
from ropeaudit.conformance import code_under_test

HEAD = """\
# What is said of each kernel, by dtype: [exit code, codes...]; `kernel_rows.py` says what stands here.
# Written by `python tests/net/record_kernels.py`.
"""


def recorded(row: Row, dtype: str) -> tuple[dict[str, list[Any]], float]:
    """Return what is stated of a row once it was judged, and seconds of CPU."""
    stated, began = row.stated.get(dtype, {}), time.process_time()
    code_under_test.seconds_of_a_call = kernel_rows.seconds(row, dtype)  # type: ignore[assignment]
    given = kernel_rows.answer(row.words(dtype))
    seconds, said = time.process_time() - began, json.loads(kernel_rows.spelled(given))
    right = stated.get("right", ["?"])
    if kernel_rows.agrees(right, given):
        return {"right": said}, seconds
    return {"right": right, "today": said}, seconds


def written(rows: list[Row], old: dict[str, Any]) -> str:
    """Return the table of some rows; old: the table before, for what is said of whole files."""
    return HEAD + "\n".join(lines(rows, old)) + "\n"


def lines(rows: list[Row], old: dict[str, Any]) -> Iterator[str]:
    """Yield a heading a table and a line a kernel."""
    table = None
    for row in rows:
        content = old[row.table]
        if row.table != table:
            table = row.table
            yield f"\n[{json.dumps(table)}]"
            yield from (f"{name} = {json.dumps(content[name])}" for name in OF_FILE if name in content)
        given = content[row.kernel]
        cells = [f"{name} = {json.dumps(given[name])}" for name in OF_KERNEL if name in given]
        cells += [f"{dtype} = {cell(stated)}" for dtype, stated in sorted(row.stated.items())]
        yield f"{json.dumps(row.kernel)} = {{ {', '.join(cells)} }}"


def cell(stated: dict[str, list[Any]]) -> str:
    """Return what is stated of a row in a dtype."""
    if "today" not in stated:
        return json.dumps(stated["right"])
    return f"{{ right = {json.dumps(stated['right'])}, today = {json.dumps(stated['today'])} }}"


def main() -> None:
    """Judge rows and write the table, anew after each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("fast", "slow", "exhaustive"))
    parser.add_argument("--open", action="store_true")
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows, total = kernel_rows.read(), 0.0
    for row in rows:
        for dtype, stated in row.stated.items():
            if asked.part not in (None, row.part(dtype)):
                continue
            if asked.open and "..." not in stated["right"]:
                continue
            if asked.words and not any(word in f"{row.name} {dtype}" for word in asked.words):
                continue
            row.stated[dtype], seconds = recorded(row, dtype)
            total += seconds
            print(f"{row.name} {dtype} {seconds:.2f} s: {cell(row.stated[dtype])}", flush=True)
            store(row, dtype)
    print(f"{total:.0f} s of CPU", file=sys.stderr)


def store(row: Row, dtype: str) -> None:
    """Write what was recorded of a row into the table as it now is."""
    old = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    rows = kernel_rows.read()
    for one in rows:
        if one.name == row.name and dtype in one.stated:
            one.stated[dtype] = row.stated[dtype]
    TABLE.write_text(written(rows, old), encoding="utf-8")


if __name__ == "__main__":
    main()
