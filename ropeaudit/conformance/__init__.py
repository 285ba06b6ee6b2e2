"""Whether a target does what RoPE asks of it: one check a file, each a finding with what was measured."""
