"""ropeaudit check."""
