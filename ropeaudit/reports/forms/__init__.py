"""One report, many forms: a small file for each."""
