"""Decode with a cache beside one pass, in float64: where the two differ, and why.

`generate` of transformers reads two rows, one padded on the left, and is made to choose known tokens, so that
a plain pass over each row has the numbers that it should have.
Letters: h heads, g key-value heads, d head_dim, v vocabulary. Positions from the first that is no padding.
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
from ropeaudit.features.model.forward_pass import Pass, Runner
from ropeaudit.features.model.layers import NEAR, RotatedPairs, off
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.streams import quiet_transformers

_By: TypeAlias = int | None  # tokens that a side is rotated further; None by none
_Steps: TypeAlias = list[tuple[_By, _By]]  # of q and of k, token by token
_REACH = 4096  # tokens by which q and k are looked for
_NEW, _PADDED = 4, 5  # tokens that are generated; padding of the second row
_FEWEST = _NEW + _PADDED + 3  # tokens of a text for which it is done


@dataclass(frozen=True, slots=True)
class Decoded:
    """How decode differs from one pass. change, size: largest difference of a logit, largest logit.

    allowed: how large that may be. differs: whether logits do; those of a row moved as a whole stay. way: of
    the wrong row, or empty. position: the first that is off. layer: the first that is seen off there.
    diagnosis: how that is rotated instead.
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


def compare(
    runner: Runner,
    ids: list[int],
    base: Pass,
    pairs: Mapping[int, RotatedPairs | None],
    allowed: float,
) -> Decoded | str:
    """Return how decode differs from one float64 pass; a reason where it is not compared.

    base: the pass over the tokens. pairs: how its layers rotate. allowed: of logits, over the largest.
    """
    if len(ids) < _FEWEST:
        return f"it takes {_FEWEST} tokens; give --tokens {_FEWEST} or more"
    other = runner.run([*ids[:-1], int(ids[-1] == 0)], 0)  # with another last token
    if off(other.logits[:-1].numpy(), base.logits[:-1].numpy()) > allowed:
        return "in one pass tokens see those behind them"
    rows = [ids, ids[_PADDED:]]
    try:
        generated, passes = _generated(runner, rows), [base, runner.run(rows[1], 0)]
        found = [_compared(*generated, n, one, pairs, allowed) for n, one in enumerate(passes)]
    except RopeAuditError as error:
        return str(error)
    except Exception as error:  # whatever a model's own code raises
        return f"`generate` raised {one_line(error, 200)}"
    # a wrong cause, other logits, a moved row; else by size
    return max(
        found, key=lambda one: (bool(one.wrong), one.differs, bool(one.way), not one.way and one.change)
    )


def _generated(runner: Runner, rows: Sequence[list[int]]) -> tuple[Any, Pass]:
    """Return logits (steps, rows, v) and what attention saw; last tokens are unread."""
    from transformers import GenerationConfig

    width = len(rows[0])
    given = torch.tensor([[row[0]] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    prompt = width - _NEW
    make: Any = GenerationConfig
    config = make(
        max_new_tokens=_NEW,
        do_sample=False,
        use_cache=True,
        cache_implementation="dynamic",
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
    )
    seen = Pass(runner.model)
    load.listen(seen)
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
    if len(result.logits) < _NEW:
        raise BadInput(f"`generate` stopped after {len(result.logits)} of {_NEW} tokens")
    return torch.stack(result.logits).cpu().double(), seen


def _compared(
    logits: Any,
    seen: Pass,
    row: int,
    one: Pass,
    pairs: Mapping[int, RotatedPairs | None],
    allowed: float,
) -> Decoded:
    """Return where a row, as it was generated, is not that of one pass over it.

    A layer whose q and k are moved alike at every step explains no other logits.
    """
    first = len(one.logits) - _NEW - 1  # the last token of the prompt
    size = float(one.logits.abs().nan_to_num(0.0, 0.0).max())
    given, expected = logits[:, row], one.logits[first : first + len(logits)].double()
    gap = (given - expected).abs()
    gap[(given == expected) | (given.isnan() & expected.isnan())] = 0.0
    far, most = gap.nan_to_num(np.inf, np.inf).amax(-1).tolist(), allowed * max(1.0, size)
    moves: dict[int, _Steps] = {}
    for n, whole in sorted(one.layers.items()):
        if len(steps := seen.last.get(n, [])) == len(logits):
            moves[n] = [
                (_moved(q[row], whole.q[:, at], pairs.get(n)), _moved(k[row], whole.k[:, at], pairs.get(n)))
                for at, (q, k) in enumerate(steps, first)
            ]
    harmless = [n for n, steps in moves.items() if steps[0][0] and set(steps) == {(steps[0][0],) * 2}]
    way = "padded on the left" if row else "with a cache"
    found = Decoded(max(far), size, most, max(far) > most, way, first)
    for step, apart in enumerate(far):
        wrong = [n for n in moves if n not in harmless and moves[n][step] != (0, 0)]
        moved = [n for n in wrong if any(moves[n][step])]
        for n in (wrong if apart > most else moved)[:1]:
            why = _diagnosis(moves[n][step:], first + step, n) if n in moved else None
            return replace(found, position=first + step, layer=n, diagnosis=why)
        if apart > most:
            return replace(found, position=first + step)
    for n in harmless[:1]:
        return replace(found, layer=n, diagnosis=_diagnosis(moves[n], first, n))
    return replace(found, way="", position=None)


def _moved(x: Array, expected: Array, pairs: RotatedPairs | None) -> _By:
    """Return by how many tokens x is moved. Shapes: (h, d), (h, d)."""
    if off(x, expected) <= NEAR:
        return 0
    if pairs is None or not pairs.frequencies.size or x.shape != expected.shape or not np.isfinite(x).all():
        return None
    reach = np.array(sorted(range(-_REACH, _REACH + 1), key=abs)[1:])
    head = int(np.abs(expected).max(-1).argmax())  # one shows which are worth a look
    (a, b), (first, second) = pairs.split(expected[head]), pairs.split(x[head])
    turned = np.exp(1j * reach[:, None] * pairs.frequencies) * (a + 1j * b)
    far = np.abs(turned - (first + 1j * second)).max(-1)
    near = reach[far <= 2 * NEAR * np.abs(expected).max()].tolist()
    return next((by for by in near if off(x, pairs.rotated(expected, by)) <= NEAR), None)


def _diagnosis(steps: _Steps, position: int, layer: int) -> Diagnosis:
    """Return what moves a layer's q and k, or one of them, from a position on."""
    sides = list[Diagnosis]()
    for side, moves in zip("qk", zip(*steps, strict=True), strict=True):
        if moves[0] == 0:
            continue
        found, by = Diagnosis("unexplained"), moves[0] or 0
        if moves[0] is not None:
            found = Diagnosis("another-position", {"position": position, "seen": position + by})
        for code, times in (("no-rotation", -1), ("rotated-twice", 1), ("wrong-direction", -2)):
            if list(moves) == [times * at for at in range(position, position + len(moves))]:
                found = Diagnosis(code)
        if by and len(set(moves)) == 1:
            found = Diagnosis("positions-off", {"by": by})
        sides.append(replace(found, where=Where(sides=(side,), layers=(layer,))))
    first, *also = sorted(sides, key=lambda one: one.code == "unexplained")
    if also and (first.code, first.values) == (also[0].code, also[0].values):
        return replace(first, where=Where(layers=(layer,)))
    return replace(first, also=tuple(also))
