"""`model`: a language model with the same tokens at shifted positions: what changes, and why.

Changes that float64 shows too are structural (frequencies by length, learned positions, a mask); the others
are rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ropeaudit.arithmetic.formats import FP32, FP64, Format
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names
from ropeaudit.audits.cases import check_memory
from ropeaudit.audits.results import Result
from ropeaudit.errors import BadInput, BadShape, UsageError
from ropeaudit.features.model import layers, load
from ropeaudit.features.model.layers import NO_ROTATION_SEEN, HeadDrift, RotatedPairs, Scale
from ropeaudit.features.model.load import Folder, Tokens, read_tokens
from ropeaudit.recognition import wording
from ropeaudit.runtime import doing
from ropeaudit.subjects.calling.environments import CPU, Device, of_torch

if TYPE_CHECKING:
    from ropeaudit.features.model.cached import Cached
    from ropeaudit.features.model.forward_pass import Pass, Runner
    from ropeaudit.features.model.held import Held
    from ropeaudit.recognition.diagnosis import Diagnosis
    from ropeaudit.recognition.verification import Places

DTYPES = ("float64", "float32", "float16", "bfloat16")
OFFSETS = (1000, 32768)
STRUCTURE = 1e-8  # relative: larger changes of float64 logits are no rounding ...
_REACH = 2**20  # ... up to this offset; rounding of angles grows with it
LARGEST_OFFSET = 2**40
ACCURATE = 1e-3  # of the RMS logit: allowed error of float32 up to ...
_NEAR_POSITIONS = 4096  # this position; rounding of angles grows with it
THRESHOLD = 0.01  # score drift that a layer may have
NO_QK_SEEN = (
    "no q and k of this model are seen in attention, so that there are no rows by layer: its code does not "
    "call transformers' attention interface"
)
_UNKNOWN = ("uninitialised", "nonfinite", "unexplained")  # diagnoses without frequencies
REROUTED = "sends tokens to other experts than float64 does: whether its logits are accurate is not judged"
WRONG: dict[str, str] = {  # verdicts by which a model itself fails
    "wrong_frequencies": "the model holds frequencies, tables or factors that its config does not build",
    "wrong_rotation": "a layer rotates q and k otherwise than its config says",
    "wrong_scale": "a layer multiplies q·k by another number than its config says",
    "wrong_decode": "with a cache tokens have other positions than in one pass, or see padding",
    "inaccurate": "float32 logits are not those of the float64 run, by more than float32 explains",
}


class NotShifted(BadInput):
    """A model that does not read position_ids."""


@dataclass(frozen=True, slots=True)
class Shifted:
    """A model in a dtype at an offset. verdict: of `WRONG`, or none, precision, structure, overflow.

    change: columns about logits, with the number of nonfinite ones. heads: score drift of each head.
    cause: of a structural change (frequencies, learned positions, position table, mask, query scale, other),
    else rounding or none. held: buffers unlike those of the config. places: layer -> its worst pair.
    diagnosis: of held, else of the first wrong layer, else of its scale, else of calls with a cache.
    """

    dtype: Format
    offset: int
    change: Mapping[str, Any]
    heads: list[HeadDrift]
    verdict: str
    cause: str
    held: tuple[Held, ...]
    places: dict[int, Places]
    diagnosis: Diagnosis | None
    decoded: Cached | None

    @property
    def wrong_layers(self) -> list[int]:
        """The layers whose rotation is not the config's."""
        return [layer for layer, place in self.places.items() if place.diagnosis is not None]


@dataclass(slots=True)
class ModelAudit(Result):
    """The audit of a model, which runs when it is iterated over.

    Set by the run: narrow: what float64 could not widen. ignored: a sentence on stored frequencies that are
    not used. pairs: rotated pairs by layer, None if unknown. saved: sentences on files of q and k. scales:
    softmax scales by layer. decoded: the calls with a cache that differ most from one pass. calls: way of
    calling -> why it was not compared, empty if it was.
    """

    report_module: ClassVar[str] = "ropeaudit.features.model.report"
    folder: Folder
    tokens: Tokens
    dtypes: Sequence[Format]
    offsets: list[int]
    save: str | None = None
    device: Device = CPU
    narrow: list[str] = field(default_factory=list, init=False)
    ignored: str = field(default="", init=False)
    pairs: dict[int, RotatedPairs | None] = field(default_factory=dict, init=False)
    saved: list[str] = field(default_factory=list, init=False)
    scales: dict[int, Scale] = field(default_factory=dict, init=False)
    decoded: Cached | None = field(default=None, init=False)
    calls: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def still(self) -> list[int]:
        """The layers whose q and k stay when positions move."""
        return sorted(n for n, pairs in self.pairs.items() if pairs is layers.NO_PAIRS)

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
            no_file = target.exists() and not target.is_file()  # a folder, a pipe
            if target.suffix != ".safetensors" or no_file or not target.absolute().parent.is_dir():
                raise UsageError(f"--save-qk {self.save!r} is not a file in a folder; try q.safetensors")
        weights = sum(path.stat().st_size for path in self.folder.files)
        vocabulary = int(self.folder.text.get("vocab_size") or 0)
        logits = 8 * len(self.tokens.ids) * vocabulary * (len(self.offsets) + 6)
        try:
            check_memory(4 * weights + logits)  # weights of 2 bytes become 8
        except BadShape as error:
            path = repr(str(self.folder.path))
            raise BadInput(error.fault, "give a smaller model or --tokens", path) from None

    def __iter__(self) -> Iterator[Shifted]:
        """Run the model in float64, then in each dtype at each offset. Raises: RopeAuditError."""
        self.check()
        done, total = itertools.count(1), (1 + len(self.dtypes)) * (1 + len(self.offsets))

        def step() -> None:
            doing.step(next(done) / total)

        ids = self.tokens.ids
        runner, judge_holds, base = self._load_and_run(FP64, None)
        references, causes = self._run_reference(runner, base, step)
        self.narrow = sorted(runner.narrow)
        del runner
        for fmt in self.dtypes:
            runner, held, base = self._load_and_run(fmt, judge_holds)
            if held and not runner.depends_on([buffer.name for buffer in held], ids):
                names = ", ".join(buffer.name for buffer in held)
                self.folder.note(f"{names}: not as the config builds it; no logit is seen to depend on it")
                held = ()
            step()
            for offset in self.offsets:
                shifted = runner.run(ids, offset)
                step()
                exact = references[0], references[offset]
                yield self._compare_passes(fmt, offset, (base, shifted), exact, held, causes[offset])

    def _compare_passes(
        self,
        fmt: Format,
        offset: int,
        own: tuple[Pass, Pass],
        exact: tuple[Pass, Pass],
        held: tuple[Held, ...],
        structure: str,
    ) -> Shifted:
        """Compare passes with those in float64. structure: cause of a change there."""
        from ropeaudit.features.model.forward_pass import compare
        from ropeaudit.features.model.held import diagnosis_with_layers

        change = compare(own, exact, self.tokens.ids)
        heads = [
            head
            for n, seen in sorted(own[1].layers.items())
            for head in layers.drifts(n, own[0].layers[n], seen, self.pairs.get(n) or layers.NO_PAIRS)
        ]
        loaded = diagnosis_with_layers([(buffer.layer, buffer.diagnosis) for buffer in held])
        known = loaded if loaded is not None and loaded.code in _UNKNOWN else None

        def checked(passed: Pass, offset: int) -> dict[int, Places]:
            rotated = passed.calls, passed.layers
            return layers.check_layers(self.folder, *rotated, self.pairs, fmt, offset, known)

        places = checked(own[1], offset)
        if offset and not any(place.diagnosis for place in places.values()):  # what is wrong near 0 alone
            places |= {n: place for n, place in checked(own[0], 0).items() if place.diagnosis}
        wrong = {
            "wrong_frequencies": loaded,
            "wrong_rotation": diagnosis_with_layers(
                [(n, place.diagnosis) for n, place in places.items() if place.diagnosis]
            ),
            "wrong_scale": diagnosis_with_layers(
                [(n, scale.wrong) for n, scale in self.scales.items() if scale.wrong]
            ),
            "wrong_decode": self.decoded.wrong if self.decoded else None,
        }
        found = next(((name, one) for name, one in wrong.items() if one), None)
        verdict = "precision" if change["change_max"] else "none"
        if change["nonfinite"]:
            verdict = "overflow"
        elif change["structural_max"] > structure_allowed(change, offset):
            verdict = "structure"
        cause = {"structure": structure, "none": "none"}.get(verdict, "rounding")
        if found and (held or verdict != "overflow"):
            verdict = found[0]
        elif not change["nonfinite"] and self._is_inaccurate(fmt, offset, change, own, exact):
            verdict = "inaccurate"
        why = found[1] if found else None
        return Shifted(fmt, offset, change, heads, verdict, cause, held, places, why, self.decoded)

    def _is_inaccurate(
        self,
        fmt: Format,
        offset: int,
        change: Mapping[str, Any],
        own: tuple[Pass, Pass],
        exact: tuple[Pass, Pass],
    ) -> bool:
        near = ACCURATE * change["logits_rms"]
        far = near * max(1.0, (offset + change["tokens"]) / _NEAR_POSITIONS)
        off = change["base_error_rms"] > near or change["error_rms"] > far
        if fmt not in (FP32, FP64) or not off:
            return False
        mine, its = ([picked for one in both for picked in one.experts] for both in (own, exact))
        if all(a.shape != b.shape or a.equal(b) for a, b in zip(mine, its, strict=False)):
            return True
        self.folder.note(f"{fmt.name} {REROUTED}")
        return False

    def _load_and_run(
        self, fmt: Format, judge_holds: tuple[Held, ...] | None
    ) -> tuple[Runner, tuple[Held, ...], Pass]:
        """Load the model; return its runner, its wrong buffers, and the pass at offset 0.

        judge_holds: wrong buffers of the float64 run; uninitialised memory differs between loads.
        Raises: BadInput, which names a wrong buffer.
        """
        from ropeaudit.features.model import held
        from ropeaudit.features.model.forward_pass import Runner

        loaded = load.load(self.folder, fmt, self.device)
        found = held.compare(loaded, self.folder) or judge_holds or ()
        runner = Runner(loaded, judge_holds is None, self.folder.maximum, self.device)
        if judge_holds is None:
            self.ignored = held.ignored_frequencies(loaded, self.folder.files)
        try:
            return runner, found, runner.run(self.tokens.ids, 0)
        except BadInput as error:
            wrong = [
                f"{buffer.name}, not as its config builds it: {wording.sentence(buffer.diagnosis)}"
                for buffer in found
            ]
            wrong += [f"{name}: {load.UNINITIALISED}" for name in load.left_on_meta(runner.model)]
            raise BadInput("; ".join([*wrong[:1], str(error)])) from None

    def _run_reference(
        self, runner: Runner, base: Pass, step: Callable[[], None]
    ) -> tuple[dict[int, Pass], dict[int, str]]:
        """Run float64 passes; return their logits, and causes of changes, by offset."""
        from ropeaudit.features.model import cached
        from ropeaudit.features.model.forward_pass import cause_of

        if not base.reads and any(self.offsets):
            raise NotShifted(
                "the model does not read position_ids: its positions follow from the order of the tokens, or "
                "it has none",
                "there is nothing to shift",
                repr(str(self.folder.path)),
            )
        for note in [NO_QK_SEEN] * (not base.layers) + [NO_ROTATION_SEEN] * (not base.calls):
            self.folder.note(note)
        self.pairs = dict.fromkeys(base.layers)
        self.pairs |= {n: layers.rotated_pairs(call) for n, call in base.calls.items()}
        if self.save is not None:
            self.saved = layers.save_qk(self.save, self.folder, base.layers, base.calls)
        self.scales = layers.scales(self.folder, base.layers, base.times, 0)
        self.decoded, self.calls = cached.compare(runner, self.tokens.ids, base, self.pairs, STRUCTURE)
        step()
        passes, causes = {0: base}, dict[int, str]()
        for offset in self.offsets:
            shifted = runner.run(self.tokens.ids, offset)
            step()
            passes[offset], causes[offset] = shifted, cause_of(base, shifted)
            scales = layers.scales(self.folder, shifted.layers, shifted.times, offset)
            self.scales |= {n: scale for n, scale in scales.items() if scale.wrong}
            for n, vectors in shifted.layers.items() if offset else ():
                own = base.layers[n]
                moved = max(layers.relative_error(own.q, vectors.q), layers.relative_error(own.k, vectors.k))
                if n not in base.calls and moved <= layers.NEAR:
                    self.pairs[n] = layers.NO_PAIRS
            shifted.forget()
        base.forget()
        return passes, causes


@arguments.public
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
    device: str | None = None,
) -> ModelAudit:
    """Return the audit of a causal language model at shifted positions; iterate over it, and it runs.

    Yields one Shifted per dtype and offset, in that order, each compared with a float64 run.
    folder: a local checkpoint: config.json, *.safetensors, a tokenizer if there is one. text: a file to read
    through that. tokens: how many random ones, "128", or their ids, "5,17,3". save_qk: a .safetensors file
    for q and k before RoPE. trust_remote_code: execute Python code of the folder. device: such as "cuda:0".
    Raises: UsageError, BadInput, MissingPackage.
    """
    place = of_torch(device)
    if place.name.startswith("mps"):
        raise UsageError(
            f"--device {device}: the reference runs in float64, which mps lacks; give --device cpu"
        )
    opened = load.open_folder(folder, trust_remote_code)
    chosen = read_tokens(opened, text, tokens, seed)
    formats, numbers = arguments.formats(dtypes), arguments.integers(offsets)
    return ModelAudit(opened, chosen, formats, numbers, save_qk, place)


def structure_allowed(change: Mapping[str, Any], offset: int) -> float:
    """Return how much rounding may change a float64 logit."""
    return STRUCTURE * max(1.0, offset / _REACH) * max(1.0, float(change["logits_max"]))
