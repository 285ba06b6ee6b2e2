"""Reading of tensor files, without trust in their declared sizes."""
