"""One forward pass of a model at shifted positions, from a fresh state, what is seen in it, and two compared.

Seen are logits, frequencies, which rows of tables are looked up by position, and q and k as attention gets
them: in a function of ours, or in the products that go into a softmax.
Letters: b batch, h heads, g key-value heads, s positions, d head_dim, r rotated dims, v vocabulary.
Positions in tokens. Scores are scaled, before softmax. Losses and divergences in nats.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ropeaudit.errors import BadInput, UsageError, one_line
from ropeaudit.features.model import held, load
from ropeaudit.features.model.layers import LayerVectors, as_array
from ropeaudit.subjects.calling.devices import CPU, Device

_PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm")  # whose factors are the last two tensors
_HIDDEN = -float(np.finfo(np.float16).max) / 2  # masks add the least number of a dtype, or twice that
_SELECTS = ("index_select", "__getitem__", "embedding")
_ROWS = 256  # of logits, compared at once
_CHANCE = 4  # times the difference of two passes alike: a larger one is none of chance
UNNAMED = "a table that is no parameter"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of a table that were looked up. learned: whether the table is a parameter."""

    indices: Any
    rows: int
    learned: bool


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass returned. logits (s, v). reads: whether it did anything with the positions.

    choices: of `Lookups`.
    """

    logits: Any
    layers: dict[int, LayerVectors]
    frequencies: dict[str, Any]
    lookups: dict[str, Lookup]
    reads: bool
    choices: list[Any]

    def sends_alike(self, other: Pass) -> bool:
        """Return whether tokens go to the same experts in another pass; true without experts."""
        both = zip(self.choices, other.choices, strict=False)
        return all(a.shape != b.shape or torch.equal(a, b) for a, b in both)


class Runner:
    """A loaded model; every pass begins with the rotary state that it was loaded with.

    Frequencies that depend on the length are remembered by the modules that compute them.
    """

    def __init__(
        self,
        model: Any,
        wide: bool,
        maximum: int | None = None,
        scales: dict[int, float] | None = None,
        device: Device = CPU,
    ) -> None:
        """Keep the model, on a device; `wide` runs it in float64 throughout, see `held.wide`.

        scales: of `Capture`.
        """
        self.wide, self.maximum, self.device = wide, maximum, device
        self.scales = {} if scales is None else scales
        self.narrow: set[str] = set(held.widen(model)) if wide else set()
        self.arithmetic = functools.partial(held.wide, self.narrow) if wide else contextlib.nullcontext
        self.model = device.moved(model)  # what was widened was made on the CPU
        self.fresh = {name: copy.deepcopy(module) for name, module in held.rotaries(model).items()}

    def run(self, ids: list[int], offset: int, *, rotations: bool = False) -> Pass:
        """Read the tokens at positions offset ... offset + s - 1. Raises: BadInput.

        rotations: whether the functions that rotate q and k are listened to.
        """
        capture = Capture(self.scales, self.wide)
        load.listen(capture)
        self.reset()
        given = self.device.put(torch.tensor([ids]))
        positions = self.device.put(torch.arange(len(ids))[None] + offset)
        lookups = Lookups(self.model, positions)
        listening = capture.listening(self.model) if rotations else contextlib.nullcontext()
        with torch.no_grad(), self.arithmetic(), listening, capture, lookups:
            try:
                logits = self.model(given, use_cache=False, position_ids=positions).logits[0]
            except Exception as error:  # whatever a model's own code raises at positions that it has not
                beyond = self.maximum is not None and offset + len(ids) > self.maximum
                past = f", past the {self.maximum:,} positions that it declares" if beyond else ""
                raise BadInput(
                    f"the model cannot be run at offset {offset}{past}: {one_line(error, 300)}"
                ) from None
        frequencies = {
            f"{name}.{key}": torch.tensor(values)
            for name, module in held.rotaries(self.model).items()
            for key, values in held.frequencies(module).items()
        }
        seen = capture.layers, frequencies, lookups.rows, lookups.reads, lookups.choices
        return Pass(logits.detach().cpu(), *seen)

    def reset(self) -> None:
        """Let the rotary modules be as they were loaded."""
        for name, module in self.fresh.items():
            self.model.set_submodule(name, copy.deepcopy(module))

    def reads(self, names: Sequence[str], ids: list[int], base: Pass) -> bool:
        """Return whether logits change where buffers and factors of modules, by name, hold other numbers.

        base: the pass over the tokens from position 0. Code may hold what it does not read. Of logits that
        differ from pass to pass the change has to be larger than that. Where all else is multiplied by 0,
        nan is still seen.
        """
        chance = _apart(self.run(ids, 0).logits, base.logits)
        for value in (0.37, float("nan")):
            kept, changed = dict(self.fresh), []
            for path, _, key in (name.rpartition(".") for name in names):
                if path in self.fresh:
                    self.fresh[path] = copy.deepcopy(self.fresh[path])
                module = self.fresh[path] if path in self.fresh else self.model.get_submodule(path)
                own = getattr(module, key)
                changed.append((module, key, own))
                other = torch.full_like(own, value) if isinstance(own, torch.Tensor) else own * 1.5 + value
                setattr(module, key, other)
            try:
                again = self.run(ids, 0).logits
            except BadInput:
                return True
            finally:
                self.fresh = kept
                for module, key, own in changed:
                    setattr(module, key, own)
            became_nan = bool(again.isnan().any()) and not bool(base.logits.isnan().any())
            if became_nan or _apart(again, base.logits) > _CHANCE * chance:
                return True
        return False


def _holds(whole: Any, part: Any) -> bool:
    """Return whether the first or last dims of each head are those of a part or its only head.

    Shapes: (h, s, d), (h or 1, s, r).
    """
    r = part.shape[-1]
    if part.shape[-2] != whole.shape[-2] or part.shape[0] not in (1, whole.shape[0]) or r > whole.shape[-1]:
        return False
    return any(bool((x == part.to(x.dtype)).all()) for x in (whole[..., :r], whole[..., -r:]))


class Capture(TorchFunctionMode):
    """An attention function for transformers that keeps q and k and calls the model's own.

    As a mode it listens to torch for q·k, in models that do not call it: a layer is a product of (…, s, d)
    and (…, d, s) whose multiple, plus a mask, goes into a softmax. Such layers are numbered in the order in
    which they run. Left out are scores that are more than a multiple of q·k, such as ALiBi's.
    attended: whether the model has called it. heard: what the functions by which a library's models rotate q
    and k, "apply_rotary…" by name, were given and returned since attention was last asked about. scales: of
    each layer as float64 shows it; where it was shown before, those are taken.
    """

    def __init__(self, scales: dict[int, float] | None = None, exact: bool = False) -> None:
        """Begin with nothing. exact: whether the model computes in float64."""
        super().__init__()
        self.layers: dict[int, LayerVectors] = {}
        self.attended, self.exact, self.number = False, exact, 0
        self.scales = {} if scales is None else scales
        self.heard: list[tuple[list[Any], list[Any]]] = []
        self.factors: tuple[Any, Any] | None = None
        self._modules: dict[int, Any] = {}

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
        """Keep q and k of a layer, and attend as the model's own function does."""
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.keep(module, query, key, attention_mask, scale)
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", _attend)
        return eager(module, query, key, value, attention_mask, scaling=scale, **others)

    def keep(self, module: Any, query: Any, key: Any, mask: Any, scale: float) -> None:
        """Keep q and k of a layer. Shapes: (b, h, s, d), (b, g, s, d)."""
        if not self.attended:
            self.attended = True
            self.layers.clear()  # of products elsewhere
        if query.shape[-2:] == key.shape[-2:]:  # else keys are joined, or have dims of their own
            causal = getattr(module, "is_causal", True) is not False
            visible = visible_scores(mask, query.shape[-2], causal=causal)
            self.layers[self._number(module)] = self.vectors(query, key, scale, visible)

    def vectors(self, q: Any, k: Any, scale: float, visible: Any) -> LayerVectors:
        """Return q and k of a layer, and the call that returned their first or last dims.

        Shapes: (..., h, s, d), (..., g, s, d) of a batch of one.
        """
        (heard, self.heard), called = (self.heard, []), None
        both = [x.reshape(-1, *x.shape[-2:]) for x in (q, k)]
        for given, rotated in reversed(heard):
            sides = []
            for own, x, y in zip(both, given, rotated, strict=True):
                for before_it, after in ((x[0], y[0]), (x[0].transpose(0, 1), y[0].transpose(0, 1))):
                    if _holds(own, after) and before_it.shape == after.shape:
                        sides.append((as_array(before_it), as_array(after)))
                        break
            if len(sides) == 2:
                called = (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])
                break
        return LayerVectors(as_array(both[0]), as_array(both[1]), scale, visible, called)

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Listen to the rotating functions of a model's files within the block."""
        files = {type(module).__module__ for module in model.modules()}
        found = [
            (file, name, function)
            for file in sorted(files)
            for name, function in list(vars(sys.modules.get(file, torch)).items())
            if name.startswith("apply_rotary") and callable(function) and file != "torch"
        ]
        for file, name, function in found:
            setattr(sys.modules[file], name, functools.wraps(function)(self._heard(function)))
        try:
            yield
        finally:
            for file, name, function in found:
                setattr(sys.modules[file], name, function)

    def _heard(self, function: Any) -> Any:
        """Return a function that keeps its calls on q and k, (1, h, s, d), (1, g, s, d)."""

        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            given = [x.detach().clone() for x in tensors[:2]]  # it may rotate in place
            result = function(*args, **kwargs)
            if not (isinstance(result, tuple) and len(result) == len(given) == 2):
                return result
            ranks = [isinstance(y, torch.Tensor) and y.ndim == 4 and len(y) == 1 for y in result]
            if all(ranks) and all(x.shape == y.shape for x, y in zip(given, result, strict=True)):
                self.heard.append((given, [y.detach().clone() for y in result]))
            return result

        return call

    def _number(self, module: Any) -> int:
        """Return the layer's own number, or the next free one if it has none or it is taken."""
        number = getattr(module, "layer_idx", None)
        number = None if number is None or number < 0 else int(number)  # where layers share their attention
        known = next((n for n, one in self._modules.items() if one is module), None)
        if number is not None and known is not None:
            return known  # it runs again
        if number is None or number in self._modules:
            number = max(self._modules, default=-1) + 1
        self._modules[number] = module
        return number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if self.attended:
            return result
        if name in _PRODUCTS:
            tensors = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
            q, transposed = tensors[-2:]
            if q.ndim >= 3 and transposed.ndim >= 3 and q.shape[-2:] == transposed.shape[:-3:-1]:
                self.factors = (_heads(q), _heads(transposed.transpose(-1, -2)))
        elif name == "scaled_dot_product_attention":
            self._fused(*args, **(kwargs or {}))
        elif name == "softmax" and args and self.factors is not None:
            self._softmax(args[0], *self.factors)
        return result

    def _fused(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **named: Any
    ) -> None:
        """Note a layer of torch's own attention. Shapes: (b, h, s, d), (b, g, s, d)."""
        if query.shape[-2:] == key.shape[-2:]:
            scale = named.get("scale") or query.shape[-1] ** -0.5
            causal = named.get("is_causal", rest[1] if len(rest) > 1 else False)
            visible = visible_scores(attn_mask, query.shape[-2], causal=bool(causal))
            self._keep(_heads(query), _heads(key), scale, visible)

    def _softmax(self, scores: Any, q: Any, k: Any) -> None:
        """Note a layer whose scores are a multiple of the product. Shapes: (…, s, s)."""
        self.factors = None
        if tuple(scores.shape[-2:]) != (q.shape[-2], k.shape[-2]):
            return
        first = as_array(scores.reshape(-1, *scores.shape[-2:])[0])
        visible = first > _HIDDEN * q.shape[-1] ** -0.5  # some divide after they mask
        if self.exact:
            seen, given = first[visible], np.matmul(as_array(q[0]), as_array(k[0]).T)[visible]
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                scale = float(seen @ given / (given @ given))
                far = np.abs(seen - scale * given).max(initial=0.0)
                if far <= 1e-9 * np.abs(seen).max(initial=0.0):  # far above rounding of float64
                    self.scales[self.number] = scale
        if self.number in self.scales:
            self._keep(q, k, self.scales[self.number], visible)
        else:
            self.number += 1

    def _keep(self, q: Any, k: Any, scale: float, visible: Any) -> None:
        self.layers[self.number] = self.vectors(q, k, float(scale), visible)
        self.number += 1


def visible_scores(mask: Any, size: int, *, causal: bool = True) -> NDArray[np.bool_]:
    """Return the visible scores. mask: added, or true where visible; None: by `causal`."""
    if mask is None:
        full = np.ones((size, size), np.bool_)
        return np.tril(full) if causal else full
    plane = mask[0, 0, :, :size]
    return np.array((plane if plane.dtype == torch.bool else plane > -1).cpu().numpy())


def _attend(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, dropout: float = 0.0, **_: Any
) -> Any:
    """Return plain attention, for models that have no function of their own."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    scores = scores if mask is None else scores + mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), weights


def _heads(x: Any) -> Any:
    """Return the heads of the first sequence. Shapes: (1, h, s, d) or (h, s, d) -> (h, s, d)."""
    return x.detach().reshape(-1, *x.shape[-2:])


class Lookups(TorchFunctionMode):
    """Listens to every torch function. reads: whether one got the positions. rows: by table.

    choices: the indices of every choice of the k largest, sorted: the experts that tokens go to. Two nearly
    alike flip by one rounding, and logits jump by as much as experts differ.
    """

    def __init__(self, model: Any, positions: Any) -> None:
        """Begin with nothing."""
        super().__init__()
        self.positions, self.reads = positions.untyped_storage().data_ptr(), False
        self.rows: dict[str, Lookup] = {}
        self.choices: list[Any] = []
        self.learned = {value.data_ptr(): name for name, value in model.named_parameters()}
        self.stored = {value.data_ptr(): name for name, value in model.named_buffers()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name != "__get__":
            self.reads = self.reads or any(
                tensor.untyped_storage().data_ptr() == self.positions
                for tensor in _tensors((args, kwargs or {}))
            )
        if name in _SELECTS:
            self._note(_tensors(args))
        result = func(*args, **(kwargs or {}))
        if name == "topk":
            self.choices.append(result.indices.detach().cpu().sort(-1).values)
        return result

    def _note(self, tensors: list[Any]) -> None:
        """Note the rows that an integer tensor looks up in a table of floats."""
        table = next((one for one in tensors if one.is_floating_point() and one.ndim == 2), None)
        indices = next((one for one in tensors if one.dtype in (torch.int64, torch.int32)), None)
        if table is None or indices is None:
            return
        pointer, by_position = table.data_ptr(), indices.untyped_storage().data_ptr() == self.positions
        if not (by_position or pointer in self.learned or pointer in self.stored):
            return  # rows of an intermediate result, such as the tokens of an expert
        name = (self.learned.get(pointer) or self.stored.get(pointer, UNNAMED)).removesuffix(".weight")
        self.rows[name] = Lookup(indices.detach().cpu().clone(), table.shape[0], pointer in self.learned)


def _apart(first: Any, other: Any) -> float:
    """Return the largest difference of two tensors; nan is as 0."""
    return float((first.nan_to_num().double() - other.nan_to_num().double()).abs().max())


def _tensors(value: Any) -> list[Any]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def differ(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names under which two mappings of tensors hold different ones."""
    return [name for name in first if name in other and not torch.equal(first[name], other[name])]


def check_reach(rows: dict[str, Lookup], ids: list[int], offsets: list[int]) -> None:
    """Raise UsageError for an offset past a position table. rows: of the run at offset 0."""
    count = len(ids)
    for name, one in rows.items():
        if name == UNNAMED:  # it may be built as long as the positions need
            continue
        positions = one.indices.reshape(-1)
        steps = positions - torch.arange(positions.numel())
        if positions.numel() == count > 2 and bool((steps == steps[0]).all()) and positions.tolist() != ids:
            most = one.rows - count - int(steps[0])
            beyond = [offset for offset in offsets if offset > most]
            if beyond:
                what = "are learned" if one.learned else "stand in a table"
                raise UsageError(
                    f"--offset {beyond[0]}: positions {what} ({name}) and end before; for {count} tokens "
                    f"offsets go up to {most}"
                )


@dataclass(slots=True)
class Change:
    """Statistics over all logits of two passes, and over their difference from float64.

    structural: the change that float64 shows; precision: the rest; error: shifted logits minus float64's;
    base_error: those at offset 0.
    kl: KL(unshifted || shifted) by token. flips: tokens whose most likely successor becomes another one.
    loss: mean next-token cross entropy, unshifted and shifted.
    """

    count: int = 0
    tokens: int = 0
    nonfinite: int = 0
    largest: float = 0.0
    squares: float = 0.0
    structural_largest: float = 0.0
    structural_squares: float = 0.0
    precision_largest: float = 0.0
    precision_squares: float = 0.0
    error_squares: float = 0.0
    base_error_squares: float = 0.0
    reference_largest: float = 0.0
    reference_squares: float = 0.0
    kl_sum: float = 0.0
    kl_largest: float = 0.0
    flips: int = 0
    loss_sum: float = 0.0
    shifted_loss_sum: float = 0.0

    def rms(self, squares: float) -> float:
        """Return the root of a mean over all logits."""
        return math.nan if self.nonfinite or not self.count else math.sqrt(squares / self.count)

    def defined(self, value: float) -> float:
        """Return a value, or nan where some logit is not finite."""
        return math.nan if self.nonfinite else value


def compare(base: Any, shifted: Any, reference_base: Any, reference_shifted: Any, ids: list[int]) -> Change:
    """Compare logits at two places, in float64. Shapes: four of (s, v)."""
    total, targets, entropy = Change(), torch.tensor(ids), torch.nn.functional.cross_entropy
    for start in range(0, base.shape[0], _ROWS):
        four = (base, shifted, reference_base, reference_shifted)
        a, b, exact_a, exact_b = (logits[start : start + _ROWS].double() for logits in four)
        change, structural = b - a, exact_b - exact_a
        total.count += change.numel()
        total.tokens += change.shape[0]
        total.nonfinite += int((~torch.isfinite(a)).sum() + (~torch.isfinite(b)).sum())
        for name, values in (
            ("", change),
            ("structural_", structural),
            ("precision_", change - structural),
            ("reference_", exact_a),
        ):
            largest = max(getattr(total, f"{name}largest"), float(values.abs().max()))
            setattr(total, f"{name}largest", largest)
            setattr(total, f"{name}squares", getattr(total, f"{name}squares") + float((values**2).sum()))
        total.base_error_squares += float(((a - exact_a) ** 2).sum())
        total.error_squares += float(((b - exact_b) ** 2).sum())
        p, q = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
        kl = (p.exp() * (p - q)).sum(-1).clamp_min(0)
        total.kl_sum += float(kl.sum())
        total.kl_largest = max(total.kl_largest, float(kl.max()))
        total.flips += int((a.argmax(-1) != b.argmax(-1)).sum())
        successors = targets[start + 1 : start + _ROWS + 1]
        if count := len(successors):  # the last token has none
            total.loss_sum += float(entropy(a[:count], successors, reduction="sum"))
            total.shifted_loss_sum += float(entropy(b[:count], successors, reduction="sum"))
    return total
