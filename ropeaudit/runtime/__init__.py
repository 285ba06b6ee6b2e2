"""Services of the running process: threads, files, streams, random numbers, progress, metadata."""
