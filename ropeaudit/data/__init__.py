"""Data files: named recipes."""
