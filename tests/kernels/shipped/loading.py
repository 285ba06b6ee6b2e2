"""Class M: what loading makes of a module's buffers, and of weights. The corrected version beside each.

A module returns cos and sin (b, s, d). Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import torch
from torch import nn
from turning import angles_of, inverse, rotated, turned

LEFT = (3.1e24, 4.6e-41, 0.0, 1.2e-38, 7.7e11, 0.0, 2.3e-44, 1.0)  # as memory has it that nobody has set


class Rope(nn.Module):
    """Frequencies in a buffer that is not saved."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base
        self.register_buffer("inv_freq", inverse(dim, base), persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        angles = position_ids[:, :, None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Repairable(Rope):
    """Older modules kept the function that computes their frequencies."""

    def __init__(self):
        super().__init__()
        self.rope_init_fn = inverse


def unset(module):
    """The module on the CPU, as to_empty leaves it."""
    module = module.to_empty(device="cpu")
    for name, buffer in list(module.named_buffers()):
        left = torch.tensor(LEFT).repeat(buffer.numel() // len(LEFT) + 1)[: buffer.numel()]
        getattr(module, name).copy_(left.view(buffer.shape))
    return module


def on_meta(cls):
    with torch.device("meta"):
        return cls()


# M1


def m1_faulty():
    return unset(on_meta(Rope))


def m1_right():
    module = unset(on_meta(Rope))
    module.inv_freq = inverse(module.dim, module.base)
    return module


# M2


def m2_faulty():
    """Keys that no checkpoint has are moved, by new memory in the place of each buffer."""
    module, saved = Rope(), ()
    for name, buffer in list(module.named_buffers()):
        if name not in saved:
            torch.manual_seed(0)
            setattr(module, name, torch.empty_like(buffer).uniform_(-1e3, 1e3))
    return module


def m2_right():
    module = Rope()
    for name, buffer in list(module.named_buffers()):
        setattr(module, name, buffer.clone())
    return module


# M3


def repaired(module):
    """Computes frequencies anew where a module kept the function for it."""
    if hasattr(module, "rope_init_fn"):
        module.inv_freq = module.rope_init_fn(module.dim, module.base)
    return module


def m3_faulty():
    return repaired(unset(on_meta(Rope)))


def m3_right():
    return repaired(unset(on_meta(Repairable)))


# M4


class Applied(Rope):
    """The same, that rotates by itself."""

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.inv_freq))


def m4_faulty():
    """An export fills what is on meta with zeros."""
    module = on_meta(Applied).to_empty(device="cpu")
    module.inv_freq.zero_()
    return module


def m4_right():
    module = m4_faulty()
    module.inv_freq.copy_(inverse(module.dim, module.base))
    return module


# M6


class Tables(nn.Module):
    """cos and sin are buffers that are not saved."""

    def __init__(self):
        super().__init__()
        for name, table in self.made().items():
            self.register_buffer(name, table, persistent=False)

    def made(self):
        angles = angles_of(torch.arange(4096), inverse(64))
        return {"cos": angles.cos(), "sin": angles.sin()}

    def forward(self, q, k, positions):
        cos, sin = self.cos[positions], self.sin[positions]
        return turned(q, cos, sin), turned(k, cos, sin)


def m6_faulty():
    """The weights are loaded, the tables are not made anew."""
    module = on_meta(Tables).to_empty(device="cpu")
    return unset(module)


def m6_right():
    module = m6_faulty()
    for name, table in Tables.made(module).items():
        setattr(module, name, table)
    return module


# M7


def m7_faulty():
    """The whole model is cast; what comes back to float32 has lost its bits."""
    return Rope().to(torch.bfloat16).float()


def m7_right():
    module = Rope().to(torch.bfloat16)
    module.inv_freq = inverse(module.dim, module.base)
    return module


# M8, M9: rows of q and k are those of halves, or of neighbours


def by_neighbours(x, angles):
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    pairs = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
    return torch.stack(pairs, dim=-1).flatten(-2).to(x.dtype)


def to_neighbours(x):
    """Rows of halves as rows of neighbours."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def to_halves(x):
    """The reverse."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def m8_faulty(q, k, positions):
    angles = angles_of(positions, inverse(q.shape[-1]))
    return by_neighbours(q, angles), by_neighbours(k, angles)


def m8_right(q, k, positions):
    return tuple(to_halves(x) for x in m8_faulty(to_neighbours(q), to_neighbours(k), positions))


def converted(q, k, positions, interleaved=False):
    """What a converter makes of a model, whose code rotates halves."""
    angles = angles_of(positions, inverse(q.shape[-1]))
    if not interleaved:
        return rotated(q, k, angles)
    return tuple(to_neighbours(x) for x in rotated(to_halves(q), to_halves(k), angles))


def m9_faulty(q, k, positions):
    return converted(q, k, positions)


def m9_right(q, k, positions):
    return converted(q, k, positions, interleaved=True)
