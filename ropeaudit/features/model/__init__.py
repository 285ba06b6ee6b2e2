"""ropeaudit model."""
