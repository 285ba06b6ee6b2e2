import functools

import numpy as np


def rope(x: np.ndarray, positions):
    return x


class Rope:
    def __call__(self, x, positions):
        return rope(x, positions)


@functools.wraps(rope)
def wrapped(*given):
    return rope(*given)


part = functools.partial(rope)
made = Rope()
bare = lambda x, positions: rope(x, positions)  # noqa: E731
