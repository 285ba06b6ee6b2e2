"""Rotary position embeddings: settings, scalings, frequencies, and the configs that declare them."""
