"""How a rotation may be called: which arguments a function takes, by their names or by their number.

Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import inspect
import itertools
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from ropeaudit import data
from ropeaudit.errors import UsageError

WRAP = "or fill in a wrapper, rotate(q, k, positions): ropeaudit check TARGET --write-wrapper FILE.py"


class NotUnderstood(UsageError):
    """What to give code is not known: a wrapper has to say it."""

    @classmethod
    def told(cls, seen: str, *lines: str) -> Self:
        """Return what was seen, with a line each for what is known, what was tried and what to type."""
        return cls("\n   = ".join((seen, *lines, WRAP)))


_NAMES = tomllib.loads(data.text("arguments.toml"))
# names of how many tokens a sequence has with this one: its position + 1
LENGTHS = tuple(_NAMES["lengths"])
_OF_ROWS = ("seq_lens", "sequence_lengths")
# what an argument is -> names by which it is recognised
ROLES: dict[str, tuple[str, ...]] = {role: tuple(names) for role, names in _NAMES["roles"].items()}
FORWARD: dict[str, list[str]] = _NAMES["forward"]  # the same of a module's forward, beside some of these
_ROLE = {name: role for role, names in ROLES.items() for name in names}
# another name of a value of a config -> the name that it has here
CONFIG = {name: own for own, names in _NAMES["config"].items() for name in names}
BUILDING = (  # what an instance is built from; the first line wherever it is taken, the others where needed
    *("base", "dim", "head_size", "fraction", "half_flag", "interleaved_flag"),
    *("length", "scaling", "rope_parameters", "config", "dtype", "device"),
)
_ALWAYS = BUILDING[:6]
FLAGS = {"half_flag": "half", "interleaved_flag": "interleaved"}  # the layout that is meant by True
TABLES = ("cos", "cos_sin", "sin_cos", "freqs", "angles")  # one of them is a table, cos with sin
# what says where tokens stand
_PLACING = (*TABLES, "positions", "offset", "row_offset", "totals", "cu_seqlens")
OFFERED = {"offset": "offset", "start_pos": "offset", "past_len": "offset"}  # names that **kwargs may take
OFFERED |= dict.fromkeys(("position_ids", "positions", "cache_position"), "positions")
_VECTORS = ("q", "k", "x", "qkv")
_EXTRA = (  # filled in wherever they are taken
    *("seq_dim", "head_axis", "base", "heads", "kv_heads", "head_size", "max_seqlen", *FLAGS),
    *("row_offset", "padding", "cu_padded"),
)
# number of arguments -> what they may be, where their names say nothing
_BY_NUMBER = {
    1: (("x",),),
    2: (("x", "positions"), ("x", "freqs"), ("x", "angles"), ("positions", "x"), ("angles", "x")),
    3: (("q", "k", "positions"), ("x", "cos", "sin"), ("q", "k", "freqs")),
    4: (("q", "k", "cos", "sin"),),
}
FACTORY = "def make(head_dim, base, max_seq_len)"
LENGTH = 2**18  # positions of a module that needs a number; grown on demand


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call: the role of each argument, with its keyword where it is passed by one.

    doubtful: a name says otherwise, or nothing says where tokens stand, so that it is right or not meant.
    partial: beside tables it takes positions or an offset that are not given.
    keywords: where it takes **kwargs and names no positions, whether these are offered there or left out.
    """

    arguments: tuple[tuple[str | None, str], ...]
    doubtful: bool = False
    partial: bool = False
    keywords: Literal["", "offered", "left out"] = ""

    @property
    def counts(self) -> bool:
        """Whether it is given numbers of tokens in place of their positions."""
        return any(role == "positions" and name in LENGTHS for name, role in self.arguments)

    @property
    def of_rows(self) -> bool:
        """Whether these may be the tokens of rows without what is cached: no name speaks of a context."""
        return any(role == "positions" and name in _OF_ROWS for name, role in self.arguments)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, in order."""
        return tuple(role for _, role in self.arguments)

    @property
    def vectorless(self) -> bool:
        """Whether it takes no vectors, so that it may return cos and sin."""
        return not set(_VECTORS) & set(self.roles)

    @property
    def unplaced(self) -> bool:
        """Whether nothing says where tokens stand: the first is at position 0."""
        counted = not self.vectorless or "until" in self.roles
        return counted and not {*_PLACING, "sin"} & set(self.roles)

    @property
    def tables(self) -> tuple[str, ...]:
        """The roles of tables among them."""
        return tuple(role for role in self.roles if role in (*TABLES, "sin"))

    @property
    def whole(self) -> bool:
        """Whether tables hold all positions from 0, as other arguments pick some."""
        return bool(self.tables) and bool({"positions", "offset"} & set(self.roles))

    def called(self, role: str, otherwise: str, doubtful: bool = False) -> Signature:
        """Return the same with one role for another."""
        arguments = ((name, otherwise if one == role else one) for name, one in self.arguments)
        return replace(self, arguments=tuple(arguments), doubtful=doubtful)

    def __str__(self) -> str:
        return f"f({', '.join(name or role for name, role in self.arguments)})"


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A function's parameters without *args and **kwargs. variadic, keywords: it may take more of them."""

    fixed: tuple[inspect.Parameter, ...]
    variadic: bool
    keywords: bool = False

    @property
    def needed(self) -> list[inspect.Parameter]:
        """Those without a default."""
        return [parameter for parameter in self.fixed if parameter.default is parameter.empty]

    @property
    def roles(self) -> dict[str, str | None]:
        """Name -> role; None where the name says nothing."""
        return {parameter.name: _role(parameter.name.lower()) for parameter in self.fixed}


def _role(name: str) -> str | None:
    """Return what an argument is by its name; None where that says nothing."""
    like = (role for role, pattern in _NAMES["patterns"].items() if re.fullmatch(pattern, name))
    return _ROLE.get(name) or next(like, None)


def possible_signatures(function: Any, name: str) -> list[Signature]:
    """Return possible calls of a function, likeliest first. Raises: UsageError."""
    parameters = _parameters(function)
    numbered = [roles for count in _argument_counts(parameters) for roles in _BY_NUMBER.get(count, ())]
    placing = {"positions", "offset"} & set(parameters.roles.values())
    by_number = [
        Signature(
            tuple((None, role) for role in roles), len(roles) == 1, bool(placing and {*TABLES} & set(roles))
        )
        for roles in numbered
    ]
    named = _named_signatures(parameters)
    by_number = [] if any(one.keywords for one in named) else by_number
    likely = [*named, *(one for one in by_number if not _denied(one, parameters))]
    if not likely:
        needed = [parameter.name for parameter in parameters.needed]
        unknown = [one for one in needed if parameters.roles[one] is None] or needed or ["none"]
        known = ", ".join(one for one in needed if one not in unknown) or "none"
        raise NotUnderstood.told(
            f"nothing was checked: what to give {name} is not known",
            f"known: {known}; unknown: {', '.join(unknown)}",
            f"give a value: check --arg {unknown[0]}=VALUE; or name a factory: {FACTORY}",
        )
    return list(dict.fromkeys(likely))


def _denied(signature: Signature, parameters: _Parameters) -> bool:
    """Return whether a name says that an argument is positions where a signature gives it a table.

    Or lengths where it gives positions, or sines first where it gives another table: right code takes what it
    says, and wrong code must not be given what it takes instead. Or vectors, where they come last: they do so
    alone where the name of no argument is known.
    """
    lengths = [name.lower() in LENGTHS for name in parameters.roles]
    if any(role == "positions" and one for role, one in zip(signature.roles, lengths, strict=False)):
        return True
    roles = list(zip(signature.roles, parameters.roles.values(), strict=False))
    if signature.roles[0] not in _VECTORS and any(said for _, said in roles) and roles[0][1] != "positions":
        return True
    if any(
        said in ("until", "mask", "padding", "row_offset", "cu_padded")
        or (role in TABLES and said == "sin_cos")
        for role, said in roles
    ):
        return True
    return any(
        role in (*TABLES, "sin") and said in (*_VECTORS, "positions", "offset") for role, said in roles
    )


def needed(function: Any) -> dict[str, str]:
    """Return the arguments without a default, and the role of each; empty where it is not known."""
    if function is None:
        return {}
    parameters = _parameters(function)
    return {one.name: parameters.roles[one.name] or "" for one in parameters.needed}


def layered(function: Any) -> str:
    """Return the argument that is the type of a layer, by which frequencies differ; empty without one."""
    method = called_of(function) if inspect.isclass(function) else None
    roles = {name: role for one in (function, method) if one for name, role in _parameters(one).roles.items()}
    return next((name for name, role in roles.items() if role == "layer_type"), "")


def called_of(cls: type[Any]) -> Any:
    """Return the method of a class that is called of its instances; None where there is none."""
    return getattr(cls, "forward", None) or vars(cls).get("__call__")


def placing(function: Any) -> list[str]:
    """Return the names of arguments that say where tokens stand."""
    return [name for name, role in _parameters(function).roles.items() if role in _PLACING]


def building(function: Any, scaled: bool = False) -> dict[str, str] | None:
    """Return keyword -> role for a class or a factory that can be called by what is known; None otherwise.

    scaled: whether the setting has a scaling, which is given wherever it is taken.
    """
    if not_for_building(function):
        return None
    parameters = _parameters(function)
    roles, needed = parameters.roles, {parameter.name for parameter in parameters.needed}
    given = (*_ALWAYS, "scaling", "rope_parameters") if scaled else _ALWAYS
    partial = "rotary_dim" in roles or "fraction" in roles.values()  # the other dim is a head's
    return {
        name: "head_size" if role == "dim" and partial and name != "rotary_dim" else role
        for name, role in roles.items()
        if role in BUILDING and (role in given or name in needed)
    }


def not_for_building(function: Any) -> list[str]:
    """Return the needed arguments whose value in building is not known."""
    parameters = _parameters(function)
    return [one.name for one in parameters.needed if parameters.roles[one.name] not in BUILDING]


def flag(function: Any) -> str | None:
    """Return the layout that a function's flag sets by default; None without one."""
    for one in (function, getattr(function, "forward", None)):
        for parameter in () if one is None else _parameters(one).fixed:
            layout = FLAGS.get(_ROLE.get(parameter.name.lower(), ""))
            if layout is not None:
                needed = parameter.default is parameter.empty
                if layout == "half" if needed else bool(parameter.default):
                    return layout
                return "interleaved" if layout == "half" else "half"
    return None


def makes_tables(thing: Any) -> bool:
    """Return whether a function, or a class, returns tables of positions, as its arguments have it."""
    method = vars(thing).get("__wrapped__") if inspect.isclass(thing) else None
    called = method or getattr(thing, "forward", None) if inspect.isclass(thing) else thing
    if not callable(called) or hasattr(thing, "backward"):  # a function of autograd
        return False
    roles = {name: role for name, role in _parameters(called).roles.items() if name != "self"}
    needed = {one.name for one in _parameters(called).needed} - {"self"}
    told = {"until", "positions"} & set(roles.values())
    rotates = {"q", "k", "qkv", *TABLES, "sin"} & set(roles.values())
    if inspect.isclass(thing):
        whole = told or (method is None and "x" in roles.values())
        return bool(building(thing) is not None and not rotates and whole)
    return bool(told and not rotates and "x" not in roles.values() and None not in map(roles.get, needed))


def is_factory(function: Any) -> bool:
    """Return whether a function takes no vectors, so must return one that does."""
    parameters = _parameters(function)
    if parameters.variadic or building(function) is None:
        return False
    return {*_VECTORS, "positions"}.isdisjoint(parameters.roles.values())


def wants_jax(function: Any) -> bool:
    """Return whether it takes no tensors, and its module imports jax."""
    return "jax" in _roots(getattr(function, "forward", function)) and wants_numpy(function)


def place(thing: Any) -> tuple[str, int]:
    """Return the file and line where code, or the class of an instance, is defined; "", 0 if not known."""
    try:
        found = inspect.unwrap(thing)
        found = found if isinstance(found, type) or inspect.isroutine(found) else type(found)
        lines, first = inspect.getsourcelines(found)
        decorators = itertools.takewhile(lambda line: line.lstrip().startswith("@"), lines)
        return inspect.getsourcefile(found) or "", first + len(list(decorators))
    except (OSError, TypeError, ValueError, AttributeError):
        return "", 0


def wants_numpy(function: Any) -> bool:
    """Return whether annotations or imports name NumPy or jax, and not torch."""
    called = getattr(function, "forward", function)
    annotations = " ".join(str(note) for note in getattr(called, "__annotations__", {}).values())
    if "Tensor" in annotations or "torch" in annotations:
        return False
    if "ndarray" in annotations or "NDArray" in annotations or "numpy" in annotations:
        return True
    roots = _roots(called)
    return bool({"numpy", "jax"} & roots) and "torch" not in roots


def _roots(called: Any) -> set[str]:
    names = getattr(inspect.unwrap(called), "__globals__", {})
    modules = {getattr(value, "__name__", "") for value in names.values() if inspect.ismodule(value)}
    return {module.partition(".")[0] for module in modules}


def _parameters(function: Callable[..., Any]) -> _Parameters:
    """Return those of a function, a module's forward or a class; any if not known."""
    # an operator of torch, be it defined in Python or in C++, has a schema
    overload: Any = getattr(function, "_opoverload", None) or getattr(function, "default", function)
    schema = getattr(overload, "_schema", None) if type(overload).__module__ == "torch._ops" else None
    if type(overload).__name__ == "ScriptFunction":  # of torch.jit
        schema = overload.schema
    if schema is not None:
        return _Parameters(tuple(map(_parameter, schema.arguments)), False)
    forward = getattr(function, "forward", None)
    if forward is not None and not inspect.isclass(function):
        function = forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return _Parameters((), True)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    fixed = tuple(parameter for parameter in parameters if parameter.kind not in variadic)
    kinds = {parameter.kind for parameter in parameters}
    return _Parameters(fixed, variadic[0] in kinds, variadic[1] in kinds)


def _parameter(argument: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)


def _argument_counts(parameters: _Parameters) -> list[int]:
    """Return likely numbers of positional arguments, the likeliest first."""
    needed, fixed = parameters.needed, parameters.fixed
    if any(parameter.kind is parameter.KEYWORD_ONLY for parameter in needed):
        return []
    if parameters.variadic:
        return [count for count in _BY_NUMBER if count >= max(2, len(needed))]
    # a default of 0 or "half" is no place for an array
    arrays = [parameter for parameter in fixed if parameter in needed or parameter.default is None]
    return list(dict.fromkeys((len(needed), len(arrays))))


def _named_signatures(parameters: _Parameters) -> list[Signature]:
    """Return what the names of the arguments suggest, likeliest first; none if a needed one is not known.

    What is needed says where tokens stand; else one that may be given does, so that none shifts twice. Then
    with positions or lengths of sequences that may be given too; and a table of angles may be complex.
    """
    roles, needed = parameters.roles, {parameter.name for parameter in parameters.needed}
    if any(roles[name] is None for name in needed):
        return []
    present, wanted = set(roles.values()), {roles[name] for name in needed}
    first = wanted & set(_PLACING) or set([role for role in _PLACING if role in present][:1])
    if (not first and not wanted & {*_VECTORS, "until"}) or ("cos" in first and "sin" not in present):
        return []
    whole = set() if {"positions", "offset"} & first or not first & {*TABLES} else present
    sets = [first, *(first | {role} for role in ("positions", "offset") if role in whole)]
    sets += [placing | {"cu_seqlens"} for placing in list(sets) if "cu_seqlens" in present - first]
    results = []
    for placing in sets:
        taken = {*_VECTORS, *_EXTRA, *placing, *wanted} | ({"sin"} if "cos" in placing else set())
        taken -= set() if "cu_seqlens" in placing else {"max_seqlen", "cu_padded"} - wanted
        taken -= {"row_offset", "padding"} - wanted if {"positions", *TABLES} & placing else set()
        arguments: dict[str, tuple[str | None, str]] = {}
        for parameter in parameters.fixed:
            role = roles[parameter.name]
            if role is not None and role in taken:
                keyword = None if parameter.kind is parameter.POSITIONAL_ONLY else parameter.name
                arguments.setdefault(role, (keyword, role))
        partial = bool({"positions", "offset"} & whole) and not {"positions", "offset"} & placing
        results.append(Signature(tuple(arguments.values()), not placing, partial))
    others = [one.called("angles", "freqs") for one in results if one.tables]
    others += [one.called("seq_dim", "seq_dim_from_end") for one in results if "seq_dim" in one.roles]
    plain = [one for one in results if "positions" in one.roles and not one.tables and not one.counts]
    counted = [one for one in results if one.of_rows and not one.tables]  # or how many tokens a row has
    others += [one.called("positions", "lengths", doubtful=True) for one in counted]
    counted = [one for one in results if one.counts and not one.tables]  # or with what is cached
    others += [one.called("positions", "totals", doubtful=True) for one in counted]
    # some call angles positions, and mean no numbers of tokens
    others += [one.called("positions", "angles", doubtful=True) for one in plain]
    if not parameters.keywords or not all(one.unplaced for one in results) or {"mask", "padding"} & present:
        return [*results, *others]
    offered = [
        Signature((*one.arguments, (name, role)), keywords="offered")
        for one in results
        for name, role in OFFERED.items()
    ]
    return [*offered, *(replace(one, keywords="left out") for one in (*results, *others))]


def described(attempts: Iterator[tuple[Signature, str]]) -> list[str]:
    """Return what was tried and what became of it, a line each, of three at most."""
    first: dict[str, str] = {}
    for signature, reason in attempts:
        first.setdefault(str(signature), reason)
    reasons: dict[str, list[str]] = {}
    for called, reason in first.items():
        reasons.setdefault(reason, []).append(called)
    return [f"{', '.join(alike[:4])}: {reason}" for reason, alike in list(reasons.items())[:3]]
