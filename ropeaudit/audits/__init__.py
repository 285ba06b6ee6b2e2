"""Cases in, records out."""
