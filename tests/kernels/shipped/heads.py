"""Kernels that read or place vectors wrongly: heads, strides, rows, tokens; what is right stands beside each.

Half-split, x (b, h, s, d), base 10,000, computed in float32, unless they say otherwise.
Letters: b batch, h heads, g heads of k, s positions, t tokens of all sequences, d head_dim, p pairs.
"""

import torch
from rotations import PART, angles, half, turned


def memory(x):
    """All that lies in the buffer of x, as a kernel sees it that is given a pointer."""
    return torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)


def read(x, sizes, strides, begin=0):
    """What lies at these strides from the first number of x on; behind the buffer the last number."""
    at, flat = torch.tensor(x.storage_offset() + begin), memory(x)
    for size, stride in zip(sizes, strides, strict=True):
        at = at[..., None] + torch.arange(size) * stride
    return flat[at.clamp(max=flat.numel() - 1)]


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
