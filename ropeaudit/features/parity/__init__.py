"""ropeaudit parity."""
