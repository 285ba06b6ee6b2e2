"""Assertions for test suites: `assert_rope` and `assert_shift_invariant`.

Letters: h heads, s positions, d head_dim, p pairs. Scores are scaled, before softmax.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import numpy as np

from ropeaudit import bounds, recipes
from ropeaudit.arithmetic.formats import FloatArray, Format, parse
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits import arguments
from ropeaudit.audits.arguments import Names, RopeArguments
from ropeaudit.audits.cases import check_positions
from ropeaudit.bounds import Bound
from ropeaudit.conformance.environments import DEFAULT
from ropeaudit.conformance.finding import JUDGED
from ropeaudit.conformance.score_drift import RMS_FACTOR, MeasuredDrift
from ropeaudit.engine import measure
from ropeaudit.engine.measure import CertifiedScores
from ropeaudit.engine.plan import CellStatistics, Plan
from ropeaudit.errors import ForeignError, UsageError, one_line
from ropeaudit.features.check import code_target, report
from ropeaudit.features.check.checked import Checked, CheckOptions, Target
from ropeaudit.inputs import masks
from ropeaudit.inputs import qk as inputs
from ropeaudit.inputs.qk import Inputs
from ropeaudit.recipes import Resolved
from ropeaudit.recognition import verification, wording
from ropeaudit.recognition.diagnosis import Diagnosis, Where, codes
from ropeaudit.recognition.verification import GivenVectors
from ropeaudit.reference import exact_scores
from ropeaudit.rope import scaling as scalings
from ropeaudit.rope.axes import Layout
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.runtime import chance
from ropeaudit.subjects.calling import conventions, environments
from ropeaudit.subjects.calling.arrays import Engine
from ropeaudit.subjects.calling.code import Called
from ropeaudit.subjects.calling.foreign import ForeignOwn, ForeignRotator, in_process
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.emulated import Emulated

__tracebackhide__ = True  # pytest shows a failure at the line of the test
_UNEXPLAINED = Diagnosis("unexplained")
_STEP, _EVERY = 2**14, 2**18 + 2**14  # positions of a call, and of all calls between the offsets
_QUICK = 4096  # positions that `assert_rope` looks at
_MASK: masks.Mask = "full"
_EXACT_SUMS = {"accumulate": "fp64", "score": "fp64"}


class WrongRope(AssertionError):
    """Raised by `assert_rope`; diagnosis has codes of `ropeaudit list diagnoses`.

    worst: the largest error ÷ allowed; nan without a number.
    """

    def __init__(self, message: str, diagnosis: str = "", worst: float = math.nan) -> None:
        """Store the codes: `a+b` are two faults, `a|b` alternatives; empty if code raised."""
        super().__init__(message)
        self.diagnosis, self.worst = diagnosis, worst


class NotShiftInvariant(WrongRope):
    """Raised by `assert_shift_invariant`."""


@arguments.public
def assert_rope(
    function: Any,
    dtypes: Names = "bf16",
    *,
    full: bool = False,
    up_to: int | None = None,
    recipe: str | None = None,
    order: str | None = None,
    seed: int = 0,
    device: str | None = None,
    under: Names = (),
    head_dims: bool = False,
    **rope: Unpack[RopeArguments],
) -> list[Checked]:
    """Raise WrongRope unless code passes the checks of `ropeaudit check`: called as servers and trainers do.

    function: as in `assert_shift_invariant`; one that takes k and returns q alone is warned of, for its k is
    not seen.
    dtypes: number formats of q and k.
    full: every position that the setting serves (131,072 by default), all environments, compiled, and any
    three sizes, strides and kinds of positions together; else 4,096 positions and any two of those.
    up_to: number of positions instead.
    recipe: the one that it claims to follow, by default what right code in the dtype explains is allowed.
    order: of its axes, such as "bhsd".
    under: environments it must be right in too, such as "tf32".
    head_dims: heads of other sizes too.
    rope: the setting, as in `ropeaudit.check`.
    Raises: WrongRope, an AssertionError: each check that fails, with what it takes, and what it behaves like;
    its `diagnosis` holds the codes. RopeAuditError: an argument is wrong, or no known way to call it works.
    Returns: the checks, none of which failed.
    """
    own = in_process(OwnCode(_name(function), function, order, device=device))
    wanted = arguments.as_list(under) or (DEFAULT if full else ("none",))
    most = _QUICK if up_to is None and not full else up_to
    options = CheckOptions(
        tuple(arguments.formats(dtypes)),
        most,
        recipe,
        order,
        seed,
        thorough=full,
        head_dims=head_dims,
        device=device,
        environments=wanted,
    )
    if up_to is not None and (isinstance(up_to, bool) or not isinstance(up_to, int)):
        raise UsageError(f"up_to {up_to!r} is not a whole number of positions; try 4096")
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed {seed!r} is not a whole number from 0 up")
    if not options.dtypes:
        raise UsageError("there is no dtype to test in; try dtypes='bf16'")
    code_target.refuse_bad_options(options)
    [case] = arguments.cases_from(None, rope)
    if (case.model, case.config, case.axes, case.mrope, case.scaling) == (None,) * 5:
        usual = case.setting(1)  # asked for, as nobody reads a warning of another base in a test that passes
        case = replace(case, base=usual.base, rotary_dim=usual.rotary_dim)
    findings: list[str] = []
    with chance.put_back():
        target = Target(own.name, "code", case, options, findings.extend)
        results = list(code_target.checks_of_code(own, target))
    for check in results:
        if check.finding.check == "keys":
            warnings.warn(f"{own.name}: {check.finding.detail}", stacklevel=2)
    failed = [check for check in results if check.finding.failed]
    if failed:
        found = dict.fromkeys(codes(check.finding.diagnosis) for check in failed if check.finding.diagnosis)
        raise WrongRope(report.text(results, case, findings), "+".join(found), worst(results))
    return results


def worst(results: Iterable[Checked]) -> float:
    """Return the largest error ÷ allowed of checks of code; nan if none has a number."""
    ratios = [
        (check.finding.measured / check.finding.allowed, check.finding.failed)
        for check in results
        if check.finding.status in JUDGED
        and check.finding.allowed > 0
        and not math.isnan(check.finding.measured)
    ]
    # a failed count of positions is smaller than the needed one
    return max(
        (1 / ratio if failed and 0 < ratio < 1 else ratio for ratio, failed in ratios), default=math.nan
    )


def assert_shift_invariant(
    function: Any = None,
    *,
    scores: Callable[..., Any] | None = None,
    dtype: str = "bf16",
    recipe: str = "meta",
    offsets: Iterable[int] = (0, 1000, 131072),
    head_dim: int = 128,
    rotary_dim: int | None = None,
    base: float = 10000.0,
    scaling: str = "default",
    layout: Layout = "half",
    scale: float | None = None,
    order: str | None = None,
    heads: int = 4,
    seq_len: int = 64,
    seed: int = 0,
    whole: bool = True,
    device: str | None = None,
    under: str | Iterable[str] = (),
) -> None:
    """Fail unless a rotation is as exact, at every offset, as the recipe that it claims to follow.

    function: f(x, positions), f(q, k, positions), f(x, cos, sin), f(q, k, cos, sin), an nn.Module or a class
    with such a call; see `ropeaudit shift --impl`. Scores are formed from what it returns in float64.
    scores: instead, f(q, k, positions) -> scaled scores (h, s, s) or (1, h, s, s) of q, k in `order` (bhsd if
    None), when the product is part of what is tested; `scale` is 1/sqrt(head_dim) by default.
    scaling: as --scaling takes it, such as "llama3:factor=8,low=1,high=4,original=8192"; frequencies that
    depend on the length are those for the last position tested, at all offsets (dynamic: up to `maximum` they
    are those without it).
    recipe: a name of `ropeaudit list recipes` or a .toml file. The same instance sees all offsets, in order,
    so that state left by one call shows in the next.
    device: where it is called: "cpu", "cuda", "cuda:1", "mps"; by default where a module lies, else the CPU.
    A module that lies elsewhere is copied, and its copy moved.
    under: environments in which the rotation is tested too, held to the same recipe: autocast:bf16,
    autocast:fp16, tf32, default-dtype:bf16, default-dtype:fp16, compile, or all; of a module to:bf16 and
    to:fp16 (moved by .to). Clean calls come first: what a function cached in them is used there, and passes;
    a class is built anew for each, and `ropeaudit check FILE:NAME` begins each in a new process. What calls
    change of random numbers, of the default dtype and of whether gradients are on is put back.

    Three tolerances, all from the recipe on the same q and k (gaussian, from `seed`), none tuned:
    largest drift <= the a-priori bound of `ropeaudit.bounds`, which correctly rounded arithmetic of the
    recipe cannot exceed; RMS drift <= 1.5 times the predicted RMS, because measured RMS drift is 0.8 to 1.3
    times the predicted RMS over settings, recipes and offsets (docs/method.md says where it is less), while a
    stage that is narrower than it should be costs a factor of 2 at least; and each rotated pair of q and k
    stands where its position says (`ropeaudit.recognition.allowance`): scores cannot see a position
    that is wrong for both alike.
    Calls are plain ones, of a few heads and rows: `assert_rope` makes those of servers.
    Places are checked of all heads and of two batch elements, whose positions differ where the function takes
    a row of them for each; and, unless whole=False, at every position between the offsets (up to 262,144 of
    them, one head), so that tables that end and positions that restart are seen wherever they do.
    Raises: NotShiftInvariant, an AssertionError: what was seen, what is allowed, where, and what it behaves
    like; its `diagnosis` holds the codes. RopeAuditError: an argument is wrong, or no known way to call the
    function works.
    """
    if (function is None) == (scores is None):
        raise UsageError("give a function that rotates, or scores=, a function that returns scores; not both")
    offsets = list(offsets)
    if not offsets:
        raise UsageError("there are no offsets to test; try offsets=(0, 1000, 131072)")
    check_positions(offsets, seq_len)
    scaled = scalings.parse(scaling)
    length = scaled.length_for(int(max(offsets)) + seq_len)
    setting = RopeSetting.of(head_dim, rotary_dim, base, layout, scale, scaled, length)
    built = inputs.make("gaussian", heads, heads, seq_len, setting, seed)
    resolved = _resolved(recipe, {} if scores else _EXACT_SUMS, parse(dtype))
    q, k = (round_to(x, resolved.input).astype(np.float64) for x in (built.q, built.k))
    test = _Test(_name(scores or function), resolved, recipe, setting, replace(built, q=q, k=k))
    chosen = environments.chosen([under] if isinstance(under, str) else under)
    if scores is not None:
        if len(chosen) > 1:
            raise UsageError("under goes with a function that rotates, not with scores=; leave it out")
        _test_scores(test, scores, order or "bhsd", offsets, device)
        return
    subject = in_process(OwnCode(test.name, function, order, device=device, copied=False))
    for environment in chosen:
        try:
            with chance.put_back():
                plain = environment is chosen[0]
                _test_rotation(test, subject if plain else subject.under(environment), offsets, whole)
        except NotShiftInvariant as error:
            if plain:
                raise
            label = environment.label(subject.device.name)
            raise NotShiftInvariant(f"under {label}: {error}", error.diagnosis) from error


@dataclass(frozen=True, slots=True)
class _Test:
    """The recipe that code must follow at a setting, and q and k in its input format.

    recipe: its name as given.
    """

    name: str
    resolved: Resolved
    recipe: str
    setting: RopeSetting
    inputs: Inputs

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """Return q and k as the function gets them."""
        q, k = (round_to(x, self.resolved.input) for x in (self.inputs.q, self.inputs.k))
        return q, k

    def limit(self, recipe: Resolved, offset: int) -> Bound:
        """Return bound and prediction of the drift of a recipe's scores."""
        return bounds.bound(Emulated(recipe, self.setting), self.inputs, _MASK, offset)

    def check_drift(
        self, cell: CellStatistics, offset: int, like: Callable[[MeasuredDrift], Diagnosis]
    ) -> None:
        """Raise NotShiftInvariant if scores drift more than allowed. like: returns the diagnosis."""
        seen = MeasuredDrift(cell, "", offset, self.limit(self.resolved, offset))
        place = "worst at head {}, query {}, key {}".format(*seen.place)
        if seen.over_bound:
            right = f"{seen.most:.3g} (a-priori bound)"
            self.fail(f"score drift {seen.largest:.3g}", right, offset, place, like(seen))
        if seen.over_prediction:
            right = f"{RMS_FACTOR * seen.limit.rms:.3g} ({RMS_FACTOR:g} times the predicted RMS)"
            self.fail(f"RMS score drift {seen.rms:.3g}", right, offset, place, like(seen))

    def check_places(
        self, rotator: ForeignRotator, offset: int, by_batch: bool = False, length: int | None = None
    ) -> None:
        """Raise NotShiftInvariant if a pair is rotated wrongly.

        by_batch: whether calls have positions of each batch element too. length: positions of a call with
        one head; None for all of q and k.
        """
        q, k = self.vectors()
        if length is not None:
            q, k = (np.resize(x[:1], (1, length, self.setting.head_dim)) for x in (q, k))
        seen = verification.check(
            rotator,
            self.setting,
            self.resolved.dtype,
            GivenVectors(q, k, np.arange(q.shape[1], dtype=np.int64)),
            offset,
            new_rotator=lambda: rotator.code.rotator(self.setting, self.resolved.dtype),
            rule=self.resolved,
            by_batch=by_batch,
        )
        if not seen.excess <= 1:
            place = (
                f"worst at head {seen.head} of batch element {seen.batch}, position {seen.position}, "
                f"pair {seen.pair} of {seen.side}"
            )
            result = f"a rotated pair is off by {seen.excess * seen.allowed:.3g} of its length"
            self.fail(result, f"{seen.allowed:.3g}", offset, place, seen.diagnosis or _UNEXPLAINED)

    def fail(
        self,
        seen: str,
        allowed: str,
        offset: int,
        place: str,
        found: Diagnosis,
    ) -> None:
        """Raise NotShiftInvariant. found: the diagnosis."""
        begin = "behaves like: " if found.explains else ""
        right = f"allowed for recipe {self.recipe}: {allowed}"
        raise NotShiftInvariant(
            f"{seen} in {self.resolved.dtype} at offset {offset}; {right}; {place}"
            f"; {begin}{wording.sentence(found)} [{codes(found)}]",
            codes(found),
        )

    @contextlib.contextmanager
    def raising(self, offset: int, kind: type[Exception] = ForeignError) -> Iterator[None]:
        """Within the block, turn exceptions of own code into failures. kind: of exceptions."""
        try:
            yield
        except kind as error:
            raised = f"{self.name} raises in {self.resolved.dtype} at offset {offset}: {one_line(error)}"
            raise NotShiftInvariant(raised) from error


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _test_rotation(test: _Test, subject: ForeignOwn, offsets: Sequence[int], whole: bool) -> None:
    if reason := subject.refuses(test.setting, test.resolved.dtype):
        raise UsageError(reason)
    rotator = subject.rotator(test.setting, test.resolved.dtype)
    called = Called(subject, test.setting, test.resolved.dtype, rotator)
    called.together(test.inputs.q, test.inputs.k)
    for offset in offsets:
        with test.raising(offset):
            test.check_places(rotator, offset, bool(subject.fit(test.setting).rows))
            cell = measure.measure(Plan([called], [[offset]], test.inputs, test.setting, _MASK), 1)
        test.check_drift(cell[0, offset], offset, lambda seen: _UNEXPLAINED)
    first, last = min(offsets), max(offsets) + test.inputs.seq_len
    for start in range(first, last, _STEP) if whole and last - first <= _EVERY else ():
        with test.raising(start):
            test.check_places(rotator, start, length=min(_STEP, last - start))


def _test_scores(
    test: _Test, function: Callable[..., Any], order: str, offsets: Sequence[int], device: str | None
) -> None:
    called, (q, k) = OwnCode(test.name, function, device=device), test.vectors()
    exact = list(measure.exact(test.inputs, test.setting, test.resolved.input))
    heads, length = q.shape[:2]
    for offset in offsets:
        at = np.arange(length, dtype=np.int64) + offset
        with test.raising(offset, Exception):  # whatever it raises is a failure
            results = conventions.call_scores(
                function, q, k, at, test.resolved.dtype, order, cast(Engine, called.engine), called.device
            ).reshape(heads, length, length)
        seen = measure.of_scores(results, exact)
        test.check_drift(seen, offset, functools.partial(_diagnose_scores, test, exact, results))


def _diagnose_scores(
    test: _Test, exact: Sequence[CertifiedScores], results: FloatArray, seen: MeasuredDrift
) -> Diagnosis:
    """Return the diagnosis of wrong scores."""
    if not math.isfinite(seen.rms):
        return Diagnosis("nonfinite")
    right = np.stack([exact_scores.joined(*scores) for scores, _ in exact])
    sizes = np.sqrt(np.mean((results.astype(np.float64) - right) ** 2, axis=(1, 2)))
    off = np.flatnonzero(sizes > max(10 * float(np.median(sizes)), 1e-12))
    if 0 < off.size * 2 <= sizes.size:  # of some heads, where most are right
        return Diagnosis("unexplained", where=Where(heads=tuple(off.tolist()), of_heads=len(results)))
    for fmt in ("fp16", "bf16"):
        narrow = _resolved(test.recipe, {"accumulate": fmt}, test.resolved.dtype)
        if 0.5 < seen.rms / test.limit(narrow, seen.offset).rms < 2:
            return Diagnosis("narrow-accumulator", {"format": str(narrow.accumulate)})
    return _UNEXPLAINED


def _resolved(recipe: str, changes: Mapping[str, str], dtype: Format) -> Resolved:
    return recipes.load(recipe).changed(changes).resolve(dtype)
