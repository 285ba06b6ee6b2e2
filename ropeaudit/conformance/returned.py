"""Judge what a kernel wrote back for a case of vectors, as if its code had been called.

Called code is asked for further positions until faults that look alike differ. Here the other offsets of the
case decide: a fault is named only if it explains what came back at all of them, right ones too.
Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FloatArray, parse
from ropeaudit.conformance import score_drift, vector_case
from ropeaudit.conformance.code_under_test import Both
from ropeaudit.conformance.every_position import of_gradient
from ropeaudit.conformance.finding import Finding, judged, of_worst_pair
from ropeaudit.conformance.score_drift import ScoreRun, yardstick
from ropeaudit.conformance.vector_case import RETURNED, CaseCall, CaseSpec, Entry, Key, VectorCase
from ropeaudit.errors import BadInput, ForeignError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock, explaining_recipe
from ropeaudit.recognition.rotation import Searches, common, kept_lengths
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.backward import mirrored
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Rotator, Unavailable
from ropeaudit.tensor_files import tensors as tensorfiles

_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it
_SERVED = {  # call -> what it is
    "ragged": "rows at positions of their own",
    "one-token": "rows at positions of their own, one token each",
    "packed": "sequences packed into a row, each from position 0",
    "groups": "groups of query heads to a key head",
    "one-key-head": "all query heads to one key head",
}
_ROTATED = 0.9  # share of pairs whose lengths agree, of a rotation

CASE = "case.txt"  # may stand beside what is written back: the digest of the case that it is of

Arrays: TypeAlias = dict[Key, dict[str, FloatArray]]  # call -> name -> numbers, in the carrier


class NotAsked(ForeignError):
    """A call that is not one of the case."""


@dataclass(frozen=True, slots=True)
class Recorded(Rotator):
    """What was written back, as if its code were called."""

    calls: Sequence[CalledBlock]

    @property
    def starts(self) -> list[int]:
        """The positions where calls begin: they tell like faults apart."""
        return [call.first for call in self.calls if call.at.ndim == 1]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return what was written back for the first batch elements, or all. Raises: NotAsked."""
        for call in self.calls:
            same = (np.array_equal(x, given[: len(x)]) for x, given in zip((q, k), call.given, strict=True))
            if np.array_equal(at, call.at) and all(same):
                return call.rotated[0][: len(q)], call.rotated[1][: len(k)]
        raise NotAsked("vectors or positions that the case does not give")


@dataclass(frozen=True, slots=True)
class Returned:
    """What was written back, by call. named: whether it names its case."""

    arrays: Arrays
    named: bool


def read_returned(case: VectorCase, output: str | Path) -> Returned:
    """Return what was written back for a case: raw files or one .safetensors. Raises: BadInput."""
    path = Path(output)
    seen = f"--returned {str(path)!r}"
    alone = path.suffix == ".safetensors"
    folder, tensor_file = (path.parent, path) if alone else (path, path / RETURNED)
    wanted = {
        entry["file"].removesuffix(".bin"): (call.key, name, entry)
        for call in case.spec.calls
        for name, entry in case.spec.outputs(call).items()
    }
    try:
        names = {path.name} if alone else {item.name for item in folder.iterdir()}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{seen}: {reason}; give the folder that the kernel wrote into") from None
    if folder.resolve() == case.folder.resolve():
        names -= vector_case.own_files(case.spec)
    digests = []
    if CASE in names:
        digests.append(vector_case.content_of(folder / CASE, seen).decode("utf-8", "replace").strip())
    raw = sorted(name for name in names if name.endswith(".bin"))
    if tensor_file.name in names:
        if raw:
            both = f"both {raw[0]} and {tensor_file.name}"
            raise BadInput(f"{seen}: there are {both}; leave raw files or one .safetensors file")
        tensors, digest = _tensors(tensor_file, wanted, f"{seen}: {tensor_file.name}")
        digests += [digest.strip()] if digest is not None else []
    else:
        asked = (name.removesuffix(".bin") for name in raw)
        tensors = {stem: _raw(folder, wanted[stem][2], seen) for stem in asked if stem in wanted}
        raw += sorted(name for name in names if name.endswith(".safetensors"))
        tensors |= {name: np.zeros(0) for name in raw if name.removesuffix(".bin") not in wanted}
    for named in digests:
        if named != case.digest:
            told = f"{seen} names another case, {named[:19]}..., than {str(case.folder)!r}"
            remedy = "run the kernel on this case, or judge it by the other one"
            raise BadInput(f"{told}, {case.digest[:19]}...; {remedy}")
    lacking, more = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if lacking or more:
        told = f"holds {', '.join(more[:4])}, which the case does not ask for"
        if not more:
            told = f"{len(lacking)} of {len(wanted)} arrays are missing, the first {lacking[0]}"
        first = ", ".join(f"{stem}.bin" for stem in list(wanted)[:4])
        raise BadInput(f"{seen}: {told}; it asks for {first} ..., or {RETURNED}")
    arrays: Arrays = {}
    for stem, (key, name, entry) in wanted.items():
        tensor, dtype = tensors[stem], parse(entry["dtype"])
        if tensor.dtype != vector_case.stored(dtype) or list(tensor.shape) != entry["shape"]:
            raise BadInput(f"{seen}: {stem} is {tensor.dtype} of shape {tensor.shape}; {_form(entry)}")
        arrays.setdefault(key, {})[name] = vector_case.carried(tensor, dtype)
    return Returned(arrays, bool(digests))


def _form(entry: Entry) -> str:
    return f"{entry['dtype']} of shape {tuple(entry['shape'])}, little-endian, is what the case asks for"


def _raw(folder: Path, entry: Entry, seen: str) -> NDArray[Any]:
    """Return a raw file's array. Raises: BadInput for none or another size."""
    content = vector_case.content_of(folder / entry["file"], seen)
    kind = vector_case.stored(parse(entry["dtype"]))
    if len(content) != (size := math.prod(entry["shape"]) * kind.itemsize):
        told = f"{entry['file']} has {len(content):,} bytes instead of {size:,}"
        raise BadInput(f"{seen}: {told}: {_form(entry)}")
    return np.frombuffer(content, kind).reshape(entry["shape"])


def _tensors(path: Path, wanted: Collection[str], seen: str) -> tuple[dict[str, NDArray[Any]], str | None]:
    """Return a .safetensors file's tensors and its case. Raises: BadInput."""
    if wrong := tensorfiles.wrong(path):
        raise BadInput(f"{seen}: {wrong}; write it again")
    from safetensors import safe_open

    def contents() -> tuple[dict[str, NDArray[Any]], str | None]:
        with safe_open(path, framework="numpy") as archive:
            digest = (archive.metadata() or {}).get("case")
        return dict(tensorfiles.read(path, wanted)), digest

    return tensorfiles.guarded(seen, path, contents)


def findings(
    case_folder: str | Path,
    output_folder: str | Path,
    recipe: str | None = None,
) -> list[Finding]:
    """Return the checks of what was written back into `output_folder` for the case in `case_folder`.

    output_folder: or one .safetensors file. recipe: what the kernel claims to follow; without it what right
    code in the dtype explains is allowed.
    Raises: BadInput where a file is missing, damaged or of another case; UnknownName.
    """
    case = vector_case.read(case_folder)
    spec = case.spec
    claimed = None if recipe is None else recipes.load(recipe).resolve(spec.dtype)
    returned = read_returned(case, output_folder)
    complete = _written_back(case, returned)
    if not all(np.isfinite(x).any() for arrays in returned.arrays.values() for x in arrays.values()):
        return [complete]
    rule = claimed or allowance.careful(spec.dtype)
    if spec.want == "gradient":  # what a vector is used for more than once is summed in its own dtype
        rule = rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(spec.dtype)
    q, k = _sides(spec, case.vectors(), "grad_rotated_")
    blocks = {
        call.key: CalledBlock(
            call.positions() if call.step else call.row(),
            (call.part(q, False), call.part(k, True)),
            _sides(spec, returned.arrays[call.key], "grad_"),
        )
        for call in spec.calls
    }
    recorded = Recorded(list(blocks.values()))
    searches = Searches()  # what is looked for in vain at some calls is not at all of them

    def places(key: Key) -> Places:
        at = verification.judged(
            [blocks[key]], recorded, spec.setting, spec.dtype, rule=rule, searches=searches
        )
        if at.diagnosis is None or at.diagnosis.explains:
            return at
        return replace(at, diagnosis=misread(blocks[key], spec.setting) or at.diagnosis)

    rotation = _rotation(spec, {offset: places(offset) for offset in spec.offsets})
    served = [_served(spec, call, places(call.key), rotation.diagnosis) for call in spec.served_calls]
    return [complete, rotation, *_drifts(spec, recorded, blocks[spec.offsets[-1]], claimed), *served]


def _sides(spec: CaseSpec, arrays: Mapping[str, FloatArray], prefix: str) -> Both:
    """Return q and k, of a gradient with the second number of each pair negated.

    It is the inverse rotation: so, before and after, it is the rotation itself, and is judged as one.
    """
    if spec.want != "gradient":
        return arrays["q"], arrays["k"]
    return mirrored(arrays[f"{prefix}q"], spec.setting), mirrored(arrays[f"{prefix}k"], spec.setting)


def _written_back(case: VectorCase, returned: Returned) -> Finding:
    """Return whether all that came back is finite, and not what was given."""
    nonfinite, unchanged, given = [], [], case.vectors()
    for call in case.spec.calls:
        for name, x in returned.arrays[call.key].items():
            array = f"{name}.{call.key}"
            source = given[_SOURCES.get(name, name)]
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {array} are nan or infinite")
            if call.key != 0 and np.array_equal(call.part(source, name.endswith("k")), x):
                unchanged.append(f"{array} is what was given, number by number: nothing was rotated")
    problems = [*nonfinite, *unchanged]
    count = sum(map(len, returned.arrays.values()))
    named = "" if returned.named else f"; it does not name its case ({CASE})"
    detail = f"{count} arrays of {len(returned.arrays)} calls came back, all finite{named}"
    if problems:
        more = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
        detail = "; ".join(problems[:2]) + more
    sizes = {"measured": float(len(problems)), "allowed": 0.0}
    unit = "arrays that are not finite, or what was given"
    return judged("written back", not problems, detail, unit=unit, **sizes)


def _rotation(spec: CaseSpec, placed: Mapping[int, Places]) -> Finding:
    """Return whether each pair of q and k is in its place at every offset."""
    offset = max(placed, key=lambda offset: placed[offset].excess)
    off = [offset for offset, at in placed.items() if at.excess > 1]
    found = consistent_diagnosis(placed)
    count = f"q and k, {spec.heads} and {spec.kv_heads} heads, 2 batch elements, {spec.seq_len} tokens"
    offsets = ", ".join(map(str, off[:6])) + (", ..." if len(off) > 6 else "")
    wrong = f"; out of place at {len(off)} of them: {offsets}" if off else ""
    detail = f"{count} at {len(placed)} offsets up to {max(placed)}{wrong}"
    name = "gradient" if spec.want == "gradient" else "rotation"
    up_to = max(placed) + spec.seq_len
    return _of_pair(name, detail, replace(placed[offset], diagnosis=found), f"offset {offset}", spec, up_to)


def _of_pair(name: str, detail: str, worst: Places, place: str, spec: CaseSpec, up_to: int) -> Finding:
    """Return whether the worst pair is in place. up_to: number of positions."""
    found, where = worst.diagnosis, f"{place}: {worst.words}"
    if found and spec.want == "gradient":
        found = of_gradient(found)
    remedy = wording.remedy(found, spec.dtype, up_to)
    option = wording.option(found)
    told = {"where": where, "diagnosis": found, "remedy": remedy, "option": option}
    return of_worst_pair(name, detail, worst, **told)


def _served(spec: CaseSpec, call: CaseCall, worst: Places, known: Diagnosis | None) -> Finding:
    """Return whether each pair of a call as servers make it stands where its position says.

    known: what explains the calls at offsets.
    """
    found = worst.diagnosis
    for one in (found, *found.alternatives) if found and known else ():
        if found and known and (one.code, one.values) == (known.code, known.values):
            found = replace(one, where=found.where, alternatives=())  # it explains this one as well
            break
    tokens = "1 token" if call.seq_len == 1 else f"{call.seq_len} tokens"
    rows = "1 batch element" if call.batch == 1 else f"{call.batch} batch elements"
    key, up_to = str(call.key), int(call.positions().max()) + 1
    detail = f"{_SERVED[key]}: {call.heads} and {call.kv_heads} heads, {rows}, {tokens}"
    worst = replace(worst, diagnosis=found)
    return _of_pair(key.replace("-", " "), detail, worst, key, spec, up_to)


def _drifts(
    spec: CaseSpec,
    recorded: Recorded,
    last: CalledBlock,
    claimed: Resolved | None,
) -> list[Finding]:
    """Return float64 drift checks of the first batch element. last: the final call."""
    setting, dtype = spec.setting, spec.dtype
    resembled = None if claimed else explaining_recipe(last, setting, dtype)
    wanted = yardstick(claimed, resembled, setting, dtype, last.first + spec.seq_len)
    q, k = (x[0].astype(np.float64) for x in last.given)
    files = Unavailable("files", "it was called elsewhere", (setting.layout,))
    run = ScoreRun(
        recorded,
        Called(files, setting, dtype, recorded),
        Inputs(q, k, "vectors", spec.seed),
        lambda offset: setting,
        np.arange(spec.seq_len, dtype=np.int64),
        "causal",
        f"{spec.seq_len} tokens of batch element 0",
    )
    drifts = run.measured(wanted, spec.offsets)
    return [
        score_drift.drift("drift", drifts, wanted, None),
        score_drift.growth(run, drifts, wanted),
        score_drift.tolerance(drifts, claimed, setting, dtype),
    ]


def consistent_diagnosis(placed: Mapping[int, Places]) -> Diagnosis | None:
    """Return what explains all wrong offsets, else what leaves fewest faults, and where."""
    off = [offset for offset, places in placed.items() if not places.excess <= 1]
    if not off:
        return None
    named = {offset: one for offset in off if (one := placed[offset].diagnosis) and one.explains}
    of_all, *others = named.values() or [None]
    for other in others:
        of_all = common(of_all, other) if of_all and other else None
    if of_all and len(named) == len(off):
        return of_all
    best = min(named, key=lambda offset: len(named[offset].alternatives), default=off[0])
    both = verification.beside(placed[best], placed.values()).diagnosis
    if not named or both is None or both != placed[best].diagnosis:
        return both
    return replace(both, where=replace(both.where, offset=best))


def misread(block: CalledBlock, setting: RopeSetting) -> Diagnosis | None:
    """Return in which other order of axes q was written; None where most pairs are as long as they should be.

    A rotation keeps the length of each pair, times the attention factor, whatever the position is.
    """
    x, y = block.given[0], block.rotated[0]
    if kept_lengths(x, y, setting) >= _ROTATED:
        return None
    b, h, s, d = y.shape
    for order, other in (
        (("batch", "seq", "heads", "head_dim"), y.reshape(b, s, h, d).transpose(0, 2, 1, 3)),
        (("seq", "batch", "heads", "head_dim"), y.reshape(s, b, h, d).transpose(1, 2, 0, 3)),
        (("heads", "batch", "seq", "head_dim"), y.reshape(h, b, s, d).transpose(1, 0, 2, 3)),
    ):
        if kept_lengths(x, other, setting) >= _ROTATED:
            return Diagnosis("axes-order", {"order": order})
    return None
