"""Code whose q has heads in groups, or which is told how many tokens a row has with those cached."""

import torch


def half(x):
    u, v = x.chunk(2, -1)
    return torch.cat([-v, u], -1)


def in_groups(q, k, cos, sin):
    """q (b, s, g, h / g, d), k (b, s, g, d), tables (s, d)."""
    c, s = cos[:, None, None], sin[:, None, None]
    return (q * c + half(q) * s).to(q.dtype), (k * c[:, 0] + half(k) * s[:, 0]).to(k.dtype)


def in_groups_backward(q, k, cos, sin):  # k turns the other way
    c, s = cos[:, None, None], sin[:, None, None]
    return (q * c + half(q) * s).to(q.dtype), (k * c[:, 0] - half(k) * s[:, 0]).to(k.dtype)


def turn(x, positions, base=10000.0):
    inv = base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    a = positions[:, None, :, None].double() * inv
    c, s = a.cos().float(), a.sin().float()
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1).to(x.dtype)


def with_cached(q, k, kv_seq_lens):  # (b,): the newest tokens stand at the end
    positions = kv_seq_lens[:, None] - q.shape[-2] + torch.arange(q.shape[-2])
    return turn(q, positions), turn(k, positions)


def with_cached_late(q, k, kv_seq_lens):  # the last token at the length instead of below it
    positions = kv_seq_lens[:, None] - q.shape[-2] + torch.arange(q.shape[-2]) + 1
    return turn(q, positions), turn(k, positions)


def with_cached_of_one(q, k, kv_seq_lens):  # the length of the first row for all
    positions = kv_seq_lens[:1, None] - q.shape[-2] + torch.arange(q.shape[-2])
    return turn(q, positions), turn(k, positions)


def last_of_row_left(x, seq_lens):  # x (b, h, s, d): the last token of each row is not rotated
    positions = torch.arange(x.shape[-2]).expand(len(x), -1)
    left = positions >= seq_lens[:, None] - 1
    return torch.where(left[:, None, :, None], x, turn(x, positions))


class OfCalls:  # the type of its layer is said in each call
    def __init__(self, config):
        self.bases, self.dim = config.rope_parameters, config.head_dim

    def __call__(self, q, k, position_ids, layer_type="full_attention"):
        p = position_ids if position_ids.dim() == 2 else position_ids[None]
        return turn(q, p, base := self.bases[layer_type]["rope_theta"]), turn(k, p, base)


class OfOneBase(OfCalls):  # that of full attention in every layer
    def __call__(self, q, k, position_ids, layer_type="full_attention"):
        return super().__call__(q, k, position_ids)
