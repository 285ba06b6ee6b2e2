"""How a rotation may be called: which arguments a function takes, by their names or by their number.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ropeaudit.errors import UsageError

# what an argument is -> names by which it is recognised
ROLES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query", "query_states", "query_layer", "xq", "q_embed"),
    "k": ("k", "key", "key_states", "key_layer", "xk", "k_embed"),
    "x": ("x", "t", "tensor", "input", "inputs", "hidden_states", "states", "arr", "array", "x_in"),
    "positions": (
        *("positions", "position", "position_ids", "positions_ids", "pos", "pos_ids", "input_pos"),
        *("seq_pos", "token_positions", "input_positions", "idx"),
    ),
    "offset": ("offset", "start_pos", "start", "seqlen_offset", "seq_offset", "pos_offset"),
    "cos": ("cos", "cos_table", "cos_cached", "freqs_cos"),
    "sin": ("sin", "sin_table", "sin_cached", "freqs_sin"),
    "freqs": ("freqs_cis", "freq_cis", "freqs_complex"),
    "seq_dim": ("seq_dim", "seq_dimension", "sequence_dim"),
    "head_axis": ("unsqueeze_dim",),
    "base": ("base", "theta", "rope_theta", "rotary_base"),
    "dim": ("dim", "head_dim", "rotary_dim", "dims", "d_head", "d"),
    "length": ("max_seq_len", "max_position_embeddings", "max_len", "max_positions", "n_positions"),
}
_ROLE = {name: role for role, names in ROLES.items() for name in names}
_BUILDING = ("base", "dim", "length")
_POSITIONAL = ("cos", "freqs", "positions", "offset")  # what says where tokens stand: one of them
_EXTRA = ("seq_dim", "head_axis", "base")  # filled in wherever they are taken
# number of arguments -> what they may be, where their names say nothing
_BY_NUMBER = {
    2: (("x", "positions"), ("x", "freqs")),
    3: (("q", "k", "positions"), ("x", "cos", "sin"), ("q", "k", "freqs")),
    4: (("q", "k", "cos", "sin"),),
}
LENGTH = 2**18  # positions of a module that wants to know how many; grown where more are asked for


@dataclass(frozen=True, slots=True)
class Form:
    """One way to call: the role of each argument, with its keyword where it is passed by one."""

    arguments: tuple[tuple[str | None, str], ...]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in order."""
        return tuple(role for _, role in self.arguments)

    def __str__(self) -> str:
        return f"f({', '.join(name or role for name, role in self.arguments)})"


def forms(function: Any, name: str) -> list[Form]:
    """Return the ways in which a function may be called, likeliest first. Raises: UsageError."""
    parameters = _parameters(function)
    if parameters is None:
        return [_by_number(roles) for count in _BY_NUMBER for roles in _BY_NUMBER[count]]
    fixed = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    needed = [one for one in fixed if one.default is one.empty]
    results = [form] if (form := _by_name(fixed)) else []
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        counts = [count for count in _BY_NUMBER if count >= len(needed)]
    else:
        counts = [count for count in (len(needed), len(fixed)) if len(needed) <= count <= len(fixed)]
    if all(one.kind is not one.KEYWORD_ONLY for one in needed):
        results += [
            _by_number(roles) for count in dict.fromkeys(counts) for roles in _BY_NUMBER.get(count, ())
        ]
    if not results:
        names = ", ".join(one.name for one in needed) or "none"
        raise UsageError(
            f"{name} needs the arguments {names}; what to give it is not known: audit a wrapper "
            "f(x, positions), f(q, k, positions), f(x, cos, sin) or f(q, k, cos, sin)"
        )
    return list(dict.fromkeys(results))


def building(function: Any) -> dict[str, str] | None:
    """Return keyword -> role for a class or a factory that can be called by what is known; None otherwise."""
    parameters = _parameters(function)
    if parameters is None:
        return {}
    roles = {one.name: _ROLE.get(one.name.lower()) for one in parameters}
    needed = [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if any(roles[name] not in _BUILDING for name in needed):
        return None
    requested = {name: role for name, role in roles.items() if role in ("base", "dim") or name in needed}
    return {name: role for name, role in requested.items() if role is not None}


def is_factory(function: Any) -> bool:
    """Return whether a function takes no vectors, so that it must be one that returns what does."""
    parameters = _parameters(function)
    if parameters is None or building(function) is None:
        return False
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return False
    return not any(_ROLE.get(one.name.lower()) in ("q", "k", "x") for one in parameters)


def wants_numpy(function: Any) -> bool:
    """Return whether annotations, or what its module imports, speak of NumPy and not of torch."""
    called = getattr(function, "forward", function)
    message = " ".join(str(note) for note in getattr(called, "__annotations__", {}).values())
    if "Tensor" in message or "torch" in message:
        return False
    if "ndarray" in message or "NDArray" in message or "numpy" in message:
        return True
    space = getattr(inspect.unwrap(called), "__globals__", {})
    modules = {getattr(value, "__name__", "") for value in space.values() if inspect.ismodule(value)}
    roots = {module.partition(".")[0] for module in modules}
    return "numpy" in roots and "torch" not in roots


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function, of a module's forward, of a class's __init__; None if nobody knows."""
    forward = getattr(function, "forward", None)
    if forward is not None and not inspect.isclass(function):
        function = forward
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _by_number(roles: tuple[str, ...]) -> Form:
    return Form(tuple((None, role) for role in roles))


def _by_name(parameters: list[inspect.Parameter]) -> Form | None:
    """The form that the names of the arguments speak of; None if a needed one is not known."""
    roles = {one.name: _ROLE.get(one.name.lower()) for one in parameters}
    needed = {one.name for one in parameters if one.default is one.empty}
    if any(roles[name] is None for name in needed):
        return None
    there = [role for role in roles.values() if role]
    if not {"q", "x"} & set(there):
        return None
    stored = _where(roles, needed)
    if stored is None:
        return None
    taken = {"q", "k", "x", *stored, *_EXTRA} | {roles[name] for name in needed}
    chosen: dict[str, tuple[str | None, str]] = {}
    for one in parameters:
        role = roles[one.name]
        if role is None or role not in taken:
            continue
        chosen.setdefault(role, (None if one.kind is one.POSITIONAL_ONLY else one.name, role))
    return Form(tuple(chosen.values()))


def _where(roles: dict[str, str | None], needed: set[str]) -> tuple[str, ...] | None:
    """Which arguments say where tokens stand; those that are needed first, so that none shifts twice."""
    for names in (needed, set(roles)):
        there = {roles[name] for name in names}
        for role in _POSITIONAL:
            if role in there:
                return (role, "sin") if role == "cos" else (role,)
    return None


def described(tried: Iterator[tuple[Form, str]]) -> str:
    """Return what was tried and what became of it, in a line."""
    message: dict[str, str] = {}
    for form, reason in tried:
        message.setdefault(str(form), reason)
    return "; ".join(f"{form}: {reason}" for form, reason in list(message.items())[:4])
