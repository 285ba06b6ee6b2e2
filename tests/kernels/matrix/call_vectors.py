"""f(q, k, positions)."""


# ruff: noqa: F821 (it is written behind `kernel.py`)
def rope(q, k, positions):
    return both(q, k, *kept(*made(moved(positions))))
