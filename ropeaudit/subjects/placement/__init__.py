"""Whether code rotates each pair by its position, and what it does instead."""
