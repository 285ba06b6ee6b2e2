"""What a function, a class or a module takes: its arguments, and what each is by its name."""

from __future__ import annotations

import inspect
import itertools
import re
import tomllib
import typing
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ropeaudit import data
from ropeaudit.errors import UsageError

WRAP = "or fill in a wrapper, rotate(q, k, positions): ropeaudit check TARGET --write-wrapper FILE.py"


class NotUnderstood(UsageError):
    """What to give code is not known: a wrapper has to say it. place: file and line where calls raised."""

    place: tuple[str, int] = "", 0

    @classmethod
    def told(cls, seen: str, *lines: str) -> Self:
        """Return what was seen, with a line each for what is known, tried and to type."""
        return cls("\n   = ".join((seen, *lines, WRAP)))


_NAMES = tomllib.loads(data.text("arguments.toml"))
# names of how many tokens a sequence has with this one: its position + 1
LENGTHS = tuple(_NAMES["lengths"])
# what an argument is -> names by which it is recognised
ROLES: dict[str, tuple[str, ...]] = {role: tuple(names) for role, names in _NAMES["roles"].items()}
_GRID = {name: role for role, names in _NAMES["grid"].items() for name in names}
GRID = tuple(_NAMES["grid"])
AXES = "--axes NAME --grid HxW, or --mrope T,H,W"
FORWARD: dict[str, list[str]] = _NAMES["forward"]  # of a module
_ROLE = {name: role for role, names in ROLES.items() for name in names}
APPLIED: dict[str, list[str]] = _NAMES["applied"]  # of what rotates
# another name of a value of a config -> the name that it has here
CONFIG = {name: own for own, names in _NAMES["config"].items() for name in names}
BUILDING = tuple[str, ...](_NAMES["building"])
_ALWAYS = BUILDING[:6]
_HEADS = ("heads", "kv_heads")  # 1 where no width is taken
FLAGS = {"half_flag": "half", "interleaved_flag": "interleaved"}  # the layout that is meant by True
TABLES = ("cos", "cos_sin", "sin_cos", "freqs", "angles")  # one of them is a table, cos with sin
VECTORS = ("q", "k", "x", "qkv")
# what says where tokens stand
PLACING = (*TABLES, "positions", "offset", "row_offset", "totals", "cu_seqlens", *GRID)
FACTORY = "def make(head_dim, base, max_seq_len)"
LENGTH = 2**18  # positions of a module that needs a number; grown on demand
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameters:
    """A function's parameters without *args and **kwargs.

    roles: name -> what it is, None where that says nothing. needed: the names of those without a default.
    variadic, keywords: whether it may take more of them.
    """

    fixed: tuple[inspect.Parameter, ...]
    variadic: bool
    keywords: bool = False
    roles: dict[str, str | None] = field(init=False)
    needed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        roles: dict[str, str | None] = {}
        for one in self.fixed:
            name, patterns = one.name.lower(), _NAMES["patterns"].items()
            like = next((role for role, pattern in patterns if re.fullmatch(pattern, name)), None)
            roles[one.name] = "class" if only_class(one.annotation) else _ROLE.get(name) or like
        object.__setattr__(self, "roles", roles)
        object.__setattr__(self, "needed", tuple(one.name for one in self.fixed if one.default is one.empty))

    @classmethod
    def of(cls, function: Any) -> Self:
        """Return those of a function, a module's forward or a class; any if not known."""
        # an operator of torch, be it defined in Python or in C++, has a schema
        overload: Any = getattr(function, "_opoverload", None) or getattr(function, "default", function)
        schema = getattr(overload, "_schema", None) if type(overload).__module__ == "torch._ops" else None
        if type(overload).__name__ == "ScriptFunction":  # of torch.jit
            schema = overload.schema
        if schema is not None:
            one, fixed = inspect.Parameter, []
            for given in schema.arguments:
                kind = one.KEYWORD_ONLY if given.kwarg_only else one.POSITIONAL_OR_KEYWORD
                default = given.default_value if given.has_default_value() else one.empty
                fixed.append(one(given.name, kind, default=default))
            return cls(tuple(fixed), False)
        forward = getattr(function, "forward", None)
        if forward is not None and not inspect.isclass(function):
            function = forward
        try:
            every = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return cls((), True)
        more, keywords = (any(one.kind is kind for one in every) for kind in _VARIADIC)
        taken = cls(tuple(one for one in every if one.kind not in _VARIADIC), more, keywords)
        taken.roles.update(getattr(function, "ropeaudit_roles", {}))
        return taken

    def of_grid(self) -> list[str]:
        """Take for sizes of a grid what names say are such; return these."""
        found = {name: _GRID[name.lower()] for name in self.roles if name.lower() in _GRID}
        if "h" in found.values():
            found |= {name: "t" for name in self.roles if name.lower() == "t"}
        self.roles.update(found)
        return list(found)


def only_class(annotation: Any) -> Any:
    """Return the one class that can be built of those that `type[Base]` means; None if there is none."""
    of = typing.get_args(annotation) if typing.get_origin(annotation) is type else ()
    every = [one for base in of if inspect.isclass(base) for one in (base, *base.__subclasses__())]
    concrete = [one for one in every if not inspect.isabstract(one)]
    return concrete[0] if len(concrete) == 1 else None


def needed(function: Any) -> dict[str, str]:
    """Return the arguments without a default, with roles; empty if not known."""
    if function is None:
        return {}
    taken = Parameters.of(function)
    return {name: taken.roles[name] or "" for name in taken.needed}


def layered(function: Any) -> str:
    """Return the argument that is the layer type of frequencies; empty without one."""
    method = called_of(function) if inspect.isclass(function) else None
    roles = [Parameters.of(one).roles for one in (function, method) if one]
    return next((name for each in roles for name, role in each.items() if role == "layer_type"), "")


def called_of(cls: type[Any]) -> Any:
    """Return the method called of a class's instances; None if there is none."""
    return getattr(cls, "forward", None) or vars(cls).get("__call__")


def building(function: Any, scaled: bool = False) -> dict[str, str] | None:
    """Return keyword -> role for a class or factory whose needs are known; else None.

    scaled: whether the setting has a scaling, which is given wherever it is taken.
    """
    if not_for_building(function):
        return None
    taken = Parameters.of(function)
    given = (*_ALWAYS, "scaling", "rope_parameters") if scaled else _ALWAYS
    partial = "rotary_dim" in taken.roles or "fraction" in taken.roles.values()  # the other dim is a head's
    wide = {"width", "heads"} <= {*taken.roles.values()}
    given = (*given, "width", *_HEADS) if wide else given
    alone = {} if wide else {"width": "dim", **dict.fromkeys(_HEADS, "one")}
    own = {one: role for one, role in taken.roles.items() if role and (role in given or one in taken.needed)}
    return {
        name: "head_size" if role == "dim" and partial and name != "rotary_dim" else alone.get(role, role)
        for name, role in own.items()
        if role in (*BUILDING, *_HEADS)
    }


def not_for_building(function: Any) -> list[str]:
    """Return the needed arguments whose value in building is not known."""
    return [name for name, role in needed(function).items() if role not in (*BUILDING, *_HEADS)]


def of_several(name: str, function: Any) -> str:
    """Return what names say of several axes, and what to type; empty if nothing."""
    own = name.rpartition(":")[2]
    sizes = [own] if re.search(_NAMES["several"], own) else Parameters.of(function).of_grid()
    return f"{', '.join(sizes)} may speak of several axes: give {AXES}" if sizes else ""


def flag(function: Any) -> str | None:
    """Return the layout that a function's flag sets by default; None without one."""
    for one in (function, getattr(function, "forward", None)):
        for parameter in () if one is None else Parameters.of(one).fixed:
            layout = FLAGS.get(_ROLE.get(parameter.name.lower(), ""))
            if layout is not None:
                needed = parameter.default is parameter.empty
                if layout == "half" if needed else bool(parameter.default):
                    return layout
                return "interleaved" if layout == "half" else "half"
    return None


def makes_tables(thing: Any) -> bool:
    """Return whether a function or class returns tables of positions, by its arguments."""
    of_class = inspect.isclass(thing)
    method = vars(thing).get("__wrapped__") if of_class else None
    called = method or getattr(thing, "forward", None) if of_class else thing
    if not callable(called) or hasattr(thing, "backward"):  # a function of autograd
        return False
    taken = Parameters.of(called)
    roles = {role for name, role in taken.roles.items() if name != "self"}
    if roles & {"q", "k", "qkv", *TABLES, "sin"}:
        return False
    told = bool(roles & {"until", "positions"})
    if of_class:
        whole = {*_HEADS} & {*needed(thing).values()}  # attention projects x
        return building(thing) is not None and (told or (method is None and "x" in roles and not whole))
    made = told or ("length" in roles and is_factory(thing))
    return made and "x" not in roles and None not in map(taken.roles.get, taken.needed)


def is_factory(function: Any) -> bool:
    """Return whether a function takes no vectors, so must return one that does."""
    taken = Parameters.of(function)
    if taken.variadic or building(function) is None:
        return False
    return {*VECTORS, "positions"}.isdisjoint(taken.roles.values())


def place(thing: Any) -> tuple[str, int]:
    """Return file and line of code, or of an instance's class; "", 0 if not known."""
    try:
        found = inspect.unwrap(thing)
        found = found if isinstance(found, type) or inspect.isroutine(found) else type(found)
        lines, first = inspect.getsourcelines(found)
        decorators = itertools.takewhile(lambda line: line.lstrip().startswith("@"), lines)
        return inspect.getsourcefile(found) or "", first + len(list(decorators))
    except (OSError, TypeError, ValueError, AttributeError):
        return "", 0


def engine(function: Any) -> Literal["torch", "numpy", "jax"]:
    """Return what makes a function's arrays, by its annotations or imports."""
    called = getattr(function, "forward", function)
    annotations = " ".join(str(note) for note in getattr(called, "__annotations__", {}).values())
    names = getattr(inspect.unwrap(called), "__globals__", {})
    modules = {getattr(value, "__name__", "") for value in names.values() if inspect.ismodule(value)}
    roots = {module.partition(".")[0] for module in modules}
    if "Tensor" in annotations or "torch" in annotations:
        return "torch"
    arrays = any(word in annotations for word in ("ndarray", "NDArray", "numpy"))
    if arrays or ({"numpy", "jax"} & roots and "torch" not in roots):
        return "jax" if "jax" in roots else "numpy"
    return "torch"
