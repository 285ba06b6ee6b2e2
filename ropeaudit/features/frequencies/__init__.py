"""ropeaudit frequencies."""
