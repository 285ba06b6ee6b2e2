"""Charts: what is plotted (`series`), what all pictures share (`style`), and drift against the offset."""
