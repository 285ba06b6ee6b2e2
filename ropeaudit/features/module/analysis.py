"""Whether RoPE buffers were cast, and are right: of files and loaded modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.cases import Case
from ropeaudit.audits.results import Result
from ropeaudit.errors import UnknownName, UsageError
from ropeaudit.features.module import built
from ropeaudit.features.module.buffers import FREQUENCIES as FREQUENCIES
from ropeaudit.features.module.buffers import Buffer as Buffer
from ropeaudit.features.module.buffers import run
from ropeaudit.features.module.source import Expected, Source
from ropeaudit.features.module.source import opened as of_path
from ropeaudit.recognition import stored_values
from ropeaudit.recognition.stored_values import Lost
from ropeaudit.rope import scaling as scalings

_LOADED = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class ModuleAudit(Result):
    """Where RoPE buffers are from, what was found, and what a conversion to GGUF lost."""

    report_module: ClassVar[str] = "ropeaudit.features.module.report"
    source: Source
    buffers: Sequence[Buffer]
    lost: Sequence[Lost] = ()

    @property
    def wrong(self) -> bool:
        """Whether any buffer is wrong, or anything was lost."""
        return bool(self.lost) or any(one.wrong for one in self.buffers)

    @property
    def judged(self) -> bool:
        """Whether there was anything to judge, and all of it was."""
        if self.wrong:
            return True
        if self.source.kind == "gguf" and not self.source.explicit:
            return False
        return bool(self.buffers) and all(one.judged for one in self.buffers)


@arguments.checked
def module(
    source: str,
    *,
    config: str | None = None,
    model: str | None = None,
    base: float | None = None,
    scaling: str | None = None,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    loaded: Names | None = None,
    dtypes: Names = ("bf16",),
    build: Mapping[str, Any] | None = None,
) -> ModuleAudit:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    source: a checkpoint (a folder, a .safetensors or .pt file), an .onnx graph or a .gguf file, of
    which nothing is executed; a dumped table (.npz, .npy or "cos.npy,sin.npy"), whose every pair is compared;
    or "file.py:name" or "package.module:name", a function that returns a module, or a class, which is built
    from its default config or usual sizes, with the arguments in `build`. Its forward is never called.
    loaded: the modes of loading (`built.MODES`), in each of `dtypes`; by default of a class all that it has.
    What the frequencies should be: those of a config.json or its folder, of a named model, or with this
    base, scaling and dims; without any, of a config beside the source, and else a base is guessed.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    asked = Case(model=model, config=config, base=base, head_dim=head_dim, rotary_dim=rotary_dim)
    modes = None if loaded is None else arguments.listed(loaded)
    for name in modes or ():
        if name not in built.MODES:
            raise UnknownName("way of loading", name, built.MODES)
    formats = arguments.formats(dtypes)
    for fmt in formats:
        if fmt.name not in _LOADED:
            raise UnknownName("dtype of a module", fmt.name, _LOADED)
    given = None if scaling is None else scalings.parse(scaling)
    expected = Expected(asked.declared(), base, given, head_dim, rotary_dim)
    expected.plain(None, 10000.0 if base is None else base)  # what is no setting is refused before any work
    if built.is_code(source):
        opened = built.opened(source, expected, build or {}, modes, formats)
        buffers = [one for one in run(opened) if one.loaded in opened.modes]
        return ModuleAudit(opened, sorted(buffers, key=lambda one: opened.modes.index(one.loaded)))
    for flag, value in {"--loaded": modes, "--build": build}.items():
        if value:
            raise UsageError(f"{flag} says how a module is built, and {source!r} is a file; leave it out")
    opened = of_path(source, expected)
    return ModuleAudit(opened, list(run(opened)), _lost(opened))


def _lost(opened: Source) -> Sequence[Lost]:
    """Return what the conversion to GGUF lost; note what was not compared."""
    expected = opened.expected
    if opened.gguf is None or expected.model is None:
        return ()
    changed = [setting for _, setting in expected.settings(None) if setting.length == 0]
    rotated = [layer for layer, setting in expected.model.layers.items() if setting.pairs]
    declared = replace(expected.model, layers=dict(zip(rotated, changed, strict=True)))
    opened.notes.extend(stored_values.unseen(opened.gguf, declared))
    return stored_values.lost(opened.gguf, declared)
