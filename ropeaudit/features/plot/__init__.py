"""ropeaudit plot."""
