"""ropeaudit: how far rotary position embeddings drift in finite precision, and why.

The public API is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropeaudit._version import __version__ as __version__

if TYPE_CHECKING:
    from ropeaudit.arithmetic.formats import parse, round_to
    from ropeaudit.audits.audit import Audit, shift, to_frame
    from ropeaudit.audits.cases import Case
    from ropeaudit.audits.records import Record
    from ropeaudit.errors import RopeAuditError
    from ropeaudit.features.explain.analysis import explain
    from ropeaudit.features.limit.analysis import limit
    from ropeaudit.features.limit.known import Limit
    from ropeaudit.rope.setting import RopeSetting

_HOMES = {
    "Audit": "ropeaudit.audits.audit",
    "Case": "ropeaudit.audits.cases",
    "Limit": "ropeaudit.features.limit.known",
    "limit": "ropeaudit.features.limit.analysis",
    "explain": "ropeaudit.features.explain.analysis",
    "shift": "ropeaudit.audits.audit",
    "to_frame": "ropeaudit.audits.audit",
    "RopeAuditError": "ropeaudit.errors",
    "parse": "ropeaudit.arithmetic.formats",
    "round_to": "ropeaudit.arithmetic.formats",
    "Record": "ropeaudit.audits.records",
    "RopeSetting": "ropeaudit.rope.setting",
}
__all__ = [
    "Audit",
    "Case",
    "Limit",
    "Record",
    "RopeAuditError",
    "RopeSetting",
    "explain",
    "limit",
    "parse",
    "round_to",
    "shift",
    "to_frame",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'ropeaudit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
