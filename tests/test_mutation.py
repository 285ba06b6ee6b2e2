"""The mutation run's own parts: faults, the tests that are asked, what is core, what counts as killed."""

from __future__ import annotations

import json
from pathlib import Path

import mutate
from cases import table
from mutation import held
from mutation.operators import Mutant, mutants

TABLE = table(__file__, "mutation/faults.toml")
SOURCE = TABLE["source"].encode()


def faults(source: bytes = SOURCE) -> list[tuple[int, str, str]]:
    return [(one.line, one.operator, one.after) for one in mutants("f.py", source) if one.applied(source)]


def test_a_fault_of_each_kind_is_made() -> None:
    assert [fault for fault in TABLE["faults"] if tuple(fault) not in faults()] == []


def test_words_types_and_messages_are_left_alone() -> None:
    assert {line for line, _, after in faults() if "Docstring" in after or "tuple[2]" in after} == set()
    assert [operator for line, operator, _ in faults() if line == 7] == ["statement"]


def test_what_means_the_same_is_no_mutant() -> None:
    one = next(one for one in mutants("f.py", SOURCE) if one.line == 2)
    same = Mutant("f.py", 2, "constant", "", "", one.start, one.end, "(3)")
    assert same.applied(SOURCE) is None
    assert Mutant("f.py", 2, "constant", "", "", one.start, one.end, "3 3").applied(SOURCE) is None
    assert b"LIMIT = 2" in (one.applied(SOURCE) or b"")


def test_code_that_runs_at_import_belongs_to_what_uses_it() -> None:
    by_line = {one.line: one for one in mutants("f.py", SOURCE)}
    assert (by_line[2].scope, by_line[2].names) == ((), ("LIMIT",))
    assert (by_line[4].scope, by_line[4].names) == (tuple(range(5, 11)), ())
    assert (by_line[9].scope, by_line[9].names) == ((), ())
    assert (by_line[13].scope, by_line[13].names) == ((), ("size", "Wide"))


def test_the_core_is_what_computes_decides_and_reads() -> None:
    results = set(mutate.core())
    names = "reference/exact_scores arithmetic/rounding recipes bounds/terms engine/kernel rope/scaled"
    assert {
        f"ropeaudit/{name}.py" for name in [*names.split(), "console/gates", "reports/reading"]
    } <= results
    assert not {name for name in results if "third_party" in name or "html" in name or "plots" in name}


def test_telling_tests_come_first_and_the_rest_within_the_budget(tmp_path: Path) -> None:
    mutant = Mutant("ropeaudit/inputs/masks.py", 7, "constant", "", "", 0, 0, "")
    runs = {"wide": (900, 0.1), "narrow[1]": (10, 0.3), "narrow[2]": (10, 0.4), "half": (15, 0.5)}
    runs |= {"slow": (5, 3.0), "slower": (4, 9.0)}
    lines = {
        f"ropeaudit/{test}.py": {line: [test] for line in range(size - 1)} for test, (size, _) in runs.items()
    }
    told = {"seconds": {test: seconds for test, (_, seconds) in runs.items()}}
    told["lines"] = lines | {mutant.file: {mutant.line: list(runs)}}
    (tmp_path / "recorded.json").write_text(json.dumps(told))
    covering = held.Covering(tmp_path)
    assert covering.picked(mutant, 99.0) == ["slower", "slow", "narrow[1]", "half", "narrow[2]", "wide"]
    assert covering.picked(mutant, 0.85) == ["narrow[1]", "half"]


def test_equivalents_say_why() -> None:
    for one in json.loads(mutate.EQUIVALENT.read_text(encoding="utf-8")):
        assert set(one) == {"file", "line", "mutated", "operator", "reason"}
        assert len(one["reason"]) > 20


def test_the_report_names_each_survivor(capsys, monkeypatch) -> None:
    picked = mutate.sampled(["ropeaudit/inputs/masks.py"], 4, 0)
    fates = ["killed", "timeout", "survived", "survived"]
    outcomes = [held.Outcome(one, fate, tests=5) for one, fate in zip(picked, fates, strict=True)]
    monkeypatch.setattr(mutate, "equivalents", lambda: {picked[3].key: "because"})
    assert mutate.report(outcomes, 0.5) == 0
    assert mutate.report(outcomes, 0.95) == 1
    message = capsys.readouterr().out
    assert "1 equivalent, 1 killed, 1 survived, 1 timeout\n2 of 3 that are not equivalent" in message
    assert f"{picked[2].file}:{picked[2].line} {picked[2].operator}, survived" in message
    assert "".join(f"+{picked[2].after}".split()) in "".join(message.split())
    assert picked[3].after not in message
