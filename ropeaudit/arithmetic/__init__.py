"""Number formats, rounding to them, and arithmetic of twice the precision."""
