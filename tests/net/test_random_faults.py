"""Random faults are named, and right kernels are not: what a judge makes of kernels drawn from seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from net import random_faults
from net.random_faults import BATCH, FORMATS, LENGTH, MAKERS, Call, Case, Rope, case, cases
from ropeaudit import RopeSetting, parse
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.scaling import parse as scaling

TABLE = Path(__file__).parent / "random_faults.json"  # seed -> the codes that are named today, and a part


@dataclass
class Called:
    """A kernel called with arrays of NumPy: a `Rotator`."""

    kernel: Callable[..., Any]
    call: Call

    def rotate_both(self, q: NDArray[Any], k: NDArray[Any], at: NDArray[np.int64]) -> tuple[Any, Any]:
        positions, dtype = torch.from_numpy(np.ascontiguousarray(at)), FORMATS[self.call.dtype]
        given = [torch.tensor(x).to(dtype) for x in (q, k)]
        if self.call.style == "qk":
            rotated = self.kernel(*given, positions)
        else:
            rotated = [self.kernel(x, positions) for x in given]
        first, second = (x.to(torch.float64).numpy().astype(q.dtype) for x in rotated)
        return first, second


def judged(make: Callable[[], Callable[..., Any]], rope: Rope, call: Call) -> Places:
    """Return what the judge of a measurement says of a kernel, called by rows too where it takes those."""
    dtype, numbers = parse(call.dtype), np.random.default_rng(7)
    sizes = {"head_dim": rope.head_dim, "rotary_dim": rope.rotary_dim, "base": rope.base}
    setting = RopeSetting.of(**sizes, layout=rope.layout, scaling=scaling(rope.scaling_text()))  # type: ignore[arg-type]
    q, k = (numbers.standard_normal((count, LENGTH, rope.head_dim)) for count in (call.heads, call.kv_heads))
    vectors = verification.GivenVectors(q, k, np.arange(LENGTH), batch=BATCH)

    def new_rotator() -> Called:
        return Called(make(), call)

    given = new_rotator(), setting, dtype, vectors, call.offset
    rule = allowance.careful(dtype)
    return verification.check(*given, warm=True, by_batch=call.rows, new_rotator=new_rotator, rule=rule)


def said(places: Places) -> set[str] | None:
    """Return the codes of what is said; None where nothing is wrong, an empty set for nothing known."""
    if places.excess <= 1:
        return None
    if places.diagnosis is None:
        return set()
    equals = (places.diagnosis, *places.diagnosis.alternatives)
    return {part.code for one in equals for part in one.parts()} - {"unexplained"}


def codes(one: Case) -> list[str] | None:
    """Return the codes that explain a kernel; None where nothing is wrong, none for nothing known."""
    found = said(judged(one.make, one.rope, one.call))
    return None if found is None else sorted(found)


def named(one: Case, found: list[str] | None) -> bool:
    """Return whether each fault is named, alone or among others."""
    return found is not None and all(fault.codes & set(found) for fault in one.faults)


def stored() -> dict[int, dict[str, Any]]:
    return {int(seed): row for seed, row in json.loads(TABLE.read_text(encoding="utf-8")).items()}


PARTS = [
    "fast",
    pytest.param("slow", marks=pytest.mark.slow),
    pytest.param("exhaustive", marks=pytest.mark.exhaustive),
]


@pytest.mark.parametrize("part", PARTS)
def test_random_faults_are_named_as_they_were_or_right(part: str) -> None:
    wrong = []
    for seed, row in stored().items():
        if row["part"] == part:
            one = case(seed)
            found = codes(one)
            if found != row["codes"] and not named(one, found):
                wrong.append(f"{seed}: {one.words}: {row['codes']} was, {found} is ({one.call})")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_nineteen_in_twenty_faults_of_the_table_are_named() -> None:
    rows = stored()
    assert len(rows) == 200
    assert sum(named(case(seed), row["codes"]) for seed, row in rows.items()) >= 190
    assert all(row["codes"] is not None for row in rows.values())  # none passes


@pytest.mark.parametrize("count", [8, pytest.param(40, marks=pytest.mark.slow)])
def test_right_kernels_get_no_diagnosis(count: int) -> None:
    for one in map(random_faults.right_case, range(count)):
        places = judged(one.make, one.rope, one.call)
        assert places.excess <= 1, one
        assert said(places) is None


@pytest.mark.slow
def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for one in cases(200) for fault in one.faults}
    assert drawn == set(MAKERS)
