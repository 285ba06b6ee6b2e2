"""ropeaudit report."""
