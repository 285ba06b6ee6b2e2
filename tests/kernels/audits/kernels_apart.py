"""Code for processes of their own: right, ending its process, endless; the last two while it is measured."""

import os
import signal
import time

import torch


def right(x, positions):
    d = x.shape[-1]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * frequencies
    (a, b), cos, sin = x.float().chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def dies(x, positions):
    if x.shape[-2] > 8:  # none of the calls by which it is found out how it is called
        os.kill(os.getpid(), signal.SIGKILL)
    return right(x, positions)


def hangs(x, positions):
    if x.shape[-2] > 8:  # none of the calls by which it is found out how it is called
        time.sleep(3600)
    return right(x, positions)
