"""Code of others that is called: how it wants its arguments, within a time."""
