"""The position axes of a case: those of M-RoPE in a sequence, or those of a preset on a grid of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ropeaudit.errors import UsageError
from ropeaudit.rope import axes as sequence_axes
from ropeaudit.rope.axes import Axes
from ropeaudit.rope.setting import RopeSetting

if TYPE_CHECKING:
    from ropeaudit.audits.cases import Case
    from ropeaudit.rope.axial import AxialRope
    from ropeaudit.rope.grids import Grid

# fields of a case that a preset or the grid says itself, and those that are of a sequence alone
_SAID = ("head_dim", "rotary_dim", "base", "layout")
_OF_A_SEQUENCE = ("seq_len", "scaling", "clip", "mrope", "model", "config")
KINDS = ("gaussian", "randn", "ones", "arange")  # of q and k that know nothing of distances
ALONE = "--grid goes with `ropeaudit shift` alone; leave it out"


def completed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a case with the mask that a grid usually has: every token sees every other."""
    usual = {"mask": "full"} if fields.get("grid") is not None else {}
    return usual | {name: value for name, value in fields.items() if name != "mask" or value is not None}


def preset(case: Case) -> AxialRope | None:
    """Return the preset of a case, None for a sequence. Raises: UsageError, UnknownName, BadInput."""
    if case.grid is None and case.axes is None:
        if case.step is not None:
            raise UsageError(f"--step {case.step:g} is the unit of --offset on a grid; add --grid and --axes")
        return None
    from ropeaudit.rope import axial_presets  # in-function: most audits have none

    if case.axes is None:
        raise UsageError(
            f"--grid {case.grid} needs the axes of a model; add --axes flux (`ropeaudit list axes`)"
        )
    found = axial_presets.named(case.axes)
    if case.grid is None:
        example = "x".join({"t": "16", "h": "32", "w": "32"}[name] for name in found.axes)
        raise UsageError(f"--axes {case.axes} needs the size of a grid; add --grid {example}")
    for name in _SAID:
        if getattr(case, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} is said by --axes {case.axes}; leave it out, or give a .toml file of your own"
            )
    for name in _OF_A_SEQUENCE:
        if getattr(case, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --grid; leave one of them out")
    return found


def grid(case: Case) -> Grid | None:
    """Return the grid of a case, None for a sequence. Raises: see `preset`, and `grids.parse`."""
    found = preset(case)
    if found is None or case.grid is None:
        return None
    from ropeaudit.rope import grids

    return grids.parse(found, case.grid, case.axis, 1.0 if case.step is None else case.step)


def on_grid(grid: Grid, scale: float | None) -> RopeSetting:
    """Return the RoPE setting of a grid; scale: the softmax scale, 1/sqrt(head_dim) by default."""
    rope = grid.rope
    setting = RopeSetting.of(rope.head_dim, 2 * len(rope.pairs()), rope.base[0], rope.layout, scale)
    return replace(setting, grid=grid)


def check_grid(grid: Grid, qk: str, is_file: bool, offsets: Iterable[int]) -> None:
    """Raise UsageError for offsets that are too far, and for q and k that are made for a sequence."""
    for offset in offsets:
        grid.check(offset)
    if not is_file and qk not in KINDS:
        raise UsageError(
            f"--qk {qk} looks at a distance in a sequence; on a grid give one of: {', '.join(KINDS)}"
        )


def of_sequence(case: Case, setting: RopeSetting) -> Axes | None:
    """Return the position axes of M-RoPE, None for a single axis and on a grid. Raises: UsageError."""
    if setting.grid is not None:
        return None
    model = case.declared()
    result = sequence_axes.parse(case.mrope, case.axis) if case.mrope is not None else None
    if result is None and model is not None and model.axes is not None:
        shifted = sequence_axes.AXES if case.axis == "all" else tuple(case.axis)
        result = replace(model.axes, shifted=shifted)
    if result is None:
        if case.axis != "all":
            raise UsageError(f"--axis {case.axis} needs position axes; give --mrope 16,24,24 or a model")
        return None
    if sum(result.sections) != setting.pairs:
        raise UsageError(
            f"the position axes have {sum(result.sections)} pairs and the setting {setting.pairs}"
        )
    if setting.clipped and set(result.shifted) != set(sequence_axes.AXES):
        raise UsageError("--clip goes with --axis all: exact scores of one shifted axis are not defined")
    return result
