"""ropeaudit limit."""
