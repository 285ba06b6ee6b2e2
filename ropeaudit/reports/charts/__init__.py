"""Charts: what is plotted (`series`), where it stands (`axes`), and how it is drawn (`svg`)."""
