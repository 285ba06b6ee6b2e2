"""Parquet: typed columns for data frames; metadata are in the schema's."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ropeaudit.reports import Report
from ropeaudit.runtime.rows import BLOCK, Rows

_KEY = b"ropeaudit"  # of the metadata


def render(report: Report) -> bytes:
    """Return the file; what is undefined is null, and nan stays nan."""
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[name] for row in report.rows] for name in report.columns}
    kinds = {name: column.kind for name, column in report.declared.items()}
    arrays = [_array(pyarrow, values, kinds.get(name, float)) for name, values in columns.items()]
    about = json.dumps(dict(report.metadata), ensure_ascii=False).encode("utf-8", "backslashreplace")
    table = pyarrow.Table.from_arrays(arrays, names=list(columns)).replace_schema_metadata({_KEY: about})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def decode(content: bytes) -> tuple[Iterator[Rows], Any]:
    """Return the rows of a file, and its metadata, if any. Raises: ValueError, OSError: it is damaged."""
    import pyarrow
    from pyarrow import parquet

    file = parquet.ParquetFile(pyarrow.BufferReader(content))
    metadata = file.schema_arrow.metadata or {}
    blocks = (
        Rows({name: part[name].to_pylist() for name in part.schema.names}, part.num_rows, ())
        for part in file.iter_batches(BLOCK, use_threads=False)
    )
    return blocks, json.loads(metadata.get(_KEY, b"{}"))


def _array(pyarrow: Any, values: Sequence[Any], kind: type) -> Any:
    """Return a column of one type: where values leave it open, the declared one."""
    seen = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in seen) or (not seen and kind is str):
        # UTF-8 must hold them; names of files may hold bytes that are no text
        texts = [None if v is None else str(v).encode("utf-8", "backslashreplace").decode() for v in values]
        return pyarrow.array(texts, pyarrow.string())
    if kind is bool:
        return pyarrow.array(values, pyarrow.bool_())
    known = kind is int
    if (seen or known) and all(isinstance(value, int) or (known and math.isnan(value)) for value in seen):
        numbers = [value if isinstance(value, int) else None for value in values]
        wide = any(value > 2**63 - 1 for value in numbers if value is not None)
        return pyarrow.array(numbers, pyarrow.uint64() if wide else pyarrow.int64())
    return pyarrow.array([None if v is None else float(v) for v in values], pyarrow.float64())
