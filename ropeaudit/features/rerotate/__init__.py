"""ropeaudit rerotate."""
