"""Parts of a package loaded without importing it: a file, or definitions of one."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def path(package: str, place: str) -> Path:
    """Return the path of a package's file, without executing it. Raises: FileNotFoundError."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (result := Path(folder, place)).is_file():
            return result
    raise FileNotFoundError(f"{package} has no file {place}")


def module(package: str, place: str) -> Any:
    """Return a package's file, executed alone. Raises: FileNotFoundError, and its own errors."""
    name = f"_ropeaudit_{package}_{Path(place).stem}"
    spec = importlib.util.spec_from_file_location(name, path(package, place))
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
    """Return definitions of a file by name, executed with values for its imports.

    Of a class only what is defined in its body is left; its bases and decorators are dropped.
    Raises: FileNotFoundError; LookupError without a name; what definitions raise.
    """
    where = path(package, place)
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
    """Return the namespace after statements of a file, executed as an import would."""
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, *body], type_ignores=[]), file, "exec"), space)  # noqa: S102
    return space


def definition(package: str, place: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return one of the definitions of a file. Raises: see `definitions`."""
    return definitions(package, place, [name], given)[name]


def bare(package: str, place: str, name: str, given: Mapping[str, Any]) -> Any:
    """Return an instance without calling __init__, which needs the whole package."""
    cls = definition(package, place, name, given)
    return cls.__new__(cls)
