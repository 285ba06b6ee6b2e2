"""ropeaudit vectors."""
