"""Read JSON that may be damaged or hostile, and take checked values out of it.

Every message says on one short line which key holds what, and what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ropeaudit.errors import BadInput

Config = Mapping[str, Any]

_LARGEST_FILE = 2**24  # bytes; configs are kilobytes
_LARGEST = 1e18  # of any number; keeps integers of a thousand digits from float() and str()


def load(path: str) -> Any:
    """Return what a JSON file, or the config.json in a folder, holds. Raises: BadInput."""
    try:
        data = _bytes(path)
    except OSError as error:
        raise BadInput(f"{path!r}: {error.strerror or error}; give a file that can be read") from None
    except ValueError as error:  # of a path that no file can have
        raise BadInput(f"{path!r}: {error}; give the path of a config.json") from None
    if len(data) > _LARGEST_FILE:
        raise BadInput(f"{path!r}: is larger than 16 MiB; give a config.json, which is a few kilobytes")
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique)
    except RecursionError:
        raise BadInput(f"{path!r}: is nested too deeply; give the config.json of a model") from None
    except BadInput as error:
        raise BadInput(f"{path!r}: {error}") from None
    except ValueError as error:
        raise BadInput(f"{path!r}: is not JSON in UTF-8: {str(error)[:100]}; give a config.json") from None


def _bytes(path: str) -> bytes:
    """At most one byte more than the largest file that is read."""
    file = Path(path)
    if file.is_dir():
        file /= "config.json"
        if not file.is_file():
            raise FileNotFoundError(0, "a folder without config.json")
    if not file.is_file():
        raise FileNotFoundError(0, "no such file")
    if file.stat().st_size > _LARGEST_FILE:
        return bytes(_LARGEST_FILE + 1)
    with file.open("rb") as stream:
        return stream.read(_LARGEST_FILE + 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadInput(f"the key {shown(key)} stands there twice in one object; keep one")
            seen.add(key)
    return found


def shown(value: Any) -> str:
    """Return a short text on one line for any value, be it a thousand digits or a hundred levels deep."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if value is None or isinstance(value, (bool, float)):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if abs(value) < _LARGEST else "an integer beyond 1e18"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def first(config: Config, keys: Iterable[str]) -> tuple[str, Any]:
    """Return the first of some spellings of a key that is given, and its value; else the first and None."""
    spellings = tuple(keys)
    return next(((key, config[key]) for key in spellings if config.get(key) is not None), (spellings[0], None))


def number(key: str, value: Any) -> float:
    """Return a JSON number as a float. Raises: BadInput for anything else, and beyond 1e18."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{key} = {shown(value)} is not a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise BadInput(f"{key} = {shown(value)} is not a finite number up to 1e18")
    return float(value)


def numbers(key: str, value: Any) -> float | tuple[float, ...]:
    """Return a JSON number or a list of them, no longer than any head has pairs. Raises: BadInput."""
    if not isinstance(value, (list, tuple)):
        return number(key, value)
    if len(value) > 2**15:
        raise BadInput(f"{key} is a list of {len(value)} elements; give one per pair")
    return tuple(number(f"{key}[{i}]", one) for i, one in enumerate(value))


def count(config: Config, keys: Iterable[str], largest: int = 2**16) -> int | None:
    """Return a positive integer under one of some spellings, or None. Raises: BadInput."""
    key, value = first(config, keys)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise BadInput(f"{key} = {shown(value)} is not an integer from 1 to {largest}")
    return value


def needed(config: Config, keys: Iterable[str], largest: int = 2**16) -> int:
    """Return a positive integer that has to be there. Raises: BadInput."""
    value = count(config, keys, largest)
    if value is None:
        raise BadInput(f"{first(config, keys)[0]} is missing, and its default is not in the file; add it there")
    return value


def flag(config: Config, key: str) -> bool | None:
    """Return true or false, or None where it is not given. Raises: BadInput."""
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadInput(f"{key} = {shown(value)} is not true or false")
    return value
