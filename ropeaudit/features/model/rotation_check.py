"""Whether each layer rotates q and k as the config says, and what explains it where one does not.

What a shift cannot see is seen here: each layer's q and k, as attention gets them, beside the exact rotation
of what the layer had before, at the positions that the model was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.conformance.returned_subject import CaseVectors
from ropeaudit.errors import RopeAuditError
from ropeaudit.features.model.layers import LayerVectors
from ropeaudit.features.model.load import Folder, known_type
from ropeaudit.recognition import verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.verification import Places
from ropeaudit.rope import hf_config, layer_kinds
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator

if TYPE_CHECKING:
    from ropeaudit.features.model.forward_pass import Pass, Runner

_MOST_UNEXPLAINED = 2  # layers of which it is looked for what explains them
_LEAST = 3  # positions: two tell no frequency from another


class _Unanswered(LookupError):
    """A call that the model cannot be asked for, or in which the layer gets other vectors."""


@dataclass(slots=True)
class _LayerRotator(Rotator):
    """A layer as what rotates, by running the model at the positions of a call.

    vectors: of the first call, which was made. again: whether the model may be run for others.
    """

    number: int
    setting: RopeSetting
    runner: Runner
    ids: list[int]
    vectors: LayerVectors | None
    again: bool

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k as attention gets them. Raises: _Unanswered."""
        vectors = self.vectors or self._run(int(at[0]))
        self.vectors = None
        if vectors.before is None or not all(map(np.array_equal, vectors.before, (q[0], k[0]))):
            raise _Unanswered
        return vectors.q[None], vectors.k[None]

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Raise _Unanswered: attention gets both at once."""
        raise _Unanswered

    def _run(self, first: int) -> LayerVectors:
        length = self.setting.scaling.length_for(len(self.ids) + first)
        if not self.again or length != self.setting.length:  # there the setting is another
            raise _Unanswered
        try:
            return self.runner.run(self.ids, first, follow=True).layers[self.number]
        except (RopeAuditError, KeyError):
            raise _Unanswered from None


def _settings(folder: Folder, layers: Iterable[int]) -> dict[int, RopeSetting]:
    """Return layer -> its setting, as far as config.json says it of a type that transformers knows."""
    try:
        rope = hf_config.read(str(folder.path)) if known_type(folder.config) else None
    except RopeAuditError:  # it is refused with its reason by whoever reads it
        rope = None
    if rope is None:
        return {}
    if len(rope.layers) == 1:
        return dict.fromkeys(layers, *rope.layers.values())
    kinds = layer_kinds.of_each(folder.config, rope)
    return {n: rope.layers[kinds[n]] for n in layers if kinds.get(n) in rope.layers}


def check_layers(
    folder: Folder, runner: Runner, ids: list[int], offset: int, seen: Pass, dtype: Format
) -> dict[int, Places]:
    """Return layer -> where its worst rotated pair stands, of the layers whose q and k before are seen.

    What explains a later layer as it does the first wrong one is said so.
    """
    given = _settings(folder, seen.layers)
    results: dict[int, Places] = {}
    first: Diagnosis | None = None
    rule = FP32 if dtype is FP64 else dtype  # transformers' float64 keeps float32 tables
    for layer, vectors in sorted(seen.layers.items()):
        setting = given.get(layer)
        if setting is None or vectors.before is None or not _comparable(vectors, setting):
            continue
        setting = replace(setting, length=setting.scaling.length_for(len(ids) + offset))
        rotator = _LayerRotator(layer, setting, runner, ids, vectors, again=first is None)
        q, k = vectors.before
        one = verification.check(rotator, setting, rule, CaseVectors((q[None], k[None]), 0), offset)
        if one.diagnosis and first and _same(first, one.diagnosis):
            one = replace(one, diagnosis=first)
        first = first or one.diagnosis
        results[layer] = one
        found = [one.diagnosis for one in results.values() if one.diagnosis]
        in_vain = sum(not one.explains for one in found)
        if in_vain >= _MOST_UNEXPLAINED or any(one.code == "random" for one in found):
            break  # what comes after is of chance too; the search for what explains it is long
    return results


def _comparable(vectors: LayerVectors, setting: RopeSetting) -> bool:
    q, k = vectors.before or (vectors.q, vectors.k)
    sizes = q.shape[-1] == k.shape[-1] == setting.head_dim and q.shape[-2] >= _LEAST
    return sizes and all(bool(np.isfinite(x).all()) for x in (q, k))


def _same(first: Diagnosis, other: Diagnosis) -> bool:
    """Return whether a diagnosis, or what explains as much, is that of the first wrong layer."""
    equals = [other, *other.alternatives]
    return any((one.code, other.where) == (first.code, first.where) for one in equals)


def first_diagnosis(places: Mapping[int, Places]) -> Diagnosis | None:
    """Return the diagnosis of the first wrong layer, and in which layers it is; None without any."""
    found = {layer: one.diagnosis for layer, one in places.items() if one.diagnosis is not None}
    if not found:
        return None
    first = next(iter(found.values()))
    layers = tuple(layer for layer, one in found.items() if one == first)
    return replace(first, where=replace(first.where, layers=layers))
