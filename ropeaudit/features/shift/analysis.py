"""`shift`: scores of q and k when a number is added to every position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from ropeaudit.audits import arguments, judging
from ropeaudit.audits.arguments import DTYPES, GridArguments, Names, OnProgress
from ropeaudit.audits.cases import USUAL_MAXIMUM, Case, straddling
from ropeaudit.audits.records import Record
from ropeaudit.audits.sweep import Audit
from ropeaudit.engine.plan import AttentionOptions

OFFSETS = (0, 1000)


@arguments.public
def shift(
    offsets: int | Iterable[int] = OFFSETS,
    dtypes: Names = DTYPES,
    recipes: Names | None = None,
    *,
    implementations: Names = (),
    changes: Mapping[str, str] | None = None,
    backend: str = "numpy",
    device: str | None = None,
    order: str | None = None,
    attention: bool = False,
    softmax: str | None = None,
    anchor: int | None = None,
    tolerance: float = judging.TOLERANCE,
    under: Names = (),
    threads: int | None = None,
    rerotate: int | Iterable[int] | None = None,
    cases: Case | Iterable[Case] | None = None,
    on_progress: OnProgress | None = None,
    **case: Unpack[GridArguments],
) -> Iterator[Record]:
    """Audit the scores of q and k when `offsets` are added to every position.

    Yields one Record per case, recipe, dtype and offset, in that order; floats are in score units
    (scaled, before softmax).

    offsets: tokens; negative ones are allowed. dtypes, recipes: names, or a path to a recipe file.
    recipes are "hf" and "uniform" unless implementations are given: names of `list implementations`, called
    as they are, or own code as module:name. order: of its axes, such as "bhsd"; found out by default.
    changes: stage -> format, such as {"angle": "fp64"}. threads: all processors by default.
    backend: what executes recipes, "numpy" or "torch". device: where implementations are called, and where
    torch computes: "cpu", "cuda", "cuda:1", "mps".
    attention: measure the rows after softmax too. softmax: "fp64", or "recipe" for the recipe's own
    arithmetic. anchor: the offset that `attention_d` compares with, 16 by default.
    tolerance: of drift_relative, which `within_tolerance` goes by. under: environments of the code that is
    called, such as "autocast:bf16" or "all"; the clean state comes first.
    rerotate: how many times stored keys are rotated again on their way to the offset, `turn` tokens (-16)
    each time; queries are fresh.
    case: the fields of `Case`: qk, heads, kv_heads, seq_len, head_dim, seed, rotary_dim, base, layout,
    scale, mask, model, config, layer, scaling, clip, mrope, axis, length, sample, grid, axes, step, turn.
    cases: one or several, which these fields change. on_progress: gets the share that is done, from 0 to 1.
    Shapes of q and k: (heads, seq_len, head_dim), (kv_heads, seq_len, head_dim).
    Raises: UsageError, UnknownName, BadShape, BadInput, NotEmulated, OutOfMemory: children of RopeAuditError.
    Source: RoFormer, arXiv 2104.09864: exact scores depend on the distance of two tokens alone.

    >>> [record.distinct_positions for record in shift(1000, "bf16", ["hf", "uniform"])]
    [256, 36]
    """
    called, given = arguments.as_list(implementations), arguments.cases_from(cases, case, grids=True)
    if rerotate is not None:
        counts = arguments.integers(rerotate)
        given = [replace(one, rerotate=count) for one in given for count in counts]
    return Audit(
        cases=given,
        recipes=None if recipes is None else arguments.as_list(recipes),
        dtypes=arguments.as_list(dtypes),
        offsets=arguments.integers(offsets),
        changes=changes or {},
        attention=AttentionOptions.requested(attention, softmax, anchor),
        implementations=called,
        backend=backend,
        device=device,
        order=order,
        tolerance=tolerance,
        environments=arguments.as_list(under),
    ).run(threads, on_progress)


def usual_offsets(cases: Sequence[Case], called: bool) -> Sequence[int]:
    """Return the default offsets: for code those near which positions break."""
    if not called:
        return OFFSETS
    return straddling(
        min(case.maximum or USUAL_MAXIMUM for case in cases), max(case.seq_len or 256 for case in cases)
    )
