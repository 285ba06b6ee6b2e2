"""Class P: positions as they are built. Each bug in own words, its corrected version beside it.

q, k (b, h, s, d), or (t, h, d) of packed sequences with cu_seqlens; offset: the position of the first token.
Letters: b batch, h heads, s positions, t tokens of all sequences, d head_dim.
"""

import torch
from turning import angles_of, inverse, rotated, turned

DELTA = 37  # by so much an image's tokens have moved what follows them


def at_positions(q, k, positions):
    """q and k rotated by positions."""
    return rotated(q, k, angles_of(positions, inverse(q.shape[-1])))


def packed(q, k, positions):
    """q and k (t, h, d) rotated by positions (t,)."""
    angles = angles_of(positions, inverse(q.shape[-1]))[:, None]
    return turned(q, angles.cos(), angles.sin()), turned(k, angles.cos(), angles.sin())


def lengths(cu_seqlens):
    return (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()


# P1: the positions are those of all tokens, one sequence behind the other


def p1_faulty(q, k, positions, cu_seqlens):
    return packed(q, k, torch.cat([positions[:n] for n in lengths(cu_seqlens)]))


def p1_right(q, k, positions, cu_seqlens):
    starts = cu_seqlens.tolist()
    parts = [positions[i : i + n] for i, n in zip(starts[:-1], lengths(cu_seqlens), strict=True)]
    return packed(q, k, torch.cat(parts))


# P2: one rank of several, whose tokens begin at offset


def of_rank(q, k, offset, start):
    every = angles_of(torch.arange(offset + q.shape[-2]), inverse(q.shape[-1]))
    return rotated(q, k, every.narrow(0, start, q.shape[-2]))


def p2_faulty(q, k, offset):
    """Without its group it is the first of one rank, and slices as that."""
    return of_rank(q, k, offset, 0)


def p2_right(q, k, offset):
    return of_rank(q, k, offset, offset)


# P5


def p5_faulty(q, k, cu_seqlens):
    return packed(q, k, torch.arange(q.shape[0]))


def p5_right(q, k, cu_seqlens):
    return packed(q, k, torch.cat([torch.arange(n) for n in lengths(cu_seqlens)]))


# P6


def p6_faulty(x, cu_seqlens):
    """The mask of the pack is all ones, and positions are its running sum."""
    return packed(x, x, torch.ones(x.shape[0]).cumsum(0) - 1)[0]


def p6_right(x, cu_seqlens):
    at = torch.arange(x.shape[0])
    begins = torch.repeat_interleave(cu_seqlens[:-1], cu_seqlens[1:] - cu_seqlens[:-1])
    return packed(x, x, at - begins)[0]


# P7


def p7_faulty(q, k, position_ids):
    """One row of cache positions serves all."""
    return at_positions(q, k, position_ids[0])


def p7_right(q, k, position_ids):
    return at_positions(q, k, position_ids)


# P8


def p8_faulty(q, k, position_ids):
    """Counted up to the longest row; what is padded on the left counts too."""
    s = position_ids.shape[-1]
    return at_positions(q, k, position_ids.max() - (s - 1) + torch.arange(s))


def p8_right(q, k, position_ids):
    return at_positions(q, k, position_ids)


# P11


def p11_faulty(q, k, offset):
    return at_positions(q, k, torch.arange(q.shape[-2]))


def p11_right(q, k, offset):
    return at_positions(q, k, torch.arange(offset, offset + q.shape[-2]))


# P12


class P12Faulty:
    """The prefill does not store the delta: the first step is at 0, later ones where the cache ends."""

    def __init__(self, dim, base):
        self.frequencies, self.first = inverse(dim, base), True

    def __call__(self, q, k, positions):
        self.first = positions.numel() > 1 or self.first
        if positions.numel() == 1:
            positions, self.first = positions * 0 if self.first else positions - DELTA, False
        return rotated(q, k, angles_of(positions, self.frequencies))


class P12Right(P12Faulty):
    """Where the token stands."""

    def __call__(self, q, k, positions):
        return rotated(q, k, angles_of(positions, self.frequencies))


# P13


class P13Faulty:
    """The list of the whole prompt goes to each chunk, which takes as many as it has tokens."""

    def __init__(self, dim, base):
        self.angles = angles_of(torch.arange(4096), inverse(dim, base))

    def __call__(self, q, k, offset):
        return rotated(q, k, self.angles[: q.shape[-2]])


class P13Right(P13Faulty):
    """Those of the chunk."""

    def __call__(self, q, k, offset):
        return rotated(q, k, self.angles[offset : offset + q.shape[-2]])


# P14


def p14_faulty(q, k, positions):
    """A prefill gets the delta with its positions; a step counts the cache alone."""
    return at_positions(q, k, positions - DELTA if positions.numel() == 1 else positions)


def p14_right(q, k, positions):
    return at_positions(q, k, positions)


# P15


def p15_faulty(q, k, position_ids):
    """In decoding, the delta of the first row is that of all."""
    shared = position_ids[:1].expand_as(position_ids)
    return at_positions(q, k, shared if position_ids.shape[-1] == 1 else position_ids)


def p15_right(q, k, position_ids):
    return at_positions(q, k, position_ids)


# P16


class P16Faulty:
    """The delta is made in the prefill and is not sent on: a node that only decodes has none."""

    def __init__(self, dim, base):
        self.frequencies, self.delta = inverse(dim, base), 0

    def __call__(self, q, k, positions):
        cached = positions - DELTA
        if positions.numel() > 1:
            self.delta = DELTA
        return rotated(q, k, angles_of(cached + self.delta, self.frequencies))


class P16Right(P16Faulty):
    """It comes with the cache."""

    def __init__(self, dim, base):
        super().__init__(dim, base)
        self.delta = DELTA


# P20


def p20_faulty(q, k, offset):
    """Without a cache the step is still what it was set to at first."""
    step = offset if offset > 0 else -1
    return at_positions(q, k, torch.arange(step, step + q.shape[-2]))


def p20_right(q, k, offset):
    return at_positions(q, k, torch.arange(offset, offset + q.shape[-2]))
