"""Checks of whether a target does what RoPE asks of it."""
