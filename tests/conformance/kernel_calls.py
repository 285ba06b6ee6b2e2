"""How the kernels of the acceptance are called by their tests, not by the package.

Each takes f, q, k in the kernel's own order of axes and positions (s,) or (b, s) -> rotated q, rotated k.
Letters: b batch, h heads, g heads of k, s positions, d head_dim, p pairs.
"""

import ml_dtypes
import numpy as np
import torch


def one(f, q, k, at):
    return f(q, at), f(k, at)


def both(f, q, k, at):
    return f(q, k, at)


def from_first(f, q, k, at):
    return f(q, int(at[0])), f(k, int(at[0]))


def any_dim(f, q, k, at):
    return f(q, seq_dim=2, offset=int(at[0])), f(k, seq_dim=2, offset=int(at[0]))


def positions_first(f, q, k, at):
    return f(at, q, k)


def _cache(d):
    """cos and sin beside each other (131072, d)."""
    angles = np.outer(np.arange(131072), 10000.0 ** (-np.arange(0, d, 2) / d))
    return torch.from_numpy(np.concatenate((np.cos(angles), np.sin(angles)), axis=-1).astype(np.float32))


def by_operator(f, q, k, at):
    f(at, q, k, q.shape[-1], _cache(q.shape[-1]), True)
    return q, k


def by_cache(f, q, k, at):
    return f(q, k, _cache(q.shape[-1]), at)


def by_whole_tables(f, q, k, at):
    cos, sin = _cache(q.shape[-1]).chunk(2, dim=-1)
    return f(q, k, torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1), at)


def packed(f, q, k, at):
    """q (b, s, h, d), k (b, s, g, d) with k for v behind it."""
    h, g, d = q.shape[2], k.shape[2], q.shape[-1]
    out = f(torch.cat((q, k, k), dim=2).flatten(2), h, g, at).unflatten(-1, (-1, d))
    return out[:, :, :h], out[:, :, h : h + g]


def sequences(f, q, k, at):
    """One sequence, whose first position is that of the tables."""
    return by_table(pairs, False)(lambda x, *tables: f(x, *tables, torch.tensor([0, len(x)])), q, k, at)


def fields_of(f, q, k, at):
    result = f(q, k, at)
    return tuple(result.values() if isinstance(result, dict) else vars(result).values())


def by_table(table, together):
    """table: of cos and sin (s, p) -> the tables that the kernel takes."""

    def call(f, q, k, at):
        angles = np.outer(at, 10000.0 ** (-np.arange(0, q.shape[-1], 2) / q.shape[-1]))
        tables = table(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        if not isinstance(q, np.ndarray):
            tables = [torch.from_numpy(each) for each in tables]
        return f(q, k, *tables) if together else (f(q, *tables), f(k, *tables))

    return call


def pairs(cos, sin):
    return cos, sin


def complex_table(cos, sin):
    return (cos + 1j * sin,)


def hf_tables(cos, sin):
    return [np.concatenate([each, each], axis=-1)[None] for each in (cos, sin)]


def megatron_tables(cos, sin):
    return [each[0][:, None, None] for each in hf_tables(cos, sin)]


def called(kernel, instance, q, k, at, dtype):
    """q (b, h, s, d) and k (b, g, s, d) rotated by an instance in a dtype, in float64.

    Numbers that the dtype does not hold are rounded; axes that the kernel does not take are looped over.
    """
    letters = "".join(axis for axis in "bhsd" if axis in kernel.order)
    axes, missing = [letters.index(axis) for axis in kernel.order], 4 - len(letters)
    flat = [x.reshape(-1, *x.shape[missing:]) if missing else x[None] for x in (q, k)]
    at = at if kernel.numpy else torch.from_numpy(np.ascontiguousarray(at))
    if missing == 2:  # q and k have other numbers of heads
        results = [
            [wide(kernel.call(instance, *[held(one_, dtype, kernel)] * 2, at)[0]) for one_ in x] for x in flat
        ]
    else:
        results = [[], []]
        for a, b in zip(*flat, strict=True):
            given = [held(x.transpose(axes), dtype, kernel) for x in (a, b)]
            for result, x in zip(results, kernel.call(instance, *given, at), strict=True):
                result.append(wide(x).transpose(np.argsort(axes)))
    return [np.stack(part).reshape(x.shape) for part, x in zip(results, (q, k), strict=True)]


def held(x, dtype, kernel):
    """x in a dtype, as the kernel takes it."""
    if kernel.numpy:
        return np.ascontiguousarray(x).astype(ml_dtypes.bfloat16 if dtype == "bf16" else np.float32)
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16 if dtype == "bf16" else torch.float32)


def wide(x):
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.detach().double().numpy()
