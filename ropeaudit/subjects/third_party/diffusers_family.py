"""diffusers: every RoPE class of its models, one axis of each, and the function that rotates by it."""

from __future__ import annotations

from ropeaudit.subjects.third_party import FamilyFields
from ropeaudit.subjects.third_party.module_rope import ModuleRope

FAMILY: FamilyFields = {
    "name": "diffusers",
    "folder": "diffusers.models",
    "files": "*.py",
    "named": r"(?:.*/)?(?:transformer_|unet_|autoencoder_|controlnet_)?([^/]+)",
    "classes": r"(Rotary|R[oO][pP][eE]|PosEmbed|EmbedND|EmbedRope)(?!.*(Attention|Block|Processor|Patch))",
    "calls": "one axis of its positions, and its file's own function that rotates",
}

IMPLEMENTATIONS = {"diffusers": ModuleRope}
