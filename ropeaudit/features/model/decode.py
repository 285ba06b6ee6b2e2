"""Decode with a cache beside one pass over the same tokens, in float64: where the two differ, and why.

`generate` of transformers reads a batch of two rows, one of them padded on the left, and is made to choose
tokens that are known, so that a plain pass over each row has the numbers that it should have.
Letters: h heads, g key-value heads, d head_dim, v vocabulary. Positions in tokens from the first of a row
that is no padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput, RopeAuditError, one_line
from ropeaudit.features.model import load
from ropeaudit.features.model.forward_pass import Capture, Pass, Runner
from ropeaudit.features.model.layers import NEAR, RotatedPairs, as_array, off
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.streams import quiet_transformers

_Vectors: TypeAlias = tuple[Array, Array]  # q (rows, h, d) and k (rows, g, d) of the last token of each row
_Moves: TypeAlias = dict[str, int | None]  # by side that is off: the tokens that it is rotated further
_Generated: TypeAlias = tuple[Any, dict[int, list[_Vectors]]]  # logits, and q and k by layer
_REACH = 4096  # tokens by which q and k are looked for
NEW, PADDED = 4, 5  # tokens that are generated; padding of the second row
FEWEST = NEW + PADDED + 3  # tokens of a text for which it is done


@dataclass(frozen=True, slots=True)
class Decoded:
    """How decode differs from one pass. change, size: largest difference of a logit, largest logit.

    allowed: how large a difference may be. way: what the wrong row was: "with a cache" alone, "in a batch"
    where it is right alone, "padded on the left"; empty where nothing differs. position: the first that is
    off. layer: the first in which q or k is off there; None where that is not seen. diagnosis: positions by
    which they are rotated instead, if by any. differs: whether logits do; those of a row that is moved as a
    whole stay.
    """

    change: float
    size: float
    way: str = ""
    position: int | None = None
    layer: int | None = None
    diagnosis: Diagnosis | None = None
    differs: bool = False
    allowed: float = 0.0

    @property
    def apart(self) -> str:
        """How far logits are off, in words."""
        infinite = not math.isfinite(self.change)
        return "are nan or infinite in part" if infinite else f"are off by up to {short(self.change)}"

    @property
    def words(self) -> str:
        """How decode differs from one pass, in words; empty where it does not."""
        if not self.way:
            return ""
        begin = f"decode of a row {self.way}"
        if not self.differs:
            both = self.diagnosis is not None and not self.diagnosis.where.sides
            return (
                f"{begin} rotates otherwise than one pass over its tokens, "
                f"{wording.sentence(self.diagnosis)}; {'scores depend on distances, and ' * both}"
                "float64 logits stay"
            )
        seen = "in" if self.diagnosis else "seen in q or k of"
        layer = "" if self.layer is None else f", first {seen} layer {self.layer}"
        return (
            f"{begin} is not one pass over its tokens: float64 logits {self.apart}, from position "
            f"{self.position} on{layer}"
        )

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis, where it changes what the model says."""
        return self.diagnosis if self.differs else None

    @property
    def rank(self) -> tuple[bool, bool, bool]:
        """How bad it is: a wrong cause, other logits, a moved row, in this order."""
        return self.wrong is not None, self.differs, bool(self.way)


class _LastVectors(Capture):
    """Keeps q and k of the last token of each row, call by call, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, list[_Vectors]] = {}

    def keep(self, module: Any, query: Any, key: Any, mask: Any, scale: float) -> None:
        last = as_array(query[:, :, -1]), as_array(key[:, :, -1])
        self.last.setdefault(self._number(module), []).append(last)


def compare(
    runner: Runner, ids: list[int], base: Pass, pairs: Mapping[int, RotatedPairs], allowed: float
) -> Decoded | str:
    """Return how decode differs from one float64 pass; a reason where it cannot run.

    base: the pass over the tokens from position 0. pairs: how its layers rotate. allowed: how far a logit may
    be off, over the largest.
    """
    rows = [ids, ids[PADDED:]]
    try:
        both, passes = _generated(runner, rows), [base, runner.run(rows[1], 0)]
        found = [_differs(both, n, passes[n], pairs, allowed) for n in (0, 1)]
        if found[0].way:
            alone = _differs(_generated(runner, rows[:1]), 0, base, pairs, allowed)
            if alone.way and alone.rank >= found[0].rank:
                found[0] = replace(alone, way="with a cache")
    except RopeAuditError as error:
        return str(error)
    except Exception as error:  # whatever a model's own code raises
        return f"`generate` raised {one_line(error, 200)}"
    worst = max(found, key=lambda one: one.rank)
    return worst if worst.way else max(found, key=lambda one: one.change)


def _generated(runner: Runner, rows: Sequence[list[int]]) -> _Generated:
    """Return logits (steps, rows, v), and q and k by layer and step, without last tokens."""
    from transformers import GenerationConfig

    pads = [len(rows[0]) - len(row) for row in rows]
    given = torch.tensor([[row[0]] * pad + row for row, pad in zip(rows, pads, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * len(row) for row, pad in zip(rows, pads, strict=True)])
    prompt = given.shape[1] - NEW

    make: Any = GenerationConfig
    config = make(
        max_new_tokens=NEW,
        do_sample=False,
        use_cache=True,
        cache_implementation="dynamic",
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
    )
    vectors = _LastVectors()
    load.listen(vectors)
    runner.reset()
    with (
        torch.no_grad(),
        runner.arithmetic(),
        quiet_transformers(),
        mock.patch.object(runner.model, "generation_config", make()),  # its values would fill ours
    ):
        result = runner.model.generate(
            runner.device.put(given[:, :prompt]),
            attention_mask=runner.device.put(mask[:, :prompt]),
            prefix_allowed_tokens_fn=lambda row, sent: [int(given[row, len(sent)])],
            generation_config=config,
        )
    if len(result.logits) < NEW:
        raise BadInput(f"`generate` stopped after {len(result.logits)} of {NEW} tokens")
    return torch.stack(result.logits).cpu().double(), vectors.last


def _differs(
    generated: _Generated, row: int, one: Pass, pairs: Mapping[int, RotatedPairs], allowed: float
) -> Decoded:
    """Return where a row, as it was generated, is not that of one pass over it.

    A layer whose q and k are moved alike at every step, from the prompt on, keeps its distances: it explains
    nothing where logits differ.
    """
    logits, vectors = generated
    first = len(one.logits) - NEW - 1  # the last token of the prompt
    size = float(one.logits.abs().nan_to_num(0.0, 0.0).max())
    most = allowed * max(1.0, size)
    given, expected = logits[:, row], one.logits[first : first + len(logits)].double()
    equal = (given == expected) | (given.isnan() & expected.isnan())
    gap = (given - expected).abs().masked_fill(equal, 0.0)
    far = gap.masked_fill(gap.isnan(), float("inf")).amax(-1)
    change, way = float(far.max()), "padded on the left" if row else "in a batch"
    moves = dict[int, list[_Moves]]()
    for n, seen in sorted(vectors.items()):
        if n in one.layers and len(seen) == len(logits):
            moves[n] = []
            for at, (q, k) in enumerate(seen, first):
                sides = {"q": (q[row], one.layers[n].q[:, at]), "k": (k[row], one.layers[n].k[:, at])}
                here = {side: both for side, both in sides.items() if off(*both) > NEAR}
                moves[n].append({side: _moved(*both, pairs.get(n)) for side, both in here.items()})
    alike = []  # layers that rotate q and k further at every step, all by the same
    for n, (start, *later) in moves.items():
        by = start.get("q")
        if by is not None and all(move == {"q": by, "k": by} for move in (start, *later)):
            alike.append(n)
    same = Decoded(change, size, differs=change > most, allowed=most)
    for step, apart in enumerate(far.tolist()):
        for layer, own in moves.items():
            moved = any(by is not None for by in own[step].values())
            if layer not in alike and (moved or (own[step] and apart > most)):
                found = _diagnosis(own[step:], first + step, layer) if moved else None
                return replace(same, way=way, position=first + step, layer=layer, diagnosis=found)
        if apart > most:
            return replace(same, way=way, position=first + step)
    if alike:
        found = _diagnosis(moves[alike[0]], first, alike[0])
        return replace(same, way=way, position=first, layer=alike[0], diagnosis=found)
    return same


def _diagnosis(moves: Sequence[_Moves], position: int, layer: int) -> Diagnosis:
    """Return what moves a layer's q and k, or one of them. moves: from a position on."""
    by_side = {side: _of_side([here.get(side, 0) for here in moves], position) for side in moves[0]}
    alike = len(by_side) == 2 and len(set(map(repr, by_side.values()))) == 1
    if alike:
        return replace(by_side["q"], where=Where(layers=(layer,)))
    first, *also = sorted(
        (replace(one, where=Where(sides=(side,), layers=(layer,))) for side, one in by_side.items()),
        key=lambda one: one.code == "unexplained",
    )
    return replace(first, also=tuple(also))


def _of_side(counts: Sequence[int | None], position: int) -> Diagnosis:
    """Return why a side is moved by so many tokens, from a position on."""
    if counts[0] is None:
        return Diagnosis("unexplained")
    if len(set(counts)) == 1:
        return Diagnosis("positions-off", {"by": counts[0]})
    for code, times in (("no-rotation", -1), ("rotated-twice", 1), ("wrong-direction", -2)):
        if list(counts) == [times * at for at in range(position, position + len(counts))]:
            return Diagnosis(code)
    return Diagnosis("another-position", {"position": position, "seen": position + counts[0]})


def _moved(x: Array, expected: Array, pairs: RotatedPairs | None) -> int | None:
    """Return by how many tokens x is moved; None by none. Shapes: (h, d), (h, d)."""
    if pairs is None or not pairs.frequencies.size or x.shape != expected.shape or not np.isfinite(x).all():
        return None
    reach = np.array(sorted(range(-_REACH, _REACH + 1), key=abs)[1:])
    head = int(np.abs(expected).max(-1).argmax())  # one shows which are worth a look
    (a, b), (first, second) = pairs.split(expected[head]), pairs.split(x[head])
    turned = np.exp(1j * reach[:, None] * pairs.frequencies) * (a + 1j * b)
    far = np.abs(turned - (first + 1j * second)).max(-1)
    near = reach[far <= 2 * NEAR * np.abs(expected).max()]
    tried = ((int(by), pairs.rotated(expected[:, None], int(by))) for by in near)
    return next((by for by, turned_by in tried if off(x[:, None], turned_by) <= NEAR), None)
