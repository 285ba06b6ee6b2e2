"""What was found of RoPE buffers, as an answer for people."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.module import built
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.buffers import FREQUENCIES, Buffer
from ropeaudit.recognition import wording
from ropeaudit.recognition.stored_drift import FAR, NEAR
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import counted, percent
from ropeaudit.runtime.paths import shown_path
from ropeaudit.subjects.calling.environments import ENVIRONMENTS

_POSITIONS = 4096  # that a remedy is written for
_GIVE = "--config, --model or --base"


def answer(audit: ModuleAudit) -> Answer:
    """Return whether a source is wrong, right or not judged, and why."""
    status, decides = _decided(audit)
    return Answer(status, audit.source.spec, decides, _causes(audit), _facts(audit))


def _decided(audit: ModuleAudit) -> tuple[Status, str]:
    """Return the status, and what it rests on: what was not judged is no pass, as the exit code says too."""
    source, buffers = audit.source, audit.buffers
    total = counted(len(buffers), f"RoPE {source.noun}")
    if audit.lost:
        return "FAIL", f"{counted(len(audit.lost), 'setting')} lost in conversion"
    if audit.wrong:
        return "FAIL", _wrong(audit)
    if audit.judged and all(one.agrees for one in buffers):
        return "OK", f"{len(buffers)} of {total} within float32 rounding"
    if audit.judged:
        return "WARN", f"no cast shows in {total}; nothing says which values are right"
    if source.buffers:
        some = source.kind != "gguf" and any(one.judged for one in buffers)
        return "FAIL", "not all was judged" if some else "nothing was judged"
    none = f"no RoPE {source.noun} among {counted(source.tensors, 'tensor')}"
    if source.module is None:
        return "FAIL", f"nothing was judged: {none}"
    return "FAIL", f"nothing is stored: {none}; {_check(audit)} calls it"


def _check(audit: ModuleAudit) -> str:
    """Return the command that calls a module, under the loading modes that it knows."""
    under = ",".join(mode for mode in audit.source.modes if mode in ENVIRONMENTS)
    return f"`ropeaudit check {audit.source.spec}{under and f' --under {under}'}`"


def _wrong(audit: ModuleAudit) -> str:
    """Return how many buffers were cast and are off, and in which loading modes."""
    modes = dict[str, list[str]]()
    for mode in dict.fromkeys(one.loaded for one in audit.buffers if one.wrong):
        own = [one for one in audit.buffers if one.loaded == mode]
        of = f"of {counted(len(own), f'RoPE {audit.source.noun}')}"
        cast = sum(one.cast != "none" for one in own)
        counts = {"cast": cast, "off": sum(one.wrong for one in own) - cast}
        words = " and ".join(f"{count} {of} {word}" for word, count in counts.items() if count)
        several = len(audit.source.modes) > 1
        modes.setdefault(words, []).append(f" {built.in_words(mode)}" if several else mode_of(own[0]))
    return ", ".join(f"{words}{' and'.join(some)}" for words, some in modes.items())


def mode_of(one: Buffer) -> str:
    """Return how its module was loaded, to follow what is said of a buffer; empty as built and of a file."""
    return "" if one.as_built is None else f" {built.in_words(one.loaded)}"


def _causes(audit: ModuleAudit) -> list[Cause]:
    """Return a cause for each setting that was lost, or else for each code of buffers."""
    causes, groups = list[Cause](), dict[str, list[Buffer]]()
    for lost in audit.lost:
        title = f"{lost.layer + ' layers: ' if lost.layer else ''}{wording.sentence(lost.diagnosis)}"
        effect = [] if causes or not audit.buffers else [_effect(max(audit.buffers, key=size))]
        facts = [f"{lost.keys} is not what config.json says", *filter(None, effect)]
        causes.append(Cause(lost.diagnosis.code, title, facts=facts))
    for one in audit.buffers if not causes else ():
        if one.wrong:
            code = one.diagnosis.code if one.diagnosis else one.stored.name.rpartition(".")[2]
            groups.setdefault(code, []).append(one)
    return causes + [_cause(audit, code, some) for code, some in groups.items()]


def remedy_of(audit: ModuleAudit, one: Buffer) -> str:
    """Return what to do about a wrong buffer; empty where nothing is known."""
    own = one.remedy(audit.source.expected) if audit.source.kind == "checkpoint" else ""
    return own or wording.remedy(one.diagnosis, FP32, _POSITIONS)


def _cause(audit: ModuleAudit, code: str, some: Sequence[Buffer]) -> Cause:
    """Return what all buffers of one code have in common; the worst stands for all."""
    first, *rest = sorted(some, key=size, reverse=True)
    title, place, fix = _title(first), ("", 0, ""), remedy_of(audit, first)
    more = f" and {len(rest)} more" if rest else ""
    used = f"; used by {first.stored.use.words}" if first.stored.use is not None else ""
    measured = first.measured if first.measured not in title else ""
    cast = _cast(first)
    if audit.source.module is not None:
        holder = audit.source.module.get_submodule(first.stored.name.rpartition(".")[0])
        place = _definition(type(holder))
    facts = [
        f"{first.stored.name}{more}{mode_of(first)}: {cast or measured or 'off'}{used}",
        "; ".join(filter(None, [measured if cast else "", _effect(first)])),
        *[f"{one.stored.name}: {_title(one)}" for one in rest if _title(one) != title][:1],
        f"fix: {fix}" if fix else "",
    ]
    return Cause(code, title, *place, facts=[fact for fact in facts if fact])


def _title(one: Buffer) -> str:
    """Return what explains that a buffer is wrong, or that nothing known does."""
    known = one.diagnosis is not None and one.diagnosis.certainty != "resembles" and not one.imaginary_lost
    return wording.sentence(one.diagnosis) if known else one.finding.rstrip(".")


def size(one: Buffer) -> tuple[float, float]:
    """Return what sorts buffers: what they do to scores, then their largest error."""
    return one.drift_near or 0.0, one.error or 0.0


def _cast(one: Buffer) -> str:
    """Return how a buffer came to hold narrow numbers; empty if it does not."""
    return {
        "stored": f"stored in {one.cast}, which no later conversion restores",
        "graph": f"converted to {one.cast} by the graph: leave out that conversion",
        "back": f"its values are {one.cast} numbers: cast and cast back, which restores nothing",
    }.get(one.how, "")


def _effect(one: Buffer) -> str:
    """Return what the values of a buffer by themselves do to scores."""
    if one.drift_near is None:
        return ""
    far = "" if one.drift_far is None else f", {percent(one.drift_far)} at distance {FAR:,}"
    return f"these values alone put scores {percent(one.drift_near)} off within {NEAR} tokens{far}"


def _definition(cls: type) -> tuple[str, int, str]:
    """Return file, line and text of the definition of a class; ("", 0, "") if unknown."""
    try:
        lines, line = inspect.getsourcelines(cls)
        return shown_path(inspect.getfile(cls)), line, lines[0]
    except (OSError, TypeError):
        return "", 0, ""


def _facts(audit: ModuleAudit) -> list[tuple[str, str]]:
    """Return what was measured, against what, what was not checked, and what to type."""
    source, facts = audit.source, list[tuple[str, str]]()
    if source.module is not None:
        off = {one.loaded for one in audit.buffers if one.wrong}
        held = dict.fromkeys(one.loaded for one in audit.buffers if one.loaded not in off)
        facts.append(("nothing off" if off else "loaded", ", ".join(map(built.in_words, held))))
    errors = [one for one in audit.buffers if one.error is not None]
    if errors and not audit.wrong:
        largest = max(errors, key=lambda one: one.error or 0.0)
        unit = "relative" if largest.what in FREQUENCIES else "rad"
        facts.append(("largest error", f"{largest.error:.2g} {unit} ({largest.stored.name})"))
    given = {one.label: one.guessed for one in audit.buffers if one.table is not None}
    facts.append(("compared with", " and ".join(name for name, guessed in given.items() if not guessed)))
    assumed = " and ".join(name for name, guessed in given.items() if guessed)
    facts.append(("assumed", f"{assumed}, from the values ({_GIVE} says what is right)" if assumed else ""))
    if source.gguf is not None and not source.explicit:
        rope = source.gguf
        facts.append(("read", setting_words(rope.setting, rope.axes, rope.model.served)))
    facts.append(("not checked", "; ".join(_unchecked(audit))))
    facts.append(("next", _next(audit)))
    return [fact for fact in facts if fact[1]]


def _unchecked(audit: ModuleAudit) -> list[str]:
    """Return what was not checked, and what the source does not show."""
    parts, source = list[str](), audit.source
    for one in audit.buffers:
        if one.table is None and not one.nonfinite:
            parts.append(f"{one.stored.name} ({one.finding.rstrip('.')})")
        if one.stored.use is not None and one.stored.use.mixed:
            parts.append(f"{one.stored.name} as converted, which differs by node")
    if source.module is None:
        return [*parts[:3], "positions and the code that rotates (check FILE:NAME)"]
    tried = {mode.partition(":")[0] for mode in source.modes}
    left = [mode for mode in built.MODES if mode not in tried]
    others = [f"other loading modes: {', '.join(left)} (--loaded)"] if left else []
    return [f"forward, which was not called: {_check(audit)} calls it", *dict.fromkeys(parts[:3]), *others]


def _next(audit: ModuleAudit) -> str:
    """Return what to type for details or, without a judgement, to get one."""
    source = audit.source
    if source.kind == "gguf" and not source.explicit and not audit.wrong:
        return "put its config.json beside it, or give --config"
    if audit.buffers:
        rows = f"{'pair by pair' if source.kind == 'dump' else 'all rows'}: -v"
        return f"{rows}    bug report: --ticket FILE" if audit.wrong else rows
    return {
        "graph": "give the module that was exported (file.py:function)",
        "checkpoint": "frequencies are computed on loading: give the function that loads it, "
        "such as FILE.py:load",
    }.get(source.kind, "")
