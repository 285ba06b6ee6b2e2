"""Code that is not ours, in a process of its own: what it ends, hangs or floods is a finding of it."""
