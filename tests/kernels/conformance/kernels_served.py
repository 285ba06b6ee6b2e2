"""Kernels in the signatures of servers and trainers, and faults that only their calls show; base 10,000.

Half-split, q (b, h, s, d), k (b, g, s, d), computed in float32, unless they say otherwise.
Letters: b batch, h heads, g heads of k, s positions, t tokens of all sequences, d head_dim, p pairs.
"""

from dataclasses import dataclass

import torch
from kernels_faulty import by_tables, inverse, rotated
from torch import nn


def cache(rows, d):
    """cos and sin beside each other (rows, d)."""
    angles = torch.arange(rows).float()[:, None] * inverse(d)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


# right ones


class ServerRotary(nn.Module):
    """As servers build it: flat tokens, heads and dims in one axis or in two."""

    def __init__(self, head_size, rotary_dim, max_position_embeddings, base, is_neox_style, dtype):
        super().__init__()
        self.head_size, self.rotary_dim, self.is_neox_style = head_size, rotary_dim, is_neox_style
        angles = torch.arange(max_position_embeddings).float()[:, None] * inverse(rotary_dim, base)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
        self.register_buffer("cos_sin_cache", table, persistent=False)

    def turned(self, x, cos, sin):
        if self.is_neox_style:
            return by_tables(x, cos, sin)
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)

    def forward(self, positions, query, key):
        """positions (t,), query (t, h d) or (t, h, d), key the same."""
        cos, sin = self.cos_sin_cache[positions.flatten()].float()[:, None].chunk(2, dim=-1)
        results = []
        for x in (query, key):
            heads = x.reshape(positions.numel(), -1, self.head_size)
            first, rest = heads[..., : self.rotary_dim], heads[..., self.rotary_dim :]
            results.append(torch.cat((self.turned(first, cos, sin), rest), dim=-1).reshape(x.shape))
        return tuple(results)


def server_operator(positions, query, key, head_size, cos_sin_cache, is_neox):
    """query (t, h d) or (t, h, d), in place; returns nothing."""
    cos, sin = cos_sin_cache[positions].float()[:, None].chunk(2, dim=-1)
    for x in (query, key):
        heads = x.reshape(positions.numel(), -1, head_size)
        x.copy_(by_tables(heads, cos, sin).reshape(x.shape))


def whole_tables(q, k, cos, sin, position_ids):
    """cos, sin (rows, d) from position 0; position_ids (b, s)."""
    p = q.shape[-1] // 2
    tables = [table[position_ids][:, None, :, :p].float() for table in (cos, sin)]
    return by_tables(q, *tables), by_tables(k, *tables)


def joined_table(q, k, cos_sin_cache, positions):
    """cos_sin_cache (rows, d), positions (s,)."""
    cos, sin = cos_sin_cache[positions].float().chunk(2, dim=-1)
    return by_tables(q, cos, sin), by_tables(k, cos, sin)


def packed_qkv(qkv, num_heads, num_kv_heads, positions):
    """qkv (b, s, (h + 2 g) d), positions (s,); v passes."""
    d = qkv.shape[-1] // (num_heads + 2 * num_kv_heads)
    heads = qkv.unflatten(-1, (-1, d))
    turned = rotated(heads[:, :, : num_heads + num_kv_heads].transpose(1, 2), positions).transpose(1, 2)
    return torch.cat((turned, heads[:, :, num_heads + num_kv_heads :]), dim=2).flatten(2)


def packed_sequences(x, cos, sin, cu_seqlens):
    """x (t, h, d), cos and sin (s, p) from the first position of each sequence."""
    lengths = cu_seqlens.diff()
    at = torch.cat([torch.arange(int(length)) for length in lengths])
    return by_tables(x, cos[at][:, None], sin[at][:, None])


def as_dict(q, k, positions):
    return {"q": rotated(q, positions), "k": rotated(k, positions)}


@dataclass
class Rotated:
    """What is handed to attention."""

    query: torch.Tensor
    key: torch.Tensor


def as_dataclass(q, k, positions):
    return Rotated(rotated(q, positions), rotated(k, positions))


# faults that runs of tokens with few heads do not show


def by_rows(q, k, positions):
    return rotated(q, positions[:, None]), rotated(k, positions[:, None])


def decode_reads_row_0(q, k, position_ids):
    """position_ids (b, s): a batch of single tokens is rotated by the position of the first."""
    return by_rows(q, k, position_ids[:1].expand_as(position_ids) if q.shape[-2] == 1 else position_ids)


def first_entry_only(q, k, positions):
    """positions (s,): counted on from the first, whatever the others are."""
    at = positions[0] + torch.arange(len(positions))
    return rotated(q, at), rotated(k, at)


_BUFFERS = {}


def same_output(x, positions):
    """Each call returns the same buffer: that of k overwrites what came back for q."""
    key = x.shape[-1], x.dtype
    if key not in _BUFFERS or _BUFFERS[key].numel() < x.numel():
        _BUFFERS[key] = torch.empty(x.numel(), dtype=x.dtype)
    return _BUFFERS[key][: x.numel()].view(x.shape).copy_(rotated(x, positions))


def one_key_head(q, k, positions):
    """k with exactly one head stays as it is."""
    return rotated(q, positions), k if k.shape[1] == 1 else rotated(k, positions)


def groups_over_four(q, k, positions):
    """More than four heads of q to one of k: q is one position late."""
    late = positions - 1 if q.shape[1] > 4 * k.shape[1] else positions
    return rotated(q, late), rotated(k, positions)


def heads_from_40(q, k, positions):
    """Heads behind the fortieth stay as they are."""
    return [torch.cat((rotated(x[:, :40], positions), x[:, 40:]), dim=1) for x in (q, k)]


def tokens_from_4096(q, k, positions):
    """Tokens behind the 4,096th of a call stay as they are."""
    first = positions[:4096]
    return [torch.cat((rotated(x[:, :, :4096], first), x[:, :, 4096:]), dim=2) for x in (q, k)]
