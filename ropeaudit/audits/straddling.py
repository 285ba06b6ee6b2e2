"""Offsets that break positions, for code under audit where none are given."""

from __future__ import annotations


def straddling(maximum: int, seq_len: int) -> list[int]:
    """Return offsets for code: 0, and around what breaks, so that the positions of each straddle it.

    Ends of int8 and of integers in bfloat16 and float16, of int16 and
    uint16, the largest float16, powers of two up to the maximum, an odd
    position between, and the last positions of all.
    """
    ends = [2**7, 2**8, 2**11, 2**12, 2**13, 2**14, 2**15, 65504, 2**16, 2**17]
    half = seq_len // 2 + 1
    last = max(0, maximum - seq_len)
    results = [0, *(max(1, end - half) for end in ends if end < maximum), 1000, 40503, 98765, last]
    return sorted({offset for offset in results if offset <= last})
