"""Checks that each pair, and its gradient, is rotated by its position, in long and short calls.

Long calls cover each position once, in blocks with one head, the first block also with several. Short calls
cover heads and batch elements at offsets where positions often break, on an instance that was called before;
one call has many of them. Code that takes k with q gets fewer heads of k in two calls. `mean_errors` looks
for errors below the allowed one. Rotating is linear, and its transpose rotates back: so a gradient may be
off by no more than a rotated vector.
Letters: h heads, s positions, d head_dim, p pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from ropeaudit import data
from ropeaudit.arithmetic.formats import FloatArray
from ropeaudit.arithmetic.rounding import round_to
from ropeaudit.audits.cases import straddling
from ropeaudit.conformance import mean_errors
from ropeaudit.conformance.code_under_test import HEADS, CodeUnderTest, calls_from, make_call
from ropeaudit.conformance.finding import PAIR, Finding, judged, not_applicable, noted, of_worst_pair
from ropeaudit.errors import ForeignError, UsageError, did, one_line
from ropeaudit.recognition import allowance, faults
from ropeaudit.recognition.diagnosis import Diagnosis
from ropeaudit.recognition.known_recipes import CalledBlock
from ropeaudit.recognition.rotation import rms
from ropeaudit.recognition.verification import BATCH_STEP, NOWHERE, Places
from ropeaudit.subjects import Positions, exact_rotation
from ropeaudit.subjects.calling import signatures
from ropeaudit.subjects.calling.code import Both, CallOf, Rotator
from ropeaudit.subjects.calling.foreign import ForeignRotator
from ropeaudit.subjects.calling.own_code import NoGradient, SwitchedOff, conjugated

BLOCK = 4096  # positions of a call
_SHORT = 64  # positions of a short call
_MANY_HEADS, _MANY_ROWS, _FEW = 33, 5, 16  # of a short call: more than warps and tiles hold; its positions
_FAR = 1000  # its offset: angles of several turns
_LONGER = 1024  # of a call backward: more than blocks of kernels hold
_FEWEST_BITS = 16  # of a dtype that autograd computes with
_DRAWN, _ROUNDED = 16, 0.01  # random vectors; the error, relative, that roundings to bfloat16 leave
_REMEDY = "compute what is returned from what is given, in torch and with gradients on"


def max_position(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that the code takes the last position; if not, find the end of its table.

    A table that ends silently shows in `all_positions`, as a wrong rotation.
    """
    last = code.up_to - 1
    reason = _exception_at(code, last)
    if not reason:
        yield judged("max-position", True, f"a token at position {last} is taken")
        return
    if _exception_at(code, 0):
        yield not_applicable("max-position", f"it takes no single token: {reason}")
        return
    taken, refused = 0, last
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if found := _exception_at(code, middle):
            refused, reason = middle, found
        else:
            taken = middle
    ends = f"a token at position {taken} is taken, one at {refused} is not: {reason}"
    sizes = {"measured": float(refused), "allowed": float(code.up_to), "unit": "positions"}
    detail = f"{ends}; --up-to {refused} asks for no more"
    yield judged("max-position", False, detail, where=f"position {refused}", **sizes)


def _exception_at(code: CodeUnderTest, position: int) -> str:
    """Return the exception of a new instance for one token at a position; empty if none."""
    try:
        make_call(code.rotator(), calls_from(code.batched_vectors(1), [position])[0])
    except ForeignError as error:
        return one_line(error)
    return ""


def all_positions(code: CodeUnderTest) -> Iterator[Finding]:
    """Check every position, block after block, on one instance."""
    calls = list[CallOf]()
    for heads, starts in (1, range(0, code.up_to, BLOCK)), (HEADS, range(1)):
        # of one batch element: other checks see more
        q, k = (x.astype(code.dtype.carrier)[None] for x in code.vectors(heads, BLOCK))
        k = k if heads > 1 or code.takes_keys or not code.own else q  # of x alone no one tells k from q
        for start in starts:
            at = np.arange(start, min(start + BLOCK, code.up_to), dtype=np.int64)
            first = q[:, :, : at.size]  # what was given once is judged once
            calls.append((first, first if k is q else k[:, :, : at.size], at))
    worst, wrong = code.judge_until_wrong(code.rotator(), calls)
    if not wrong:
        several = f"the first {min(BLOCK, code.up_to)} with {HEADS} heads"
        detail = f"all {code.up_to} positions, in calls of {BLOCK} with one head; {several}; q and k"
        if mean_errors.too_few(code):
            detail += "; not checked: means of errors, of so few"
        yield mean_errors.beyond_rounding(code) or of_worst_pair("rotation", detail, worst)
        return
    (q, _, at), code.shared.wrong_rotation = calls[wrong[0]], True
    heads, start, size = q.shape[1], int(at[0]), f"{min(BLOCK, code.up_to)} positions"
    size += f" with {heads} heads" * (heads > 1)
    detail = f"calls of {size}; the first that is wrong is that of positions {start} to {at[-1]}"
    if heads == 1 and start and worst.first > 0:  # in a block from 0 any base is right at first
        code.shared.first_wrong = worst.first
        detail += f", and position {worst.first} is the first that is wrong"
    yield of_worst_pair("rotation", detail, worst)


def short_sequences(code: CodeUnderTest) -> Iterator[Finding]:
    """Check short calls with heads and batch elements, where positions often break."""
    offsets = straddling(code.up_to, _SHORT)
    where = f"{HEADS} heads, 2 batch elements, {_SHORT} tokens at {len(offsets)} offsets up to {offsets[-1]}"
    yield _at_offsets("short-sequences", code, offsets, 0, where)


def negative_positions(code: CodeUnderTest) -> Iterator[Finding]:
    """Check calls at and across negative positions, if requested."""
    if not code.negative:
        return
    if code.setting.grid is not None:
        yield not_applicable("negative-positions", "positions have several axes")
        return
    if code.setting.scaling.depends_on_length:
        yield not_applicable(
            "negative-positions", f"{code.setting.scaling.kind} goes by the length of a call"
        )
        return
    offsets = [-_FAR, -_SHORT, -_SHORT // 2]
    where = f"{HEADS} heads, 2 batch elements, {_SHORT} tokens from {', '.join(map(str, offsets))} on"
    worst, _ = code.judge_until_wrong(code.rotator(), calls_from(code.random_batch(HEADS, _SHORT), offsets))
    yield of_worst_pair("negative-positions", where, worst)


def positions_per_row(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that batch elements with own positions are rotated by these."""
    if why := code.why_no_rows():
        yield not_applicable("positions-per-row", code.why_from_0() or why)
        return
    offsets = straddling(code.up_to - BATCH_STEP, _SHORT)
    where = f"2 batch elements, {BATCH_STEP} positions apart, at {len(offsets)} offsets up to {offsets[-1]}"
    yield _at_offsets("positions-per-row", code, offsets, BATCH_STEP, where)


def _at_offsets(
    check: str,
    code: CodeUnderTest,
    offsets: list[int],
    step: int,
    detail: str,
) -> Finding:
    """Judge calls with few heads at some offsets, with fewer heads of k, and with many heads.

    step: tokens between the positions of two batch elements; 0 where they share positions.
    """
    rotator, fewer = code.rotator(), HEADS // 2
    kinds = {detail: calls_from(code.random_batch(HEADS, _SHORT), offsets, step)}
    less = f"{fewer} heads of k to {HEADS} of q"
    if not step and code.takes_keys:
        ends = list(dict.fromkeys((offsets[0], offsets[-1])))
        kinds[less] = calls_from(code.random_batch(HEADS, _SHORT, fewer), ends)
    rows = _MANY_ROWS if "b" in code.order else 1
    heads = _MANY_HEADS if "h" in code.order else 1
    last = code.up_to - _FEW - step * (rows - 1)  # the last offset of such a call
    if rows * heads > 1 and last >= 0:
        many = f"{heads} heads, {rows} batch elements, {_FEW} tokens at offset {min(_FAR, last)}"
        kinds[many] = calls_from(code.random_batch(heads, _FEW, rows=rows), [min(_FAR, last)], step)
    worst, said = NOWHERE, list[str]()
    for words, calls in kinds.items():
        try:
            placed, wrong = code.judge_until_wrong(rotator, calls)
        except ForeignError as error:
            if words != less:
                raise
            said.append(f"with fewer heads of k than of q it {did(error)}")
            continue
        said.append(words)
        worst = max(worst, placed, key=lambda places: places.excess)
        if wrong:
            worst, code.shared.wrong_rotation = placed, True
            break
    return of_worst_pair(check, "; ".join(said), worst)


_DIMS, _QUARTERS = (64, 80, 96, 112, 128, 192, 256), (4, 1, 2, 3)  # rotary_dim in quarters of head_dim
_LENGTHS, _FIRSTS = (64, 1), (0, 1000)


def head_dims(code: CodeUnderTest) -> Iterator[Finding]:
    """Check each usual head_dim and rotary_dim.

    Partial rotation is tried where code takes tables or the number of dims. Sizes at which code raises are
    noted: an exception passes no wrong numbers on.
    """
    if not code.sizes:
        return
    if code.own is None or code.setting.scaling.kind in faults.BY_PAIR:
        why = "an adapter calls it" if code.own is None else "the scaling has a number for each pair"
        yield not_applicable("head-dims", why)
        return
    worst, right, refused = NOWHERE, list[str](), dict[str, list[str]]()
    called = code.own.fit(code.setting).convention
    told = called.takes("dim", *signatures.TABLES) or "dim" in code.own.told
    quarters = _QUARTERS if told else _QUARTERS[:1]
    up_to = min(code.up_to, _FIRSTS[-1] + _LENGTHS[0])
    for dims, part in itertools.product(_DIMS, quarters):
        setting = replace(code.setting, head_dim=dims, rotary_dim=dims * part // 4)
        sized = replace(code, setting=setting, up_to=up_to)
        name = f"{setting.rotary_dim} of {setting.head_dim}"
        calls = list[CallOf]()
        try:
            for length in _LENGTHS:
                firsts = [min(one, max(0, up_to - length)) for one in _FIRSTS]
                calls += calls_from(sized.batched_vectors(min(length, up_to)), firsts)
            places, wrong = sized.judge_until_wrong(sized.rotator(), calls)
        except (UsageError, ForeignError) as error:
            why = one_line(error) if isinstance(error, UsageError) else f"it {did(error)}"
            refused.setdefault(why, []).append(name)
            continue
        if wrong:
            detail = f"{name} dims rotate; right before: {', '.join(right) or 'none'}"
            yield of_worst_pair("head-dims", detail, places, where=f"{name} dims: {places.words}")
            return
        right.append(name)
        worst = max(worst, places, key=lambda places: places.excess)
    if right:
        yield of_worst_pair("head-dims", f"rotated dims of head_dim: {', '.join(right)}", worst)
    for reason, names in refused.items():
        yield noted("head-dims", f"{', '.join(names)} dims are refused, and not judged: {reason}")


_NAME = "frequency-switch"
_TOKENS = 64  # before the border, and behind it
_AWAY = 8  # tokens from the border to where a short call ends: code may be off by one there
_NEARER = 0.5  # of the distance to the frequencies of the other length


def follows_length(code: CodeUnderTest) -> bool:
    """Return whether frequencies follow the length of each call, by two calls.

    Both begin with the same tokens, and one is longer than the border: it must rotate them differently, and
    at least one call must be near the frequencies for its own length. False where a call raises.
    """
    border = code.setting.scaling.length_before or 0
    asked = code.setting.scaling.depends_on_length and 0 < border < code.up_to
    if not asked or code.tested.refusal(code.setting, code.dtype):
        return False
    try:
        at, (given, short, long) = _around_border(code, border, border - min(_AWAY, border // 2))
    except ForeignError:
        return False
    lengths = int(at[-1]) + 1, min(border + _TOKENS, code.up_to)
    expected = [exact_rotation.rotated(given, at, code.setting.for_positions(length)) for length in lengths]
    near = [[rms(one - exact) for exact in expected] for one in (short, long)]
    own = [near[0][0] < _NEARER * near[0][1], near[1][1] < _NEARER * near[1][0]]
    return any(own) and rms(long - short) > _NEARER * rms(expected[1] - expected[0])


def _around_border(code: CodeUnderTest, border: int, end: int) -> tuple[Positions, list[FloatArray]]:
    """Return the tokens before `end`; k of them, and as calls up to `end` and past the border rotate it."""
    first, last = max(0, end - _TOKENS), min(border + _TOKENS, code.up_to)
    (q, k), at = code.batched_vectors(last - first), np.arange(first, last, dtype=np.int64)
    some = slice(0, end - first)
    short = code.rotator().rotate_both(q[:, :, some], k[:, :, some], at[some])[1]
    long = code.rotator().rotate_both(q, k, at)[1]
    return at[some], [x[:, :, some].astype(np.float64) for x in (k, short, long)]


def frequency_switch(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that frequencies change exactly at the border, and note how far cached keys then are off.

    Nothing for code with the frequencies of one length.
    """
    border = code.setting.scaling.length_before
    if not code.each_call or not border:
        return
    ends = [end for end in (border - 1, border, border + 1, border) if 0 < end <= code.up_to]
    sizes = itertools.product(ends, (_TOKENS, 1))
    calls = [calls_from(code.batched_vectors(min(end, most)), [max(0, end - most)])[0] for end, most in sizes]
    rotator = code.rotator()
    worst, wrong = code.judge_until_wrong(rotator, calls)
    if wrong:
        worst = _with_border_cause(code, make_call(rotator, calls[wrong[0]]), worst, border)
    told = f"calls of {', '.join(f'{end:,}' for end in ends)} positions"
    yield of_worst_pair(_NAME, f"{told}: up to {_TOKENS} tokens at their ends, and the last alone", worst)
    if wrong:
        return
    at, (given, before, behind) = _around_border(code, border, border)
    apart, size = (np.abs(exact_rotation.complex_pairs(x, code.setting)) for x in (behind - before, given))
    most = float((apart / np.maximum(size, 1e-30)).max())
    then = " and each further position changes them again" * (code.setting.scaling.kind == "dynamic")
    words = {"border": border, "then": then, "tokens": at.size, "most": most}
    detail = data.table("checks.toml")["switch"]["cached"].format(**words)
    yield noted(_NAME, detail, measured=most, unit=PAIR, where=f"from position {border:,} on")


def _with_border_cause(code: CodeUnderTest, block: CalledBlock, worst: Places, border: int) -> Places:
    """Diagnose wrong pairs that have longrope's divisors for the other side of the border."""
    own = code.setting_at(block.at)
    both = (code.setting.for_positions(length) for length in (border, border + 1))
    other = next(one for one in both if one.length != own.length)
    sides = zip(block.given, block.rotated, strict=True)
    over = [allowance.excess(x, y, block.rows(), other, code.rule) for x, y in sides]
    found = faults.other_scaling(own, other)
    if own.scaling.kind != "longrope" or not all((one <= 1).all() for one in over):
        return worst
    return replace(worst, diagnosis=replace(found, certainty="in this call"))


def gradient(code: CodeUnderTest) -> Iterator[Finding]:
    """Check that gradients are rotated back, at offsets where positions often break."""
    why = "it returns cos and sin, through which no gradient has to flow" if code.composed else ""
    if code.dtype.storage_bits < _FEWEST_BITS:
        why = f"autograd does not compute in {code.dtype}"
    if why or (rotator := backward(code)) is None:
        yield not_applicable("gradient", why or "it takes and returns no torch tensors")
        return
    length = min(_SHORT, code.up_to)
    offsets = straddling(code.up_to, length)
    calls = calls_from(code.random_batch(HEADS, length), offsets)
    longer = min(_LONGER, code.up_to)
    calls += calls_from(code.random_batch(1, longer), [0])
    # what a vector is used for more than once is summed in its own dtype
    rule = code.rule.recipe.changed({"rotation": "model", "output": "model"}).resolve(code.dtype)

    detail = f"{HEADS} heads, {length} tokens at {len(offsets)} offsets up to {offsets[-1]}"
    detail += f", one with {longer} from 0; random upstream"

    def new_rotator() -> Rotator:
        return cast(Rotator, backward(code))

    try:
        worst, wrong = code.judge_until_wrong(
            rotator, calls, new_rotator=new_rotator, rule=rule, searches=None
        )
    except SwitchedOff as error:
        yield not_applicable("gradient", str(error))
    except NoGradient as error:
        yield Finding("gradient", "fail", str(error), remedy=_REMEDY)
    except ForeignError as error:
        if "numpy() on Tensor that requires grad" in str(error):
            yield not_applicable("gradient", "it goes through NumPy, which autograd does not see")
        else:
            yield Finding("gradient", "fail", f"it {did(error)}", where=f"offset {code.shared.first}")
    else:
        if rotator.in_place:
            detail += "; it changes its input where it lies: it was given copies of the leaves"
        cause = None
        if wrong and worst.diagnosis:
            cause = _gradient_cause(code, rotator, worst.diagnosis, calls[wrong[0] :])
        yield of_worst_pair("gradient", detail, worst, diagnosis=cause)


def backward(code: CodeUnderTest) -> ForeignRotator | None:
    """Return a rotator that calls the backward pass of a new instance; None without torch."""
    fit = code.tested.fit(code.setting)
    torch = fit.convention.engine == "torch" if fit else code.tested.differentiable
    return cast(ForeignRotator, code.rotator()).backward() if torch else None


def _gradient_cause(
    code: CodeUnderTest, rotator: Rotator, behaves: Diagnosis, calls: Sequence[CallOf]
) -> Diagnosis | None:
    """Diagnose a wrong gradient. calls: from the first wrong one on."""
    found, (q, k, at) = of_gradient(behaves), calls[0]
    try:
        results = rotator.rotate_both(q, k, at)
        forward, _ = code.judge_until_wrong(code.rotator(), calls, 1)
    except ForeignError:  # it then explains nothing
        return found
    if zero := [name for name, x in zip("qk", results, strict=True) if not np.any(x)]:
        return of_gradient(Diagnosis("gradient-zero", {"vectors": tuple(zero)}))
    if forward.excess > 1:  # then no rounding of the backward pass is the reason
        also = forward.diagnosis == behaves or _fits_forward(code, rotator, (q, k), at)
        return forward.diagnosis if also else found
    if found.explains:
        return found
    narrow = allowance.narrower_format(code.setting_at(at), code.dtype, (q, k), results, at)
    return of_gradient(narrow) if narrow else found


def _fits_forward(code: CodeUnderTest, rotator: Rotator, upstream: Both, at: Positions) -> bool:
    """Return whether the gradient is that of the wrong forward pass: <A u, g> = <u, Aᵀ g>."""
    forward = code.rotator()
    random = np.random.default_rng([code.seed, 3])
    off = list[float]()
    left, right = (conjugated(g, code.setting) for g in upstream)
    gradients = [conjugated(x, code.setting) for x in rotator.rotate_both(left, right, at)]
    for _ in range(_DRAWN):
        u, v = (
            round_to(random.standard_normal(x.shape), code.dtype).astype(code.dtype.carrier) for x in upstream
        )
        results = forward.rotate_both(u, v, at)
        off.append(_dot(results, upstream) - _dot((u, v), gradients))
    return bool(np.sqrt(np.mean(np.square(off))) <= _ROUNDED * np.sqrt(_dot(upstream, upstream)))


def _dot(left: Sequence[FloatArray], right: Sequence[FloatArray]) -> float:
    """Return the sum of the products of all numbers, in float64."""
    sides = zip(left, right, strict=True)
    return sum(float(np.vdot(x.astype(np.float64), y.astype(np.float64))) for x, y in sides)


def of_gradient(found: Diagnosis) -> Diagnosis:
    """Mark a diagnosis as one of the gradient."""
    return replace(
        found,
        where=replace(found.where, gradient=True),
        also=tuple(map(of_gradient, found.also)),
        alternatives=tuple(map(of_gradient, found.alternatives)),
    )
