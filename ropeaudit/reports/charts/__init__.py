"""Charts: what all pictures share (`style`), and drift against the offset."""
