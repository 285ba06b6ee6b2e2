"""ropeaudit diff."""
