"""ropeaudit summary."""
