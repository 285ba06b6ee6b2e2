"""Which base and scaling frequencies or a table show; a guess says what values are, not that they are right.

Letters: n positions, p pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.recognition import faults, wording
from ropeaudit.recognition.check import TableFinding, check
from ropeaudit.recognition.solving import recovered
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.rope_values import Dump

_TRIED = 5  # bases that are checked, of either kind
_WINDOWS, _ROWS = 5, 4  # parts of a table, and the rows that each has at least
_NEAR = 0.01  # of the frequencies, relative
Guess: TypeAlias = tuple[TableFinding, str, RopeSetting]  # what is found, a scaling in words, the setting


def guessed(dump: Dump, of_base: Callable[[float], RopeSetting]) -> Guess | None:
    """Return what is found with a base that the values show; None where it explains nothing.

    of_base: the setting of a base. A scaling that explains values is named, and the setting is without it.
    """
    any_base = of_base(1e4)
    for theta in _frequencies(dump.folded(any_base.pairs)) if dump.fits(any_base.pairs) else ():
        faulty, scaled = list[Guess](), list[Guess]()
        for base in _bases(np.abs(theta), any_base):
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
        if faulty or scaled:
            return (faulty or scaled)[0]
    return None


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


def _frequencies(dump: Dump) -> Iterator[Array]:
    """Yield the frequencies (p,) that the values show: from the first row, then from most."""
    if dump.frequencies is not None:
        yield dump.frequencies
    elif dump.cos is not None and dump.sin is not None:
        points = dump.cos + 1j * dump.sin
        yield recovered(points)
        if len(points) >= _WINDOWS * _ROWS:
            parts = np.array_split(points[1:], _WINDOWS)
            yield np.median([recovered(part) for part in parts], axis=0)
