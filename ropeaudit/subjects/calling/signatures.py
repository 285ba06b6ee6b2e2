"""The parameters of a function, class or module: the role of each, by its name.

And the values with which classes are built: of a setting, default configs and usual sizes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import itertools
import math
import re
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self

from ropeaudit import data
from ropeaudit.arithmetic.formats import FP32, Format
from ropeaudit.errors import UsageError
from ropeaudit.rope.scaling import HF_NAMES
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import torch_arrays

WRAP = "or fill in a wrapper, rotate(q, k, positions): ropeaudit check TARGET --write-wrapper FILE.py"


class NotUnderstood(UsageError):
    """The arguments of code are not known: it needs a wrapper. place: file and line where calls raised."""

    place: tuple[str, int] = "", 0

    @classmethod
    def with_lines(cls, problem: str, *lines: str) -> Self:
        """Return the error for a problem, with a line each for what is known, tried and to be typed."""
        return cls("\n   = ".join((problem, *lines, WRAP)))


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

    roles: name -> role, None if unknown. needed: the names of those without a default. variadic, keywords:
    whether it has *args or **kwargs.
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
        """Return those of a function, a module's forward or a class; variadic if not known."""
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

    def take_grid_roles(self) -> list[str]:
        """Give arguments named like a grid's sizes these roles; return their names."""
        found = {name: _GRID[name.lower()] for name in self.roles if name.lower() in _GRID}
        if "h" in found.values():
            found |= {name: "t" for name in self.roles if name.lower() == "t"}
        self.roles.update(found)
        return list(found)


def only_class(annotation: Any) -> Any:
    """Return the one concrete class that fits `type[Base]`; None unless there is exactly one."""
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
    """Return the method by which a class's instances are called; None if there is none."""
    return getattr(cls, "forward", None) or vars(cls).get("__call__")


def building(function: Any, scaled: bool = False) -> dict[str, str] | None:
    """Return argument -> role to build a class or factory; None if a needed role is unknown.

    scaled: whether the setting has a scaling, which is passed wherever it is taken.
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
    """Return the needed arguments for which there is no value when building."""
    return [name for name, role in needed(function).items() if role not in (*BUILDING, *_HEADS)]


def several_axes_hint(name: str, function: Any) -> str:
    """Return a hint to state the position axes if names suggest several; else empty."""
    own = name.rpartition(":")[2]
    sizes = [own] if re.search(_NAMES["several"], own) else Parameters.of(function).take_grid_roles()
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
    """Return whether a function takes no vectors, so that it must return a function that does."""
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
    """Return the library of a function's arrays, by its annotations or imports."""
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


HEAD_DIM, BASE = 64, 10000.0  # for a class without a default
_AXES = (16, 24, 24)  # dims of time, height and width
AXIS_NAMES = ("axes_dim", "axes_dims", "rope_axes_dim", "rope_dim")


def possible_arguments(
    target: type[Any],
    given: Mapping[str, Any],
    length: int,
) -> Iterator[dict[str, Any]]:
    """Yield possible arguments of a class, one set for each config that fits."""
    rest = [name for name in needed(target) if name not in given]
    configs = [name for name in rest if name == "config" or name.endswith("_config")]
    known = {name: _usual(target, name, length) for name in rest if name not in configs}
    if None in known.values() or len(configs) > 1:
        return
    if not configs:
        yield {**known, **given}
    for name in configs:  # of annotated classes, of the file beside, then their parts
        built: list[Any] = []
        for cls in dict.fromkeys([*_annotated(target, name), *_beside(target)]):
            with contextlib.suppress(Exception):  # some need arguments
                built.append(cls())
        held = (value for config in built for value in vars(config).values())
        every = itertools.chain(built, (one for one in held if hasattr(one, "to_dict")))
        yield from ({name: config, **known, **given} for config in every)


def _usual(target: type[Any], name: str, length: int) -> Any:
    """Return a usual value of an argument, another class's default for it, or None."""
    usual = {"dim": HEAD_DIM, "base": BASE, "length": length}
    for role, value in usual.items():
        if name in ROLES[role] or (role, name) == ("dim", "attention_head_dim"):
            return value
    if name in AXIS_NAMES:
        return _AXES
    for other in vars(sys.modules[target.__module__]).values():
        if isinstance(other, type) and other.__module__ == target.__module__:
            parameter = inspect.signature(other).parameters.get(name)
            if parameter is not None and parameter.default not in (parameter.empty, None):
                return parameter.default
    return None


def _annotated(target: type[Any], name: str) -> list[type[Any]]:
    init: Any = getattr(target, "__init__")  # noqa: B009  # of the class, whatever its instances have
    try:
        hint = typing.get_type_hints(init).get(name)
    except Exception:  # a name that is imported for type checkers alone
        hint = vars(sys.modules[target.__module__]).get(str(init.__annotations__.get(name)).strip("'\""))
    return [one for one in (*typing.get_args(hint), hint) if isinstance(one, type) and one is not type(None)]


def _beside(target: type[Any]) -> list[type[Any]]:
    """Return the config classes of the configuration file beside a modeling file."""
    place, _, last = target.__module__.rpartition(".")
    if not last.startswith("modeling_"):
        return []
    name = f"{place}.{last.replace('modeling_', 'configuration_', 1)}"
    try:
        classes = [one for one in vars(importlib.import_module(name)).values() if isinstance(one, type)]
    except ImportError:
        return []
    own = [one for one in classes if one.__module__ == name and hasattr(one, "to_dict")]
    start = target.__name__.split("Rot")[0].split("RoPE")[0]
    return sorted(own, key=lambda cls: not cls.__name__.startswith(start))


class _Config(dict[str, Any]):
    """A config whose values are attributes and items, also by their other names."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if CONFIG.get(name) in self:
            return self[CONFIG[name]]
        raise AttributeError(f"the config has no {name!r}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Declaring(Protocol):
    """The attributes of `Code` that hold what the config of a model declares."""

    declared: int | None
    layers: Mapping[str, RopeSetting]
    served: int | None


_HEAD_COUNT = 4  # of a config: it matters to hidden_size, but not to RoPE


def value_of_role(
    role: str,
    setting: RopeSetting,
    target: Any = None,
    name: str = "",
    dtype: Format = FP32,
    engine: str = "torch",
    of: Declaring | None = None,
) -> Any:
    """Return the value of an argument that is no array. target: the class that is built.

    engine: whose dtypes it takes. of: code with a config.
    Raises: UsageError for a scaling that no config can express.
    """
    # with dynamic scaling, a config's largest position is the length before the extension
    before = setting.scaling.maximum if setting.scaling.kind == "dynamic" else None
    values: dict[str, Callable[[], Any]] = {
        "base": lambda: setting.base,
        "dim": lambda: setting.rotary_dim,
        "head_size": lambda: setting.head_dim,
        "width": lambda: _HEAD_COUNT * setting.head_dim,
        **dict.fromkeys(("heads", "kv_heads"), lambda: _HEAD_COUNT),
        "one": lambda: 1,
        "fraction": lambda: setting.rotary_dim / setting.head_dim,
        "length": lambda: int(before or (of and of.served) or LENGTH),
        "half_flag": lambda: setting.layout == "half",
        "interleaved_flag": lambda: setting.layout == "interleaved",
        "scaling": lambda: _scaling_dict(setting),
        "rope_parameters": lambda: _rope_parameters(setting),
        "config": lambda: _config(setting, target, name, of),
        "dtype": lambda: torch_arrays.dtype(dtype) if engine == "torch" else torch_arrays.numpy_dtype(dtype),
        "device": lambda: "cpu",
        "first_period": lambda: 2 * math.pi,
        "last_period": lambda: 2 * math.pi * setting.base ** (1 - 2 / setting.rotary_dim),
        "class": lambda: only_class(inspect.signature(target).parameters[name].annotation),
    }
    return values[role]()


def _scaling_dict(setting: RopeSetting) -> dict[str, Any] | None:
    """Return the scaling as Hugging Face configs spell it; None without scaling."""
    scaling = setting.scaling
    if scaling.kind == "default":
        return None
    if not scaling.rules.in_config:
        raise UsageError(f"scaling {scaling.kind} is in no config; give code that knows it by itself")
    values: dict[str, Any] = {"rope_type": scaling.kind}
    if scaling.kind != "llama3":  # newer than "rope_type": no config has it under "type"
        values["type"] = scaling.kind
    spelled = {ours: theirs for theirs, ours in HF_NAMES.items()}
    for key, value in scaling.parameters().items():
        if key != "maximum":  # it stands outside
            listed = list(value) if isinstance(value, tuple) else value
            values[spelled[key]] = int(value) if key == "original" else listed
    return values


def _rope_parameters(setting: RopeSetting) -> dict[str, Any]:
    """Return rope_parameters, as transformers has them from version 5 on."""
    values = {"rope_type": "default", "rope_theta": setting.base, **(_scaling_dict(setting) or {})}
    values.pop("type", None)
    if setting.rotary_dim != setting.head_dim:
        values.setdefault("partial_rotary_factor", setting.rotary_dim / setting.head_dim)
    return values


def _config(setting: RopeSetting, target: Any, name: str, of: Declaring | None) -> Any:
    """Return a config with this setting: of an annotated class, else a plain object."""
    scaling = setting.scaling
    original = {"original_max_position_embeddings": int(scaling.original)} if scaling.original else {}
    values: dict[str, Any] = {
        "hidden_size": _HEAD_COUNT * setting.head_dim,
        "num_attention_heads": _HEAD_COUNT,
        "num_key_value_heads": _HEAD_COUNT,
        "head_dim": setting.head_dim,
        "max_position_embeddings": int(scaling.maximum or (of and of.declared) or LENGTH),
        "rope_theta": setting.base,
        "rope_parameters": _rope_parameters(setting),
        "rope_scaling": _scaling_dict(setting),
        "partial_rotary_factor": setting.rotary_dim / setting.head_dim,
        **original,
    }
    if of and of.layers:
        values["layer_types"], values["num_hidden_layers"] = list(of.layers), len(of.layers)
        values["rope_parameters"] = {kind: _rope_parameters(one) for kind, one in of.layers.items()}
    usual = {"num_hidden_layers": 1, "vocab_size": 256, "dropout": 0.0, "bias": False}
    for cls in _annotated(target, name) if isinstance(target, type) else ():
        if hasattr(cls, "to_dict"):
            del values["partial_rotary_factor"]
            if hasattr(cls(), "rope_parameters"):  # from version 5 on
                del values["rope_scaling"]
            return cls(**values)
    return _Config(usual | values)


def is_module(thing: Any) -> bool:
    """Return whether it is an instance of torch.nn.Module, without importing torch."""
    torch: Any = sys.modules.get("torch")
    return hasattr(torch, "nn") and isinstance(thing, torch.nn.Module)


def initialised(thing: Any) -> Any:
    """Return a function that initialises and calls a module of flax; other things unchanged."""
    linen: Any = sys.modules.get("flax.linen")
    if linen is None or not isinstance(thing, linen.Module):
        return thing

    def called(*plain: Any, **named: Any) -> Any:
        return thing.init_with_output(sys.modules["jax"].random.key(0), *plain, **named)[0]

    return functools.wraps(thing.__call__)(called)


def can_be_copied(thing: Any) -> bool:
    """Return whether a deep copy shares no state; closures are not copied."""
    if inspect.isroutine(thing) or not hasattr(thing, "__dict__"):
        return False
    parts = thing.modules() if is_module(thing) else [thing]
    return not any(
        inspect.isfunction(value) and value.__closure__ for part in parts for value in vars(part).values()
    )


def copied(thing: Any) -> Any:
    """Return a deep copy, tensors by copy on write: 262,144 rows took 0.1 s a copy.

    Raises: whatever its parts raise that cannot be copied.
    """
    storages: dict[int, Any] = {}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "Tensor"):
        held = [vars(thing)] if hasattr(thing, "__dict__") else []
        for part in thing.modules() if is_module(thing) else ():
            held += [vars(part), part._buffers, part._parameters]
        for tensor in (one for values in held for one in values.values() if isinstance(one, torch.Tensor)):
            # sparse tensors, odd backends and an older torch have no lazy clone
            with contextlib.suppress(AttributeError, RuntimeError, NotImplementedError):
                lazy = torch._lazy_clone(tensor.detach()).untyped_storage()
                storages.setdefault(tensor.untyped_storage()._cdata, lazy)
    memo: dict[Any, Any] = {"torch": storages}  # where torch looks for copies
    return copy.deepcopy(thing, memo)
