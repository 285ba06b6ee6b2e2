"""Checks that a target rotates as RoPE defines it."""
