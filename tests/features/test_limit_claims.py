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
from ropeaudit.features.limit.analysis import AT_LEAST, TOLERABLE, Limit, Tolerance
from ropeaudit.features.limit.report import evidence, range_words, row, sentence, status
from ropeaudit.features.limit.report import report as limit_report
from ropeaudit.features.limit.search import boundary


@dataclass
class ReferenceTable:
    """fails: the offsets that fail, all of 0 ... up_to. tested: those that were measured, if known."""

    fails: Collection[int]
    up_to: int
    seq_len: int
    maximum: int | None
    tested: Collection[int]
    bound: int | None


def check(text: str, reference: ReferenceTable) -> None:
    """Fail unless the offsets that sentences call free, failing or the first one are so."""
    fails, maximum = reference.fails, reference.maximum or 0
    first = min(fails, default=reference.up_to + 1)
    claims: dict[str, Callable[[int], bool]] = {
        "every offset to": lambda n: n < first and n <= reference.up_to,
        "proven offset": lambda n: n == 0 < first,
        "through all": lambda n: n == maximum < first + reference.seq_len,
        "no failure seen to offset": lambda n: n not in fails and n + reference.seq_len > maximum,
        "tested offsets? to": lambda n: n not in fails and n in reference.tested,
        "tested [0-9,]+ offsets? to": lambda n: n not in fails and n in reference.tested,
        "(?<!to )(?<!failure )(?<!seen )(?<!proven )offset": lambda n: n in fails,
        "fails at": lambda n: n in fails,
        "first failure offset": lambda n: n == first,
        "failure seen offset": lambda n: n in fails,
        "short of its": lambda n: n == maximum,
    }
    for words, holds in claims.items():
        for found in re.findall(rf"{words} ([\d,]*\d)", text):
            assert holds(int(found.replace(",", ""))), (words, text)
    if "all it serves" in text:
        assert max(reference.tested) + reference.seq_len >= maximum
    for offset, position in re.findall(r"([\d,]*\d) \(last position ([\d,]*\d)\)", text):
        last = int(position.replace(",", "")) - reference.seq_len + 1
        assert last == int(offset.replace(",", "")), text


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
    check("; ".join([range_words(result), *facts]), reference)
    check(sentence(result), reference)


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
