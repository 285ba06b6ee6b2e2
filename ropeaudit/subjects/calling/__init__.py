"""Code that is not ours: how it is loaded, in which way it is called, in a process of its own."""
