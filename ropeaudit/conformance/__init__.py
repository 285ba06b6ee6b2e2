"""Whether code rotates as it should, check by check."""
