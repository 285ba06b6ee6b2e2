"""Files of tensors: what they hold, read without trust in what they declare."""
