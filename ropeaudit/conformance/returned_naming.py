"""Which fault explains what a kernel wrote back at all offsets, where it cannot be called at others.

Code that is called is asked for further positions until faults that look alike differ. Here the other
offsets of the case decide: a fault is named only if it changes positions at the offsets that are wrong, and
at none of those that are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ropeaudit.conformance.vector_case import CaseSpec
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.faults import Fault, faults
from ropeaudit.recognition.verification import Places


def explained(placed: Mapping[int, Places], spec: CaseSpec) -> Diagnosis | None:
    """Return what explains the pairs that are out of place, by the offset that leaves fewest faults."""
    off = [offset for offset, one in placed.items() if not one.excess <= 1]
    found = {offset: _consistent(placed[offset].diagnosis, spec, off) for offset in off}
    named = {offset: one for offset, one in found.items() if one and one.explains}
    if not named:
        return next(iter(found.values()), None)
    best = min(named, key=lambda offset: len(named[offset].alternatives))
    worst = max(off, key=lambda offset: (placed[offset].excess, offset))
    known = named.get(worst)
    same = known is not None and (known.code, known.values) == (named[best].code, named[best].values)
    return named[best] if same else replace(named[best], where=replace(named[best].where, offset=best))


def _consistent(found: Diagnosis | None, spec: CaseSpec, off: list[int]) -> Diagnosis | None:
    """Return the faults that fit all offsets, of those that explain one; all where none does."""
    if found is None or found.also:
        return found
    known = {(one.diagnosis.code, *one.diagnosis.values.items()): one for one in faults(spec.setting)}
    equals = [replace(found, alternatives=()), *found.alternatives]
    fitting = [
        one
        for one in equals
        if (fault := known.get((one.code, *one.values.items()))) is None or _fits(fault, spec, off)
    ]
    return replace(fitting[0], where=found.where, alternatives=tuple(fitting[1:])) if fitting else found


def _fits(fault: Fault, spec: CaseSpec, off: list[int]) -> bool:
    """Return whether a fault changes positions, or frequencies, at just the offsets that are wrong."""
    if fault.turn or fault.setting(spec.setting) != spec.setting:
        return len(off) == len(spec.offsets)
    for offset in spec.offsets:
        at = np.arange(spec.seq_len, dtype=np.int64)[None] + offset
        if np.array_equal(fault.positions(at), at) == (offset in off):
            return False
    return True
