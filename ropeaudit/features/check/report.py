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
from ropeaudit.conformance.finding import INTERRUPTED, MARGIN, PAIR
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


def row(one: Checked) -> dict[str, Any]:
    """Return the row of a check."""
    finding, setting = one.finding, one.setting
    values = dict[str, Any].fromkeys(COLUMNS)
    for part in (setting, finding, one):
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
    for one in results:
        targets.setdefault(one.target, []).append(one)
    seen = {name: {one[name] for one in rows} for name in ("target", "dtype", "layer")}
    seen["layer"].discard(NONE)
    screen = [name for name in COLUMNS.screen(rows) if name not in seen or len(seen[name]) > 1]
    told = findings if len(targets) == 1 else ()  # several targets have no room for calls
    return tabulated(
        *(COLUMNS, SCHEMA, rows, screen, columns, metadata),
        answers=[answer(own, case or Case(), told) for own in targets.values()],
        notes=[*findings, *notes(results)],
        legend=_MARGIN if any(one.finding.unit == MARGIN for one in results) else "",
        faults=faults_of(results),
        brief=not columns,
    )


def notes(results: Sequence[Checked]) -> list[str]:
    """Return notes on checks that did not pass, on settings, and on checks that were not made."""
    messages, missing = list[str](), dict[str, list[str]]()
    for one in results:
        finding = one.finding
        if finding.status in _UNJUDGED:
            missing.setdefault(finding.detail, []).append(finding.check)
        elif finding.status != "pass" or finding.check == "config":
            messages.append(f"{one.target}, {one.label}: {finding.detail}")
    last = [f"not checked: {', '.join(dict.fromkeys(names))}: {why}" for why, names in missing.items()]
    return list(dict.fromkeys([*messages, *last]))


def faults_of(results: Sequence[Checked]) -> list[Fault]:
    """Return the failures that are not waived, in order, without errors of our own."""
    faults = []
    for one in (one for one in results if one.finding.failed and not one.finding.fault):
        finding, found, behaves = one.finding, one.finding.diagnosis, ""
        if found is not None and found.explains:  # with alternatives and further faults
            nearest = "nothing that was tried explains it; the nearest: "
            behaves = nearest if found.certainty == "resembles" else "behaves like: "
        words = (one.result_words, behaves + finding.resembles, finding.advice)
        message = printable("; ".join(filter(None, words)))
        rule = found.code if found else finding.check.replace(" ", "-")
        faults.append(Fault(rule, message, printable(one.target), one.label, *place_of(one)))
    return faults


def junit(results: Sequence[Checked]) -> bytes:
    """Return checks as JUnit XML for CI: a suite per target and dtype, a case per check.

    Elements and attributes are those of pytest (`--junit-xml`), without times; the type of a failure is the
    code of its diagnosis. Waived failures, checks that do not apply and targets without RoPE are skipped;
    notes are in system-out.
    """
    root = ElementTree.Element("testsuites", name="ropeaudit check")
    suites: dict[tuple[str, str], list[Checked]] = {}
    for one in results:
        suites.setdefault((one.target, one.dtype), []).append(one)
    for (target, dtype), checks in suites.items():
        name = printable(target if dtype == NONE else f"{target} {dtype}")
        tags = [_OF_JUNIT.get(one.finding.status, "skipped") for one in checks]
        failures, skipped = (str(tags.count(tag)) for tag in ("failure", "skipped"))
        shown = {"name": name, "errors": "0", "failures": failures, "skipped": skipped}
        suite = ElementTree.SubElement(root, "testsuite", shown | {"tests": str(len(checks))})
        for one, tag in zip(checks, tags, strict=True):
            finding, measured = one.finding, one.measurement
            layer = "" if one.layer in (NONE, "full_attention") else f" ({one.layer})"
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
    for one in own:
        if one.finding.status == "nothing to check":
            return Answer("OK", target, f"nothing to check: {one.finding.detail}")
    groups = _by_cause([one for one in own if one.finding.failed])
    doubtful = _by_cause([one for one in own if warns(one)])
    causes = [_cause(code, some) for code, some in groups.items()]
    causes += [replace(_cause(code, some), warning=True) for code, some in doubtful.items()]
    facts = [
        *_measurement_facts(own),
        *_limit_facts(own),
        *_call_facts(target, findings),
        *_assumption_facts(own, case),
    ]
    facts += [*_note_facts(own), *_not_checked_facts(own, case, findings)]
    if len(causes) > 1:
        causes[0] = _with_fewer_facts(causes[0], 2)
        causes[1:] = [replace(_with_fewer_facts(one, 1), file="", source="") for one in causes[1:]]
    if rest := causes[_MOST_CAUSES:]:
        facts.insert(0, ("more", f"{', '.join(one.code for one in rest)}: -v"))
    if causes:
        facts.append(("next", _next_steps(own[0], groups)))
    status: Status = "FAIL" if groups else "WARN" if causes else "PASS"
    return Answer(status, target, _reason(own, groups), causes[:_MOST_CAUSES], facts)


def text(own: Sequence[Checked], case: Case, findings: Sequence[str]) -> str:
    """Return the answer as text for Python users, without commands to type."""
    result = answer(_without_options(own), case, findings)
    facts = [fact for fact in result.facts if fact[0] != "next"]
    return "\n".join(plain([replace(result, facts=facts)]))


def _without_options(results: Sequence[Checked]) -> list[Checked]:
    """Return checks whose findings suggest no option of the command line."""
    return [replace(one, finding=replace(one.finding, option="")) for one in results]


def warns(one: Checked) -> bool:
    """Return whether a check that does not fail is a warning."""
    name, status = one.finding.check, one.finding.status
    telling = name in ("config keys", READING, RANGE, "dtype", "setting", "class table", "model decode")
    telling = telling or name.startswith("under ")
    return status == "waived" or (status == "info" and telling)


def _reason(own: Sequence[Checked], groups: dict[str, list[Checked]]) -> str:
    if not groups and (margin := _smallest_limit(own)):
        doubt = next((one.finding.where for one in own if warns(one) and one.finding.where), "")
        return f"{doubt}; {margin}" if doubt else margin
    judged = [one for one in own if one.judged]
    where = [first_names([parse(name).short for name in _dtypes(judged)])]
    for first in judged[:1]:
        if first.setting is not None and first.setting.grid is not None:
            where.append(f"{first.setting.grid.count:,} tokens, {first.setting.grid.words}")
        elif first.kind in ("code", "case") and first.up_to:
            begin = "positions of its calls up" if first.kind == "case" else "positions 0"
            where.append(f"{begin} to {first.up_to - 1:,}")
    counts, waived = counted(len(judged), "check"), sum(one.finding.status == "waived" for one in judged)
    wrong = f"{sum(one.finding.failed for one in judged)} of {counts}"
    if groups.keys() == {UNEXPLAINED}:
        counts = f"cause unknown, {wrong}"
    elif INTERRUPTED in groups:
        counts = f"not checked to its end, {wrong} failed" if judged else "not checked"
    elif groups:
        counts = f"{counted(len(groups), 'cause')}, {wrong}"
    elif waived:
        counts += f", {waived} waived"
    return "   ".join(filter(None, [", ".join(filter(None, where)), counts]))


def _dtypes(some: Sequence[Checked]) -> list[str]:
    return [name for name in dict.fromkeys(one.dtype for one in some) if name != NONE]


def _by_cause(some: Sequence[Checked]) -> dict[str, list[Checked]]:
    """Return checks by the code of their cause, the most frequent cause first.

    Of codes that explain a check equally well, the one that most checks share counts. Wrong scores have the
    cause of a wrong rotation, if there is one.
    """
    shared = Counter(code for one in some for code in _cause_codes(one))
    own = {id(one): max(_cause_codes(one), key=lambda code: shared[code]) for one in some}
    rotation = {one.dtype: own[id(one)] for one in some if one.finding.check == "rotation"}
    same: dict[str, str] = {}  # detail -> the first check with it, such as an error that all raise
    groups: dict[str, list[Checked]] = {}
    for one in some:
        code, diagnosis = own[id(one)], one.finding.diagnosis
        if diagnosis is None and one.finding.check in SCORES:
            code = rotation.get(one.dtype, code)
        if diagnosis is None and math.isnan(one.finding.measured):
            code = same.setdefault(one.finding.detail, code)
        groups.setdefault(code, []).append(one)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _cause_codes(one: Checked) -> list[str]:
    """Return the codes that explain a check equally well, else "unexplained" or its name."""
    found = one.finding.diagnosis
    if found is not None and found.certainty != "resembles":
        return codes(found).split("|")
    return [UNEXPLAINED if found or one.finding.unit == PAIR else one.finding.check.replace(" ", "-")]


def _cause(code: str, some: Sequence[Checked]) -> Cause:
    """Return the cause that checks share: title, place, size of the error and remedy."""
    first = next((one for one in some if code in _cause_codes(one)), some[0])
    finding, facts = first.finding, list[str]()
    pairs = [one for one in some if _excess(one) > 0 and one.dtype == first.dtype]
    explained = finding.diagnosis is not None and code != UNEXPLAINED
    title = finding.detail if finding.detail and len(finding.detail) <= _SHORT else first.result_words
    if len(title) > _SHORT and "; " in title[:_SHORT]:
        title = f"{title[: title.rindex('; ', 0, _SHORT)]}; more: -v"
    if explained:
        title = finding.resembles
    if pairs:
        rotated = [one for one in pairs if one.finding.check != "gradient"]
        worst = max(rotated or pairs, key=_excess).finding
        noun = "gradient" if worst.check == "gradient" else "rotation"
        size = f"{noun} error up to {_two_digits(worst.measured)} ({_two_digits(worst.allowed)} allowed)"
        title = title if explained else size
        facts.append(f"{size}: {worst.where}" if explained else f"worst: {worst.where}")
    else:
        facts += [
            text for text in (first.result_words, finding.detail) if text != title and len(text) <= _SHORT
        ]
    if tolerance := next((one.finding for one in some if one.finding.check == "score-error-limit"), None):
        off = f"{percent(tolerance.measured)} off (limit {limit_percent(tolerance.allowed)})"
        facts.append(f"scores are {off}: {tolerance.where}")
    if finding.diagnosis is not None and explained:
        facts.append(_CERTAIN.get(finding.diagnosis.certainty, ""))
    elif finding.diagnosis is not None and finding.diagnosis.explains:
        facts.append(f"closest known: {codes(finding.diagnosis)}: {finding.resembles}")
    if len(some) > 1:
        facts.append(f"checks: {first_names(list(dict.fromkeys(one.finding.check for one in some)))}")
    if finding.option:
        facts.append(f"if that is meant, give {finding.option}")
    if finding.remedy:
        facts.append(f"fix: {finding.remedy}")
    if title != finding.detail:
        facts += [finding.detail[finding.detail.index(mark) :] for mark in _WAIVERS if mark in finding.detail]
    placed = list(dict.fromkeys(one.finding.check for one in some))
    if all(name.startswith("under ") for name in placed):  # and nowhere else
        title = f"{first_names(placed)}: {title}"
    file, line = place_of(first)
    source = linecache.getline(file, line).strip() if line else ""
    return Cause(code, title, file, line, source, list(dict.fromkeys(filter(None, facts))))


def _with_fewer_facts(cause: Cause, most: int) -> Cause:
    """Return a cause with at most `most` facts, and its remedies."""
    fixes = [fact for fact in cause.facts[most:] if fact.startswith(("fix: ", *_WAIVERS))]
    return replace(cause, facts=[*cause.facts[:most], *fixes])


def _excess(one: Checked) -> float:
    """Return the error of a rotated pair ÷ allowed; 0 for other checks."""
    finding = one.finding
    return finding.measured / finding.allowed if finding.unit == PAIR and finding.allowed > 0 else 0.0


def _two_digits(value: float) -> str:
    return f"{value:#.2g}".rstrip(".")


def _measurement_facts(own: Sequence[Checked]) -> Facts:
    judged, facts = [one for one in own if one.judged], Facts()
    several = len(_dtypes(judged)) > 1 and judged[0].kind in ("code", "case")
    for dtype in _dtypes(judged):
        some, lines = [one for one in judged if one.dtype == dtype], Facts()
        by_name, worst = {one.finding.check: one.finding for one in some}, max(some, key=_excess)
        if wrong := sum(one.finding.failed for one in some):
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
    dtypes = _dtypes([one for one in own if one.finding.check == LIMIT])
    limits = [_smallest_limit([one for one in own if one.dtype == dtype]) for dtype in dtypes]
    decides = "" if any(one.finding.failed for one in own) else _smallest_limit(own)
    facts = [("limit", text) for text in limits if text != decides]
    patches = [
        f"{parse(one.dtype).short}, {one.finding.detail}" for one in own if one.finding.check == PATCHES
    ]
    facts += [("patches", text) for text in patches]
    casts = {parse(one.dtype).short: one.finding for one in own if one.finding.check == "cast module"}
    sizes = [f"{percent(one.measured)} in {dtype}" for dtype, one in casts.items() if one.measured >= 0]
    if sizes:
        off = f"scores {', '.join(sizes)} off at {next(iter(casts.values())).where}"
        facts.append(("inv_freq cast", f"{off}: cast the weights alone, not the module"))
    return facts


def _smallest_limit(some: Sequence[Checked]) -> str:
    """Return the smallest limit of a config in words; empty if none was checked."""
    limits = [one for one in some if one.finding.check == LIMIT]
    if not limits:
        return ""
    least = min(limits, key=lambda one: one.finding.measured)
    layer = f" of {least.layer}" if len({one.layer for one in limits}) > 1 else ""
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
    setting = next((one.setting for one in reversed(own) if one.setting is not None), None)
    if own[0].kind != "code" or setting is None:
        config = [one.finding for one in own if one.finding.check == "config"]
        return [("read", one.detail) for one in config if one.status == "pass"][:_MOST_FACTS]
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
    noted, facts = [one for one in own if one.finding.status == "info" and not warns(one)], dict[str, str]()
    for one in (one for one in noted if one.finding.check not in ("cast module", LIMIT)):
        several = sum(other.finding.check == one.finding.check for other in noted) > 1
        dtype = parse(one.dtype).short if one.dtype != NONE else ""
        which = ", ".join(filter(None, [dtype, one.finding.where])) if several else ""
        facts.setdefault(": ".join(filter(None, [which, one.finding.detail])), one.finding.check)
    return [(check, text) for text, check in facts.items()][:_MOST_FACTS]


def _not_checked_facts(own: Sequence[Checked], case: Case, findings: Sequence[str]) -> Facts:
    beyond = [text.partition(NOT_CHECKED)[2].rstrip(".") for text in findings if NOT_CHECKED in text]
    if limits := [one.finding.detail for one in own if one.finding.check == LIMIT]:
        apart = f"distances over {case.outline()[0].seq_len - 1} (ropeaudit limit --seq-len)"
        if all("; distance " in detail for detail in limits):
            apart = "distances between those tested"
        beyond.append(f"{apart}; other q and k")
    reasons: dict[str, dict[str, None]] = {}  # reason -> names of checks, each once
    for finding in (one.finding for one in own):
        if finding.status in ("not checked", "not applicable"):
            why = "--thorough" if finding.status == "not checked" else finding.detail
            reasons.setdefault(why, {})[finding.check] = None
    whole = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    if own[0].kind in ("model", "config"):  # other checks do not apply to a config
        whole = "; ".join(why for why, names in reasons.items() if PARTS in names)
    if len(whole) > _SHORT:
        left_out = reasons.pop("--thorough", {})
        names = [name for some in reasons.values() for name in some]
        thorough = f"{', '.join(left_out)} (--thorough); " if left_out else ""
        whole = f"{thorough}{first_names(names)} (why: -v)"
    whole = "; ".join(filter(None, [*beyond, whole]))
    return [("not checked", whole)] if whole else []


def _next_steps(one: Checked, groups: dict[str, list[Checked]]) -> str:
    known = [code for code in groups if code in kinds()]
    steps = [f"why: ropeaudit list diagnoses {known[0]}"] if known else []
    steps.append("all rows: -v")
    if groups and INTERRUPTED not in groups:
        steps.append("bug report: --ticket FILE.md")
        if one.kind == "code" and any(kinds()[code].group == "precision" for code in known):
            steps.append(f"by stage: ropeaudit explain {shlex.quote(one.target)}")
    return "    ".join(steps)


_TOKENS = 256  # of the sequences whose drift is measured


def check_ticket(results: Sequence[Checked], case: Case, options: CheckOptions) -> Ticket | None:
    """Return the ticket of the first failing target, or of a pass; None if neither is known.

    case: the RoPE setting of the options. Runs a snippet.
    """
    results = _without_options(results)
    first = next((one for one in results if one.finding.failed and not one.finding.fault), None)
    if first is None:
        if not results or any(one.finding.fault for one in results):
            return None
        targets = ", ".join(map(file_name, dict.fromkeys(one.target for one in results)))
        judged = [one for one in results if one.judged]
        first_row, *rows = map(row, judged or results)  # its facts are what all agree on
        facts = {name: value for name, value in first_row.items() if all(one[name] == value for one in rows)}
        facts["checks"], why = len(judged), Reproduction(missing="no check fails")
        return Ticket(f"{targets}: no check fails", report(results, None, {}), facts, "No check fails.", why)
    own = [one for one in results if one.target == first.target]
    own.sort(key=lambda one: not one.finding.failed)
    finding, where = first.finding, "" if first.dtype == NONE else f" in {first.dtype}"
    reproduction = Reproduction(missing=f"no code was called, {first.target} is a {first.kind}")
    if first.kind == "code":
        reproduction = _drift_snippet([one for one in own if one.finding.failed], case, options)
    return Ticket(
        f"{file_name(first.target)}: {finding.check}{where} fails{by_code(codes(finding.diagnosis))}",
        report(own, None, {}),
        row(first),
        f"{finding.check}: {'; '.join(filter(None, (finding.detail, first.measurement)))}",
        reproduction,
    )


def _drift_snippet(failed: Sequence[Checked], case: Case, options: CheckOptions) -> Reproduction:
    """Return a snippet that prints the drift at the first or last positions, or why there is none."""
    shown = next((one for one in failed if one.dtype != NONE and one.setting is not None), None)
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
    if record.within_tolerance is False or any(one.finding.check in SCORES for one in failed):
        return snippet_of(record, audit.factories())
    off = f"{percent(record.drift_relative)} of their RMS at the first and the last positions"
    within = f"is within {limit_percent(audit.tolerance)}; the check is about something else"
    return Reproduction(missing=f"the drift of the scores, {off}, {within}")
