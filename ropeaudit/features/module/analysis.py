"""Did something cast a module's RoPE buffers, and what do its modules return: where both come together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.features.module.buffers import Buffer as Buffer
from ropeaudit.features.module.buffers import audited
from ropeaudit.features.module.expected import Expected
from ropeaudit.features.module.measurement import UP_TO as UP_TO
from ropeaudit.features.module.references import known
from ropeaudit.features.module.runs import WAYS, Run, imaginary_parts, run
from ropeaudit.features.module.source import Source, load
from ropeaudit.recognition import conversions
from ropeaudit.recognition.conversions import Lost
from ropeaudit.rope import hf_config, presets
from ropeaudit.rope import scaling as scalings
from ropeaudit.subjects.calling.forwards import PROBE, NotFitted

_LOADED = ("bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class ModuleAudit(Result):
    """Where RoPE buffers are from, what was found of each of them, and what running the modules showed.

    ways: whether several ways of loading were requested, so that these runs are what is reported first.
    unjudged: RoPE modules that could not be run, with the reason; they may hold buffers. lost: what the
    conversion to a GGUF file lost of its config.
    """

    report_module: ClassVar[str] = "ropeaudit.features.module.report"
    source: Source
    buffers: Sequence[Buffer]
    runs: Sequence[Run] = ()
    ways: bool = False
    unjudged: Mapping[str, NotFitted] = field(default_factory=dict)
    lost: Sequence[Lost] = ()

    @property
    def wrong(self) -> bool:
        """Whether any buffer, or anything that a module returned, is wrong."""
        results: tuple[Buffer | Run, ...] = (*self.buffers, *self.runs)
        return bool(self.lost) or any(one.wrong for one in results)

    @property
    def judged(self) -> bool:
        """Whether there was anything to judge, and all of it was: what shows nothing is no pass.

        A module that was called, and what it returns was understood, is judged by that, whatever it holds;
        one that was called, and what it returns was not understood, is not judged by its buffers.
        """
        if self.wrong or (any(one.measured for one in self.runs) and not self.misplaced):
            return True
        if self.source.kind == "gguf" and not self.source.explicit:
            return False
        unread = any(one.why == "not seen" for one in self.unjudged.values())
        return bool(self.buffers) and all(one.judged for one in self.buffers) and not unread

    @property
    def misplaced(self) -> bool:
        """Whether a buffer is that of a guessed base, but at other positions, or turned the other way."""
        return any(one.table is not None and not one.judged for one in self.buffers)


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
    up_to: int = UP_TO,
    build: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> ModuleAudit:
    """Find RoPE buffers that were cast, be it to bfloat16 and back, or that are not what they should be.

    source: a checkpoint (a folder, a .safetensors or .pt file), an .onnx graph or a .gguf file, of
    which nothing is executed; a dumped table (an .npz or .npy file, or
    "cos.npy,sin.npy"), whose every row and pair is compared; or a function that returns a module,
    "file.py:function" or "package.module:function", which is called, or the class of one, which is built
    from its default config or usual sizes, with the arguments in `build`.
    RoPE modules among them are run at positions 0 to up_to - 1 in each way of `loaded` (`loading.WAYS`;
    without any, of a class all that it has and else as built), to each of `dtypes`.
    What the frequencies should be: those of a config.json or its folder, of a named model, or with this
    base, scaling and dims; without any, of a config beside the source, and else a base is guessed.
    device: where a module is moved once it was made; where it lies by default.
    Raises: UsageError, UnknownName, BadShape, BadInput.
    """
    if config is not None and model is not None:
        raise UsageError("--model and --config both name a model; give one of them")
    ways = None if loaded is None else arguments.listed(loaded)
    for name in ways or ():
        if name not in WAYS:
            raise UnknownName("way of loading", name, WAYS)
    formats = arguments.formats(dtypes)
    for fmt in formats:
        if fmt.name not in _LOADED:
            raise UnknownName("dtype of a module", fmt.name, _LOADED)
    if up_to < PROBE:
        raise UsageError(f"--up-to {up_to}: a module is known by {PROBE} positions; try --up-to {UP_TO}")
    named = None if model is None else presets.named(model)
    if config is not None:
        named = hf_config.read(config, base)
    given = None if scaling is None else scalings.parse(scaling)
    expected = Expected(named, base, given, head_dim, rotary_dim)
    expected.plain(None, 10000.0 if base is None else base)  # what is no setting is refused before any work
    explicit = config is not None or model is not None or base is not None or given is not None
    with imaginary_parts() as discarded:
        opened = load(source, expected, build or {}, up_to, device)
    if discarded:
        opened.notes.append(
            "building it casts complex values to real ones, and torch discards their imaginary part (sin)"
        )
    buffers = audited(opened)
    if opened.builder is None:
        if loaded is not None or build:
            flag = "--loaded" if loaded is not None else "--build"
            kind = "dumped table" if opened.kind == "dump" else "checkpoint"
            raise UsageError(f"{flag} says how a module is built, and {source!r} is a {kind}; leave it out")
        return ModuleAudit(opened, buffers, lost=_lost(opened))
    runs = run(opened, known(buffers), expected if explicit else None, ways, formats, up_to)
    audit = _of_runs(opened, buffers, runs, ways, bool(build))
    opened.notes[:] = dict.fromkeys(opened.notes)
    return audit


def _lost(opened: Source) -> Sequence[Lost]:
    """Return what the conversion to GGUF lost; note what was not compared."""
    expected = opened.expected
    if opened.gguf is None or expected.model is None:
        return ()
    changed = [setting for _, setting in expected.settings(None) if setting.length == 0]
    layers = dict(zip(expected.model.layers, changed, strict=False))
    declared = replace(expected.model, layers=layers)
    opened.notes.extend(conversions.unseen(opened.gguf, declared))
    return conversions.lost(opened.gguf, declared)


def _of_runs(
    opened: Source,
    buffers: Sequence[Buffer],
    runs: Sequence[Run],
    requested: Sequence[str] | None,
    given: bool,
) -> ModuleAudit:
    """Return the audit of a module that was run. requested: ways of loading."""
    assert opened.builder is not None  # noqa: S101
    raised = [one.unfitted is not None and one.unfitted.why == "raised" for one in runs]
    if given and runs and not buffers and all(raised):
        raise BadInput(
            f"{opened.spec!r}: {opened.builder.words or 'it'} was built, and the forward of "
            f"{runs[0].built.kind} {runs[0].reason}; give another --build NAME=VALUE"
        )
    right = [one.measured is not None and not one.wrong and not one.built.as_built for one in runs]
    if runs and all(right):  # it takes its tables in columns
        buffers = [replace(one, transposed=False) for one in buffers]
    unjudged = {one.built.kind: one.unfitted for one in runs if one.unfitted is not None}
    ways = bool(runs) and (requested is not None or opened.builder.cls is not None)
    if not ways:  # buffers as built are reported anyway
        opened.notes.extend(
            f"{one.built.kind} was not run: {one.reason}"
            for one in runs
            if one.unfitted is not None and one.held != "none" and one.unfitted.why != "no forward"
        )
        runs = [one for one in runs if one.measured is not None]
    return ModuleAudit(opened, buffers, runs, ways, unjudged)
