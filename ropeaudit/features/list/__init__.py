"""ropeaudit list."""
