"""ropeaudit explain."""
