"""Whether each layer rotates q and k as the config says, and what explains it where one does not.

What a shift cannot see is seen here: what the function that rotates returned, beside the exact rotation of
what it was given, at the positions that the model was given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ropeaudit.arithmetic.formats import FP32, FP64, FloatArray, Format
from ropeaudit.errors import ForeignError
from ropeaudit.features.model.held import UNKNOWN
from ropeaudit.features.model.layers import RotatingCall
from ropeaudit.features.model.load import Folder, known_type
from ropeaudit.recognition import verification
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.verification import Places
from ropeaudit.rope import hf_config, hf_json, layers_of_models
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.calling.code import Rotator

if TYPE_CHECKING:
    from ropeaudit.features.model.analysis import ModelAudit
    from ropeaudit.features.model.forward_pass import Pass

_MOST_UNEXPLAINED = 2  # layers of which it is looked for what explains them: the search is long
_LEAST = 3  # positions: two tell no frequency from another


class _CalledOnce(Rotator):
    """A layer in a pass: nothing calls it with other vectors or at other positions."""

    def rotate_both(self, q: FloatArray, k: FloatArray, at: Positions) -> tuple[FloatArray, FloatArray]:
        """Raise ForeignError."""
        raise ForeignError("a layer of a model is not called alone")


def check_layers(
    audit: ModelAudit, offset: int, seen: Pass, dtype: Format, held: Diagnosis | None
) -> dict[int, Places]:
    """Return layer -> its worst rotated pair, for layers whose q and k are seen before and after rotation.

    Seen too are those of a layer that does not rotate where the config says that it does. What explains a
    later layer as it does the first wrong one is said so. held: what is wrong with the frequencies that the
    model holds; where no setting has those, they explain each wrong layer.
    """
    still = set(audit.still) if seen.calls else set()  # else no layer is known to rotate
    asked = _settings(audit.folder, {*seen.calls, *still})
    rule = FP32 if dtype is FP64 else dtype  # transformers' float64 keeps float32 tables
    known = held if held is not None and held.code in UNKNOWN else None
    results: dict[int, Places] = {}
    first: Diagnosis | None = None
    for layer in sorted({*seen.calls, *still} & set(asked)):
        setting, call = asked[layer], seen.calls.get(layer)
        if setting is None:
            if call is not None:
                results[layer] = _unasked(call, rule, offset)
                first = first or results[layer].diagnosis
            continue
        if call is None:
            both = seen.layers[layer].q, seen.layers[layer].k
            call = RotatingCall(both, both, 0)
        setting = setting.for_positions(len(audit.tokens.ids) + offset)
        pairs = audit.pairs.get(layer)
        joined = pairs is not None and pairs.given != pairs.layout
        block, setting = _block(call, setting, joined, offset)
        if block is None:
            continue
        found = verification.judged([block], _CalledOnce(), setting, rule, explain=known is None)
        if known and found.wrong_rotation:
            found = replace(found, diagnosis=known)
        if found.diagnosis and first and _same(first, found.diagnosis):
            found = replace(found, diagnosis=first)
        first = first or found.diagnosis
        results[layer] = found
        in_vain = [one for one in results.values() if one.diagnosis and not one.diagnosis.explains]
        if not known and len(in_vain) >= _MOST_UNEXPLAINED:
            break
    return results


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


def _block(
    call: RotatingCall, setting: RopeSetting, joined: bool, offset: int
) -> tuple[CalledBlock | None, RopeSetting]:
    """Return a call as it is judged, and its setting: of the dims that were given; None where it cannot be.

    joined: whether pairs that lie side by side come back in halves; then they are given so too.
    """
    given = call.before
    if given[0].shape[-1] == setting.rotary_dim:
        setting = replace(setting, head_dim=setting.rotary_dim)
    if joined:
        setting = replace(setting, layout="half")
        q, k = (np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1) for x in given)
        given = q, k
    fits = all(x.shape[-1] == setting.head_dim and np.isfinite(x).all() for x in given)
    if not fits or given[0].shape[-2] < _LEAST:
        return None, setting
    at = np.arange(given[0].shape[-2], dtype=np.int64) + offset
    rotated = call.after[0][None], call.after[1][None]
    return CalledBlock(at, (given[0][None], given[1][None]), rotated), setting


def _unasked(call: RotatingCall, rule: Format, offset: int) -> Places:
    """Return how far an unrotated layer changes q and k, relative to one rounding."""
    excess = 0.0
    for x, y in zip(call.before, call.after, strict=True):
        with np.errstate(invalid="ignore"):
            sizes = np.abs(y - x) / (2 * rule.unit_roundoff * np.abs(x) + rule.smallest_subnormal)
        excess = max(excess, float(sizes.max(initial=0.0)))
    found = Diagnosis("rotation-unasked") if excess > 1 else None
    return Places(excess, "q", 0, 0, offset, 0, found, offset if found else -1)


def _same(first: Diagnosis, other: Diagnosis) -> bool:
    """Return whether a diagnosis or an equal one is the first layer's."""
    equals = [other, *other.alternatives]
    return any((one.code, other.where) == (first.code, first.where) for one in equals)
