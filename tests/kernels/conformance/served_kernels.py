"""Kernels that are right in plain calls, and wrong in some call that servers make; half-split pairs."""

import torch


def rotated(x, positions):
    """Rotate x (b, h, s, d) by positions (s,) or (b, s), in float32 with one rounding at the end."""
    d = x.shape[-1]
    frequencies = 1 / 10000 ** (torch.arange(0, d, 2).float() / d)
    angles = positions[..., None].float() * frequencies
    if angles.ndim == 3:
        angles = angles[:, None]
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def right(q, k, positions):
    return rotated(q, positions), rotated(k, positions)


def right_alone(x, positions):
    return rotated(x, positions)


def right_in_place(q, k, positions):
    q.copy_(rotated(q, positions))
    k.copy_(rotated(k, positions))


def right_tables(q, k, cos, sin):
    def apply(x):
        a, b = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]

    return apply(q.float()).to(q.dtype), apply(k.float()).to(k.dtype)


class right_partial:  # listed by its name, as functions are
    """Rotates the first `dim` of the dims."""

    def __init__(self, dim):
        self.dim = dim

    def __call__(self, x, positions):
        return torch.cat([rotated(x[..., : self.dim], positions), x[..., self.dim :]], -1)


def right_offset(x, offset):
    return rotated(x, torch.arange(x.shape[-2]) + offset)


def right_flat(x, positions):
    """Of one head: (s, d)."""
    return rotated(x[None, None], positions)[0, 0]


def right_by_head(x, positions):
    """In the order (s, b, h, d)."""
    return rotated(x.permute(1, 2, 0, 3), positions).permute(2, 0, 1, 3)


def one_row_decodes(q, k, positions):
    if q.shape[-2] == 1 and positions.ndim == 2:
        positions = positions[:1].expand_as(positions)
    return right(q, k, positions)


def counts(q, k, positions):
    return right(q, k, positions[..., :1] + torch.arange(positions.shape[-1]))


def one_key_head_is_left(q, k, positions):
    return rotated(q, positions), k.clone() if k.shape[1] == 1 else rotated(k, positions)


def large_groups_are_late(q, k, positions):
    late = q.shape[1] // k.shape[1] > 4
    return rotated(q, positions), rotated(k, positions + 1 if late else positions)


def heads_from_40_are_left(q, k, positions):
    result = rotated(q, positions)
    result[:, 40:] = q[:, 40:]
    return result, rotated(k, positions)


def tokens_from_4096_are_left(q, k, positions):
    result = rotated(q, positions)
    result[:, :, 4096:] = q[:, :, 4096:]
    return result, rotated(k, positions)


def strides_of_q_for_k(q, k, positions):
    if q.shape[1] == k.shape[1]:
        k = torch.as_strided(k, k.shape, q.stride(), k.storage_offset())
    return right(q, k, positions)


def writes_behind(q, k, positions):
    result = right(q, k, positions)
    if not q.is_contiguous() and 0 not in q.stride():
        torch.as_strided(q, (q.shape[-1] * 2,), (1,), q.storage_offset())[q.shape[-1] :] = 1
    return result


def narrow_int32(q, k, positions):
    if positions.dtype == torch.int32:
        positions = positions.to(torch.int16)
    return right(q, k, positions)


def rows_from_32_are_left(q, k, positions):
    result = rotated(q, positions)
    result[32:] = q[32:]
    return result, rotated(k, positions)


def left_where(some):
    """Code that leaves q as it is in the calls of which some(q, positions, joint) is true."""

    def rotate(q, k, positions):
        joint = k.storage_offset() == q.storage_offset() + q.shape[1] * q.shape[3]  # of one projection
        return q.clone() if some(q, positions, joint) else rotated(q, positions), rotated(k, positions)

    return rotate


def _decodes(q, positions):
    return len(q) == 33 and q.shape[2] == 1 and positions.ndim == 2


large_decode_is_left = left_where(lambda q, at, joint: _decodes(q, at) and not joint)
large_decode_as_servers_have_it_is_left = left_where(
    lambda q, at, joint: _decodes(q, at) and joint and at.dtype == torch.int32
)
few_tokens_of_each_row_are_left = left_where(
    lambda q, at, joint: q.shape[::2] == (5, 3) and at.ndim == 2 and joint
)
pieces_of_one_prompt_are_left = left_where(
    lambda q, at, joint: q.shape[::2] == (1, 64) and joint and bool((at.diff() == 1).all())
)


_BUFFERS: dict = {}


def shares_its_output(x, positions):
    result = rotated(x, positions)
    buffer = _BUFFERS.setdefault((x.numel(), x.dtype), torch.empty(x.numel(), dtype=x.dtype))
    return buffer.copy_(result.flatten()).view(x.shape)


_NOW: dict = {}


def keeps_positions(x, positions):
    _NOW["positions"] = positions
    x = x.float()
    return rotated(x, _NOW["positions"]).to(torch.float32)


def q_alone(q, k, positions):
    return rotated(q, positions)


def overwrites_q_of_one_token(q, k, positions):
    results = right(q, k, positions)
    if q.shape[-2] == 1 and len(q) > 1:
        q.copy_(results[0])
    return results
