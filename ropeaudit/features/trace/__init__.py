"""ropeaudit trace."""
