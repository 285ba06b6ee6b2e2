"""ropeaudit shift."""
