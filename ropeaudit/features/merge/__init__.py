"""ropeaudit merge."""
