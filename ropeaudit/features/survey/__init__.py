"""Survey: every implementation that is installed, in one table."""
