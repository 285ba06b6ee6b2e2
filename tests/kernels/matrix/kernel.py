"""RoPE in float32, one step a function; a fault replaces steps, a road calls them.

`roads.py` copies this text into a file, then the setting, then the fault, then how the road calls it.
Letters: b batch, h heads, s positions, d head_dim, p pairs. Positions are (s,) or (b, s), x is (b, h, s, d).
"""

import math

import torch

HEAD_DIM, ROTARY_DIM, BASE = 32, 32, 10000.0
SCALING: dict = {}
ROWS = 8192  # of a stored table


def moved(positions):
    """Return the positions to rotate by, as integers."""
    return positions


def seen(positions):
    """Return positions as numbers that are multiplied by frequencies."""
    return positions.float()


def frequencies():
    """Return radians per token, (p,)."""
    return scaled(BASE ** -(torch.arange(0, exponent_dims() // 2 * 2, 2).float() / exponent_dims()))[
        : ROTARY_DIM // 2
    ]


def exponent_dims():
    """Return the d of base^(-2i/d)."""
    return ROTARY_DIM


def scaled(theta):
    """Return frequencies as the setting scales them."""
    kind = SCALING.get("rope_type")
    if kind == "linear":
        return theta / SCALING["factor"]
    if kind == "longrope":
        return theta / torch.tensor(SCALING["short_factor"])
    if kind == "llama3":
        original, low, high = (
            SCALING[name]
            for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        smooth = ((original * theta / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * theta / SCALING["factor"] + smooth * theta
    if kind == "yarn":
        first, last = (yarn_dim(turns) for turns in (32, 1))
        first, last = max(math.floor(first), 0), min(math.ceil(last), ROTARY_DIM - 1)
        ramp = ((torch.arange(len(theta)).float() - first) / max(last - first, 0.001)).clamp(0, 1)
        return ramp * theta / SCALING["factor"] + (1 - ramp) * theta
    return theta


def yarn_dim(turns):
    """Return the pair that makes this many turns within the original length."""
    original = SCALING["original_max_position_embeddings"]
    return ROTARY_DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(BASE))


def attention_factor():
    """Return what multiplies cos and sin."""
    kind = SCALING.get("rope_type")
    if kind == "yarn":
        return 0.1 * math.log(SCALING["factor"]) + 1
    if kind == "longrope":
        original = SCALING["original_max_position_embeddings"]
        return math.sqrt(1 + math.log(SCALING["factor"]) / math.log(original))
    return 1.0


def angles(positions, theta):
    """Return positions times frequencies, (..., s, p)."""
    return positions[..., None] * theta


def tables(angle):
    """Return cos and sin, (..., s, p)."""
    return angle.cos() * attention_factor(), angle.sin() * attention_factor()


def made(positions):
    """Return cos and sin of positions, computed anew."""
    return tables(angles(seen(positions), frequencies()))


def kept(cos, sin):
    """Return cos and sin as they reach the rotation."""
    return cos, sin


def split(x):
    """Return the first and second numbers of all pairs."""
    return x[..., : ROTARY_DIM // 2], x[..., ROTARY_DIM // 2 : ROTARY_DIM]


def joined(first, second):
    """Return the dims of which these are the pairs."""
    return torch.cat([first, second], -1)


def turned(first, second, cos, sin):
    """Return rotated pairs."""
    return first * cos - second * sin, second * cos + first * sin


def rotated(x, cos, sin):
    """Return x rotated, in its dtype."""
    if cos.ndim == 3:
        cos, sin = cos[:, None], sin[:, None]
    whole = x.float()
    pairs = joined(*turned(*split(whole), cos, sin))
    return torch.cat([pairs, whole[..., ROTARY_DIM:]], -1).to(x.dtype)


def both(q, k, cos, sin):
    """Return q and k rotated."""
    return rotated(q, cos, sin), rotated(k, cos, sin)
