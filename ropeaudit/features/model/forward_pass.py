"""One forward pass of a model at shifted positions; what is seen in it; two compared, and decode beside one.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ropeaudit.arithmetic.doubledouble import Array
from ropeaudit.errors import BadInput, RopeAuditError, one_line
from ropeaudit.features.model import held, load
from ropeaudit.features.model.held import array
from ropeaudit.features.model.layers import NEAR, LayerVectors, RotatedPairs, RotatingCall, off
from ropeaudit.recognition import wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where
from ropeaudit.reports.numbers import short
from ropeaudit.runtime.streams import quiet_transformers
from ropeaudit.subjects.calling.environments import CPU, Device

_LOOKUPS = ("index_select", "__getitem__", "embedding")
_ROWS = 256  # of logits, compared at once
_ROUNDING = 1e-9  # relative: far above that of float64


class Runner:
    """A loaded model; every pass begins with the rotary modules as they were loaded.

    Frequencies that depend on the length are remembered by the modules that compute them.
    """

    def __init__(
        self,
        model: Any,
        wide: bool,
        maximum: int | None = None,
        device: Device = CPU,
    ) -> None:
        """Keep the model on a device; `wide`: float64 throughout, see `held.wide`."""
        self.maximum, self.device = maximum, device
        self.narrow: set[str] = set(held.widen(model)) if wide else set()
        self.arithmetic = functools.partial(held.wide, self.narrow) if wide else contextlib.nullcontext
        self.model = device.moved(model)  # what was widened was made on the CPU
        self.fresh = {name: copy.deepcopy(module) for name, module in held.rotaries(model).items()}

    def run(self, ids: list[int], offset: int) -> Pass:
        """Read the tokens at positions offset ... offset + s - 1. Raises: BadInput."""
        given = self.device.put(torch.tensor([ids]))
        positions = self.device.put(torch.arange(len(ids))[None] + offset)
        seen = Pass(self.model, positions)
        load.listen(seen)
        self.reset()
        with torch.no_grad(), self.arithmetic(), seen.listening(self.model), seen:
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
            for name, module in held.rotaries(self.model).items()
            for key, values in held.frequencies(module).items()
        }
        return seen

    def reset(self) -> None:
        """Let the rotary modules be as they were loaded."""
        for name, module in self.fresh.items():
            self.model.set_submodule(name, copy.deepcopy(module))

    def depends_on(self, names: Sequence[str], ids: list[int]) -> bool:
        """Return whether logits depend on buffers and factors: nan in their place spreads.

        Code may hold what it does not read.
        """
        changed = []
        for path, _, key in (name.rpartition(".") for name in names):
            module = self.fresh[path] if path in self.fresh else self.model.get_submodule(path)
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
    """What is seen in a forward pass: an attention function, which listens to torch's too.

    logits: (s, v). frequencies: after it. layers: q and k by layer. calls: of functions "apply_rotary…".
    last: q (b, h, d) and k (b, g, d) of each row's last token, by layer, call by call. reads: whether a
    function of torch got the positions. rows: of each table that is looked up, by its name, whether it is a
    parameter, and which rows. experts: the sorted indices of every choice of the k largest.
    """

    def __init__(self, model: Any, positions: Any = None) -> None:
        """Begin with nothing."""
        super().__init__()
        self.logits: Any = None
        self.reads = self._attended = False
        self.frequencies: dict[str, list[float]] = {}
        self.rows: dict[str, tuple[bool, list[Any]]] = {}
        self.experts: list[Any] = []
        self._positions = None if positions is None else positions.untyped_storage().data_ptr()
        # of each tensor of the model its name, and whether it is a parameter
        self._tables = {value.data_ptr(): (name, False) for name, value in model.named_buffers()}
        self._tables |= {value.data_ptr(): (name, True) for name, value in model.named_parameters()}
        self.forget()

    def forget(self) -> None:
        """Let q, k and modules go: they take memory."""
        self._numbers: dict[Any, int] = {}
        self.layers: dict[int, LayerVectors] = {}
        self.last: dict[int, list[tuple[Array, Array]]] = {}
        self._heard: list[RotatingCall] = []  # since attention was last called
        self._calls: dict[int, RotatingCall] = {}

    @property
    def calls(self) -> dict[int, RotatingCall]:
        """The calls heard, by layer; in order where no attention was asked."""
        return self._calls if self._attended else dict(enumerate(self._heard))

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
        """Keep q and k of a layer and the call that rotated them, and attend.

        Shapes: query (b, h, s, d), key (b, g, t, d).
        """
        from transformers.models.llama import modeling_llama

        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        (heard, self._heard), self._attended = (self._heard, []), True
        if query.shape[-1] == key.shape[-1]:  # else keys have dims of their own
            number, size = self._number(module), query.shape[-2]
            self.last.setdefault(number, []).append((array(query[:, :, -1]), array(key[:, :, -1])))
            if size == key.shape[-2]:  # else keys are joined, or those of a cache
                past = 0 if getattr(module, "is_causal", True) is not False else size
                visible = np.tri(size, size, past, np.bool_)
                if attention_mask is not None:  # added, or true where scores are visible
                    plane = attention_mask[0, 0, :, :size]
                    visible = np.array((plane if plane.dtype == torch.bool else plane > -1).cpu().numpy())
                self.layers[number] = LayerVectors(array(query[0]), array(key[0]), scale, visible)
                for call in heard:  # the last is the one whose q and k these are
                    starts = [_start(*both) for both in zip((query[0], key[0]), call.after, strict=True)]
                    if starts[0] is not None and starts[0] == starts[1]:
                        self._calls[number] = replace(call, start=starts[0])
        home = sys.modules[type(module).__module__]
        eager: Any = getattr(home, "eager_attention_forward", modeling_llama.eager_attention_forward)
        return eager(module, query, key, value, attention_mask, scaling=scale, **others)

    def _number(self, module: Any) -> int:
        """Return the layer's number, or the next free one if none or taken."""
        own = getattr(module, "layer_idx", None)
        own = -1 if own is None else int(own)  # less than 0 where layers share their attention
        if own < 0 or module not in self._numbers:
            taken = {*self._numbers.values(), *self.layers}
            self._numbers[module] = max(taken, default=-1) + 1 if own < 0 or own in taken else own
        return self._numbers[module]

    @contextlib.contextmanager
    def listening(self, model: Any) -> Iterator[None]:
        """Listen to the rotating functions of a model's files within the block."""
        files = [vars(sys.modules[name]) for name in {type(one).__module__ for one in model.modules()}]
        with contextlib.ExitStack() as patches:
            for file in files:
                rotating = {name: one for name, one in file.items() if name.startswith("apply_rotary")}
                heard = {name: self._hears(one) for name, one in rotating.items()}
                patches.enter_context(mock.patch.dict(file, heard))
            yield

    def _hears(self, function: Any) -> Any:
        """Return a function that keeps its calls on q (1, h, s, r) and k (1, g, s, r)."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
            given = [x.detach().clone() for x in tensors[:2]]  # it may rotate in place
            result = function(*args, **kwargs)
            if isinstance(result, tuple) and len(result) == len(given) == 2:
                alike = zip(given, result, strict=True)
                if all(x.ndim == 4 and len(x) == 1 and x.shape == y.shape for x, y in alike):
                    before, after = ([array(x[0]) for x in both] for both in (given, result))
                    self._heard.append(RotatingCall((before[0], before[1]), (after[0], after[1])))
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
            storages = [one.untyped_storage().data_ptr() for one in tensors]
            self.reads = self.reads or self._positions in storages
        if name in _LOOKUPS:
            self._note(_tensors(args))
        result = func(*args, **(kwargs or {}))
        if name == "topk":
            self.experts.append(result.indices.detach().cpu().sort(-1).values)
        return result

    def _note(self, tensors: list[Any]) -> None:
        """Note the rows that an integer tensor looks up in a table of floats."""
        table = next((one for one in tensors if one.is_floating_point() and one.ndim == 2), None)
        indices = next((one for one in tensors if one.dtype in (torch.int64, torch.int32)), None)
        if table is not None and indices is not None:
            by_position = indices.untyped_storage().data_ptr() == self._positions
            name, learned = self._tables.get(table.data_ptr(), ("", False))
            if name or by_position:  # else of an intermediate result, such as the tokens of an expert
                self.rows[name] = learned, indices.cpu().tolist()


def _start(whole: Any, part: Array) -> int | None:
    """Return from which dim on those of each head are a part's; None if none are.

    Shapes: (h, s, d), (h or 1, s, r).
    """
    heads, rows, dims = part.shape
    if rows == whole.shape[-2] and heads in (1, whole.shape[0]) and dims <= whole.shape[-1]:
        for start in (0, int(whole.shape[-1]) - int(dims)):
            own = whole[..., start : start + dims]
            if bool((own == torch.from_numpy(part).to(own)).all()):
                return start
    return None


def _tensors(value: Any) -> list[Any]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def cause_of(base: Pass, shifted: Pass) -> str:
    """Return what of a model a shift changes: the last of these that is seen."""
    cause, both = "other", [(base.layers[n], layer) for n, layer in shifted.layers.items()]
    for a, b in both:  # RoPE leaves lengths; a temperature that grows with the position does not
        sides = ((a.q, b.q), (a.k, b.k))
        longer = [off(np.linalg.norm(y, axis=-1), np.linalg.norm(x, axis=-1)) > _ROUNDING for x, y in sides]
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
    """Return columns of the summary: logits at two places beside each other and float64's.

    Beside them: nonfinite, how many are nan or infinite, and logits_max. Numbers that need all are nan then.
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


def compare_decode(
    runner: Runner,
    ids: list[int],
    base: Pass,
    pairs: Mapping[int, RotatedPairs | None],
    allowed: float,
) -> Decoded | str:
    """Return how decode with a cache differs from one float64 pass; a reason where it is not compared.

    `generate` of transformers reads two rows, one padded on the left, and is made to choose known tokens, so
    that a plain pass over each row has the numbers that it should have. Positions are from the first that is
    no padding.

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
