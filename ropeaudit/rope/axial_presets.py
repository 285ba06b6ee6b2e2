"""Presets of position axes, from data/axes.toml or from a .toml file."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ropeaudit import data
from ropeaudit.errors import BadInput, RopeAuditError, UnknownName, UsageError, parser_reason
from ropeaudit.rope.axial import AxialRope

_PLAIN = ("head_dim", "arrangement", "factor", "layout", "heads", "head", "recipe", "summary", "source")
_KEYS = ("axes", "dims", "base", "positions", "start", "unit", "extent", "kv_heads", *_PLAIN)
_LARGEST_FILE = 2**16
_HINT = "give one table with axes, dims, base and head_dim, such as those of `ropeaudit list axes`"


def named(name: str) -> AxialRope:
    """Return the preset called `name`, or the only table of a .toml file. Raises: UnknownName, BadInput.

    >>> named("flux").dims
    (16, 56, 56)
    """
    library = _library()
    if name in library:
        return library[name]
    if not name.endswith(".toml"):
        raise UnknownName("axes", name, library, "(or a path that ends in .toml)")
    try:
        content = Path(name).read_bytes()
        if len(content) > _LARGEST_FILE:
            raise ValueError(f"it has more than {_LARGEST_FILE} bytes")
        tables = tomllib.loads(content.decode())
        if len(tables) != 1:
            raise ValueError(f"it has {len(tables)} tables and is to have one")
        [(own, table)] = tables.items()
        return replace(_rope(own, table), digest=f"sha256:{hashlib.sha256(content).hexdigest()[:12]}")
    except OSError as error:
        raise BadInput(f"axes {name!r} cannot be read: {error.strerror or error}") from None
    except RopeAuditError as error:
        raise BadInput(f"{name!r}: {error}") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise BadInput(f"axes {name!r}: {parser_reason(error)}; {_HINT}") from None


def all_presets() -> list[AxialRope]:
    """Return every preset, in the order of data/axes.toml."""
    return list(_library().values())


@functools.cache
def _library() -> dict[str, AxialRope]:
    return {name: _rope(name, table) for name, table in tomllib.loads(data.text("axes.toml")).items()}


def _rope(name: str, table: Mapping[str, Any]) -> AxialRope:
    for key in table:
        if key not in _KEYS:
            raise UnknownName(f"key of axes {name}", key, _KEYS)
    for key in ("axes", "dims", "head_dim"):
        if key not in table:
            raise UsageError(f"axes {name} lacks the key {key}; {_HINT}")
    axes = tuple(str(axis) for axis in table["axes"])

    def each(key: str, usual: Any) -> tuple[Any, ...]:
        given = table.get(key, usual)
        return tuple(given) if isinstance(given, list) else (given,) * len(axes)

    plain: dict[str, Any] = {key: table[key] for key in _PLAIN if key in table}
    if "factor" in plain:
        plain["factor"] = str(plain["factor"])
    return AxialRope(
        name=name,
        axes=axes,
        dims=tuple(int(d) for d in table["dims"]),
        base=tuple(float(one) for one in each("base", 10000)),
        positions=each("positions", "index"),
        start=tuple(map(_exact, each("start", 0))),
        unit=tuple(map(_exact, each("unit", 1))),
        extent=tuple(map(_exact, each("extent", 1))),
        kv_heads=table.get("kv_heads", table.get("heads", 8)),
        **plain,
    )


def _exact(value: Any) -> Fraction:
    """Return 3, 0.5 (the float64 number) or "8/25" exactly."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f'{value!r} is not a number or a fraction such as "8/25"')
    return Fraction(value)
