"""Adapters of third-party code: the settings that they take, and how they are called.

Most run the code in a table of `data/adapters.toml`. Helpers load single files or definitions of a package
whose import would be slow or fail.
Letters: h heads, s positions, d head_dim.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np

from ropeaudit.arithmetic.formats import Format
from ropeaudit.errors import UsageError
from ropeaudit.rope.scaling import HF_NAMES
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.code import Code
from ropeaudit.subjects.calling.conventions import Convention
from ropeaudit.subjects.calling.detection import Fit
from ropeaudit.subjects.calling.environments import of_torch
from ropeaudit.subjects.calling.own_code import OwnRotator
from ropeaudit.subjects.calling.shapes import runs
from ropeaudit.subjects.third_party import Entry

# x (h, s, d) and positions (s,), int64 -> (h, s, d): tensors, or arrays of NumPy
Turn: TypeAlias = Callable[[Any, Any], Any]
_ARGUMENTS = ((None, "x"), (None, "positions"))

LONGEST_TABLE = 2**21  # positions; a GiB at head_dim 128
_STEP = 2**14
_INT32 = 2**31


class Adapter(Code):
    """Code as its entry describes it, built and called in an environment."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.name, self.engine = entry, entry.name, entry.engine
        self.layouts = entry.layouts
        # what makes its arrays, whatever computes
        self.takes: Engine = "torch" if entry.engine == "torch" else "numpy"
        self.differentiable = self.takes == "torch"
        self.movable = entry.movable and self.differentiable

    def on(self, device: str | None) -> Self:
        """Place it on a device and return it. Raises: UsageError where that is impossible."""
        if device is not None and not self.movable and device.strip().lower() != "cpu":
            raise UsageError(f"--device {device}: {self.name} is called on the CPU alone; leave it out")
        self.device = of_torch(device)
        return self

    @property
    def version(self) -> str:
        """The version of its package."""
        return self.entry.version

    def refuses(self, setting: RopeSetting, dtype: Format) -> str:
        """Return why a setting, dtype or environment is refused; empty if none is."""
        if (kind := self.environment.kind) in ("compile", "to"):
            return f"{kind} takes your own code, FILE.py:NAME; an adapter calls this, with arrays of its own"
        if lacking := self.environment.lacking(self.engine, dtype, self.device.name):
            return lacking
        if self.entry.whole_base and setting.base != int(setting.base):
            return f"its base is a whole number, and {setting.base} is not"
        if dtype.name not in self.entry.dtypes:
            return f"it is audited in {', '.join(self.entry.dtypes)}"
        if setting.rotary_dim != setting.head_dim and not (self.entry.partial and setting.rotary_dim):
            return "it is audited over the whole head; leave out --rotary-dim"
        if setting.scaling.kind not in self.entry.scalings:
            return f"it is audited with the scaling {' or '.join(self.entry.scalings)}"
        return ""

    def rotator(self, setting: RopeSetting, dtype: Format) -> OwnRotator:
        """Return a rotator of a new instance, made for a dtype; it takes other dtypes too."""
        with self.environment.built():
            turn = self.environment.wrapped(self.instance(setting, dtype))
        convention = Convention(_ARGUMENTS, "hsd", self.takes, device=self.device)
        return OwnRotator(self, Fit(convention, setting.layout, False, 0.0, ()), setting, dtype, turn)

    @abstractmethod
    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return a new instance's function, made for a dtype; it takes others too."""


def table_end(largest: int, smallest: int) -> int:
    """Return the length of a table from position 0, in steps, so that few tables serve many calls.

    Raises: ValueError if it cannot be made.
    """
    if smallest < 0:
        raise ValueError(f"its table has no position {smallest}; positions go up from 0")
    if largest >= LONGEST_TABLE:
        raise ValueError(f"its table is built from 0; it is audited up to position {LONGEST_TABLE - 1}")
    return (largest // _STEP + 1) * _STEP


class Row(Adapter):
    """An adapter whose code stands in its table; it takes and returns tensors or NumPy arrays."""

    def __init__(self, entry: Entry) -> None:
        """Compile the code and run its imports. Raises: what these raise."""
        super().__init__(entry)
        file = f"adapters.toml:{entry.name}"
        linecache.cache[file] = len(entry.code), None, entry.code.splitlines(True), file  # for tracebacks
        tree = ast.parse(entry.code, file)
        self._code = compile(tree, file, "exec")
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(tree, file, "exec"), {})  # noqa: S102  # ours
        if self.engine == "keras":  # which computes with one of several
            self.engine = str(sys.modules["keras"].backend.backend())

    def instance(self, setting: RopeSetting, dtype: Format) -> Turn:
        """Return rotate(x, at); the code is executed once for each length of its table."""
        named, made = values(self.entry, setting, dtype), dict[int, Turn]()
        torch: Any = sys.modules["torch"] if self.takes == "torch" else None

        def new(end: int) -> Turn:
            space = {"__name__": f"adapters.{self.name}", **named, "end": end}
            exec(self._code, space)  # noqa: S102  # ours
            for name, value in space.items() if torch else ():
                if isinstance(value, torch.nn.Module):
                    space[name] = self.device.moved(value)
                elif isinstance(value, torch.Tensor):
                    space[name] = self.device.put(value)
            made[end] = space["rotate"]
            return made[end]

        def rotate(x: Any, at: Any) -> Any:
            if self.entry.int32:
                if abs(at).max(initial=0) >= _INT32:
                    raise ValueError("its positions are int32")
                at = at.astype(np.int32)
            end = table_end(int(at.max()), int(at.min())) if self.entry.table else 0
            turn, parts = made.get(end) or new(end), [slice(None)]
            if self.entry.runs:
                parts = [run for run, _ in runs(at.cpu().numpy() if torch else at)]
            rotated = [turn(x[:, part], at[part]) for part in parts]
            if torch:
                return torch.cat(rotated, dim=1) if len(rotated) > 1 else rotated[0]
            whole = np.concatenate([np.asarray(one) for one in rotated], axis=1)
            return whole.astype(np.float64 if x.dtype == np.float64 else np.float32)

        if not self.entry.table:
            new(0)  # in the environment in which instances are built
        return rotate


adapter = Row


def values(entry: Entry, setting: RopeSetting, dtype: Format) -> dict[str, Any]:
    """Return the values that the code uses by name, but for `end`, its table's length."""
    given = setting.scaling.parameters()
    rope = {name: given[own] for name, own in HF_NAMES.items() if own in given and own != "maximum"}
    if rope:
        rope["factor"] = setting.scaling.stretch
    named = {
        "head_dim": setting.head_dim,
        "rotary_dim": setting.rotary_dim,
        "base": setting.base,
        "half": setting.layout == "half",
        "stretch": setting.scaling.stretch,
        "maximum": int(rope.get("original_max_position_embeddings", 2048) * rope.get("factor", 1)),
        "rope_parameters": {"rope_type": setting.scaling.kind, "rope_theta": setting.base, **rope},
    }
    if entry.engine == "torch":
        from ropeaudit.subjects import torch_arrays

        named["dtype"] = torch_arrays.dtype(dtype)
    return named


def snippet(entry: Entry, setting: RopeSetting, dtype: Format, end: int) -> str:
    """Return the lines of an entry, with values in place of names."""
    named = values(entry, setting, dtype) | {"end": end}
    pattern = rf"(?<![.\w\"])({'|'.join(named)})(?![\w=])"  # no attribute, no keyword and no text
    return re.sub(pattern, lambda found: repr(named[found[1]]), entry.snippet)


def file_of_package(package: str, place: str) -> Path:
    """Return the path of a package's file, without executing it. Raises: FileNotFoundError."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (result := Path(folder, place)).is_file():
            return result
    raise FileNotFoundError(f"{package} has no file {place}")


def module(package: str, place: str) -> Any:
    """Return a package's file, executed alone. Raises: FileNotFoundError, and its own errors."""
    name = f"_ropeaudit_{package}_{Path(place).stem}"
    spec = importlib.util.spec_from_file_location(name, file_of_package(package, place))
    assert spec is not None  # noqa: S101  # of a .py file
    assert spec.loader is not None  # noqa: S101
    result = importlib.util.module_from_spec(spec)
    sys.modules[name] = result  # dataclasses look their module up
    spec.loader.exec_module(result)
    return result


def definitions(
    package: str,
    place: str,
    names: Sequence[str],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Execute some definitions of a file with values for its imports; return the namespace.

    A class loses its decorators, and bases for which no value is given.
    Raises: FileNotFoundError; LookupError without a name; what definitions raise.
    """
    where = file_of_package(package, place)
    body: list[ast.stmt] = []
    for node in ast.parse(where.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            if isinstance(node, ast.ClassDef):
                node.bases = [one for one in node.bases if ast.unparse(one).split(".")[0] in given]
                node.decorator_list, node.keywords = [], []
            body.append(node)
    missing = set(names) - {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if missing:
        raise LookupError(f"{place} of {package} defines no {' and no '.join(sorted(missing))}")
    return executed(body, str(where), {"__name__": f"_ropeaudit_{package}", **given})


def executed(body: Sequence[ast.stmt], file: str, space: dict[str, Any]) -> dict[str, Any]:
    """Execute statements of a file as an import would; return the namespace."""
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *body], type_ignores=[]), file, "exec"), space)  # noqa: S102
    return space


def definition(package: str, place: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return one of the definitions of a file. Raises: see `definitions`."""
    return definitions(package, place, [name], given)[name]


def bare(package: str, place: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return an instance made without __init__, which would need the whole package."""
    cls = definition(package, place, name, given)
    return cls.__new__(cls)
