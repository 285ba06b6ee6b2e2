"""The command line: one file a command; parse, call, choose a form, set the exit code."""
