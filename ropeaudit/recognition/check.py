"""What is wrong with a dumped inv_freq or cos/sin table: which pairs are off, and what explains it.

A hypothesis predicts the dump from a setting that is wrong in one way, and casts on the way. It explains the
dump if nothing is left but float32 rounding (`tolerance`) and the half ulp of its casts; the simplest
that does comes first, then those that explain all but a few pairs.
Letters: p pairs, n positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import Format
from ropeaudit.recognition import hypotheses
from ropeaudit.recognition.hypotheses import Hypothesis
from ropeaudit.recognition.stored_table import CosSinTable
from ropeaudit.recognition.variants import Variant, variants
from ropeaudit.reference import exact_frequencies
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.tensor_files.tables import Dump

_SHOWN = 5, 3  # hypotheses listed, those that explain and those that do not
_NEAR = 0.5  # a hypothesis is called near if it leaves at most this share of the error
_LISTED = 4  # pairs that are named
_AGREES = "within float32 rounding"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A row a pair, the hypotheses (best first; none where the dump agrees), the finding in a sentence."""

    agrees: bool
    rows: list[dict[str, Any]]
    hypotheses: list[Hypothesis]
    headline: str

    @property
    def best(self) -> Hypothesis | None:
        """The first hypothesis, if there is any."""
        return next(iter(self.hypotheses), None)

    @property
    def preference(self) -> tuple[bool, tuple[tuple[int, float, float], ...]]:
        """What sorts diagnoses of a dump: those that agree first, then by what explains them best."""
        return not self.agrees, () if self.best is None else (self.best.rank,)


def check(dump: Dump, setting: RopeSetting, label: str = "") -> Diagnosis:
    """Return how a dump differs from the exact table of a setting, and what explains the difference.

    Raises: BadInput if the dump has not one column (or two) for each pair of the setting.
    """
    dump = dump.folded(setting.pairs)
    exact = np.array([float(theta) for theta in exact_frequencies.frequencies(setting)])
    work = FrequencyList(dump, setting, exact) if dump.cos is None else CosSinTable(dump, setting, exact)
    with np.errstate(all="ignore"):
        rows = [{"setting": label, **row} for row in work.rows()]
        tried = list(work.hypotheses()) if work.off.any() and np.isfinite(work.values).all() else []
        ranked = sorted(tried, key=lambda hypothesis: hypothesis.rank)
    right = [h for h in ranked if h.explains][: _SHOWN[0]]
    rest = [h for h in ranked if not h.explains and (h.few or not h.expected)][: _SHOWN[1]]
    without = min((h.residual for h in ranked if h.expected), default=0.0)
    return Diagnosis(
        not work.off.any(), rows, right + rest, _headline(dump.name, work, rows, right + rest, without)
    )


def _headline(
    name: str,
    work: FrequencyList | CosSinTable,
    rows: list[dict[str, Any]],
    ranked: Sequence[Hypothesis],
    without: float,
) -> str:
    """Return the finding in a sentence. without: the RMS error that is left without any hypothesis."""
    nonfinite = int(work.values.size - np.isfinite(work.values).sum())
    if nonfinite:
        return f"{name} holds {nonfinite} nan or infinite values of {work.values.size}."
    worst = max(rows, key=lambda row: abs(row[work.size]))
    size = f"{abs(worst[work.size]):.2g} {work.unit}"
    off = int(work.off.sum())
    if not off:
        return f"{name} agrees {_AGREES} (worst: pair {worst['pair']}, {size})."
    much = f"{off} of {len(rows)} pairs {'is' if off == 1 else 'are'} off, by up to {size}"
    if ranked and ranked[0].explains:
        return f"{ranked[0].text} ({much})."
    if ranked and ranked[0].few:
        return _strays(work, rows, ranked[0])
    left = f"{much} (pair {worst['pair']}); nothing that was tried explains it"
    if ranked and ranked[0].residual <= _NEAR * without:
        share = ranked[0].residual / without
        return f"{left}, and the nearest is: {ranked[0].text}, which leaves {100 * share:.2g} % of the error."
    return f"{left}, nor comes near."


def _strays(work: FrequencyList | CosSinTable, rows: list[dict[str, Any]], best: Hypothesis) -> str:
    """Return which pairs are off where the rest is explained."""
    count, total = len(best.strays), len(rows)
    listed = ", ".join(_stray(work, rows[pair]) for pair in best.strays[:_LISTED])
    more = f" and {count - _LISTED} more" if count > _LISTED else ""
    begin = f"{count} of {total} {work.things} {'is' if count == 1 else 'are'} off: {listed}{more}"
    rest = f"the rest agrees {_AGREES}" if best.expected else f"the rest as if {best.text}"
    if best.meant:
        rest = f"of the rest, {best.text}"
    return f"{begin}; nothing that was tried explains {'it' if count == 1 else 'them'}; {rest}."


def _stray(work: FrequencyList | CosSinTable, row: dict[str, Any]) -> str:
    first = row.get("first_position_off")
    where = "" if first is None else f", first at position {first}"
    return f"pair {row['pair']} by {abs(row[work.size]):.2g} {work.unit}{where}"


class FrequencyList:
    """A dumped inv_freq, or its inverses."""

    size, unit, things = "relative_error", "relative", "frequencies"

    def __init__(self, dump: Dump, setting: RopeSetting, exact: Array) -> None:
        self.values = np.zeros(0) if dump.frequencies is None else dump.frequencies
        self.name, self.inverse = dump.name, dump.inverse
        self.setting, self.exact, self.tolerance = setting, exact, hypotheses.tolerance(setting)
        self.off = np.zeros(0, bool)  # whether a pair is off; set by `rows`

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for every pair; a frequency of 0 has errors relative to the largest one."""
        relative = (self.values - self.exact) / hypotheses.reference_sizes(self.exact)
        self.off = ~(np.abs(relative) <= np.where(self.exact == 0, 0.0, self.tolerance))
        for i, error in enumerate(relative.tolist()):
            yield {
                "pair": i,
                "theta": float(self.exact[i]),
                "found": float(self.values[i]),
                "relative_error": error,
                "tolerance": float(self.tolerance[i]),
                "off": "yes" if self.off[i] else "no",
            }

    def hypotheses(self) -> Iterator[Hypothesis]:
        """Yield every setting that may have been meant, alone and with the casts that fit."""
        casts = hypotheses.formats_holding(
            self._as_stored(self.values), hypotheses.allowed_strays(self.values.size)
        )
        for variant in (Variant(self.exact, cost=0.0), *variants(self.setting, self.exact, self.values)):
            for fmt in (None,) if variant.computed else (None, *casts):
                yield self._hypothesis(variant, fmt)

    def _as_stored(self, theta: Array) -> Array:
        """Return frequencies as they are stored, and stored ones as frequencies."""
        return 1 / theta if self.inverse else theta

    def _hypothesis(self, variant: Variant, fmt: Format | None) -> Hypothesis:
        theta, sizes = variant.theta, hypotheses.reference_sizes(variant.theta)
        stored, expected = self._as_stored(self.values), self._as_stored(theta)
        slack = np.where(
            theta == 0, 0.0, np.maximum(self.tolerance, hypotheses.least_tolerance(self.setting))
        )
        strays = ~hypotheses.within(stored, expected, slack * hypotheses.reference_sizes(expected), fmt)
        errors = np.abs(self.values - self._as_stored(hypotheses.cast(expected, fmt))) / sizes
        text = variant.text(self.name, fmt.name if fmt else "", explains=not strays.any())
        meant = "" if variant.computed else variant.seen
        return hypotheses.hypothesis(
            text, strays, errors, variant.cost + hypotheses.cast_cost(fmt), meant=meant
        )
