"""RoPE bugs that shipped in public projects, each re-enacted in a few lines, with what is right beside it."""
