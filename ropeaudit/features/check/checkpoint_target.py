"""The checks of files of weights: checkpoints and GGUF files.

Of a checkpoint: config, stored RoPE buffers, and the model if it is run. Of a GGUF file: its metadata about
RoPE, and what the conversion lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.conformance.finding import Finding, Status, judged, not_applicable, noted
from ropeaudit.errors import BadInput
from ropeaudit.features.check import config_target
from ropeaudit.features.check.checked import Checked, Target
from ropeaudit.features.model import analysis as model_analysis
from ropeaudit.features.model import load
from ropeaudit.features.model.analysis import NotShifted, Shifted
from ropeaudit.features.module import analysis as module_analysis
from ropeaudit.features.module import built
from ropeaudit.features.module.buffers import FREQUENCIES, Buffer
from ropeaudit.features.module.judging import Expected, ModuleAudit, remedy
from ropeaudit.recognition import wording
from ropeaudit.recognition.check import check
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.stored_values import FAR, NEAR
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.reports.numbers import percent, short
from ropeaudit.rope import hf_json
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.runtime import digests, doing
from ropeaudit.tensor_files.rope_values import Dump

_MODEL_DTYPES = ("fp32", "bf16")
_DECODE, _CLASS = "model decode", "class table"
_FACTOR_ERROR = 1e-5  # relative: attention factors nearer than this are the same number


def checks(target: Target) -> Iterator[Checked]:
    """Yield the checks of a checkpoint. Raises: see `analysis.check`."""
    options = target.options
    runs = options.text is not None or options.tokens is not None
    if runs:
        load.versions(
            "--tokens and --text run the model, which needs",
            ", or leave them out: what is stored is checked without",
        )
    yield from doing.in_parts(
        [_file_checks(target), _model_checks(target)] if runs else [_file_checks(target)]
    )


def _file_checks(target: Target) -> Iterator[Checked]:
    if (Path(target.name) / "config.json").is_file():
        yield from config_target.checks(target)
    else:
        missing = not_applicable("config", "there is no config.json; give the model's folder")
        yield target.checked(missing)
    audit = _audit_file(target)
    yield from map(target.checked, _stored_buffer_findings(audit))
    if audit.config and not audit.unrotated and Path(target.name).is_dir():
        yield from map(target.checked, _class_findings(target, audit.expected, audit.own_code))
    target.note(audit.notes)


def of_gguf(target: Target) -> Iterator[Checked]:
    """Yield the checks of a GGUF file: what the conversion lost, and its metadata.

    Raises: BadInput, MissingPackage.
    """
    audit = _audit_file(target)
    rope = audit.gguf
    if rope is None:
        yield target.checked(Finding("conversion", "nothing to check", audit.unrotated))
        return
    digest = digests.of_bytes(repr((rope.architecture, rope.model, rope.divisors)).encode())
    about: dict[str, Any] = {
        "version": digest,
        "setting": rope.setting,
        "up_to": rope.model.maximum or 0,
    }
    yield from (target.checked(finding, **about) for finding in _conversion_findings(audit, rope))
    target.note(audit.notes)


def _audit_file(target: Target) -> ModuleAudit:
    """Run `module` on a file. Raises: BadInput, MissingPackage."""
    names = ("config", "model", "base", "scaling", "head_dim", "rotary_dim")
    return module_analysis.module(target.name, **{name: getattr(target.case, name) for name in names})


def _stored_buffer_findings(audit: ModuleAudit) -> Iterator[Finding]:
    expected = audit.expected
    if audit.unrotated:
        yield Finding("stored buffers", "nothing to check", audit.unrotated)
        return
    if not audit.buffers:
        why = f"none of {audit.tensors} tensors is a RoPE buffer; the code computes them"
        yield not_applicable("stored buffers", why)
    alike: dict[tuple[object, ...], list[Buffer]] = {}
    for buffer in audit.buffers:
        alike.setdefault((buffer.what, buffer.cast, buffer.how, buffer.agrees, buffer.finding), []).append(
            buffer
        )
    for group in alike.values():
        buffer = max(group, key=lambda buffer: buffer.error or 0.0)
        cast = f"stored in {buffer.cast}; " if buffer.how == "stored" else f"cast to {buffer.cast} and back; "
        found = buffer.finding if buffer.ends else buffer.measured or buffer.finding
        detail = f"{cast * (buffer.cast != 'none')}{found.rstrip('.')}"
        within = buffer.ends and buffer.table is not None and buffer.table.agrees  # as far as it goes
        if buffer.drift_near is not None and not within:
            detail += f"; drift {percent(buffer.drift_near)} within {NEAR} tokens"
        far = FAR if expected.positions is None else expected.positions - 1
        if far >= NEAR and not within and (distant := buffer.drift_at(far)) is not None:
            detail += f", {percent(distant)} at a distance of {far:,}"
        status: Status = "fail" if buffer.wrong else "info" if buffer.agrees is None else "pass"
        unit = "relative" if buffer.what in FREQUENCIES else "radians"
        sizes = math.nan if buffer.error is None or within else buffer.error, math.nan, unit
        where = buffer.stored.name + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        fix = remedy(buffer, audit) if buffer.wrong else ""
        yield Finding(f"stored {buffer.what}", status, detail, *sizes, where, buffer.diagnosis, remedy=fix)


def _class_findings(target: Target, expected: Expected, own_code: bool) -> Iterator[Finding]:
    """Yield whether transformers' rotary class builds the frequencies and factors of a config.

    A difference is no fault of the checkpoint: it is a note with both values.
    """
    case = target.case
    try:
        if own_code:
            raise BadInput("config.json names code of its own, which was not executed")
        if expected.model is None or (case.model, case.config) != (None, None):
            raise BadInput("it is not the folder's config.json that says what is right")
        made = built.rotary(hf_json.load(target.name))
    except BadInput as error:
        yield not_applicable(_CLASS, error.typed)
        return
    except ValueError as error:
        yield noted(_CLASS, f"the installed transformers cannot build it: {error}")
        return
    meant = Expected(expected.model)
    for layer, values in made.frequencies.items():
        where = f"{made.name} ({layer})" if layer else made.name
        settings = meant.settings(None, meant.layer_of(layer))
        orders = [Dump("", where, frequencies=order) for order in (values, np.sort(values)[::-1])]
        fitting = [
            (check(dump, one, label), one)
            for dump in orders
            for label, one in settings
            if dump.fits(one.pairs)
        ]
        if not fitting:
            pairs = " or ".join(sorted({str(setting.pairs) for _, setting in settings})) or "no"
            said = f"it builds {values.size} pairs, and config.json means {pairs}"
            yield noted(_CLASS, said, where=where)
            continue
        found, setting = min(fitting, key=lambda one: one[0].preference)
        seen, asked = made.factors.get(layer), attention_factor(setting.scaling)
        sizes = {"measured": abs(found.worst[found.size]), "unit": "relative", "where": where}
        if not found.agrees:
            said = f"it builds other frequencies than config.json means: {wording.off_by(found)}"
            yield noted(_CLASS, said, diagnosis=found.diagnosis, **sizes)
        elif seen is not None and not math.isclose(seen, asked, rel_tol=_FACTOR_ERROR):
            told = Diagnosis("attention-factor", {"seen": seen, "asked": asked})
            said = "it builds another attention factor than config.json means"
            yield noted(_CLASS, said, diagnosis=told, where=where)
        else:
            said = "it builds the frequencies and factor that config.json means"
            yield judged(_CLASS, True, said, **sizes)


def _model_checks(target: Target) -> Iterator[Checked]:
    options = target.options
    names = [dtype.name for dtype in options.dtypes] or list(_MODEL_DTYPES)
    asked: dict[str, Any] = {name: getattr(options, name) for name in ("text", "tokens", "seed", "device")}
    audit = model_analysis.model(target.name, dtypes=names, **asked)
    place, seen = audit.device.label, set[int]()
    try:
        for shifted in audit:
            wide = [] if seen else list(_decode_findings(shifted, audit.calls))
            wide += [] if shifted.offset in seen else [_structure_finding(shifted)]
            seen.add(shifted.offset)
            yield from (target.checked(finding, "float64", device=place) for finding in wide)
            own = (_rotation_finding(shifted), _rounding_finding(shifted))
            yield from (target.checked(finding, shifted.dtype.name, device=place) for finding in own)
    except NotShifted as error:
        yield target.checked(not_applicable("model structure", error.fault))
    target.note(audit.folder.notes)


def _decode_findings(shifted: Shifted, calls: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether decode and prefill in chunks have the logits of one pass, in float64.

    calls: way of calling -> why it was not compared; empty if it was.
    """
    if (cached := shifted.decoded) is not None:
        status: Status = "fail" if cached.wrong else "info" if cached.differs else "pass"
        detail = cached.words or "decode with a cache, padding on the left and chunks are one pass"
        sizes, where = (
            (cached.change, cached.allowed, "logit"),
            "" if cached.layer is None else f"layer {cached.layer}",
        )
        yield Finding(_DECODE, status, detail, *sizes, where, cached.wrong)
    if unseen := [f"{way} ({why})" for way, why in calls.items() if why]:
        yield noted(_DECODE, f"not compared: {'; '.join(unseen)}")


def _rotation_finding(shifted: Shifted) -> Finding:
    """Return whether buffers and rotation of the model are those of its config."""
    name, where = "model rotation", f"offset {shifted.offset:,}"
    if shifted.verdict in model_analysis.WRONG and shifted.verdict != "wrong_decode":
        where = ", ".join(one.name for one in shifted.held) or where
        said = model_analysis.WRONG[shifted.verdict]
        return judged(name, False, said, where=where, diagnosis=shifted.diagnosis)
    if not shifted.places:
        return not_applicable(name, "no layer's rotation could be compared with config.json")
    layers = f"{len(shifted.places)} of its layers rotate"
    return judged(name, True, f"what the model holds, and how {layers}, is as config.json says", where=where)


def _structure_finding(shifted: Shifted) -> Finding:
    """Return whether float64 logits stay the same at shifted positions."""
    most, where = shifted.change["structural_max"], f"offset {shifted.offset:,}"
    allowed = model_analysis.structure_allowed(shifted.change, shifted.offset)
    status: Status = "info" if shifted.cause == "frequencies" else "fail"  # as the scaling means it
    detail = f"logits of the float64 run change when positions move; the cause: {shifted.cause}"
    if most <= allowed:
        status, detail = "pass", "logits of the float64 run change by no more than rounding"
    return Finding("model structure", status, detail, most, allowed, "logit", where)


def _rounding_finding(shifted: Shifted) -> Finding:
    """Return a note on rounding of logits, which has no limit."""
    change, where, name = shifted.change, f"offset {shifted.offset:,}", "model rounding"
    if bad := change["nonfinite"]:
        return judged(name, False, f"{bad:,} logits are nan or infinite", where=where)
    flips = f"{change['top1_flips']} of {change['tokens']} tokens get another most likely successor"
    rms, mean = change["precision_rms"], f"mean KL {short(change['kl_mean'])} nats"
    detail = f"rounding changes logits by {short(rms)} RMS; {flips}; {mean}"
    return noted(name, detail, measured=rms, unit="logit, RMS", where=where)


def _conversion_findings(audit: ModuleAudit, rope: GgufRope) -> Iterator[Finding]:
    check, wrong = "conversion", [buffer for buffer in audit.buffers if buffer.wrong]
    for lost in audit.lost:
        differs = f"{lost.layer} layers differ" if lost.layer else "the file differs"
        found = {"where": lost.keys, "diagnosis": lost.diagnosis}
        finding = judged(check, False, lost.told or f"{differs} from the config", **found)
        yield finding if lost.told else finding.advised(FP32, rope.model.maximum or 1)
    for buffer in [] if audit.lost else wrong:
        detail = f"its frequencies are not those of {buffer.label}: {buffer.measured or buffer.finding}"
        named = buffer.stored.name
        yield judged(check, False, detail.rstrip("."), where=named, diagnosis=buffer.diagnosis)
    if not audit.explicit:
        yield noted(check, "nothing says what it should be; put config.json beside it, or give --config")
    elif not audit.lost and not wrong:
        declared = ", ".join(dict.fromkeys(buffer.label for buffer in audit.buffers))
        yield judged(check, True, f"the file says of RoPE what {declared} says")
    words = setting_words(rope.setting, rope.model.axes, rope.model.served)
    yield noted("metadata", f"architecture {rope.architecture}: {words}")
