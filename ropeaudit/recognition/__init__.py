"""How a stored table of frequencies was computed: which recipe made it, or none that is known."""
