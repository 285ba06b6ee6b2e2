"""The version, alone: building the package reads it here without importing anything."""

__version__ = "0.1.0"
