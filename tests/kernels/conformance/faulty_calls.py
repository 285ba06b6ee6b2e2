"""Kernels that go wrong in one way of calling alone; half-split, f(x, positions) or f(q, k, positions)."""

import functools
import threading

import numpy as np
import torch


def inverse(d, base=10000.0):
    return base ** (-torch.arange(0, d, 2).float() / d)


def right(x, positions):
    angles = positions.float()[..., None] * inverse(x.shape[-1])
    if positions.ndim == 2:
        angles = angles[:, None]
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def right_numpy(x, positions):
    theta = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = positions[:, None] * theta
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def float16_inside(x, positions):
    return right(x.half().to(x.dtype), positions)


def bfloat16_keys(q, k, positions):
    return right(q, positions), right(k.bfloat16().to(k.dtype), positions)


def decodes_one_late(x, positions):
    return right(x, positions - 1 if positions.numel() == 1 else positions)


def one_token_unrotated(q, k, positions):
    return right(q, positions), k if k.shape[-2] == 1 else right(k, positions)


class Counting(torch.nn.Module):
    """Counts tokens once it saw a long call, as code with a cache of keys does."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x, positions):
        if positions.numel() > 256:
            self.seen = int(positions[-1]) + 1
        elif positions.numel() == 1 and self.seen:
            positions, self.seen = torch.tensor([self.seen]), self.seen + 1
        return right(x, positions)


def short_piece_from_0(x, positions):
    return right(x, positions - positions[0] if 1 < len(positions) < 60 else positions)


def second_row_late(x, positions):
    result = right(x, positions)
    if x.shape[0] == 1:
        return right(x, positions + 1)
    return result


def last_row_late(x, positions):
    """As a kernel whose last row takes the positions of the next: in a batch of one it is right."""
    result = right(x, positions)
    if x.shape[0] > 1:
        result[-1:] = right(x[-1:], positions + 1)
    return result


def last_head_late(x, positions):
    result = right(x, positions)
    if x.ndim == 4:
        result[:, -1:] = right(x[:, -1:], positions + 1)
    return result


def ignores_strides(x, positions):
    """Reads memory as if it lay in one piece, from where x begins."""
    lying = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return right(lying.clone(), positions)


def ignores_strides_numpy(x, positions):
    if x.base is not None and not x.flags.c_contiguous:
        root = x.base.reshape(-1)
        x = root[: x.size].reshape(x.shape) if root.size >= x.size else x
    return right_numpy(x, positions)


def wants_contiguous(x, positions):
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return right(x, positions)


def compiled_otherwise(x, positions):
    if torch.compiler.is_compiling():
        positions = positions + 1
    return right(x, positions)


class KeepsDtype(torch.nn.Module):
    """Keeps the table of its first call, in the dtype of that call."""

    def __init__(self):
        super().__init__()
        self.theta = None

    def forward(self, x, positions):
        if self.theta is None:
            self.theta = inverse(x.shape[-1]).to(x.dtype).float()
        angles = positions.float()[:, None] * self.theta
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).to(
            x.dtype
        )


class KeepsLength(torch.nn.Module):
    """Takes the positions of its last call where the length is the same."""

    def __init__(self):
        super().__init__()
        self.positions = None

    def forward(self, x, positions):
        if self.positions is None or len(self.positions) != len(positions):
            self.positions = positions
        return right(x, self.positions)


class KeepsTensor(torch.nn.Module):
    """Keeps what it computed for a tensor of positions, and takes that where the tensor is filled anew."""

    def __init__(self):
        super().__init__()
        self.given = self.positions = None

    def forward(self, x, positions):
        if positions is not self.given:
            self.given, self.positions = positions, positions.clone()
        return right(x, self.positions)


def changes_input(x, positions):
    result = right(x, positions)
    x[..., 0] = 0
    return result


def changes_keys(q, k, positions):
    result = right(q, positions), right(k, positions)
    k.mul_(2)
    return result


def in_place(x, positions):
    x.copy_(right(x, positions))


def in_place_returned(x, positions):
    return x.copy_(right(x, positions))


def returns_float32(x, positions):
    return right(x.float(), positions)


def returns_bfloat16(x, positions):
    return right(x, positions).bfloat16()


def keys_in_float32(q, k, positions):
    return right(q, positions), right(k.float(), positions)


def table_of_5000(x, positions):
    angles = (torch.arange(5000).float()[:, None] * inverse(x.shape[-1]))[positions]
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def no_single_token(x, positions):
    if len(positions) == 1:
        raise IndexError("too few positions")
    return right(x, positions)


class Locked:
    """Right, and cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, x, positions):
        with self.lock:
            return right(x, positions)


def table_of_20000(x, positions):
    angles = (torch.arange(20000).float()[:, None] * inverse(x.shape[-1]))[positions]
    if positions.ndim == 2:
        angles = angles[:, None]
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def breaks_the_graph(x, positions):
    """Right, with a number that a compiler does not know."""
    angles = torch.arange(int(positions.max()) + 1).float()[:, None] * inverse(x.shape[-1])
    angles = angles[positions]
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@functools.lru_cache
def cached_inverse(d):
    return inverse(d)


def warned_of(x, positions):
    """Right, with a cache that a compiler warns of."""
    angles = positions.float()[:, None] * cached_inverse(x.shape[-1])
    a, b = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def third_row_late(x, positions):
    """Right in the first two rows of a batch."""
    return torch.cat([right(x[:2], positions), right(x[2:], positions - 1)])


def heads_behind_8_late(x, positions):
    """As a kernel whose grid ends with the eighth head."""
    return torch.cat([right(x[:, :8], positions), right(x[:, 8:], positions - 1)], 1)


def third_row_of_positions(x, positions):
    """Takes the positions of two rows, those of the second for all that follow."""
    if positions.ndim == 2:
        positions = torch.cat([positions[:2], positions[1:2].expand(max(0, len(positions) - 2), -1)])
        positions = positions[: len(x)]
    return right(x, positions)


def position_70_late(x, positions):
    return right(x, positions - (positions == 70).long())


def changes_positions(x, positions):
    positions += 1
    return right(x, positions - 1)


def changes_positions_numpy(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    result = right_numpy(x, positions)
    positions[...] = 0
    return result


def by_tables(q, k, cos, sin):
    """As callers give tables in the dtype of q: what it returns has the widest dtype of what it is given."""
    half = q.shape[-1] // 2
    return tuple(x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin for x in (q, k))


def by_tables_float32(q, k, cos, sin):
    return by_tables(q.float(), k.float(), cos, sin)


def changes_tables(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    result = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    sin.neg_()
    return result


def in_place_aliased(x, positions):
    """Overwrites the first half before the second is computed: float() is no copy of float32."""
    angles = positions.float()[:, None] * inverse(x.shape[-1])
    cos, sin = angles.cos(), angles.sin()
    a, b = (half.float() for half in x.chunk(2, -1))
    half = x.shape[-1] // 2
    x[..., :half] = a * cos - b * sin
    x[..., half:] = b * cos + a * sin
    return x


def half_only(x, positions):
    """As a kernel that is compiled for 16 bits alone."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError("expected bfloat16 or float16")
    return right(x, positions)


def float16_only_late(x, positions):
    if x.dtype != torch.float16:
        raise TypeError("expected float16")
    return right(x, positions + 1)


class EvalLate(torch.nn.Module):
    """Right while it trains."""

    def forward(self, x, positions):
        return right(x, positions if self.training else positions - 1)


class TrainingLate(torch.nn.Module):
    """Right in eval mode, in which it runs when it is served."""

    def forward(self, x, positions):
        return right(x, positions - 1 if self.training else positions)


training_late = TrainingLate()


def right_when_compiled(x, positions):
    return right(x, positions if torch.compiler.is_compiling() else positions + 1)


def wrong_in_two_ways(x, positions):
    return right(x, positions + (2 if torch.compiler.is_compiling() else 1))


class StaleTable(torch.nn.Module):
    """cos and sin are computed anew only where the number of tokens differs from that of the last call."""

    def __init__(self):
        super().__init__()
        self.positions = torch.zeros(0)

    def forward(self, x, positions):
        if positions.shape != self.positions.shape:
            self.positions = positions
        return right(x, self.positions)


def rotated_by(x, positions, base):
    angles = positions.double()[:, None] * inverse(x.shape[-1], base.double()[:, None])
    a, b = x.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def longer(x, positions):
    return (1.01 * rotated_by(x, positions, torch.full(positions.shape, 1e4))).to(x.dtype)


def base_10001(x, positions):
    return rotated_by(x, positions, torch.full(positions.shape, 10001.0)).to(x.dtype)


def base_10100_from_9000(x, positions):
    return rotated_by(x, positions, torch.where(positions < 9000, 1e4, 10100.0)).to(x.dtype)


def base_10100_from_8192(x, positions):
    return rotated_by(x, positions, torch.where(positions < 8192, 1e4, 10100.0)).to(x.dtype)


TABLES = {}


def keeps_dtype(x, positions):
    """The table has the dtype of the first x that the process rotates, and so it stays."""
    if x.shape[-1] not in TABLES:
        angles = torch.arange(32768)[:, None].float() * inverse(x.shape[-1])
        TABLES[x.shape[-1]] = [table.to(x.dtype) for table in (angles.cos(), angles.sin())]
    cos, sin = (table[positions].float() for table in TABLES[x.shape[-1]])
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


LAST = []


def stale_positions(x, positions):
    """Positions are those of the last call, where there are as many."""
    if not LAST or LAST[0].shape != positions.shape:
        LAST[:] = [positions]
    return right(x, LAST[0])


def second_head_late_in_long_calls(x, positions):
    result = right(x, positions)
    if len(positions) > 2048 and x.shape[1] > 1:
        result[:, 1] = right(x, positions - 1)[:, 1]
    return result


def k_late_from_401(q, k, positions):
    return right(q, positions), right(k, positions + (positions > 400))


def q_of_another_base_and_k_late_from_401(q, k, positions):
    angles = positions.float()[..., None] * inverse(q.shape[-1], 20000.0)
    (a, b), cos, sin = q.float().chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(q.dtype), right(
        k, positions + (positions > 400)
    )


def q_late_below_64_and_k_from_401(q, k, positions):
    return right(q, positions + (positions < 64)), right(k, positions + 2 * (positions > 400))


def q_decodes_late_and_k_is_late(q, k, positions):
    late = 1 if positions.shape[-1] == 1 else 0
    return right(q, positions + late), right(k, positions + 2)
