"""Kernels whose frequencies go by the length of each call, and others that hold those of one length.

x (b, h, s, d), positions (s,) or (b, s). Faults stand below what is right, each in one way.
"""

import math

import torch

HEAD_DIM, BASE = 32, 10000.0
ORIGINAL, FACTOR = 600, 4.0  # positions of training, none at which number formats break
SHORT = [1.0 + 0.02 * i for i in range(HEAD_DIM // 2)]
LONG = [1.0 + 0.5 * i for i in range(HEAD_DIM // 2)]
GROWN = math.sqrt(1 + math.log(FACTOR) / math.log(ORIGINAL))
LONGROPE = "longrope:factor={:g},original={},short={},long={}".format(
    FACTOR, ORIGINAL, *(";".join(map(str, one)) for one in (SHORT, LONG))
)
DYNAMIC = f"dynamic:factor={FACTOR:g},maximum={ORIGINAL}"


def inverse(base=BASE):
    return 1.0 / base ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)


def rotated(x, positions, frequencies, factor=1.0):
    """Half-split, in float32."""
    angle = positions[..., None].float() * frequencies
    angle = angle[:, None] if angle.ndim == 3 else angle
    cos, sin = angle.cos() * factor, angle.sin() * factor
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def length_of(positions):
    return int(positions.max()) + 1


def by_list(x, positions, long, short_list=SHORT, long_list=LONG, factor=GROWN):
    divisors = torch.tensor(long_list if long else short_list)
    return rotated(x, positions, inverse() / divisors, factor)


def phi3(x, positions):
    """The long list once a call is longer than that of training."""
    return by_list(x, positions, length_of(positions) > ORIGINAL)


def phi3_early(x, positions):
    return by_list(x, positions, length_of(positions) >= ORIGINAL)


def phi3_late(x, positions):
    return by_list(x, positions, length_of(positions) > ORIGINAL + 1)


def phi3_wrong_short(x, positions):
    wrong = [*SHORT[:7], 1.3, *SHORT[8:]]
    return by_list(x, positions, length_of(positions) > ORIGINAL, short_list=wrong)


def phi3_wrong_long(x, positions):
    wrong = [*LONG[:7], 4.0, *LONG[8:]]
    return by_list(x, positions, length_of(positions) > ORIGINAL, long_list=wrong)


def phi3_no_factor(x, positions):
    return by_list(x, positions, length_of(positions) > ORIGINAL, factor=1.0)


def phi3_by_tokens(x, positions):
    """Goes by how many tokens a call has, so that a token that comes alone is short."""
    return by_list(x, positions, x.shape[-2] > ORIGINAL)


def phi3_by_token(x, positions):
    """Each token by its own position."""
    long = (positions >= ORIGINAL)[..., None]
    divisors = torch.where(long, torch.tensor(LONG), torch.tensor(SHORT))
    return rotated(x, positions, inverse() / divisors, GROWN)


def phi3_fixed(x, positions):
    """The long list, decided once by the length that is served."""
    return by_list(x, positions, True)


class Phi3Sticky:
    """Once long, always long."""

    def __init__(self):
        self.long = False

    def __call__(self, x, positions):
        self.long = self.long or length_of(positions) > ORIGINAL
        return by_list(x, positions, self.long)


def stretched(length, power=HEAD_DIM / (HEAD_DIM - 2)):
    stretch = FACTOR * max(length, ORIGINAL) / ORIGINAL - (FACTOR - 1)
    return inverse(BASE * stretch**power)


def dynamic(x, positions):
    """The base of each call's length."""
    return rotated(x, positions, stretched(length_of(positions)))


def dynamic_one_short(x, positions):
    return rotated(x, positions, stretched(length_of(positions) - 1))


def dynamic_plain_power(x, positions):
    return rotated(x, positions, stretched(length_of(positions), 1.0))


def dynamic_by_tokens(x, positions):
    return rotated(x, positions, stretched(x.shape[-2]))


def dynamic_fixed(x, positions):
    return rotated(x, positions, stretched(int(FACTOR) * ORIGINAL))


class DynamicKept:
    """The longest length so far, and that of training again once a call is shorter."""

    def __init__(self):
        self.length = ORIGINAL

    def __call__(self, x, positions):
        length = length_of(positions)
        if length > self.length:
            self.length = length
        elif length < ORIGINAL < self.length:
            self.length = ORIGINAL
        return rotated(x, positions, stretched(self.length))
