"""What is trusted: exact scores, bounds and limits, against numbers that were computed apart and stored."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

import ropeaudit
from net import trust
from ropeaudit.reference import exact_scores


def setting_of(row: Mapping[str, Any]) -> ropeaudit.RopeSetting:
    names = ("head_dim", "rotary_dim", "base", "layout", "scale")
    case = ropeaudit.Case(scaling=trust.text_of(row["scaling"]), **{name: row[name] for name in names})
    return case.setting(row["length"])


def reference(row: Mapping[str, Any], precision: exact_scores.Precision) -> list[tuple[mpf, float]]:
    """Return the reference's score of q at a distance from k, and its certificate, head by head."""
    setting, results = setting_of(row), []
    table = exact_scores.distance_table(np.array([float(row["distance"]), 0.0]), setting)
    at_q, at_k = (tuple(tuple(word[i : i + 1] for word in part) for part in table) for i in (0, 1))
    for q, k in np.array(trust.drawn(row["seed"], row["heads"], 2, row["head_dim"])):
        left = exact_scores.rotated(q[None], at_q, setting, precision, setting.scale)
        right = exact_scores.rotated(k[None], at_k, setting, precision)
        high, low = exact_scores.product(left, right)
        with mp.workdps(trust.DIGITS):
            rest = 0.0 if low is None else low[0, 0]
            results.append((mpf(high[0, 0]) + mpf(rest), exact_scores.certificate(left, right)))
    return results


@pytest.mark.parametrize(("precision", "most"), [("double", 1e-11), ("extended", 1e-17)])
def test_reference_scores_are_exact_within_their_certificate(
    precision: exact_scores.Precision, most: float
) -> None:
    rows, wrong = trust.scores(), []
    for row, stored in zip(rows, trust.stored()["scores"], strict=True):
        found = reference(row, precision)
        for head, ((score, error), exact) in enumerate(zip(found, stored, strict=True)):
            with mp.workdps(trust.DIGITS):
                off = abs(score - mpf(exact))
            if not off <= error <= most:
                wrong.append(f"{row}, head {head}: off by {mp.nstr(off, 3)}, certificate {error:.2g}")
    assert len(rows) == 60
    assert not wrong, "\n".join(wrong)


def test_what_is_stored_is_what_mpmath_computes() -> None:
    for row, stored in list(zip(trust.scores(), trust.stored()["scores"], strict=True))[::7]:
        assert trust.exact_scores(row) == stored


def test_bounds_hold_for_the_exact_drift(tmp_path: pathlib.Path) -> None:
    rows, wrong = trust.bounds(), []
    for row, exact in zip(rows, trust.stored()["bounds"], strict=True):
        q, k = (trust.drawn(row["seed"] + more, row["heads"], 6, row["head_dim"]) for more in (0, 1000))
        np.savez(tmp_path / "qk.npz", q=np.array(q), k=np.array(k))
        names = ("rotary_dim", "base", "layout", "scale")
        (record,) = ropeaudit.shift(
            row["offset"],
            row["dtype"],
            row["recipe"],
            changes=row["changes"],
            qk=str(tmp_path / "qk.npz"),
            mask="causal",
            threads=1,
            **{name: row[name] for name in names},
        )
        if not exact <= record.bound_max:
            wrong.append(f"{row}: the bound {record.bound_max:.4g} is below the exact drift {exact:.4g}")
        if "accumulate" in row["changes"] and record.drift_max != pytest.approx(exact, rel=1e-4):
            wrong.append(f"{row}: {record.drift_max!r} is measured, {exact!r} is exact")
    assert len(rows) == 40
    assert not wrong, "\n".join(wrong)


def held(row: Mapping[str, Any]) -> list[str]:
    """Return what `limit` says of a tolerance that brute force does not."""
    typed = f"{row['column']}={row['tolerance']!r}"
    (found,) = ropeaudit.limit(
        typed, row["dtype"], row["recipe"], up_to=trust.UP_TO - 1, budget=trust.UP_TO, **trust.LIMIT
    )
    wrong, first = [], row["first"]
    if found.first_failure != first:
        wrong.append(f"first failure {found.first_failure}")
    if (-1 if found.proved_up_to is None else found.proved_up_to) != first - 1:
        wrong.append(f"proved up to {found.proved_up_to}")
    return [f"{row}: {one}" for one in wrong]


def test_limits_are_those_of_brute_force() -> None:
    rows = trust.stored()["limits"]
    assert len(rows) == 12
    assert not [one for row in rows for one in held(row)]


@pytest.mark.slow
def test_brute_force_finds_what_is_stored() -> None:
    found = {}
    for recipe, dtype in trust.LIMITS:
        records = list(ropeaudit.shift(range(trust.UP_TO), dtype, recipe, **trust.LIMIT))
        for row in trust.stored()["limits"]:
            if (row["recipe"], row["dtype"]) == (recipe, dtype):
                values = [abs(getattr(record, row["column"])) for record in records]
                first = next(i for i, value in enumerate(values) if value > row["tolerance"])
                found[recipe, dtype, row["column"]] = (first, row["first"])
    assert len(found) == 12
    assert [key for key, (first, was) in found.items() if first != was] == []
