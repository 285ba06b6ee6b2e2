"""What dumped frequencies or tables say by themselves: the base they show, and what they do to scores.

Letters: n positions, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.recognition import faults, wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.solving import recovered
from ropeaudit.reference.exact_scores import distance_table
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

NEAR, FAR = 256, 131072  # tokens: a short sequence's length, and a long distance
_TRIED = 5  # bases that are checked, of either kind
_NEAR = 0.01  # of the frequencies, relative
Guess: TypeAlias = tuple[TableFinding, str, RopeSetting]  # what is found, a scaling in words, the setting


def guessed(dump: Dump, of_base: Callable[[float], RopeSetting]) -> Guess | None:
    """Return what is found with a base that the values show; None where it explains nothing.

    A guess says what values are, not that they are right. of_base: the setting of a base. A scaling that
    explains values is named, and the setting is without it.
    """
    any_base = of_base(1e4)
    theta = _frequencies(dump.folded(any_base.pairs)) if dump.fits(any_base.pairs) else None
    faulty, scaled = list[Guess](), list[Guess]()
    for base in _bases(np.abs(theta), any_base) if theta is not None else ():
        setting = of_base(base)
        finding = check(dump, setting)
        best = finding.best
        if finding.agrees:
            return finding, "", setting
        if best and (best.explains or best.few) and not best.another_setting:
            faulty.append((finding, "", setting))
        elif best and best.explains:
            other = wording.sentence(best.diagnosis)
            if best.setting is not None and best.setting.scaling.kind not in ("default", "explicit"):
                other = f"scaling {faults.called(best.setting.scaling)}"
            scaled.append((finding, other, setting))
    return next(iter(faulty + scaled), None)


def _bases(theta: Array, setting: RopeSetting) -> list[float]:
    """Return bases near frequencies (p,): published ones, then fitted ones."""
    exponents = 2.0 * np.arange(setting.pairs) / setting.rotary_dim
    with np.errstate(all="ignore"):
        theta = theta / theta[0] if 1.5 * theta[0] < 1 else theta  # linear scaling divides all of them
        shown = faults.bases_shown(theta, exponents)
    rounded = [float(f"{base:.{digits}e}") for digits in (0, 1, 2, 4, 6) for base in shown]
    usable = (exponents > 0) & (theta > 0)
    logs, weights = np.log(theta[usable]), exponents[usable]
    tried = [base for base in dict.fromkeys((*faults.BASES, *rounded)) if shown and 1 < base < 1e40]
    missed = {base: float(np.median(np.abs(math.log(base) * weights + logs))) for base in tried}
    near = [base for base in tried if missed[base] <= max(_NEAR, 2 * min(missed.values()))]
    fast = [base for base in rounded[1::4] if base > 1 and base not in near]
    return [*near[:_TRIED], *fast[:_TRIED]]  # a scaling leaves the fast ones alone


def _frequencies(dump: Dump) -> Array | None:
    """Return the frequencies (p,) that the values show, from the first row on."""
    if dump.cos is None or dump.sin is None:
        return dump.frequencies
    return recovered(dump.cos + 1j * dump.sin)


def drifts(dump: Dump, setting: RopeSetting, far: int = FAR) -> tuple[float | None, float | None]:
    """Return the drift over `NEAR` causal tokens, and at a distance of `far`; None where there are no rows.

    For independent Gaussian q and k, a pair rotated by the points of a table instead of the exact ones adds
    |their difference|² to the mean square, and every other dim nothing. Without rounding of q, k.
    """
    factor = attention_factor(setting.scaling)  # once in the table of q and once in that of k
    if dump.cos is not None and dump.sin is not None:  # a table has no further rows
        rows = min(NEAR, len(dump.cos))
        at, points = np.arange(rows), (dump.cos + 1j * dump.sin)[:rows]
    else:
        rows, at = NEAR, np.append(np.arange(NEAR), far)
        with np.errstate(invalid="ignore", over="ignore"):  # what is stored may be inf, and then it is nan
            points = factor * np.exp(1j * np.mod(at[:, None] * np.asarray(dump.frequencies), 2 * np.pi))
    cos, sin = distance_table(at.astype(np.float64), setting)
    exact = cos[0] + 1j * sin[0]

    def squares(row: int, since: int) -> Any:
        """Return those of what scores of a row with the rows before it are off by."""
        pairs = points[row] * np.conj(points[:since]) - exact[row] * np.conj(exact[:since])
        return np.sum(np.abs(pairs) ** 2)

    def drift(total: Any, count: float) -> float:
        """Return the root of a mean over pairs of rows, relative to that of exact scores, with all dims."""
        share = setting.rotary_dim / setting.head_dim
        mean = total / count / setting.pairs * share
        return float(np.sqrt(mean / (factor**4 * share + (1 - share))))

    near = sum(squares(m, m + 1) for m in range(rows))  # each distance as often as in a causal sequence
    return (
        drift(near, rows * (rows + 1) / 2) if rows > 1 else None,
        drift(squares(NEAR, 1), 1) if at.size > rows else None,
    )
