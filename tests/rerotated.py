"""Rows of `ropeaudit shift --rerotate`, for tests of its numbers and of what is said of them."""

from ropeaudit import shift


def measure(recipe, turns, turn=-16, dtype="bf16", offset=0, **case):
    """Return the row of each number of turns, of keys that end at `offset`."""
    given = {"heads": 2, "seq_len": 128} | case
    return [one.as_dict() for one in shift(offset, dtype, recipe, rerotate=turns, turn=turn, **given)]
