"""The API takes what is stored in api.json, and refuses what is wrong by the errors that it documents.

`python -m tests.net.record api` stores anew; what is renamed, added or withdrawn may stand in renamed.toml.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from cases import table

import ropeaudit
from ropeaudit import testing
from ropeaudit.main import cli, main

from . import api
from .compare import Renamed

SMALL: dict[str, Any] = {"heads": 1, "seq_len": 16, "head_dim": 8}


def test_functions_options_and_errors_are_as_stored() -> None:
    renamed = Renamed.read()
    stored = {renamed.api.get(name, name): value for name, value in json.loads(api.PATH.read_text()).items()}
    now = api.found()
    added, withdrawn = renamed.added.get("api", ()), renamed.withdrawn.get("api", ())
    lost = [name for name in stored if name not in now and not among(name, withdrawn)]
    new = [name for name in now if name not in stored and not among(name, added)]
    changed = [
        f"{name}: {now[name]} instead of {value}"
        for name, value in stored.items()
        if name in now and now[name] != value
    ]
    found = [*(f"there is no {name}" for name in lost), *(f"{name} is new" for name in new), *changed]
    assert not found, "\n".join(found)


def among(name: str, patterns: Any) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def right(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    pairs = x.shape[-1] // 2
    theta = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = positions[:, None].double() * theta
    a, b = x.double().chunk(2, -1)
    turned = [a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()]
    return torch.cat(turned, -1).to(x.dtype)


def doubled(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return right(x, 2 * positions)


# What an error is caught as: one of a private class is the public one that it derives from.
PUBLIC = {getattr(ropeaudit, name) for name in ropeaudit.__all__} | {testing.NotShiftInvariant, Exception}
NOT_IN_TABLE: dict[str, tuple[Callable[[], Any], type[BaseException]]] = {
    "column": (
        lambda: ropeaudit.to_frame(ropeaudit.shift(0, "bf16", "hf", **SMALL), ["drift"]),
        ropeaudit.UnknownName,
    ),
    "drift": (
        lambda: testing.assert_shift_invariant(doubled, offsets=[0, 9], head_dim=8, whole=False),
        testing.NotShiftInvariant,
    ),
    "nothing to test": (testing.assert_shift_invariant, ropeaudit.UsageError),
    "no function": (lambda: testing.assert_rope(lambda: None), ropeaudit.UsageError),
}


def call(row: dict[str, Any], tmp: Path) -> None:
    """Make a call of refused_calls.toml."""
    given, named = row.get("given", []), row.get("named", {})
    given = [one.format(tmp=tmp) if isinstance(one, str) else one for one in given]
    named = {name: one.format(tmp=tmp) if isinstance(one, str) else one for name, one in named.items()}
    found = getattr(ropeaudit, row["call"])(*given, **named, **(SMALL if row.get("small") else {}))
    next(iter(found))


def test_what_is_wrong_is_refused_by_its_kind_of_error(tmp_path: Path) -> None:
    refused, found = dict(NOT_IN_TABLE), []
    for name, row in table(__file__, "refused_calls.toml").items():
        refused[name] = functools.partial(call, row, tmp_path), getattr(ropeaudit, row["error"])
    for name, (called, kind) in refused.items():
        try:
            called()
        except Exception as error:  # which kind it is, is what is held
            public = next(one for one in type(error).__mro__ if one in PUBLIC)
            if public is not kind:
                found.append(f"{name}: {public.__name__} instead of {kind.__name__}: {error}")
        else:
            found.append(f"{name}: nothing is raised instead of {kind.__name__}")
    assert not found, "\n".join(found)


def test_a_failure_has_the_codes_of_its_diagnosis() -> None:
    with pytest.raises(testing.WrongRope) as caught:
        testing.assert_rope(doubled, up_to=64, head_dim=8)
    assert type(caught.value) is testing.WrongRope
    assert caught.value.diagnosis == Renamed.read().value("diagnosis", "rotated-twice")
    assert caught.value.worst > 1


def test_right_code_passes() -> None:
    testing.assert_rope(right, up_to=64, head_dim=8)
    testing.assert_shift_invariant(right, offsets=[0, 9], head_dim=8, whole=False)


def test_every_error_of_ours_is_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a command raises, public errors end the command line with 2, a fault of ours with 3."""
    errors = [thing for name in ropeaudit.__all__ if is_error(thing := getattr(ropeaudit, name))]
    assert len(errors) >= 8
    command = cli.get_command(click.Context(cli), "decay")
    for error, code in [*((one, 2) for one in errors), (ZeroDivisionError, 3), (KeyboardInterrupt, 130)]:
        given = ("kind", "seen", ["known"]) if error is ropeaudit.UnknownName else ("fault",)

        def raises(*_: Any, **__: Any) -> None:
            raise error(*given)  # noqa: B023

        monkeypatch.setattr(command, "callback", raises)
        assert main(["decay"]) == code, error.__name__


def is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, ropeaudit.RopeAuditError)
