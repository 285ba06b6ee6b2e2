"""Modules that hold RoPE buffers of many kinds, right, cast, and off."""

import torch


class Rope(torch.nn.Module):
    def __init__(self, **buffers):
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)


def theta(base=1e4, pairs=64):
    return (base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)).float()


def table(n=512):
    angles = torch.arange(n)[:, None].double() * theta().double()
    return angles.cos().float(), angles.sin().float()


def plain():
    return Rope(inv_freq=theta())


def halves():
    return Rope(inv_freq=torch.cat([theta(), theta()]))


def bf16():
    return Rope(inv_freq=theta()).to(torch.bfloat16)


def bf16_back():
    return Rope(inv_freq=theta()).to(torch.bfloat16).float()


def fp16_back():
    return Rope(inv_freq=theta(5e5)).half().float()


def other_base():
    return Rope(inv_freq=theta(7.5e5))


def scaled():
    return Rope(inv_freq=theta() * torch.linspace(1, 0.25, 64))


def powers():
    return Rope(inv_freq=theta(2.0**64))


def tables():
    return Rope(cos_cached=table()[0], sin_cached=table()[1])


def tables_back():
    return tables().to(torch.bfloat16).float()


def doubled(x):
    return torch.cat([x, x], -1)[None, None]


def twice():
    return Rope(cos=doubled(table()[0]), sin=doubled(table()[1]))


def cis():
    return Rope(freqs_cis=torch.complex(*table()))


def lone():
    return Rope(cos_cached=table()[0].bfloat16().float())


def mixed():
    return Rope(inv_freq=theta(), other=torch.ones(3), inv_freq_scale=torch.ones(2))


def attribute():
    made = Rope()
    made.long_inv_freq = theta()
    return made


def angles(n=1024, base=1e4, pairs=32):
    return torch.outer(torch.arange(n).double(), theta(base, pairs).double())


def kandinsky():
    return Rope(args=angles().float(), args_1=angles(128).float())


def kandinsky_cast():
    return kandinsky().to(torch.bfloat16)


def kandinsky_back():
    return kandinsky_cast().float()


def codegen():
    return Rope(embed_positions=torch.cat([angles().sin(), angles().cos()], 1).float())


def codegen_back():
    return codegen().half().float()


def complex_table():
    return Rope(anything=torch.polar(torch.ones(1024, 32), angles().float()))


def stacked():
    return Rope(table=torch.stack([angles().cos(), angles().sin()], -1).float())


def matrices():
    a = angles().float()
    return Rope(m=torch.stack([a.cos(), -a.sin(), a.sin(), a.cos()], -1).unflatten(-1, (2, 2)))


def other_names():
    return Rope(a=angles().cos().float(), b=angles().sin().float())


def periods():
    return Rope(periods=(1 / theta(100.0, 16)))


def periods_cast():
    return periods().to(torch.bfloat16)


def periods_back():
    return periods().to(torch.bfloat16).float()


def bf16_positions():
    a = torch.arange(1024).bfloat16().double()[:, None] * theta(1e4, 32).double()
    return Rope(p_cos=a.cos().float(), p_sin=a.sin().float())


def one_off():
    values = theta()
    values[17] *= 1.5
    return Rope(inv_freq=values)


def half_off():
    return Rope(inv_freq=theta() * torch.where(torch.arange(64) > 20, 1.5, 1.0))


def linear():
    return Rope(inv_freq=theta() / 4)


def none_of_it():
    torch.manual_seed(0)
    return Rope(
        weight=torch.randn(64, 64),
        ones=torch.ones(64),
        eye=torch.eye(64),
        ids=torch.arange(64),
        slopes=2.0 ** -torch.arange(1.0, 9.0),
        bands=2.0 ** torch.arange(8.0),
        pad=torch.zeros(9, 8),
        betas=torch.linspace(1, 0.1, 64),
        mask=torch.tril(torch.ones(64, 64)),
    )


# whose tensors are written to files
STORED = [
    "attribute",
    "bf16",
    "bf16_back",
    "bf16_positions",
    "cis",
    "codegen",
    "codegen_back",
    "complex_table",
    "fp16_back",
    "half_off",
    "halves",
    "kandinsky",
    "kandinsky_back",
    "kandinsky_cast",
    "linear",
    "lone",
    "matrices",
    "mixed",
    "none_of_it",
    "one_off",
    "other_base",
    "other_names",
    "periods",
    "periods_back",
    "periods_cast",
    "plain",
    "powers",
    "scaled",
    "stacked",
    "tables",
    "tables_back",
    "twice",
]
