"""One forward pass of a model at shifted positions: what it records, and comparison of two passes.

Letters: h heads, g key-value heads, s positions, d head_dim, r dims given to be rotated, v vocabulary.
Positions in tokens. Scores are scaled, before softmax. Losses and divergences in nats.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput, one_line
from ropeaudit.features.model import held, load
from ropeaudit.features.model.held import array
from ropeaudit.features.model.layers import LayerVectors, RotatingCall, relative_error
from ropeaudit.subjects.calling.environments import CPU, Device

_Turn: TypeAlias = tuple[Array, Array]  # what a function was given and returned: (h, s, r), or (s, h, r)
_LOOKUPS = ("index_select", "__getitem__", "embedding")
_ROWS = 256  # of logits, compared at once
_ROUNDING = 1e-9  # relative: far above that of float64


class Runner:
    """A loaded model; every pass starts with the rotary modules as they were loaded.

    Modules whose frequencies depend on the length keep those of the last call.
    """

    def __init__(
        self,
        model: Any,
        wide: bool,
        maximum: int | None = None,
        device: Device = CPU,
    ) -> None:
        """Move the model to a device. wide: whether it runs in float64, see `held.wide`."""
        self.maximum, self.device = maximum, device
        self.narrow: set[str] = set(held.widen(model)) if wide else set()
        self.arithmetic = functools.partial(held.wide, self.narrow) if wide else contextlib.nullcontext
        self.model = device.moved(model)  # what was widened was made on the CPU
        self.loaded_rotaries = {
            name: copy.deepcopy(module) for name, module in held.rotary_modules(model).items()
        }

    def run(self, ids: list[int], offset: int) -> Pass:
        """Run the tokens at positions offset ... offset + s - 1. Raises: BadInput."""
        given = self.device.put(torch.tensor([ids]))
        positions = self.device.put(torch.arange(len(ids))[None] + offset)
        with self.recording_pass(positions) as seen, seen:
            try:
                logits = self.model(given, use_cache=False, position_ids=positions).logits[0]
            except Exception as error:  # whatever a model's own code raises there
                past, most = "", (self.maximum or math.inf) - len(ids)
                if offset > most:
                    past = f", past the {self.maximum:,} positions that it declares: for {len(ids)} tokens "
                    past += f"offsets go up to {most}"
                raise BadInput(
                    f"the model cannot be run at offset {offset}{past}: {one_line(error, 300)}"
                ) from None
        seen.logits = logits.detach().cpu()
        seen.frequencies = {
            f"{name}.{key}": values.tolist()
            for name, module in held.rotary_modules(self.model).items()
            for key, values in held.frequencies(module).items()
        }
        return seen

    @contextlib.contextmanager
    def recording_pass(self, positions: Any = None) -> Iterator[Pass]:
        """Restore the loaded rotary modules; yield the record of the model's calls."""
        for name, module in self.loaded_rotaries.items():
            self.model.set_submodule(name, copy.deepcopy(module))
        seen = Pass(self.model, positions)
        load.use_attention(seen)
        with torch.no_grad(), self.arithmetic(), seen.patched_functions(self.model):
            yield seen

    def depends_on(self, names: Sequence[str], ids: list[int]) -> bool:
        """Return whether logits depend on buffers and factors: whether nan in them spreads."""
        changed = []
        for path, _, key in (name.rpartition(".") for name in names):
            module = (
                self.loaded_rotaries[path] if path in self.loaded_rotaries else self.model.get_submodule(path)
            )
            changed.append((module, key, getattr(module, key)))
            setattr(module, key, getattr(module, key) * math.nan)
        try:
            return bool(self.run(ids, 0).logits.isnan().any())
        except BadInput:
            return True
        finally:
            for own in changed:
                setattr(*own)


class Pass(TorchFunctionMode):
    """The record of a forward pass: an attention function that also observes torch's functions.

    logits: (s, v). frequencies: after the pass. layers: q and k by layer. calls: of "apply_rotary…".
    times: growth of q·k between rotation and attention by layer, (s,).
    new: q (b, h, s, d) and k (b, g, s, d) of the tokens of each call, by layer. sees_first: layers whose
    last token saw the first column of the batch in the first call. reads: whether a function of torch got
    the positions. rows: table that is looked up -> whether it is a parameter, and its rows. experts: sorted
    indices of every choice of the k largest.
    """

    def __init__(self, model: Any, positions: Any = None) -> None:
        """Start an empty record."""
        super().__init__()
        self.logits: Any = None
        self.reads = self._attended = False
        self.frequencies: dict[str, list[float]] = {}
        self.rows: dict[str, tuple[bool, list[Any]]] = {}
        self.experts: list[Any] = []
        self.sees_first = set[int]()
        self._positions = None if positions is None else positions.untyped_storage().data_ptr()
        # of each tensor of the model its name, and whether it is a parameter
        self._tables = {value.data_ptr(): (name, False) for name, value in model.named_buffers()}
        self._tables |= {value.data_ptr(): (name, True) for name, value in model.named_parameters()}
        self.forget()

    def forget(self) -> None:
        """Delete q, k and modules, which take memory."""
        self._numbers: dict[Any, int] = {}
        self.layers: dict[int, LayerVectors] = {}
        self.new: dict[int, list[tuple[Array, Array]]] = {}
        self.times: dict[int, Array] = {}
        self._turns: list[_Turn] = []  # since attention was last called
        self._calls: dict[int, RotatingCall] = {}
        self._calls_without_attention: list[
            RotatingCall
        ] = []  # of q and k at once, where no attention is asked

    @property
    def calls(self) -> dict[int, RotatingCall]:
        """The recorded calls by layer; numbered in order if attention was not called."""
        return self._calls if self._attended else dict(enumerate(self._calls_without_attention))

    def __call__(
        self,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        **others: Any,
    ) -> Any:
        """Record q and k of a layer and the call that rotated them, then compute attention.

        Shapes: query (b, h, s, d), key (b, g, t, d).
        """
        from transformers.models.llama import modeling_llama

        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        (heard, self._turns), self._attended, self._calls_without_attention = (self._turns, []), True, []
        if query.shape[-1] == key.shape[-1]:  # else keys have dims of their own
            number, size = self._number(module), query.shape[-2]
            self.new.setdefault(number, []).append((array(query), array(key[:, :, -size:])))
            if size == key.shape[-2]:  # else keys are joined, or those of a cache
                visible = _visible(module, attention_mask, size)
                if visible[-1, 0] and len(self.new[number]) == 1:
                    self.sees_first.add(number)
                self.layers[number] = LayerVectors(array(query[0]), array(key[0]), scale, visible)
                earlier = [(call.before[1], call.after[1]) for call in self._calls.values()]
                q, k = (
                    _matching_turn(query[0], heard),
                    _matching_turn(key[0], [*earlier, *heard]),
                )  # k may be shared
                if q is not None and k is not None and q[2] == k[2]:
                    self._calls[number] = RotatingCall((q[0], k[0]), (q[1], k[1]), q[2])
                    self.times[number] = q[3] * k[3]
        home = sys.modules[type(module).__module__]
        eager: Any = getattr(home, "eager_attention_forward", modeling_llama.eager_attention_forward)
        return eager(module, query, key, value, attention_mask, scaling=scale, **others)

    def _number(self, module: Any) -> int:
        """Return the number of a layer, or the next free one if it has none or a taken one."""
        own = getattr(module, "layer_idx", None)
        own = -1 if own is None else int(own)  # less than 0 where layers share their attention
        if own < 0 or module not in self._numbers:
            taken = {*self._numbers.values(), *self.layers}
            self._numbers[module] = max(taken, default=-1) + 1 if own < 0 or own in taken else own
        return self._numbers[module]

    @contextlib.contextmanager
    def patched_functions(self, model: Any) -> Iterator[None]:
        """Within the block, record the calls of the rotating functions in a model's files."""
        files = [vars(sys.modules[name]) for name in {type(part).__module__ for part in model.modules()}]
        with contextlib.ExitStack() as patches:
            for file in files:
                rotating = {name: call for name, call in file.items() if name.startswith("apply_rotary")}
                heard = {name: self._recording(call) for name, call in rotating.items()}
                patches.enter_context(mock.patch.dict(file, heard))
            yield

    def _recording(self, function: Any) -> Any:
        """Return a function that records its calls on one or both of q and k, of one row."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            given = [x.detach().clone() for x in tensors[:2]]  # it may rotate in place
            result = function(*args, **kwargs)
            sides = result if isinstance(result, tuple) else (result,)
            both = list(zip(given, sides, strict=False))
            alike = [x.ndim == 4 and len(x) == 1 and x.shape == y.shape for x, y in both]
            if len(alike) == len(sides) and all(alike):
                self._turns += (turns := [(array(x[0]), array(y[0])) for x, y in both])
                if len(turns) == 2:
                    (q, q_after), (k, k_after) = turns
                    self._calls_without_attention.append(RotatingCall((q, k), (q_after, k_after)))
            return result

        return call

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        name, tensors = getattr(func, "__name__", ""), _tensors((args, kwargs or {}))
        if name != "__get__":
            storages = [tensor.untyped_storage().data_ptr() for tensor in tensors]
            self.reads = self.reads or self._positions in storages
        if name in _LOOKUPS:
            self._note_lookup(_tensors(args))
        result = func(*args, **(kwargs or {}))
        if name == "topk":
            self.experts.append(result.indices.detach().cpu().sort(-1).values)
        return result

    def _note_lookup(self, tensors: list[Any]) -> None:
        """Record the rows that an integer tensor looks up in a table of floats."""
        table = next((tensor for tensor in tensors if tensor.is_floating_point() and tensor.ndim == 2), None)
        indices = next((tensor for tensor in tensors if tensor.dtype in (torch.int64, torch.int32)), None)
        if table is not None and indices is not None:
            by_position = indices.untyped_storage().data_ptr() == self._positions
            name, learned = self._tables.get(table.data_ptr(), ("", False))
            if name or by_position:  # else of an intermediate result, such as the tokens of an expert
                self.rows[name] = learned, indices.cpu().tolist()


def _visible(module: Any, mask: Any, size: int) -> NDArray[np.bool_]:
    """Return which scores of the last row of a batch a mask shows, (s, s)."""
    past = 0 if getattr(module, "is_causal", True) is not False else size
    if mask is None:
        return np.tri(size, size, past, np.bool_)
    plane = mask[-1, 0, :, :size]  # added, or true where scores are visible
    return np.array((plane if plane.dtype == torch.bool else plane > -1).cpu().numpy())


def _matching_turn(whole: Any, turns: list[_Turn]) -> tuple[Array, Array, int, Array] | None:
    """Return the last turn whose result is in q or k, its first dim, and the growth of each token (s,).

    None if there is no such turn. Heads and positions may be exchanged.
    Shapes: (h, s, d), turns of (h or 1, s, r).
    """
    own, near = array(whole), max(_ROUNDING, 4 * torch.finfo(whole.dtype).eps)
    for turn in reversed(turns):
        for before, after in (turn, tuple(tensor.swapaxes(0, 1) for tensor in turn)):
            heads, rows, dims = after.shape
            fits = heads in (1, len(own)) and rows == own.shape[1] and dims <= own.shape[-1]
            for start in (0, own.shape[-1] - dims) if fits else ():
                times = _growth(own[..., start : start + dims], after, near)
                if times is not None:
                    return before, after, start, times
    return None


def _growth(part: Array, after: Array, near: float) -> Array | None:
    """Return by which factor each token is longer, nan where it is 0; None if it has another direction.

    Shapes: (h, s, r), (h or 1, s, r) -> (s,).
    """
    if (part == after).all():
        return np.ones(part.shape[1])
    after = np.broadcast_to(after, part.shape)
    squares = (after**2).sum((0, 2))
    times = (part * after).sum((0, 2)) / np.where(squares > 0, squares, np.nan)
    return times if relative_error(part, np.nan_to_num(times)[:, None] * after) <= near else None


def _tensors(value: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def cause_of(base: Pass, shifted: Pass) -> str:
    """Return the cause of a structural change: the last of these that applies."""
    cause, both = "other", [(base.layers[n], layer) for n, layer in shifted.layers.items()]
    for a, b in both:  # RoPE leaves lengths; a temperature that grows with the position does not
        sides = ((a.q, b.q), (a.k, b.k))
        longer = [
            relative_error(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1)) > _ROUNDING
            for x, y in sides
        ]
        if any(longer):  # of the first layer that changes
            cause = "query scale" if longer == [True, False] else cause
            break
    if not all(np.array_equal(a.visible, b.visible) for a, b in both):
        cause = "mask"
    rows, others = base.rows, shifted.rows
    moved = [one for name, one in rows.items() if name in others and one != others[name]]
    if moved:
        cause = "learned positions" if any(learned for learned, _ in moved) else "position table"
    if any(base.frequencies.get(name, theta) != theta for name, theta in shifted.frequencies.items()):
        cause = "frequencies"
    return cause


def compare(own: tuple[Pass, Pass], exact: tuple[Pass, Pass], ids: list[int]) -> dict[str, Any]:
    """Return columns of the summary about logits at two offsets, in a dtype and in float64.

    Also logits_max and nonfinite, the number of nan and infinite logits, with which other columns are nan.
    """
    sums = defaultdict[str, float](float)
    largest = defaultdict[str, float](float)
    targets = torch.tensor(ids)
    nonfinite = flips = 0
    for start in range(0, len(ids), _ROWS):
        a, b, exact_a, exact_b = (one.logits[start : start + _ROWS].double() for one in (*own, *exact))
        parts = {"logits": exact_a, "change": b - a, "structural": exact_b - exact_a}
        parts |= {"precision": parts["change"] - parts["structural"]}
        for name, part in (parts | {"error": b - exact_b, "base_error": a - exact_a}).items():
            sums[name] += float((part**2).sum())
            largest[name] = max(largest[name], float(part.abs().max()))
        p, q = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
        kl = (p.exp() * (p - q)).sum(-1).clamp_min(0)
        sums["kl"] += float(kl.sum())
        largest["kl"] = max(largest["kl"], float(kl.max()))
        flips += int((a.argmax(-1) != b.argmax(-1)).sum())
        nonfinite += int((~torch.isfinite(a)).sum() + (~torch.isfinite(b)).sum())
        successors = targets[start + 1 : start + _ROWS + 1]  # the last token has none
        for name, logs in (("loss", p), ("shifted_loss", q)):
            sums[name] -= float(logs[range(len(successors)), successors].sum())
    columns: dict[str, Any] = {f"{name}_max": largest[name] for name in parts}
    columns |= {
        f"{name}_rms": math.sqrt(sums[name] / own[0].logits.numel())
        for name in (*parts, "error", "base_error")
    }
    columns |= {"kl_mean": sums["kl"] / len(ids), "kl_max": largest["kl"]}
    loss, shifted_loss = (sums[name] / max(len(ids) - 1, 1) for name in ("loss", "shifted_loss"))
    before, after = (math.exp(x) if x < 700 else math.inf for x in (loss, shifted_loss))
    columns |= {"loss": loss, "loss_change": shifted_loss - loss}
    columns |= {"perplexity": before, "perplexity_change": after - before}
    if nonfinite:
        needed = [name for name in columns if not name.startswith(("logits", "structural"))]
        columns |= dict.fromkeys(needed, math.nan)
    counts = {"tokens": len(ids), "nonfinite": nonfinite, "top1_flips": None if nonfinite else flips}
    return columns | counts
