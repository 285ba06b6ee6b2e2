"""Whether code is right for heads of other sizes, and where a part of their dims is rotated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ropeaudit.conformance.code_under_test import CodeUnderTest
from ropeaudit.conformance.finding import Finding, not_applicable, noted, of_worst_pair
from ropeaudit.conformance.whole_calls import given_vectors
from ropeaudit.errors import RopeAuditError, UsageError, one_line
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling import signatures

_DIMS, _QUARTERS = (64, 80, 96, 112, 128, 192, 256), (4, 1, 2, 3)  # rotary_dim in quarters of head_dim
_BY_PAIR = ("longrope", "explicit", "proportional")  # scalings with a number for each pair
_LENGTHS, _FIRSTS = (1, 64), (0, 1000)


def head_dims(code: CodeUnderTest) -> Iterator[Finding]:
    """Yield whether code is right for each head_dim and rotary_dim that models have.

    A part of the dims is rotated where code is told so: by tables, or by the number of dims. What raises is
    noted: it passes no wrong numbers on.
    """
    if not code.sizes:
        return
    if code.own is None or code.setting.scaling.kind in _BY_PAIR:
        why = "an adapter calls it" if code.own is None else "the scaling has a number for each pair"
        yield not_applicable("head dims", why)
        return
    worst: Places | None = None
    right, refused = list[str](), dict[str, list[str]]()
    for setting in _settings(code):
        sized = replace(code, setting=setting, up_to=min(code.up_to, _FIRSTS[-1] + _LENGTHS[-1]))
        name = f"{setting.rotary_dim} of {setting.head_dim}"
        try:
            places = _places(sized)
        except UsageError as error:
            refused.setdefault(one_line(error), []).append(name)
            continue
        except RopeAuditError:
            raise
        except Exception as error:  # whatever other people's code raises
            refused.setdefault(f"it raises {one_line(error)}", []).append(name)
            continue
        if not places.excess <= 1:
            where = f"{name} dims: {places.words}"
            yield _finding(places, f"{name} dims rotate; right before: {_listed(right)}", where)
            return
        right.append(name)
        worst = places if worst is None or places.excess > worst.excess else worst
    if worst is not None:
        yield _finding(worst, f"rotated dims of head_dim: {_listed(right)}", worst.words)
    for reason, names in refused.items():
        yield noted("head dims", f"{_listed(names)} dims are refused, and not judged: {reason}")


def _settings(code: CodeUnderTest) -> Iterator[RopeSetting]:
    own = code.own
    roles = set(own.fit(code.setting).convention.signature.roles) if own else set()
    built = signatures.building(own.thing) if own and own.has_instances else None
    told = bool(roles & {"dim", *signatures.TABLES}) or "dim" in (built or {}).values()
    for dims in _DIMS:
        for quarters in _QUARTERS if told else _QUARTERS[:1]:
            yield replace(code.setting, head_dim=dims, rotary_dim=dims * quarters // 4)


def _places(code: CodeUnderTest) -> Places:
    """Return the worst pair of a few calls. Raises: whatever the code raises; UsageError where none fits."""
    rotator, blocks = code.rotator(), list[CalledBlock]()
    for length in _LENGTHS:
        q, k = given_vectors(code, min(length, code.up_to))
        for first in _FIRSTS:
            at: Positions = np.arange(q.shape[2], dtype=np.int64) + min(first, code.up_to - q.shape[2])
            blocks.append(CalledBlock(at, (q, k), rotator.rotate_both(q, k, at)))
    return code.judged(rotator, blocks)


def _finding(places: Places, detail: str, where: str) -> Finding:
    return of_worst_pair("head dims", detail, places, where=where)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
