"""Whether code puts each rotated pair where its position says, and what it does instead."""
