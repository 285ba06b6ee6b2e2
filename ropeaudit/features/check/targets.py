"""What a target is: code, a model, a config.json, a checkpoint folder, a GGUF file, a case of vectors."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from ropeaudit.conformance.vector_case import MANIFEST
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.rope import presets
from ropeaudit.subjects import factories
from ropeaudit.tensor_files import gguf_files

Kind = Literal["code", "model", "config", "checkpoint", "gguf", "case"]

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")


def kind(target: str) -> Kind:
    """Return what a target is. Raises: UnknownName, UsageError, BadInput."""
    path = Path(target)
    if ".py:" in target and factories.is_own(target):
        return "code"
    from ropeaudit.subjects import third_party  # in-function: it reads a file for each package

    if third_party.is_known(target):
        return "code"
    if path.is_dir():
        return _folder(path)
    if path.name == MANIFEST and path.is_file():
        return "case"
    if path.suffix == ".json" and path.is_file():
        return "config"
    if path.is_file() and gguf_files.is_gguf(path):
        return "gguf"
    if path.is_file() and any(path.match(pattern) for pattern in _WEIGHTS):
        return "checkpoint"
    if factories.is_own(target):
        return "code"
    models = [model.name for model in presets.all_presets()]
    if target in models:
        return "model"
    known = [*third_party.ENTRIES, *models]
    if get_close_matches(target, known, cutoff=0.8):  # a folder that is not there is not nearly a name
        raise UnknownName("target", target, known)
    raise UsageError(
        f"{target!r} is no target: there is no such file or folder; give FILE.py:NAME, mypkg.rope:NAME, a "
        "config.json, a model's folder, a .gguf file, or a name of `ropeaudit list implementations` or "
        "`ropeaudit list models`"
    )


def _folder(path: Path) -> Kind:
    if (path / MANIFEST).is_file():
        return "case"
    if any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
        return "checkpoint"
    if (path / "config.json").is_file():
        return "config"
    raise BadInput(
        f"{path} holds neither a config.json nor weights nor a manifest.json of `ropeaudit vectors`; "
        "give a model's folder"
    )
