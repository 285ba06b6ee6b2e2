"""A whole language model, the same tokens at other positions: what changes, and whose fault it is.

Precision is what shrinks with the number format and is absent in float64; structure is what float64 shows
too: frequencies that the length switches, learned positions, a mask that knows positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropeaudit.arithmetic.formats import FP64, Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.cases import fits
from ropeaudit.errors import BadInput, BadShape, UsageError
from ropeaudit.features.model import layers, load
from ropeaudit.features.model.layers import HeadDrift
from ropeaudit.features.model.load import Folder
from ropeaudit.features.model.tokens import Tokens, read_tokens
from ropeaudit.rope import hf_models
from ropeaudit.runtime import atomic_files, paths

if TYPE_CHECKING:
    from ropeaudit.features.model.logits import Change
    from ropeaudit.features.model.run import Pass, Runner

DTYPES = ("float64", "float32", "float16", "bfloat16")
OFFSETS = (1000, 32768)
STRUCTURE = 1e-8  # a larger change of float64 logits, relative to the largest one, is no rounding ...
_REACH = 2**20  # ... up to this offset; rounding of angles grows with it
LARGEST_OFFSET = 2**40
THRESHOLD = 0.01  # score drift that a layer may have

VERDICTS: dict[str, str] = {
    "none": "no logit changes",
    "precision": "logits change by rounding alone: in float64 they stay",
    "structure": "the shift changes the model itself: float64 logits change too",
    "overflow": "some logits are nan or infinite",
}


@dataclass(frozen=True, slots=True)
class Shifted:
    """A model in a dtype at an offset. heads: score drift after RoPE of every layer and head.

    cause: of a structural change (frequencies, learned positions, mask, other), else rounding or none.
    """

    dtype: Format
    offset: int
    change: Change
    heads: list[HeadDrift]
    verdict: str
    cause: str


@dataclass(slots=True)
class ModelAudit:
    """What is audited. narrow: what the float64 run could not widen, filled while it runs."""

    folder: Folder
    tokens: Tokens
    dtypes: Sequence[Format]
    offsets: list[int]
    save: str | None = None
    narrow: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise UsageError or BadInput for what cannot be run."""
        for fmt in self.dtypes:
            if fmt.name not in DTYPES:
                raise UsageError(f"--dtype {fmt.short}: models run in {', '.join(DTYPES)}; give some of them")
        for offset in self.offsets:
            if not 0 <= offset <= LARGEST_OFFSET:
                raise UsageError(f"--offset {offset} is not a number from 0 to 2^40; try --offset 1000,32k")
        if self.save is not None:
            target = Path(self.save)
            if target.suffix != ".safetensors" or _no_file(target) or not target.absolute().parent.is_dir():
                raise UsageError(f"--save-qk {self.save!r} is not a file in a folder; try q.safetensors")
        weights = sum(path.stat().st_size for path in self.folder.files)
        vocabulary = int(self.folder.text.get("vocab_size") or 0)
        logits = 8 * len(self.tokens.ids) * vocabulary * (len(self.offsets) + 6)
        try:
            fits(4 * weights + logits)  # weights of 2 bytes become 8
        except BadShape as error:
            reason = str(error).partition(";")[0]
            raise BadInput(f"{str(self.folder.path)!r}: {reason}; give a smaller model or --tokens") from None

    @property
    def layout(self) -> str:
        """How pairs of dims stand in q and k."""
        model = str(self.folder.text.get("model_type") or "").removesuffix("_text")
        return "interleaved" if model in hf_models.INTERLEAVED else "half"

    def __iter__(self) -> Iterator[Shifted]:
        """Run it."""
        return self.run()

    def run(self, progress: Callable[[float], None] = lambda share: None) -> Iterator[Shifted]:
        """Yield dtype by dtype, offset by offset; the float64 run comes first. Raises: RopeAuditError."""
        from ropeaudit.features.model.run import Runner

        self.check()
        done, total = 0, (1 + len(self.dtypes)) * (1 + len(self.offsets))

        def step() -> None:
            nonlocal done
            done += 1
            progress(done / total)

        runner = Runner(load.load(self.folder, FP64), self.layout, wide=True)
        references, causes = self._reference(runner, step)
        self.narrow = sorted(runner.narrow)
        del runner
        for fmt in self.dtypes:
            runner = Runner(load.load(self.folder, fmt), self.layout, wide=False)
            base = runner.run(self.tokens.ids, 0)
            step()
            for offset in self.offsets:
                shifted = runner.run(self.tokens.ids, offset)
                step()
                yield self._compared(fmt, offset, runner, (base, shifted), references, causes[offset])

    def _reference(self, runner: Runner, step: Callable[[], None]) -> tuple[dict[int, Any], dict[int, str]]:
        """Return the float64 logits at every offset, and at 0, and what in the model a shift changes."""
        from ropeaudit.features.model.run import differ

        base = runner.run(self.tokens.ids, 0)
        runner.check_learned(base, self.tokens.ids, self.offsets)
        if self.save is not None:
            save(self.save, base, runner)
        step()
        logits, causes = {0: base.logits}, {}
        for offset in self.offsets:
            shifted = runner.run(self.tokens.ids, offset)
            step()
            logits[offset], causes[offset] = shifted.logits, "other"
            masks = (
                [base.layers[n].visible for n in shifted.layers],
                [layer.visible for layer in shifted.layers.values()],
            )
            if not all(np.array_equal(a, b) for a, b in zip(*masks, strict=True)):
                causes[offset] = "mask"
            if differ(base.lookups, shifted.lookups):
                causes[offset] = "learned positions"
            if differ(base.frequencies, shifted.frequencies):
                causes[offset] = "frequencies"
        return logits, causes

    def _compared(
        self,
        fmt: Format,
        offset: int,
        runner: Runner,
        passes: tuple[Pass, Pass],
        references: dict[int, Any],
        cause: str,
    ) -> Shifted:
        from ropeaudit.features.model.logits import compare

        base, shifted = passes
        change = compare(base.logits, shifted.logits, references[0], references[offset], self.tokens.ids)
        heads = [
            head
            for layer, seen in sorted(shifted.layers.items())
            for head in layers.drifts(layer, base.layers[layer], seen, runner.pairs(layer))
        ]
        verdict = verdict_of(change, offset)
        named_cause = cause if verdict == "structure" else "none" if verdict == "none" else "rounding"
        return Shifted(fmt, offset, change, heads, verdict, named_cause)


@arguments.checked
def model(
    folder: str,
    offsets: int | Iterable[int] = OFFSETS,
    dtypes: Names = ("fp32", "bf16"),
    *,
    text: str | None = None,
    tokens: str | None = None,
    seed: int = 0,
    save_qk: str | None = None,
    trust_remote_code: bool = False,
) -> ModelAudit:
    """Return the audit of a causal language model at shifted positions; iterate over it, and it runs.

    Yields one Shifted per dtype and offset, in that order, after a float64 run that they are compared with.
    folder: a local checkpoint: config.json, *.safetensors, a tokenizer if there is one. text: a file to read
    through the tokenizer. tokens: how many random ones, "128", or their ids, "5,17,3". seed: of random ones.
    save_qk: a .safetensors file that q and k before RoPE go to.
    trust_remote_code: execute the Python code that the folder brings.
    Raises: UsageError, UnknownName, BadInput, MissingPackage.
    """
    opened = load.open_folder(folder, trust_remote_code)
    chosen = read_tokens(opened, text, tokens, seed)
    return ModelAudit(opened, chosen, arguments.formats(dtypes), arguments.numbers(offsets), save_qk)


def verdict_of(change: Change, offset: int) -> str:
    """Return the verdict, one word of `VERDICTS`."""
    if change.nonfinite:
        return "overflow"
    if change.structural_largest > structure_allowed(change, offset):
        return "structure"
    return "precision" if change.largest else "none"


def structure_allowed(change: Change, offset: int) -> float:
    """Return how much a float64 logit may change by rounding; a larger change is one of the model."""
    return STRUCTURE * max(1.0, offset / _REACH) * max(1.0, change.reference_largest)


def _no_file(target: Path) -> bool:
    """Return whether there is something that a file cannot take the place of: a folder, a pipe."""
    return target.exists() and not target.is_file()


def save(path: str, base: Pass, runner: Runner) -> None:
    """Write q and k of all layers, as they are before RoPE rotates them, for `shift --qk`.

    They are the float64 run's, rotated back; q (layers, h, s, d), k (layers, g, s, d). Raises: BadInput.
    """
    import safetensors.numpy as safetensors

    parts: dict[str, list[Any]] = {"q": [], "k": []}
    for layer, seen in sorted(base.layers.items()):
        pairs = runner.pairs(layer)
        parts["q"].append(pairs.rotated_back(seen.q))
        parts["k"].append(pairs.rotated_back(seen.k))
    if not parts["q"] or len({(q.shape, k.shape) for q, k in zip(parts["q"], parts["k"], strict=True)}) > 1:
        raise BadInput(f"--save-qk {path!r}: layers have no q and k of one shape; leave it out")
    try:
        atomic_files.write(
            Path(paths.behind(path)), safetensors.save({k: np.stack(arrays) for k, arrays in parts.items()})
        )
    except OSError as error:
        raise BadInput(f"--save-qk {path!r} cannot be written: {error.strerror or error}") from None
