"""The cells of an audit: planned before anything is measured, and measured in tasks.

A cell is a case x factory x offset, known by what was requested (`Record.key`), not by its place. The bits of
a row do not depend on what is measured with it: cells may be measured in any order and company. They share q,
k and the reference within a task.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ropeaudit.arithmetic.formats import FP32, parse
from ropeaudit.audits import records
from ropeaudit.audits.case_run import CaseRun
from ropeaudit.audits.cases import Case, Outline, positions_fit
from ropeaudit.audits.identity import case_of
from ropeaudit.audits.recording import identity
from ropeaudit.audits.records import Record
from ropeaudit.engine.plan import TILE_COLUMNS
from ropeaudit.inputs import masks
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import doing

if TYPE_CHECKING:
    from ropeaudit.audits.audit import Audit

_UNIT_SECONDS, _UNITS_PER_JOB = 0.25, 8  # small tasks go to a worker together

Part: TypeAlias = tuple[Case, list[int]]  # a case, and the places of factories that are measured in it
Key: TypeAlias = tuple[str, str, float]  # of a row: its case, version and tolerance


class Cell(NamedTuple):
    """A case, a factory and an offset.

    case, factory: places in `Audit.parts` and `Audit.factories`; identity: values of `records.IDENTITY`; key:
    that of its row; scores: how many it forms; seconds: a guess of one core's time.
    """

    case: int
    factory: int
    offset: int
    identity: tuple[Any, ...]
    key: Key
    scores: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """Some factories at some offsets of a case, measured together. cells: their places in the plan."""

    case: Case
    factories: tuple[int, ...]
    offsets: tuple[int, ...]
    cells: tuple[int, ...]
    seconds: float


def planned(audit: Audit, parts: Sequence[Part], shard: tuple[int, int] = (1, 1)) -> Iterator[Cell]:
    """Yield the cells of a shard, in the order of the rows. parts: `Audit.parts`.

    A shard holds neighbours, as much work as every other so far as can be guessed; shards in order hold the
    cells in order, each of them once. The cells of other shards are not made.
    """
    factories, offsets = audit.factories(), audit.offsets
    outlines = [case.outline() for case, _ in parts]
    scores = [
        case.sample or masks.count(case.mask, sizes.seq_len) * sizes.heads
        for (case, _), (sizes, _) in zip(parts, outlines, strict=True)
    ]
    seconds = [_guessed(audit, *part, *outline) for part, outline in zip(parts, outlines, strict=True)]
    whole = sum(sum(one.values()) for one in seconds) * len(offsets)
    before = 0.0
    for number, (case, some) in enumerate(parts):
        sizes, setting = outlines[number]
        axes = case.position_axes(setting)
        for index in some:
            first, last = (
                _first(len(offsets), before, seconds[number][index], whole, one, shard[1])
                for one in (shard[0], shard[0] + 1)
            )
            before += seconds[number][index] * len(offsets)
            known: dict[Any, dict[str, Any]] = {}
            for offset in offsets[first:last]:
                at = case.setting_at(setting, sizes.seq_len, offset)
                if at not in known or at.grid is not None:  # on a grid other columns depend on it too
                    subject = factories[index].make(at, axes)
                    chosen = audit.attention, audit.tolerance
                    requested = identity(case, sizes, at, subject, offset, *chosen)
                    known[at] = {name: requested[name] for name in records.IDENTITY}
                values = {**known[at], "offset": offset}
                values["case"] = case_of(values)
                identified = tuple(values.values())
                key = values["case"], values["version"], values["tolerance"]
                yield Cell(number, index, offset, identified, key, scores[number], seconds[number][index])


def _guessed(
    audit: Audit, case: Case, some: Sequence[int], sizes: Outline, setting: RopeSetting
) -> dict[int, float]:
    """Return factory -> the guessed seconds of each of its cells in a case."""
    rest = case.sample, audit.attention is not None, len(some) * len(audit.offsets), case.rerotate or 0
    stages = {index: audit.factories()[index].stages for index in some}
    return {one: cell_seconds(sizes, setting.head_dim, case.mask, by, *rest) for one, by in stages.items()}


def _first(cells: int, before: float, seconds: float, whole: float, number: int, count: int) -> int:
    """Return the first of some equal cells whose shard is `number` or a later one. before: seconds."""

    def shard(cell: int) -> int:
        return min(count, int((before + seconds * (cell + 0.5)) / whole * count) + 1)

    return bisect.bisect_left(range(cells), number, key=shard) if number <= count else cells


def units(tasks: Sequence[Task], jobs: int) -> list[tuple[Task, ...]]:
    """Return the tasks in order, small ones together: what is handed to a worker at once."""
    whole = sum(task.seconds for task in tasks)
    enough = min(_UNIT_SECONDS, whole / (_UNITS_PER_JOB * jobs))
    results: list[tuple[Task, ...]] = []
    open_unit: list[Task] = []
    for task in tasks:
        open_unit.append(task)
        if sum(one.seconds for one in open_unit) >= enough:
            results.append(tuple(open_unit))
            open_unit = []
    return [*results, tuple(open_unit)] if open_unit else results


def measured(
    audit: Audit,
    tasks: Iterable[Task],
    threads: int,
    progress: Callable[[float], None] = lambda seconds: None,
) -> Iterator[tuple[int, Record]]:
    """Yield the cells of the tasks and their rows. progress gets how much of the guessed seconds is done."""
    factories, before = audit.factories(), 0.0
    for task in tasks:
        case, some = task.case, [factories[number] for number in task.factories]
        drawn = 0.0  # the share of the task that drawing a sample is
        if case.sample is not None:
            sizes, outlined = case.outline()
            drawn = drawing_share(sizes, outlined.head_dim, case.sample, len(task.cells))

        of_task = doing.part(progress, before, before + task.seconds)
        drawing, measuring = doing.part(of_task, 0.0, drawn), doing.part(of_task, drawn, 1.0)
        loaded, setting = case.load() if case.sample is None else case.draw(drawing)
        positions_fit(case.reached([*task.offsets, *audit.anchors]), loaded.seq_len)
        rest = audit.attention, threads, measuring, audit.tolerance
        run = CaseRun(case, loaded, setting, some, *rest)
        yield from zip(task.cells, run.records(task.offsets), strict=True)
        before += task.seconds
        del loaded, run  # q and k, before others are made


START_SECONDS, CELL_SECONDS = 0.25, 1e-3
_SCORE, _ATTENTION = 1.4e-8, 5e-8  # seconds a score that is formed, those that a mask hides in a tile too
_ROTATED = 8e-9  # seconds an element of q and k
_STEP = 2e-8  # seconds a product that is added on its own, to a narrow accumulator
_SAMPLED = 3e-7  # seconds a dim of a sampled score: its table, its rotation, its reference
_TURN = 3e-9  # seconds an element of k that is rotated again
_GENERATED = 9e-9  # seconds an element of q and k
_CHOSEN = 4e-6  # seconds a position to sample among


def cell_seconds(
    sizes: Outline,
    head_dim: int,
    mask: masks.Mask,
    stages: Mapping[str, str],
    sample: int | None = None,
    attention: bool = False,
    cells: int = 1,
    turns: int = 0,
) -> float:
    """Return a guess of one core's time for a subject at an offset.

    stages: stage -> format name. cells: how many there are of the same q and k, which are generated once.
    turns: how many times its stored keys are rotated again.
    """
    elements = (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim
    each = CELL_SECONDS + _GENERATED * elements / cells
    if sample is not None:
        return each + _CHOSEN * sizes.seq_len / cells + (_SAMPLED + _TURN * turns) * head_dim * sample
    score, accumulate = _SCORE + _ATTENTION * attention, stages.get("accumulate")
    if accumulate and parse(accumulate).precision < FP32.precision:
        score += _STEP * head_dim * (1 + attention)  # its scores are formed twice
    each += _TURN * turns * sizes.kv_heads * sizes.seq_len * head_dim
    return each + _ROTATED * elements + score * sizes.heads * _formed(mask, sizes.seq_len)


def drawing_share(sizes: Outline, head_dim: int, sample: int, cells: int) -> float:
    """Return about which share of the time that the cells of a sampled case take goes into drawing it."""
    drawing = _GENERATED * (sizes.heads + sizes.kv_heads) * sizes.seq_len * head_dim + _CHOSEN * sizes.seq_len
    return drawing / (drawing + _SAMPLED * head_dim * sample * cells)


def _formed(mask: masks.Mask, seq_len: int) -> int:
    """Return about how many scores of a head the tiles hold that a mask does not hide whole."""
    if mask == "full":
        return seq_len**2
    half = seq_len * min(seq_len, TILE_COLUMNS) // 2  # what the tiles at one edge hide
    return min(masks.count("causal", seq_len) + half, masks.count(mask, seq_len) + 3 * half)
