"""What was found of a module's RoPE buffers and runs, as an answer."""

from __future__ import annotations

import inspect
import linecache
import math
import os
from collections.abc import Sequence
from typing import Any

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.features.module.buffers import FREQUENCIES, ROWS, Buffer
from ropeaudit.features.module.expected import FAR, NEAR
from ropeaudit.features.module.measurement import LAST, UP_TO, Measurement
from ropeaudit.features.module.runs import WAYS, Run
from ropeaudit.recognition import wording
from ropeaudit.reports.answers import Answer, Cause, Status
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import counted, percent, short
from ropeaudit.runtime.paths import shown_path

_MODES = dict(zip(WAYS, ("as built", ".to(dtype)", "default dtype", "from_pretrained(dtype)"), strict=True))
_GIVE = "--config, --model or --base"


def answer(audit: ModuleAudit) -> Answer:
    """Return whether a source is wrong, right or not judged, and why."""
    buffers, ran = audit.buffers, [one for one in audit.runs if one.measured is not None]
    noun, total = f"RoPE {audit.source.noun}", counted(len(audit.runs), "run")
    if audit.wrong:
        cast = sum(one.cast != "none" for one in buffers)
        off = sum(one.wrong for one in buffers)
        counts = {f"of {counted(len(buffers), noun)} cast": cast}
        counts |= {f"of {counted(len(buffers), noun)} off": off - cast}
        counts |= {f"of {total} off": sum(one.wrong for one in audit.runs)}
        decides = ", ".join(f"{count} {of}" for of, count in counts.items() if count)
        if audit.lost:
            decides = f"{counted(len(audit.lost), 'setting')} lost in conversion"
        return Answer("FAIL", audit.source.spec, decides, _lost(audit) or _causes(audit), _facts(audit))
    right = sum(one.agrees is True for one in buffers)
    if audit.judged and (ran or right == len(buffers)):
        seen = f"{len(ran)} of {total}" if ran else f"{right} of {counted(len(buffers), noun)}"
        return Answer("OK", audit.source.spec, f"{seen} within float32 rounding", (), _facts(audit))
    decides = f"no cast shows in {counted(len(buffers), noun)}; nothing says which values are right"
    if not buffers:
        decides = f"nothing was judged: no {noun} among {counted(audit.source.tensors, 'tensor')}"
    elif not audit.judged:
        some = audit.source.kind != "gguf" and any(one.judged for one in buffers)
        decides = "not all was judged" if some else "nothing was judged"
    # what was not judged is no pass: the exit code says so too
    status: Status = "WARN" if audit.judged else "FAIL"
    return Answer(status, audit.source.spec, decides, (), _facts(audit))


def _lost(audit: ModuleAudit) -> list[Cause]:
    """Return a cause per setting lost in conversion; the first has the effect of all."""
    effect = _effect(max(audit.buffers, key=_size)) if audit.buffers else ""
    causes = list[Cause]()
    for one in audit.lost:
        title = f"{one.layer + ' layers: ' if one.layer else ''}{wording.sentence(one.diagnosis)}"
        facts = f"{one.keys} is not what config.json says", "" if causes else effect
        causes.append(Cause(one.diagnosis.code, title, facts=[fact for fact in facts if fact]))
    return causes


def _causes(audit: ModuleAudit) -> list[Cause]:
    """Return a cause for each code, runs first if loading modes were given."""
    groups: dict[str, list[Buffer | Run]] = {}
    both: tuple[Buffer | Run, ...] = (*audit.buffers, *audit.runs)
    for one in sorted(both, key=lambda one: isinstance(one, Buffer) == audit.ways):
        if one.wrong:
            failed = one.stored.name.rpartition(".")[2] if isinstance(one, Buffer) else one.built.kind
            groups.setdefault(one.diagnosis.code if one.diagnosis else failed, []).append(one)
    return [_cause(audit, code, some) for code, some in groups.items()]


def _cause(audit: ModuleAudit, code: str, some: Sequence[Buffer | Run]) -> Cause:
    """Return what all of one code have in common; the worst stands for all."""
    buffers = sorted((one for one in some if isinstance(one, Buffer)), key=_size, reverse=True)
    runs = sorted((one for one in some if isinstance(one, Run)), key=badness, reverse=True)
    worst = buffers[0] if isinstance(some[0], Buffer) else runs[0]
    title, fix = _title(worst), wording.remedy(worst.diagnosis, FP32, UP_TO)
    facts, place = list[str](), ("", 0, "")
    for first in buffers[:1]:
        more = f" and {len(buffers) - 1} more" if buffers[1:] else ""
        used = f"; used by {first.stored.use.words}" if first.stored.use is not None else ""
        measured = first.measured if first.measured not in title else ""
        facts.append(f"{first.stored.name}{more}: {_cast(first) or measured or 'off'}{used}")
        facts.append("; ".join(filter(None, [measured if _cast(first) else "", _effect(first)])))
        others = [one for one in buffers if isinstance(worst, Buffer) and _title(one) != title]
        facts += [f"{one.stored.name}: {_title(one)}" for one in others[:1]]
        fix = (first.remedy(audit.source.expected) if audit.source.kind == "checkpoint" else "") or fix
        if audit.source.module is not None:
            holder = audit.source.module.get_submodule(first.stored.name.rpartition(".")[0])
            place = _definition(holder, "__init__")
    for run in runs[:1]:
        begin = f"{len(runs)} of {counted(len(audit.runs), 'run')} off; {run.module} {run.way}"
        facts.append(f"{begin}: {finding(run, brief=True)}")
        seen = run.measured
        if seen is not None and not seen.nonfinite and not buffers:  # whose effect is said already
            scores = f"scores of the last {LAST} positions are {percent(seen.drift)} off by that alone"
            facts.append(f"{short(seen.allowed)} is allowed; {scores}")
        place = _definition(run.built.module, "forward")
    facts.append(f"fix: {fix}" if fix else "")
    return Cause(code, title, *place, facts=[fact for fact in facts if fact])


def _title(one: Buffer | Run) -> str:
    """Return what explains that a buffer or a run is wrong, or that nothing known does."""
    if one.diagnosis is not None and one.diagnosis.certainty != "resembles":
        return wording.sentence(one.diagnosis)
    if isinstance(one, Buffer):
        return one.finding.rstrip(".")
    if one.imaginary_lost:
        return "the cast loses the imaginary part (sin) of a complex table"
    return f"what {one.module} returns is off, and no known fault explains it"


def _size(one: Buffer) -> tuple[float, float]:
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


def _definition(owner: Any, method: str) -> tuple[str, int, str]:
    """Return file, line and text of a method's definition; ("", 0, "") if unknown."""
    code = getattr(inspect.unwrap(vars(type(owner)).get(method, len)), "__code__", None)
    if code is None or not os.path.isfile(code.co_filename):
        return "", 0, ""
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):  # decorators
        line += 1
    return shown_path(code.co_filename), line, linecache.getline(code.co_filename, line)


def _facts(audit: ModuleAudit) -> list[tuple[str, str]]:
    """Return what was measured, how, what was not checked, and what to type."""
    source, facts = audit.source, list[tuple[str, str]]()
    given = {one.label: one.guessed for one in audit.buffers if one.table is not None}
    measured = [(one, one.measured) for one in audit.runs if one.measured is not None]
    for run, _ in measured:
        words = run.built.against
        given[words.removesuffix(" (guessed)")] = run.built.as_built or words.endswith("(guessed)")
    if measured:
        worst, seen = max(measured, key=lambda both: (both[1].rounded, badness(both[0])))
        once = f"; one rounding to {seen.returned} explains it" if seen.rounded else ""
        size = f"{short(seen.cos_error)} of {short(seen.allowed)} allowed at position {seen.worst:,}{once}"
        facts += [] if audit.wrong else [("cos error", f"{size} ({worst.module} {worst.way})")]
        facts.append(
            ("called as", f"{worst.built.call}, positions 0 to {seen.positions - 1:,}, in eval mode")
        )
    elif (errors := [one for one in audit.buffers if one.error is not None]) and not audit.wrong:
        largest = max(errors, key=lambda one: one.error or 0.0)
        unit = "relative" if largest.what in FREQUENCIES else "rad"
        facts.append(("largest error", f"{largest.error:.2g} {unit} ({largest.stored.name})"))
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
    parts = [f"what {kind} returns ({why.reason})" for kind, why in audit.unjudged.items()]
    left = [mode for way, mode in _MODES.items() if way not in {one.loaded for one in audit.runs}]
    if audit.runs and left:
        parts.append(f"other loading modes: {', '.join(left)} (--loaded)")
    for one in audit.buffers:
        if one.table is None and not one.nonfinite:
            parts.append(f"{one.stored.name} ({one.finding.rstrip('.')})")
        if one.unseen:
            parts.append(f"{one.stored.name} behind row {ROWS:,} ({counted(one.unseen, 'row')})")
        if one.stored.use is not None and one.stored.use.mixed:
            parts.append(f"{one.stored.name} as converted, which differs by node")
    return [
        *parts[:3],
        *([] if audit.source.kind == "module" else ["positions and the code that rotates (check FILE:NAME)"]),
    ]


def _next(audit: ModuleAudit) -> str:
    """Return what to type for details or, without a judgement, to get one."""
    source = audit.source
    rows = f"{'pair by pair' if source.kind == 'dump' else 'all rows'}: -v"
    if audit.wrong:
        return f"{rows}    bug report: --ticket FILE"
    if source.kind == "gguf" and not source.explicit:
        return "put its config.json beside it, or give --config"
    if audit.buffers or audit.runs:
        return rows
    if source.kind == "graph":
        return "give the module that was exported (file.py:function)"
    return (
        ""
        if source.kind == "module"
        else "frequencies are computed on loading: give the function that loads it, such as FILE.py:load"
    )


_PART = 0.01  # share of what is allowed, above which a part of it is named


def finding(one: Run, *, brief: bool = False) -> str:
    """Return what a run showed, in a clause. brief: without limit and explanation."""
    seen = one.measured
    if seen is None:
        error = one.buffer_error
        held = f"; its buffers are off by up to {percent(error)}" if error is not None and one.wrong else ""
        begin = "not judged" if one.unfitted and one.unfitted.why == "not seen" else "not run"
        return f"{begin}: {one.reason}{held}"
    lost = "its complex table is real after that cast, so that its imaginary part (sin) is lost; "
    lost = lost if one.imaginary_lost else ""
    if seen.nonfinite:
        others = f"; of the others cos is off by up to {short(seen.cos_error)} (at position {seen.worst})"
        return f"{lost}{seen.nonfinite} values of what it returns are nan or infinite{others}"
    begin = f"{lost}{seen.distinct} of {seen.positions} positions stay distinct, "
    if seen.distinct == seen.positions:
        begin = f"{lost}all {seen.positions} positions are distinct, "
    worst = f"cos is off by up to {short(seen.cos_error)} (at position {seen.worst})"
    if one.built.as_built:
        worst = f"{worst}, compared with {one.built.against}"
    if not one.wrong and not seen.rounded:
        return f"{begin}{worst}"
    if not seen.cos_error > seen.allowed:
        worst = f"{worst}, and sin by up to {short(seen.sin_error)}"
    if brief:
        return f"{begin}{worst}"
    if seen.sin_error > seen.allowed or seen.cos_error > seen.allowed:
        text = f"{begin}{worst}, where {explained(seen)} explain {short(seen.allowed)} at most"
    else:
        text = f"{begin}{worst}: at one place {short(seen.excess)} times what {explained(seen)} explain"
    if seen.diagnosis is not None and not seen.rounded:
        text = f"{text}; {wording.sentence(seen.diagnosis)}"
    if seen.rounded:
        return f"{text}; one rounding to {seen.returned}, which it returns now, explains it"
    return text


def explained(seen: Measurement) -> str:
    """Return what errors are compared with, in words."""
    rounds = seen.returns not in ("angles", "complex")
    as_built = ", which it returns as built," if seen.usual != seen.returned else ""
    angles = "float32 frequencies and angles" if seen.of_frequencies else "float32 angles"
    parts = [angles, *([f"rounding to {seen.usual}{as_built}"] if rounds else [])]
    if seen.uncertain > _PART * seen.allowed:
        parts.append(f"frequencies that are inferred from it (up to {short(seen.uncertain)})")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def badness(one: Run) -> tuple[float, float]:
    """Return what sorts runs: errors of cos, then those of buffers that were not run."""
    if one.measured is None:
        return (-1.0, one.buffer_error or 0.0)
    return (math.inf if one.measured.nonfinite else one.measured.cos_error, 0.0)
