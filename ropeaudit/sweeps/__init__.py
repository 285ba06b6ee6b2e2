"""Sweeps: cells planned beforehand, shared out to processes and clusters, kept in a file as they finish."""
