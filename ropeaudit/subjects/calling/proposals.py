"""Possible conventions of a function, likeliest first, by the names and number of its arguments.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ropeaudit import data
from ropeaudit.subjects.calling import shapes
from ropeaudit.subjects.calling.conventions import ROW_ROLES, Convention
from ropeaudit.subjects.calling.shapes import ORDERS
from ropeaudit.subjects.calling.signatures import (
    FACTORY,
    GRID,
    LENGTHS,
    PLACING,
    TABLES,
    VECTORS,
    NotUnderstood,
    Parameters,
    several_axes_hint,
)

_CALLS = data.table("calls.toml")
OFFERED: dict[str, str] = _CALLS["offered"]  # names that **kwargs may take
_BY_NUMBER = {int(number): some for number, some in _CALLS["number"].items()}
_OF_ROWS = ("seq_lens", "sequence_lengths")  # lengths that do not speak of a context
# what names say -> what a number of arguments must not take it for; None: anything
_DENIED: dict[str, tuple[str, ...] | None] = {
    **dict.fromkeys(("until", "mask", "padding", "row_offset", "cu_padded"), None),
    **dict.fromkeys((*VECTORS, "positions", "offset"), (*TABLES, "sin")),
    "sin_cos": TABLES,
}
HEADLESS = ("bshd", "bhsd", "sbhd", "thd")  # orders of q beside which k may have no axis of heads


def of_arguments(function: Any, name: str, grid: bool = False) -> list[Convention]:
    """Return the roles that a function's arguments may have, likeliest first. Raises: NotUnderstood.

    grid: whether tokens lie on a grid, whose sizes the function may take.
    """
    taken = Parameters.of(function)
    if grid:
        taken.take_grid_roles()
    named = list(_by_name(taken))
    likely = named if any(one.keywords for one in named) else [*named, *_by_number(taken)]
    if not likely:
        unknown = [one for one in taken.needed if taken.roles[one] in (None, "class")]
        unknown = unknown or list(taken.needed) or ["none"]
        known = ", ".join(one for one in taken.needed if one not in unknown) or "none"
        raise NotUnderstood.with_lines(
            f"nothing was checked: what to give {name} is not known",
            f"known: {known}; unknown: {', '.join(unknown)}",
            *filter(None, [several_axes_hint(name, function)]),
            f"give a value: check --arg {unknown[0]}=VALUE; or name a factory: {FACTORY}",
        )
    return list(dict.fromkeys(likely))


def _by_number(taken: Parameters) -> Iterator[Convention]:
    """Yield the usual roles of this number of arguments, unless a name contradicts them.

    It does: positions are no table, lengths no positions, sines no other table. Vectors stand last only
    where no argument's name is known.
    """
    needed = [one for one in taken.fixed if one.name in taken.needed]
    # a default of 0 or "half" is no place for an array
    arrays = [one for one in taken.fixed if one in needed or one.default is None]
    counts = list(dict.fromkeys((len(needed), len(arrays))))
    if any(one.kind is one.KEYWORD_ONLY for one in needed):
        counts = []
    elif taken.variadic:
        counts = [count for count in _BY_NUMBER if count >= max(2, len(needed))]
    for roles in itertools.chain.from_iterable(_BY_NUMBER.get(count, ()) for count in counts):
        said = list(zip(roles, taken.roles.items(), strict=False))
        last = roles[0] not in VECTORS and any(role for _, (_, role) in said) and said[0][1][1] != "positions"
        counted = any(role == "positions" and name.lower() in LENGTHS for role, (name, _) in said)
        denied = [(role, _DENIED[one]) for role, (_, one) in said if one in _DENIED]
        if not (last or counted or any(others is None or role in others for role, others in denied)):
            yield Convention(tuple((None, role) for role in roles), doubtful=len(roles) == 1)


def _by_name(taken: Parameters) -> Iterator[Convention]:
    """Yield the conventions that argument names suggest, likeliest first; none if a needed one is unknown.

    At first one argument places tokens, so that none shifts twice; then positions or lengths are added.
    """
    present, wanted = set(taken.roles.values()), {taken.roles[name] for name in taken.needed}
    first = wanted & set(PLACING) or set([role for role in PLACING if role in present][:1])
    if {None, "class"} & wanted or ("cos" in first and "sin" not in present):
        return
    if not first and not wanted & {*VECTORS, "until"}:
        return
    whole = {"positions", "offset"} & present if {*TABLES} & first else set()
    whole = set() if {"positions", "offset"} & first else whole
    sets = [first, *(first | {role} for role in ("positions", "offset") if role in whole)]
    sets += [placing | {"cu_seqlens"} for placing in list(sets) if "cu_seqlens" in present - first]
    results, others = list[Convention](), list[Convention]()
    for placing in sets:  # the call that places tokens by these roles
        roles = {*VECTORS, *_CALLS["extra"], *placing, *wanted}
        if "cos" in placing:
            roles.add("sin")
        if "cu_seqlens" not in placing:
            roles -= {"max_seqlen", "cu_padded"} - wanted
        if {"positions", *TABLES} & placing:
            roles -= {"row_offset", "padding"} - wanted
        said: dict[str, tuple[str | None, str]] = {}
        for given in taken.fixed:
            role = taken.roles[given.name]
            if role is not None and role in roles:
                name = None if given.kind is given.POSITIONAL_ONLY else given.name
                said.setdefault(role, (name, role))
        results.append(Convention(tuple(said.values()), doubtful=not placing))
    for (role, other, doubtful), one in itertools.product(_CALLS["otherwise"], results):
        names = [name for name, is_this in one.arguments if is_this == role]
        fits = {
            "lengths": set(names) & set(_OF_ROWS),
            "totals": one.takes_lengths,
            "angles": not one.takes_lengths,
        }
        if names and fits.get(other, True) and not (role == "positions" and one.tables):
            arguments = tuple(
                (name, other if is_this == role else is_this) for name, is_this in one.arguments
            )
            others.append(replace(one, arguments=arguments, doubtful=doubtful))
    told = any(not one.unplaced for one in results) or {"mask", "padding"} & present
    if not taken.keywords or told:
        yield from (*results, *others)
        return
    for one, (name, role) in itertools.product(results, OFFERED.items()):
        arguments = (*one.arguments, (name, role))
        yield replace(one, arguments=arguments, doubtful=False, keywords="offered")
    yield from (replace(one, keywords="left out") for one in (*results, *others))


def in_order(likely: Sequence[Convention], order: str | None, axes: bool) -> Iterator[Convention]:
    """Yield each convention with all orders of axes, ranks and widths; then rarer forms.

    order: the requested one. axes: whether positions have several axes, tried in each order.
    """
    orders = (order,) if order else None
    apart = tuple(one for one in orders or HEADLESS if one in HEADLESS)
    both = [one for one in likely if {"q", "k"} <= set(one.roles)]
    every = itertools.chain(
        (one for form in likely if not form.vectorless for one in of_form(form, orders)),
        (  # that return cos and sin
            replace(form, order=order, rank=rank, width=width, composed=True)
            for form in (one for one in likely if not one.tables)
            for order in orders or (("bhsd",) if form.vectorless else ("bhsd", "bshd", "hsd"))
            for rank, width in itertools.product((2, 1), _CALLS["widths"]["cos"])
        ),
        (replace(one, heads="q in groups") for form in both for one in of_form(form, apart[:3])),
        (replace(one, heads="k without h") for form in both for one in of_form(form, apart)),
    )
    for form in every:
        if not axes:
            yield form
        elif form.takes(*GRID):
            yield from (form, replace(form, blocks=True))
        elif form.takes("positions") and not form.tables:
            every_axes = ("abs", "bsa") if form.rank == 2 else ("as", "sa")
            for one, blocks in itertools.product(every_axes, (False, True)):
                yield replace(form, axes=one, blocks=blocks)


def of_form(form: Convention, orders: Iterable[str] | None) -> Iterator[Convention]:
    """Yield a convention with each order of axes, rank of positions and tables, and width."""
    packed, tokens = form.takes("qkv"), form.takes("cu_seqlens")
    tables = form.tables and not form.full_tables
    if orders is None and packed:
        orders = shapes.PACKED_TOKENS if tokens else shapes.PACKED
    elif orders is None:
        served = form.roles[0] == "positions" and not form.tables  # as in vLLM: tokens of all
        served_first = (*shapes.TOKENS, *(order for order in ORDERS if order not in shapes.TOKENS))
        orders = shapes.TOKENS if tokens else served_first if served else ORDERS
    widths = next((some for role, some in _CALLS["widths"].items() if form.takes(role)), ("pairs",))
    ranks: tuple[int, ...] = (1, 2) if form.takes("positions", "grid", *ROW_ROLES) else (1,)
    ranks = (1, 0, 2) if form.takes("offset") else ranks
    if tables:
        ranks = (1, 2, 3, 4) if tokens else (1, 2, 3)  # 4 as Megatron has them
    for order in orders:
        if form.unplaced and "t" in order:  # the first position of a sequence is not known
            continue
        for rank, width, back in itertools.product(
            ranks if order[0] != "t" or tables else (1,),
            widths,
            shapes.returned_orders(order) if packed else ("",),
        ):
            yield replace(form, order=order, rank=rank, width=width, back=back)
