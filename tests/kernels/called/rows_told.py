"""Code that is told where the rows of a batch begin, or takes it by **kwargs: called as it is served."""

import torch


def inv(d, base=10000.0):
    return base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def turn(x, a):
    c, s = a.cos().float(), a.sin().float()
    u, v = x.float().chunk(2, -1)
    return torch.cat([u * c - v * s, v * c + u * s], -1).to(x.dtype)


def angles(p, d, base=10000.0):
    p = p if p.dim() == 2 else p[None]
    return p[:, None, :, None].double() * inv(d, base)


def left_padding(q, k, left_padding):  # (b,)
    p = (torch.arange(q.shape[-2])[None] - left_padding[:, None]).clamp(min=0)
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def left_wrong(q, k, left_padding):
    p = torch.arange(q.shape[-2])[None]
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def deltas(q, k, cache_position, rope_deltas=None):  # (b, 1)
    p = cache_position[None]
    if rope_deltas is not None:
        p = p + rope_deltas
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def start_left(q, k, start_pos=0, left_padding=None):
    p = (start_pos + torch.arange(q.shape[-2]))[None]
    if left_padding is not None:
        p = (p - left_padding[:, None]).clamp(min=0)
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def start_left_wrong(q, k, start_pos=0, left_padding=None):
    p = (start_pos + torch.arange(q.shape[-2]))[None]
    if left_padding is not None:
        p = (p - left_padding[:1, None]).clamp(min=0)
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def mask_right(q, k, attention_mask):
    p = attention_mask.cumsum(-1) - 1
    p = p.clamp(min=0)
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def mask_of_the_last(q, k, attention_mask):
    p = (attention_mask.cumsum(-1) - 1).clamp(min=0)[-1:]
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def mask_left_by_k(q, k, attention_mask):
    p = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(torch.arange(k.shape[-2]), k.shape[-1]))


def kw_pos(q, k, **kwargs):
    p = kwargs.get("position_ids", torch.arange(q.shape[-2]))
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


def kw_strict(q, k, **kwargs):
    return inner(q, k, **kwargs)


def inner(q, k, scale=1.0):
    p = torch.arange(q.shape[-2])
    return turn(q, angles(p, q.shape[-1])), turn(k, angles(p, k.shape[-1]))


class Module(torch.nn.Module):
    def forward(self, x, **kwargs):
        p = torch.arange(x.shape[-2])
        return turn(x, angles(p, x.shape[-1]))
