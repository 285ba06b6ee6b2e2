"""The checks of a GGUF file: what it says of RoPE, and what its conversion lost of a config."""

from __future__ import annotations

from collections.abc import Iterator

from ropeaudit.arithmetic.formats import FP32
from ropeaudit.audits.cases import Case
from ropeaudit.conformance.finding import Finding, judged, noted
from ropeaudit.features.check.checked import NONE, Checked, Note
from ropeaudit.features.module import analysis as module_analysis
from ropeaudit.features.module.analysis import ModuleAudit
from ropeaudit.recognition import wording
from ropeaudit.reports.model_notes import setting_words
from ropeaudit.rope.gguf_metadata import GgufRope
from ropeaudit.runtime import digests

CHECK = "conversion"


def checks(name: str, case: Case, note: Note) -> Iterator[Checked]:
    """Yield the checks of a file. note gets what its reader must know. Raises: BadInput, MissingPackage."""
    audit = module_analysis.module(
        name,
        config=case.config,
        model=case.model,
        base=case.base,
        scaling=case.scaling,
        head_dim=case.head_dim,
        rotary_dim=case.rotary_dim,
    )
    rope = audit.source.gguf
    assert rope is not None  # noqa: S101
    digest = digests.of_bytes(repr((rope.architecture, rope.model, rope.divisors)).encode())
    for finding in _findings(audit, rope):
        yield Checked(name, "gguf", digest, NONE, rope.setting, rope.model.maximum or 0, finding)
    note(audit.source.notes)


def _findings(audit: ModuleAudit, rope: GgufRope) -> Iterator[Finding]:
    """Yield what was lost, or that nothing was, and what the file says."""
    declared = ", ".join(dict.fromkeys(one.label for one in audit.buffers))
    wrong = [one for one in audit.buffers if one.wrong]
    for one in audit.lost:
        layer = f"{one.layer} layers" if one.layer else "the file"
        yield judged(
            CHECK,
            False,
            f"{layer} differ{'' if one.layer else 's'} from the config",
            where=one.keys,
            diagnosis=one.diagnosis,
            remedy=wording.remedy(one.diagnosis, FP32, rope.model.maximum or 1),
            option=wording.option(one.diagnosis),
        )
    for buffer in [] if audit.lost else wrong:
        detail = f"its frequencies are not those of {buffer.label}: {buffer.measured or buffer.finding}"
        yield judged(CHECK, False, detail.rstrip("."), where=buffer.stored.name, diagnosis=buffer.diagnosis)
    if not audit.source.explicit:
        yield noted(CHECK, "nothing says what it should be; put config.json beside it, or give --config")
    elif not audit.lost and not wrong:
        yield judged(CHECK, True, f"the file says of RoPE what {declared} says")
    said = setting_words(rope.setting, rope.axes, rope.model.served)
    yield noted("metadata", f"architecture {rope.architecture}: {said}")
