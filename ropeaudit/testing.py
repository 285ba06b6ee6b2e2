"""For test suites: one line that fails when a rotation drifts by more than its recipe explains.

Letters: h heads, s positions, d head_dim, p pairs. Scores are scaled, before softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropeaudit import bounds, inputs, masks, recipes, reference
from ropeaudit.doubledouble import Array
from ropeaudit.errors import RopeAuditError, UsageError
from ropeaudit.formats import FloatArray, Format, parse, round_to
from ropeaudit.inputs import Inputs
from ropeaudit.measuring import scores as forming
from ropeaudit.recipes import Resolved
from ropeaudit.rope.rotation import split_pairs
from ropeaudit.rope.setting import Layout, RopeSetting
from ropeaudit.subjects import exchange, fitting, likeness, own, signatures
from ropeaudit.subjects.called import said
from ropeaudit.subjects.emulated import Emulated

RMS_FACTOR = 1.5  # of the predicted RMS; see `assert_shift_invariant`
_LIBRARY = 4  # ulps by which a library's pow, exp or division may miss a frequency
_MASK: masks.Mask = "full"


def assert_shift_invariant(
    function: Any = None,
    *,
    scores: Callable[..., Any] | None = None,
    dtype: str = "bf16",
    recipe: str = "meta",
    offsets: Sequence[int] = (0, 1000, 131072),
    head_dim: int = 128,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    layout: Layout = "half",
    scale: float | None = None,
    order: str | None = None,
    heads: int = 4,
    seq_len: int = 64,
    seed: int = 0,
) -> None:
    """Fail unless a rotation is as exact, at every offset, as the recipe that it claims to follow.

    function: f(x, positions), f(q, k, positions), f(x, cos, sin), f(q, k, cos, sin), an nn.Module or a class
    with such a call; see `ropeaudit shift --impl`. Scores are formed from what it returns in float64.
    scores: instead, f(q, k, positions) -> scaled scores (h, s, s) or (1, h, s, s) of q, k in `order`
    (bhsd if None), when the product is part of what is tested; `scale` is 1/sqrt(head_dim) by default.
    recipe: a name of `ropeaudit list recipes` or a .toml file. The same instance sees all offsets, in order,
    so that state left by one call shows in the next.

    Three tolerances, all from the recipe on the same q and k (gaussian, from `seed`), none tuned:
    largest drift <= the a-priori bound of `ropeaudit.bounds`, which correctly rounded arithmetic of the
    recipe cannot exceed; RMS drift <= 1.5 times the predicted RMS, because over settings, recipes and
    offsets measured RMS lies within 0.73 and 1.46 of it, while a stage that is narrower than it
    should be costs a factor of 2 at least; and each rotated pair stands where its position says, to
    within the roundings of the angle and of the rotation, frequencies being allowed 4 ulps of their
    library. The last is there because scores cannot see a position that is wrong for q and k alike.
    Raises: AssertionError: what was seen, what is allowed, where, and what it behaves like.
    RopeAuditError: an argument is wrong, or no known way to call the function works.
    """
    if (function is None) == (scores is None):
        raise UsageError("give a function that rotates, or scores=, a function that returns scores; not both")
    setting = RopeSetting.of(head_dim, rotary_dim, base, layout, scale)
    made = inputs.make("gaussian", heads, heads, seq_len, setting, seed)
    changes = {} if scores else {"accumulate": "fp64", "score": "fp64"}
    resolved = recipes.load(recipe).changed(changes).resolve(parse(dtype))
    test = _Test(resolved, recipe, setting, made, _exact(made, setting, resolved.input))
    for offset in offsets:
        if isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
            raise UsageError(f"offset {offset!r} is not a whole number of tokens")
    if scores is not None:
        _test_scores(test, scores, order or "bhsd", offsets)
    else:
        _test_rotation(test, function, order, offsets)


@dataclass(frozen=True, slots=True)
class _Test:
    """What is expected: a recipe on a setting, q and k, and their exact scores (h, s, s) with their error."""

    resolved: Resolved
    recipe: str
    setting: RopeSetting
    inputs: Inputs
    exact: tuple[Array, float]

    @property
    def dtype(self) -> Format:
        """The number format of q and k."""
        return self.resolved.dtype

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """q and k as the function gets them."""
        q, k = (round_to(x, self.resolved.input) for x in (self.inputs.q, self.inputs.k))
        return q, k

    def check_scores(self, found: FloatArray, offset: int, like: Callable[[], str]) -> None:
        """Raise AssertionError if scores drift further than allowed."""
        truth, error = self.exact
        drift = found.astype(np.float64) - truth
        allowed = bounds.bound(Emulated(self.resolved, self.setting), self.inputs, _MASK, offset)
        with np.errstate(invalid="ignore", over="ignore"):
            sizes = np.where(np.isfinite(drift), np.abs(drift), np.inf)
            rms = float(np.sqrt(np.mean(sizes**2)))
        worst = tuple(int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
        place = f"worst at head {worst[0]}, query {worst[1]}, key {worst[2]}"
        largest, most = float(sizes.max()), allowed.maximum + error
        if largest > most:
            self.fail(f"score drift {largest:.3g}", f"{most:.3g} (a-priori bound)", offset, place, like)
        if rms > RMS_FACTOR * allowed.rms + error:
            right = f"{RMS_FACTOR * allowed.rms:.3g} ({RMS_FACTOR:g} times the predicted RMS)"
            self.fail(f"RMS score drift {rms:.3g}", right, offset, place, like)

    def check_places(
        self, name: str, found: FloatArray, x: Array, offset: int, like: Callable[[], str]
    ) -> None:
        """Raise AssertionError if a rotated pair is not where its position says. Shapes: (h, s, d)."""
        at = np.arange(x.shape[1], dtype=np.int64) + offset
        right, allowed = fitting.rotated(x, at, self.setting), _allowed(self.resolved, self.setting, at)
        missed, sizes = _pairs(found - right, self.setting), _pairs(x, self.setting)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(np.isfinite(missed), missed / np.where(sizes > 0, sizes, 1.0), np.inf)
            over = relative / allowed
        worst = tuple(int(i) for i in np.unravel_index(int(over.argmax()), over.shape))
        if over[worst] > 1:
            place = f"worst at head {worst[0]}, position {worst[1] + offset}, pair {worst[2]} of {name}"
            seen, right_text = f"{relative[worst]:.3g} of a pair's length", f"{allowed[worst[1:]]:.3g}"
            self.fail(f"a rotated pair is off by {seen}", right_text, offset, place, like)

    def fail(self, seen: str, allowed: str, offset: int, place: str, like: Callable[[], str]) -> None:
        """Raise AssertionError."""
        behaves = like()
        raise AssertionError(
            f"{seen} in {self.dtype} at offset {offset}; allowed for recipe {self.recipe}: {allowed}; {place}"
            + (f"; behaves like: {behaves}" if behaves else "")
        )


def _test_rotation(test: _Test, function: Any, order: str | None, offsets: Sequence[int]) -> None:
    """Test a function that rotates: places first, for they say more, then scores."""
    name = getattr(function, "__name__", type(function).__name__)
    subject, setting = own.Own(name, function, order), test.setting
    subject.fit(setting)
    instance = function if own.is_module(function) else subject.made(setting)
    call = subject.turner(setting, test.dtype, instance)
    q, k = test.vectors()
    for offset in offsets:
        at = np.arange(test.inputs.seq_len, dtype=np.int64) + offset
        turned: list[FloatArray] = []
        for x in (q, k):
            try:
                answer = call(x, at)
            except RopeAuditError:
                raise
            except Exception as error:  # whatever it raises is a failure
                raise AssertionError(
                    f"{name} raises in {test.dtype} at offset {offset}: {said(error)}"
                ) from error
            for values in (answer.values, answer.keys):
                turned += [] if values is None else [_unpermuted(values[0], subject.fit(setting), setting)]
        half = len(turned) // 2

        def like(offset: int = offset, seen: FloatArray = turned[0]) -> str:
            return _like(test, seen, q, offset)

        for index, values in enumerate(turned):
            side, x = ("q", q) if index < half else ("k", k)
            if half == 2 and index % 2:
                side = f"{side} given as k"
            test.check_places(side, values, x.astype(np.float64), offset, like)
        test.check_scores(_products(turned[0], turned[-1], setting.scale), offset, like)


def _test_scores(test: _Test, function: Callable[..., Any], order: str, offsets: Sequence[int]) -> None:
    """Test a function that returns scores."""
    name = getattr(function, "__name__", type(function).__name__)
    q, k = test.vectors()
    heads, length = q.shape[:2]
    engine: exchange.Engine = "numpy" if signatures.wants_numpy(function) else "torch"
    for offset in offsets:
        at = np.arange(length, dtype=np.int64) + offset
        try:
            found = fitting.scored(function, q, k, at, test.dtype, order, engine).reshape(
                heads, length, length
            )
        except RopeAuditError:
            raise
        except Exception as error:  # whatever it raises is a failure
            raise AssertionError(
                f"{name} raises in {test.dtype} at offset {offset}: {said(error)}"
            ) from error

        def like(offset: int = offset, found: FloatArray = found) -> str:
            return _like_scores(test, found, offset)

        test.check_scores(found, offset, like)


def _like(test: _Test, found: FloatArray, x: FloatArray, offset: int) -> str:
    """What turned vectors look like: a fault, a recipe, or another base."""
    exact = x.astype(np.float64)
    if said_so := likeness.named(found, exact, test.setting, test.dtype, offset):
        return said_so
    value = likeness.base_of(found, exact, test.setting)
    return f"base {value:.3g}" if abs(value / test.setting.base - 1) > 0.01 else ""


def _like_scores(test: _Test, found: FloatArray, offset: int) -> str:
    """What scores look like: those of a narrower accumulator, or of vectors turned otherwise."""
    q, k = (x.astype(np.float64) for x in test.vectors())
    for fmt in ("fp16", "bf16"):
        one = recipes.load(test.recipe).changed({"accumulate": fmt}).resolve(test.dtype)
        subject = Emulated(one, test.setting)
        turned = zip(*(likeness.emulated(one, test.setting, x, offset) for x in (q, k)), strict=True)
        formed = np.stack([_formed(subject, a, b, test.setting.scale) for a, b in turned])
        sizes = [likeness.apart(other, test.exact[0]) for other in (found, formed)]
        if 0.5 < sizes[0] / sizes[1] < 2:
            return f"a {fmt} accumulator"
    both = np.concatenate([q, k])

    def seen(turned: FloatArray) -> FloatArray:
        return _products(turned[: len(q)], turned[len(q) :], test.setting.scale)

    return likeness.named(found, both, test.setting, test.dtype, offset, seen)


def _formed(subject: Emulated, q: FloatArray, k: FloatArray, scale: float) -> FloatArray:
    """Scores of a head as a recipe forms them. Shapes: (s, d) twice -> (s, s)."""
    left, right = forming.operand(q, subject), np.ascontiguousarray(forming.operand(k, subject).T)
    out = np.empty((len(q), len(k)), forming.tile_dtype(subject))
    forming.form(left, right, subject, scale, out)
    return out


def _exact(made: Inputs, setting: RopeSetting, fmt: Format) -> tuple[Array, float]:
    """Exact scores of q and k rounded to `fmt`, and their certified error. Shapes: -> (h, s, s)."""
    table = reference.distance_table(np.arange(made.seq_len, dtype=np.float64), setting)
    found, error = [], 0.0
    for head in range(made.heads):
        q, k = (round_to(x[head], fmt).astype(np.float64) for x in (made.q, made.k))
        left = reference.turned(q, table, setting, "extended", setting.scale)
        right = reference.turned(k, table, setting, "extended")
        shape = made.seq_len, made.seq_len
        high, low = reference.product(left, right, np.empty(shape), np.empty(shape))
        found.append(high if low is None else high + low)
        error = max(error, reference.certificate(left, right))
    largest = max(float(np.abs(one).max()) for one in found)
    return np.stack(found), error + made.q.shape[2] * 2.0**-52 * largest * 8


def _products(q: FloatArray, k: FloatArray, scale: float) -> FloatArray:
    """q·k of all pairs of positions, scaled, in float64. Shapes: (h, s, d) twice -> (h, s, s)."""
    left, right = q.astype(np.float64), k.astype(np.float64)
    formed: FloatArray = np.matmul(left, right.transpose(0, 2, 1)) * scale
    return formed


def _pairs(x: FloatArray, setting: RopeSetting) -> Array:
    """The lengths of the rotated pairs. Shapes: (h, s, d) -> (h, s, p)."""
    a, b = split_pairs(x, setting)
    return np.hypot(a.astype(np.float64), b.astype(np.float64))


def _unpermuted(x: FloatArray, fit: fitting.Fit, setting: RopeSetting) -> FloatArray:
    """The dims in the order in which they were given. Shapes: (h, s, d)."""
    if not fit.permuted:
        return x
    return x[..., np.argsort(fitting.half_split(setting.rotary_dim, setting.head_dim))]


def _allowed(one: Resolved, setting: RopeSetting, at: Any) -> Array:
    """Largest error of a rotated pair, over its length. Shapes: (s,) -> (s, p).

    Phase: the frequency's roundings, that of the position, the angle's. Then table, rotation, output: a
    complex product is off by at most sqrt(5) u (Brent, Percival, Zimmermann, Math. Comp. 76, 2007).
    """
    exact = at.astype(np.float64)
    moved = np.abs(round_to(exact, one.position).astype(np.float64) - exact)[:, None]
    theta = fitting.exact(setting).angles(np.array([1], dtype=np.int64))[0]
    steps = np.arange(setting.pairs) if one.recipe.frequency_form in ("recurrence", "step_power") else 0
    lost = one.frequency[1].unit_roundoff + (_LIBRARY + 2 * steps) * one.frequency[0].unit_roundoff
    lost = lost + sum(fmt.unit_roundoff for fmt in set(one.angle)) + 2.0**-50
    phase = moved * theta + np.abs(exact)[:, None] * theta * lost
    table = 2 * one.trig.unit_roundoff + (one.table.unit_roundoff if one.table else 0.0)
    turned = (1 + table * math.sqrt(2)) * (1 + math.sqrt(5) * one.rotation.unit_roundoff)
    stored = turned * (1 + one.output.unit_roundoff) - 1 + 2.0**-50
    allowed: Array = np.minimum(2.0, phase) + 1.01 * stored
    return allowed
