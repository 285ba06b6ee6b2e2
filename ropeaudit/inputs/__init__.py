"""The inputs of an audit: q and k, masks, samples of scores."""
