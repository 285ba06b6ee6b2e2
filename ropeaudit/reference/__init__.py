"""The exact scores: frequencies and rotations that share no code with what is audited."""
