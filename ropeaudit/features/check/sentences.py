"""The answer of a check in a sentence, and what its reader must know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ropeaudit.conformance.finding import INTERRUPTED, JUDGED, Finding
from ropeaudit.features.check.checked import NONE, Checked
from ropeaudit.features.check.config_target import LIMIT, MARGIN
from ropeaudit.recognition.diagnosis import Diagnosis, codes
from ropeaudit.reports.numbers import counted, short

_MOST = 3  # names that a sentence lists


def headline(results: Sequence[Checked], left: str = "") -> str:
    """Return the answer: what fails first, or what passed, and with which margin.

    left: a clause of the targets that were not begun, where an interruption left some.
    """
    judged = checks(results)
    targets = list(dict.fromkeys(one.target for one in judged))
    failed = [one for one in judged if one.finding.failed]
    cut = [one for one in results if one.finding.check == INTERRUPTED]
    if failed:
        first = failed[0]
        begin = f"{cut[0].target} was not checked to its end{left}; " if cut else ""
        text = (
            f"{begin}{_count(failed, judged, targets)}; {place(first)}{_code(first.finding)}: {seen(first)}"
        )
        return text if text.endswith("?") else f"{text}."
    if cut:
        return f"{cut[0].target}: {cut[0].finding.detail}."
    if not judged:
        return f"{_idle(results) or 'Nothing was checked'}."
    waived = sum(one.finding.status == "waived" for one in judged)
    aside = (
        f"; {waived} of them {'fails' if waived == 1 else 'fail'} and {'is' if waived == 1 else 'are'} waived"
    )
    passed = _passed(judged, targets)
    others = [one for one in results if one.target not in targets]
    rest = f". {_idle(others)}" if others else ""
    parts = [aside if waived else "", _margin(judged, len(targets) > 1), _exposed(results)]
    parts += [_refusing(results), _left(results)]
    return f"{passed}{''.join(parts)}{rest}."


def checks(results: Sequence[Checked]) -> list[Checked]:
    """Return what was judged, without what says that there is no more of it."""
    return [one for one in results if one.finding.status in JUDGED and one.finding.check != INTERRUPTED]


def interrupted(finding: Finding, later: Sequence[str], noun: str) -> Finding:
    """Return a finding; one that says what an interruption left names too what was to come after it."""
    if finding.check != INTERRUPTED:
        return finding
    return replace(finding, detail=finding.detail + not_begun(later, noun))


def not_begun(later: Sequence[str], noun: str) -> str:
    """Return a clause that names what was not begun, with its semicolon; nothing where nothing is left."""
    if not later:
        return ""
    verb = "was" if len(later) == 1 else "were"
    return f"; {counted(len(later), noun)} {verb} not begun: {_listed(later)}"


def _refusing(results: Sequence[Checked]) -> str:
    """Return that code refuses calls that servers make, where it does."""
    noted = [one for one in results if one.finding.status == "info" and one.finding.check == "served calls"]
    return "; it refuses some served calls (noted)" if noted else ""


def _left(results: Sequence[Checked]) -> str:
    """Return which checks were left out, for they are made on request alone."""
    names = list(dict.fromkeys(one.finding.check for one in results if one.finding.status == "left out"))
    return f"; left out: {_listed(names)} (--thorough)" if names else ""


def _exposed(results: Sequence[Checked]) -> str:
    """Return in which environments, none of them requested, code is not right."""
    noted = [one.finding.check for one in results if one.finding.status == "info"]
    names = list(dict.fromkeys(name for name in noted if name.startswith("under ")))
    return f"; not right {', '.join(names)} (noted; --under judges it)" if names else ""


def _idle(results: Sequence[Checked]) -> str:
    """Return in which targets there is nothing to check, and why in the first; empty where in none."""
    reasons = {one.target: one.finding for one in results if one.finding.status == "nothing to check"}
    if not reasons:
        return ""
    reason = next(iter(reasons.values())).detail
    return f"Nothing to check in {_listed(reasons)}: {reason}"


def _count(failed: Sequence[Checked], judged: Sequence[Checked], targets: Sequence[str]) -> str:
    worst = failed[0]
    own = [one for one in judged if one.target == worst.target]
    count = f"{worst.target} fails {sum(one.finding.failed for one in own)} of {_checks(own)}"
    if len(targets) == 1:
        return count
    many = len({one.target for one in failed})
    return f"{many} of {len(targets)} targets {'fails' if many == 1 else 'fail'}: {count}"


def _passed(judged: Sequence[Checked], targets: Sequence[str]) -> str:
    if len(targets) > 1:
        return f"None of {len(targets)} targets fails any of {_checks(judged)} ({_listed(targets)})"
    dtypes = [one for one in dict.fromkeys(one.dtype for one in judged) if one != NONE]
    inside = f" in {', '.join(dtypes)}" if dtypes else ""
    verb = "passes all" if all(one.finding.status == "pass" for one in judged) else "has"
    places = [one for one in judged if one.kind in ("code", "case")]
    which = "positions" if places and places[0].kind == "code" else "the positions of its calls,"
    last = f", at {which} up to {places[0].up_to - 1:,}" if places else ""
    return f"{targets[0]} {verb} {_checks(judged)}{inside}{last}"


def _margin(judged: Sequence[Checked], several: bool) -> str:
    """Return the smallest margin of configs, and whether it is proved."""
    margins = [one for one in judged if one.finding.check == LIMIT and one.finding.status == "pass"]
    if not margins:
        return ""
    least = min(margins, key=lambda one: one.finding.measured)
    who = f" ({least.target})" if several else ""
    layer = f" of {least.layer}" if least.layer in _layers(judged, least.target) else ""
    size = least.finding.measured
    times = short(size) if size < 1000 else f"{size:,.0f}"
    return (
        f"; smallest margin {times} times its {least.up_to:,} positions in {least.dtype}{layer}{who} "
        f"({least.finding.where})"
    )


def _layers(judged: Sequence[Checked], target: str) -> set[str]:
    """Return the layer types of a target that has several."""
    layers = {one.layer for one in judged if one.target == target} - {NONE}
    return layers if len(layers) > 1 else set()


def seen(one: Checked) -> str:
    """Return what was measured, where, and what it behaves like."""
    return "; ".join(filter(None, (seen_at(one.finding), explanation(one.finding))))


def seen_at(finding: Finding) -> str:
    """Return what was measured, and where; what was seen where that is no number."""
    measured = measured_words(finding)
    parts = [measured, finding.where] if measured else [finding.detail]
    return ", ".join(part for part in parts if part)


def _code(finding: Finding) -> str:
    """Return the code of what explains a failure, in brackets; nothing where nothing does."""
    found = finding.diagnosis
    return "" if found is None else f" ({'nearest ' * _only_nearest(found)}{codes(found)})"


def _only_nearest(found: Diagnosis) -> bool:
    return found.explains and found.certainty == "resembles"


def explanation(finding: Finding) -> str:
    """Return what it behaves like and what to change; nothing where neither is known."""
    found, behaves = finding.diagnosis, finding.resembles
    if found is not None and found.explains:
        near = "nothing that was tried explains it; the nearest"
        behaves = f"{near if _only_nearest(found) else 'behaves like'}: {behaves}"
    return "; ".join(filter(None, (behaves, finding.advice)))


def measured_words(finding: Finding) -> str:
    """Return what was measured and what is allowed; nothing where there is no number."""
    if math.isnan(finding.measured):
        return ""
    word = "needed" if finding.unit == MARGIN else "allowed"
    shown = "{:,.0f}".format if finding.unit == "positions" else short
    allowed = "" if math.isnan(finding.allowed) else f", {word} {shown(finding.allowed)}"
    return f"{shown(finding.measured)} {finding.unit}{allowed}"


def place(one: Checked) -> str:
    """Return the name of a check, with the layer type and the dtype that it is of."""
    layer = f" of {one.layer}" if one.layer not in (NONE, "full_attention") else ""
    return one.finding.check + layer + ("" if one.dtype == NONE else f" in {one.dtype}")


def notes(results: Sequence[Checked]) -> list[str]:
    """Return what was seen of failures, what was read and is not judged, and what was not checked and why."""
    several = len({one.target for one in results}) > 1
    messages = []
    for status in ("fail", "waived"):
        messages += _failures([one for one in results if one.finding.status == status])
    for one in results:
        if one.finding.check == "config" and one.finding.status == "pass":
            layer = f", {one.layer}" if one.layer in _layers(results, one.target) else ""
            messages.append(f"{one.target}{layer}: {one.finding.detail}")
    noted: dict[str, str] = {}
    for one in results:
        if one.finding.status == "info":
            noted.setdefault(
                f"{one.target} {one.layer} {one.finding.check}",
                f"{f'{one.target}, ' if several else ''}{place(one)}: {one.finding.detail}",
            )
    missing: dict[str, list[str]] = {}
    for one in results:
        if one.finding.status in ("nothing to check", "left out", "not applicable"):
            missing.setdefault(one.finding.detail, []).append(one.finding.check)
    last = [f"not checked: {', '.join(dict.fromkeys(names))}: {why}" for why, names in missing.items()]
    return list(dict.fromkeys([*messages, *noted.values(), *last]))


def _failures(failed: Sequence[Checked]) -> list[str]:
    """Return what was seen of each check, then each diagnosis that several share, once, with its checks."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for one in failed:
        groups.setdefault((one.target, explanation(one.finding)), []).append(one)
    shared = {key: group for key, group in groups.items() if key[1] and len(group) > 1}
    messages = []
    for one in failed:
        known = explanation(one.finding)
        told = _told(one, "" if (one.target, known) in shared else known)
        messages.append(f"{one.target}, {place(one)}: {told}")
    for (target, known), group in shared.items():
        messages.append(f"{target}, {'; '.join(_places(group))}: {known}")
    return messages


def _places(some: Sequence[Checked]) -> list[str]:
    """Return the names of checks, together where layer type and dtype are one."""
    names: dict[str, list[str]] = {}
    for one in some:
        names.setdefault(place(one)[len(one.finding.check) :], []).append(one.finding.check)
    return [", ".join(checks) + rest for rest, checks in names.items()]


def _told(one: Checked, diagnosis: str) -> str:
    """Return all that is known of a check."""
    detail, measured = one.finding.detail, seen_at(one.finding)
    return "; ".join(filter(None, (measured, diagnosis, "" if measured == detail else detail)))


def _checks(some: Sequence[Checked]) -> str:
    return counted(len(some), "check")


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST} more" if len(listed) > _MOST else ""
    return ", ".join(listed[:_MOST]) + more
