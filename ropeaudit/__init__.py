"""ropeaudit: how far rotary position embeddings drift in finite precision, and why.

The public API is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropeaudit._version import __version__ as __version__

if TYPE_CHECKING:
    from ropeaudit.arithmetic.formats import Format as Format
    from ropeaudit.arithmetic.formats import parse as parse
    from ropeaudit.arithmetic.rounding import round_to as round_to
    from ropeaudit.audits.cases import Case as Case
    from ropeaudit.audits.comparison import Difference as Difference
    from ropeaudit.audits.records import Record as Record
    from ropeaudit.audits.sweep import Audit as Audit
    from ropeaudit.conformance.finding import Finding as Finding
    from ropeaudit.errors import BadInput as BadInput
    from ropeaudit.errors import BadOutput as BadOutput
    from ropeaudit.errors import BadShape as BadShape
    from ropeaudit.errors import MissingPackage as MissingPackage
    from ropeaudit.errors import NotEmulated as NotEmulated
    from ropeaudit.errors import OutOfMemory as OutOfMemory
    from ropeaudit.errors import RopeAuditError as RopeAuditError
    from ropeaudit.errors import UnknownName as UnknownName
    from ropeaudit.errors import UsageError as UsageError
    from ropeaudit.features.check.analysis import check as check
    from ropeaudit.features.check.checked import Checked as Checked
    from ropeaudit.features.decay.analysis import DecayCurves as DecayCurves
    from ropeaudit.features.decay.analysis import decay as decay
    from ropeaudit.features.explain.analysis import CodeExplanation as CodeExplanation
    from ropeaudit.features.explain.analysis import Explanation as Explanation
    from ropeaudit.features.explain.analysis import explain as explain
    from ropeaudit.features.limit.analysis import Limit as Limit
    from ropeaudit.features.limit.analysis import limit as limit
    from ropeaudit.features.list.frequencies import FrequencyTable as FrequencyTable
    from ropeaudit.features.list.frequencies import frequencies as frequencies
    from ropeaudit.features.model.analysis import ModelAudit as ModelAudit
    from ropeaudit.features.model.analysis import Shifted as Shifted
    from ropeaudit.features.model.analysis import model as model
    from ropeaudit.features.module.analysis import module as module
    from ropeaudit.features.module.buffers import Buffer as Buffer
    from ropeaudit.features.module.judging import ModuleAudit as ModuleAudit
    from ropeaudit.features.parity.analysis import Parity as Parity
    from ropeaudit.features.parity.analysis import parity as parity
    from ropeaudit.features.plot.pictures import plot as plot
    from ropeaudit.features.report.analysis import Group as Group
    from ropeaudit.features.report.analysis import diff as diff
    from ropeaudit.features.report.analysis import merge as merge
    from ropeaudit.features.report.analysis import summary as summary
    from ropeaudit.features.shift.analysis import shift as shift
    from ropeaudit.features.vectors.analysis import WrittenCase as WrittenCase
    from ropeaudit.features.vectors.analysis import vectors as vectors
    from ropeaudit.rendering import report as report
    from ropeaudit.rendering import to_frame as to_frame
    from ropeaudit.reports import Report as Report
    from ropeaudit.reports import render as render
    from ropeaudit.rope.setting import RopeSetting as RopeSetting

# module -> its public names; a test compares them with the imports above, which type checkers read
_NAMES = {
    "arithmetic.formats": ("Format", "parse"),
    "arithmetic.rounding": ("round_to",),
    "audits.sweep": ("Audit",),
    "audits.cases": ("Case",),
    "audits.comparison": ("Difference",),
    "audits.records": ("Record",),
    "conformance.finding": ("Finding",),
    "errors": (
        "BadInput",
        "BadOutput",
        "BadShape",
        "MissingPackage",
        "NotEmulated",
        "OutOfMemory",
        "RopeAuditError",
        "UnknownName",
        "UsageError",
    ),
    "features.check.analysis": ("check",),
    "features.check.checked": ("Checked",),
    "features.decay.analysis": ("DecayCurves", "decay"),
    "features.list.frequencies": ("FrequencyTable", "frequencies"),
    "features.explain.analysis": ("CodeExplanation", "Explanation", "explain"),
    "features.limit.analysis": ("Limit", "limit"),
    "features.model.analysis": ("ModelAudit", "Shifted", "model"),
    "features.module.analysis": ("module",),
    "features.module.buffers": ("Buffer",),
    "features.module.judging": ("ModuleAudit",),
    "features.parity.analysis": ("Parity", "parity"),
    "features.plot.pictures": ("plot",),
    "features.report.analysis": ("Group", "diff", "merge", "summary"),
    "features.shift.analysis": ("shift",),
    "features.vectors.analysis": ("WrittenCase", "vectors"),
    "rendering": ("report", "to_frame"),
    "reports": ("Report", "render"),
    "rope.setting": ("RopeSetting",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'ropeaudit' has no attribute {name!r}")
    return getattr(import_module(f"ropeaudit.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
