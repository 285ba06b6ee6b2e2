"""ropeaudit: how far rotary position embeddings drift in finite precision, and why.

The public API is loaded when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropeaudit.analyses.explain import explain
    from ropeaudit.analyses.limit import limit
    from ropeaudit.analyses.limit_known import Limit
    from ropeaudit.audit import Audit, shift, to_frame
    from ropeaudit.cases import Case
    from ropeaudit.errors import RopeAuditError
    from ropeaudit.formats import parse, round_to
    from ropeaudit.records import Record
    from ropeaudit.rope.setting import RopeSetting

__version__ = "0.1.0"

_HOMES = {
    "Audit": "ropeaudit.audit",
    "Case": "ropeaudit.cases",
    "Limit": "ropeaudit.analyses.limit_known",
    "limit": "ropeaudit.analyses.limit",
    "explain": "ropeaudit.analyses.explain",
    "shift": "ropeaudit.audit",
    "to_frame": "ropeaudit.audit",
    "RopeAuditError": "ropeaudit.errors",
    "parse": "ropeaudit.formats",
    "round_to": "ropeaudit.formats",
    "Record": "ropeaudit.records",
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
