"""`vectors`: cases of q, k and positions, written for kernels that Python cannot call.

The bytes of a case follow from its parameters alone.
Letters: b batch elements, h heads of q, g of k, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from ropeaudit.arithmetic.formats import Format
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import CaseArguments, Names, OnProgress
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case, check_memory, straddling
from ropeaudit.audits.results import Result
from ropeaudit.conformance import vector_case
from ropeaudit.conformance.vector_case import BATCH, FLAT, MANIFEST, SEQ_LEN, TENSORS, CaseSpec
from ropeaudit.errors import BadOutput, UsageError
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.answers import Answer
from ropeaudit.reports.model_notes import notes_beside
from ropeaudit.reports.numbers import counted, printable
from ropeaudit.runtime import atomic_files, paths
from ropeaudit.runtime.columns import table

HEADS = 4


@dataclass(frozen=True, slots=True)
class WrittenCase(Result):
    """A case that was written. size: bytes of all files. notes: for the report."""

    report_module: ClassVar[str] = __name__
    folder: str
    spec: CaseSpec
    digest: str
    size: int
    notes: tuple[str, ...] = ()


@arguments.public
def vectors(
    folder: str | os.PathLike[str],
    dtypes: Names = "bf16",
    offsets: int | Iterable[int] = (),
    *,
    want: str = "rotated",
    positions: str = "int64",
    context: int | None = None,
    served: bool = False,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[CaseArguments],
) -> Iterator[WrittenCase]:
    """Write q, k and positions into a folder, for a kernel that Python cannot call.

    One case goes into `folder` itself, several into folders of theirs in it. Yields what was written, once
    all is. folder: one that is there must be empty or hold cases alone, which are replaced. dtypes: of q and
    k. offsets: first positions of the calls; none for 0 and those around which positions break. want: rotated
    or gradient. positions: int64 or int32. context: positions that frequencies are computed for where they
    depend on it, up to the last position of the case if None. served: calls as servers make them too.
    cases, on_progress, case: as in `ropeaudit.shift`; q and k are gaussian.
    Raises: UsageError, UnknownName, BadShape, BadInput, BadOutput.
    """
    asked = arguments.integers(offsets)
    every, place, results = arguments.cases_from(cases, case), str(folder), list[WrittenCase]()
    chosen = [(one, dtype) for one in every for dtype in arguments.formats(dtypes)]
    further = {"want": want, "positions": positions, "served": served}
    specs = [_case_spec(*each, asked, context, further) for each in chosen]
    names, progress = _folder_names(specs), on_progress or arguments.ignore_progress
    check_free(place)
    try:
        with atomic_files.new_folder(Path(paths.link_target(place))) as beside:
            for number, (spec, name, (one, _)) in enumerate(zip(specs, names, chosen, strict=True)):
                progress(number / len(specs))
                inside = name if len(specs) > 1 else ""
                (beside / inside).mkdir(exist_ok=True)
                contents = files(spec)
                for file, content in contents.items():
                    (beside / inside / file).write_bytes(content)
                digest = vector_case.read_manifest(beside / inside / MANIFEST)["digest"]
                size, written = sum(map(len, contents.values())), str(Path(place, inside))
                results.append(WrittenCase(written, spec, digest, size, _notes(one, spec, asked)))
    except OSError as error:
        raise BadOutput(f"-o {place!r} cannot be written: {error.strerror or error}") from None
    yield from results


def _case_spec(
    case: Case,
    dtype: Format,
    asked: list[int],
    context: int | None,
    further: Mapping[str, Any],
) -> CaseSpec:
    """Return the parameters of a case. further: unchanged ones. Raises: see `vectors`."""
    for name, allowed in (("qk", "gaussian"), ("mask", "causal"), ("sample", None), ("mrope", None)):
        if getattr(case, name) != allowed:
            raise UsageError(f"vectors take no {name}; leave it out")
    heads = HEADS if case.heads is None else case.heads
    kv_heads = (heads // 2 if heads % 2 == 0 else heads) if case.kv_heads is None else case.kv_heads
    seq_len = SEQ_LEN if case.seq_len is None else case.seq_len
    requested = asked or straddling(case.maximum or USUAL_MAXIMUM, seq_len)
    powers = [offset for offset in requested if offset >= seq_len and not offset & (offset - 1)]
    twins = [offset - seq_len // 2 - 1 for offset in powers]  # on both sides of one
    offsets = tuple(sorted({0, *requested, *twins}))
    outline, setting = replace(case, heads=heads, kv_heads=kv_heads, seq_len=seq_len).outline()
    context = offsets[-1] + seq_len if context is None else context
    setting = replace(setting, length=setting.scaling.length_for(context))
    if setting.clipped or not setting.pairs:
        raise UsageError("vectors rotate by all of an angle, at least one pair; leave out --clip")
    sizes = heads, kv_heads, seq_len, outline.seed or 0
    spec = CaseSpec(setting, dtype, *sizes, offsets, context, model=case.model_name, **further)
    check_memory(4 * 8 * BATCH * (heads + kv_heads) * seq_len * setting.head_dim)
    return spec


def check_free(folder: str) -> None:
    """Raise UsageError unless a folder is new, empty, or holds cases alone."""
    path = Path(folder)
    try:
        if path.is_dir():
            cases = [path] if (path / MANIFEST).exists() else list(path.iterdir())
            if all(case.is_dir() and vector_case.holds_only_case(case) for case in cases):
                return
        taken = path.exists() or path.is_symlink()
    except (OSError, ValueError) as error:
        raise BadOutput(f"-o {folder!r}: {getattr(error, 'strerror', None) or error}") from None
    if taken:
        what = "has files in it that are of no case" if path.is_dir() else "is no folder"
        raise UsageError(f"-o {folder!r} {what}; give a new folder")


def _folder_names(specs: Sequence[CaseSpec]) -> list[str]:
    names, several = list[str](), len({spec.dtype for spec in specs}) > 1
    for spec in specs:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec.model).strip(".-") or "case"
        name = f"{name}.{spec.dtype.short}" if several else name
        count = sum(other == name or other.startswith(f"{name}-") for other in names)
        names.append(f"{name}-{count + 1}" if count else name)
    return names


def files(spec: CaseSpec) -> dict[str, bytes]:
    """Return file name -> bytes of a case, the manifest last."""
    import safetensors.numpy as safetensors

    arrays: dict[str, NDArray[Any]] = {}
    for number, (name, entry) in enumerate(spec.inputs().items()):
        # with all the bits of the dtype: a narrower format then shows
        shape = tuple(entry["shape"])
        drawn = round_to(np.random.default_rng([spec.seed, number]).standard_normal(shape), spec.dtype)
        arrays[name] = vector_case.array(drawn, spec.dtype)
    for call in spec.calls:
        arrays[f"positions.{call.key}"] = call.positions().astype(spec.positions)
        if call.bounds:
            arrays[f"cu_seqlens.{call.key}"] = np.array(call.bounds, np.int32)
    contents = {f"{name}.bin": vector_case.to_bytes(array) for name, array in arrays.items()}
    contents[TENSORS] = safetensors.save(arrays)
    manifest = vector_case.manifest(spec, {name: vector_case.sha256(c) for name, c in contents.items()})
    return contents | {FLAT: vector_case.flat_text(manifest), MANIFEST: vector_case.as_json(manifest)}


SCHEMA = 1
COLUMNS = table("vectors")


def row(case: WrittenCase) -> dict[str, Any]:
    """Return the row of a case that was written."""
    spec = case.spec
    values: dict[str, Any] = {
        name: getattr(of, name) for name in COLUMNS for of in (case, spec, spec.setting) if hasattr(of, name)
    }
    return values | {
        "schema": SCHEMA,
        "dtype": spec.dtype.name,
        "offsets": " ".join(map(str, spec.offsets)),
        "calls": len(spec.calls),
        "served": " ".join(str(call.key) for call in spec.served_calls),
        "last_position": spec.end - 1,
        "batch": BATCH,
        "scaling": spec.setting.scaling.kind,
    }


def report(
    results: Sequence[WrittenCase],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
) -> Report:
    """Return the report of the written cases."""
    rows = [row(result) for result in results]
    texts = list(dict.fromkeys(printable(f"{text}.") for result in results for text in result.notes))
    some = []
    if rows:
        calls, last = sum(row["calls"] for row in rows), max(row["last_position"] for row in rows)
        size = sum(row["size"] for row in rows) / 2**20
        folder, typed, cases = rows[0]["folder"], shlex.quote(printable(rows[0]["folder"])), ""
        if len(rows) > 1:
            folder, typed, cases = str(Path(folder).parent), "CASE", f"{len(rows)} cases, "
        counts = f"{cases}{counted(calls, 'call')} at positions up to {last:,}, {size:.1f} MiB"
        facts = [("beware", text) for text in texts]
        then = "a kernel reads it and writes what manifest.json asks for into another folder OUT"
        facts += [("then", then), ("next", f"ropeaudit check {typed} --returned OUT")]
        some = [Answer("OK", folder, counts, facts=facts)]
    screen = COLUMNS.screen(rows)
    return tabulated(COLUMNS, SCHEMA, rows, screen, columns, metadata, some, notes=texts)


def _notes(case: Case, spec: CaseSpec, asked: Sequence[int]) -> tuple[str, ...]:
    texts, maximum, scaling = list(notes_beside(case)), case.maximum, spec.setting.scaling
    twins = ", ".join(str(offset) for offset in spec.offsets if offset and offset not in asked)
    if asked and twins:
        texts.append(f"offset {twins} is added: its positions are on both sides of a power of two")
    if past := [offset for offset in spec.offsets if maximum and offset + spec.seq_len > maximum]:
        texts.append(
            f"{spec.model}: positions from offset {past[0]} on go past the {maximum} that it is made for"
        )
    if scaling.depends_on_length:
        texts.append(
            f"{spec.model}: scaling {scaling.kind} depends on the length; at all offsets frequencies are "
            f"those for {spec.context} positions (--context)"
        )
    return tuple(texts)
