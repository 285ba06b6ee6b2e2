"""f(positions, q, k), with a table that is made when the file is imported."""

# ruff: noqa: F821 (it is written behind `kernel.py`)
COS, SIN = made(torch.arange(ROWS))


def rope(positions, query, key):
    at = moved(positions)
    return both(query, key, *kept(COS[at], SIN[at]))
