"""The report of `check`: an answer per target, a row per check, notes; JUnit XML and tickets."""

from __future__ import annotations

import linecache
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from ropeaudit.arithmetic.formats import parse
from ropeaudit.audits.cases import Case
from ropeaudit.audits.sweep import Audit
from ropeaudit.conformance import environments
from ropeaudit.conformance.finding import FROM_0, INTERRUPTED, MARGIN, PAIR
from ropeaudit.conformance.score_drift import CHECKS as SCORES  # wrong where the rotation is
from ropeaudit.features.check.checked import NONE, Checked, CheckOptions, first_names, place_of
from ropeaudit.features.check.config_target import LIMIT, PARTS, PATCHES, RANGE, READING
from ropeaudit.recognition.diagnosis import codes, kinds
from ropeaudit.reports import Report, tabulated
from ropeaudit.reports.answers import Answer, Cause, Fault, Status, plain
from ropeaudit.reports.numbers import counted, limit_percent, percent, printable
from ropeaudit.reports.tickets import Reproduction, Ticket, by_code, file_name, snippet_of, worst
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime.columns import table
from ropeaudit.subjects.calling.own_code import NOT_CHECKED

SCHEMA = 1
COLUMNS = table("check")
_UNJUDGED = ("nothing to check", "not checked", "not applicable")
_OF_JUNIT = {"fail": "failure", "pass": "system-out", "info": "system-out"}  # all others are skipped
_MARGIN = "times its maximum: last good position ÷ the model's maximum; 1 or more passes; `ropeaudit limit`."
UNEXPLAINED = "unexplained"
_MOST_CAUSES, _MOST_FACTS = 3, 3
_SHORT = 150  # characters of a reason: two lines
_CERTAIN = {
    "to the last bit": "every number is what this cause predicts, to the last bit",
    "within rounding": "the numbers are what this cause predicts, within rounding",
}
_WAIVERS = ("waived until ", "its waiver ended on ")  # see `waivers.applied`
_OPTIONS = "--config, --model or --base for yours"
Facts = list[tuple[str, str]]


def row(check: Checked) -> dict[str, Any]:
    """Return the row of a check."""
    finding, setting = check.finding, check.setting
    values = dict[str, Any].fromkeys(COLUMNS)
    for part in (setting, finding, check):
        values |= {name: getattr(part, name) for name in COLUMNS if hasattr(part, name)}
    values |= {"schema": SCHEMA, "diagnosis": codes(finding.diagnosis), "remedy": finding.advice}
    values["scaling"] = NONE if setting is None else str(setting.scaling)
    values["layout"] = NONE if setting is None else setting.layout
    return values


def report(
    results: Sequence[Checked],
    columns: Sequence[str] | None,
    metadata: Mapping[str, Any],
    findings: Sequence[str] = (),
    case: Case | None = None,
) -> Report:
    """Return the report; `columns` chooses and orders what is shown and written.

    findings: on waivers and calls. case: the RoPE setting of the options.
    """
    rows, targets = [row(result) for result in results], dict[str, list[Checked]]()
    for check in results:
        targets.setdefault(check.target, []).append(check)
    seen = {name: {row[name] for row in rows} for name in ("target", "dtype", "layer")}
    seen["layer"].discard(NONE)
    screen = [name for name in COLUMNS.screen(rows) if name not in seen or len(seen[name]) > 1]
    told = findings if len(targets) == 1 else ()  # several targets have no room for calls
    return tabulated(
        *(COLUMNS, SCHEMA, rows, screen, columns, metadata),
        answers=[answer(own, case or Case(), told) for own in targets.values()],
        notes=[*findings, *notes(results)],
        legend=_MARGIN if any(check.finding.unit == MARGIN for check in results) else "",
        faults=faults_of(results),
        brief=not columns,
    )


def notes(results: Sequence[Checked]) -> list[str]:
    """Return notes on checks that did not pass, on settings, and on checks that were not made."""
    messages, missing = list[str](), dict[str, list[str]]()
    for check in results:
        finding = check.finding
        if finding.status in _UNJUDGED:
            missing.setdefault(finding.detail, []).append(finding.check)
        elif finding.status != "pass" or finding.check == "config":
            messages.append(f"{check.target}, {check.label}: {finding.detail}")
    last = [f"not checked: {', '.join(dict.fromkeys(names))}: {why}" for why, names in missing.items()]
    return list(dict.fromkeys([*messages, *last]))


def faults_of(results: Sequence[Checked]) -> list[Fault]:
    """Return the failures that are not waived, in order, without errors of our own."""
    faults = []
    for check in (check for check in results if check.finding.failed and not check.finding.fault):
        finding, found, behaves = check.finding, check.finding.diagnosis, ""
        if found is not None and found.explains:  # with alternatives and further faults
            nearest = "nothing that was tried explains it; the nearest: "
            behaves = nearest if found.certainty == "resembles" else "behaves like: "
        words = (check.result_words, behaves + finding.resembles, finding.advice)
        message = printable("; ".join(filter(None, words)))
        rule = found.code if found else finding.check.replace(" ", "-")
        faults.append(Fault(rule, message, printable(check.target), check.label, *place_of(check)))
    return faults


def junit(results: Sequence[Checked]) -> bytes:
    """Return checks as JUnit XML for CI: a suite per target and dtype, a case per check.

    Elements and attributes are those of pytest (`--junit-xml`), without times; the type of a failure is the
    code of its diagnosis. Waived failures, checks that do not apply and targets without RoPE are skipped;
    notes are in system-out.
    """
    root = ElementTree.Element("testsuites", name="ropeaudit check")
    suites: dict[tuple[str, str], list[Checked]] = {}
    for check in results:
        suites.setdefault((check.target, check.dtype), []).append(check)
    for (target, dtype), checks in suites.items():
        name = printable(target if dtype == NONE else f"{target} {dtype}")
        tags = [_OF_JUNIT.get(check.finding.status, "skipped") for check in checks]
        failures, skipped = (str(tags.count(tag)) for tag in ("failure", "skipped"))
        shown = {"name": name, "errors": "0", "failures": failures, "skipped": skipped}
        suite = ElementTree.SubElement(root, "testsuite", shown | {"tests": str(len(checks))})
        for check, tag in zip(checks, tags, strict=True):
            finding, measured = check.finding, check.measurement
            layer = "" if check.layer in (NONE, "full_attention") else f" ({check.layer})"
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=finding.check + layer)
            part, kind = ElementTree.SubElement(case, tag), codes(finding.diagnosis) or tag
            if tag != "system-out":
                part.set("message", printable(measured or finding.detail))
                skipped = f"ropeaudit.{finding.status.replace(' ', '-')}"
                part.set("type", skipped if tag == "skipped" else kind)
            if tag != "skipped":
                words = (measured, finding.where, finding.detail, finding.resembles, finding.advice)
                part.text = printable("; ".join(filter(None, words))) or None
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def answer(own: Sequence[Checked], case: Case, findings: Sequence[str]) -> Answer:
    """Return the answer of the checks of one target.

    case: the RoPE setting of the options. findings: on waivers and calls.
    """
    target = own[0].target
    for check in own:
        if check.finding.status == "nothing to check":
            return Answer("OK", target, f"nothing to check: {check.finding.detail}")
    groups = _by_cause([check for check in own if check.finding.failed])
    doubtful = _by_cause([check for check in own if warns(check)])
    causes = [_cause(code, some) for code, some in groups.items()]
    causes += [replace(_cause(code, some), warning=True) for code, some in doubtful.items()]
    facts = [
        *_measurement_facts(own),
        *_limit_facts(own),
        *_call_facts(target, findings),
        *_assumption_facts(own, case),
    ]
    titles = " ".join(cause.title for cause in causes)
    facts += [fact for fact in _note_facts(own) if fact[1] not in titles]
    facts += _not_checked_facts(own, case, findings)
    if len(causes) > 1:
        causes[0] = _with_fewer_facts(causes[0], 2)
        causes[1:] = [replace(_with_fewer_facts(cause, 1), file="", source="") for cause in causes[1:]]
    if rest := causes[_MOST_CAUSES:]:
        facts.insert(0, ("more", f"{', '.join(cause.code for cause in rest)}: -v"))
    if causes:
        facts.append(("next", _next_steps(own[0], groups)))
    status: Status = "FAIL" if groups else "WARN" if causes else "PASS"
    return Answer(status, target, _summary(own, groups), causes[:_MOST_CAUSES], facts)


def text(own: Sequence[Checked], case: Case, findings: Sequence[str]) -> str:
    """Return the answer as text for Python users, without commands to type."""
    result = answer(_without_options(own), case, findings)
    facts = [fact for fact in result.facts if fact[0] != "next"]
    return "\n".join(plain([replace(result, facts=facts)]))


def _without_options(results: Sequence[Checked]) -> list[Checked]:
    return [replace(check, finding=replace(check.finding, option="")) for check in results]


def warns(check: Checked) -> bool:
    """Return whether a check that does not fail is a warning."""
    name, status = check.finding.check, check.finding.status
    telling = name in ("config keys", READING, RANGE, "dtype", "setting", "class table", "model decode")
    telling = telling or name.startswith("under ")
    return status == "waived" or (status == "info" and telling)


def _summary(own: Sequence[Checked], groups: dict[str, list[Checked]]) -> str:
    if not groups and (margin := _smallest_limit(own)):
        doubt = next((check.finding.where for check in own if warns(check) and check.finding.where), "")
        return f"{doubt}; {margin}" if doubt else margin
    judged = [check for check in own if check.judged]
    where = [first_names([parse(name).short for name in _dtypes(judged)])]
    for first in judged[:1]:
        if first.setting is not None and first.setting.grid is not None:
            where.append(f"{first.setting.grid.count:,} tokens, {first.setting.grid.words}")
        elif first.kind in ("code", "case") and first.up_to:
            begin = "positions of its calls up" if first.kind == "case" else "positions 0"
            where.append(f"{begin} to {first.up_to - 1:,}")
    counts, waived = counted(len(judged), "check"), sum(check.finding.status == "waived" for check in judged)
    failing = sum(check.finding.failed for check in judged)
    wrong = f"{failing} of {counts} fail{'s' * (failing == 1)}"
    if groups.keys() == {UNEXPLAINED}:
        counts = f"cause unknown, {wrong}"
    elif INTERRUPTED in groups:
        counts = f"not checked to its end, {wrong}" if judged else "not checked"
    elif groups:
        counts = f"{counted(len(groups), 'cause')}, {wrong}"
    elif waived:
        counts += f", {waived} waived"
    return "   ".join(filter(None, [", ".join(filter(None, where)), counts]))


def _dtypes(some: Sequence[Checked]) -> list[str]:
    return [name for name in dict.fromkeys(check.dtype for check in some) if name != NONE]


def _by_cause(some: Sequence[Checked]) -> dict[str, list[Checked]]:
    """Return checks by the code of their cause, the most frequent cause first.

    Of codes that explain a check equally well, the one that most checks share counts. Wrong scores have the
    cause of a wrong rotation, if there is one.
    """
    shared = Counter(code for check in some for code in _cause_codes(check))
    own = {id(check): max(_cause_codes(check), key=lambda code: shared[code]) for check in some}
    rotation = {check.dtype: own[id(check)] for check in some if check.finding.check == "rotation"}
    same: dict[str, str] = {}  # detail -> the first check with it, such as an error that all raise
    groups: dict[str, list[Checked]] = {}
    for check in some:
        code, diagnosis = own[id(check)], check.finding.diagnosis
        if diagnosis is None and check.finding.check in SCORES:
            code = rotation.get(check.dtype, code)
        if diagnosis is None and math.isnan(check.finding.measured):
            code = same.setdefault(check.finding.detail, code)
        groups.setdefault(code, []).append(check)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _cause_codes(check: Checked) -> list[str]:
    """Return the codes that explain a check equally well, else "unexplained" or its name."""
    found = check.finding.diagnosis
    if found is not None and found.certainty != "resembles":
        return codes(found).split("|")
    return [UNEXPLAINED if found or check.finding.unit == PAIR else check.finding.check.replace(" ", "-")]


def _cause(code: str, some: Sequence[Checked]) -> Cause:
    first = next((check for check in some if code in _cause_codes(check)), some[0])
    finding, facts = first.finding, list[str]()
    pairs = [check for check in some if _excess(check) > 0 and check.dtype == first.dtype]
    explained = finding.diagnosis is not None and code != UNEXPLAINED
    title = finding.detail if finding.detail and len(finding.detail) <= _SHORT else first.result_words
    if len(title) > _SHORT and "; " in title[:_SHORT]:
        title = f"{title[: title.rindex('; ', 0, _SHORT)]}; more: -v"
    if explained:
        title = finding.resembles
    if pairs:
        rotated = [check for check in pairs if check.finding.check != "gradient"]
        worst = max(rotated or pairs, key=_excess).finding
        noun = "gradient" if worst.check == "gradient" else "rotation"
        size = f"{noun} error {_two_digits(worst.measured)} ({_two_digits(worst.allowed)} allowed)"
        title = title if explained else size
        facts.append(f"{size}: {worst.where}" if explained else f"worst: {worst.where}")
    else:
        facts += [
            text for text in (first.result_words, finding.detail) if text != title and len(text) <= _SHORT
        ]
    limits = [check.finding for check in some if check.finding.check == "score-error-limit"]
    for tolerance in limits[:1]:
        off = f"{percent(tolerance.measured)} off (limit {limit_percent(tolerance.allowed)})"
        facts.append(f"scores are {off}: {tolerance.where}")
    if finding.diagnosis is not None and explained:
        facts.append(_CERTAIN.get(finding.diagnosis.certainty, ""))
    elif finding.diagnosis is not None and finding.diagnosis.explains:
        facts.append(f"closest known: {codes(finding.diagnosis)}: {finding.resembles}")
    if len(some) > 1:
        facts.append(f"checks: {first_names(list(dict.fromkeys(check.finding.check for check in some)))}")
    if finding.option:
        facts.append(f"if that is meant, give {finding.option}")
    if finding.remedy:
        facts.append(f"fix: {finding.remedy}")
    if title != finding.detail:
        facts += [finding.detail[finding.detail.index(mark) :] for mark in _WAIVERS if mark in finding.detail]
    placed = list(dict.fromkeys(check.finding.check for check in some))
    if all(name.startswith("under ") for name in placed):  # and nowhere else
        title = f"{first_names(placed)}: {title}"
    file, line = place_of(first)
    source = linecache.getline(file, line).strip() if line else ""
    return Cause(code, title, file, line, source, list(dict.fromkeys(filter(None, facts))))


def _with_fewer_facts(cause: Cause, most: int) -> Cause:
    fixes = [fact for fact in cause.facts[most:] if fact.startswith(("fix: ", *_WAIVERS))]
    return replace(cause, facts=[*cause.facts[:most], *fixes])


def _excess(check: Checked) -> float:
    """Return the error of a rotated pair ÷ allowed; 0 for other checks."""
    finding = check.finding
    return finding.measured / finding.allowed if finding.unit == PAIR and finding.allowed > 0 else 0.0


def _two_digits(value: float) -> str:
    return f"{value:#.2g}".rstrip(".")


def _measurement_facts(own: Sequence[Checked]) -> Facts:
    judged, facts = [check for check in own if check.judged], Facts()
    several = len(_dtypes(judged)) > 1 and judged[0].kind in ("code", "case")
    for dtype in _dtypes(judged):
        some, lines = [check for check in judged if check.dtype == dtype], Facts()
        by_name, worst = {check.finding.check: check.finding for check in some}, max(some, key=_excess)
        if wrong := sum(check.finding.failed for check in some):
            by_name, lines = {}, [("", f"{wrong} of {counted(len(some), 'check')} fail")] * several
        elif excess := _excess(worst):
            size = f"{_two_digits(worst.finding.measured)} of {_two_digits(worst.finding.allowed)} allowed"
            lines.append(("rotation error", f"{size} ({percent(excess)})"))
        if finding := by_name.get("score-error-limit"):
            text = f"{percent(finding.measured)} of their RMS (limit {percent(finding.allowed)})"
            if growth := by_name.get("score-error-growth"):
                text += f", {_two_digits(growth.measured)} {growth.unit}"
            lines.append(("score error", text))
        if several:
            lines = [(parse(dtype).short, "; ".join(f"{label} {text}".strip() for label, text in lines))]
        facts += lines
    return facts


def _limit_facts(own: Sequence[Checked]) -> Facts:
    dtypes = _dtypes([check for check in own if check.finding.check == LIMIT])
    limits = [_smallest_limit([check for check in own if check.dtype == dtype]) for dtype in dtypes]
    decides = "" if any(check.finding.failed for check in own) else _smallest_limit(own)
    facts = [("limit", text) for text in limits if text != decides]
    patches = [
        f"{parse(check.dtype).short}, {check.finding.detail}"
        for check in own
        if check.finding.check == PATCHES
    ]
    facts += [("patches", text) for text in patches]
    casts = {parse(check.dtype).short: check.finding for check in own if check.finding.check == "cast module"}
    sizes = [
        f"{percent(finding.measured)} ({dtype})" for dtype, finding in casts.items() if finding.measured >= 0
    ]
    if sizes:
        off = f"scores off by {', '.join(sizes)} at {next(iter(casts.values())).where}"
        facts.append(("inv_freq cast", f"{off}: cast the weights alone, not the module"))
    return facts


def _smallest_limit(some: Sequence[Checked]) -> str:
    """Return the smallest limit of a config in words; empty if none was checked."""
    limits = [check for check in some if check.finding.check == LIMIT]
    if not limits:
        return ""
    least = min(limits, key=lambda check: check.finding.measured)
    layer = f" of {least.layer}" if len({check.layer for check in limits}) > 1 else ""
    where = least.finding.where.replace("offsets to position ", "offsets to ")
    return f"{parse(least.dtype).short}, {where}{layer}"


def _call_facts(target: str, findings: Sequence[str]) -> Facts:
    said = [text.removeprefix(f"{target}: ").rstrip(".") for text in findings]
    called = [text.removeprefix("called as ") for text in said if text.startswith("called as ")]
    others = [text for text in said if not text.startswith(("called as ", NOT_CHECKED))]
    noted = [("noted", text) for text in others[:_MOST_FACTS]]
    last = {text.rpartition(" (")[0]: text for text in called}  # of calls at two settings
    return [("called as", text) for text in last.values()] + noted


def _assumption_facts(own: Sequence[Checked], case: Case) -> Facts:
    """Return the assumed defaults; of a config, its setting."""
    setting = next((check.setting for check in reversed(own) if check.setting is not None), None)
    if own[0].kind != "code" or setting is None:
        config = [check.finding for check in own if check.finding.check == "config"]
        return [("read", finding.detail) for finding in config if finding.status == "pass"][:_MOST_FACTS]
    if case.axes is not None or (case.model, case.config) != (None, None):  # which give the whole setting
        return []
    usual, given = RopeSetting(), {"head_dim": case.head_dim, "base": case.base}
    assumed = [
        f"{name} {getattr(usual, name):g}"
        for name, value in given.items()
        if value is None and getattr(setting, name) == getattr(usual, name)
    ]
    return [("assumed", f"{', '.join(assumed)} ({_OPTIONS})")] if assumed else []


def _note_facts(own: Sequence[Checked]) -> Facts:
    noted = [check for check in own if check.finding.status == "info" and not warns(check)]
    facts: dict[str, str] = {}
    for check in (check for check in noted if check.finding.check not in ("cast module", LIMIT)):
        several = sum(other.finding.check == check.finding.check for other in noted) > 1
        dtype = parse(check.dtype).short if check.dtype != NONE else ""
        which = ", ".join(filter(None, [dtype, check.finding.where])) if several else ""
        facts.setdefault(": ".join(filter(None, [which, check.finding.detail])), check.finding.check)
    return [(check, text) for text, check in facts.items()][:_MOST_FACTS]


def _not_checked_facts(own: Sequence[Checked], case: Case, findings: Sequence[str]) -> Facts:
    beyond = [text.partition(NOT_CHECKED)[2].rstrip(".") for text in findings if NOT_CHECKED in text]
    if limits := [check.finding.detail for check in own if check.finding.check == LIMIT]:
        apart = f"distances over {case.outline()[0].seq_len - 1} (ropeaudit limit --seq-len)"
        if all("; distance " in detail for detail in limits):
            apart = "other distances"
        fit = "" if own[0].kind == "model" else "; whether the weights fit it"
        beyond.append(f"{apart}; other q and k{fit}")
    reasons: dict[str, dict[str, None]] = {}  # reason -> names of checks, each once
    for finding in (check.finding for check in own):
        if finding.status in ("not checked", "not applicable"):
            why = "--thorough" if finding.status == "not checked" else finding.detail
            reasons.setdefault(why, {})[finding.check] = None
    whole = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    if own[0].kind in ("model", "config"):  # other checks do not apply to a config
        whole = "; ".join(why for why, names in reasons.items() if PARTS in names)
    if len(whole) > _SHORT:
        if from_0 := reasons.pop(FROM_0, {}):
            beyond.append(f"{', '.join(from_0)} ({FROM_0})")
        left_out = reasons.pop("--thorough", {})
        names = [name for some in reasons.values() for name in some]
        thorough = f"{', '.join(left_out)} (--thorough); " if left_out else ""
        whole = f"{thorough}{first_names(names)} (why: -v)"
    whole = "; ".join(filter(None, [*beyond, whole]))
    return [("not checked", whole)] if whole else []


def _next_steps(check: Checked, groups: dict[str, list[Checked]]) -> str:
    known = [code for code in groups if code in kinds()]
    steps = [f"why: ropeaudit list diagnoses {known[0]}"] if known else []
    steps.append("all rows: -v")
    if groups and INTERRUPTED not in groups:
        steps.append("bug report: --ticket FILE.md")
        if check.kind == "code" and any(kinds()[code].group == "precision" for code in known):
            steps.append(f"by stage: ropeaudit explain {shlex.quote(check.target)}")
    return "    ".join(steps)


_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(results: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket | None:
    """Return the ticket of the first failing target, or of a pass; None if neither is known.

    case: the RoPE setting of the options. Runs a snippet.
    """
    results = _without_options(results)
    first = next((check for check in results if check.finding.failed and not check.finding.fault), None)
    if first is None:
        if not results or any(check.finding.fault for check in results):
            return None
        targets = ", ".join(map(file_name, dict.fromkeys(check.target for check in results)))
        judged = [check for check in results if check.judged]
        first_row, *rows = map(row, judged or results)  # its facts are what all agree on
        facts = {name: value for name, value in first_row.items() if all(row[name] == value for row in rows)}
        facts["checks"], why = len(judged), Reproduction(missing="no check fails")
        return Ticket(f"{targets}: no check fails", report(results, None, {}), facts, "No check fails.", why)
    own = [check for check in results if check.target == first.target]
    own.sort(key=lambda check: not check.finding.failed)
    finding, where = first.finding, "" if first.dtype == NONE else f" in {first.dtype}"
    reproduction = Reproduction(missing=f"no code was called, {first.target} is a {first.kind}")
    if first.kind == "code":
        reproduction = _drift_snippet([check for check in own if check.finding.failed], case, options)
    return Ticket(
        f"{file_name(first.target)}: {finding.check}{where} fails{by_code(codes(finding.diagnosis))}",
        report(own, None, {}),
        row(first),
        f"{finding.check}: {'; '.join(filter(None, (finding.detail, first.measurement)))}",
        reproduction,
    )


def _drift_snippet(failed: Sequence[Checked], case: Case, options: CheckOptions) -> Reproduction:
    """Return a snippet that prints the drift at some positions, or why none does."""
    shown = next((check for check in failed if check.dtype != NONE and check.setting is not None), None)
    if shown is None:
        return Reproduction(missing="no number format fails")
    last = max(0, (shown.up_to or options.up_to or _TOKENS) - _TOKENS)
    audit = Audit(
        *((replace(case, seed=options.seed),), (), (shown.dtype,), tuple({0: None, last: None})),
        implementations=(shown.target,),
        order=options.order,
        device=options.device,
        environments=environments.of_check(shown.finding.check),
    )
    record = worst(list(audit.run()))
    if record is None:
        return Reproduction(missing="the drift of the scores is not known")
    # checks of scores may allow less than a row's tolerance
    if record.within_tolerance is False or any(check.finding.check in SCORES for check in failed):
        return snippet_of(record, audit.factories())
    off = f"{percent(record.drift_relative)} of their RMS at the first and the last positions"
    within = f"is within {limit_percent(audit.tolerance)}; the check is about something else"
    return Reproduction(missing=f"the drift of the scores, {off}, {within}")
