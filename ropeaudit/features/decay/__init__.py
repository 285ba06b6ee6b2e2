"""ropeaudit decay."""
