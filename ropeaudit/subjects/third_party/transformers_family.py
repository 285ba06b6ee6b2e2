"""transformers: every RoPE class of its models, rotated with by the function of the class's own file."""

from __future__ import annotations

from ropeaudit.subjects.third_party import FamilyFields
from ropeaudit.subjects.third_party.module_rope import ModuleRope

FAMILY: FamilyFields = {
    "name": "transformers",
    "extra": "model",
    "folder": "transformers.models",
    "files": "modeling_*.py",
    "named": r"(.+)/modeling_[^/]+",
    "classes": r"(Rotary|R[oO][pP][eE])(?!.*Attention)",
    "calls": "built from its config, and its file's own function that rotates",
}

IMPLEMENTATIONS = {"transformers": ModuleRope}
