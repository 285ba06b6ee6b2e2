"""A rotation in jax, compiled, and one that asserts that it gets jax's own arrays."""

import jax
import jax.numpy as jnp


@jax.jit
def rotate(x, positions):
    t = positions.astype(jnp.float32)[:, None] / 10000.0 ** (jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    cos, sin = jnp.cos(t), jnp.sin(t)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def eager(x, positions):
    assert isinstance(x, jax.Array)
    assert isinstance(positions, jax.Array)
    return rotate(x, positions)
