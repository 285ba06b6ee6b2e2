"""Which code of transformers a configuration class reaches: does it rotate q and k, or what has it instead.

Read from the source, not run: from the models whose `config:` is the class, through what their methods name,
through base classes and other modeling modules, and not into models of the class's parts.
"""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(next(iter(importlib.util.find_spec("transformers").submodule_search_locations)))  # type: ignore
ROTATES = re.compile("apply_(\\w*_)?(rotary|rope)|apply_rotary|[Rr]otaryEmb|Rope[A-Z]|RoPE")
INSTEAD = {
    "ALiBi": "alibi",
    "relative biases": "relative_(attention_bias|position)|rel_pos|RelPos|RelativePosition",
    "sinusoidal positions": "[sS]inusoid|sincos|SinePosition|sinusoids",
    "convolutional positions": "pos_conv_embed|PositionalConvEmbedding",
    "learned positions": "position_embed|wpe|pos_embed|Position(al)?Emb|embed_positions",
    "no positions": "[mM]amba|rwkv|Rwkv|xlstm|xLSTM",
}
_MODULES = re.compile(r"(modeling_\w+|vision|perceiver)\.py")
_UNFOLLOWED = {"_init_weights"}  # it names what may stand anywhere in a model


class Place(NamedTuple):
    """A class, function or value of a module."""

    module: tuple[str, ...]
    name: str


class _Module:
    def __init__(self, path: Path) -> None:
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, Place] = {}
        tree, package = ast.parse(path.read_text(encoding="utf-8")), path.parent.relative_to(ROOT).parts
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                origin = (
                    *package[: len(package) - node.level + 1],
                    *(node.module or "").split("."),
                )
                self.imports |= {one.asname or one.name: Place(origin, one.name) for one in node.names}
            elif isinstance(node, ast.ClassDef | ast.FunctionDef) and node in tree.body:
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign):
                named = [one.id for one in node.targets if isinstance(one, ast.Name)]
                self.definitions |= {name: node for name in named if node in tree.body}


@functools.cache
def _module(parts: tuple[str, ...]) -> _Module | None:
    path = ROOT.joinpath(*parts).with_suffix(".py") if parts else ROOT
    known = parts[:1] == ("models",) and _MODULES.fullmatch(path.name) and path.is_file()
    return _Module(path) if known else None


def _definition(place: Place) -> Place | None:
    """Return where a name is defined, through imports; None outside modeling modules."""
    while (held := _module(place.module)) is not None:
        if place.name in held.definitions:
            return place
        if place.name not in held.imports:
            return None
        place = held.imports[place.name]
    return None


def _node(place: Place) -> Any:
    return _module(place.module).definitions[place.name]  # type: ignore[union-attr]


@functools.cache
def _bases(place: Place) -> list[Place]:
    names = [one.id for one in getattr(_node(place), "bases", []) if isinstance(one, ast.Name)]
    return [found for name in names if (found := _definition(Place(place.module, name)))]


@functools.cache
def _configs(place: Place) -> frozenset[str]:
    """Return the configuration classes that a class is annotated with, or one of its bases."""
    node = _node(place)
    if not isinstance(node, ast.ClassDef):
        return frozenset()
    said = [one.annotation for one in node.body if isinstance(one, ast.AnnAssign)]
    said = [one for one in said if "Config" in ast.unparse(one)]
    for one in node.body if not said else []:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            said = [argument.annotation for argument in one.args.args if argument.annotation]
    found = re.findall(r"\w+Config\b", " ".join(map(ast.unparse, said)))
    return frozenset(found) or next((up for base in _bases(place) if (up := _configs(base))), frozenset())


@functools.cache
def _is_model(place: Place) -> bool:
    names = [one.id for one in getattr(_node(place), "bases", []) if isinstance(one, ast.Name)]
    return any(name.endswith("PreTrainedModel") for name in names) or any(map(_is_model, _bases(place)))


@functools.cache
def _named(place: Place) -> tuple[set[str], set[str]]:
    """Return the names, and all identifiers, of what a definition runs."""
    names, words, todo = set[str](), {place.name}, [_node(place)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            names.add(node.id)
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
        if isinstance(node, ast.FunctionDef) and node.name in _UNFOLLOWED:
            continue
        for field, value in ast.iter_fields(node):
            inner = value if isinstance(value, list) else [value]
            if field == "body" and isinstance(node, ast.ClassDef):
                inner = [one for one in inner if isinstance(one, ast.FunctionDef)]
            if field not in ("annotation", "returns", "decorator_list"):
                todo += [one for one in inner if isinstance(one, ast.AST)]
    return names, words | names


@functools.cache
def _places() -> tuple[dict[str, list[Place]], dict[str, list[Place]]]:
    """Return where classes are that are annotated with each configuration class, and those of each name."""
    configs: dict[str, list[Place]] = {}
    names: dict[str, list[Place]] = {}
    for path in sorted(ROOT.glob("models/*/*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        for name in held.definitions if (held := _module(parts)) else ():
            place = Place(parts, name)
            names.setdefault(name, []).append(place)
            for config in _configs(place):
                configs.setdefault(config, []).append(place)
    return configs, names


def reached(config: str, inner: set[str], model: str = "") -> set[str]:
    """Return the identifiers in the code of a configuration class.

    inner: the classes of its parts; model: the name of its model, where none is annotated with the class.
    """
    configs, names = _places()
    own = configs.get(config, [])
    todo = [*([one for one in own if _is_model(one)] or own or names.get(model, []))]
    seen, words = set(todo), set[str]()
    while todo:
        place = todo.pop()
        named, all_words = _named(place)
        words |= all_words
        for name in named:
            found = _definition(Place(place.module, name))
            if found and found not in seen and (config in _configs(found) or not inner & _configs(found)):
                seen.add(found)
                todo.append(found)
    return words


def rotates(words: set[str]) -> bool:
    """Return whether code that names these rotates."""
    return any(map(ROTATES.search, words))


def instead(words: set[str]) -> str:
    """Return what code that does not rotate has of positions."""
    fitting = (said for said, pattern in INSTEAD.items() if any(re.search(pattern, one) for one in words))
    return next(fitting, "no rotary code")
