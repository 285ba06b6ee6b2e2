"""f(x, positions)."""


# ruff: noqa: F821 (it is written behind `kernel.py`)
def rope(x, positions):
    return rotated(x, *kept(*made(moved(positions))))
