"""ropeaudit history."""
