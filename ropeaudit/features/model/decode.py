"""Decode with a cache beside one pass over the same tokens, in float64: where the two differ, and why.

`generate` of transformers reads a batch of two rows, one of them padded on the left, and is made to choose
tokens that are known, so that a plain pass over each row has the numbers that it should have.
Letters: h heads, d head_dim, v vocabulary. Positions in tokens from the first of a row that is no padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import util
from typing import Any
from unittest import mock

import numpy as np
import torch

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import one_line
from ropeaudit.features.model import load
from ropeaudit.features.model.analysis import DYNAMIC
from ropeaudit.features.model.forward_pass import Capture, Pass, Runner
from ropeaudit.features.model.layers import NEAR, RotatedPairs
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.runtime import process_state, streams

NEW, PADDED = 4, 5  # tokens that are generated; padding of the second row
FEWEST = NEW + PADDED + 3  # tokens of a text for which it is done


@dataclass(frozen=True, slots=True)
class Decoded:
    """How decode differs from one pass. change, size: largest difference of a logit, largest logit.

    way: what the wrong row was: "with a cache" alone, "in a batch" where it is right alone, "padded on the
    left"; empty where nothing differs. position: the first that is off. layer: the first in which q is off
    there; None where that is not seen. diagnosis: positions that q is rotated by instead, if by any. differs:
    whether logits do; those of a row that is moved as a whole stay. layers: how many were compared. cache:
    its name. storage: by how much logits change where it stores k and v in fewer bits, and no part of change.
    """

    change: float
    size: float
    way: str = ""
    position: int | None = None
    layer: int | None = None
    diagnosis: Diagnosis | None = None
    differs: bool = False
    layers: int = 0
    cache: str = DYNAMIC
    storage: float | None = None

    @property
    def wrong(self) -> Diagnosis | None:
        """The diagnosis, where it changes what the model says."""
        return self.diagnosis if self.differs else None


class _Queries(Capture):
    """Keeps q of the last token of each row, call by call, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, list[Array]] = {}

    def __call__(self, module: Any, query: Any, *args: Any, **others: Any) -> Any:
        number = self._number(module)
        self.last.setdefault(number, []).append(query[:, :, -1].detach().cpu().double().numpy())
        return self.attend(module, query, *args, **others)


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
    be off, over the largest. cache: one of `analysis.CACHES`.
    """
    rows = [ids, ids[PADDED:]]
    try:
        passes = [base, runner.run(rows[1], 0)]
        both = _generated(runner, rows, cache)
        found = [_differs(both, n, rows[n], passes[n], pairs, allowed) for n in (0, 1)]
        worst = found[1] if found[1].way else max(found, key=lambda one: one.change)
        if found[0].way:
            alone = _differs(_generated(runner, rows[:1], cache), 0, ids, base, pairs, allowed)
            worst = alone if alone.way else found[0]
            worst = replace(worst, way="with a cache" if alone.way else "in a batch")
        if cache == "quantized":
            narrow = set(runner.narrow)
            rounded, _ = _generated(runner, rows, cache, rounds=True)
            runner.narrow = narrow  # what is stored is narrow by intent
            worst = replace(worst, storage=float((rounded - both[0]).abs().max()))
    except Exception as error:  # whatever a model's own code raises
        return one_line(error, 200)
    return replace(worst, cache=cache)


def _generated(
    runner: Runner, rows: Sequence[list[int]], cache: str, rounds: bool = False
) -> tuple[Any, dict[int, list[Array]]]:
    """Return logits (steps, rows, v) and q by layer, (rows, h, d) a step, of all but the last tokens.

    rounds: whether a quantized cache rounds k and v; else it stores them as they are.
    """
    from transformers import GenerationConfig

    longest = max(map(len, rows))
    pads = [longest - len(row) for row in rows]
    given = torch.tensor([[row[0]] * pad + row for row, pad in zip(rows, pads, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * len(row) for row, pad in zip(rows, pads, strict=True)])
    prompt = longest - NEW

    def following(row: int, sent: Any) -> list[int]:
        return [rows[row][len(sent) - pads[row]]]

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
    queries = _Queries()
    load.listen(queries)
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
        )
    return torch.stack(result.logits).cpu().double(), queries.last


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


def _differs(
    generated: tuple[Any, dict[int, list[Array]]],
    row: int,
    ids: list[int],
    one: Pass,
    pairs: Mapping[int, RotatedPairs],
    allowed: float,
) -> Decoded:
    """Return where a row of what was generated is not that of one pass."""
    logits, queries = generated
    first = len(ids) - NEW - 1  # the last token of the prompt
    size = float(one.logits.abs().max())
    most = allowed * max(1.0, size)
    off = (logits[:, row] - one.logits[first : first + len(logits)].double()).abs().amax(-1)
    change = float(off.max())
    way = "padded on the left" if row else "in a batch"
    compared = sum(layer in one.layers and len(seen) == len(logits) for layer, seen in queries.items())
    for step in range(len(logits)):
        for layer, seen in sorted(queries.items()):
            if layer not in one.layers or len(seen) != len(logits):
                continue
            expected, q = one.layers[layer].q[:, first + step], seen[step][row]
            if _near(q, expected):
                continue
            by = None if layer not in pairs else _moved(q, expected, pairs[layer])
            if by is None and not off[step] > most:
                continue  # such as dims that are not compared
            found = None if by is None else Diagnosis("positions-off", {"by": by}, Where(layers=(layer,)))
            return Decoded(change, size, way, first + step, layer, found, change > most, compared)
    if change > most:
        position = first + int((off > most).nonzero()[0])
        return Decoded(change, size, way, position, differs=True, layers=compared)
    return Decoded(change, size, layers=compared)


def _near(q: Array, expected: Array) -> bool:
    return q.shape == expected.shape and bool(np.abs(q - expected).max() <= NEAR * np.abs(expected).max())


def _moved(q: Array, expected: Array, pairs: RotatedPairs) -> int | None:
    """Return by how many tokens q is rotated beyond its position; None by none. Shapes: (h, d), (h, d)."""
    if not pairs.frequencies.size or q.shape != expected.shape:
        return None
    reach = sorted(range(-4096, 4097), key=abs)
    return next((by for by in reach if by and _near(q[:, None], pairs.rotated(expected[:, None], by))), None)
