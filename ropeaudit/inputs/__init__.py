"""What is rotated: q and k, masks, samples of them."""
