"""No sentence of `ropeaudit limit` is false: against made-up failures, measurements and bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropeaudit import limit, shift
from ropeaudit.audits.cases import Case
from ropeaudit.features.limit.boundary_search import boundary
from ropeaudit.features.limit.limit_result import AT_LEAST, TOLERABLE, Limit, Tolerance, tolerance
from ropeaudit.features.limit.report import evidence, known, row, status, told
from ropeaudit.features.limit.report import report as limit_report

NONFINITE = r"[\d,]+ of [\d,]+ scores are nan or infinite"
VALUE = rf"(?:[-+\w.]+ %|\w+ (?:is not defined|[-+\w.]+)|{NONFINITE})"
HOW = r"(all measured|by bound(?: to ([\d,]*\d), later ones measured)?)"
PLACE = r"([\d,]*\d) \(last position ([\d,]*\d)\)"


@dataclass
class ReferenceTable:
    """fails: the offsets that fail, all of 0 ... up_to. tested: those that were measured, if known."""

    fails: Collection[int]
    up_to: int
    seq_len: int
    maximum: int | None
    tested: Collection[int] | None
    bound: int | None

    def free(self, offset: int) -> None:
        """No offset up to this one fails."""
        assert offset <= self.up_to
        assert min(self.fails, default=self.up_to + 1) > offset

    def failing(self, offset: int) -> None:
        assert offset in self.fails

    def first(self, offset: int) -> None:
        assert min(self.fails) == offset

    def place(self, offset: int, position: int) -> None:
        assert position == offset + self.seq_len - 1

    def seen(self, count: int, offset: int) -> None:
        """So many were measured up to this one, and none of them fails."""
        assert count >= 1
        assert offset not in self.fails
        if self.tested is not None:
            below = [one for one in self.tested if one <= offset]
            assert offset in below
            assert len(below) == count
            assert not set(below) & set(self.fails)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def check(sentence: str, reference: ReferenceTable) -> None:
    """Fail unless every claim of a sentence is true, and it consists of known claims alone."""

    def fails(match: re.Match[str]) -> None:
        reference.failing(number(match[1]))

    def at(match: re.Match[str]) -> None:
        fails(match)
        if match[2]:
            assert number(match[2]) == reference.maximum >= number(match[1]) + reference.seq_len

    def later(match: re.Match[str]) -> None:
        fails(match)
        if "within tolerance at every" in sentence:
            reference.first(number(match[1]))

    def failed(match: re.Match[str]) -> None:
        reference.place(number(match[2]), number(match[3]))
        if match[1] == "first failure":
            reference.first(number(match[2]))
        reference.failing(number(match[2]))

    def through(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        times = float((match[2] or "1").replace(",", ""))
        reference.free(int(times * reference.maximum) - reference.seq_len)

    def times(match: re.Match[str]) -> None:
        assert number(match[3]) == reference.maximum
        reached = number(match[1]) + reference.seq_len
        assert reached >= float(match[2].replace(",", "")) * reference.maximum
        assert number(match[1]) not in reference.fails

    def seen(match: re.Match[str]) -> None:
        reference.seen(number(match[1]), number(match[2]))

    def short(match: re.Match[str]) -> None:
        assert number(match[1]) == reference.maximum
        lowest = min(reference.fails, default=reference.up_to + 1)
        last = max((offset for offset in reference.tested or () if offset < lowest), default=0)
        assert last + reference.seq_len < reference.maximum

    def served(match: re.Match[str]) -> None:
        assert max(reference.tested) + reference.seq_len >= reference.maximum

    def placed(match: re.Match[str]) -> None:
        seen(match)
        reference.place(number(match[2]), number(match[3]))

    def proved(match: re.Match[str]) -> None:
        reference.free(number(match[1]))
        if match[2] == "by bound":
            assert reference.bound >= number(match[1])
        else:
            low = number(match[3]) if match[3] else -1
            assert low == (-1 if reference.bound is None else reference.bound)
            assert set(range(low + 1, number(match[1]) + 1)) <= set(reference.tested)

    claims: list[tuple[str, Callable[[re.Match[str]], None]]] = [
        (rf"^{VALUE} at offset ([\d,]*\d)(?:, of ([\d,]*\d) positions)?", at),
        (r"^within tolerance through all ([\d,]*\d) positions(?:, ([\d,.]+) times over)?", through),
        (r"^within tolerance at every offset to ([\d,]*\d)", lambda match: reference.free(number(match[1]))),
        (r"^no failure seen to offset ([\d,]*\d), ([\d,.]+) times its ([\d,]*\d) positions", times),
        (r"^no failure in ([\d,]*\d) tested offsets? to ([\d,]*\d)", seen),
        (r", short of its ([\d,]*\d) positions", short),
        (r", all it serves", served),
        (r"; fails at ([\d,]*\d)", later),
        (rf"; tested ([\d,]*\d) offsets? to {PLACE}: none fails", placed),
        (rf"; (first failure|failure seen) offset {PLACE}: {VALUE}", failed),
        (r"; proven offset 0 only", lambda match: reference.free(0)),
        (rf"; proven every offset to ([\d,]*\d) \({HOW}\)", proved),
    ]
    left = sentence
    for pattern, claim in claims:
        for match in re.finditer(pattern, sentence):
            claim(match)
        left = re.sub(pattern, "", left)
    assert left == "", (left, sentence)


def numbers_hold(one: Limit, built: dict[str, object], fails: set[int]) -> None:
    """Hold the numbers of a row against all offsets."""
    first = min(fails, default=one.up_to + 1)
    proved, seen = built["proved_up_to"], built["measured_up_to"]
    assert (proved is None) == (0 in fails) == (built["proof"] == "none")
    assert proved is None or proved < first
    assert built["bound_up_to"] is None or built["bound_up_to"] < first
    assert built["proof"] != "bound" or proved == built["bound_up_to"]
    assert built["first_failure"] in (None, first)
    assert built["first_failure_seen"] is None or built["first_failure_seen"] in fails
    if built["first_failure"] is None and proved is not None:
        assert proved == one.up_to or proved + 1 != built["first_failure_seen"]
    assert seen is None or seen not in fails
    assert built["measured_offsets"] <= (0 if seen is None else seen + 1)
    assert built["measured_offsets"] <= built["evaluated"]
    for place, name in (("proved", "proved_up_to"), ("measured", "measured_up_to")):
        position = built[f"{place}_position"]
        assert position == (None if built[name] is None else built[name] + one.at_zero.seq_len - 1)


(BASE,) = shift(0, "bf16", "hf", heads=1, seq_len=4, head_dim=8)
PRESETS = {None: None, "llama-3.1-8b": 131_072, "phi-2": 2048}


@st.composite
def built_up(draw: st.DrawFn) -> tuple[Limit, ReferenceTable]:
    """A limit of made-up failures, measurements and bounds, and what is true of it."""
    model = draw(st.sampled_from(list(PRESETS)))
    maximum = PRESETS[model]
    seq_len = draw(st.sampled_from([1, 4, 256] + ([maximum, maximum + 1] if maximum else [])))
    near = [0, 1, 5, 40, 2**24] + ([maximum - seq_len + i for i in (-1, 0, 1)] if maximum else [])
    some = st.sampled_from([x for x in near if x >= 0]) | st.integers(0, 2**18)
    up_to = draw(some)
    least = draw(st.sampled_from([0, min(1, up_to)]))
    fails = draw(st.sets(st.integers(least, up_to), max_size=3))
    first = min(fails, default=up_to + 1)
    bound = draw(st.none() | st.integers(0, first - 1)) if first else None
    tested = {0, *draw(st.sets(some, max_size=6)), *range(draw(st.integers(0, 6)))}
    tested |= draw(st.sets(st.sampled_from([0, *sorted(fails)])))
    tested |= {
        x for edge in draw(st.sets(st.sampled_from([first, up_to, bound or 0]))) for x in (edge - 1, edge)
    }
    if first and draw(st.booleans()):  # a later failure is seen, and the first one is not measured
        tested = (tested | fails) - {first}
    tested = {offset for offset in tested if 0 <= offset <= up_to}
    one = Tolerance(draw(st.sampled_from(TOLERABLE)), draw(st.floats(1e-9, 1e9)))
    known = boundary({o: o not in fails for o in tested}, -1 if bound is None else bound, up_to)

    def record(offset):
        if offset is None or offset < 0:
            return None
        good, bad = one.value, math.nextafter(one.value, math.inf)
        if one.column in AT_LEAST:
            bad = math.nextafter(one.value, 0)
        value = bad if offset in fails else good
        changed = {"offset": offset, "seq_len": seq_len, "model": model or "none", one.column: value}
        return replace(BASE, **changed)

    case = Case(model=model, seq_len=seq_len)
    at = record(0), record(known.held_up_to), record(known.failing)
    result = Limit(case, one, up_to, bound, known, False, False, *at)
    return result, ReferenceTable(fails, up_to, seq_len, maximum, tested, bound)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(built_up())
def test_no_sentence_is_false_whatever_fails(built) -> None:
    result, reference = built
    numbers_hold(result, row(result), set(reference.fails))
    facts = [f"{label} {text}" for label, text in evidence(result)]
    check("; ".join([known(result), *facts]), reference)
    check(told(result), reference)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(built_up(), min_size=1, max_size=4))
def test_a_status_is_that_of_the_worst_measured_failure(some) -> None:
    def failing(reference: ReferenceTable) -> bool:
        seen = [offset for offset in reference.fails if offset in reference.tested]
        within = (reference.maximum or 0) - reference.seq_len
        return 0 in seen or any(offset <= within for offset in seen)

    [answer] = limit_report([one for one, _ in some], None, {}).answers
    bad = sum(failing(reference) for _, reference in some)
    assert (answer.status == "FAIL") == (bad > 0)
    assert len(some) == 1 or not bad or answer.decides.startswith(f"{bad} FAIL")
    for one, reference in some:
        if status(one) == "OK" and reference.maximum and reference.seq_len <= reference.maximum:
            assert max(reference.tested, default=0) >= reference.maximum - reference.seq_len or not one.called


def test_a_failure_above_offsets_that_nobody_measured_is_not_called_the_first() -> None:
    searched = boundary({0: True, 9: True, 50: False, 60: True}, -1, 100)
    assert (searched.exhaustive, searched.failing, searched.proved) == (False, 50, 0)
    assert (searched.held_up_to, searched.held, searched.tested) == (9, 2, 4)
    assert boundary({0: True, 50: False}, 49, 100).exhaustive
    assert not boundary({0: True, 100: True}, 98, 101).exhaustive
    assert boundary({0: True, 99: True, 100: True}, 98, 100).exhaustive


def test_digits_show_that_a_value_breaks_its_tolerance() -> None:
    one = tolerance("drift_rms=0.01")
    assert one.telling(0.0101234) == "drift_rms 0.01012"
    assert one.telling(0.010000012) == "drift_rms 0.01000001"
    assert tolerance("0.01").telling(0.010000012) == "1.000001 %"
    assert tolerance("drift_bias=0.5").telling(-0.51) == "drift_bias -0.51"
    assert tolerance("distinct_positions=16").telling(15.0) == "distinct_positions 15"
    texts = ["1%", "drift_relative=0.0123456789", "drift_rms=0.0123456789", "drift_bias=0.5"]
    said = ["1 %", "drift_relative ≤ 0.0123456789", "drift_rms ≤ 0.0123456789", "|drift_bias| ≤ 0.5"]
    assert [str(tolerance(text)) for text in texts] == said


def test_what_another_tolerance_measured_counts() -> None:
    case = {"heads": 1, "seq_len": 8, "head_dim": 32, "budget": 64, "up_to": 60_000}
    both = list(limit(["drift_max=0.5", "drift_rms=0.05"], "fp16", "uniform", **case))
    for one in both:
        built = row(one)
        assert built["evaluated"] == one.boundary.tested
    assert both[0].boundary.tested == both[1].boundary.tested
    (alone,) = limit("drift_max=0.5", "fp16", "uniform", **case)
    assert both[0].first_failure_seen <= alone.first_failure_seen
    assert both[0].proved_up_to >= alone.proved_up_to


def test_undefined_values_are_named() -> None:
    (result,) = limit(
        "drift_relative=0.01", "bf16", "hf", heads=1, seq_len=4, head_dim=8, up_to=70, budget=64
    )
    zero = replace(result.at_zero, drift_relative=math.nan)
    nonfinite = replace(result, boundary=boundary({0: False}, -1, 70), at_zero=zero, at_failure=zero)
    assert told(nonfinite) == "drift_relative is not defined at offset 0"
    report = limit_report([nonfinite], None, {})
    assert report.rows[0]["margin"] is None
