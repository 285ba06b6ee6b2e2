"""Cases of vectors, for people: what was written, where, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropeaudit.conformance.vector_case import BATCH
from ropeaudit.features.vectors.analysis import WrittenCase
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.answers import Answer
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.runtime.columns import table

SCHEMA = 1


def row(one: WrittenCase) -> dict[str, Any]:
    """Return the row of a case that was written."""
    spec = one.spec
    like = {name: getattr(spec.setting, name) for name in ("head_dim", "rotary_dim", "base", "layout")}
    like |= {name: getattr(spec, name) for name in ("model", "want", "heads", "kv_heads", "seq_len", "seed")}
    values = {
        **like,
        "schema": SCHEMA,
        "folder": one.folder,
        "dtype": spec.dtype.name,
        "offsets": " ".join(map(str, spec.offsets)),
        "calls": len(spec.calls),
        "served": " ".join(str(call.key) for call in spec.served_calls),
        "last_position": spec.offsets[-1] + spec.seq_len - 1,
        "batch": BATCH,
        "scaling": spec.setting.scaling.kind,
        "size": one.size,
        "digest": one.digest,
    }
    return {name: values[name] for name in COLUMNS}


COLUMNS = table("vectors")


def report(
    results: Sequence[WrittenCase], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report of what was written; `columns` chooses and orders what is shown and written."""
    rows, texts = [row(result) for result in results], notes(results)
    some = [_answer(rows, texts)] if rows else []
    screen = COLUMNS.screen(rows)
    return tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata, some, notes=texts)


def _answer(rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> Answer:
    """Return what was written, what to beware of, and what to do with it."""
    calls, last = sum(one["calls"] for one in rows), max(one["last_position"] for one in rows)
    size = sum(one["size"] for one in rows) / 2**20
    folder, typed, cases = rows[0]["folder"], shlex.quote(printable(rows[0]["folder"])), ""
    if len(rows) > 1:
        folder, typed, cases = str(Path(folder).parent), "CASE", f"{len(rows)} cases, "
    counts = f"{cases}{counted(calls, 'call')} at positions up to {last:,}, {size:.1f} MiB"
    facts = [("beware", text) for text in texts]
    facts.append(("then", "a kernel reads it and writes what manifest.json asks for into another folder OUT"))
    facts.append(("next", f"ropeaudit check {typed} --returned OUT"))
    return Answer("OK", folder, counts, facts=facts)


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
