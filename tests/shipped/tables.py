"""Class T: tables and what they are computed in. Each bug in own words, its corrected version beside it.

q, k (b, h, s, d), positions (s,). Letters: b batch, h heads, s positions, d head_dim, p pairs.
"""

import math

import torch
from torch import nn

from shipped.bugs import Bug
from shipped.turning import angles_of, inverse, llama3, rotated, temperature, turned, yarn, yarn_range

# T1


def t1_faulty(q, k, positions):
    return rotated(q, k, positions[:, None].float() * inverse(q.shape[-1]).to(torch.bfloat16).float())


def t1_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T2


def t2_faulty(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1]).to(q.dtype)))


def t2_right(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1])))


# T3


def t3_faulty(q, k, positions):
    return rotated(q, k, torch.outer(positions.to(q.dtype), inverse(q.shape[-1]).to(q.dtype)).float())


def t3_right(q, k, positions):
    return rotated(q, k, torch.outer(positions.float(), inverse(q.shape[-1])))


# T4


class T4Faulty(nn.Module):
    """The buffer is cast with the module, and tables are made of it."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", inverse(dim, base))
        self.half()

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.inv_freq.float()))


class T4Right(T4Faulty):
    """It is computed anew where it is used."""

    def forward(self, q, k, positions):
        return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T6


def t6_faulty(q, k, positions):
    angles = inverse(q.shape[-1])[:, None] @ positions[None].float()
    return rotated(q, k, angles.T.float())


def t6_right(q, k, positions):
    with torch.autocast("cpu", enabled=False):
        return t6_faulty(q, k, positions)


# T7


def t7_faulty(q, k, positions):
    frequencies = inverse(q.shape[-1])
    seq = positions.type_as(frequencies.to(q.dtype))
    return rotated(q, k, seq[:, None].float() * frequencies)


def t7_right(q, k, positions):
    return rotated(q, k, positions.float()[:, None] * inverse(q.shape[-1]))


# T8


class T8Faulty(nn.Module):
    """`.to(dtype)` of the module."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", inverse(dim, base))
        self.to(torch.bfloat16)

    def forward(self, q, k, positions):
        return rotated(q, k, positions[:, None] * self.inv_freq.float())


class T8Right(T8Faulty):
    """Frequencies are no buffer."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        del self.inv_freq
        self.inv_freq = inverse(dim, base)


# T10


class T10Faulty(nn.Module):
    """arange takes the dtype of a buffer that was cast."""

    def __init__(self, dim=64, base=10000.0):
        super().__init__()
        self.frequencies = inverse(dim, base)
        self.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))

    def forward(self, q, k, positions):
        every = torch.arange(int(positions.max()) + 1, dtype=self.scale.dtype)
        return rotated(q, k, angles_of(every, self.frequencies)[positions])


class T10Right(T10Faulty):
    """arange in float32."""

    def forward(self, q, k, positions):
        every = torch.arange(int(positions.max()) + 1, dtype=torch.float32)
        return rotated(q, k, angles_of(every, self.frequencies)[positions])


# T11


def t11_faulty(q, k, positions):
    return rotated(q, k, angles_of(positions.to(torch.float16), inverse(q.shape[-1])))


def t11_right(q, k, positions):
    return rotated(q, k, angles_of(positions.to(torch.int32), inverse(q.shape[-1])))


# T12


def t12_faulty(q, k, positions):
    """The image's positions begin at 65536 and differ by less than bfloat16 holds there."""
    angles = positions[:, None].float() @ inverse(q.shape[-1])[None]
    return rotated(q, k, angles.float())


def t12_right(q, k, positions):
    return rotated(q, k, positions[:, None].float() * inverse(q.shape[-1]))


# T13


class T13Faulty:
    """The first forward casts the table where it lies; whoever comes later finds it so."""

    def __init__(self, dim, base):
        angles = angles_of(torch.arange(4096), inverse(dim, base))
        self.cache = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def __call__(self, q, k, positions):
        self.cache = self.cache.to(torch.bfloat16)
        cos, sin = self.cache[positions].float().chunk(2, dim=-1)
        return turned(q, cos, sin), turned(k, cos, sin)


class T13Right(T13Faulty):
    """The table stays in float32."""

    def __call__(self, q, k, positions):
        cos, sin = self.cache[positions].chunk(2, dim=-1)
        return turned(q, cos, sin), turned(k, cos, sin)


# T14


def fast(angles):
    """Reduced by a single float32 of 2 pi, as intrinsics for small angles leave it to the caller."""
    turn = torch.tensor(2 * math.pi, dtype=torch.float32)
    return angles - torch.round(angles / turn) * turn


def t14_faulty(q, k, positions):
    return rotated(q, k, fast(angles_of(positions, inverse(q.shape[-1]))))


def t14_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T15


def _of_video(q, k, positions, split):
    """A patch a frame: time is the position, height and width are 0. Pairs are neighbours."""
    sizes, at = (24, 20, 20), (positions, positions * 0, positions * 0)
    table = torch.cat([angles_of(torch.arange(4096), inverse(d)).repeat_interleave(2, -1) for d in sizes], -1)
    parts = [part[rows] for part, rows in zip(table.split(split, dim=-1), at, strict=True)]
    angles = torch.cat(parts, dim=-1)
    return tuple((x * angles.cos() + neighbours(x) * angles.sin()).to(x.dtype) for x in (q, k))


def neighbours(x):
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-second, first), dim=-1).flatten(-2)


def t15_faulty(q, k, positions):
    return _of_video(q, k, positions, (22, 21, 21))


def t15_right(q, k, positions):
    return _of_video(q, k, positions, (24, 20, 20))


# T16


def t16_faulty(q, k, positions):
    angles = angles_of(positions, inverse(q.shape[-1])).repeat_interleave(2, dim=-1)
    return tuple((x * angles.cos() + halves(x) * angles.sin()).to(x.dtype) for x in (q, k))


def t16_right(q, k, positions):
    angles = torch.cat((angles_of(positions, inverse(q.shape[-1])),) * 2, dim=-1)
    return tuple((x * angles.cos() + halves(x) * angles.sin()).to(x.dtype) for x in (q, k))


def halves(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


# T18


def t18_faulty(q, k, positions):
    scaled = llama3(q.shape[-1])
    frequencies = inverse(q.shape[-1], 500000.0)
    assert scaled.shape == frequencies.shape  # and the scaled ones are dropped here
    return rotated(q, k, angles_of(positions, frequencies))


def t18_right(q, k, positions):
    return rotated(q, k, angles_of(positions, llama3(q.shape[-1])))


# T21


def t21_faulty(q, k, positions):
    shrunk = (positions.float() / 4).clamp(max=2048 - 1)
    return rotated(q, k, shrunk[:, None] * inverse(q.shape[-1]), temperature(4.0))


def t21_right(q, k, positions):
    frequencies = yarn(q.shape[-1], 10000.0, 4.0, yarn_range(q.shape[-1], 10000.0, 2048))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


# T22


def t22_faulty(q, k, positions):
    d = q.shape[-1]
    low, high = yarn_range(d, 10000.0, 131072, truncate=False)
    frequencies = yarn(d, 10000.0, 4.0, (low, min(high, d // 2 - 1)))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


def t22_right(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 10000.0, 4.0, yarn_range(d, 10000.0, 131072))
    return rotated(q, k, angles_of(positions, frequencies), temperature(4.0))


# T23


def t23_faulty(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 150000.0, 32.0, yarn_range(d, 150000.0, 4096))
    return rotated(q, k, angles_of(positions, frequencies), temperature(32.0))


def t23_right(q, k, positions):
    d = q.shape[-1]
    frequencies = yarn(d, 150000.0, 32.0, yarn_range(d, 150000.0, 4096, truncate=False))
    return rotated(q, k, angles_of(positions, frequencies), temperature(32.0))


# T25


def t25_faulty(q, k, positions):
    """A quarter of the frequencies alone: pairs are then halves of a quarter of the head."""
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])[: q.shape[-1] // 8]))


def t25_right(q, k, positions):
    frequencies = inverse(q.shape[-1])
    frequencies[q.shape[-1] // 8 :] = 0.0
    return rotated(q, k, angles_of(positions, frequencies))


# T26: of fewer rows than the 4,096 that were there

ROWS = 256
_ANGLES = angles_of(torch.arange(ROWS), inverse(64))
_MEMORY = torch.cat((_ANGLES, torch.full((ROWS, 32), 0.5)))  # what lies behind the table


def t26_faulty(q, k, positions):
    return rotated(q, k, _MEMORY[positions])


def t26_right(q, k, positions):
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


# T27


class T27Faulty:
    """A table of as many rows as the model had before it was made longer."""

    rows = 128

    def __init__(self, dim, base):
        longer = base * (2.0 * 256 / 128 - 1) ** (dim / (dim - 2))
        self.angles = angles_of(torch.arange(self.rows), inverse(dim, longer))

    def __call__(self, q, k, positions):
        return rotated(q, k, self.angles[positions])


class T27Right(T27Faulty):
    """Times the factor."""

    rows = 2 * 128


_SMALL = {"up_to": 1024, "head_dim": 64}
_LLAMA3 = "llama3:factor=32,low=1,high=4,original=8192"
_TIME = "explicit:frequencies=" + ";".join(
    repr(one) for one in [10000.0 ** (-i / 12) for i in range(12)] + [0.0] * 20
)
BUGS: list[Bug] = [
    Bug(
        "T1",
        "sglang-jax#1472",
        "The frequencies are cast to the dtype of the model before they meet the positions.",
        "bf16, from some hundred positions on",
        t1_faulty,
        t1_right,
        options={"head_dim": 64},
        caught=("narrow-frequencies",),
    ),
    Bug(
        "T2",
        "modalities#462",
        "The frequencies are cast to the dtype of x where the angles are made.",
        "bf16, long contexts: half a turn off at 4,096",
        t2_faulty,
        t2_right,
        options=_SMALL | {"dtypes": "bf16"},
        caught=("narrow-frequencies",),
    ),
    Bug(
        "T3",
        "gpt-neox#1003",
        "Positions and frequencies are multiplied in 16 bits.",
        "fp16, position 1857",
        t3_faulty,
        t3_right,
        options=_SMALL | {"up_to": 4096, "dtypes": "fp16"},
        caught=("narrow-angles", "narrow-frequencies", "narrow-positions"),
    ),
    Bug(
        "T4",
        "transformers#25681",
        "The buffer of the frequencies is cast with the module, and tables are made of what is left.",
        ".half() of a model",
        T4Faulty,
        T4Right,
        options=_SMALL | {"dtypes": "fp16"},
        caught=("narrow-frequencies",),
    ),
    Bug(
        "T6",
        "transformers#29285",
        "Autocast runs the product of frequencies and positions in 16 bits.",
        "under autocast",
        t6_faulty,
        t6_right,
        options=_SMALL | {"under": "autocast:bf16"},
        caught=("narrow-angles", "narrow-frequencies", "narrow-positions"),
    ),
    Bug(
        "T7",
        "Megatron-LM#535",
        "Positions take the type of frequencies that are 16 bits wide.",
        "fp16, from position 2,048 on",
        t7_faulty,
        t7_right,
        options=_SMALL | {"up_to": 4096, "dtypes": "fp16"},
        caught=("narrow-positions",),
    ),
    Bug(
        "T8",
        "Megatron-LM#744",
        "Casting the module to bf16 casts its frequencies.",
        "a bf16 module",
        T8Faulty,
        T8Right,
        options=_SMALL | {"dtypes": "bf16"},
        caught=("narrow-frequencies",),
    ),
    Bug(
        "T10",
        "UNI-D2#6",
        "arange takes its dtype from a buffer that was cast.",
        "bf16, from position 256 on",
        T10Faulty,
        T10Right,
        options=_SMALL | {"dtypes": "bf16"},
        caught=("narrow-positions",),
    ),
    Bug(
        "T11",
        "openvino#33214",
        "Positions are converted to float16 on the way.",
        "positions past 2,048; multiples of 4 past 4,096",
        t11_faulty,
        t11_right,
        options=_SMALL | {"up_to": 8192},
        caught=("narrow-positions",),
    ),
    Bug(
        "T12",
        "diffusers#13922",
        "Autocast runs the product with the positions in bf16: those of 512 neighbours become one.",
        "positions from 65,536 on",
        t12_faulty,
        t12_right,
        options=_SMALL | {"up_to": 65600, "under": "autocast:bf16"},
        caught=("narrow-angles", "narrow-frequencies", "narrow-positions"),
    ),
    Bug(
        "T13",
        "sglang#33117",
        "The first forward casts the float32 table to the dtype of q where it lies.",
        "bf16, then in wider formats",
        T13Faulty,
        T13Right,
        options=_SMALL | {"dtypes": "fp32"},
        caught=("narrow-table",),
    ),
    Bug(
        "T14",
        "imp#1316",
        "sin and cos of small angles are taken of angles that were not reduced.",
        "pair 0 at position 131,071",
        t14_faulty,
        t14_right,
        options={"up_to": 131072, "head_dim": 64, "dtypes": "fp32"},
        why_not="0.0075 rad at position 131,071, where float32 frequencies and angles are allowed 0.06",
    ),
    Bug(
        "T15",
        "diffusers#12538",
        "Tables of three axes are split at other dims than they were joined at.",
        "head_dim 64",
        t15_faulty,
        t15_right,
        options=_SMALL | {"layout": "interleaved", "scaling": _TIME},
        caught=("pairs-left-out",),
    ),
    Bug(
        "T16",
        "how-to-train-your-gpt#7",
        "The table repeats frequencies for neighbours, the rotation swaps halves.",
        "always",
        t16_faulty,
        t16_right,
        options={},
        caught=("mixed-layout",),
    ),
    Bug(
        "T18",
        "transformers#32330",
        "Scaled frequencies are computed, and the plain ones returned.",
        "rope_type llama3",
        t18_faulty,
        t18_right,
        options={"head_dim": 64, "base": 500000.0, "scaling": _LLAMA3},
        caught=("missing-scaling",),
    ),
    Bug(
        "T21",
        "LLMs-from-scratch#940",
        "YaRN is done as positions over the factor, which end at the original length.",
        "yarn, everywhere",
        t21_faulty,
        t21_right,
        options=_SMALL | {"scaling": "yarn:factor=4,original=2048"},
        caught=("other-scaling",),
    ),
    Bug(
        "T22",
        "keras-hub#2981",
        "The end of YaRN's ramp is held to the number of pairs, not of dims, and is not rounded.",
        "an original length of 131,072",
        t22_faulty,
        t22_right,
        options={"head_dim": 64, "scaling": "yarn:factor=4,original=131072"},
        caught=("other-scaling",),
    ),
    Bug(
        "T23",
        "vllm#27722",
        "The ends of YaRN's ramp are rounded though the config says that they are not.",
        "gpt-oss",
        t23_faulty,
        t23_right,
        options=_SMALL | {"base": 150000.0, "scaling": "yarn:factor=32,original=4096,truncate=false"},
        caught=("other-scaling",),
    ),
    Bug(
        "T25",
        "Megatron-Bridge#4195",
        "The frequencies that are 0 are left out, so that other dims are paired.",
        "proportional RoPE (Gemma 4, global layers)",
        t25_faulty,
        t25_right,
        options={"head_dim": 64, "scaling": "proportional:fraction=0.25"},
        caught=("pairs-in-block",),
    ),
    Bug(
        "T26",
        "pegainfer#220",
        "A table of too few rows is read behind its end.",
        "positions past the table",
        t26_faulty,
        t26_right,
        options={"up_to": 512, "head_dim": 64},
        caught=("check:rotation",),
    ),
    Bug(
        "T27",
        "vllm#55910",
        "The table of a scaled model has the rows of the unscaled one.",
        "dynamic scaling, positions past the unscaled maximum",
        T27Faulty,
        T27Right,
        options={"head_dim": 64, "scaling": "dynamic:factor=2,maximum=128"},
        caught=("check:table end",),
    ),
]
