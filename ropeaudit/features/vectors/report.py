"""Cases of vectors, for people: what was written, where, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.conformance.vector_case import BATCH
from ropeaudit.features.vectors.analysis import WrittenCase
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime.columns import table

SCHEMA = 1


def row(one: WrittenCase) -> dict[str, Any]:
    """Return the row of a case that was written."""
    return {
        "schema": SCHEMA,
        "folder": one.folder,
        "model": one.spec.model,
        "dtype": one.spec.dtype.name,
        "want": one.spec.want,
        "offsets": " ".join(map(str, one.spec.offsets)),
        "calls": len(one.spec.calls),
        "served": " ".join(str(call.key) for call in one.spec.served_calls),
        "last_position": one.spec.offsets[-1] + one.spec.seq_len - 1,
        "batch": BATCH,
        "heads": one.spec.heads,
        "kv_heads": one.spec.kv_heads,
        "seq_len": one.spec.seq_len,
        "head_dim": one.spec.setting.head_dim,
        "rotary_dim": one.spec.setting.rotary_dim,
        "base": one.spec.setting.base,
        "layout": one.spec.setting.layout,
        "scaling": one.spec.setting.scaling.kind,
        "seed": one.spec.seed,
        "size": one.size,
        "digest": one.digest,
    }


COLUMNS = table("vectors")


def report(
    results: Sequence[WrittenCase], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report of what was written; `columns` chooses and orders what is shown and written."""
    rows = [row(result) for result in results]
    screen = COLUMNS.screen(rows)
    size = sum(one.size for one in results) / 2**20
    folder, headline = "FOLDER", f"{len(results)} cases of vectors were written, {size:.1f} MiB."
    if len(results) == 1:
        [only] = results
        number, last = len(only.spec.calls), only.spec.offsets[-1] + only.spec.seq_len - 1
        calls = f"{number} call{'s' * (number > 1)} at positions up to {last}"
        folder = shlex.quote(printable(only.folder))
        headline = f"A case of vectors was written to {printable(only.folder)}: {calls}, {size:.1f} MiB."
    return replace(
        tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata),
        headline=headline,
        notes=notes(results),
        legend="Let a kernel read it and write what manifest.json asks for into another folder OUT, and "
        f"type\nropeaudit check {folder} --returned OUT",
    )


def notes(results: Sequence[WrittenCase]) -> list[str]:
    """Return which offsets were added, what lies past the model's positions, how frequencies were chosen."""
    texts: list[str] = []
    for one in results:
        spec, maximum = one.spec, one.maximum
        texts += one.notes
        twins = [offset for offset in one.added if offset]
        if twins:
            texts.append(
                f"offset {', '.join(map(str, twins))} is added: its positions are on both sides of a power "
                "of two"
            )
        past = [offset for offset in spec.offsets if maximum and offset + spec.seq_len > maximum]
        if past:
            texts.append(
                f"{spec.model}: positions from offset {past[0]} on go past the {maximum} that it is made for"
            )
        if spec.setting.scaling.depends_on_length:
            texts.append(
                f"{spec.model}: scaling {spec.setting.scaling.kind} depends on the length; at all offsets "
                f"frequencies are those for {spec.context} positions (--context)"
            )
    return [printable(f"{text}.") for text in dict.fromkeys(texts)]
