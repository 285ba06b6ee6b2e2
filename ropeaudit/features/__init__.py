"""One folder a command: its analysis, its report, its command line."""
