"""ropeaudit module."""
