"""What surrounds a run: threads, files, streams, the state of the process, metadata."""
