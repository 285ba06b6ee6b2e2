"""Files of tensors: captured q and k, dumped tables, checkpoints."""
