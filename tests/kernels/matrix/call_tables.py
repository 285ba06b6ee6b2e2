"""f(q, k, cos, sin)."""


# ruff: noqa: F821 (it is written behind `kernel.py`)
def rope(q, k, cos, sin):
    return both(q, k, *kept(cos[..., : ROTARY_DIM // 2], sin[..., : ROTARY_DIM // 2]))
