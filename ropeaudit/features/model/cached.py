"""Calls of a model with its cache, compared with one float64 pass over the same tokens.

The calls are decode, also of a row padded on the left, and prefill in chunks.
Letters: v vocabulary. Positions in tokens, from the first that is no padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput, RopeAuditError, one_line
from ropeaudit.features.model.forward_pass import Pass, Runner
from ropeaudit.features.model.layers import NEAR, RotatedPairs, relative_error
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.streams import quiet_transformers

_By: TypeAlias = int | None  # tokens that a side is rotated further; None by none
_Moves: TypeAlias = list[tuple[_By, _By]]  # of q and of k, call by call
_REACH = 4096  # largest distance of moved q and k that is searched
_NEW, _PADDED = 4, 5  # tokens that are generated; padding of the second row
_FEWEST = _NEW + _PADDED + 3  # tokens that the comparison needs
_DECODE = ("decode of a row with a cache", "decode of a row padded on the left")
# way -> where a prompt is cut, in parts of its length, and whether the model gets the positions, as servers
# give them; else it counts them by its cache
_CHUNKS = {
    "prefill in two chunks": ((0.5,), True),
    "prefill in three chunks": ((0.3, 0.7), False),
    "several tokens onto a filled cache": ((0.8,), False),
}


@dataclass(frozen=True, slots=True)
class Calls:
    """Results of calls with a cache. way: of calling, in words; row: of the batch.

    read: positions that each call read. logits: (tokens, v) of the last of these. seen: q and k by layer.
    """

    way: str
    row: int
    read: list[range]
    logits: list[Any]
    seen: Pass


@dataclass(frozen=True, slots=True)
class Cached:
    """The difference of calls with a cache from one pass.

    way: of calling, in words. change, size: largest difference of a logit, largest logit. allowed: largest
    allowed difference. differs: whether logits do; they do not if a row is moved as a whole. position: the
    first wrong one, None if none is. layer: the first wrong layer there. diagnosis: how that rotates, or
    that it sees padding.
    """

    way: str
    change: float
    size: float
    allowed: float
    differs: bool
    position: int | None = None
    layer: int | None = None
    diagnosis: Diagnosis | None = None

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis, if logits differ."""
        return self.diagnosis if self.differs else None

    @property
    def words(self) -> str:
        """The difference in words; empty if there is none."""
        if self.position is None:
            return ""
        if not self.differs:
            both = self.diagnosis is not None and not self.diagnosis.where.sides
            distances = "scores depend on distances, and " if both else ""
            return (
                f"{self.way} rotates otherwise than one pass over its tokens, "
                f"{wording.sentence(self.diagnosis)}; {distances}float64 logits stay"
            )
        seen = "in" if self.diagnosis else "seen in q or k of"
        layer = "" if self.layer is None else f", first {seen} layer {self.layer}"
        return (
            f"{self.way} is not one pass over its tokens: float64 logits are off by up to "
            f"{short(self.change)}, from position {self.position} on{layer}"
        )


def compare(
    runner: Runner,
    ids: list[int],
    base: Pass,
    pairs: Mapping[int, RotatedPairs | None],
    allowed: float,
) -> tuple[Cached | None, dict[str, str]]:
    """Return the calls that differ most from one float64 pass, and why others were not compared.

    base: the pass over the tokens. pairs: those of its layers. allowed: error of logits over the largest.
    """
    ways: dict[str, tuple[str, Callable[..., list[Calls]]]] = {
        "decode with a cache": ("`generate`", _generate_calls),
        "prefill in chunks": ("the model", _chunk_calls),
    }
    if len(ids) < _FEWEST:
        return None, dict.fromkeys(ways, f"it takes {_FEWEST} tokens; give --tokens {_FEWEST} or more")
    other = runner.run([*ids[:-1], int(ids[-1] == 0)], 0)  # with another last token
    if relative_error(other.logits[:-1].numpy(), base.logits[:-1].numpy()) > allowed:
        return None, dict.fromkeys(ways, "in one pass tokens see those behind them")
    found, why = list[Cached](), dict.fromkeys(ways, "")
    for what, (name, made) in ways.items():
        try:
            for calls in made(runner, ids):
                whole = runner.run(ids[_PADDED:], 0) if calls.row else base
                found.append(_compare_with_pass(calls, whole, pairs, allowed))
        except RopeAuditError as error:
            why[what] = str(error)
        except Exception as error:  # whatever a model's own code raises
            why[what] = f"{name} raised {one_line(error, 200)}"

    def order(one: Cached) -> tuple[bool, bool, bool, float]:  # among equals the first that is off
        right = one.position is None
        return bool(one.wrong), one.differs, not right, one.change if right else 0.0

    return max(found, key=order, default=None), why


def _generate_calls(runner: Runner, ids: list[int]) -> list[Calls]:
    """Return the calls of `generate` for a row and a shorter one, which is padded on the left.

    `generate` must choose given tokens, so that one pass over each row has the expected numbers. The last
    token is not read.
    """
    from transformers import GenerationConfig

    rows, width = [ids, ids[_PADDED:]], len(ids)
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
    with (
        runner.recording_pass() as seen,
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
    logits, calls = torch.stack(result.logits).cpu().double(), list[Calls]()
    for row, way in enumerate(_DECODE):
        last = len(rows[row]) - _NEW
        read = [range(last), *(range(at, at + 1) for at in range(last, last + _NEW - 1))]
        calls.append(Calls(way, row, read, [one[None] for one in logits[:, row]], seen))
    return calls


def _chunk_calls(runner: Runner, ids: list[int]) -> list[Calls]:
    """Return calls in chunks, with the cache of those before."""
    made = list[Calls]()
    for way, (parts, told) in _CHUNKS.items():
        cuts = [0, *(int(part * len(ids)) for part in parts), len(ids)]
        read, logits, past = [range(*cut) for cut in itertools.pairwise(cuts)], list[Any](), None
        with runner.recording_pass() as seen:
            for call in read:
                tokens = runner.device.put(torch.tensor([ids[call.start : call.stop]]))
                at = {"position_ids": runner.device.put(torch.tensor([call]))} if told else {}
                result = runner.model(tokens, past_key_values=past, use_cache=True, **at)
                past = result.past_key_values
                logits.append(result.logits[0].cpu().double())
                if past is None:
                    raise BadInput("the model returns no cache")
        made.append(Calls(way, 0, read, logits, seen))
    return made


def _compare_with_pass(
    calls: Calls,
    one: Pass,
    pairs: Mapping[int, RotatedPairs | None],
    allowed: float,
) -> Cached:
    """Compare calls with a cache with one pass over their tokens.

    A layer whose q and k are moved alike in every call does not change logits.
    """
    size = float(one.logits.abs().nan_to_num(0.0, 0.0).max())
    most, far = allowed * max(1.0, size), list[float]()
    for read, given in zip(calls.read, calls.logits, strict=True):
        expected = one.logits[read.stop - len(given) : read.stop].double()
        gap = (given - expected).abs()
        gap[(given == expected) | (given.isnan() & expected.isnan())] = 0.0
        far.append(float(gap.nan_to_num(np.inf, np.inf).max()))
    moves, row = dict[int, _Moves](), calls.row
    for n, whole in sorted(one.layers.items()):
        steps = calls.seen.new.get(n, [])
        for read, new in zip(calls.read, steps, strict=True) if len(steps) == len(far) else ():
            at, expected = slice(read.start, read.stop), (whole.q, whole.k)
            q, k = (
                _distance_moved(x[row, :, -len(read) :], y[:, at], pairs.get(n))
                for x, y in zip(new, expected, strict=True)
            )
            moves.setdefault(n, []).append((q, k))
    whole_rows = {n: own[0][0] for n, own in moves.items() if len(set(own)) == 1 and len(set(own[0])) == 1}
    harmless = [n for n, by in whole_rows.items() if by]
    found = Cached(calls.way, max(far), size, most, max(far) > most)
    padding = sorted(calls.seen.sees_first) if row else []
    if found.differs and padding:
        shown = Diagnosis("padding-seen", where=Where(layers=tuple(padding)))
        return replace(found, position=calls.read[0][-1], layer=padding[0], diagnosis=shown)
    for step, apart in enumerate(far):
        first = calls.read[step].stop - len(calls.logits[step])
        wrong = [n for n in moves if n not in harmless and moves[n][step] != (0, 0)]
        moved = [n for n in wrong if any(moves[n][step])]
        for n in (wrong if apart > most else moved)[:1]:
            rest = moves[n][step:], calls.read[step:]
            why = _diagnose_moves(*rest, n, padded=bool(row)) if n in moved else None
            return replace(found, position=first, layer=n, diagnosis=why)
        if apart > most:
            return replace(found, position=first)
    for n in harmless[:1]:
        why = _diagnose_moves(moves[n], calls.read, n, padded=bool(row))
        return replace(found, position=calls.read[0][-1], layer=n, diagnosis=why)
    return found


def _distance_moved(x: Array, expected: Array, pairs: RotatedPairs | None) -> _By:
    """Return by how many tokens x is rotated further; None if by none. Shapes: (h, s, d), (h, s, d)."""
    if relative_error(x, expected) <= NEAR:
        return 0
    if pairs is None or not pairs.frequencies.size or x.shape != expected.shape or not np.isfinite(x).all():
        return None
    reach = np.array(sorted(range(-_REACH, _REACH + 1), key=abs)[1:])
    largest = np.unravel_index(int(np.abs(expected).argmax()), expected.shape)[:2]
    (a, b), (first, second) = pairs.split(expected[largest]), pairs.split(x[largest])
    turned = np.exp(1j * reach[:, None] * pairs.frequencies) * (a + 1j * b)
    far = np.abs(turned - (first + 1j * second)).max(-1)  # of one vector: which are worth a look
    near = reach[far <= 2 * NEAR * np.abs(expected).max()].tolist()
    return next((by for by in near if relative_error(x, pairs.rotated(expected, by)) <= NEAR), None)


def _diagnose_moves(steps: _Moves, read: Sequence[range], layer: int, *, padded: bool) -> Diagnosis:
    """Return the diagnosis of moved q and k of a layer."""
    at = [call[-1] for call in read]
    known = {  # what moves the last token of each call by so much
        "positions-from-0": [-call.start for call in read],
        "no-rotation": [-place for place in at],
        "rotated-twice": at,
        "wrong-direction": [-2 * place for place in at],
        "padding-counted": [_PADDED if padded else 0 for _ in at],
    }
    sides = list[Diagnosis]()
    for side, moves in zip("qk", map(list, zip(*steps, strict=True)), strict=True):
        if moves[0] == 0:
            continue
        found, by = Diagnosis("unexplained"), moves[0] or 0
        if moves[0] is not None:
            found = Diagnosis("another-position", {"position": at[0], "seen": at[0] + by})
        if by and len(set(moves)) == 1:
            found = Diagnosis("positions-off", {"by": by})
        for code in (code for code, expected in known.items() if moves == expected):
            found = Diagnosis(code)
        sides.append(replace(found, where=Where(sides=(side,), layers=(layer,))))
    first, *also = sorted(sides, key=lambda side: side.code == "unexplained")
    if also and (first.code, first.values) == (also[0].code, also[0].values):
        return replace(first, where=Where(layers=(layer,)))
    return replace(first, also=tuple(also))
