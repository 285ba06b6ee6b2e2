"""Judgement of the vectors that a kernel wrote for a case, as if its code had been called.

A fault is named only if it explains the results at all offsets of the case.
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

from ropeaudit import data, recipes
from ropeaudit.arithmetic.formats import FloatArray, parse
from ropeaudit.conformance import score_drift, vector_case
from ropeaudit.conformance.every_position import of_gradient
from ropeaudit.conformance.finding import Finding, of_worst_pair
from ropeaudit.conformance.score_drift import ScoreRun, yardstick
from ropeaudit.conformance.vector_case import RETURNED, CaseCall, CaseSpec, Entry, Key, VectorCase
from ropeaudit.errors import BadInput, ForeignError
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import (
    Searches,
    common_diagnosis,
    explaining_recipe,
    share_of_right_lengths,
)
from ropeaudit.recognition.verification import Places
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Both, Called, Rotator, Unavailable
from ropeaudit.subjects.calling.own_code import conjugated
from ropeaudit.tensor_files import tensors as tensorfiles

_SOURCES = {"grad_q": "grad_rotated_q", "grad_k": "grad_rotated_k"}  # what is rotated to give it
_AXES = ("batch", "heads", "seq", "head_dim")
_ROTATED = 0.9  # share of pairs whose lengths agree, of a rotation

CASE = "case.txt"  # the digest of the case, beside what is written back

Arrays: TypeAlias = dict[Key, dict[str, FloatArray]]  # call -> name -> numbers, in the carrier


@dataclass(frozen=True, slots=True)
class Recorded(Rotator):
    """A rotator that returns the written results."""

    calls: Sequence[CalledBlock]

    @property
    def starts(self) -> list[int]:
        """The first positions of the calls, at which faults are compared."""
        return [call.first for call in self.calls if call.at.ndim == 1]

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> Both:
        """Return the written result. Raises: ForeignError."""
        for call in self.calls:
            same = (np.array_equal(x, given[: len(x)]) for x, given in zip((q, k), call.given, strict=True))
            if np.array_equal(at, call.at) and all(same):
                return call.rotated[0][: len(q)], call.rotated[1][: len(k)]
        raise ForeignError("vectors or positions that the case does not give")


def read_returned(case: VectorCase, output: str | Path) -> tuple[Arrays, bool]:
    """Read the written results; return them, and whether they name their case. Raises: BadInput."""
    path = Path(output)
    seen, alone = f"--returned {str(path)!r}", path.suffix == ".safetensors"
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
        names -= case.files
    raw = sorted(name for name in names if name.endswith(".bin"))
    told = [vector_case.content_of(folder / CASE, seen)] if CASE in names else []
    digests = [content.decode("utf-8", "replace") for content in told]
    if tensor_file.name not in names:
        tensors = {
            stem: _raw_file(folder, entry, seen)
            for stem, (*_, entry) in wanted.items()
            if f"{stem}.bin" in raw
        }
        raw += sorted(name for name in names if name.endswith(".safetensors"))
        more = [name for name in raw if name.removesuffix(".bin") not in wanted]
    elif raw:
        both = f"both {raw[0]} and {tensor_file.name}"
        raise BadInput(f"{seen}: there are {both}; leave raw files or one .safetensors file")
    else:
        tensors, within = _tensors(tensor_file, wanted, f"{seen}: {tensor_file.name}")
        digests, more = [*digests, *within], sorted(tensors.keys() - wanted.keys())
    for named in (digest.strip() for digest in digests):
        if named != case.digest:
            other = f"{seen} names another case, {named[:19]}..., than {str(case.folder)!r}"
            remedy = "run the kernel on this case, or judge it by the other one"
            raise BadInput(f"{other}, {case.digest[:19]}...; {remedy}")
    if more or (lacking := sorted(wanted.keys() - tensors.keys())):
        first = ", ".join(f"{stem}.bin" for stem in list(wanted)[:4])
        wrong = f"holds {', '.join(more[:4])}, which the case does not ask for"
        wrong = (
            wrong if more else f"{len(lacking)} of {len(wanted)} arrays are missing, the first {lacking[0]}"
        )
        raise BadInput(f"{seen}: {wrong}; it asks for {first} ..., or {RETURNED}")
    arrays: Arrays = {}
    for stem, (key, name, entry) in wanted.items():
        tensor, dtype = tensors[stem], parse(entry["dtype"])
        if tensor.dtype != vector_case.file_dtype(dtype) or list(tensor.shape) != entry["shape"]:
            raise BadInput(f"{seen}: {stem} is {tensor.dtype} of shape {tensor.shape}; {_wanted_form(entry)}")
        arrays.setdefault(key, {})[name] = vector_case.from_file(tensor, dtype)
    return arrays, bool(digests)


def _wanted_form(entry: Entry) -> str:
    return f"{entry['dtype']} of shape {tuple(entry['shape'])}, little-endian, is what the case asks for"


def _raw_file(folder: Path, entry: Entry, seen: str) -> NDArray[Any]:
    """Return a raw file's array. Raises: BadInput."""
    content = vector_case.content_of(folder / entry["file"], seen)
    kind = vector_case.file_dtype(parse(entry["dtype"]))
    if len(content) != (size := math.prod(entry["shape"]) * kind.itemsize):
        told = f"{entry['file']} has {len(content):,} bytes instead of {size:,}"
        raise BadInput(f"{seen}: {told}: {_wanted_form(entry)}")
    return np.frombuffer(content, kind).reshape(entry["shape"])


def _tensors(
    path: Path,
    wanted: Collection[str],
    seen: str,
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return a .safetensors file's tensors, and the case that it names. Raises: BadInput."""
    if wrong := tensorfiles.why_no_content(path):
        raise BadInput(f"{seen}: {wrong}; write it again")
    from safetensors import safe_open

    def contents() -> tuple[dict[str, NDArray[Any]], list[str]]:
        with safe_open(path, framework="numpy") as archive:
            about = archive.metadata() or {}
        return dict(tensorfiles.read(path, wanted)), [about["case"]] if "case" in about else []

    return tensorfiles.read_or_refuse(seen, path, contents)


def findings(
    case_folder: str | Path,
    output_folder: str | Path,
    recipe: str | None = None,
) -> list[Finding]:
    """Return the findings about the results in `output_folder` for the case in `case_folder`.

    recipe: the one that the kernel claims to follow; without it the errors of correct code are allowed.
    Raises: BadInput where a file is missing, damaged or of another case; UnknownName.
    """
    case = vector_case.read(case_folder)
    spec = case.spec
    claimed = None if recipe is None else recipes.load(recipe).resolve(spec.dtype)
    returned, named = read_returned(case, output_folder)
    complete = _judge_written_back(case, returned, named)
    if not all(np.isfinite(x).any() for arrays in returned.values() for x in arrays.values()):
        return [complete]
    rule = claimed or allowance.careful(spec.dtype)
    if spec.want == "gradient":  # it is summed in the vectors' dtype
        rule = rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(spec.dtype)
    q, k = _sides(spec, case.vectors(), "grad_rotated_")
    blocks = {
        call.key: CalledBlock(
            call.positions() if call.step else call.row(),
            (call.part(q, False), call.part(k, True)),
            _sides(spec, returned[call.key], "grad_"),
        )
        for call in spec.calls
    }
    recorded = Recorded(list(blocks.values()))
    searches = Searches()  # what is looked for in vain at some calls is not at all of them

    def places(key: Key) -> Places:
        at = verification.judge_calls(
            [blocks[key]], recorded, spec.setting, spec.dtype, rule=rule, searches=searches
        )
        if at.diagnosis is None or at.diagnosis.explains:
            return at
        return replace(at, diagnosis=misread(blocks[key], spec.setting) or at.diagnosis)

    rotation = _judge_rotation(spec, {offset: places(offset) for offset in spec.offsets})
    served = [_served(spec, call, places(call.key), rotation.diagnosis) for call in spec.served_calls]
    return [complete, rotation, *_judge_scores(spec, recorded, blocks[spec.offsets[-1]], claimed), *served]


def _sides(spec: CaseSpec, arrays: Mapping[str, FloatArray], prefix: str) -> Both:
    """Return q and k; a gradient is conjugated, so that it is a rotation."""
    if spec.want != "gradient":
        return arrays["q"], arrays["k"]
    return conjugated(arrays[f"{prefix}q"], spec.setting), conjugated(arrays[f"{prefix}k"], spec.setting)


def _judge_written_back(case: VectorCase, returned: Arrays, named: bool) -> Finding:
    """Judge whether the results are finite, and differ from the inputs."""
    nonfinite, unchanged, given = [], [], case.vectors()
    for call in case.spec.calls:
        for name, x in returned[call.key].items():
            array, source = f"{name}.{call.key}", given[_SOURCES.get(name, name)]
            if bad := int(x.size - np.isfinite(x).sum()):
                nonfinite.append(f"{bad:,} of {x.size:,} numbers of {array} are nan or infinite")
            if call.key != 0 and np.array_equal(call.part(source, name.endswith("k")), x):
                unchanged.append(f"{array} is what was given, number by number: nothing was rotated")
    problems, count = [*nonfinite, *unchanged], sum(map(len, returned.values()))
    detail = f"{count} arrays of {len(returned)} calls came back, all finite"
    detail += "" if named else f"; it does not name its case ({CASE})"
    if problems:
        detail = "; ".join(problems[:2])
        detail += f", and {len(problems) - 2} more" if len(problems) > 2 else ""
    sizes = float(len(problems)), 0.0, "arrays that are not finite, or what was given"
    return Finding("written back", "fail" if problems else "pass", detail, *sizes)


def _judge_rotation(spec: CaseSpec, placed: Mapping[int, Places]) -> Finding:
    offset = max(placed, key=lambda offset: placed[offset].excess)
    off = [offset for offset, at in placed.items() if at.excess > 1]
    count = f"q and k, {spec.heads} and {spec.kv_heads} heads, 2 batch elements, {spec.seq_len} tokens"
    offsets = ", ".join(map(str, off[:6])) + (", ..." if len(off) > 6 else "")
    wrong = f"; out of place at {len(off)} of them: {offsets}" if off else ""
    detail = f"{count} at {len(placed)} offsets up to {max(placed)}{wrong}"
    name = "gradient" if spec.want == "gradient" else "rotation"
    worst = replace(placed[offset], diagnosis=consistent_diagnosis(placed))
    return _judge_worst_pair(name, detail, worst, f"offset {offset}", spec, spec.end)


def _judge_worst_pair(
    name: str,
    detail: str,
    worst: Places,
    place: str,
    spec: CaseSpec,
    up_to: int,
) -> Finding:
    """Judge the worst pair. up_to: number of positions."""
    found, where = worst.diagnosis, f"{place}: {worst.words}"
    if found and spec.want == "gradient":
        found = of_gradient(found)
    return of_worst_pair(name, detail, worst, where=where, diagnosis=found).advised(spec.dtype, up_to)


def _served(spec: CaseSpec, call: CaseCall, worst: Places, known: Diagnosis | None) -> Finding:
    """Judge a call as servers make them. known: the diagnosis of the calls at offsets."""
    found = worst.diagnosis
    for one in (found, *found.alternatives) if found and known else ():
        if found and known and (one.code, one.values) == (known.code, known.values):
            found = replace(one, where=found.where, alternatives=())  # it explains this one as well
            break
    tokens = "1 token" if call.seq_len == 1 else f"{call.seq_len} tokens"
    rows = "1 batch element" if call.batch == 1 else f"{call.batch} batch elements"
    key, worst = str(call.key), replace(worst, diagnosis=found)
    what = data.table("checks.toml")["case"][key]
    detail = f"{what}: {call.heads} and {call.kv_heads} heads, {rows}, {tokens}"
    return _judge_worst_pair(key.replace("-", " "), detail, worst, key, spec, int(call.positions().max()) + 1)


def _judge_scores(
    spec: CaseSpec,
    recorded: Recorded,
    last: CalledBlock,
    claimed: Resolved | None,
) -> list[Finding]:
    """Return the checks of scores. last: the final call."""
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
        score_drift.drift("score-error", drifts, wanted, None),
        score_drift.growth(run, drifts, wanted),
        score_drift.tolerance(run.called, drifts, claimed),
    ]


def consistent_diagnosis(placed: Mapping[int, Places]) -> Diagnosis | None:
    """Return the diagnosis of all wrong offsets; else that of one, with its offset."""
    off = [offset for offset, places in placed.items() if not places.excess <= 1]
    if not off:
        return None
    named = {offset: one for offset in off if (one := placed[offset].diagnosis) and one.explains}
    of_all, *others = named.values() or [None]
    for other in others:
        of_all = common_diagnosis(of_all, other) if of_all and other else None
    if of_all and len(named) == len(off):
        return of_all
    best = min(named, key=lambda offset: len(named[offset].alternatives), default=off[0])
    both = verification.with_side_of(placed[best], placed.values()).diagnosis
    if not named or both is None or both != placed[best].diagnosis:
        return both
    return replace(both, where=replace(both.where, offset=best))


def misread(block: CalledBlock, setting: RopeSetting) -> Diagnosis | None:
    """Diagnose another order of axes, in which pairs of q keep their lengths; else None."""
    x, y = block.given[0], block.rotated[0]
    if share_of_right_lengths(x, y, setting) >= _ROTATED:
        return None
    sizes = dict(zip(_AXES, y.shape, strict=True))
    for order in (("batch", "seq", "heads"), ("seq", "batch", "heads"), ("heads", "batch", "seq")):
        axes = (*order, "head_dim")
        other = y.reshape([sizes[axis] for axis in axes]).transpose([axes.index(axis) for axis in _AXES])
        if share_of_right_lengths(x, other, setting) >= _ROTATED:
            return Diagnosis("axes-order", {"order": axes})
    return None
