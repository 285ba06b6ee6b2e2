"""Which fault explains what a kernel wrote back at all offsets, where it cannot be called at others.

Code that is called is asked for further positions until faults that look alike differ. Here the other
offsets of the case decide: a fault is named only if it changes positions at the offsets that are wrong, and
at none of those that are right.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ropeaudit.conformance.case_spec import CaseSpec
from ropeaudit.subjects.placement.faults import Fault, faults
from ropeaudit.subjects.placement.places import Places

_OR, _MORE = " or ", ("faults more", "fault more")


def resembles(placed: Mapping[int, Places], spec: CaseSpec) -> str:
    """Return what explains the pairs that are out of place, by the offset that leaves fewest faults."""
    off = [offset for offset, one in placed.items() if not one.excess <= 1]
    named = {offset: _consistent(placed[offset].resembles, spec, off) for offset in off}
    named = {offset: words for offset, words in named.items() if words}
    if not named:
        return ""
    best = min(named, key=lambda offset: (_open(named[offset]), named[offset].count(_OR)))
    worst = max(off, key=lambda offset: (placed[offset].excess, offset))
    return named[best] if named.get(worst) == named[best] else f"{named[best]} (at offset {best})"


def _open(words: str) -> bool:
    """Return whether faults were left out of a sentence for there being too many."""
    return words.endswith(_MORE)


def _consistent(words: str, spec: CaseSpec, off: list[int]) -> str:
    """Return the faults of a sentence that fit all offsets; the sentence as it is where none of them does."""
    known = {fault.text: fault for fault in faults(spec.setting)}
    names = words.split(_OR)
    fitting = [name for name in names if name not in known or _fits(known[name], spec, off)]
    return _OR.join(fitting) if any(not _open(name) for name in fitting) else words


def _fits(fault: Fault, spec: CaseSpec, off: list[int]) -> bool:
    """Return whether a fault changes positions, or frequencies, at just the offsets that are wrong."""
    if fault.setting != spec.setting:
        return len(off) == len(spec.offsets)
    for offset in spec.offsets:
        at = np.arange(spec.seq_len, dtype=np.int64) + offset
        if np.array_equal(fault.seen(at), at) == (offset in off):
            return False
    return True
