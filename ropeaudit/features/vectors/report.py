"""Cases of vectors, for people: what was written, where, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit.audits import records
from ropeaudit.conformance.vector_case import BATCH
from ropeaudit.features.vectors.analysis import WrittenCase
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.numbers import printable
from ropeaudit.runtime.columns import Declare

SCHEMA = 1
of = Declare[WrittenCase]()


class VectorsColumns:
    """The columns of `ropeaudit vectors`."""

    schema = of.like(records.COLUMNS["schema"], lambda one: SCHEMA)
    folder: str = of("where the case is", shown=True)
    model = of.like(records.COLUMNS["model"], lambda one: one.spec.model)
    dtype: str = of("number format of q and k", lambda one: one.spec.dtype.name, shown=True)
    want: str = of("what is to be written back", lambda one: one.spec.want, shown=True)
    offsets: str = of("first positions of the calls", lambda one: " ".join(map(str, one.spec.offsets)))
    calls: int = of("how many calls there are", lambda one: len(one.spec.calls), shown=True)
    served: str = of(
        "those that are made as servers make them",
        lambda one: " ".join(str(call.key) for call in one.spec.served_calls),
    )
    last_position: int = of(
        "the largest position", lambda one: one.spec.offsets[-1] + one.spec.seq_len - 1, shown=True
    )
    batch: int = of("batch elements", lambda one: BATCH)
    heads = of.like(records.COLUMNS["heads"], lambda one: one.spec.heads)
    kv_heads = of.like(records.COLUMNS["kv_heads"], lambda one: one.spec.kv_heads)
    seq_len = of.like(records.COLUMNS["seq_len"], lambda one: one.spec.seq_len)
    head_dim: int = of("dims of a head", lambda one: one.spec.setting.head_dim, shown=True)
    rotary_dim: int = of("dims that are rotated", lambda one: one.spec.setting.rotary_dim, shown=True)
    base: float = of("base of the frequencies", lambda one: one.spec.setting.base, shown=True)
    layout: str = of("pairs of dims", lambda one: one.spec.setting.layout, shown=True)
    scaling: str = of("change of the frequencies", lambda one: one.spec.setting.scaling.kind, shown=True)
    seed: int = of("seed of q and k", lambda one: one.spec.seed)
    size: int = of("of all files", unit="bytes")
    digest: str = of("of the manifest")


COLUMNS = of.columns(VectorsColumns)


def report(
    results: Sequence[WrittenCase], columns: Sequence[str] | None, metadata: Mapping[str, Any]
) -> Report:
    """Return the report of what was written; `columns` chooses and orders what is shown and written."""
    rows, screen = [COLUMNS.row(result) for result in results], COLUMNS.screen(results)
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
