"""The mathematics of rotary position embeddings, free of any choice of number format."""
