"""From options to cases: the cross product of everything that takes a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ropeaudit.console.options import QKOptions, RopeOptions
from ropeaudit.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from ropeaudit.audits.cases import Case

_MOST_CASES = 100_000
# fields of a case that take lists, in the order in which cases come: the first changes last
_AXES = (
    *("qk", "seq_len", "model", "config", "layer", "scaling", "head_dim", "rotary_dim", "base", "clip"),
    *("layout", "mrope", "axes", "grid", "axis", "mask", "seed", "rerotate"),
)


def cases(rope: RopeOptions, vectors: QKOptions | None = None, **more: Any) -> list[Case]:
    """Return the cross product of all settings, in the order of `_AXES`.

    more: fields of `Case` that few commands have options for: tuples of those in `_AXES`, else values.
    Raises: UsageError, UnknownName, BadInput.
    """
    from itertools import product
    from math import prod

    from ropeaudit.audits.cases import Case, completed

    groups: list[RopeOptions | QKOptions] = [rope, vectors] if vectors else [rope]
    given = {option.name: getattr(group, option.name) for group in groups for option in fields(group)} | more
    lists: dict[str, Sequence[Any]] = {name: given.pop(name, ()) or (None,) for name in _AXES}
    count = prod(map(len, lists.values()))
    if count > _MOST_CASES:
        raise UsageError(f"these lists make {count} settings; at most {_MOST_CASES} are allowed: shorten one")
    single = {name: value for name, value in given.items() if value is not None}
    results = []
    for combination in product(*lists.values()):
        listed = zip(lists, combination, strict=True)
        own = completed({name: value for name, value in listed if value is not None})
        layer = own.pop("layer", None)
        case = Case(**own, **single)
        if layer not in (None, "all", *case.layers()) and case.declared() is not None:
            raise UnknownName("layer type", layer, case.layers(), "(or all)")
        for one in case.layers() if layer == "all" else [layer]:
            results.append(Case(**own, **single, layer=one) if one else case)
    return results
