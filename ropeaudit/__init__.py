"""ropeaudit: how far rotary position embeddings drift in finite precision, and why.

The public API is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropeaudit._version import __version__ as __version__

if TYPE_CHECKING:
    from ropeaudit.arithmetic.formats import Format, parse
    from ropeaudit.arithmetic.rounding import round_to
    from ropeaudit.audits.audit import Audit, to_frame
    from ropeaudit.audits.cases import Case
    from ropeaudit.audits.comparison import Difference
    from ropeaudit.audits.records import Record
    from ropeaudit.audits.summary import Group
    from ropeaudit.conformance.finding import Finding
    from ropeaudit.errors import (
        BadInput,
        BadOutput,
        BadShape,
        MissingPackage,
        NotEmulated,
        OutOfMemory,
        RopeAuditError,
        UnknownName,
        UsageError,
    )
    from ropeaudit.features.check.analysis import check
    from ropeaudit.features.check.checked import Checked
    from ropeaudit.features.decay.audit import DecayCurves, decay
    from ropeaudit.features.diff.analysis import diff
    from ropeaudit.features.explain.analysis import Explanation, explain
    from ropeaudit.features.frequencies.analysis import FrequencyTable, frequencies
    from ropeaudit.features.frequencies.comparison import TableCheck, check_table
    from ropeaudit.features.history.analysis import History, history
    from ropeaudit.features.limit.analysis import limit
    from ropeaudit.features.limit.limit_result import Limit
    from ropeaudit.features.merge.analysis import merge
    from ropeaudit.features.model.analysis import ModelAudit, Shifted, model
    from ropeaudit.features.module.analysis import Buffer, ModuleAudit, module
    from ropeaudit.features.parity.analysis import Parity, parity
    from ropeaudit.features.rerotate.analysis import Rerotated, rerotate
    from ropeaudit.features.shift.analysis import shift
    from ropeaudit.features.summary.analysis import summary
    from ropeaudit.features.trace.analysis import Traced, trace
    from ropeaudit.features.vectors.analysis import WrittenCase, vectors
    from ropeaudit.rendering import report
    from ropeaudit.reports import Report, render
    from ropeaudit.rope.setting import RopeSetting

# public name -> the module that holds it; a test compares it with the imports above, which type checkers read
_HOMES = {
    "Audit": "audits.audit",
    "BadInput": "errors",
    "BadOutput": "errors",
    "BadShape": "errors",
    "Buffer": "features.module.analysis",
    "Case": "audits.cases",
    "Checked": "features.check.checked",
    "DecayCurves": "features.decay.audit",
    "Difference": "audits.comparison",
    "Explanation": "features.explain.analysis",
    "Finding": "conformance.finding",
    "Format": "arithmetic.formats",
    "FrequencyTable": "features.frequencies.analysis",
    "Group": "audits.summary",
    "History": "features.history.analysis",
    "Limit": "features.limit.limit_result",
    "MissingPackage": "errors",
    "ModelAudit": "features.model.analysis",
    "ModuleAudit": "features.module.analysis",
    "NotEmulated": "errors",
    "OutOfMemory": "errors",
    "Parity": "features.parity.analysis",
    "Record": "audits.records",
    "Report": "reports",
    "Rerotated": "features.rerotate.analysis",
    "RopeAuditError": "errors",
    "RopeSetting": "rope.setting",
    "Shifted": "features.model.analysis",
    "TableCheck": "features.frequencies.comparison",
    "Traced": "features.trace.analysis",
    "UnknownName": "errors",
    "UsageError": "errors",
    "WrittenCase": "features.vectors.analysis",
    "check": "features.check.analysis",
    "check_table": "features.frequencies.comparison",
    "decay": "features.decay.audit",
    "diff": "features.diff.analysis",
    "explain": "features.explain.analysis",
    "frequencies": "features.frequencies.analysis",
    "history": "features.history.analysis",
    "limit": "features.limit.analysis",
    "merge": "features.merge.analysis",
    "model": "features.model.analysis",
    "module": "features.module.analysis",
    "parity": "features.parity.analysis",
    "parse": "arithmetic.formats",
    "render": "reports",
    "report": "rendering",
    "rerotate": "features.rerotate.analysis",
    "round_to": "arithmetic.rounding",
    "shift": "features.shift.analysis",
    "summary": "features.summary.analysis",
    "to_frame": "audits.audit",
    "trace": "features.trace.analysis",
    "vectors": "features.vectors.analysis",
}
__all__ = [
    "Audit",
    "BadInput",
    "BadOutput",
    "BadShape",
    "Buffer",
    "Case",
    "Checked",
    "DecayCurves",
    "Difference",
    "Explanation",
    "Finding",
    "Format",
    "FrequencyTable",
    "Group",
    "History",
    "Limit",
    "MissingPackage",
    "ModelAudit",
    "ModuleAudit",
    "NotEmulated",
    "OutOfMemory",
    "Parity",
    "Record",
    "Report",
    "Rerotated",
    "RopeAuditError",
    "RopeSetting",
    "Shifted",
    "TableCheck",
    "Traced",
    "UnknownName",
    "UsageError",
    "WrittenCase",
    "check",
    "check_table",
    "decay",
    "diff",
    "explain",
    "frequencies",
    "history",
    "limit",
    "merge",
    "model",
    "module",
    "parity",
    "parse",
    "render",
    "report",
    "rerotate",
    "round_to",
    "shift",
    "summary",
    "to_frame",
    "trace",
    "vectors",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'ropeaudit' has no attribute {name!r}")
    return getattr(import_module(f"ropeaudit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
