"""Whether each layer rotates q and k as the config says, and what explains it where one does not.

What a shift cannot see is seen here: each layer's q and k, as attention gets them, beside the exact rotation
of what was given to the function that rotates them, at the positions that the model was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.errors import ForeignError, RopeAuditError
from ropeaudit.features.model.held import UNKNOWN
from ropeaudit.features.model.layers import LayerVectors, unrotated
from ropeaudit.features.model.load import Folder, known_type
from ropeaudit.recognition import allowance, verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.rope import hf_config, hf_json, layers_of_models
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator

if TYPE_CHECKING:
    from ropeaudit.features.model.analysis import ModelAudit
    from ropeaudit.features.model.forward_pass import Pass, Runner

Both = tuple[Array, Array]  # q and k
_MOST_UNEXPLAINED = 2  # layers of which it is looked for what explains them
_LEAST = 3  # positions: two tell no frequency from another


class _Unanswered(ForeignError):
    """A call that cannot be made, or in which the layer gets other vectors."""


@dataclass(slots=True)
class _LayerRotator(Rotator):
    """A layer as what rotates, by running the model at the positions of a call.

    vectors: of the first call, which was made. again: whether the model may be run for others. still, joined:
    as in `_rotation`.
    """

    number: int
    setting: RopeSetting
    runner: Runner
    ids: list[int]
    vectors: LayerVectors | None
    again: bool
    still: bool = False
    joined: bool = False

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Return q and k as attention gets them. Raises: _Unanswered."""
        vectors, self.vectors = self.vectors, None
        if vectors is None:
            length = self.setting.scaling.length_for(len(self.ids) + int(at[0]))
            if not self.again or length != self.setting.length:  # there the setting is another
                raise _Unanswered
            try:
                vectors = self.runner.run(self.ids, int(at[0]), rotations=True).layers[self.number]
            except (RopeAuditError, KeyError):
                raise _Unanswered from None
        found = _rotation(vectors, self.still, self.joined)
        if found is None or not all(map(np.array_equal, found[0], (q[0], k[0]))):
            raise _Unanswered
        return found[1][0][None], found[1][1][None]

    def rotate_one(self, x: FloatArray, at: Positions, key: bool) -> FloatArray:
        """Raise _Unanswered: attention gets both at once."""
        raise _Unanswered


def _settings(folder: Folder, layers: Iterable[int]) -> dict[int, RopeSetting | None]:
    """Return layer -> its setting, None without rotation; {} for an unknown type."""
    rope = folder.rope if known_type(folder.config) else None
    if rope is None:
        return {}
    if len(rope.layers) == 1:
        results: dict[int, RopeSetting | None] = dict.fromkeys(layers, *rope.layers.values())
    else:
        kinds = hf_config.kinds_of_layers(folder.config, rope)
        results = {n: rope.layers[kinds[n]] for n in layers if kinds.get(n) in rope.layers}
    text = folder.text
    still = layers_of_models.unrotated_layers(text, hf_json.model_type(text))
    return results | {n: None for n in still if n in layers}


def check_layers(
    audit: ModelAudit, runner: Runner, offset: int, seen: Pass, dtype: Format, held: Diagnosis | None
) -> dict[int, Places]:
    """Return layer -> its worst rotated pair, for layers whose q and k before are seen.

    What explains a later layer as it does the first wrong one is said so. held: what is wrong with the
    frequencies that the model holds; where no setting has those, they explain each wrong layer.
    """
    ids, still = audit.tokens.ids, unrotated(audit.pairs)
    given = _settings(audit.folder, seen.layers)
    results: dict[int, Places] = {}
    first: Diagnosis | None = None
    rule = FP32 if dtype is FP64 else dtype  # transformers' float64 keeps float32 tables
    known = held if held is not None and held.code in UNKNOWN else None
    for layer, vectors in sorted(seen.layers.items()):
        setting = given.get(layer)
        if layer in given and setting is None and vectors.called is not None:
            results[layer] = _unasked(*vectors.called, rule, offset)
            first = first or results[layer].diagnosis
        if setting is None:
            continue
        setting = replace(setting, length=setting.scaling.length_for(len(ids) + offset))
        found = _compared(vectors, setting, layer in still, rule, offset)
        if found is None:
            continue
        setting, joined, (q, k) = found
        rotator = _LayerRotator(layer, setting, runner, ids, vectors, first is None, layer in still, joined)
        at, both = np.arange(q.shape[1], dtype=np.int64) + offset, (q[None], k[None])
        call = CalledBlock(at, both, rotator.rotate_both(*both, at))
        one = verification.judged([call], rotator, setting, rule, explain=known is None)
        if known and one.wrong_rotation:
            one = replace(one, diagnosis=known)
        if one.diagnosis and first and _same(first, one.diagnosis):
            one = replace(one, diagnosis=first)
        first = first or one.diagnosis
        results[layer] = one
        causes = [one.diagnosis for one in results.values() if one.diagnosis]
        in_vain = sum(not one.explains for one in causes)
        if not known and (in_vain >= _MOST_UNEXPLAINED or any(one.code == "random" for one in causes)):
            break  # what comes after is of chance too; the search for what explains it is long
    return results


def _compared(
    vectors: LayerVectors, setting: RopeSetting, still: bool, rule: Format, offset: int
) -> tuple[RopeSetting, bool, Both] | None:
    """Return the setting to judge a layer by, whether it joins pairs, and q and k before."""
    if vectors.called and vectors.called[0][0].shape[-1] == setting.rotary_dim:
        setting = replace(setting, head_dim=setting.rotary_dim)  # those dims alone were given
    tried = []
    for joined in (False, True) if vectors.called and setting.layout == "interleaved" else (False,):
        own = replace(setting, layout="half") if joined else setting
        found = _rotation(vectors, still, joined)
        if found is None:
            return None
        q, k = found[0]
        sizes = q.shape[-1] == k.shape[-1] == own.head_dim and q.shape[-2] >= _LEAST
        if not sizes or not all(np.isfinite(x).all() for x in (q, k)):
            return None
        at = np.arange(q.shape[-2])[None] + offset
        off = [
            verification.excess(x[None], y[None], at, own, rule, allowance.careful(rule)).max()
            for x, y in zip(*found, strict=True)
        ]
        tried.append((float(max(off)), joined, own, found[0]))
    _, joined, setting, given = min(tried, key=lambda one: one[0])
    return setting, joined, given


def _rotation(vectors: LayerVectors, still: bool, joined: bool) -> tuple[Both, Both] | None:
    """Return q and k before and after rotation; None where they are not seen.

    still: whether nothing rotates them. joined: whether pairs that lie side by side come back in halves; then
    they are given so too.
    """
    if vectors.called is None:
        return ((vectors.q, vectors.k), (vectors.q, vectors.k)) if still else None
    given, rotated = vectors.called
    if joined:
        q, k = (np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1) for x in given)
        given = q, k
    return given, rotated


def _unasked(given: Both, rotated: Both, rule: Format, offset: int) -> Places:
    """Return where an unrotated layer changes q and k most, relative to one rounding."""
    sizes = []
    for x, y in zip(given, rotated, strict=True):
        with np.errstate(invalid="ignore"):
            sizes.append(np.abs(y - x) / (2 * rule.unit_roundoff * np.abs(x) + rule.smallest_subnormal))
    side = int(np.argmax([size.max(initial=0.0) for size in sizes]))
    excess = float(sizes[side].max(initial=0.0))
    head, position, dim = (int(n) for n in np.unravel_index(int(sizes[side].argmax()), sizes[side].shape))
    found = Diagnosis("rotation-unasked") if excess > 1 else None
    return Places(excess, "qk"[side], 0, head, position + offset, dim // 2, found, offset if found else -1)


def _same(first: Diagnosis, other: Diagnosis) -> bool:
    """Return whether a diagnosis or an equal one is the first layer's."""
    equals = [other, *other.alternatives]
    return any((one.code, other.where) == (first.code, first.where) for one in equals)
