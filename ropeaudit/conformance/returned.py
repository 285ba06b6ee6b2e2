"""Judge what a kernel wrote back for a case of vectors, as if its code had been called.

Called code is asked for further positions until faults that look alike differ. Here the other offsets of the
case decide: a fault is named only if it changes positions at the offsets that are wrong, and at none of those
that are right.
Letters: b batch elements, h heads, s positions, d head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ropeaudit import recipes
from ropeaudit.arithmetic.formats import FloatArray, parse
from ropeaudit.conformance import score_drift, vector_case
from ropeaudit.conformance.code_under_test import Both
from ropeaudit.conformance.finding import Finding, judged, of_worst_pair
from ropeaudit.conformance.gradient import of_gradient
from ropeaudit.conformance.score_drift import ScoreRun, yardstick
from ropeaudit.conformance.vector_case import RETURNED, CaseCall, CaseSpec, Entry, Key, VectorCase
from ropeaudit.errors import BadInput, ForeignError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.faults import Fault, faults
from ropeaudit.recognition.known_recipes import CalledBlock, explaining_recipe
from ropeaudit.recognition.rotation import Searches, common
from ropeaudit.recognition.verification import Held, Places
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.backward import mirrored
from ropeaudit.subjects.calling.called import Called
from ropeaudit.subjects.calling.code import Rotator, Unavailable
from ropeaudit.subjects.exact_rotation import complex_pairs
from ropeaudit.tensor_files import tensors as tensorfiles

_MOST_UNEXPLAINED = 3  # offsets that nothing known explains: more would take seconds each to no avail
_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it
_SERVED = {  # call -> what it is
    "ragged": "rows at positions of their own",
    "one-token": "rows at positions of their own, one token each",
    "packed": "sequences packed into a row, each from position 0",
    "groups": "groups of query heads to a key head",
    "one-key-head": "all query heads to one key head",
}
# Of a length: rotations in bfloat16 change it by 3 % at most, float8_e4m3 by 13 %, and random pairs agree to
# within this in about a sixth of all cases.
_NEAR = 0.15
_ROTATED, _ELSE = 0.9, 0.5  # shares of pairs whose lengths agree: those of a rotation, and of anything else

CASE = "case.txt"  # may stand beside what is written back: the digest of the case that it is of
_LONGEST = 200  # bytes of it that are read

Arrays: TypeAlias = dict[Key, dict[str, FloatArray]]  # call -> name -> numbers, in the carrier


class NotAsked(ForeignError):
    """A call that is not one of the case."""


@dataclass(frozen=True, slots=True)
class Recorded(Rotator):
    """What was written back for calls with the same q and k. rotated: by the bytes of their positions."""

    given: Both
    rotated: Mapping[bytes, Both]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return what was written back for the first batch elements, or all. Raises: NotAsked."""
        known = self.rotated.get(at.tobytes())
        same = (np.array_equal(x, own[: len(x)]) for x, own in zip((q, k), self.given, strict=True))
        if known is None or not all(same):
            raise NotAsked("vectors or positions that the case does not give")
        return known[0][: len(q)], known[1][: len(k)]


@dataclass(frozen=True, slots=True)
class Returned:
    """What was written back, by call. named: whether it names its case."""

    arrays: Arrays
    named: bool


def read_returned(case: VectorCase, output: str | Path) -> Returned:
    """Return what was written back for a case. Raises: BadInput."""
    path = Path(output)
    seen = f"--returned {str(path)!r}"
    try:
        is_folder, exists = path.is_dir(), path.exists()
        names = {item.name for item in path.iterdir()} if is_folder else set()
    except (OSError, ValueError) as error:
        raise BadInput(f"{seen}: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix == ".safetensors" and not is_folder:
        return Returned(*_tensors(case, path, seen))
    if not is_folder:
        what = "is no folder" if exists else "no such folder"
        raise BadInput(f"{seen}: {what}; give the folder that the kernel wrote into")
    expected = {entry["file"] for _, _, entry in _entries(case)}
    raw = expected & names
    if path.resolve() == case.folder.resolve():
        names -= case.own_files()
    tensor_files = {name for name in names if name.endswith(".safetensors")}
    if raw and tensor_files:
        both = f"both {min(raw)} and {min(tensor_files)}"
        raise BadInput(f"{seen}: there are {both}; leave raw files or one .safetensors file")
    left = names - raw - {RETURNED}
    foreign = sorted(name for name in left if name.endswith((".bin", ".safetensors")))
    if foreign:  # of another case, or misnamed
        asked = ", ".join(entry["file"] for _, _, entry in list(_entries(case))[:4])
        raise BadInput(
            f"{seen}: the case does not ask for {', '.join(foreign[:4])}; it asks for {asked} ..., "
            f"or {RETURNED}"
        )
    if named := CASE in names:
        text = vector_case.content_of(path / CASE, seen, _LONGEST).decode("utf-8", "replace").strip()
        _same(case, text, f"{seen}: {CASE}")
    if tensor_files:
        arrays, inside = _tensors(case, path / RETURNED, seen)
        return Returned(arrays, named or inside)
    return Returned(_raw(case, path, names, seen), named)


def _entries(case: VectorCase) -> Iterator[tuple[Key, str, Entry]]:
    for call in case.spec.calls:
        yield from ((call.key, name, entry) for name, entry in case.spec.outputs(call).items())


def _same(case: VectorCase, text: str, seen: str) -> None:
    """Raise BadInput if what was written back names another case."""
    if text != case.digest:
        raise BadInput(
            f"{seen} names another case, {text[:19]}..., than {str(case.folder)!r}, {case.digest[:19]}...; "
            "run the kernel on this case, or judge it by the other one"
        )


def _raw(case: VectorCase, path: Path, names: set[str], seen: str) -> Arrays:
    wanted = list(_entries(case))
    missing = [entry["file"] for _, _, entry in wanted if entry["file"] not in names]
    if missing:
        count = f"{len(missing)} of {len(wanted)} files are missing"
        raise BadInput(f"{seen}: {count}, the first {missing[0]}; write all that manifest.json asks for")
    arrays: Arrays = {}
    for key, name, entry in wanted:
        file, dtype, shape = path / entry["file"], parse(entry["dtype"]), tuple(entry["shape"])
        size = math.prod(shape) * vector_case.stored(dtype).itemsize
        if not file.is_file():
            raise BadInput(f"{seen}: {file.name} is no file; {_form(entry)}")
        here = file.stat().st_size
        if here != size:
            raise BadInput(f"{seen}: {file.name} has {here:,} bytes instead of {size:,}: {_form(entry)}")
        content = vector_case.content_of(file, seen, size)
        arrays.setdefault(key, {})[name] = vector_case.numbers(content, dtype, shape)
    return arrays


def _form(entry: Entry) -> str:
    return f"{entry['dtype']} of shape {tuple(entry['shape'])}, little-endian, is what the case asks for"


def _tensors(case: VectorCase, path: Path, seen: str) -> tuple[Arrays, bool]:
    """Return the tensors of a .safetensors file, named like raw files without .bin."""
    wanted = {entry["file"].removesuffix(".bin"): (key, name, entry) for key, name, entry in _entries(case)}
    if wrong := tensorfiles.wrong(path):
        raise BadInput(f"{seen}: {path.name}: {wrong}; write it again")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as archive:
            digest = (archive.metadata() or {}).get("case")
    except (SafetensorError, OSError) as error:
        raise BadInput(f"{seen}: {path.name} is no readable .safetensors file: {error}") from None
    if digest is not None:
        _same(case, digest.strip(), f"{seen}: {path.name}")
    tensors = tensorfiles.guarded(
        f"{seen}: {path.name}",
        path,
        lambda: tensorfiles.read(path, wanted),
    )
    for problem, names in (
        ("lacks", sorted(wanted.keys() - tensors.keys())),
        ("holds, not asked for,", sorted(tensors.keys() - wanted.keys())),
    ):
        if names:
            raise BadInput(
                f"{seen}: {path.name} {problem} {', '.join(names[:4])}; the case asks for {min(wanted)} ..."
            )
    arrays: Arrays = {}
    for stem, (key, name, entry) in wanted.items():
        tensor, dtype = tensors[stem], parse(entry["dtype"])
        if tensor.dtype != vector_case.stored(dtype) or list(tensor.shape) != entry["shape"]:
            raise BadInput(f"{seen}: {stem} is {tensor.dtype} of shape {tensor.shape}; {_form(entry)}")
        arrays.setdefault(key, {})[name] = vector_case.carried(tensor, dtype)
    return arrays, digest is not None


@dataclass(frozen=True, slots=True)
class _Judge:
    """What was written back for a case, and to what it is held.

    given: what all calls are parts of. rule: the recipe whose errors a pair may have.
    """

    case: VectorCase
    returned: Returned
    given: Both
    rule: Resolved

    @property
    def spec(self) -> CaseSpec:
        """The parameters of the case."""
        return self.case.spec

    def rotated(self, key: Key) -> Both:
        """Return what was written back for a call, as if it had rotated."""
        return _sides(self.spec, self.returned.arrays[key], "grad_")

    def judged(
        self,
        block: CalledBlock,
        among: Rotator,
        explain: bool = True,
        searches: Searches | None = None,
    ) -> Places:
        """Return where the worst pair of a call is; among: where further calls are looked up."""
        held: Held = {"rule": self.rule, "explain": explain, "searches": searches}
        return verification.judged([block], among, self.spec.setting, self.spec.dtype, **held)


def _sides(spec: CaseSpec, arrays: Mapping[str, FloatArray], prefix: str) -> Both:
    """Return q and k, of a gradient with the second number of each pair negated.

    It is the inverse rotation: so, before and after, it is the rotation itself, and is judged as one.
    """
    if spec.want != "gradient":
        return arrays["q"], arrays["k"]
    return mirrored(arrays[f"{prefix}q"], spec.setting), mirrored(arrays[f"{prefix}k"], spec.setting)


def findings(case_folder: str | Path, output_folder: str | Path, recipe: str | None = None) -> list[Finding]:
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
    judge = _Judge(case, returned, _sides(spec, case.vectors(), "grad_rotated_"), rule)
    run = np.arange(spec.seq_len, dtype=np.int64)
    blocks = [CalledBlock(run + offset, judge.given, judge.rotated(offset)) for offset in spec.offsets]
    recorded = Recorded(judge.given, {block.at.tobytes(): block.rotated for block in blocks})
    placed, unexplained = dict[int, Places](), 0
    for block in blocks:
        places = judge.judged(block, recorded, explain=unexplained < _MOST_UNEXPLAINED)
        placed[block.first] = places
        unexplained += places.diagnosis is not None and not places.diagnosis.explains
    rotation = _rotation(judge, placed)
    searches = Searches(in_vain=2 * unexplained)  # q and k at each of those offsets
    served = [_served(judge, call, rotation.diagnosis, searches) for call in spec.served_calls]
    return [complete, rotation, *_drifts(spec, recorded, blocks[-1], claimed), *served]


def _written_back(case: VectorCase, returned: Returned) -> Finding:
    """Return whether all that came back is finite, and not what was given."""
    nonfinite, unchanged, given = [], [], case.vectors()
    for call in case.spec.calls:
        for name, x in returned.arrays[call.key].items():
            array, source = f"{name}.{call.key}", given[_SOURCES.get(name, name)]
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {array} are nan or infinite")
            if call.key != 0 and np.array_equal(call.part(source, name.endswith("k")), x):
                unchanged.append(f"{array} is what was given, number by number: nothing was rotated")
    problems, count = [*nonfinite, *unchanged], sum(map(len, returned.arrays.values()))
    named = "" if returned.named else f"; it does not name its case ({CASE})"
    detail = f"{count} arrays of {len(returned.arrays)} calls came back, all finite{named}"
    if problems:
        more = f", and {len(problems) - 2} more" if len(problems) > 2 else ""
        detail = "; ".join(problems[:2]) + more
    sizes = {"measured": float(len(problems)), "allowed": 0.0}
    unit = "arrays that are not finite, or what was given"
    return judged("written back", not problems, detail, unit=unit, **sizes)


def _rotation(judge: _Judge, placed: Mapping[int, Places]) -> Finding:
    """Return whether each pair of q and k is in its place at every offset."""
    spec, gradient = judge.spec, judge.spec.want == "gradient"
    sizes = {offset: math.inf if math.isnan(at.excess) else at.excess for offset, at in placed.items()}
    offset = max(sizes, key=lambda offset: sizes[offset])
    worst, off = placed[offset], [offset for offset, size in sizes.items() if size > 1]
    found = consistent_diagnosis(placed, spec)
    if off and (found is None or not found.explains):
        found = misread(judge.case, judge.returned, off[0]) or found
    count = f"q and k, {spec.heads} and {spec.kv_heads} heads, 2 batch elements, {spec.seq_len} tokens"
    offsets = ", ".join(map(str, off[:6])) + (", ..." if len(off) > 6 else "")
    wrong = f"; out of place at {len(off)} of them: {offsets}" if off else ""
    detail = f"{count} at {len(placed)} offsets up to {max(placed)}{wrong}"
    worst = replace(worst, diagnosis=found and (of_gradient(found) if gradient else found))
    name, up_to = "gradient" if gradient else "rotation", max(placed) + spec.seq_len
    return _of_pair(name, detail, worst, f"offset {offset}", spec, up_to)


def _of_pair(name: str, detail: str, worst: Places, place: str, spec: CaseSpec, up_to: int) -> Finding:
    """Return whether the worst pair is in place. up_to: number of positions."""
    found, where = worst.diagnosis, f"{place}: {worst.words}"
    remedy, option = wording.remedy(found, spec.dtype, up_to), wording.option(found)
    return of_worst_pair(name, detail, worst, where=where, remedy=remedy, option=option)


def _served(judge: _Judge, call: CaseCall, known: Diagnosis | None, searches: Searches) -> Finding:
    """Return whether each pair of a call as servers make it stands where its position says.

    known: what explains the calls at offsets.
    """
    spec, (q, k) = judge.spec, judge.given
    at = call.positions() if call.step else call.row()
    block = CalledBlock(at, (call.part(q, False), call.part(k, True)), judge.rotated(call.key))
    among = Recorded(block.given, {at.tobytes(): block.rotated})
    worst = judge.judged(block, among, searches=searches)
    found = worst.diagnosis
    if found and not found.explains:
        found = misread(judge.case, judge.returned, call.key) or found
    if found and spec.want == "gradient":
        found = of_gradient(found)
    for one in (found, *found.alternatives) if found and known else ():
        if found and known and (one.code, one.values) == (known.code, known.values):
            found = replace(one, where=found.where, alternatives=())  # it explains this one as well
            break
    worst = replace(worst, diagnosis=found)
    tokens = "1 token" if call.seq_len == 1 else f"{call.seq_len} tokens"
    rows = "1 batch element" if call.batch == 1 else f"{call.batch} batch elements"
    key, up_to = str(call.key), int(call.positions().max()) + 1
    detail = f"{_SERVED[key]}: {call.heads} and {call.kv_heads} heads, {rows}, {tokens}"
    return _of_pair(key.replace("-", " "), detail, worst, key, spec, up_to)


def _drifts(spec: CaseSpec, recorded: Recorded, last: CalledBlock, claimed: Resolved | None) -> list[Finding]:
    """Return the drift checks of float64 scores of the first batch element. last: the call at the end."""
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
        score_drift.growth(drifts, wanted, dtype, run.careful),
        score_drift.tolerance(drifts, claimed, setting, dtype),
    ]


def consistent_diagnosis(placed: Mapping[int, Places], spec: CaseSpec) -> Diagnosis | None:
    """Return what explains all wrong offsets, else what leaves fewest faults."""
    off = [offset for offset, places in placed.items() if not places.excess <= 1]
    found = {offset: _consistent(placed[offset].diagnosis, spec, off) for offset in off}
    named = {offset: diagnosis for offset, diagnosis in found.items() if diagnosis and diagnosis.explains}

    def beside(offset: int) -> Diagnosis | None:
        chosen = replace(placed[offset], diagnosis=found[offset])
        return verification.beside(chosen, placed.values()).diagnosis

    if not named:
        return beside(off[0]) if off else None
    of_all: Diagnosis | None
    of_all, *others = named.values()
    for other in others:
        of_all = of_all and common(of_all, other)
    if of_all and len(named) == len(off):
        return of_all
    best = min(named, key=lambda offset: len(named[offset].alternatives))
    worst = max(off, key=lambda offset: (placed[offset].excess, offset))
    of_worst = named.get(worst)
    same = of_worst is not None and (of_worst.code, of_worst.values) == (named[best].code, named[best].values)
    both = beside(best)
    if same or both != named[best]:
        return both
    return replace(named[best], where=replace(named[best].where, offset=best))


def _consistent(found: Diagnosis | None, spec: CaseSpec, off: list[int]) -> Diagnosis | None:
    """Return the faults that fit all offsets; if none does, all of them."""
    if found is None or found.also:
        return found
    by_diagnosis = {
        (fault.diagnosis.code, *fault.diagnosis.values.items()): fault for fault in faults(spec.setting)
    }
    fitting = [
        diagnosis
        for diagnosis in (replace(found, alternatives=()), *found.alternatives)
        if (fault := by_diagnosis.get((diagnosis.code, *diagnosis.values.items()))) is None
        or _fits(fault, spec, off)
    ]
    return replace(fitting[0], where=found.where, alternatives=tuple(fitting[1:])) if fitting else found


def _fits(fault: Fault, spec: CaseSpec, off: list[int]) -> bool:
    """Return whether a fault changes just the offsets that are wrong."""
    if fault.turn or fault.setting(spec.setting) != spec.setting:
        return len(off) == len(spec.offsets)
    for offset in spec.offsets:
        at = np.arange(spec.seq_len, dtype=np.int64)[None] + offset
        if np.array_equal(fault.positions(at), at) == (offset in off):
            return False
    return True


def misread(case: VectorCase, returned: Returned, key: Key) -> Diagnosis | None:
    """Return in which other order of axes q was written, or that it is no rotation.

    A rotation keeps the length of each pair, times the attention factor, whatever the position is. None where
    most pairs are as long as they should be.
    """
    spec = case.spec
    given, written = ("grad_rotated_q", "grad_q") if spec.want == "gradient" else ("q", "q")
    call = next(call for call in spec.calls if call.key == key)
    x, y = call.part(case.vectors()[given], key=False), returned.arrays[key][written]
    share = _agreeing(x, y, spec.setting)
    if share >= _ROTATED:
        return None
    b, h, s, d = y.shape
    for order, other in (
        (("batch", "seq", "heads", "head_dim"), y.reshape(b, s, h, d).transpose(0, 2, 1, 3)),
        (("seq", "batch", "heads", "head_dim"), y.reshape(s, b, h, d).transpose(1, 2, 0, 3)),
        (("heads", "batch", "seq", "head_dim"), y.reshape(h, b, s, d).transpose(1, 0, 2, 3)),
    ):
        if _agreeing(x, other, spec.setting) >= _ROTATED:
            return Diagnosis("axes-order", {"order": order})
    return Diagnosis("not-a-rotation") if share < _ELSE else None


def _agreeing(x: FloatArray, y: FloatArray, setting: RopeSetting) -> float:
    """Return the share of pairs that are as long as they should be."""
    before, after = (np.abs(complex_pairs(vectors, setting)) for vectors in (x, y))
    expected = before * attention_factor(setting.scaling)
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.abs(after - expected) <= _NEAR * expected))
