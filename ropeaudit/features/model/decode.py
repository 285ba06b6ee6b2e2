"""Decode with a cache beside one pass over the same tokens, in float64: where the two differ, and why.

`generate` of transformers reads a batch of two rows, one of them padded on the left, and is made to choose
tokens that are known, so that a plain pass over each row has the numbers that it should have.
Letters: h heads, g key-value heads, d head_dim, v vocabulary. Positions in tokens from the first of a row
that is no padding.
"""

from __future__ import annotations

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
    allowed: float
    differs: bool
    way: str = ""
    position: int | None = None
    layer: int | None = None
    diagnosis: Diagnosis | None = None

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis, where it changes what the model says."""
        return self.diagnosis if self.differs else None

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """How bad it is: a wrong cause, other logits, a moved row, then by size."""
        return self.wrong is not None, self.differs, bool(self.way), self.change

    @property
    def words(self) -> str:
        """How decode differs from one pass, in words; empty where it does not."""
        if not self.way:
            return ""
        if not self.differs:
            both = self.diagnosis is not None and not self.diagnosis.where.sides
            distances = "scores depend on distances, and " if both else ""
            return (
                f"decode of a row {self.way} rotates otherwise than one pass over its tokens, "
                f"{wording.sentence(self.diagnosis)}; {distances}float64 logits stay"
            )
        seen = "in" if self.diagnosis else "seen in q or k of"
        layer = "" if self.layer is None else f", first {seen} layer {self.layer}"
        return (
            f"decode of a row {self.way} is not one pass over its tokens: float64 logits are off by up to "
            f"{short(self.change)}, from position {self.position} on{layer}"
        )


class _LastVectors(Capture):
    """Keeps q and k of the last token of each row, call by call, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, list[_Vectors]] = {}

    def keep(self, module: Any, query: Any, key: Any, mask: Any, scale: float) -> None:
        last = as_array(query[:, :, -1]), as_array(key[:, :, -1])
        self.last.setdefault(self.number(module), []).append(last)


def compare(
    runner: Runner, ids: list[int], base: Pass, pairs: Mapping[int, RotatedPairs | None], allowed: float
) -> Decoded | str:
    """Return how decode differs from one float64 pass; a reason where it cannot run.

    base: the pass over the tokens from position 0. pairs: how its layers rotate. allowed: how far a logit may
    be off, over the largest.
    """
    rows = [ids, ids[PADDED:]]
    try:
        both, passes = _generated(runner, rows), [base, runner.run(rows[1], 0)]
        whole, padded = (_compared(both, n, passes[n], pairs, allowed) for n in (0, 1))
        if whole.way:
            alone = _compared(_generated(runner, rows[:1]), 0, base, pairs, allowed)
            if alone.way and alone.rank[:3] >= whole.rank[:3]:
                whole = replace(alone, way="with a cache")
    except RopeAuditError as error:
        return str(error)
    except Exception as error:  # whatever a model's own code raises
        return f"`generate` raised {one_line(error, 200)}"
    return max(whole, padded, key=lambda one: one.rank if not one.way else (*one.rank[:3], 0.0))


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


def _compared(
    generated: _Generated, row: int, one: Pass, pairs: Mapping[int, RotatedPairs | None], allowed: float
) -> Decoded:
    """Return where a row, as it was generated, is not that of one pass over it.

    A layer whose q and k are moved alike at every step, from the prompt on, keeps its distances: it explains
    nothing where logits differ.
    """
    logits, vectors = generated
    first = len(one.logits) - NEW - 1  # the last token of the prompt
    size = float(one.logits.abs().nan_to_num(0.0, 0.0).max())
    given, expected = logits[:, row], one.logits[first : first + len(logits)].double()
    gap = (given - expected).abs()
    gap[(given == expected) | (given.isnan() & expected.isnan())] = 0.0
    far, most = gap.nan_to_num(np.inf, np.inf).amax(-1), allowed * max(1.0, size)
    found = Decoded(float(far.max()), size, most, bool(far.max() > most))
    moves = {
        n: [_moves(at, each, row, one, n, pairs.get(n)) for at, each in enumerate(seen, first)]
        for n, seen in sorted(vectors.items())
        if n in one.layers and len(seen) == len(logits)
    }
    found = replace(found, way="padded on the left" if row else "in a batch")
    harmless = []  # layers that rotate q and k further at every step, all by the same
    for n, steps in moves.items():
        by = steps[0].get("q")
        if by is not None and all(step == {"q": by, "k": by} for step in steps):
            harmless.append(n)
    for step, apart in enumerate(far.tolist()):
        for n, steps in moves.items():
            moved = any(by is not None for by in steps[step].values())
            if n not in harmless and (moved or (steps[step] and apart > most)):
                why = _diagnosis(steps[step:], first + step, n) if moved else None
                return replace(found, position=first + step, layer=n, diagnosis=why)
        if apart > most:
            return replace(found, position=first + step)
    if harmless:
        n = harmless[0]
        return replace(found, position=first, layer=n, diagnosis=_diagnosis(moves[n], first, n))
    return replace(found, way="")


def _moves(at: int, vectors: _Vectors, row: int, one: Pass, layer: int, pairs: RotatedPairs | None) -> _Moves:
    """Return the sides of a layer that are off at a position, and by how many tokens."""
    results: _Moves = {}
    for side, x, whole in zip("qk", vectors, (one.layers[layer].q, one.layers[layer].k), strict=True):
        if off(x[row], whole[:, at]) > NEAR:
            results[side] = _moved(x[row], whole[:, at], pairs)
    return results


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


def _diagnosis(moves: Sequence[_Moves], position: int, layer: int) -> Diagnosis:
    """Return what moves a layer's q and k, or one of them. moves: from a position on."""
    sides = {side: _of_side([here.get(side, 0) for here in moves], position) for side in moves[0]}
    if len(sides) == 2 and sides["q"] == sides["k"]:
        return replace(sides["q"], where=Where(layers=(layer,)))
    placed = [replace(one, where=Where(sides=(side,), layers=(layer,))) for side, one in sides.items()]
    first, *also = sorted(placed, key=lambda one: one.code == "unexplained")
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
