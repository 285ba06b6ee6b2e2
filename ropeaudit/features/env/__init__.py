"""ropeaudit env."""
