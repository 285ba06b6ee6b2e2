"""Kernels: q, k and positions in, a wrong rotation out; what is right stands beside each.

Half-split, x (b, h, s, d), base 10,000, computed in float32, unless they say otherwise.
Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import torch

from shipped.bugs import Bug

PART = 16  # rotated dims of 32, where a head is rotated in part


def inverse(dim, base=10000.0):
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def angles(positions, dim):
    """(..., s) -> (..., s, p)."""
    return positions[..., None].float() * inverse(dim)


def turned(first, second, angle):
    """The numbers of each pair after its rotation, in float32."""
    first, second, cos, sin = first.float(), second.float(), angle.cos(), angle.sin()
    return first * cos - second * sin, second * cos + first * sin


def half(x, angle, dim=None):
    """x (..., s, d) with its first dims rotated, all where dim is None; angle (..., s, p)."""
    rotated, rest = x[..., :dim], x[..., x.shape[-1] if dim is None else dim :]
    return torch.cat((*turned(*rotated.chunk(2, dim=-1), angle), rest), dim=-1).to(x.dtype)


def interleaved(x, angle):
    pairs = turned(x[..., ::2], x[..., 1::2], angle)
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


def memory(x):
    """All that lies in the buffer of x, as a kernel sees it that is given a pointer."""
    return torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def read(x, sizes, strides, begin=0):
    """What lies at these strides from the first number of x on; behind the buffer the last number."""
    at, flat = torch.tensor(x.storage_offset() + begin), memory(x)
    for size, stride in zip(sizes, strides, strict=True):
        at = at[..., None] + torch.arange(size) * stride
    return flat[at.clamp(max=flat.numel() - 1)]


# which dims


def _cached(positions, dim, width):
    """cos and sin (s, width / 2) as a kernel reads them that takes rows of [cos | sin] to be that wide."""
    angle = angles(torch.arange(int(positions.max()) + 2), dim)
    rows = torch.cat((angle.cos(), angle.sin()), dim=-1)
    starts = positions[:, None] * dim + torch.arange(width)
    return rows.flatten()[starts].chunk(2, dim=-1)


def _by_cache(q, k, positions, width):
    """q (t, h, d), k (t, g, d), flat tokens."""
    cos, sin = (table[:, None] for table in _cached(positions, PART, width))
    results = []
    for x in (q, k):
        first, second = x[..., :width].float().chunk(2, dim=-1)
        rotated = first * cos - second * sin, second * cos + first * sin
        results.append(torch.cat((*rotated, x[..., width:]), dim=-1).to(x.dtype))
    return results


def k1(q, k, positions):
    """rotary_dim is not handed on: rows of 16 are read as if they were of head_dim."""
    return _by_cache(q, k, positions, q.shape[-1])


def k1_right(q, k, positions):
    return _by_cache(q, k, positions, PART)


def k2(q, k, positions):
    """Of each four heads that share a warp, all but the first get a partner from lanes that are off."""
    angle = angles(positions, PART)[:, None]
    results = []
    for x in (q, k):
        right = half(x, angle, PART)
        if x.shape[0] * x.shape[1] >= 10240:
            first, second = x[..., : PART // 2], x[..., PART // 2 : PART]
            alone = turned(first, first, angle)[0], turned(second, second, angle)[1]
            wrong = torch.cat((*alone, x[..., PART:]), dim=-1).to(x.dtype)
            packed = torch.arange(x.shape[1]) % 4 > 0
            right = torch.where(packed[:, None], wrong, right)
        results.append(right)
    return results


def k2_right(q, k, positions):
    return [half(x, angles(positions, PART)[:, None], PART) for x in (q, k)]


def _of_width(q, k, positions, dim):
    """q (t, h, d), k (t, g, d): dims i and i + dim / 2 of each head, wherever that lies."""
    results = []
    for x in (q, k):
        out, angle = x.flatten(1).clone(), angles(positions, dim)
        for head in range(x.shape[1]):
            begin = head * x.shape[2]
            both = [torch.arange(begin + side, begin + side + dim // 2) for side in (0, dim // 2)]
            first, second = (at.clamp(max=out.shape[1] - 1) for at in both)
            pairs = turned(out[:, first], out[:, second], angle)
            out = out.index_copy(1, first, pairs[0].to(x.dtype)).index_copy(1, second, pairs[1].to(x.dtype))
        results.append(out.view(x.shape))
    return results


def k3(q, k, positions):
    """rotary_dim is 48 and a head has 32: the rotation goes on into the next head."""
    return _of_width(q, k, positions, 48)


def k3_right(q, k, positions):
    """What is more than the head is refused, or cut."""
    return _of_width(q, k, positions, min(48, q.shape[-1]))


def k12(x, positions):
    """dims is 31: dims // 2 pairs of 15, with the exponents of 31."""
    dims = 31
    angle = positions[:, None].float() / 10000.0 ** (torch.arange(0, dims - 1, 2) / dims)
    return half(x, angle, dims // 2 * 2)


def k12_right(x, positions):
    """An odd number of dims, none and more than there are, are refused; so all of them are asked for."""
    dims = 32
    if dims % 2 or not 0 < dims <= x.shape[-1]:
        raise ValueError(f"dims {dims} of {x.shape[-1]}")
    return half(x, angles(positions, dims), dims)


def _padded(x, positions, begin):
    """x rotated by rows of [cos | sin] that lie one behind the other; sin begins behind so many numbers."""
    d = x.shape[-1]
    angle = angles(torch.arange(int(positions.max()) + 2), d)
    flat = torch.cat((angle.cos(), angle.sin()), dim=-1).flatten()
    at = positions[:, None] * d + torch.arange(d // 2)
    cos, sin = flat[at], flat[at + begin]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def k13(x, positions):
    """sin is read behind half of the next power of two, not behind half of the dims."""
    return _padded(x, positions, (1 << (x.shape[-1] - 1).bit_length()) // 2)


def k13_right(x, positions):
    return _padded(x, positions, x.shape[-1] // 2)


def k23(x, positions):
    """The shift of a cache of keys turns the whole head, of which 16 dims are rotated."""
    return half(x, angles(positions, x.shape[-1]))


def k23_right(x, positions):
    return half(x, angles(positions, PART), PART)


def k32(x, positions):
    """The 4 pairs that turn stand beside each other: dims i and i + 4, not i and i + 16."""
    return half(x, angles(positions, x.shape[-1])[:, :4], 8)


def k32_right(x, positions):
    angle = angles(positions, x.shape[-1])
    angle[:, 4:] = 0.0
    return half(x, angle)


def _pairs(x, positions, dim):
    """A rotation of so many dims: rounded up to pairs, with the exponents of dim."""
    pairs = (dim + 1) // 2
    angle = positions[:, None].float() / 10000.0 ** (torch.arange(pairs) * 2 / dim)
    return half(x, angle, 2 * pairs)


def k33(x, positions):
    """33 dims: 17 pairs are rotated, which are 34."""
    return _pairs(x, positions, 33)


def k33_right(x, positions):
    return _pairs(x, positions, 33 // 2 * 2)


def k34(x, positions):
    """Lanes of three numbers, of which the path writes two: it was written for lanes of two."""
    right = half(x, angles(positions, x.shape[-1]))
    return torch.where(torch.arange(x.shape[-1]) % 3 == 2, x, right)


def k34_right(x, positions):
    return half(x, angles(positions, x.shape[-1]))


# which pairs


class _Rotary(torch.nn.Module):
    neox = None

    def forward(self, q, k, positions):
        """positions (s,)."""
        return [self.rotate(x, angles(positions, x.shape[-1])) for x in (q, k)]


class K14(_Rotary):
    """Whatever is_neox_style says, halves are rotated."""

    def __init__(self, is_neox_style=False):
        super().__init__()
        self.rotate = half


class K14Right(_Rotary):
    def __init__(self, is_neox_style=False):
        super().__init__()
        self.rotate = half if is_neox_style else interleaved


def in_halves(q, k, positions):
    return [half(x, angles(positions, x.shape[-1])) for x in (q, k)]


def in_neighbours(q, k, positions):
    return [interleaved(x, angles(positions, x.shape[-1])) for x in (q, k)]


# q, k, heads and strides; q (t, h, d), k (t, g, d), flat tokens


def _split(q, k, positions):
    """The halves of q and k (t, h, p), and the angles."""
    return (*q.chunk(2, dim=-1), *k.chunk(2, dim=-1), angles(positions, q.shape[-1])[:, None])


def k4(q, k, positions):
    """The second half of q comes of k, the first one of k comes of q."""
    q0, q1, k0, k1, angle = _split(q, k, positions)
    group = q.shape[1] // k.shape[1]
    of_k = [x.repeat_interleave(group, dim=1) for x in (k0, k1)]
    new_q = turned(q0, q1, angle)[0], turned(*of_k, angle)[1]
    new_k = turned(q0[:, ::group], q1[:, ::group], angle)[0], turned(k0, k1, angle)[1]
    return [torch.cat(pair, dim=-1).to(q.dtype) for pair in (new_q, new_k)]


def k4_right(q, k, positions):
    return [half(x, angles(positions, x.shape[-1])[:, None]) for x in (q, k)]


def k5(q, k, positions):
    """k is taken to have as many heads as q: those behind its own are of the next tokens, rotated again."""
    angle = angles(positions, q.shape[-1])
    rows = k.reshape(-1, k.shape[-1])
    for head in range(q.shape[1]):
        at = torch.arange(len(k)) * k.shape[1] + head
        at = at[at < len(rows)]
        rows = rows.index_copy(0, at, half(rows[at], angle[: len(at)]))
    return half(q, angle[:, None]), rows.view(k.shape)


def k6(q, k, positions):
    """The second half of k is sought at the strides of q's tokens."""
    p = q.shape[-1] // 2
    q0, q1, k0, _, angle = _split(q, k, positions)
    second = read(k, (*k.shape[:2], p), (q.stride(0), k.stride(1), 1), p)
    rotated = turned(q0, q1, angle), turned(k0, second, angle)
    return [torch.cat(pair, dim=-1).to(q.dtype) for pair in rotated]


def k21(q, k, positions):
    """The heads of k are sought at the strides of q's heads."""
    misread = read(k, k.shape, (k.stride(0), q.stride(1), 1))
    return [half(x, angles(positions, x.shape[-1])[:, None]) for x in (q, misread)]


def _in_place(x, positions, tokens):
    """Rotate so many tokens where they lie, as far as the buffer goes."""
    room = (memory(x).numel() - x.storage_offset() - x[0].numel()) // x.stride(0) + 1
    rows = torch.as_strided(x, (min(tokens, room), *x.shape[1:]), x.stride(), x.storage_offset())
    rows.copy_(half(rows, angles(positions.flatten()[: len(rows)], x.shape[-1])[:, None]))


def k20(q, k, positions):
    """positions become [3, s], for time, height and width; all 3 s numbers are counted as tokens."""
    axes = positions.expand(3, -1)
    for x in (q, k):
        _in_place(x, axes, axes.numel())


def k20_right(q, k, positions):
    axes = positions.expand(3, -1)
    for x in (q, k):
        _in_place(x, axes, axes.shape[-1])


# which position


def _starts(positions):
    """Where sequences of a packed batch begin."""
    breaks = torch.nonzero(positions.diff() != 1).flatten() + 1
    return torch.cat((torch.zeros(1, dtype=torch.long), breaks))


def _in_sequence(q, k, positions, behind):
    """q (t, h, d): the sequence of a token is that whose start is the last of those read up to it."""
    at, starts = torch.arange(len(positions)), _starts(positions)
    read_starts = torch.cat((starts, behind[: len(positions) - len(starts)]))
    number = (read_starts <= at[:, None]).sum(dim=-1) - 1
    first = starts[number.clamp(max=len(starts) - 1)]
    angle = angles(positions[first] + at - first, q.shape[-1])[:, None]
    return half(q, angle), half(k, angle)


def k7(q, k, positions):
    """As many starts are read as there are tokens: those of an earlier batch lie behind, and count."""
    return _in_sequence(q, k, positions, torch.tensor([5, 12, 40]))


def k7_right(q, k, positions):
    return _in_sequence(q, k, positions, torch.zeros(0, dtype=torch.long))


def k8(x, offset=0):
    """A token alone takes a path whose grid has heads and dims, and no batch: the first row is rotated."""
    angle = angles(torch.arange(offset, offset + x.shape[-2]), x.shape[-1])
    if x.shape[-2] == 1 and x.is_contiguous():
        return torch.cat((half(x[:1], angle), x[1:]))
    return half(x, angle)


def from_offset(x, offset=0):
    return half(x, angles(torch.arange(offset, offset + x.shape[-2]), x.shape[-1]))


def k9(x, offset=0):
    """x (b h, s, d): the same path takes it for one matrix, the first."""
    angle = angles(torch.arange(offset, offset + x.shape[-2]), x.shape[-1])
    if x.shape[-2] == 1 and x.is_contiguous():
        return torch.cat((half(x[:1], angle), x[1:]))
    return half(x, angle)


def k11(x, positions):
    """What lies in one piece is read with the strides of heads and tokens exchanged."""
    if x.is_contiguous():
        _, h, s, d = x.shape
        x = read(x, x.shape, (h * s * d, d, h * d, 1))
    return half(x, angles(positions, x.shape[-1]))


def one_array(x, positions):
    return half(x, angles(positions, x.shape[-1]))


def k22(x, positions):
    """16 dims are rotated where they lie; the others are copied as if the source lay in one piece."""
    _, h, s, d = x.shape
    rest = read(x, x.shape, (h * s * d, s * d, d, 1))[..., PART:]
    rotated = half(x[..., :PART], angles(positions, PART))
    return torch.cat((rotated, rest), dim=-1)


def k27(q, k, positions):
    """q, k (b, h, s, d): the token is the row divided by the heads, as before they were transposed."""
    results = []
    for x in (q, k):
        rows = torch.arange(x.shape[1] * x.shape[2]).view(x.shape[1:3])
        results.append(half(x, angles(positions[rows // x.shape[1]], x.shape[-1])))
    return results


def k29(x, positions):
    """x (b, s, h, d): the axis before the last is taken for the sequence."""
    at = positions[0] + torch.arange(x.shape[-2])
    return half(x, angles(at, x.shape[-1]))


def k29_right(x, positions):
    """x (b, s, h, d)."""
    return half(x, angles(positions, x.shape[-1])[:, None])


def k36(x, positions):
    """cos and sin lie in a tile of 16 rows; tokens behind them are turned by what tiles follow."""
    rows = torch.arange(len(positions)) % 16
    return half(x, angles(positions[rows], x.shape[-1]))


# the rotation itself


def _with_factor(x, cos, sin, minus):
    cos, sin = (table[..., : x.shape[-1] // 2].float() for table in (cos, sin))
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos + minus * second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def k37(x, cos, sin):
    """-1 is written in bfloat16 and read in the format of cos and sin, float32: two of them make a number."""
    minus = torch.full((2,), -1.0, dtype=torch.bfloat16).view(torch.float32)
    return _with_factor(x, cos, sin, minus)


def k37_right(x, cos, sin):
    return _with_factor(x, cos, sin, -1.0)


FLAT, SOME = {"order": "shd"}, {"rotary_dim": PART}
BUGS = [
    Bug(
        "K1",
        "vllm#43676",
        "rotary_dim was not handed to the fused kernel, which took head_dim: it rotated every dim, with "
        "cos and sin from behind the end of each row.",
        "partial rotation on the fused path",
        k1,
        k1_right,
        options=FLAT | SOME,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K2",
        "vllm#51049",
        "A shuffle of all lanes stood where only rotating lanes came: heads behind the first of a warp got "
        "a partner at random.",
        "partial half-split rotation, several heads a warp, 10,240 heads of tokens and more",
        k2,
        k2_right,
        options=FLAT | SOME | {"up_to": 4096},
        caught=("unexplained",),
    ),
    Bug(
        "K3",
        "flashinfer#4349",
        "Nothing refused a rotary_dim larger than head_dim: the rotation went on into the next head.",
        "rotary_dim > head_dim",
        k3,
        k3_right,
        options=FLAT,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K4",
        "ColossalAI#6428",
        "The second half of q was computed from k, and the first half of k from q.",
        "always",
        k4,
        k4_right,
        options=FLAT,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K5",
        "ColossalAI#6444",
        "The number of heads of k was read from q.",
        "fewer heads of k than of q",
        k5,
        k4_right,
        options=FLAT,
        caught=("another-position",),
    ),
    Bug(
        "K6",
        "ColossalAI#6444",
        "The second half of k was addressed by the stride of q's tokens.",
        "k with other strides than q: fewer heads, or a view of packed qkv",
        k6,
        k4_right,
        options=FLAT,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K7",
        "ColossalAI#6444",
        "Starts of sequences were loaded for as many as there are tokens, past the end of their buffer.",
        "packed sequences",
        k7,
        k7_right,
        options=FLAT,
        caught=("another-position",),
    ),
    Bug(
        "K8",
        "mlx#3494",
        "The grid for a single token left the batch out: later rows were never written.",
        "one token, several rows, one offset for all",
        k8,
        from_offset,
        caught=("no-rotation",),
    ),
    Bug(
        "K9",
        "mlx-rs#359",
        "The same path took a folded batch for one matrix: all but the first stayed as they were.",
        "one token, batch and heads in one axis",
        k9,
        from_offset,
        options={"order": "hsd"},
        caught=("no-rotation",),
    ),
    Bug(
        "K11",
        "mlx#1340",
        "A wrong stride was taken for input that lies in one piece (which, is not told: here that of heads "
        "and tokens).",
        "input in one piece",
        k11,
        one_array,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K12",
        "mlx#3218",
        "The number of rotated dims was not checked: an odd one lost a dim and kept its exponents.",
        "dims odd, 0, or more than the head has",
        k12,
        k12_right,
        caught=("not-a-rotation",),
    ),
    Bug(
        "K13",
        "vllm-ascend#15688",
        "sin was read from half of the padded width on, and lies behind half of the dims.",
        "a rotary_dim that is no power of two",
        k13,
        k13_right,
        options={"head_dim": 24},
        caught=("not-a-rotation",),
    ),
    Bug(
        "K14",
        "vllm#49290",
        "The kernel for M-RoPE paired halves whatever is_neox_style said.",
        "is_neox_style false",
        K14,
        K14Right,
        options={"layout": "interleaved"},
        caught=("wrong-layout",),
    ),
    Bug(
        "K16",
        "vllm#941",
        "GPT-J's neighbours were rotated as halves.",
        "a checkpoint with interleaved pairs",
        in_halves,
        in_neighbours,
        options={"layout": "interleaved"},
        caught=("wrong-layout",),
    ),
    Bug(
        "K17",
        "llama.cpp#13260",
        "PLaMo's halves were rotated as neighbours.",
        "a checkpoint with half-split pairs",
        in_neighbours,
        in_halves,
        options={"layout": "half"},
        caught=("wrong-layout",),
    ),
    Bug(
        "K20",
        "sgl-kernel-xpu#202",
        "Tokens were counted by all numbers of positions, of which M-RoPE has three a token: what lies "
        "behind q and k was rotated.",
        "positions [3, s]",
        k20,
        k20_right,
        options=FLAT,
        caught=("another-position",),
    ),
    Bug(
        "K21",
        "sglang#20559",
        "The stride of q's heads was taken for k's.",
        "heads of k that lie closer together than those of q, as in MLA",
        k21,
        k4_right,
        options=FLAT,
        caught=("unexplained",),
    ),
    Bug(
        "K22",
        "llama.cpp#14580",
        "A partial rotation of a view came out wrong (why, is not told: here the other dims are copied as "
        "if it lay in one piece).",
        "a part of the dims, and a source that is not in one piece",
        k22,
        k23_right,
        options=SOME,
        caught=("unexplained",),
    ),
    Bug(
        "K23",
        "llama.cpp#4889",
        "The shift of a key cache rotated the whole head of a model that rotates a part.",
        "a context shift with partial rotation",
        k23,
        k23_right,
        options=SOME,
        caught=("partial-rotation",),
    ),
    Bug(
        "K27",
        "DeepSpeed#2782",
        "The token of a row was computed as if heads and tokens had not been transposed yet.",
        "after [b, h, s, d]",
        k27,
        in_halves,
        caught=("unexplained",),
    ),
    Bug(
        "K29",
        "xformers#841",
        "The axis before the last was taken for the sequence, and is that of heads.",
        "[b, s, h, d]",
        k29,
        k29_right,
        options={"order": "bshd"},
        caught=("rotated-by-head",),
    ),
    Bug(
        "K32",
        "coreai-models#66",
        "The rotated pairs were taken from a block of neighbouring dims; dims i and i + head_dim / 2 belong "
        "together.",
        "proportional partial rotation",
        k32,
        k32_right,
        options={"scaling": "proportional:fraction=0.25"},
        caught=("pairs-in-block",),
    ),
    Bug(
        "K33",
        "fla#1177",
        "An odd number of dims was accepted: 33 made 17 pairs, one dim more than there are.",
        "odd rotary_dim",
        k33,
        k33_right,
        options={"head_dim": 40, "rotary_dim": 32},
        caught=("not-a-rotation",),
    ),
    Bug(
        "K34",
        "FlyDSL#1113",
        "Lanes of three numbers went through a path that writes two.",
        "head_dim 96 on 32 lanes",
        k34,
        k34_right,
        options={"head_dim": 24},
        caught=("pairs-left-out",),
    ),
    Bug(
        "K35",
        "Liger#803",
        "The address of a row was a product in 32 bits, which wrapped.",
        "more than 2^31 numbers in one tensor",
        why_not="It takes 2^31 numbers, 4 GB in bfloat16; with a narrower integer it would be another bug.",
    ),
    Bug(
        "K36",
        "tt-metal#43790",
        "Rows of cos and sin were addressed past the end of their 16, for a q that is padded to 128 (here "
        "they come round again).",
        "more tokens than cos and sin have rows",
        k36,
        one_array,
        caught=("restart",),
    ),
    Bug(
        "K37",
        "tt-metal#51284",
        "The -1 of the rotation was unpacked in the format of cos and sin, and is stored in another.",
        "cos and sin that are not bfloat16",
        k37,
        k37_right,
        caught=("check:rotation",),
        why_not="narrow-output is named as the cause, for what it is off by is within roundings of bfloat16.",
    ),
]
