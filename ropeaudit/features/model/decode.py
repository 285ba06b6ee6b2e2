"""Decode with a cache beside one pass over the same tokens, in float64: where the two differ, and why.

`generate` of transformers reads a batch of two rows, one of them padded on the left, and is made to choose
tokens that are known, so that a plain pass over each row has the numbers that it should have. Where positions
have axes, the same is done with an image in each row.
Letters: h heads, g key-value heads, d head_dim, v vocabulary. Positions in tokens from the first of a row
that is no padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import util
from itertools import product
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import one_line
from ropeaudit.features.model import images, load
from ropeaudit.features.model.forward_pass import Capture, Pass, Runner
from ropeaudit.features.model.images import Image, Row
from ropeaudit.features.model.layers import NEAR, RotatedPairs
from ropeaudit.features.model.load import DYNAMIC
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.runtime import process_state, streams

_Vectors: TypeAlias = tuple[Array, Array]  # q (rows, h, d) and k (rows, g, d) of the last token of each row
_Generated: TypeAlias = tuple[Any, dict[int, list[_Vectors]]]  # logits, and q and k by layer
NEW, PADDED = 4, 5  # tokens that are generated; padding of the second row
FEWEST = NEW + PADDED + 3  # tokens of a text for which it is done


@dataclass(frozen=True, slots=True)
class Decoded:
    """How decode differs from one pass. change, size: largest difference of a logit, largest logit.

    way: what the wrong row was: "with a cache" alone, "in a batch" where it is right alone, "padded on the
    left", "step by step" where `generate` is right; empty where nothing differs. position: the first that is
    off. layer: the first in which q or k is off there; None where that is not seen. diagnosis: positions by
    which they are rotated instead, if by any. differs: whether logits do; those of a row that is moved as a
    whole stay. layers: how many were compared. image: the one in the row, None without. cache: its name.
    storage: by how much logits change where it stores k and v in fewer bits, and no part of change.
    """

    change: float
    size: float
    way: str = ""
    position: int | None = None
    layer: int | None = None
    diagnosis: Diagnosis | None = None
    differs: bool = False
    layers: int = 0
    image: Image | None = None
    cache: str = DYNAMIC
    storage: float | None = None

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis, where it changes what the model says."""
        return self.diagnosis if self.differs else None


class _LastVectors(Capture):
    """Keeps q and k of the last token of each row, call by call, layer by layer.

    k is what the cache gives back: its last, or, where it has room for more, that at the number of tokens.
    """

    def __init__(self, within: set[int] | None) -> None:
        super().__init__(within)
        self.last: dict[int, list[_Vectors]] = {}
        self.tokens: dict[int, int] = {}

    def __call__(self, module: Any, query: Any, key: Any, *args: Any, **others: Any) -> Any:
        if self.within is None or id(module) in self.within:
            layer = self._number(module)
            self.tokens[layer] = self.tokens.get(layer, 0) + query.shape[2]
            last = query[:, :, -1], key[:, :, min(self.tokens[layer], key.shape[2]) - 1]
            q, k = (one.detach().cpu().double().numpy() for one in last)
            self.last.setdefault(layer, []).append((q, k))
        return self.attend(module, query, key, *args, **others)


def compare(
    runner: Runner,
    ids: list[int],
    base: Pass,
    pairs: Mapping[int, RotatedPairs],
    allowed: float,
    cache: str = DYNAMIC,
) -> Decoded | str:
    """Return how decode differs from one pass of a model in float64; a reason where it cannot be run.

    base: the pass over the tokens from position 0. pairs: how its layers rotate. allowed: how far a logit may
    be off, over the largest. cache: one of `load.CACHES`.
    """
    rows = [Row(ids), Row(ids[PADDED:])]
    try:
        both = _generated(runner, rows, cache)
        found = _compared(runner, rows, both, [base, runner.run(rows[1].ids, 0)], pairs, allowed, cache)
        if cache == "quantized":
            narrow = set(runner.narrow)
            rounded, _ = _generated(runner, rows, cache, rounds=True)
            runner.narrow = narrow  # what is stored is narrow by intent
            found = replace(found, storage=float((rounded - both[0]).abs().max()))
    except Exception as error:  # whatever a model's own code raises
        return f"`generate` raised {one_line(error, 200)}"
    return replace(found, cache=cache)


def compare_behind_images(
    runner: Runner, ids: list[int], pairs: Mapping[int, RotatedPairs], allowed: float
) -> Decoded | str | None:
    """Return the same of text with an image in it; None for a model that takes none as M-RoPE's do.

    Where `generate` is right, the model is run step by step too, and counts positions itself.
    """
    try:
        rows = images.shown(runner.model, ids, PADDED)
        if not rows:
            return None
        passes = [runner.run(row.ids, 0, beside=images.beside(runner.model, [row])) for row in rows]
        found = _compared(runner, rows, _generated(runner, rows), passes, pairs, allowed)
        if found.way:
            return found
        stepped = _differs(_stepped(runner, rows[0]), 0, rows[0], passes[0], pairs, allowed)
    except Exception as error:  # whatever a model's own code raises
        return f"the model raised {one_line(error, 200)}"
    return replace(stepped, way="step by step") if stepped.way else found


def _compared(
    runner: Runner,
    rows: Sequence[Row],
    both: _Generated,
    passes: Sequence[Pass],
    pairs: Mapping[int, RotatedPairs],
    allowed: float,
    cache: str = DYNAMIC,
) -> Decoded:
    """Return how decode of two rows differs from a pass over each."""
    found = [_differs(both, n, rows[n], passes[n], pairs, allowed) for n in (0, 1)]
    if not found[0].way:
        return found[1] if found[1].way else max(found, key=lambda one: one.change)
    alone = _differs(_generated(runner, rows[:1], cache), 0, rows[0], passes[0], pairs, allowed)
    return replace(alone, way="with a cache") if alone.way else found[0]


def _generated(runner: Runner, rows: Sequence[Row], cache: str = DYNAMIC, rounds: bool = False) -> _Generated:
    """Return logits (steps, rows, v) and q and k by layer and step, of all but the last tokens.

    rounds: whether a quantized cache rounds k and v; else it stores them as they are.
    """
    from transformers import GenerationConfig

    given, mask = images.padded(rows)
    prompt = given.shape[1] - NEW

    def following(row: int, sent: Any) -> list[int]:
        return [int(given[row, len(sent)])]

    make: Any = GenerationConfig
    config = make(
        max_new_tokens=NEW,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
        **({} if cache == "quantized" else {"cache_implementation": cache}),
    )
    kept = {"past_key_values": _quantized(runner.model, rounds)} if cache == "quantized" else {}
    beside = images.beside(runner.model, rows, prompt)
    vectors = _LastVectors(runner.text if beside else None)
    load.listen(vectors)
    runner.reset()
    with (
        torch.no_grad(),
        runner.arithmetic(),
        load.quiet(),
        streams.aside(),
        process_state.foreign(),
        _orderly(runner, cache),
    ):
        result = runner.model.generate(
            runner.device.put(given[:, :prompt]),
            attention_mask=runner.device.put(mask[:, :prompt]),
            prefix_allowed_tokens_fn=following,
            generation_config=config,
            **kept,
            **runner.put(beside),
        )
    return torch.stack(result.logits).cpu().double(), vectors.last


class _Stream:
    """A stream of a device that has none: whatever is put into it is done at once."""

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""

    def wait_stream(self, other: Any) -> None:
        """Return at once."""


@contextlib.contextmanager
def _orderly(runner: Runner, cache: str) -> Iterator[None]:
    """Let offloaded caches run without CUDA within the block: its streams order copies, of which are none."""
    if runner.device.name.startswith("cuda") or not cache.startswith("offloaded"):
        yield
        return
    with (
        mock.patch.object(torch, "Stream", _Stream),
        mock.patch.object(torch.cuda, "default_stream", return_value=_Stream()),
    ):
        yield


def quanto() -> bool:
    """Return whether the package is there by which `generate` quantizes a cache."""
    return util.find_spec("optimum") is not None and util.find_spec("optimum.quanto") is not None


def _quantized(model: Any, rounds: bool) -> Any:
    """Return an empty quantized cache of a model: quanto's, which `generate` takes, else that in float8."""
    from transformers import QuantizedCache

    make: Any = QuantizedCache
    cache = make("quanto" if quanto() else "fp8", model.config)
    for layer in () if rounds else cache.layers:
        layer._quantize = lambda tensor, *_, **__: (tensor, None)
        layer._dequantize = lambda stored: stored[0]
    return cache


def _stepped(runner: Runner, row: Row) -> _Generated:
    """Return the same as `_generated` of one row, its tokens given one by one without positions."""
    ids = runner.device.put(torch.tensor([row.ids]))
    prompt = ids.shape[1] - NEW
    given = runner.put(images.beside(runner.model, [row], prompt))
    vectors = _LastVectors(runner.text)
    load.listen(vectors)
    runner.reset()
    logits, cache, first = [], None, 0
    with torch.no_grad(), runner.arithmetic(), streams.aside(), process_state.foreign():
        for end in range(prompt, prompt + NEW):
            result = runner.model(ids[:, first:end], past_key_values=cache, use_cache=True, **given)
            cache, first, given = result.past_key_values, end, {}
            logits.append(result.logits[:, -1])
    return torch.stack(logits).cpu().double(), vectors.last


def _differs(
    generated: _Generated,
    row: int,
    given: Row,
    one: Pass,
    pairs: Mapping[int, RotatedPairs],
    allowed: float,
) -> Decoded:
    """Return where a row of what was generated is not that of one pass."""
    logits, vectors = generated
    first = len(given.ids) - NEW - 1  # the last token of the prompt
    size = float(one.logits.abs().max())
    most = allowed * max(1.0, size)
    off = (logits[:, row] - one.logits[first : first + len(logits)].double()).abs().amax(-1)
    change = float(off.max())
    way = "padded on the left" if row else "in a batch"
    compared = [n for n, seen in sorted(vectors.items()) if n in one.layers and len(seen) == len(logits)]
    same = Decoded(change, size, layers=len(compared), image=given.image)
    for step, layer in product(range(len(logits)), compared):
        q, k = (side[row] for side in vectors[layer][step])
        held, at = one.layers[layer], first + step
        expected = {"q": (q, held.q[:, at]), "k": (k, held.k[:, at])}
        far = {side: both for side, both in expected.items() if not _near(*both)}
        by = {side: _moved(*both, pairs[layer]) for side, both in far.items() if layer in pairs}
        moved = {side: count for side, count in by.items() if count is not None}
        if not moved and not (far and off[step] > most):
            continue  # all is as it was, or dims are off that are not compared
        found = _positions_off(moved, layer)
        seen_at = replace(same, way=way, position=at, layer=layer, diagnosis=found)
        return replace(seen_at, differs=change > most)
    if change > most:
        return replace(same, way=way, position=first + int((off > most).nonzero()[0]), differs=True)
    return same


def _positions_off(moved: Mapping[str, int], layer: int) -> Diagnosis | None:
    """Return the diagnosis of q and k that are rotated further, by side; None where none is."""
    if not moved:
        return None
    alike = len(moved) == 2 and len(set(moved.values())) == 1
    sides: list[tuple[str, ...]] = [()] if alike else [(side,) for side in moved]
    counts = dict.fromkeys(moved.values()) if alike else moved.values()
    first, *also = (
        Diagnosis("positions-off", {"by": by}, Where(sides=side, layers=(layer,)))
        for side, by in zip(sides, counts, strict=True)
    )
    return replace(first, also=tuple(also))


def _near(q: Array, expected: Array) -> bool:
    return q.shape == expected.shape and bool(np.abs(q - expected).max() <= NEAR * np.abs(expected).max())


def _moved(q: Array, expected: Array, pairs: RotatedPairs) -> int | None:
    """Return by how many tokens q is rotated beyond its position; None by none. Shapes: (h, d), (h, d)."""
    if not pairs.frequencies.size or q.shape != expected.shape:
        return None
    reach = sorted(range(-4096, 4097), key=abs)
    return next((by for by in reach if by and _near(q[:, None], pairs.rotated(expected[:, None], by))), None)
